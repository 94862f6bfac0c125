/* The one mutex of the core. Failure of a default pthread mutex is a bug, not a state. */
#ifndef OMQ_MUTEX_H
#define OMQ_MUTEX_H

#include <pthread.h>

typedef pthread_mutex_t omq_mutex;

static inline int omq_mutex_init(omq_mutex *mutex) { return pthread_mutex_init(mutex, NULL); }
static inline void omq_mutex_destroy(omq_mutex *mutex) { (void)pthread_mutex_destroy(mutex); }
static inline void omq_mutex_lock(omq_mutex *mutex) { (void)pthread_mutex_lock(mutex); }
static inline void omq_mutex_unlock(omq_mutex *mutex) { (void)pthread_mutex_unlock(mutex); }

#endif

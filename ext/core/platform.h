/* What differs by compiler and system: the core's one mutex, and prefetching. */
#ifndef OMQ_PLATFORM_H
#define OMQ_PLATFORM_H

#include <pthread.h>

/* Failure of a default pthread mutex is a bug, not a state, so results are not looked at. */
typedef pthread_mutex_t omq_mutex;

static inline int omq_mutex_init(omq_mutex *mutex) { return pthread_mutex_init(mutex, NULL); }
static inline void omq_mutex_destroy(omq_mutex *mutex) { (void)pthread_mutex_destroy(mutex); }
static inline void omq_mutex_lock(omq_mutex *mutex) { (void)pthread_mutex_lock(mutex); }
static inline void omq_mutex_unlock(omq_mutex *mutex) { (void)pthread_mutex_unlock(mutex); }

/* Start to load memory that is read soon, while something else is done. */
#if defined(__GNUC__) || defined(__clang__)
#define OMQ_PREFETCH(address) __builtin_prefetch(address)
#else
#define OMQ_PREFETCH(address) ((void)(address))
#endif

#endif

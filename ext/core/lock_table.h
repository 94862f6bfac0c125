/* The lock table from inside, for lock_table.c and check.c. */
#ifndef OMQ_LOCK_TABLE_H
#define OMQ_LOCK_TABLE_H

#include "mutex.h"
#include "ordermq.h"

/* The locks of one group: open addressing over queue ids, linear probing, deletion shifts
 * back, so that there are no tombstones to sweep. epoch 0 marks a free place. */
typedef struct {
    uint64_t id;
    omq_lock *places; /* `capacity` of them, a power of two, never full */
    size_t capacity;
    size_t count; /* > 0: a group without locks is deleted */
} omq_lock_group;

struct omq_lock_table {
    omq_mutex mutex; /* guards all of it */
    int64_t lease_ms;
    uint64_t next_epoch;
    omq_lock_group *groups; /* ascending by id */
    size_t group_count;
    size_t group_capacity;
    size_t count; /* locks of all groups */
};

/* Where probing for a queue starts. */
size_t omq_lock_home(const omq_lock_group *group, uint64_t queue);

#endif

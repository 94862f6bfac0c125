/* The lock table from inside, for lock_table.c and check.c. */
#ifndef OMQ_LOCK_TABLE_H
#define OMQ_LOCK_TABLE_H

#include "lock_ids.h"
#include "mutex.h"
#include "ordermq.h"

/* An omq_lock without its group, which its place tells: two fit into a cache line. */
typedef struct {
    uint64_t queue;
    uint64_t owner;
    uint64_t epoch; /* 0: the place is free */
    int64_t granted_ms;
} omq_lock_place;

/* The locks of one group: open addressing over queue ids, linear probing, deletion shifts
 * back, so that there are no tombstones to sweep. */
typedef struct {
    uint64_t id;
    omq_lock_place *places; /* `capacity` of them, a power of two, never full */
    size_t capacity;
    unsigned shift;    /* 64 - log2(capacity) */
    size_t count;      /* > 0: a group without locks is deleted */
    int64_t oldest_ms; /* no lock was granted before; a renewal need not raise it, a sweep does */
} omq_lock_group;

struct omq_lock_table {
    omq_mutex mutex; /* guards all of it */
    int64_t lease_ms;
    uint64_t next_epoch;
    omq_lock_group *groups; /* ascending by id */
    size_t group_count;
    size_t group_capacity;
    size_t count; /* locks of all groups */
    omq_lock_ids ids;
};

/* Where probing for a queue starts. */
size_t omq_lock_home(const omq_lock_group *group, uint64_t queue);

#endif

/* The process queue from inside, for process_queue.c and check.c. */
#ifndef OMQ_PROCESS_QUEUE_H
#define OMQ_PROCESS_QUEUE_H

#include <stdatomic.h>

#include "mutex.h"
#include "offset_map.h"

#define OMQ_NO_SLOT UINT32_MAX

typedef enum { OMQ_SHAPE_NONE, OMQ_SHAPE_BATCHES, OMQ_SHAPE_COLUMNS } omq_shape;

/* A batch the binding holds for us. A slot is live (messages > 0), or on exactly one of the
 * lists: emptied, until the binding collects it, then free. */
typedef struct {
    uint32_t messages; /* buffered ones of the batch */
    uint32_t next;     /* on its list; OMQ_NO_SLOT ends it */
} omq_slot;

struct omq_process_queue {
    omq_mutex mutex; /* guards all of it */
    omq_offset_map pending;
    omq_offset_map consuming;
    uint64_t size_bytes; /* of both maps */
    int64_t max_offset;
    int64_t floor;
    uint64_t duplicates_ignored;
    omq_shape shape; /* what the first put chose */
    bool is_dispatched;
    omq_slot *slots;
    uint32_t slot_count;
    uint32_t free_slot;          /* first of the free list */
    uint32_t emptied_slot;       /* first of the emptied list */
    _Atomic uint32_t to_collect; /* its length; atomic so that collect can look without a lock */
};

/* Batches shape: a token is slot << 32 | index. */
static inline uint32_t omq_token_slot(uint64_t token) { return (uint32_t)(token >> 32); }
static inline uint32_t omq_token_index(uint64_t token) { return (uint32_t)token; }

#endif

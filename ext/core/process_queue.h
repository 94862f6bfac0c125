/* The process queue from inside, for process_queue*.c and check.c. */
#ifndef OMQ_PROCESS_QUEUE_H
#define OMQ_PROCESS_QUEUE_H

#include "batch_slots.h"
#include "mutex.h"
#include "offset_leaf.h"

typedef enum { OMQ_SHAPE_NONE, OMQ_SHAPE_BATCHES, OMQ_SHAPE_COLUMNS } omq_shape;

/* Batches are kept as runs, and their sizes with their slots; columns an entry a message,
 * its size the extent. */
struct omq_process_queue {
    omq_mutex mutex; /* guards all of it */
    omq_offset_tree pending;
    omq_offset_tree consuming;
    uint64_t size_bytes; /* of both maps */
    int64_t max_offset;
    int64_t floor;
    uint64_t duplicates_ignored;
    omq_shape shape; /* what the first put chose */
    bool is_dispatched;
    omq_batch_slots slots;
};

/* What follows is called under the mutex. */

static inline int64_t omq_first_offset(const omq_offset_tree *map) {
    return map->count > 0 ? omq_offset_tree_first_item(map).offset : -1;
}

static inline int64_t omq_last_offset(const omq_offset_tree *map) {
    if (map->count == 0) {
        return -1;
    }
    omq_item last = omq_offset_tree_last_item(map);
    return last.offset + omq_run_length(map, last.extent) - 1;
}

static inline omq_status omq_need_shape(const omq_process_queue *queue, omq_shape shape) {
    bool fits = queue->shape == OMQ_SHAPE_NONE || queue->shape == shape;
    return fits ? OMQ_OK : OMQ_WRONG_SHAPE;
}

static inline bool omq_try_begin_dispatch(omq_process_queue *queue) {
    bool begins = !queue->is_dispatched && queue->pending.count > 0;
    queue->is_dispatched |= begins;
    return begins;
}

#endif

/* The process queue from inside, for process_queue.c and check.c. */
#ifndef OMQ_PROCESS_QUEUE_H
#define OMQ_PROCESS_QUEUE_H

#include "batch_slots.h"
#include "mutex.h"
#include "offset_map.h"

typedef enum { OMQ_SHAPE_NONE, OMQ_SHAPE_BATCHES, OMQ_SHAPE_COLUMNS } omq_shape;

/* Batches are kept as runs, and their sizes with their slots; columns an entry a message,
 * its size the extent. */
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
    omq_batch_slots slots;
};

#endif

/* The process queue as its neighbours in the core see it: what is decided together with a change of
 * the buffer is decided under the buffer's own mutex. Each omq_locked_ function is the function of
 * ordermq.h or queue_filling.h with the same ending, for a caller that holds that mutex. */
#ifndef OMQ_PROCESS_QUEUE_H
#define OMQ_PROCESS_QUEUE_H

#include "batch_slots.h"
#include "filled_lanes.h"
#include "offset_tree.h"
#include "platform.h"
#include "queue_filling.h"

typedef enum { OMQ_SHAPE_NONE, OMQ_SHAPE_BATCHES, OMQ_SHAPE_COLUMNS } omq_shape;

/* A queue of batches keeps runs: one entry per batch, however many messages it has, and the
 * message sizes with the batch's slot. A queue of columns keeps one entry per message, whose
 * extent is its size. The first put decides, for good. */
struct omq_process_queue {
    omq_mutex mutex; /* guards all of it, and the assigned queue above it, if there is one */
    omq_offset_tree pending;
    omq_offset_tree consuming;
    uint64_t size_bytes; /* of both trees */
    int64_t max_offset;
    int64_t floor;
    uint64_t duplicates_ignored;
    int64_t next_pull;
    int64_t queue_end;
    omq_read_message first_read; /* a message of the first answer of the queue's life */
    omq_read_message last_read;  /* of all answers; both stay when these are cleared */
    omq_shape shape; /* what the first put chose */
    bool is_dispatched;
    omq_batch_slots slots;
    omq_filled_lanes lanes;   /* of who consumes by key */
    omq_id_window *window;    /* of who wants no copies, else NULL */
    uint64_t permit;          /* to fill it; 0: nobody may */
    uint64_t permits;         /* given out so far */
    omq_room_waiter waiter;   /* of who fills it */
    size_t room_below;        /* messages; fewer notify the waiter */
    bool counts_pending;      /* fewer pending ones */
    omq_room_share share;     /* of a room that other queues have, too */
};

static inline size_t omq_locked_count(const omq_process_queue *queue) {
    return queue->pending.count + queue->consuming.count;
}

/* End what needed the mutex: tell whoever fills the queue of the room that was made. */
void omq_process_queue_unlock(omq_process_queue *queue);

static inline void omq_locked_note_read(omq_process_queue *queue, omq_read_message last) {
    queue->last_read = last;
    if (queue->first_read.offset < 0) {
        queue->first_read = last;
    }
}

static inline void omq_locked_forget_read(omq_process_queue *queue) {
    queue->first_read.offset = queue->last_read.offset = -1;
}

static inline bool omq_locked_begin_dispatch(omq_process_queue *queue) {
    bool begins = !queue->is_dispatched && queue->pending.count > 0;
    queue->is_dispatched |= begins;
    return begins;
}

void omq_locked_clear(omq_process_queue *queue);
void omq_locked_reset(omq_process_queue *queue, int64_t floor); /* >= 0 */
void omq_locked_forbid(omq_process_queue *queue);

/* Check a column of messages before anything is stored, and sum its sizes up. */
bool omq_arrival_measure(omq_arrival *arrival);
omq_status omq_locked_put(omq_process_queue *queue, const omq_arrival *arrival, uint32_t *slot);
omq_status omq_locked_take_segments(omq_process_queue *queue, omq_segment *segments, size_t limit,
                                    size_t *count);

/* Take up to `count` messages as take_segments does, and name none of them. */
omq_status omq_locked_take_unnamed(omq_process_queue *queue, size_t count);
int64_t omq_locked_commit(omq_process_queue *queue, uint32_t *slot);
omq_status omq_locked_make_again_from(omq_process_queue *queue, int64_t start, size_t *moved);
omq_status omq_locked_make_again(omq_process_queue *queue, const int64_t *offsets, size_t count,
                                 size_t *moved);
omq_status omq_locked_remove(omq_process_queue *queue, const int64_t *offsets, size_t count,
                             int64_t *watermark);
int64_t omq_locked_done_after(const omq_process_queue *queue, int64_t watermark);
bool omq_locked_oldest_stored_ms(const omq_process_queue *queue, int64_t *stored_ms);

/* Return the offset of the lowest pending message, or where the next pull begins. */
int64_t omq_locked_position(const omq_process_queue *queue);

#endif

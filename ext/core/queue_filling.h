/* Filling a process queue from a thread that asks nobody: a permit says whether the queue may be
 * filled, and limits say when to stop. Both are looked at under the mutex that guards the queue.
 *
 * Whoever decides about the queue gives out a permit and takes it back; after that no answer
 * under it is buffered. Clearing or resetting the queue takes it back, too. */
#ifndef OMQ_QUEUE_FILLING_H
#define OMQ_QUEUE_FILLING_H

#include "pull_answer.h"
#include "shared_room.h"

/* When to stop filling; the flow control of ordermq/consumer/queue/receiver.py. */
typedef struct {
    bool fills_if_none_pending; /* whatever else is buffered */
    bool counts_pending;        /* `messages` is of those that are pending, not of all buffered */
    size_t messages;            /* above it: wait until half of them are left */
    uint64_t bytes;             /* above it: end */
    int64_t span;               /* from the oldest offset to the newest; above it: end */
} omq_fill_limits;

typedef enum {
    OMQ_FILL_MORE = 0,
    OMQ_FILL_WAIT = 1,   /* until the waiter is notified */
    OMQ_FILL_END = 2,    /* full by bytes or span, of which nothing notifies */
    OMQ_FILL_REFUSED = 3, /* the permit is void, or without memory: nothing was buffered */
    OMQ_FILL_COPIES = 4   /* it has copies of other messages: nothing was buffered */
} omq_fill_next;

/* Give out a new permit, > 0; the one before it becomes void. */
uint64_t omq_process_queue_permit(omq_process_queue *queue);

/* Take a permit back; 0: whichever there is. */
void omq_process_queue_forbid(omq_process_queue *queue, uint64_t permit);

/* Buffer an answer, of which the queue becomes a holder, and note where the next pull begins and
 * where the queue ended at its broker. Sets *dispatch as put_batch does. Returns what follows;
 * with OMQ_FILL_WAIT the waiter is kept. */
omq_fill_next omq_process_queue_fill(omq_process_queue *queue, uint64_t permit,
                                     omq_answer *answer, int64_t next_pull, int64_t queue_end,
                                     const omq_fill_limits *limits, omq_room_waiter waiter,
                                     bool *dispatch);

/* Look at the limits again. */
omq_fill_next omq_process_queue_may_fill(omq_process_queue *queue, uint64_t permit,
                                         const omq_fill_limits *limits, omq_room_waiter waiter);

/* Forget the waiter with this context: it is not called any more. */
void omq_process_queue_forget_waiter(omq_process_queue *queue, const void *context);

/* From now on put what fills the queue into the lanes of its keys, too; before the first answer. The
 * map outlives the queue. Tokens there are those of filled_lanes.h. */
void omq_process_queue_fill_lanes(omq_process_queue *queue, omq_lane_map *map);

/* From now on buffer no answer with copies; before the first answer, NULL: not so. Used under the
 * queue's mutex, with a valid permit only; outlives the queue. */
void omq_process_queue_fill_new_only(omq_process_queue *queue, omq_id_window *window);

/* Note messages up to the first that is a copy. Those noted before are passed over, so whoever gets
 * them again goes on where this ended. NO_MEMORY: the window was cleared. O(rows). */
omq_status omq_id_window_note_new(omq_id_window *window, const uint8_t *body,
                                  const omq_message_rows *rows, bool *has_copy);

/* From now on wait for room in this, too, of which the queue becomes a holder; as often as one likes. */
void omq_process_queue_fill_within(omq_process_queue *queue, omq_shared_room *room);

/* Return the answer that tokens in lanes name, held once more; NULL: all of its messages are
 * done. */
omq_answer *omq_process_queue_lane_answer(omq_process_queue *queue, uint32_t number);

/* Return the answer in a slot, held once more; NULL: it was put in another way. */
omq_answer *omq_process_queue_answer(omq_process_queue *queue, uint32_t slot);

/* Return whether a slot still has this answer. */
bool omq_process_queue_has_answer(omq_process_queue *queue, uint32_t slot,
                                  const omq_answer *answer);

#endif

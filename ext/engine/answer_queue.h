/* Answers of pulls in the order of their offsets, between the pull engine and a thread that reads
 * them: a part of one message queue, bounded by bytes.
 *
 * Threads: one fills it at a time (the engine, or the owner of its streams), one takes; any thread
 * may end it. A mutex guards all of it. */
#ifndef OMQ_ANSWER_QUEUE_H
#define OMQ_ANSWER_QUEUE_H

#include "queue_filling.h"

typedef struct omq_answer_queue omq_answer_queue;

/* An answer, and what of it belongs to the part. */
typedef struct {
    omq_answer *answer; /* held */
    size_t first_row;   /* rows before it were taken */
    size_t end_row;     /* rows from it on are behind the part */
} omq_answer_rows;

/* Make an empty queue for the offsets start .. end - 1. Above most_bytes nothing more is pulled
 * until half of them are left. is_whole: each of these offsets has a message, so what answers leave
 * out is lost. NULL without memory. */
omq_answer_queue *omq_answer_queue_new(int64_t start, int64_t end, uint64_t most_bytes,
                                       bool is_whole);
void omq_answer_queue_free(omq_answer_queue *queue);

/* Add an answer to a pull, of which the queue becomes a holder; `next` is where the next pull
 * begins. OMQ_FILL_END: the part is complete; OMQ_FILL_REFUSED: the queue was ended, the answer is
 * not for the offset that comes next, or there is no memory; nothing was added. O(rows). */
omq_fill_next omq_answer_queue_fill(omq_answer_queue *queue, omq_answer *answer, int64_t first,
                                    int64_t next, omq_room_waiter waiter);

/* Look at the limit again. */
omq_fill_next omq_answer_queue_may_fill(omq_answer_queue *queue, omq_room_waiter waiter);
void omq_answer_queue_forget_waiter(omq_answer_queue *queue, const void *context);

/* Go on at `next` without the offsets before it, which have no messages. */
void omq_answer_queue_skip(omq_answer_queue *queue, int64_t next);

/* Return the offset that comes next. */
int64_t omq_answer_queue_next(omq_answer_queue *queue);

/* End it: what it has can be taken, nothing is added. */
void omq_answer_queue_end(omq_answer_queue *queue);

typedef enum {
    OMQ_TAKEN_SOME = 0,
    OMQ_TAKEN_ALL = 1,  /* nothing is left, and nothing follows */
    OMQ_TAKEN_NONE = 2  /* nothing came in time */
} omq_taken;

/* Take the oldest answer, or a part of at most `most` rows (>= 1), for which `rows` becomes a
 * holder; wait for one up to wait_ms. O(1). */
omq_taken omq_answer_queue_take(omq_answer_queue *queue, size_t most, int64_t wait_ms,
                                omq_answer_rows *rows);

/* Return how many messages answers left out, and the first of their offsets. */
uint64_t omq_answer_queue_lost(omq_answer_queue *queue, int64_t *first);

#endif

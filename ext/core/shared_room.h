/* Room that process queues share: a limit of the messages that are pending in all of them together.
 * Above it whoever fills one of them waits, until half as many are pending. Any thread. Its mutex is
 * taken last but one: behind that of a queue, before those that a waiter takes. */
#ifndef OMQ_SHARED_ROOM_H
#define OMQ_SHARED_ROOM_H

#include <stdbool.h>
#include <stddef.h>

/* Called under a mutex, once, when there is room again or the permit is void. */
typedef struct {
    void (*notify)(void *context); /* NULL: nobody waits */
    void *context;
} omq_room_waiter;

typedef struct omq_shared_room omq_shared_room;

/* What one queue has of it; all zero: it shares none. */
typedef struct omq_room_share {
    omq_shared_room *room;
    size_t pending; /* messages of the queue that are counted there; under the queue's mutex */
    /* Under the mutex of the room. */
    omq_room_waiter waiter;
    struct omq_room_share *next; /* of those that wait */
    struct omq_room_share **link; /* to this one; NULL: it does not wait */
} omq_room_share;

/* Make a room with one holder. NULL without memory. */
omq_shared_room *omq_shared_room_new(size_t messages);

/* Take a holder away; the last one, who may be a queue, frees it. */
void omq_shared_room_release(omq_shared_room *room);

/* Return the number of messages that are pending in all queues. */
size_t omq_shared_room_pending(omq_shared_room *room);

/* The rest is called under the mutex of the share's queue, all but the first two of one that shares
 * a room. */

/* Become a holder of a room, which may be the present one, with nothing pending. */
void omq_room_share_join(omq_room_share *share, omq_shared_room *room);

/* Share none any more. */
void omq_room_share_leave(omq_room_share *share);

/* Note how many messages are pending in the queue. O(waiters), once half of the room is free. */
void omq_room_share_count(omq_room_share *share, size_t pending);

/* Keep the waiter and return true if there is no room, of which the last count of the queue is a part. */
bool omq_room_share_wait(omq_room_share *share, omq_room_waiter waiter);
void omq_room_share_forget_waiter(omq_room_share *share);

#endif

/* A ring of the messages of one queue that are delivered and not done, in offset order.
 *
 * Messages come in offset order, so a ring of them is a sorted map that never inserts: the
 * lowest is at its head, and whatever is done elsewhere is marked and leaves when the head
 * reaches it. A message is known by its sequence number, which counts modulo 2^32; the ring
 * holds at most 2^30, so a distance from the head is exact.
 */
#ifndef OMQ_MESSAGE_RING_H
#define OMQ_MESSAGE_RING_H

#include "bit_tree.h"
#include "ordermq.h"

#define OMQ_IN_FLIGHT UINT32_MAX

enum { OMQ_RING_LIMIT = 1 << 30 }; /* messages */

typedef struct {
    int64_t offset;
    uint64_t token;
    uint32_t lane;  /* OMQ_NO_LANE: done */
    uint32_t ahead; /* distance to the next waiting message of its lane, 0: it is the last;
                       OMQ_IN_FLIGHT: this one does not wait */
} omq_ring_message;

typedef struct {
    omq_ring_message *messages;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t head;     /* sequence number of the lowest offset; it is not done */
    uint32_t count;    /* messages that are done but not at the head are included */
    omq_bit_tree ready; /* positions of messages that may be taken; on its own, so that a search
                           reads 64 messages per word */
} omq_message_ring;

void omq_message_ring_close(omq_message_ring *ring);

/* Make room for `count` more. NO_MEMORY: nothing changed. */
omq_status omq_message_ring_reserve(omq_message_ring *ring, size_t count);

/* Write the sequence number of an offset that is in the ring and not done. O(1) without gaps
 * between the offsets, else O(log n). */
bool omq_message_ring_find(const omq_message_ring *ring, int64_t offset, uint32_t *sequence);

/* Mark a message done, and drop the head while it is. O(1), over the life of the ring. */
void omq_message_ring_end(omq_message_ring *ring, uint32_t sequence);

/* Write the sequence number of the lowest ready message. */
bool omq_message_ring_first_ready(const omq_message_ring *ring, uint32_t *sequence);

static inline uint32_t omq_ring_position(const omq_message_ring *ring, uint32_t sequence) {
    return sequence & (ring->capacity - 1);
}

static inline omq_ring_message *omq_ring_at(const omq_message_ring *ring, uint32_t sequence) {
    return ring->messages + omq_ring_position(ring, sequence);
}

#endif

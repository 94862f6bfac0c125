#include "message_ring.h"

#include <stdlib.h>

#include "key_lanes.h"

enum { FIRST_MESSAGES = 64 };

void omq_message_ring_close(omq_message_ring *ring) {
    free(ring->messages);
    omq_bit_tree_close(&ring->ready);
    ring->messages = NULL;
    ring->capacity = 0;
    ring->count = 0; /* not the head: sequence numbers go on, whatever lanes still remember */
}

omq_status omq_message_ring_reserve(omq_message_ring *ring, size_t count) {
    if (count <= ring->capacity - ring->count) {
        return OMQ_OK;
    }
    if (count > OMQ_RING_LIMIT - ring->count) {
        return OMQ_NO_MEMORY;
    }
    omq_message_ring grown = *ring;
    grown.capacity = ring->capacity == 0 ? FIRST_MESSAGES : ring->capacity;
    while (grown.capacity < ring->count + count) {
        grown.capacity *= 2;
    }
    grown.messages = malloc(grown.capacity * sizeof *grown.messages);
    if (grown.messages == NULL) {
        return OMQ_NO_MEMORY;
    }
    if (omq_bit_tree_open(&grown.ready, grown.capacity) != OMQ_OK) {
        free(grown.messages);
        return OMQ_NO_MEMORY;
    }
    /* A sequence number has another position in a ring of another capacity. */
    for (uint32_t i = 0; i < ring->count; i++) {
        uint32_t sequence = ring->head + i;
        *omq_ring_at(&grown, sequence) = *omq_ring_at(ring, sequence);
        if (omq_bit_tree_has(&ring->ready, omq_ring_position(ring, sequence))) {
            omq_bit_tree_set(&grown.ready, omq_ring_position(&grown, sequence));
        }
    }
    free(ring->messages);
    omq_bit_tree_close(&ring->ready);
    *ring = grown;
    return OMQ_OK;
}

bool omq_message_ring_find(const omq_message_ring *ring, int64_t offset, uint32_t *sequence) {
    if (ring->count == 0 || offset < 0) {
        return false;
    }
    uint32_t last = ring->count - 1;
    int64_t from_head = offset - omq_ring_at(ring, ring->head)->offset;
    int64_t from_tail = omq_ring_at(ring, ring->head + last)->offset - offset;
    if (from_head < 0 || from_tail < 0) {
        return false;
    }
    /* Offsets ascend by one or more, which bounds the place from both ends. Without gaps the
     * bounds meet, and nothing is searched. */
    uint32_t high = from_head < last ? (uint32_t)from_head : last;
    uint32_t low = from_tail < last ? last - (uint32_t)from_tail : 0;
    if (omq_ring_at(ring, ring->head + high)->offset == offset) {
        low = high;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (omq_ring_at(ring, ring->head + middle)->offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *sequence = ring->head + low;
    const omq_ring_message *found = omq_ring_at(ring, *sequence);
    return found->offset == offset && found->lane != OMQ_NO_LANE;
}

void omq_message_ring_end(omq_message_ring *ring, uint32_t sequence) {
    omq_ring_at(ring, sequence)->lane = OMQ_NO_LANE;
    while (ring->count > 0 && omq_ring_at(ring, ring->head)->lane == OMQ_NO_LANE) {
        ring->head++;
        ring->count--;
    }
}

bool omq_message_ring_first_ready(const omq_message_ring *ring, uint32_t *sequence) {
    if (ring->count == 0) {
        return false;
    }
    uint32_t start = omq_ring_position(ring, ring->head);
    uint32_t position;
    /* From the head to the end of the array, then from its start: the ring wraps. */
    if (!omq_bit_tree_next(&ring->ready, start, &position) &&
        !omq_bit_tree_next(&ring->ready, 0, &position)) {
        return false;
    }
    *sequence = ring->head + ((position - start) & (ring->capacity - 1));
    return true;
}

#include "batch_slots.h"

#include <stdlib.h>
#include <string.h>

void omq_batch_slots_open(omq_batch_slots *slots) {
    *slots = (omq_batch_slots){.free = OMQ_NO_SLOT, .emptied = OMQ_NO_SLOT};
}

void omq_batch_slots_close(omq_batch_slots *slots) {
    for (uint32_t i = 0; i < slots->count; i++) {
        omq_batch_slots_drop(slots, i);
    }
    free(slots->slots);
}

uint64_t omq_sum_sizes(const uint32_t *sizes, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; sizes != NULL && i < count; i++) {
        sum += sizes[i];
    }
    return sum;
}

static omq_status grow(omq_batch_slots *slots) {
    uint32_t old = slots->count;
    uint32_t count = old == 0 ? 8 : old * 2;
    if (count < old) { /* doubled past 2^32 */
        return OMQ_NO_MEMORY;
    }
    omq_slot *grown = realloc(slots->slots, count * sizeof *grown);
    if (grown == NULL) {
        return OMQ_NO_MEMORY;
    }
    for (uint32_t i = old; i < count; i++) {
        grown[i] = (omq_slot){.next = i + 1 < count ? i + 1 : slots->free};
    }
    slots->slots = grown;
    slots->count = count;
    slots->free = old;
    return OMQ_OK;
}

omq_status omq_batch_slots_choose(omq_batch_slots *slots, const uint32_t *sizes, size_t count,
                                  bool is_copied, uint32_t *slot) {
    if (slots->free == OMQ_NO_SLOT && grow(slots) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    omq_slot *chosen = slots->slots + slots->free;
    chosen->sizes = count > 0 ? sizes : NULL;
    if (is_copied && chosen->sizes != NULL) {
        chosen->own_sizes = malloc(count * sizeof *sizes);
        chosen->sizes = chosen->own_sizes;
        if (chosen->own_sizes == NULL) {
            return OMQ_NO_MEMORY;
        }
        memcpy(chosen->own_sizes, sizes, count * sizeof *sizes);
    }
    *slot = slots->free;
    return OMQ_OK;
}

void omq_batch_slots_drop(omq_batch_slots *slots, uint32_t slot) {
    omq_slot *dropped = slots->slots + slot;
    if (dropped->own_sizes != NULL) {
        free(dropped->own_sizes);
        dropped->own_sizes = NULL;
    }
    dropped->sizes = NULL;
    if (dropped->answer != NULL) {
        omq_answer_release(dropped->answer);
        dropped->answer = NULL;
    }
}

void omq_batch_slots_fill(omq_batch_slots *slots, uint32_t slot, uint32_t messages,
                          uint64_t bytes) {
    omq_slot *filled = slots->slots + slot;
    slots->free = filled->next;
    filled->messages = messages;
    filled->bytes = bytes;
    filled->next = OMQ_NO_SLOT;
}

uint64_t omq_batch_slots_release(omq_batch_slots *slots, uint32_t slot, uint32_t index,
                                 uint32_t count) {
    omq_slot *held = slots->slots + slot;
    held->messages -= count;
    if (held->messages == 0) {
        /* The usual end: a whole batch left, and its sizes were never read, which are a cache
         * miss per 16 messages. */
        uint64_t bytes = held->bytes;
        omq_batch_slots_drop(slots, slot);
        held->bytes = 0;
        held->next = slots->emptied;
        slots->emptied = slot;
        atomic_fetch_add_explicit(&slots->to_collect, 1, memory_order_relaxed);
        return bytes;
    }
    uint64_t bytes = held->sizes == NULL ? 0 : omq_sum_sizes(held->sizes + index, count);
    held->bytes -= bytes;
    return bytes;
}

void omq_batch_slots_release_all(omq_batch_slots *slots) {
    for (uint32_t i = 0; i < slots->count; i++) {
        if (slots->slots[i].messages > 0) {
            (void)omq_batch_slots_release(slots, i, 0, slots->slots[i].messages);
        }
    }
}

bool omq_batch_slots_collect(omq_batch_slots *slots, uint32_t *slot) {
    uint32_t emptied = slots->emptied;
    if (emptied == OMQ_NO_SLOT) {
        return false;
    }
    slots->emptied = slots->slots[emptied].next;
    slots->slots[emptied].next = slots->free;
    slots->free = emptied;
    atomic_fetch_sub_explicit(&slots->to_collect, 1, memory_order_relaxed);
    *slot = emptied;
    return true;
}

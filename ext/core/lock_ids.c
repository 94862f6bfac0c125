#include "lock_ids.h"

#include <stdlib.h>

enum { FIRST_SLOTS = 16 };

static uint64_t id_of(const omq_lock_ids *ids, const omq_id_slot *slot) {
    return (uint64_t)slot->generation << 32 | (uint64_t)(slot - ids->slots);
}

/* List a slot without pin and use, once, for the next forget. Unlisting it when it is used again
 * would need a doubly linked list; forget skips it instead. */
static void note_idle(omq_lock_ids *ids, omq_id_slot *slot) {
    if (slot->pins == 0 && slot->uses == 0 && !slot->is_in_idle) {
        slot->is_in_idle = true;
        slot->next = ids->first_idle;
        ids->first_idle = (uint32_t)(slot - ids->slots);
    }
}

static omq_id_slot *new_slot(omq_lock_ids *ids) {
    if (ids->count == OMQ_NO_ID_SLOT) {
        return NULL;
    }
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity == 0 ? FIRST_SLOTS : ids->capacity * 2;
        omq_id_slot *slots = realloc(ids->slots, capacity * sizeof *slots);
        if (slots == NULL) {
            return NULL;
        }
        ids->slots = slots;
        ids->capacity = capacity;
    }
    omq_id_slot *slot = ids->slots + ids->count++;
    *slot = (omq_id_slot){.generation = 1};
    return slot;
}

omq_status omq_lock_ids_add(omq_lock_ids *ids, uint64_t *id) {
    omq_id_slot *slot;
    if (ids->first_free != OMQ_NO_ID_SLOT) {
        slot = ids->slots + ids->first_free;
        ids->first_free = slot->next;
    } else {
        slot = new_slot(ids);
    }
    if (slot == NULL) {
        return OMQ_NO_MEMORY;
    }
    slot->is_known = true;
    note_idle(ids, slot);
    *id = id_of(ids, slot);
    return OMQ_OK;
}

void omq_lock_ids_use(omq_lock_ids *ids, uint64_t id) { omq_lock_ids_find(ids, id)->uses++; }

void omq_lock_ids_unuse(omq_lock_ids *ids, uint64_t id) {
    omq_id_slot *slot = omq_lock_ids_find(ids, id);
    slot->uses--;
    note_idle(ids, slot);
}

omq_status omq_lock_ids_pin(omq_lock_ids *ids, uint64_t id) {
    omq_id_slot *slot = omq_lock_ids_find(ids, id);
    if (slot == NULL) {
        return OMQ_UNKNOWN_ID;
    }
    if (slot->pins == UINT32_MAX) {
        return OMQ_OUT_OF_RANGE;
    }
    slot->pins++;
    return OMQ_OK;
}

omq_status omq_lock_ids_unpin(omq_lock_ids *ids, uint64_t id) {
    omq_id_slot *slot = omq_lock_ids_find(ids, id);
    if (slot == NULL) {
        return OMQ_UNKNOWN_ID;
    }
    if (slot->pins == 0) {
        return OMQ_OUT_OF_RANGE;
    }
    slot->pins--;
    note_idle(ids, slot);
    return OMQ_OK;
}

size_t omq_lock_ids_forget(omq_lock_ids *ids, uint64_t *forgotten, size_t capacity) {
    size_t count = 0;
    while (ids->first_idle != OMQ_NO_ID_SLOT && count < capacity) {
        uint32_t at = ids->first_idle;
        omq_id_slot *slot = ids->slots + at;
        ids->first_idle = slot->next;
        slot->is_in_idle = false;
        if (slot->pins > 0 || slot->uses > 0) {
            continue; /* in use again */
        }
        forgotten[count++] = id_of(ids, slot);
        slot->is_known = false;
        if (slot->generation < UINT32_MAX) { /* a slot without ids left is not used again */
            slot->generation++;
            slot->next = ids->first_free;
            ids->first_free = at;
        }
    }
    return count;
}

size_t omq_lock_ids_known(const omq_lock_ids *ids, const uint64_t *asked, size_t count) {
    size_t at = 0;
    while (at < count && omq_lock_ids_find(ids, asked[at]) != NULL) {
        at++;
    }
    return at;
}

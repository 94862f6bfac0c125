/* The ids of a lock table, with their pins and their uses by locks. The table's mutex guards
 * them. */
#ifndef OMQ_LOCK_IDS_H
#define OMQ_LOCK_IDS_H

#include "ordermq.h"

/* One slot. An id is the generation of its slot (high half) and the slot (low half): it is found
 * in one step and never given out twice, so that a stale id is unknown instead of naming another
 * owner, who would then be granted a lock. */
typedef struct {
    uint32_t generation; /* >= 1; of the next id while the slot is free */
    uint32_t pins;
    uint64_t uses;   /* groups that have locks, locks of it as a queue, locks of it as an owner */
    uint32_t next;   /* in the list of free or of idle slots */
    bool is_known;   /* not free */
    bool is_in_idle; /* listed at most once; may be in use again by now, which forget sees */
} omq_id_slot;

typedef struct {
    omq_id_slot *slots;
    size_t count;    /* slots ever used */
    size_t capacity;
    uint32_t first_free; /* a slot, or OMQ_NO_ID_SLOT */
    uint32_t first_idle; /* every slot without pin and use is listed here */
} omq_lock_ids;

#define OMQ_NO_ID_SLOT UINT32_MAX

/* The slot of an id, or NULL if it is unknown. O(1). */
static inline omq_id_slot *omq_lock_ids_find(const omq_lock_ids *ids, uint64_t id) {
    size_t at = (size_t)(id & UINT32_MAX);
    if (at >= ids->count) {
        return NULL;
    }
    omq_id_slot *slot = ids->slots + at;
    return slot->is_known && slot->generation == id >> 32 ? slot : NULL;
}

/* Give out an id that nothing uses. NO_MEMORY. O(1) amortised. */
omq_status omq_lock_ids_add(omq_lock_ids *ids, uint64_t *id);

/* Count a use of a known id, or take one back. O(1). */
void omq_lock_ids_use(omq_lock_ids *ids, uint64_t id);
void omq_lock_ids_unuse(omq_lock_ids *ids, uint64_t id);

/* Count a pin, or take one back. UNKNOWN_ID; OUT_OF_RANGE: too many pins, or none. O(1). */
omq_status omq_lock_ids_pin(omq_lock_ids *ids, uint64_t id);
omq_status omq_lock_ids_unpin(omq_lock_ids *ids, uint64_t id);

/* How many of the ids, from the first on, are known. O(count). */
size_t omq_lock_ids_known(const omq_lock_ids *ids, const uint64_t *asked, size_t count);

/* Forget ids without pin and use, up to `capacity`, and write them; return how many. Fewer
 * than `capacity` means that none is left. O(ids that became idle since). */
size_t omq_lock_ids_forget(omq_lock_ids *ids, uint64_t *forgotten, size_t capacity);

#endif

/* One leaf of an offset tree: columns of entries in a window begin .. end, ascending. */
#ifndef OMQ_OFFSET_LEAF_H
#define OMQ_OFFSET_LEAF_H

#include <string.h>

#include "offset_runs.h"
#include "prefetch.h"

static inline uint32_t omq_leaf_count(const omq_leaf *leaf) { return leaf->end - leaf->begin; }

static inline omq_item omq_leaf_item(const omq_leaf *leaf, uint32_t at) {
    return (omq_item){leaf->offsets[at], leaf->tokens[at], leaf->extents[at]};
}

static inline void omq_leaf_set(omq_leaf *leaf, uint32_t at, const omq_item *item) {
    leaf->offsets[at] = item->offset;
    leaf->tokens[at] = item->token;
    leaf->extents[at] = item->extent;
}

static inline void omq_leaf_move(omq_leaf *to, uint32_t to_at, const omq_leaf *from, uint32_t at,
                                 uint32_t count) {
    memmove(to->offsets + to_at, from->offsets + at, count * sizeof *to->offsets);
    memmove(to->tokens + to_at, from->tokens + at, count * sizeof *to->tokens);
    memmove(to->extents + to_at, from->extents + at, count * sizeof *to->extents);
}

/* How many of `count` ascending keys are below `key`. Four ways at a time, for three loads at
 * once cost hardly more than one, and without a branch on the data: random keys would have
 * every second one guessed wrong. */
static inline uint32_t omq_count_below(const int64_t *keys, uint32_t count, int64_t key) {
    const int64_t *from = keys;
    if (count == 0) {
        return 0;
    }
    uint32_t part = UINT32_C(1) << (31 - __builtin_clz(count));
    uint32_t over = count - part;
    if (over > 0) {
        from += over & (0 - (uint32_t)(from[over - 1] < key));
    }
    while (part >= 4) {
        part /= 4;
        from += part * ((uint32_t)(from[part - 1] < key) + (from[2 * part - 1] < key) +
                        (from[3 * part - 1] < key));
    }
    if (part == 2) {
        from += *from < key;
    }
    return (uint32_t)(from - keys) + (*from < key);
}

/* The first position with an offset >= `offset`, or end. */
static inline uint32_t omq_leaf_lower_bound(const omq_leaf *leaf, int64_t offset) {
    return leaf->begin + omq_count_below(leaf->offsets + leaf->begin, omq_leaf_count(leaf), offset);
}

/* Begin to load `count` entries from `at` on, as far as the leaf has them. */
static inline void omq_leaf_prefetch(const omq_leaf *leaf, uint32_t at, uint32_t count) {
    uint32_t end = count < OMQ_LEAF_CAPACITY - at ? at + count : OMQ_LEAF_CAPACITY;
    for (uint32_t i = at; i < end; i += 8) { /* entries of 8 bytes in a cache line of 64 */
        OMQ_PREFETCH(leaf->offsets + i);
        OMQ_PREFETCH(leaf->tokens + i);
        OMQ_PREFETCH(leaf->extents + i);
    }
}

/* Insert before position `at` of a leaf with room, moving the shorter side if it can. */
static inline void omq_leaf_insert(omq_leaf *leaf, uint32_t at, const omq_item *item) {
    uint32_t before = at - leaf->begin;
    uint32_t after = leaf->end - at;
    bool has_room_after = leaf->end < OMQ_LEAF_CAPACITY;
    if (leaf->begin > 0 && (before < after || !has_room_after)) {
        omq_leaf_move(leaf, leaf->begin - 1, leaf, leaf->begin, before);
        leaf->begin--;
        at--;
    } else {
        omq_leaf_move(leaf, at + 1, leaf, at, after);
        leaf->end++;
    }
    omq_leaf_set(leaf, at, item);
}

static inline void omq_leaf_delete(omq_leaf *leaf, uint32_t at) {
    uint32_t before = at - leaf->begin;
    uint32_t after = leaf->end - at - 1;
    if (before < after) {
        omq_leaf_move(leaf, leaf->begin + 1, leaf, leaf->begin, before);
        leaf->begin++;
    } else {
        omq_leaf_move(leaf, at, leaf, at + 1, after);
        leaf->end--;
    }
}

#endif

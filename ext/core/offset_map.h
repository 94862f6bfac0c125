/* The offset map from inside: what process_queue.c and check.c see beyond ordermq.h.
 *
 * A B+ tree whose leaves are chunks of columns, linked both ways. Made for keys that come
 * ascending and leave from the front: a leaf is a window begin .. end of its columns, so both
 * ends are O(1); a split at the end leaves the old leaf full, so that ascending keys cost 20
 * bytes each. Elsewhere it is a usual B+ tree, except that inner nodes are never merged, only
 * dropped when empty: depth stays uniform, and what leaves at the front takes its nodes along.
 */
#ifndef OMQ_OFFSET_MAP_H
#define OMQ_OFFSET_MAP_H

#include "ordermq.h"

enum {
    OMQ_LEAF_CAPACITY = 128, /* entries; a random insert moves a quarter of them on average */
    OMQ_INNER_CAPACITY = 64, /* children */
    OMQ_MAX_HEIGHT = 24      /* inner levels; full nodes of 2 would still hold 2^24 leaves */
};

typedef struct omq_leaf {
    struct omq_leaf *previous;
    struct omq_leaf *next;
    uint32_t begin; /* entries are at begin .. end - 1 */
    uint32_t end;
    int64_t offsets[OMQ_LEAF_CAPACITY];
    uint64_t tokens[OMQ_LEAF_CAPACITY];
    uint32_t sizes[OMQ_LEAF_CAPACITY]; /* bytes of the body, as told at put */
} omq_leaf;

/* keys[i] is a lower bound of child i and above all of child i - 1. keys[0] means nothing:
 * child 0 takes whatever its parent sends here. */
typedef struct omq_inner {
    uint32_t count; /* children, >= 1, in the root >= 2 */
    int64_t keys[OMQ_INNER_CAPACITY];
    void *children[OMQ_INNER_CAPACITY];
} omq_inner;

struct omq_offset_map {
    size_t count;
    int height; /* inner levels above the leaves */
    void *root; /* omq_leaf if height is 0, else omq_inner */
    omq_leaf *head; /* there always is a leaf; it is empty only if it is the only one */
    omq_leaf *tail;
    omq_leaf *spare_leaf;    /* one, so that a steady flow through does not call malloc */
    omq_inner *spare_inners; /* linked by children[0]; taken before a split, so it cannot fail */
    size_t spare_inner_count;
};

/* One message on its way between maps. */
typedef struct {
    int64_t offset;
    uint64_t token;
    uint32_t size;
} omq_item;

/* Prepare and free a map embedded in another object. */
omq_status omq_offset_map_open(omq_offset_map *map);
void omq_offset_map_close(omq_offset_map *map);

/* Insert an absent offset. */
omq_status omq_offset_map_insert(omq_offset_map *map, const omq_item *item);

/* Append `count` strictly ascending offsets, all above the last. Without `tokens` they are
 * first_token, first_token + 1 ...; without `sizes` zeros. Writes how many were appended: all,
 * unless NO_MEMORY. */
omq_status omq_offset_map_append(omq_offset_map *map, const int64_t *offsets,
                                 const uint64_t *tokens, uint64_t first_token,
                                 const uint32_t *sizes, size_t count, size_t *appended);

/* Delete the first or last `count` entries of the head or tail leaf; it has that many. */
void omq_offset_map_drop_head(omq_offset_map *map, size_t count);
void omq_offset_map_drop_tail(omq_offset_map *map, size_t count);

/* Delete an offset and write what it had; false if absent. */
bool omq_offset_map_extract(omq_offset_map *map, int64_t offset, omq_item *item);

/* Write what an offset has; false if absent. */
bool omq_offset_map_find(const omq_offset_map *map, int64_t offset, omq_item *item);

#endif

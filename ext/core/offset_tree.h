/* The offset tree: a process queue keeps its messages in it, an offset map its blocks.
 *
 * A B+ tree whose leaves are chunks of columns, linked both ways. An entry is one offset, or,
 * in a tree with runs, a run: `extent` offsets from `offset` on, whose tokens ascend by one as
 * the offsets do. A batch that is put whole is one entry, however many messages it has, and
 * a take from its front shortens the entry: a deep queue costs no more than a short one.
 *
 * A leaf is a window begin .. end of its columns, so both ends are O(1); a split at the end
 * leaves the old leaf full, so that ascending keys cost 20 bytes per entry. Elsewhere it is a
 * usual B+ tree, except that inner nodes are never merged, only dropped when empty: depth
 * stays uniform, and what leaves at the front takes its nodes along.
 */
#ifndef OMQ_OFFSET_TREE_H
#define OMQ_OFFSET_TREE_H

#include <string.h>

#include "ordermq.h"
#include "platform.h"

/* ---- the tree as its owners use it ---- */

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
    uint32_t extents[OMQ_LEAF_CAPACITY]; /* offsets of the run; without runs a number of the
                                            owner's, for a process queue the bytes of a body */
} omq_leaf;

/* keys[i] is a lower bound of child i and above all of child i - 1. keys[0] means nothing:
 * child 0 takes whatever its parent sends here. */
typedef struct omq_inner {
    uint32_t count; /* children, >= 1, in the root >= 2 */
    int64_t keys[OMQ_INNER_CAPACITY];
    void *children[OMQ_INNER_CAPACITY];
} omq_inner;

typedef struct {
    size_t count;  /* offsets */
    bool has_runs; /* set by the owner while the tree is empty */
    int height;    /* inner levels above the leaves */
    void *root;    /* omq_leaf if height is 0, else omq_inner */
    omq_leaf *head; /* there always is a leaf; it is empty only if it is the only one */
    omq_leaf *tail;
    omq_leaf *spare_leaf;    /* one, so that a steady flow through does not call malloc */
    omq_inner *spare_inners; /* linked by children[0]; taken before a split, so it cannot fail */
    size_t spare_inner_count;
} omq_offset_tree;

/* An entry on its way between trees. */
typedef struct {
    int64_t offset;
    uint64_t token;
    uint32_t extent;
} omq_item;

/* Return the number of offsets of an entry. */
static inline uint32_t omq_run_length(const omq_offset_tree *tree, uint32_t extent) {
    return tree->has_runs ? extent : 1;
}

static inline bool omq_offset_tree_is_empty(const omq_offset_tree *tree) {
    return tree->count == 0;
}

/* Return the first or last entry of a tree that is not empty. */
static inline omq_item omq_offset_tree_first_item(const omq_offset_tree *tree) {
    uint32_t at = tree->head->begin;
    return (omq_item){tree->head->offsets[at], tree->head->tokens[at], tree->head->extents[at]};
}

static inline omq_item omq_offset_tree_last_item(const omq_offset_tree *tree) {
    uint32_t at = tree->tail->end - 1;
    return (omq_item){tree->tail->offsets[at], tree->tail->tokens[at], tree->tail->extents[at]};
}

/* Prepare and free a tree embedded in another object. */
omq_status omq_offset_tree_open(omq_offset_tree *tree);
void omq_offset_tree_close(omq_offset_tree *tree);

/* Delete everything. O(n). */
void omq_offset_tree_clear(omq_offset_tree *tree);

/* Insert an entry whose offsets are absent; a run may grow the run before it. NO_MEMORY: a prefix
 * of a run may be inserted, which tree->count tells. */
omq_status omq_offset_tree_insert(omq_offset_tree *tree, const omq_item *item);

/* Insert above the last offset. O(1). */
omq_status omq_offset_tree_append(omq_offset_tree *tree, const omq_item *item);

/* Append `count` strictly ascending offsets, all above the last, to a tree without runs.
 * Without `extents` zeros. Writes how many were appended: all, unless NO_MEMORY. */
omq_status omq_offset_tree_append_columns(omq_offset_tree *tree, const int64_t *offsets,
                                          const uint64_t *tokens, const uint32_t *extents,
                                          size_t count, size_t *appended);

/* Delete the first `count` entries of the head leaf; it has that many. */
void omq_offset_tree_drop_head(omq_offset_tree *tree, uint32_t count);

/* Delete the first or last `count` offsets of the first or last entry; it has that many. */
void omq_offset_tree_trim_head(omq_offset_tree *tree, uint32_t count);
void omq_offset_tree_trim_tail(omq_offset_tree *tree, uint32_t count);

/* Write the entry of one offset, as if it stood alone: in a tree with runs the extent is 1. */
bool omq_offset_tree_find(const omq_offset_tree *tree, int64_t offset, omq_item *item);

/* Delete an offset and write what it had, as find does. NO_MEMORY (nothing done) only from
 * the middle of a run, which becomes two. */
omq_status omq_offset_tree_extract(omq_offset_tree *tree, int64_t offset, omq_item *item,
                                   bool *is_found);

/* For tests: NULL, or what is broken. The offsets lie in 0 .. high. */
const char *omq_offset_tree_check(const omq_offset_tree *tree, int64_t high);

/* ---- one leaf: entries in its window begin .. end, ascending ---- */

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

/* Return how many of `count` ascending keys are below `key`. The search splits four ways, for three
 * loads at once cost hardly more than one, and has no branch on the data: with random keys the
 * processor would guess every second one wrong. */
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
    while (part >= 4) { /* `part` is a power of two, so every window has the same size */
        part /= 4;
        from += part * ((uint32_t)(from[part - 1] < key) + (from[2 * part - 1] < key) +
                        (from[3 * part - 1] < key));
    }
    if (part == 2) {
        from += *from < key;
    }
    return (uint32_t)(from - keys) + (*from < key);
}

/* Return the first position with an offset >= `offset`, or end. */
static inline uint32_t omq_leaf_lower_bound(const omq_leaf *leaf, int64_t offset) {
    return leaf->begin + omq_count_below(leaf->offsets + leaf->begin, omq_leaf_count(leaf), offset);
}

/* Start to load `count` entries from `at` on, as far as the leaf has them. */
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

/* ---- nodes, for the offset map, which looks its blocks up itself ---- */

/* Where a descent went: at level l it took child slots[l] of nodes[l]; level 0 is the root. */
typedef struct {
    omq_inner *nodes[OMQ_MAX_HEIGHT];
    uint32_t slots[OMQ_MAX_HEIGHT];
} omq_path;

/* Return the last child whose key is at most `offset`, or child 0. INT64_MAX has no successor, so
 * it is told apart. */
static inline uint32_t omq_child_slot(const omq_inner *node, int64_t offset) {
    return offset == INT64_MAX ? node->count - 1
                               : omq_count_below(node->keys + 1, node->count - 1, offset + 1);
}

static inline omq_leaf *omq_tree_descend(const omq_offset_tree *tree, int64_t offset,
                                         omq_path *path) {
    void *node = tree->root;
    for (int level = 0; level < tree->height; level++) {
        omq_inner *inner = node;
        uint32_t slot = omq_child_slot(inner, offset);
        path->nodes[level] = inner;
        path->slots[level] = slot;
        node = inner->children[slot];
    }
    return node;
}

/* Insert an entry before position `at` of the leaf that the path leads to, split if full. */
omq_status omq_tree_insert(omq_offset_tree *tree, const omq_path *path, omq_leaf *leaf, uint32_t at,
                           const omq_item *item);

/* Delete the entry at `at`; leaves that this empties or thins are dropped or joined. */
void omq_tree_delete(omq_offset_tree *tree, omq_path *path, omq_leaf *leaf, uint32_t at);

#endif

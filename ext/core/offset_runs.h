/* The offset tree: what a process queue keeps its messages in, and an offset map its blocks.
 *
 * A B+ tree whose leaves are chunks of columns, linked both ways. An entry is one offset, or,
 * in a tree with runs, a run: `extent` offsets from `offset` on, whose tokens ascend by one as
 * the offsets do. What comes as one batch is one entry, however many messages it has, and
 * what leaves from the front of it shortens the entry: depth costs nothing.
 *
 * A leaf is a window begin .. end of its columns, so both ends are O(1); a split at the end
 * leaves the old leaf full, so that ascending keys cost 20 bytes an entry. Elsewhere it is a
 * usual B+ tree, except that inner nodes are never merged, only dropped when empty: depth
 * stays uniform, and what leaves at the front takes its nodes along.
 */
#ifndef OMQ_OFFSET_RUNS_H
#define OMQ_OFFSET_RUNS_H

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

/* An entry on its way between maps. */
typedef struct {
    int64_t offset;
    uint64_t token;
    uint32_t extent;
} omq_item;

/* Offsets of an entry. */
static inline uint32_t omq_run_length(const omq_offset_tree *tree, uint32_t extent) {
    return tree->has_runs ? extent : 1;
}

static inline bool omq_offset_tree_is_empty(const omq_offset_tree *tree) {
    return tree->count == 0;
}

/* The ends of a tree that is not empty. */
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

/* Insert an entry whose offsets are absent; a run may grow the run before it. NO_MEMORY. */
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

/* Write what an offset has, as an entry of its own: in a tree with runs the extent is 1. */
bool omq_offset_tree_find(const omq_offset_tree *tree, int64_t offset, omq_item *item);

/* Delete an offset and write what it had, as find does. NO_MEMORY (nothing done) only from
 * the middle of a run, which becomes two. */
omq_status omq_offset_tree_extract(omq_offset_tree *tree, int64_t offset, omq_item *item,
                                   bool *is_found);

#endif

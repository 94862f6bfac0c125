/* The nodes of an offset tree: for offset_tree.c, which keeps it a tree, and for offset_runs.c
 * and offset_map.c, which keep the entries. */
#ifndef OMQ_OFFSET_TREE_H
#define OMQ_OFFSET_TREE_H

#include "offset_leaf.h"

/* Where a descent went: at level l it took child slots[l] of nodes[l]; level 0 is the root. */
typedef struct {
    omq_inner *nodes[OMQ_MAX_HEIGHT];
    uint32_t slots[OMQ_MAX_HEIGHT];
} omq_path;

/* The last child whose key is at most `offset`, or child 0. */
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

/* The path to the first leaf or to the last one. */
void omq_tree_descend_edge(const omq_offset_tree *tree, bool is_last, omq_path *path);

/* The first offset that belongs to a later leaf than the path's. */
int64_t omq_tree_upper_bound(const omq_offset_tree *tree, const omq_path *path);

/* Add a leaf beside a full one to make room for `offset` at position `at` of it; move both to
 * the place. NO_MEMORY (nothing done). */
omq_status omq_tree_split_leaf(omq_offset_tree *tree, const omq_path *path, int64_t offset,
                               omq_leaf **leaf, uint32_t *at);

/* Insert an entry before position `at` of the leaf that the path leads to, split if full. */
omq_status omq_tree_insert(omq_offset_tree *tree, const omq_path *path, omq_leaf *leaf, uint32_t at,
                           const omq_item *item);

/* Delete the entry at `at`; leaves that this empties or thins are dropped or joined. */
void omq_tree_delete(omq_offset_tree *tree, omq_path *path, omq_leaf *leaf, uint32_t at);

/* Drop an empty leaf; the last one stays, empty. */
void omq_tree_remove_leaf(omq_offset_tree *tree, const omq_path *path, omq_leaf *leaf);

#endif

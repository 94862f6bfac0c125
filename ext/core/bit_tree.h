/* A set of positions below a fixed bound that finds its next member in a few steps.
 *
 * Bit i of level l + 1 tells whether word i of level l has a bit: 64 positions per step, so four
 * words search sixteen million. */
#ifndef OMQ_BIT_TREE_H
#define OMQ_BIT_TREE_H

#include "ordermq.h"

enum { OMQ_BIT_LEVELS = 6 }; /* 64^6 > 2^31 */

typedef struct {
    uint64_t *levels[OMQ_BIT_LEVELS]; /* all in one allocation, which level 0 owns */
    uint32_t bits[OMQ_BIT_LEVELS];    /* of each level */
    int height;                       /* levels in use; 0: the set has no room */
} omq_bit_tree;

/* Make an empty set of positions below `capacity` (<= 2^31). NO_MEMORY: `tree` is unchanged. */
omq_status omq_bit_tree_open(omq_bit_tree *tree, uint32_t capacity);
void omq_bit_tree_close(omq_bit_tree *tree);

/* Add or remove a position below the capacity. */
void omq_bit_tree_set(omq_bit_tree *tree, uint32_t position);
void omq_bit_tree_clear(omq_bit_tree *tree, uint32_t position);

/* Write the smallest position >= start; false if there is none. */
bool omq_bit_tree_next(const omq_bit_tree *tree, uint32_t start, uint32_t *position);

static inline bool omq_bit_tree_has(const omq_bit_tree *tree, uint32_t position) {
    return (tree->levels[0][position / 64] >> (position % 64) & 1) != 0;
}

#endif

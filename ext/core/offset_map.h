/* The offset map from inside, for offset_map.c and check.c.
 *
 * Offsets are nearly contiguous, so the map keeps them by blocks of 128 neighbours: a
 * directory, an offset tree without runs, has an entry for each block number (offset >> 7)
 * that has an offset. Where a block has one offset only, its token is in the directory, else a
 * pointer to the block is. So a search looks at few keys, and a dense block moves nothing. */
#ifndef OMQ_OFFSET_MAP_H
#define OMQ_OFFSET_MAP_H

#include "offset_block.h"
#include "offset_leaf.h"

/* The extent of a directory entry: the low bits of its only offset, or this, and then the
 * token is the address of a block, of two offsets at least. */
#define OMQ_IN_BLOCK ((uint32_t)OMQ_BLOCK_SPAN)

enum { OMQ_PREFETCH_GROUP = 16 /* keys */ };

struct omq_offset_map {
    size_t count;
    omq_offset_tree directory;
    omq_block *spare; /* of OMQ_BLOCK_SPAN tokens, so that a steady flow does not call malloc */
};

static inline omq_block *omq_directory_block(const omq_leaf *leaf, uint32_t at) {
    return (omq_block *)(uintptr_t)leaf->tokens[at];
}

#endif

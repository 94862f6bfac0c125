/* A block of the offset map: what it holds of OMQ_BLOCK_SPAN neighbouring offsets.
 *
 * A bit an offset says which are there. The tokens of a thin block are packed in the order of
 * their offsets, so the place of one is the number of bits below it; in a block of more than
 * OMQ_BLOCK_PACKED offsets each lies where its offset does, and nothing moves. A block doubles
 * when it is full and shrinks late, so that an offset that comes and goes does not copy it
 * each time. */
#ifndef OMQ_OFFSET_BLOCK_H
#define OMQ_OFFSET_BLOCK_H

#include <string.h>

#include "ordermq.h"

enum {
    OMQ_BLOCK_BITS = 7,
    OMQ_BLOCK_SPAN = 1 << OMQ_BLOCK_BITS,
    OMQ_BLOCK_SMALLEST = 4, /* tokens */
    OMQ_BLOCK_PACKED = 32,  /* tokens of the largest packed block: half as many cost a map of
                               every sixth offset 50 bytes each, twice as many a slower put */
    OMQ_BLOCK_THIN = 24     /* with so many left, a block of OMQ_BLOCK_SPAN tokens packs them */
};

typedef struct {
    uint64_t present[2];
    uint32_t held;
    uint16_t capacity; /* tokens: 4, 8, 16, 32 or, not packed, OMQ_BLOCK_SPAN */
    bool is_refused;   /* it should have shrunk, but there was no memory */
    uint64_t tokens[];
} omq_block;

static inline bool omq_block_is_packed(const omq_block *block) {
    return block->capacity < OMQ_BLOCK_SPAN;
}

static inline bool omq_block_has(const omq_block *block, uint32_t low) {
    return block->present[low >> 6] >> (low & 63) & 1;
}

/* With this many offsets left a block of this capacity should shrink. */
static inline uint32_t omq_block_thin(uint32_t capacity) {
    return capacity < OMQ_BLOCK_SPAN ? capacity / 4 : OMQ_BLOCK_THIN;
}

/* Bits set, without an instruction that not every processor has. */
static inline uint32_t omq_count_bits(uint64_t bits) {
    bits -= bits >> 1 & UINT64_C(0x5555555555555555);
    bits = (bits & UINT64_C(0x3333333333333333)) + (bits >> 2 & UINT64_C(0x3333333333333333));
    bits = (bits + (bits >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)(bits * UINT64_C(0x0101010101010101) >> 56);
}

/* How many offsets of the block are below `low`, which is below OMQ_BLOCK_SPAN. */
static inline uint32_t omq_block_rank(const omq_block *block, uint32_t low) {
    uint64_t below = block->present[low >> 6] & ((UINT64_C(1) << (low & 63)) - 1);
    return omq_count_bits(below) + (low < 64 ? 0 : omq_count_bits(block->present[0]));
}

/* Where the token of an offset is, or in a packed block would go. */
static inline uint32_t omq_block_index(const omq_block *block, uint32_t low) {
    return omq_block_is_packed(block) ? omq_block_rank(block, low) : low;
}

/* The smallest offset >= low, or OMQ_BLOCK_SPAN. */
static inline uint32_t omq_block_ceiling(const omq_block *block, uint32_t low) {
    if (low < 64) {
        uint64_t bits = block->present[0] >> low << low;
        if (bits != 0) {
            return (uint32_t)__builtin_ctzll(bits);
        }
        low = 64;
    }
    uint64_t bits = low < OMQ_BLOCK_SPAN ? block->present[1] >> (low - 64) << (low - 64) : 0;
    return bits != 0 ? 64 + (uint32_t)__builtin_ctzll(bits) : OMQ_BLOCK_SPAN;
}

/* The greatest offset <= low, or OMQ_BLOCK_SPAN. */
static inline uint32_t omq_block_floor(const omq_block *block, uint32_t low) {
    if (low >= 64) {
        uint64_t bits = block->present[1] << (127 - low);
        if (bits != 0) {
            return low - (uint32_t)__builtin_clzll(bits);
        }
        low = 63;
    }
    uint64_t bits = block->present[0] << (63 - low);
    return bits != 0 ? low - (uint32_t)__builtin_clzll(bits) : OMQ_BLOCK_SPAN;
}

/* Add an offset that is absent to a block with room. */
static inline void omq_block_add(omq_block *block, uint32_t low, uint64_t token) {
    uint32_t at = low;
    if (omq_block_is_packed(block)) {
        at = omq_block_rank(block, low);
        memmove(block->tokens + at + 1, block->tokens + at,
                (block->held - at) * sizeof *block->tokens);
    }
    block->tokens[at] = token;
    block->present[low >> 6] |= UINT64_C(1) << (low & 63);
    block->held++;
}

/* Delete an offset that is there. */
static inline void omq_block_drop(omq_block *block, uint32_t low) {
    block->present[low >> 6] &= ~(UINT64_C(1) << (low & 63));
    block->held--;
    if (omq_block_is_packed(block)) {
        uint32_t at = omq_block_rank(block, low);
        memmove(block->tokens + at, block->tokens + at + 1,
                (block->held - at) * sizeof *block->tokens);
    }
}

/* Bytes of a block with room for so many tokens. */
size_t omq_block_bytes(uint32_t capacity);

/* The capacity a full block grows to, and the one a block that holds so many shrinks to. */
uint32_t omq_block_grown(uint32_t capacity);
uint32_t omq_block_shrunk(uint32_t capacity, uint32_t held);

/* Make `to`, memory of omq_block_bytes(capacity), a block of the same offsets and tokens. */
void omq_block_copy(omq_block *to, const omq_block *from, uint32_t capacity);

/* Write the entries from `low` on, up to `room`; offsets count from `base`. Either column may
 * be NULL. Returns how many. */
size_t omq_block_read(const omq_block *block, int64_t base, uint32_t low, int64_t *offsets,
                      uint64_t *tokens, size_t room);

/* Move the smallest entries, `count` of more, to `entries`. */
void omq_block_pop(omq_block *block, int64_t base, omq_entry *entries, uint32_t count);

#endif

/* Blocks of the offset map: capacities, copies, walks. */
#include "offset_block.h"

#include <stddef.h>

size_t omq_block_bytes(uint32_t capacity) {
    return offsetof(omq_block, tokens) + capacity * sizeof(uint64_t);
}

uint32_t omq_block_grown(uint32_t capacity) {
    return capacity < OMQ_BLOCK_PACKED ? 2 * capacity : OMQ_BLOCK_SPAN;
}

uint32_t omq_block_shrunk(uint32_t capacity, uint32_t held) {
    while (held <= omq_block_thin(capacity)) {
        capacity = capacity < OMQ_BLOCK_SPAN ? capacity / 2 : OMQ_BLOCK_PACKED;
    }
    return capacity;
}

/* Take the smallest bit of two words that are not both 0. */
static inline uint32_t take_bit(uint64_t *bits) {
    uint32_t word = bits[0] == 0;
    uint32_t low = (uint32_t)__builtin_ctzll(bits[word]);
    bits[word] &= bits[word] - 1;
    return 64 * word + low;
}

void omq_block_copy(omq_block *to, const omq_block *from, uint32_t capacity) {
    uint64_t bits[2] = {from->present[0], from->present[1]};
    *to = (omq_block){{bits[0], bits[1]}, from->held, (uint16_t)capacity, false};
    bool was_packed = omq_block_is_packed(from);
    if (was_packed && omq_block_is_packed(to)) {
        memcpy(to->tokens, from->tokens, from->held * sizeof *to->tokens);
        return;
    }
    for (uint32_t i = 0; i < from->held; i++) {
        uint32_t low = take_bit(bits);
        to->tokens[was_packed ? low : i] = from->tokens[was_packed ? i : low];
    }
}

/* Write the offsets of the smallest `count` bits of a word, and the tokens beside: packed from
 * `from` on, or else each where its offset is. */
static void read_word(uint64_t bits, const uint64_t *from, bool is_packed, int64_t base,
                      int64_t *offsets, uint64_t *tokens, uint32_t count) {
    if (bits == UINT64_MAX) {
        for (uint32_t i = 0; i < count; i++) {
            offsets[i] = base + i;
        }
        is_packed = true;
    } else {
        for (uint32_t i = 0; i < count; i++, bits &= bits - 1) {
            uint32_t low = (uint32_t)__builtin_ctzll(bits);
            offsets[i] = base + low;
            if (tokens != NULL && !is_packed) {
                tokens[i] = from[low];
            }
        }
    }
    if (tokens != NULL && is_packed) {
        memcpy(tokens, from, count * sizeof *tokens);
    }
}

size_t omq_block_read(const omq_block *block, int64_t base, uint32_t low, int64_t *offsets,
                      uint64_t *tokens, size_t room) {
    bool is_packed = omq_block_is_packed(block);
    uint32_t done = 0;
    for (uint32_t word = low / 64; word < 2 && done < room; word++, low = 64 * word) {
        uint64_t bits = block->present[word] >> (low & 63) << (low & 63);
        uint32_t count = omq_count_bits(bits);
        count = count < room - done ? count : (uint32_t)(room - done);
        const uint64_t *from = block->tokens + (is_packed ? omq_block_rank(block, low) : 64 * word);
        read_word(bits, from, is_packed, base + 64 * word, offsets + done,
                  tokens != NULL ? tokens + done : NULL, count);
        done += count;
    }
    return done;
}

void omq_block_pop(omq_block *block, int64_t base, omq_entry *entries, uint32_t count) {
    bool is_packed = omq_block_is_packed(block);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t low = take_bit(block->present);
        entries[i] = (omq_entry){base + low, block->tokens[is_packed ? i : low]};
    }
    block->held -= count;
    if (is_packed) {
        memmove(block->tokens, block->tokens + count, block->held * sizeof *block->tokens);
    }
}

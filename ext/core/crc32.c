#include "crc32.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { WORD = 8, CHAINS = 5, BLOCK = CHAINS * WORD, BLOCKS_MIN = 4 }; /* below, word by word */

/* What one byte of a word adds to the checksum. tails[p][byte]: as seen where the word ends, with p
 * bytes of the word behind the byte. leaps[p][byte]: as seen where the word one block further
 * starts, with p bytes of the word before the byte. */
static uint32_t tails[WORD][256];
static uint32_t leaps[WORD][256];

enum { ABSENT, BEING_MADE, READY };
static _Atomic int state = ABSENT;

static uint32_t of_byte(uint32_t byte) {
    for (int bit = 0; bit < 8; bit++) {
        byte = byte & 1 ? byte >> 1 ^ UINT32_C(0xEDB88320) : byte >> 1;
    }
    return byte;
}

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        tails[0][byte] = of_byte(byte);
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = tails[0][byte];
        for (int behind = 1; behind < BLOCK; behind++) { /* as many zero bytes follow */
            value = value >> 8 ^ tails[0][value & 0xFF];
            if (behind < WORD) {
                tails[behind][byte] = value;
            } else if (behind >= BLOCK - WORD) {
                leaps[BLOCK - 1 - behind][byte] = value;
            }
        }
    }
}

/* Return whether the tables can be read; the first caller makes them. The release store publishes
 * the tables, the acquire load sees them whole. Not pthread_once: it would tie the wheels to a C
 * library of 2021 or later. */
static bool have_tables(void) {
    int seen = atomic_load_explicit(&state, memory_order_acquire);
    if (seen == ABSENT && atomic_compare_exchange_strong(&state, &seen, BEING_MADE)) {
        make_tables();
        atomic_store_explicit(&state, READY, memory_order_release);
        return true;
    }
    return seen == READY;
}

/* Return 8 bytes with the first one lowest: one load on a little-endian machine. */
static uint64_t word_at(const uint8_t *at) {
    return (uint64_t)at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 |
           (uint64_t)at[3] << 24 | (uint64_t)at[4] << 32 | (uint64_t)at[5] << 40 |
           (uint64_t)at[6] << 48 | (uint64_t)at[7] << 56;
}

/* Only the first half of a word waits for the checksum before it; the look-ups of the other half
 * run meanwhile. */
static uint32_t past_word(uint32_t crc, const uint8_t *at) {
    crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    return tails[7][crc & 0xFF] ^ tails[6][crc >> 8 & 0xFF] ^ tails[5][crc >> 16 & 0xFF] ^
           tails[4][crc >> 24] ^ tails[3][at[4]] ^ tails[2][at[5]] ^ tails[1][at[6]] ^
           tails[0][at[7]];
}

static uint32_t past_block(uint64_t word) {
    return leaps[0][word & 0xFF] ^ leaps[1][word >> 8 & 0xFF] ^ leaps[2][word >> 16 & 0xFF] ^
           leaps[3][word >> 24 & 0xFF] ^ leaps[4][word >> 32 & 0xFF] ^ leaps[5][word >> 40 & 0xFF] ^
           leaps[6][word >> 48 & 0xFF] ^ leaps[7][word >> 56];
}

/* The five words of a block are five independent chains, so that their look-ups do not wait for
 * each other. The last block is gone through word by word, which joins the chains. */
static uint32_t past_blocks(uint32_t crc, const uint8_t *bytes, size_t blocks) {
    uint32_t chains[CHAINS] = {crc};
    for (; blocks > 1; blocks--, bytes += BLOCK) {
        for (int i = 0; i < CHAINS; i++) {
            chains[i] = past_block(chains[i] ^ word_at(bytes + WORD * i));
        }
    }
    crc = 0;
    for (int i = 0; i < CHAINS; i++) {
        crc = past_word(crc ^ chains[i], bytes + WORD * i);
    }
    return crc;
}

uint32_t omq_crc32(const uint8_t *bytes, size_t size) {
    uint32_t crc = UINT32_MAX;
    bool is_ready = have_tables();
    size_t blocks = size / BLOCK;
    if (is_ready && blocks >= BLOCKS_MIN) {
        crc = past_blocks(crc, bytes, blocks);
        bytes += blocks * BLOCK;
        size -= blocks * BLOCK;
    }
    for (; is_ready && size >= WORD; size -= WORD, bytes += WORD) {
        crc = past_word(crc, bytes);
    }
    for (; size > 0; size--, bytes++) {
        uint32_t byte = (crc ^ *bytes) & 0xFF;
        /* A thread that finds another one making the tables goes on without them: slower once,
         * but nobody waits. */
        crc = crc >> 8 ^ (is_ready ? tails[0][byte] : of_byte(byte));
    }
    return ~crc;
}

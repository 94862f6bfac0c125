#include "sha1.h"

#include <string.h>

#include "bytes.h"

static uint32_t rotated(uint32_t word, int bits) { return word << bits | word >> (32 - bits); }

static void take_block(uint32_t state[5], const uint8_t *block) {
    uint32_t words[80];
    for (int i = 0; i < 16; i++) {
        words[i] = omq_read_u32(block + 4 * i);
    }
    for (int i = 16; i < 80; i++) {
        words[i] = rotated(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 80; i++) {
        uint32_t mixed;
        if (i < 20) {
            mixed = (d ^ (b & (c ^ d))) + UINT32_C(0x5A827999);
        } else if (i < 40) {
            mixed = (b ^ c ^ d) + UINT32_C(0x6ED9EBA1);
        } else if (i < 60) {
            mixed = ((b & c) | (d & (b | c))) + UINT32_C(0x8F1BBCDC);
        } else {
            mixed = (b ^ c ^ d) + UINT32_C(0xCA62C1D6);
        }
        mixed += rotated(a, 5) + e + words[i];
        e = d;
        d = c;
        c = rotated(b, 30);
        b = a;
        a = mixed;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

static void begin(omq_sha1 *sha) {
    *sha = (omq_sha1){.state = {UINT32_C(0x67452301), UINT32_C(0xEFCDAB89), UINT32_C(0x98BADCFE),
                                UINT32_C(0x10325476), UINT32_C(0xC3D2E1F0)}};
}

static void add(omq_sha1 *sha, const uint8_t *bytes, size_t size) {
    while (size > 0) {
        size_t held = sha->size % OMQ_SHA1_BLOCK;
        size_t taken = size < OMQ_SHA1_BLOCK - held ? size : OMQ_SHA1_BLOCK - held;
        memcpy(sha->block + held, bytes, taken);
        sha->size += taken;
        bytes += taken;
        size -= taken;
        if (sha->size % OMQ_SHA1_BLOCK == 0) {
            take_block(sha->state, sha->block);
        }
    }
}

/* The text is followed by a one bit, zeros, and its size in bits, which end a block. */
static void end(omq_sha1 *sha, uint8_t digest[OMQ_SHA1_SIZE]) {
    static const uint8_t padding[OMQ_SHA1_BLOCK] = {0x80};
    uint8_t bits[8];
    omq_write_u64(bits, sha->size * 8);
    size_t held = sha->size % OMQ_SHA1_BLOCK;
    add(sha, padding, (held < 56 ? 56 : 120) - held);
    add(sha, bits, sizeof bits);
    for (int i = 0; i < 5; i++) {
        omq_write_u32(digest + 4 * i, sha->state[i]);
    }
}

void omq_hmac_begin(omq_hmac *hmac, const uint8_t *key, size_t size) {
    uint8_t block[OMQ_SHA1_BLOCK] = {0};
    if (size > sizeof block) {
        omq_sha1 hashed;
        begin(&hashed);
        add(&hashed, key, size);
        end(&hashed, block);
    } else if (size > 0) {
        memcpy(block, key, size);
    }
    for (size_t i = 0; i < sizeof block; i++) {
        block[i] ^= 0x36;
    }
    begin(&hmac->inner);
    add(&hmac->inner, block, sizeof block);
    for (size_t i = 0; i < sizeof block; i++) {
        block[i] ^= 0x36 ^ 0x5C;
    }
    begin(&hmac->outer);
    add(&hmac->outer, block, sizeof block);
}

void omq_hmac_add(omq_hmac *hmac, const uint8_t *bytes, size_t size) {
    add(&hmac->inner, bytes, size);
}

void omq_hmac_end(omq_hmac *hmac, uint8_t digest[OMQ_SHA1_SIZE]) {
    end(&hmac->inner, digest);
    add(&hmac->outer, digest, OMQ_SHA1_SIZE);
    end(&hmac->outer, digest);
}

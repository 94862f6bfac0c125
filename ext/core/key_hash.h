/* SipHash-1-3 of a key's bytes. Keys come from whoever sends to the topic: with a secret seed
 * nobody can choose keys that all meet in one place of a hash table. */
#ifndef OMQ_KEY_HASH_H
#define OMQ_KEY_HASH_H

#include <stdint.h>
#include <string.h>

static inline uint64_t omq_rotate_left(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

static inline void omq_sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = omq_rotate_left(v[1], 13) ^ v[0];
    v[3] = omq_rotate_left(v[3], 16) ^ v[2];
    v[0] = omq_rotate_left(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = omq_rotate_left(v[1], 17) ^ v[2];
    v[3] = omq_rotate_left(v[3], 21) ^ v[0];
    v[2] = omq_rotate_left(v[2], 32);
}

/* Words are read in the machine's own byte order: hashes never leave the process. */
static inline uint64_t omq_key_hash(const uint8_t *bytes, size_t size, uint64_t seed) {
    uint64_t other = omq_rotate_left(seed, 32) ^ UINT64_C(0x9E3779B97F4A7C15);
    uint64_t v[4] = {seed ^ UINT64_C(0x736F6D6570736575), other ^ UINT64_C(0x646F72616E646F6D),
                     seed ^ UINT64_C(0x6C7967656E657261), other ^ UINT64_C(0x7465646279746573)};
    uint64_t word;
    size_t left = size;
    for (; left >= sizeof word; left -= sizeof word, bytes += sizeof word) {
        memcpy(&word, bytes, sizeof word);
        v[3] ^= word;
        omq_sip_round(v);
        v[0] ^= word;
    }
    uint8_t tail[sizeof word] = {0};
    memcpy(tail, bytes, left);
    memcpy(&word, tail, sizeof word);
    word ^= (uint64_t)size << 56; /* keys that differ by zeros at their end differ here */
    v[3] ^= word;
    omq_sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xFF;
    omq_sip_round(v);
    omq_sip_round(v);
    omq_sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif

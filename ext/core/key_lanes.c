#include "key_lanes.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_LANES = 16 };

/* ---- the hash: SipHash-1-3 of a key's bytes ---- */

/* Keys come from whoever sends to the topic: with a secret seed
 * nobody can choose keys that all meet in one place of a hash table. */

static inline uint64_t rotate_left(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate_left(v[1], 13) ^ v[0];
    v[3] = rotate_left(v[3], 16) ^ v[2];
    v[0] = rotate_left(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate_left(v[1], 17) ^ v[2];
    v[3] = rotate_left(v[3], 21) ^ v[0];
    v[2] = rotate_left(v[2], 32);
}

/* Words are read in the machine's own byte order: hashes never leave the process. */
static inline uint64_t hash_key(const uint8_t *bytes, size_t size, uint64_t seed) {
    uint64_t other = rotate_left(seed, 32) ^ UINT64_C(0x9E3779B97F4A7C15);
    uint64_t v[4] = {seed ^ UINT64_C(0x736F6D6570736575), other ^ UINT64_C(0x646F72616E646F6D),
                     seed ^ UINT64_C(0x6C7967656E657261), other ^ UINT64_C(0x7465646279746573)};
    uint64_t word;
    size_t left = size;
    for (; left >= sizeof word; left -= sizeof word, bytes += sizeof word) {
        memcpy(&word, bytes, sizeof word);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint8_t tail[sizeof word] = {0};
    memcpy(tail, bytes, left);
    memcpy(&word, tail, sizeof word);
    word ^= (uint64_t)size << 56; /* keys that differ by zeros at their end differ here */
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xFF;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The compiler does not inline an external function here, and this one runs per message. */
uint64_t omq_key_hash(const uint8_t *bytes, size_t size, uint64_t seed) {
    return hash_key(bytes, size, seed);
}

/* ---- life ---- */

void omq_key_lanes_open(omq_key_lanes *lanes, uint64_t seed) {
    *lanes = (omq_key_lanes){.free = OMQ_NO_LANE, .keyless = OMQ_NO_LANE, .seed = seed};
}

/* ---- the pool ---- */

static omq_status grow_pool(omq_key_lanes *lanes) {
    uint32_t old = lanes->capacity;
    uint32_t capacity = old == 0 ? FIRST_LANES : old * 2;
    if (capacity < old) { /* doubled past 2^32 */
        return OMQ_NO_MEMORY;
    }
    omq_lane *grown = realloc(lanes->lanes, capacity * sizeof *grown);
    if (grown == NULL) {
        return OMQ_NO_MEMORY;
    }
    for (uint32_t i = old; i < capacity; i++) {
        grown[i] = (omq_lane){.last_diverted = i + 1 < capacity ? i + 1 : lanes->free};
    }
    lanes->lanes = grown;
    lanes->capacity = capacity;
    lanes->free = old;
    return OMQ_OK;
}

static void free_key(omq_lane *lane) {
    if (lane->key_size > OMQ_KEY_INLINE) {
        free(lane->key.elsewhere);
    }
    lane->key_size = 0;
}

void omq_key_lanes_close(omq_key_lanes *lanes) {
    for (uint32_t i = 0; i < lanes->capacity; i++) {
        free_key(lanes->lanes + i);
    }
    omq_key_lanes_shrink(lanes);
}

void omq_key_lanes_shrink(omq_key_lanes *lanes) {
    free(lanes->lanes);
    free(lanes->slots);
    omq_key_lanes_open(lanes, lanes->seed);
}

/* ---- the table: linear probing, deletion shifts back, so there are no tombstones ---- */

/* Where a key is, or the free slot where it would go. */
static uint32_t slot_of(const omq_key_lanes *lanes, const omq_key *key, uint32_t hash) {
    uint32_t mask = lanes->slot_capacity - 1;
    uint32_t at = hash & mask;
    for (; lanes->slots[at].lane != 0; at = (at + 1) & mask) {
        /* The hash lies beside, so that a wrong lane's cache line is hardly ever read. Only equal
         * bytes are the same key: two keys in one lane would share `park`. */
        if (lanes->slots[at].hash == hash) {
            const omq_lane *lane = lanes->lanes + (lanes->slots[at].lane - 1);
            if (lane->key_size == key->size &&
                memcmp(omq_lane_key(lane), key->bytes, key->size) == 0) {
                break;
            }
        }
    }
    return at;
}

static omq_status grow_table(omq_key_lanes *lanes) {
    uint32_t capacity = lanes->slot_capacity == 0 ? 2 * FIRST_LANES : lanes->slot_capacity * 2;
    if (capacity < lanes->slot_capacity) {
        return OMQ_NO_MEMORY;
    }
    omq_lane_slot *slots = malloc(capacity * sizeof *slots);
    if (slots == NULL) {
        return OMQ_NO_MEMORY;
    }
    memset(slots, 0, capacity * sizeof *slots);
    for (uint32_t i = 0; i < lanes->slot_capacity; i++) {
        if (lanes->slots[i].lane != 0) {
            uint32_t at = lanes->slots[i].hash & (capacity - 1);
            while (slots[at].lane != 0) {
                at = (at + 1) & (capacity - 1);
            }
            slots[at] = lanes->slots[i];
        }
    }
    free(lanes->slots);
    lanes->slots = slots;
    lanes->slot_capacity = capacity;
    return OMQ_OK;
}

/* Free a slot and move up the slots that probing had pushed past it. */
static void free_slot(omq_key_lanes *lanes, uint32_t at) {
    uint32_t mask = lanes->slot_capacity - 1;
    for (uint32_t next = (at + 1) & mask; lanes->slots[next].lane != 0; next = (next + 1) & mask) {
        uint32_t home = lanes->slots[next].hash & mask;
        if (((next - home) & mask) >= ((next - at) & mask)) {
            lanes->slots[at] = lanes->slots[next];
            at = next;
        }
    }
    lanes->slots[at] = (omq_lane_slot){0, 0};
    lanes->count--;
}

static uint32_t hash_of(const omq_key_lanes *lanes, const omq_key *key) {
    return (uint32_t)hash_key(key->bytes, key->size, lanes->seed);
}

uint32_t omq_key_lanes_find(const omq_key_lanes *lanes, const omq_key *key) {
    if (key->bytes == NULL) {
        return lanes->keyless;
    }
    if (lanes->count == 0) {
        return OMQ_NO_LANE;
    }
    uint32_t lane = lanes->slots[slot_of(lanes, key, hash_of(lanes, key))].lane;
    return lane == 0 ? OMQ_NO_LANE : lane - 1;
}

/* Take a lane from the pool and give it the key. NO_MEMORY. */
static omq_status open_lane(omq_key_lanes *lanes, const omq_key *key, uint32_t hash,
                            uint32_t *lane) {
    if (lanes->free == OMQ_NO_LANE && grow_pool(lanes) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    omq_lane opened = {.hash = hash, .key_size = (uint32_t)key->size};
    opened.is_keyless = key->bytes == NULL;
    uint8_t *bytes = opened.key.here;
    if (key->size > OMQ_KEY_INLINE) {
        bytes = opened.key.elsewhere = malloc(key->size);
        if (bytes == NULL) {
            return OMQ_NO_MEMORY;
        }
    }
    if (key->size > 0) {
        memcpy(bytes, key->bytes, key->size);
    }
    *lane = lanes->free;
    lanes->free = lanes->lanes[*lane].last_diverted;
    lanes->lanes[*lane] = opened;
    return OMQ_OK;
}

omq_status omq_key_lanes_find_or_add(omq_key_lanes *lanes, const omq_key *key, uint32_t *lane) {
    if (key->bytes == NULL) {
        if (lanes->keyless == OMQ_NO_LANE) {
            omq_status status = open_lane(lanes, &(omq_key){NULL, 0}, 0, &lanes->keyless);
            if (status != OMQ_OK) {
                return status;
            }
        }
        *lane = lanes->keyless;
        return OMQ_OK;
    }
    uint32_t hash = hash_of(lanes, key);
    uint32_t at = 0;
    if (lanes->slot_capacity > 0) { /* an empty map allocates nothing */
        at = slot_of(lanes, key, hash);
        if (lanes->slots[at].lane != 0) {
            *lane = lanes->slots[at].lane - 1;
            return OMQ_OK;
        }
    }
    if (lanes->count >= lanes->slot_capacity / 4 * 3) { /* above, linear probing gets slow */
        if (grow_table(lanes) != OMQ_OK) {
            return OMQ_NO_MEMORY;
        }
        at = slot_of(lanes, key, hash);
    }
    omq_status status = open_lane(lanes, key, hash, lane);
    if (status == OMQ_OK) {
        lanes->slots[at] = (omq_lane_slot){hash, *lane + 1};
        lanes->count++;
    }
    return status;
}

void omq_key_lanes_release(omq_key_lanes *lanes, uint32_t lane) {
    omq_lane *released = lanes->lanes + lane;
    if (released->is_keyless) {
        lanes->keyless = OMQ_NO_LANE;
    } else {
        uint32_t at = released->hash & (lanes->slot_capacity - 1);
        while (lanes->slots[at].lane != lane + 1) {
            at = (at + 1) & (lanes->slot_capacity - 1);
        }
        free_slot(lanes, at);
    }
    free_key(released);
    released->is_keyless = false;
    released->last_diverted = lanes->free;
    lanes->free = lane;
}

/* The lanes of one queue, found by their keys.
 *
 * A pool of lanes, a cache line each, beside an open-addressing table of (hash, place in the
 * pool): places stay valid until the lane is released, whatever the table does. A key of up
 * to 32 bytes lies in its lane, so that a lane that comes and goes calls no malloc.
 */
#ifndef OMQ_KEY_LANES_H
#define OMQ_KEY_LANES_H

#include "ordermq.h"

#define OMQ_NO_LANE UINT32_MAX

enum { OMQ_KEY_INLINE = 32 }; /* bytes; a lane with such a key is one cache line of 64 */

typedef struct {
    union {
        uint8_t here[OMQ_KEY_INLINE];
        uint8_t *elsewhere; /* owned, if key_size is above OMQ_KEY_INLINE */
    } key;
    uint32_t hash;
    uint32_t key_size;
    uint32_t pending;   /* messages that wait; they are linked in offset order */
    uint32_t first;     /* sequence number of the first one, if any; so `last` */
    uint32_t last;
    uint32_t in_flight; /* messages; above 1 only if they are diverted, or old flights */
    uint32_t last_diverted; /* sequence number, while is_diverting; of a free lane, the next one */
    bool is_parked;
    bool is_ready;     /* its first message may be taken: its bit is set */
    bool is_diverting; /* what is in flight was diverted, since the last reset */
    bool is_keyless;   /* not in the table */
} omq_lane;

typedef struct {
    uint32_t hash;
    uint32_t lane; /* place in the pool + 1; 0: free */
} omq_lane_slot;

typedef struct {
    omq_lane *lanes;
    uint32_t capacity; /* of the pool */
    uint32_t free;     /* first of the free list; OMQ_NO_LANE ends it */
    omq_lane_slot *slots;
    uint32_t slot_capacity; /* a power of two, more than count, or 0 */
    uint32_t count;         /* lanes with a key */
    uint32_t keyless;       /* the lane of messages without a key, or OMQ_NO_LANE */
    uint64_t seed;
} omq_key_lanes;

void omq_key_lanes_open(omq_key_lanes *lanes, uint64_t seed);
void omq_key_lanes_close(omq_key_lanes *lanes);

/* Return the lane of a key (bytes NULL: of messages without one), or OMQ_NO_LANE. O(1). */
uint32_t omq_key_lanes_find(const omq_key_lanes *lanes, const omq_key *key);

/* Write the lane of a key, which is made if there is none. NO_MEMORY. Pointers into the pool are
 * void afterwards: it may have moved. */
omq_status omq_key_lanes_find_or_add(omq_key_lanes *lanes, const omq_key *key, uint32_t *lane);

/* Forget a lane and its key. O(1). */
void omq_key_lanes_release(omq_key_lanes *lanes, uint32_t lane);

/* Free the memory of a pool without lanes. */
void omq_key_lanes_shrink(omq_key_lanes *lanes);

static inline const uint8_t *omq_lane_key(const omq_lane *lane) {
    return lane->key_size > OMQ_KEY_INLINE ? lane->key.elsewhere : lane->key.here;
}

/* The hash of a key with this seed; for the check. */
uint64_t omq_key_hash(const uint8_t *bytes, size_t size, uint64_t seed);

#endif

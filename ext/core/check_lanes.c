/* Every invariant of the lane map, for tests. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "key_hash.h"
#include "lane_map.h"

static const char *check_table(const omq_key_lanes *lanes) {
    uint32_t count = 0;
    uint32_t mask = lanes->slot_capacity - 1;
    for (uint32_t i = 0; i < lanes->slot_capacity; i++) {
        if (lanes->slots[i].lane == 0) {
            continue;
        }
        count++;
        REQUIRE(lanes->slots[i].lane <= lanes->capacity, "a slot names no lane");
        const omq_lane *lane = lanes->lanes + (lanes->slots[i].lane - 1);
        const uint8_t *key = omq_lane_key(lane);
        uint32_t hash = (uint32_t)omq_key_hash(key, lane->key_size, lanes->seed);
        REQUIRE(lane->hash == hash && lanes->slots[i].hash == hash, "a lane's hash");
        REQUIRE(!lane->is_keyless, "a lane without a key is in the table");
        for (uint32_t at = hash & mask; at != i; at = (at + 1) & mask) {
            REQUIRE(lanes->slots[at].lane != 0, "probing cannot reach a lane");
            const omq_lane *other = lanes->lanes + (lanes->slots[at].lane - 1);
            REQUIRE(other->key_size != lane->key_size ||
                        memcmp(omq_lane_key(other), key, lane->key_size) != 0,
                    "a key has two lanes");
        }
    }
    REQUIRE(count == lanes->count, "the count of lanes");
    REQUIRE(count == 0 || count < lanes->slot_capacity, "the table is full");
    uint32_t used = count + (lanes->keyless != OMQ_NO_LANE);
    REQUIRE(lanes->keyless == OMQ_NO_LANE || lanes->lanes[lanes->keyless].is_keyless,
            "the lane without a key has one");
    for (uint32_t at = lanes->free; at != OMQ_NO_LANE; at = lanes->lanes[at].last_diverted) {
        REQUIRE(at < lanes->capacity && lanes->lanes[at].key_size == 0, "a free lane has a key");
        REQUIRE(++used <= lanes->capacity, "the free list is a ring, or a lane is on it in use");
    }
    REQUIRE(used == lanes->capacity, "a lane is lost");
    return NULL;
}

typedef struct {
    uint32_t pending; /* messages of a lane met so far; so the next */
    uint32_t in_flight;
    uint32_t waiting_next; /* sequence number that its list says comes next */
} tally;

/* One message, in the order of the ring, beside what its lane has had before. */
static const char *check_message(const omq_lane_map *map, uint32_t sequence, tally *of_lanes) {
    const omq_ring_message *message = omq_ring_at(&map->ring, sequence);
    bool has_bit = omq_bit_tree_has(&map->ring.ready, omq_ring_position(&map->ring, sequence));
    if (message->lane == OMQ_NO_LANE) {
        REQUIRE(!has_bit, "a message that is done is ready");
        return NULL;
    }
    REQUIRE(message->lane < map->lanes.capacity, "a message names no lane");
    const omq_lane *lane = map->lanes.lanes + message->lane;
    tally *met = of_lanes + message->lane;
    if (message->ahead == OMQ_IN_FLIGHT) {
        REQUIRE(!has_bit, "a message in flight is ready");
        REQUIRE(!omq_lane_map_has_old_flight(map, message->offset), "two flights of an offset");
        met->in_flight++;
        return NULL;
    }
    REQUIRE(sequence == (met->pending == 0 ? lane->first : met->waiting_next),
            "a lane's list is not in offset order");
    bool is_last = ++met->pending == lane->pending;
    REQUIRE(is_last == (sequence == lane->last) && (!is_last || message->ahead == 0),
            "the end of a lane's list");
    REQUIRE(has_bit == (lane->is_ready && sequence == lane->first), "a bit of a message");
    met->waiting_next = sequence + message->ahead;
    return NULL;
}

static const char *check_ring(const omq_lane_map *map, tally *of_lanes) {
    const omq_message_ring *ring = &map->ring;
    size_t undone = 0;
    size_t in_flight = 0;
    int64_t above = -1;
    REQUIRE(ring->count <= ring->capacity, "the ring holds more than it has room for");
    for (uint32_t i = 0; i < ring->count; i++) {
        const omq_ring_message *message = omq_ring_at(ring, ring->head + i);
        REQUIRE(i > 0 || message->lane != OMQ_NO_LANE, "the head of the ring is done");
        REQUIRE(above < message->offset && message->offset < map->next_offset,
                "offsets do not ascend to next_offset");
        above = message->offset;
        const char *broken = check_message(map, ring->head + i, of_lanes);
        if (broken != NULL) {
            return broken;
        }
        undone += message->lane != OMQ_NO_LANE;
        in_flight += message->lane != OMQ_NO_LANE && message->ahead == OMQ_IN_FLIGHT;
    }
    REQUIRE(undone == map->undone, "the count of messages");
    REQUIRE(in_flight == map->in_flight, "the count in flight");
    size_t bits = 0;
    for (uint32_t at = 0; ring->capacity > 0 && omq_bit_tree_next(&ring->ready, at, &at); at++) {
        bits++;
    }
    REQUIRE(bits == map->ready, "the count of bits");
    return NULL;
}

static const char *check_lane(const omq_lane_map *map, const omq_lane *lane, const tally *met) {
    REQUIRE(lane->pending > 0 || lane->in_flight > 0 || lane->is_parked, "an idle lane exists");
    REQUIRE(met->pending == lane->pending, "a lane's count of waiting messages");
    REQUIRE(met->in_flight == lane->in_flight, "a lane's count in flight");
    REQUIRE(lane->is_ready == omq_lane_is_ready(map, lane), "a lane is ready, or is not");
    return NULL;
}

static const char *check_lanes(const omq_lane_map *map, const tally *of_lanes) {
    size_t ready = 0;
    size_t parked = 0;
    for (uint32_t i = 0; i < map->lanes.slot_capacity; i++) {
        if (map->lanes.slots[i].lane == 0) {
            continue;
        }
        uint32_t at = map->lanes.slots[i].lane - 1;
        const char *broken = check_lane(map, map->lanes.lanes + at, of_lanes + at);
        if (broken != NULL) {
            return broken;
        }
        ready += map->lanes.lanes[at].is_ready;
        parked += map->lanes.lanes[at].is_parked;
    }
    if (map->lanes.keyless != OMQ_NO_LANE) {
        const omq_lane *lane = map->lanes.lanes + map->lanes.keyless;
        const char *broken = check_lane(map, lane, of_lanes + map->lanes.keyless);
        if (broken != NULL) {
            return broken;
        }
        ready += lane->is_ready;
        REQUIRE(!lane->is_parked, "the lane without a key is parked");
    }
    REQUIRE(ready == map->ready, "the count of ready lanes");
    REQUIRE(parked == map->parked, "the count of parked lanes");
    return NULL;
}

static const char *check_old(const omq_lane_map *map, tally *of_lanes) {
    for (const omq_leaf *leaf = map->old.head; leaf != NULL; leaf = leaf->next) {
        for (uint32_t i = leaf->begin; i < leaf->end; i++) {
            REQUIRE(leaf->tokens[i] < map->lanes.capacity, "an old flight names no lane");
            of_lanes[leaf->tokens[i]].in_flight++;
        }
    }
    return NULL;
}

static const char *check_map(const omq_lane_map *map, tally *of_lanes) {
    const char *broken = omq_offset_tree_check(&map->old, INT64_MAX - 1);
    if (broken == NULL) {
        broken = check_table(&map->lanes);
    }
    if (broken == NULL) {
        broken = check_old(map, of_lanes);
    }
    if (broken == NULL) {
        broken = check_ring(map, of_lanes);
    }
    if (broken == NULL) {
        broken = check_lanes(map, of_lanes);
    }
    REQUIRE(broken != NULL || map->in_flight + map->old.count <= map->max_in_flight,
            "more in flight than the queue may have");
    return broken;
}

const char *omq_lane_map_check(omq_lane_map *map) {
    const char *broken = "no memory to check";
    omq_mutex_lock(&map->mutex);
    size_t size = ((size_t)map->lanes.capacity + 1) * sizeof(tally);
    tally *of_lanes = malloc(size);
    if (of_lanes != NULL) {
        memset(of_lanes, 0, size);
        broken = check_map(map, of_lanes);
        free(of_lanes);
    }
    omq_mutex_unlock(&map->mutex);
    return broken;
}

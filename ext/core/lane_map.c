/* The lane map of ordermq.h: a ring of messages, a pool of lanes by key, and old flights. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "key_lanes.h"
#include "message_ring.h"
#include "offset_tree.h"
#include "platform.h"

typedef enum { OMQ_LANES_EMPTY, OMQ_LANES_OF_OBJECTS, OMQ_LANES_OF_COLUMNS } omq_lanes_shape;

struct omq_lane_map {
    omq_mutex mutex; /* guards all of it */
    omq_message_ring ring;
    omq_key_lanes lanes;
    omq_offset_tree old; /* offset -> lane of flights from before a reset */
    int64_t next_offset;
    int64_t max_ahead;
    uint64_t duplicates_ignored;
    size_t undone;    /* messages of the ring that are not done */
    size_t in_flight; /* of those */
    size_t ready;     /* lanes whose bit is set */
    size_t parked;    /* lanes */
    uint32_t max_in_flight;
    bool has_barriers;
    omq_lanes_shape shape; /* what the first add chose */
};

/* Return the lane of messages without a key where they are barriers, else NULL. */
static inline omq_lane *barriers_of(const omq_lane_map *map) {
    bool has_some = map->has_barriers && map->lanes.keyless != OMQ_NO_LANE;
    return has_some ? map->lanes.lanes + map->lanes.keyless : NULL;
}

static inline bool has_old_flight(const omq_lane_map *map, int64_t offset) {
    omq_item item;
    return map->old.count > 0 && omq_offset_tree_find(&map->old, offset, &item);
}

/* Return whether a lane's first message may be taken, apart from the bounds of the whole queue.
 * Barriers are never ready: next_lane compares them itself, for they wait for all lanes. */
static inline bool may_be_taken(const omq_lane_map *map, const omq_lane *lane) {
    return lane->pending > 0 && lane->in_flight == 0 && !lane->is_parked &&
           !(map->has_barriers && lane->is_keyless) &&
           !has_old_flight(map, omq_ring_at(&map->ring, lane->first)->offset);
}

static inline int64_t watermark_of(const omq_lane_map *map) {
    const omq_message_ring *ring = &map->ring;
    return ring->count > 0 ? omq_ring_at(ring, ring->head)->offset : map->next_offset;
}

/* Return the distance from the head of the ring. Sequence numbers wrap at 2^32, so they are only
 * compared by this distance. */
static inline uint32_t from_head(const omq_lane_map *map, uint32_t sequence) {
    return sequence - map->ring.head;
}

/* Messages or lanes whose memory an empty map keeps: 96 KiB of ring, 320 KiB of lanes
 * and slots. A queue that drains between two pulls must not give its memory back
 * each time. */
enum { KEPT_WHEN_IDLE = 4096 };

omq_lane_map *omq_lane_map_new(uint32_t max_in_flight, int64_t max_ahead, bool has_barriers,
                               uint64_t seed) {
    omq_lane_map *map = malloc(sizeof *map);
    if (map == NULL) {
        return NULL;
    }
    *map = (omq_lane_map){
        .max_in_flight = max_in_flight, .max_ahead = max_ahead, .has_barriers = has_barriers};
    omq_key_lanes_open(&map->lanes, seed);
    if (omq_offset_tree_open(&map->old) != OMQ_OK) {
        free(map);
        return NULL;
    }
    if (omq_mutex_init(&map->mutex) != 0) {
        omq_offset_tree_close(&map->old);
        free(map);
        return NULL;
    }
    return map;
}

void omq_lane_map_free(omq_lane_map *map) {
    if (map == NULL) {
        return;
    }
    omq_mutex_destroy(&map->mutex);
    omq_message_ring_close(&map->ring);
    omq_key_lanes_close(&map->lanes);
    omq_offset_tree_close(&map->old);
    free(map);
}

/* ---- a lane ---- */

/* Set or clear the bit of a lane's first message. */
static void set_ready(omq_lane_map *map, omq_lane *lane, bool is_ready) {
    if (lane->is_ready == is_ready) {
        return;
    }
    uint32_t position = omq_ring_position(&map->ring, lane->first);
    lane->is_ready = is_ready;
    if (is_ready) {
        omq_bit_tree_set(&map->ring.ready, position);
        map->ready++;
    } else {
        omq_bit_tree_clear(&map->ring.ready, position);
        map->ready--;
    }
}

/* Bring a lane's bit up to date after any change of the lane, and release an idle lane. The first
 * message of a lane changes only while the lane is not ready, so the bit is never left behind at
 * an old position. */
static void refresh(omq_lane_map *map, uint32_t at) {
    omq_lane *lane = map->lanes.lanes + at;
    if (lane->pending == 0 && lane->in_flight == 0 && !lane->is_parked) {
        omq_key_lanes_release(&map->lanes, at);
    } else {
        set_ready(map, lane, may_be_taken(map, lane));
    }
}

/* Free what a burst has left behind, if the map is empty. The next burst grows it again by
 * doubling, so that the cost per message stays O(1). */
static void shrink_if_idle(omq_lane_map *map) {
    if (map->ring.count == 0 && map->ring.capacity > KEPT_WHEN_IDLE) {
        omq_message_ring_close(&map->ring);
    }
    bool has_lanes = map->lanes.count > 0 || map->lanes.keyless != OMQ_NO_LANE;
    if (!has_lanes && map->lanes.capacity > KEPT_WHEN_IDLE) {
        omq_key_lanes_shrink(&map->lanes);
    }
}

/* ---- add ---- */

typedef struct {
    const int64_t *offsets;
    const uint64_t *tokens;       /* NULL: objects */
    const omq_key *keys;          /* one of these two */
    const omq_key_column *column;
    size_t count;
} arrivals;

static omq_key key_of(const arrivals *from, size_t i) {
    if (from->keys != NULL) {
        return from->keys[i];
    }
    /* An empty key is a key, but a NULL pointer means none, and an empty column may have it. */
    static const uint8_t nothing[1];
    const omq_key_column *column = from->column;
    uint32_t size = column->sizes[i];
    if (size == 0 || size == UINT32_MAX) {
        return (omq_key){size == 0 ? nothing : NULL, 0};
    }
    return (omq_key){column->bytes + column->positions[i], size};
}

/* Check all offsets and keys before anything is added. */
static bool is_in_range(const arrivals *from) {
    int64_t below = -1;
    for (size_t i = 0; i < from->count; i++) {
        if (from->offsets[i] <= below || from->offsets[i] == INT64_MAX) {
            return false;
        }
        below = from->offsets[i];
        if (from->keys != NULL) {
            if (from->keys[i].size >= UINT32_MAX) {
                return false;
            }
        } else if (from->column->sizes[i] != UINT32_MAX &&
                   (uint64_t)from->column->positions[i] + from->column->sizes[i] >
                       from->column->size) {
            return false;
        }
    }
    return true;
}

static omq_status add_one(omq_lane_map *map, const arrivals *from, size_t i) {
    uint32_t at;
    omq_key key = key_of(from, i);
    if (omq_key_lanes_find_or_add(&map->lanes, &key, &at) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    uint32_t sequence = map->ring.head + map->ring.count;
    *omq_ring_at(&map->ring, sequence) = (omq_ring_message){
        from->offsets[i], from->tokens == NULL ? 0 : from->tokens[i], at, 0};
    map->ring.count++;
    map->undone++;
    map->next_offset = from->offsets[i] + 1;
    /* Linked by distance, not by address: the ring moves when it grows. */
    omq_lane *lane = map->lanes.lanes + at;
    if (lane->pending > 0) {
        omq_ring_at(&map->ring, lane->last)->ahead = sequence - lane->last;
    } else {
        lane->first = sequence;
    }
    lane->last = sequence;
    if (lane->pending++ == 0) { /* a lane that had messages keeps its first one and its bit */
        refresh(map, at);
    }
    return OMQ_OK;
}

static omq_status add(omq_lane_map *map, const arrivals *from, omq_lanes_shape shape,
                      size_t *ignored, size_t *added) {
    *ignored = 0;
    *added = 0;
    if (!is_in_range(from)) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_status status = OMQ_OK;
    omq_mutex_lock(&map->mutex);
    if (map->shape != OMQ_LANES_EMPTY && map->shape != shape) {
        status = OMQ_WRONG_SHAPE;
    } else {
        map->shape = shape;
        while (*ignored < from->count && from->offsets[*ignored] < map->next_offset) {
            ++*ignored;
        }
        map->duplicates_ignored += *ignored;
        /* Once for the whole call, so that add_one cannot move the ring under its own pointers. */
        status = omq_message_ring_reserve(&map->ring, from->count - *ignored);
    }
    while (status == OMQ_OK && *ignored + *added < from->count) {
        status = add_one(map, from, *ignored + *added);
        *added += status == OMQ_OK;
    }
    omq_mutex_unlock(&map->mutex);
    return status;
}

omq_status omq_lane_map_add(omq_lane_map *map, const int64_t *offsets, const omq_key *keys,
                            size_t count, size_t *ignored, size_t *added) {
    arrivals from = {.offsets = offsets, .keys = keys, .count = count};
    return add(map, &from, OMQ_LANES_OF_OBJECTS, ignored, added);
}

omq_status omq_lane_map_add_columns(omq_lane_map *map, const int64_t *offsets,
                                    const uint64_t *tokens, const omq_key_column *keys,
                                    size_t count, size_t *ignored, size_t *added) {
    arrivals from = {offsets, tokens, NULL, keys, count};
    return add(map, &from, OMQ_LANES_OF_COLUMNS, ignored, added);
}

/* ---- park ---- */

omq_status omq_lane_map_park(omq_lane_map *map, const omq_key *key, bool *changed) {
    uint32_t at;
    *changed = false;
    if (key->bytes == NULL || key->size >= UINT32_MAX) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&map->mutex);
    omq_status status = omq_key_lanes_find_or_add(&map->lanes, key, &at);
    if (status == OMQ_OK && !map->lanes.lanes[at].is_parked) {
        *changed = true;
        map->lanes.lanes[at].is_parked = true;
        map->parked++;
        refresh(map, at);
    }
    omq_mutex_unlock(&map->mutex);
    return status;
}

bool omq_lane_map_unpark(omq_lane_map *map, const omq_key *key) {
    omq_mutex_lock(&map->mutex);
    uint32_t at = omq_key_lanes_find(&map->lanes, key);
    bool was_parked = at != OMQ_NO_LANE && map->lanes.lanes[at].is_parked;
    if (was_parked) {
        map->lanes.lanes[at].is_parked = false;
        map->parked--;
        refresh(map, at);
        shrink_if_idle(map);
    }
    omq_mutex_unlock(&map->mutex);
    return was_parked;
}

bool omq_lane_map_is_parked(omq_lane_map *map, const omq_key *key) {
    omq_mutex_lock(&map->mutex);
    uint32_t at = omq_key_lanes_find(&map->lanes, key);
    bool is_parked = at != OMQ_NO_LANE && map->lanes.lanes[at].is_parked;
    omq_mutex_unlock(&map->mutex);
    return is_parked;
}

/* ---- take and divert ---- */

typedef struct {
    int64_t *offsets;
    uint64_t *tokens; /* NULL: objects */
    size_t count;
} departures;

/* Return whether max_in_flight and max_ahead let a message start. Old flights count: their
 * listeners are still running. */
static bool may_fly(const omq_lane_map *map, uint32_t sequence) {
    return map->in_flight + map->old.count < map->max_in_flight &&
           omq_ring_at(&map->ring, sequence)->offset - watermark_of(map) <= map->max_ahead;
}

/* Put the first message of a lane in flight. */
static void start(omq_lane_map *map, omq_lane *lane, departures *to) {
    omq_ring_message *message = omq_ring_at(&map->ring, lane->first);
    set_ready(map, lane, false);
    lane->first += message->ahead;
    lane->pending--;
    lane->in_flight++;
    map->in_flight++;
    message->ahead = OMQ_IN_FLIGHT;
    to->offsets[to->count] = message->offset;
    if (to->tokens != NULL) {
        to->tokens[to->count] = message->token;
    }
    to->count++;
}

/* Return the lane whose first message is the next to start, or NULL. The lowest ready offset goes
 * first, unless a barrier lies below it: then nothing starts but that barrier, alone. */
static omq_lane *next_lane(const omq_lane_map *map) {
    omq_lane *barriers = barriers_of(map);
    uint32_t sequence;
    if (barriers != NULL && barriers->in_flight > 0) {
        return NULL;
    }
    bool is_found = omq_message_ring_first_ready(&map->ring, &sequence);
    if (barriers != NULL &&
        (!is_found || from_head(map, barriers->first) < from_head(map, sequence))) {
        bool is_next = barriers->first == map->ring.head;
        return is_next && map->in_flight + map->old.count == 0 ? barriers : NULL;
    }
    return is_found ? map->lanes.lanes + omq_ring_at(&map->ring, sequence)->lane : NULL;
}

static omq_status check_take(const omq_lane_map *map, const uint64_t *tokens, size_t limit) {
    omq_lanes_shape shape = tokens == NULL ? OMQ_LANES_OF_OBJECTS : OMQ_LANES_OF_COLUMNS;
    if (limit == 0) {
        return OMQ_OUT_OF_RANGE;
    }
    return map->shape == OMQ_LANES_EMPTY || map->shape == shape ? OMQ_OK : OMQ_WRONG_SHAPE;
}

omq_status omq_lane_map_take(omq_lane_map *map, int64_t *offsets, uint64_t *tokens, size_t limit,
                             size_t *taken) {
    departures to = {offsets, tokens, 0};
    omq_mutex_lock(&map->mutex);
    omq_status status = check_take(map, tokens, limit);
    while (status == OMQ_OK && to.count < limit) {
        omq_lane *lane = next_lane(map);
        if (lane == NULL || !may_fly(map, lane->first)) {
            break;
        }
        start(map, lane, &to);
    }
    omq_mutex_unlock(&map->mutex);
    *taken = to.count;
    return status;
}

static bool may_divert(const omq_lane_map *map, const omq_lane *lane) {
    if (lane->pending == 0) {
        return false;
    }
    uint32_t distance = from_head(map, lane->first);
    /* Several messages of a key may be diverted at once, ascending. Not behind one that was taken,
     * which may fail and has to be diverted first; and not once a diverted one has failed, which
     * the others in flight have overtaken already. */
    bool is_behind = lane->is_diverting && from_head(map, lane->last_diverted) < distance;
    if (lane->in_flight > 0 && !is_behind) {
        return false;
    }
    const omq_lane *barriers = barriers_of(map);
    if (barriers != NULL &&
        (barriers->in_flight > 0 || from_head(map, barriers->first) < distance)) {
        return false;
    }
    return may_fly(map, lane->first) &&
           !has_old_flight(map, omq_ring_at(&map->ring, lane->first)->offset);
}

omq_status omq_lane_map_divert(omq_lane_map *map, const omq_key *key, int64_t *offsets,
                               uint64_t *tokens, size_t limit, size_t *taken) {
    departures to = {offsets, tokens, 0};
    omq_mutex_lock(&map->mutex);
    omq_status status = check_take(map, tokens, limit);
    uint32_t at = omq_key_lanes_find(&map->lanes, key);
    omq_lane *lane = at == OMQ_NO_LANE ? NULL : map->lanes.lanes + at;
    bool is_parked = lane != NULL && lane->is_parked;
    while (status == OMQ_OK && is_parked && to.count < limit && may_divert(map, lane)) {
        lane->is_diverting = true;
        lane->last_diverted = lane->first;
        start(map, lane, &to);
    }
    omq_mutex_unlock(&map->mutex);
    *taken = to.count;
    return status;
}

/* ---- done and failed ---- */

/* Put a message back into its lane's list, by offset. Almost always it becomes the first one: a
 * lane has one message in flight. */
static void put_back(omq_lane_map *map, omq_lane *lane, uint32_t sequence) {
    omq_ring_message *message = omq_ring_at(&map->ring, sequence);
    if (lane->pending == 0 || from_head(map, sequence) < from_head(map, lane->first)) {
        message->ahead = lane->pending > 0 ? lane->first - sequence : 0;
        lane->last = lane->pending > 0 ? lane->last : sequence;
        lane->first = sequence;
    } else { /* several were diverted and an earlier one came back before: go past those */
        uint32_t before = lane->first;
        omq_ring_message *at = omq_ring_at(&map->ring, before);
        while (at->ahead != 0 &&
               from_head(map, before + at->ahead) < from_head(map, sequence)) {
            before += at->ahead;
            at = omq_ring_at(&map->ring, before);
        }
        message->ahead = at->ahead != 0 ? before + at->ahead - sequence : 0;
        lane->last = at->ahead != 0 ? lane->last : sequence;
        at->ahead = sequence - before;
    }
    lane->pending++;
}

/* End an old flight. Two lanes may become ready: the one of its key, and that of a message which
 * was delivered again at its offset, perhaps under another key. */
static void end_old(omq_lane_map *map, int64_t offset, uint32_t at) {
    omq_item item;
    bool is_found;
    uint32_t sequence;
    (void)omq_offset_tree_extract(&map->old, offset, &item, &is_found); /* no runs: cannot fail */
    map->lanes.lanes[at].in_flight--;
    refresh(map, at);
    if (omq_message_ring_find(&map->ring, offset, &sequence)) {
        refresh(map, omq_ring_at(&map->ring, sequence)->lane);
    }
}

static bool end_own(omq_lane_map *map, int64_t offset, bool is_done) {
    uint32_t sequence;
    if (!omq_message_ring_find(&map->ring, offset, &sequence)) {
        return false;
    }
    const omq_ring_message *message = omq_ring_at(&map->ring, sequence);
    uint32_t at = message->lane;
    omq_lane *lane = map->lanes.lanes + at;
    if (message->ahead != OMQ_IN_FLIGHT) {
        return false;
    }
    map->in_flight--;
    lane->in_flight--;
    lane->is_diverting = lane->is_diverting && lane->in_flight > 0;
    if (is_done) {
        map->undone--;
        omq_message_ring_end(&map->ring, sequence);
    } else {
        put_back(map, lane, sequence);
    }
    refresh(map, at);
    return true;
}

static omq_flight end(omq_lane_map *map, int64_t offset, bool is_done) {
    omq_item item;
    omq_flight flight = OMQ_FLIGHT_NONE;
    /* Old flights come first: while one has the offset, the new message there cannot start. */
    if (map->old.count > 0 && omq_offset_tree_find(&map->old, offset, &item)) {
        end_old(map, offset, (uint32_t)item.token);
        flight = OMQ_FLIGHT_OLD;
    } else if (end_own(map, offset, is_done)) {
        flight = OMQ_FLIGHT_OWN;
    }
    shrink_if_idle(map);
    return flight;
}

omq_flight omq_lane_map_done(omq_lane_map *map, int64_t offset) {
    omq_mutex_lock(&map->mutex);
    omq_flight flight = end(map, offset, true);
    omq_mutex_unlock(&map->mutex);
    return flight;
}

omq_flight omq_lane_map_failed(omq_lane_map *map, int64_t offset) {
    omq_mutex_lock(&map->mutex);
    omq_flight flight = end(map, offset, false);
    omq_mutex_unlock(&map->mutex);
    return flight;
}

omq_status omq_lane_map_done_columns(omq_lane_map *map, const int64_t *offsets, size_t count,
                                     size_t *ended) {
    *ended = 0;
    omq_mutex_lock(&map->mutex);
    bool is_wrong = map->shape == OMQ_LANES_OF_OBJECTS;
    for (size_t i = 0; !is_wrong && i < count; i++) {
        *ended += end(map, offsets[i], true) != OMQ_FLIGHT_NONE;
    }
    omq_mutex_unlock(&map->mutex);
    return is_wrong ? OMQ_WRONG_SHAPE : OMQ_OK;
}

/* ---- reset ---- */

static bool is_flying(const omq_ring_message *message) {
    return message->lane != OMQ_NO_LANE && message->ahead == OMQ_IN_FLIGHT;
}

/* Remember every flight as an old one. NO_MEMORY: none of them, the inserted ones are undone. */
static omq_status keep_flights(omq_lane_map *map) {
    omq_status status = OMQ_OK;
    uint32_t i = 0;
    for (; status == OMQ_OK && i < map->ring.count; i++) {
        const omq_ring_message *message = omq_ring_at(&map->ring, map->ring.head + i);
        if (is_flying(message)) {
            omq_item item = {message->offset, message->lane, 0};
            status = omq_offset_tree_insert(&map->old, &item);
        }
    }
    for (i -= status != OMQ_OK; status != OMQ_OK && i > 0; i--) {
        const omq_ring_message *message = omq_ring_at(&map->ring, map->ring.head + i - 1);
        if (is_flying(message)) {
            omq_item item;
            bool is_found;
            (void)omq_offset_tree_extract(&map->old, message->offset, &item, &is_found);
        }
    }
    return status;
}

/* Empty the ring. Lanes with an old flight or a parked key stay. */
static void drop_messages(omq_lane_map *map) {
    for (uint32_t i = 0; i < map->ring.count; i++) {
        const omq_ring_message *message = omq_ring_at(&map->ring, map->ring.head + i);
        if (message->lane == OMQ_NO_LANE) {
            continue;
        }
        omq_lane *lane = map->lanes.lanes + message->lane;
        lane->is_diverting = false;
        if (message->ahead != OMQ_IN_FLIGHT) {
            set_ready(map, lane, false);
            lane->pending--;
            if (lane->pending == 0 && lane->in_flight == 0 && !lane->is_parked) {
                omq_key_lanes_release(&map->lanes, message->lane);
            }
        }
    }
    map->ring.head += map->ring.count;
    map->ring.count = 0;
    map->undone = 0;
    map->in_flight = 0;
}

omq_status omq_lane_map_reset(omq_lane_map *map, int64_t next_offset) {
    if (next_offset < 0) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&map->mutex);
    omq_status status = keep_flights(map);
    if (status == OMQ_OK) {
        drop_messages(map);
        shrink_if_idle(map);
        map->next_offset = next_offset;
    }
    omq_mutex_unlock(&map->mutex);
    return status;
}

void omq_lane_map_read(omq_lane_map *map, omq_lane_map_state *state) {
    omq_mutex_lock(&map->mutex);
    int64_t watermark = watermark_of(map);
    *state = (omq_lane_map_state){
        .messages = map->undone,
        .in_flight = map->in_flight + map->old.count,
        .old_flights = map->old.count,
        .ready = map->ready,
        .keys = map->lanes.count,
        .parked = map->parked,
        .watermark = watermark,
        .next_offset = map->next_offset,
        .duplicates_ignored = map->duplicates_ignored,
        .is_full = map->next_offset - 1 - watermark >= map->max_ahead,
        .can_start = map->ready > 0 && map->in_flight + map->old.count < map->max_in_flight,
    };
    omq_mutex_unlock(&map->mutex);
}

/* ---- check ---- */

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

/* Check one message, in the order of the ring, against what its lane has had so far. */
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
        REQUIRE(!has_old_flight(map, message->offset), "two flights of an offset");
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
    REQUIRE(lane->is_ready == may_be_taken(map, lane), "a lane is ready, or is not");
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

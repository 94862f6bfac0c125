#include "lane_map.h"

#include <stdlib.h>

enum { KEPT_WHEN_IDLE = 4096 }; /* messages or lanes whose memory an empty map keeps */

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

void omq_lane_map_set_ready(omq_lane_map *map, omq_lane *lane, bool is_ready) {
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

void omq_lane_map_refresh(omq_lane_map *map, uint32_t at) {
    omq_lane *lane = map->lanes.lanes + at;
    if (lane->pending == 0 && lane->in_flight == 0 && !lane->is_parked) {
        omq_key_lanes_release(&map->lanes, at);
    } else {
        omq_lane_map_set_ready(map, lane, omq_lane_is_ready(map, lane));
    }
}

void omq_lane_map_shrink_if_idle(omq_lane_map *map) {
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
    static const uint8_t nothing[1]; /* an empty key is a key, and `bytes` may be NULL */
    const omq_key_column *column = from->column;
    uint32_t size = column->sizes[i];
    if (size == 0 || size == UINT32_MAX) {
        return (omq_key){size == 0 ? nothing : NULL, 0};
    }
    return (omq_key){column->bytes + column->positions[i], size};
}

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
    omq_lane *lane = map->lanes.lanes + at;
    if (lane->pending > 0) {
        omq_ring_at(&map->ring, lane->last)->ahead = sequence - lane->last;
    } else {
        lane->first = sequence;
    }
    lane->last = sequence;
    if (lane->pending++ == 0) {
        omq_lane_map_refresh(map, at);
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
        omq_lane_map_refresh(map, at);
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
        omq_lane_map_refresh(map, at);
        omq_lane_map_shrink_if_idle(map);
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

/* ---- reset ---- */

static bool is_flying(const omq_ring_message *message) {
    return message->lane != OMQ_NO_LANE && message->ahead == OMQ_IN_FLIGHT;
}

/* Remember every flight as an old one. NO_MEMORY: none of them. */
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

static void drop_messages(omq_lane_map *map) {
    for (uint32_t i = 0; i < map->ring.count; i++) {
        const omq_ring_message *message = omq_ring_at(&map->ring, map->ring.head + i);
        if (message->lane == OMQ_NO_LANE) {
            continue;
        }
        omq_lane *lane = map->lanes.lanes + message->lane;
        lane->is_diverting = false;
        if (message->ahead != OMQ_IN_FLIGHT) {
            omq_lane_map_set_ready(map, lane, false);
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
        omq_lane_map_shrink_if_idle(map);
        map->next_offset = next_offset;
    }
    omq_mutex_unlock(&map->mutex);
    return status;
}

void omq_lane_map_read(omq_lane_map *map, omq_lane_map_state *state) {
    omq_mutex_lock(&map->mutex);
    int64_t watermark = omq_lane_map_watermark(map);
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
    };
    omq_mutex_unlock(&map->mutex);
}

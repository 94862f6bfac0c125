/* The lane map's flights: how messages start (take, divert) and end (done, failed). */
#include "lane_map.h"

/* ---- take and divert ---- */

typedef struct {
    int64_t *offsets;
    uint64_t *tokens; /* NULL: objects */
    size_t count;
} departures;

/* Whether the bounds of the whole queue, barriers aside, let a message start. */
static bool may_fly(const omq_lane_map *map, uint32_t sequence) {
    return map->in_flight + map->old.count < map->max_in_flight &&
           omq_ring_at(&map->ring, sequence)->offset - omq_lane_map_watermark(map) <= map->max_ahead;
}

/* Put the first message of a lane in flight. */
static void start(omq_lane_map *map, omq_lane *lane, departures *to) {
    omq_ring_message *message = omq_ring_at(&map->ring, lane->first);
    omq_lane_map_set_ready(map, lane, false);
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

/* The lane whose first message is the next to start, or NULL. */
static omq_lane *next_lane(const omq_lane_map *map) {
    omq_lane *barriers = omq_lane_map_barriers(map);
    uint32_t sequence;
    if (barriers != NULL && barriers->in_flight > 0) {
        return NULL;
    }
    bool is_found = omq_message_ring_first_ready(&map->ring, &sequence);
    if (barriers != NULL &&
        (!is_found || omq_from_head(map, barriers->first) < omq_from_head(map, sequence))) {
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
    uint32_t distance = omq_from_head(map, lane->first);
    /* What runs may fail and come before us; what failed has been overtaken: wait for both. */
    bool is_behind = lane->is_diverting && omq_from_head(map, lane->last_diverted) < distance;
    if (lane->in_flight > 0 && !is_behind) {
        return false;
    }
    const omq_lane *barriers = omq_lane_map_barriers(map);
    if (barriers != NULL &&
        (barriers->in_flight > 0 || omq_from_head(map, barriers->first) < distance)) {
        return false;
    }
    return may_fly(map, lane->first) &&
           !omq_lane_map_has_old_flight(map, omq_ring_at(&map->ring, lane->first)->offset);
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

/* A message waits again, in its place by offset. */
static void put_back(omq_lane_map *map, omq_lane *lane, uint32_t sequence) {
    omq_ring_message *message = omq_ring_at(&map->ring, sequence);
    if (lane->pending == 0 || omq_from_head(map, sequence) < omq_from_head(map, lane->first)) {
        message->ahead = lane->pending > 0 ? lane->first - sequence : 0;
        lane->last = lane->pending > 0 ? lane->last : sequence;
        lane->first = sequence;
    } else { /* a diverted one, after one before it: past those that came back already */
        uint32_t before = lane->first;
        omq_ring_message *at = omq_ring_at(&map->ring, before);
        while (at->ahead != 0 &&
               omq_from_head(map, before + at->ahead) < omq_from_head(map, sequence)) {
            before += at->ahead;
            at = omq_ring_at(&map->ring, before);
        }
        message->ahead = at->ahead != 0 ? before + at->ahead - sequence : 0;
        lane->last = at->ahead != 0 ? lane->last : sequence;
        at->ahead = sequence - before;
    }
    lane->pending++;
}

/* An old flight ends: its key, and whoever was delivered again at its offset, may go on. */
static void end_old(omq_lane_map *map, int64_t offset, uint32_t at) {
    omq_item item;
    bool is_found;
    uint32_t sequence;
    (void)omq_offset_tree_extract(&map->old, offset, &item, &is_found); /* no runs: cannot fail */
    map->lanes.lanes[at].in_flight--;
    omq_lane_map_refresh(map, at);
    if (omq_message_ring_find(&map->ring, offset, &sequence)) {
        omq_lane_map_refresh(map, omq_ring_at(&map->ring, sequence)->lane);
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
    omq_lane_map_refresh(map, at);
    return true;
}

static omq_flight end(omq_lane_map *map, int64_t offset, bool is_done) {
    omq_item item;
    omq_flight flight = OMQ_FLIGHT_NONE;
    if (map->old.count > 0 && omq_offset_tree_find(&map->old, offset, &item)) {
        end_old(map, offset, (uint32_t)item.token);
        flight = OMQ_FLIGHT_OLD;
    } else if (end_own(map, offset, is_done)) {
        flight = OMQ_FLIGHT_OWN;
    }
    omq_lane_map_shrink_if_idle(map);
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

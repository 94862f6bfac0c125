/* The lane map from inside, for lane_map.c, lane_flights.c and check_lanes.c. */
#ifndef OMQ_LANE_MAP_H
#define OMQ_LANE_MAP_H

#include "key_lanes.h"
#include "message_ring.h"
#include "mutex.h"
#include "offset_runs.h"

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

/* The lane of barriers: NULL without any. */
static inline omq_lane *omq_lane_map_barriers(const omq_lane_map *map) {
    bool has_some = map->has_barriers && map->lanes.keyless != OMQ_NO_LANE;
    return has_some ? map->lanes.lanes + map->lanes.keyless : NULL;
}

static inline bool omq_lane_map_has_old_flight(const omq_lane_map *map, int64_t offset) {
    omq_item item;
    return map->old.count > 0 && omq_offset_tree_find(&map->old, offset, &item);
}

/* Whether a lane's first message may be taken, but for what bounds the whole queue. */
static inline bool omq_lane_is_ready(const omq_lane_map *map, const omq_lane *lane) {
    return lane->pending > 0 && lane->in_flight == 0 && !lane->is_parked &&
           !(map->has_barriers && lane->is_keyless) &&
           !omq_lane_map_has_old_flight(map, omq_ring_at(&map->ring, lane->first)->offset);
}

static inline int64_t omq_lane_map_watermark(const omq_lane_map *map) {
    const omq_message_ring *ring = &map->ring;
    return ring->count > 0 ? omq_ring_at(ring, ring->head)->offset : map->next_offset;
}

/* How far behind the head a message of the ring is: what sequence numbers compare by. */
static inline uint32_t omq_from_head(const omq_lane_map *map, uint32_t sequence) {
    return sequence - map->ring.head;
}

/* Set or clear the bit of a lane's first message. */
void omq_lane_map_set_ready(omq_lane_map *map, omq_lane *lane, bool is_ready);

/* After any change of a lane; its first message changes only while it is not ready. An idle
 * lane is released. */
void omq_lane_map_refresh(omq_lane_map *map, uint32_t at);

/* Free what a burst has left behind, if the map is empty. The next one grows it again by
 * doubling, so that a message still costs the same. */
void omq_lane_map_shrink_if_idle(omq_lane_map *map);

#endif

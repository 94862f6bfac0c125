/* The lane map under the sanitizers: its own check, and that what is taken is what was added. */
#include "sanitize.h"

enum { LANE_KEYS = 40, FEW = 24, MANY = 300 };

static const uint8_t letters[LANE_KEYS + 1] = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn";

/* Keys of 0 .. 38 bytes, some of which lie in their lanes and some do not; 0: no key. */
static omq_key lane_key(uint32_t number) {
    bool has_key = number > 0;
    return (omq_key){has_key ? letters : NULL, has_key ? number - 1 : 0};
}

static uint64_t token_of(int64_t offset) { return (uint64_t)offset * 3 + 1; }

/* Torn columns reach past the key bytes by one, and must add nothing. */
static omq_status add_columns(omq_lane_map *map, const int64_t *offsets, const omq_key *keys,
                              uint32_t count, bool is_torn, size_t *ignored, size_t *added) {
    uint64_t tokens[BATCH];
    uint32_t positions[BATCH];
    uint32_t sizes[BATCH];
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = token_of(offsets[i]);
        positions[i] = 0;
        sizes[i] = keys[i].bytes == NULL ? UINT32_MAX : (uint32_t)keys[i].size;
    }
    uint8_t *bytes = malloc(LANE_KEYS); /* of exactly this size, so that a read past it shows */
    if (bytes == NULL) {
        REQUIRE(failing > 0);
        *ignored = *added = 0;
        return OMQ_NO_MEMORY;
    }
    for (int i = 0; i < LANE_KEYS; i++) {
        bytes[i] = letters[i];
    }
    if (is_torn) {
        positions[count - 1] = LANE_KEYS;
        sizes[count - 1] = 1;
    }
    omq_key_column column = {bytes, LANE_KEYS, positions, sizes};
    omq_status status =
        omq_lane_map_add_columns(map, offsets, tokens, &column, count, ignored, added);
    free(bytes);
    return status;
}

static void add_messages(omq_lane_map *map, uint64_t *seed, bool is_columns) {
    int64_t offsets[BATCH];
    omq_key keys[BATCH];
    omq_lane_map_state state;
    size_t ignored;
    size_t added;
    omq_lane_map_read(map, &state);
    uint32_t count = draw(seed, BATCH);
    uint32_t several = draw(seed, 4) == 0 ? 1 : 1 + draw(seed, LANE_KEYS - 1);
    bool is_torn = is_columns && count > 0 && draw(seed, 8) == 0;
    int64_t offset = state.next_offset > 20 ? state.next_offset - draw(seed, 20) : 0;
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = offset;
        offset += 1 + (draw(seed, 4) == 0);
        keys[i] = lane_key(draw(seed, 30) == 0 ? 0 : 1 + draw(seed, several));
    }
    omq_status status =
        is_columns ? add_columns(map, offsets, keys, count, is_torn, &ignored, &added)
                   : omq_lane_map_add(map, offsets, keys, count, &ignored, &added);
    if (is_torn && status == OMQ_OUT_OF_RANGE) {
        REQUIRE(ignored + added == 0);
        return;
    }
    REQUIRE(is_done(status) && (!is_torn || status == OMQ_NO_MEMORY));
    REQUIRE(ignored + added == count || status == OMQ_NO_MEMORY);
}

static void start_flights(omq_lane_map *map, uint64_t *seed, bool is_columns, bool is_divert) {
    int64_t offsets[MANY];
    uint64_t tokens[MANY];
    uint64_t *wanted = is_columns ? tokens : NULL;
    size_t count;
    size_t limit = 1 + draw(seed, draw(seed, 2) == 0 ? FEW : MANY);
    omq_key key = lane_key(draw(seed, draw(seed, 2) == 0 ? LANE_KEYS : 2));
    REQUIRE((is_divert ? omq_lane_map_divert(map, &key, offsets, wanted, limit, &count)
                       : omq_lane_map_take(map, offsets, wanted, limit, &count)) == OMQ_OK);
    REQUIRE(count <= limit);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(i == 0 || offsets[i - 1] < offsets[i]);
        REQUIRE(!is_columns || tokens[i] == token_of(offsets[i]));
    }
}

static void end_flights(omq_lane_map *map, uint64_t *seed, bool is_columns) {
    int64_t offsets[60];
    omq_lane_map_state state;
    size_t ended;
    omq_lane_map_read(map, &state); /* a watermark that moves meanwhile is as good */
    for (int64_t i = 0; i < 60; i++) {
        offsets[i] = state.watermark + i;
    }
    if (is_columns && draw(seed, 2) == 0) {
        REQUIRE(omq_lane_map_done_columns(map, offsets, 60, &ended) == OMQ_OK && ended <= 60);
        return;
    }
    for (int i = 0; i < 60; i++) {
        if (draw(seed, 4) == 0) {
            (void)omq_lane_map_failed(map, offsets[i]);
        } else {
            (void)omq_lane_map_done(map, offsets[i]);
        }
    }
}

static void reset(omq_lane_map *map, uint64_t *seed) {
    omq_lane_map_state state;
    omq_lane_map_read(map, &state);
    int64_t back = draw(seed, 30);
    int64_t next_offset = state.watermark > back ? state.watermark - back : 0;
    REQUIRE(is_done(omq_lane_map_reset(map, next_offset)));
}

void step_lanes(omq_lane_map *map, uint64_t *seed, bool is_columns) {
    omq_lane_map_state state;
    omq_key key = lane_key(1 + draw(seed, draw(seed, 2) == 0 ? LANE_KEYS - 1 : 1));
    bool changed;
    omq_lane_map_read(map, &state);
    switch (draw(seed, 12)) {
    case 0:
        if (!state.is_full) {
            add_messages(map, seed, is_columns);
        }
        break;
    case 1:
        REQUIRE(is_done(omq_lane_map_park(map, &key, &changed)));
        break;
    case 2:
    case 3:
        (void)omq_lane_map_unpark(map, &key);
        break;
    case 4:
        start_flights(map, seed, is_columns, true);
        break;
    case 5:
    case 6:
        start_flights(map, seed, is_columns, false);
        break;
    case 7:
        if (draw(seed, 8) == 0) {
            reset(map, seed);
        }
        break;
    default:
        end_flights(map, seed, is_columns);
    }
}

void drive_lanes(uint64_t *seed, int steps) {
    uint32_t odds = failing;
    bool is_columns = draw(seed, 2) == 0;
    failing = 0;
    omq_lane_map *map = omq_lane_map_new(1 + draw(seed, draw(seed, 2) == 0 ? FEW : 2 * MANY),
                                         1 + draw(seed, 3000), draw(seed, 2) == 0, *seed);
    REQUIRE(map != NULL);
    for (int step = 0; step < steps; step++) {
        failing = odds;
        step_lanes(map, seed, is_columns);
        failing = 0; /* the check needs memory itself */
        sound(omq_lane_map_check(map));
    }
    omq_lane_map_free(map);
}

/* A reset that finds no memory for its old flights does nothing, and may be repeated. It takes
 * more of them than random steps ever have, for they share leaves of an offset map. */
void starve_reset(void) {
    enum { ALL = 6000 };
    static int64_t offsets[ALL];
    static uint64_t numbers[ALL];
    static omq_key keys[ALL];
    omq_lane_map_state state;
    size_t ignored;
    size_t count;
    uint32_t odds = failing;
    failing = 0;
    omq_lane_map *map = omq_lane_map_new(ALL, ALL, true, 1);
    REQUIRE(map != NULL);
    for (size_t i = 0; i < ALL; i++) {
        offsets[i] = (int64_t)i;
        numbers[i] = i;
        keys[i] = (omq_key){(const uint8_t *)(numbers + i), sizeof numbers[i]};
    }
    REQUIRE(omq_lane_map_add(map, offsets, keys, ALL, &ignored, &count) == OMQ_OK);
    REQUIRE(omq_lane_map_take(map, offsets, NULL, ALL, &count) == OMQ_OK && count == ALL);
    for (failing = 1; omq_lane_map_reset(map, 7) != OMQ_OK; failing += failing < 1000) {
        omq_lane_map_read(map, &state);
        REQUIRE(state.messages == ALL && state.in_flight == ALL && state.old_flights == 0);
        uint32_t again = failing;
        failing = 0;
        sound(omq_lane_map_check(map));
        failing = again;
    }
    REQUIRE(failing > 1);
    failing = 0;
    omq_lane_map_read(map, &state);
    REQUIRE(state.messages == 0 && state.in_flight == ALL && state.old_flights == ALL);
    sound(omq_lane_map_check(map));
    for (size_t i = 0; i < ALL; i++) {
        REQUIRE(omq_lane_map_done(map, offsets[i]) == OMQ_FLIGHT_OLD);
    }
    omq_lane_map_read(map, &state);
    REQUIRE(state.keys == 0 && state.in_flight == 0 && state.watermark == 7);
    sound(omq_lane_map_check(map));
    omq_lane_map_free(map);
    failing = odds;
}

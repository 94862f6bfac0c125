/* The assigned queue under the sanitizers: any call after any other, with the checks of all that it is
 * made of. What each call returns is compared elsewhere (tests/property/test_assigned_queue_machine.py);
 * here it may read and free nothing wrong, and lose no lock. */
#include "sanitize.h"

enum { MOST = 40, SPAN = 400, KEY_BYTES = 4, LAST_READ = 1000 };

static const uint8_t key_bytes[KEY_BYTES] = "abcd";

static void accept(omq_assigned_queue *queue, int64_t generation, bool has_lanes, uint64_t *seed) {
    static const uint32_t sizes[MOST] = {7, 0, 900};
    int64_t offsets[MOST];
    uint64_t tokens[MOST];
    uint32_t positions[MOST];
    uint32_t key_sizes[MOST];
    uint32_t slot;
    uint32_t follow;
    omq_key_column keys = {key_bytes, KEY_BYTES, positions, key_sizes};
    omq_arrival arrival = {.first = draw(seed, SPAN), .sizes = sizes, .bytes = 907};
    arrival.count = draw(seed, 4) == 0 ? 0 : 3 + draw(seed, MOST - 3);
    arrival.last.offset = draw(seed, LAST_READ);
    if (has_lanes || draw(seed, 2)) {
        for (size_t i = 0; i < arrival.count; i++) {
            offsets[i] = arrival.first + (int64_t)(i * (1 + draw(seed, 2) * (i > 5)));
            offsets[i] = i > 0 && offsets[i] <= offsets[i - 1] ? offsets[i - 1] + 1 : offsets[i];
            tokens[i] = (uint64_t)arrival.first << 32 | i;
            positions[i] = draw(seed, KEY_BYTES);
            key_sizes[i] = draw(seed, 5) == 0 ? UINT32_MAX : 1;
        }
        arrival.offsets = offsets;
        arrival.tokens = has_lanes ? tokens : NULL;
        arrival.keys = has_lanes ? &keys : NULL;
    }
    omq_status status = omq_assigned_queue_accept(
        queue, generation, arrival.first + (int64_t)arrival.count, &arrival, &slot, &follow);
    REQUIRE(is_done(status));
    REQUIRE(status == OMQ_OK || follow == 0);
    REQUIRE(follow & OMQ_COUNTS || slot == UINT32_MAX || status == OMQ_NO_MEMORY);
}

static void claim(omq_assigned_queue *queue, bool has_lanes, int64_t now_ms, uint64_t *seed) {
    omq_segment segments[MOST];
    int64_t offsets[MOST];
    uint64_t tokens[MOST];
    size_t count;
    omq_claim made;
    size_t limit = 1 + draw(seed, MOST - 1);
    omq_claim_kind kind = (omq_claim_kind)draw(seed, 3);
    omq_status status =
        has_lanes ? omq_assigned_queue_claim_lanes(queue, kind, now_ms, limit, offsets, tokens,
                                                   &count, &made)
                  : omq_assigned_queue_claim(queue, kind, now_ms, limit, segments, &count, &made);
    REQUIRE(is_done(status));
    REQUIRE(count <= limit && (made.result == OMQ_CLAIMED) == (count > 0));
    REQUIRE(!(made.follow & OMQ_LEASE_OVER) || made.result == OMQ_CLAIM_LEASE_LOST);
}

/* End claims, of this generation or of an older one. */
static void settle(omq_assigned_queue *queue, const omq_assigned_queue_state *state,
                   bool has_lanes, int64_t now_ms, uint64_t *seed) {
    int64_t offsets[MOST];
    uint32_t slot;
    uint32_t follow;
    int64_t generation = state->generation - (draw(seed, 4) == 0);
    int64_t from = state->position > 20 ? state->position - draw(seed, 20) : draw(seed, 20);
    uint32_t count = 1 + draw(seed, MOST - 1);
    uint32_t done = draw(seed, count + 1);
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = from + i;
    }
    omq_settlement settlement = {
        .generation = generation,
        .now_ms = now_ms,
        .again_from = draw(seed, 2) ? INT64_MAX : from,
        .held_from = from > 3 ? from - 3 : 0,
        .held = draw(seed, 3) == 0 ? 3 : 0,
        .commits = draw(seed, 4) > 0,
    };
    switch (has_lanes ? 0 : draw(seed, 4)) {
    case 0:
    case 1:
        REQUIRE(is_done(omq_assigned_queue_finish(queue, generation,
                                                  draw(seed, 2) ? now_ms : INT64_MIN, offsets,
                                                  count, done, draw(seed, 3) > 0, &follow)));
        break;
    case 2:
        REQUIRE(is_done(omq_assigned_queue_settle(queue, &settlement, &slot, &follow)));
        break;
    default:
        REQUIRE(is_done(omq_assigned_queue_roll_back(
            queue, generation, draw(seed, 2) ? from : -1, &slot, &follow)));
        REQUIRE(is_done(omq_assigned_queue_requeue(queue, generation, offsets, count, &follow)));
    }
}

static void of_member(omq_assigned_queue *queue, const omq_assigned_queue_state *state,
                      int64_t now_ms, uint64_t *seed) {
    int64_t generation = state->generation - (draw(seed, 4) == 0);
    int64_t offset = draw(seed, SPAN);
    omq_lease lease = {1 + draw(seed, 2), now_ms + 20};
    omq_claim made;
    switch (draw(seed, 14)) {
    case 0: (void)omq_assigned_queue_renew(queue, generation, lease); break;
    case 1: (void)omq_assigned_queue_lose(queue, draw(seed, 2) ? -1 : generation); break;
    case 2:
    case 3:
    case 4: (void)omq_assigned_queue_regain(queue, lease, offset); break;
    case 5:
        (void)omq_assigned_queue_reposition(queue, generation, offset);
        (void)omq_assigned_queue_rest(queue, lease, 1);
        break;
    case 6:
        if (omq_assigned_queue_uncommitted(queue, now_ms, &offset)) {
            omq_assigned_queue_committed(queue, offset, lease.epoch);
        }
        break;
    case 7: omq_assigned_queue_pause(queue, 1 + draw(seed, 3), draw(seed, 2)); break;
    case 8:
    case 9: (void)omq_assigned_queue_resume(queue, 3); break;
    case 10: omq_assigned_queue_isolate(queue, (int64_t)draw(seed, SPAN) - 1); break;
    case 11: (void)omq_assigned_queue_begin_life(queue, offset); break;
    case 12: omq_assigned_queue_skip(queue, generation, state->position + draw(seed, 5)); break;
    default: omq_assigned_queue_enter(queue, now_ms, draw(seed, 2), &made);
    }
}

void step_assigned(omq_assigned_queue *queue, bool has_lanes, uint64_t *seed) {
    omq_assigned_queue_state state;
    int64_t stored_ms;
    int64_t now_ms = draw(seed, 100);
    omq_assigned_queue_read(queue, &state);
    switch (draw(seed, 12)) {
    case 0:
    case 1: accept(queue, state.generation - (draw(seed, 8) == 0), has_lanes, seed); break;
    case 2:
    case 3:
    case 4: claim(queue, has_lanes, now_ms, seed); break;
    case 5:
    case 6:
    case 7: settle(queue, &state, has_lanes, now_ms, seed); break;
    case 8: (void)omq_assigned_queue_leave(queue); break;
    case 9:
        (void)omq_assigned_queue_end_run(queue);
        (void)omq_assigned_queue_begin_run(queue, draw(seed, 2));
        (void)omq_assigned_queue_wait_for_room(queue, draw(seed, MOST));
        (void)omq_assigned_queue_oldest_stored_ms(queue, &stored_ms);
        REQUIRE(omq_assigned_queue_known_read(queue, draw(seed, 2)).offset < LAST_READ);
        omq_assigned_queue_end_claim(queue);
        (void)omq_assigned_queue_is_ending(queue);
        break;
    case 10:
        if (draw(seed, 20) == 0) {
            (void)omq_assigned_queue_abandon(queue);
            (void)omq_assigned_queue_recount(queue, draw(seed, 2));
        }
        break;
    default: of_member(queue, &state, now_ms, seed);
    }
}

/* One life after the other, each ended by a revocation at any step. */
void drive_assigned(uint64_t *seed, int steps) {
    uint32_t odds = failing;
    while (steps > 0) {
        bool has_lanes = draw(seed, 2);
        failing = 0;
        omq_process_queue *buffer = omq_process_queue_new();
        omq_lane_map *lanes = has_lanes ? omq_lane_map_new(5, 100, draw(seed, 2), 7) : NULL;
        REQUIRE(buffer != NULL && (lanes != NULL || !has_lanes));
        omq_assigned_queue *queue = omq_assigned_queue_new(buffer, lanes, (omq_lease){1, 50},
                                                           draw(seed, 9), draw(seed, 3) > 0);
        REQUIRE(queue != NULL);
        for (int left = 1 + (int)draw(seed, 400); left > 0 && steps > 0; left--, steps--) {
            failing = odds;
            step_assigned(queue, has_lanes, seed);
            failing = 0; /* the checks need memory themselves */
            sound(omq_assigned_queue_check(queue));
            sound(omq_process_queue_check(buffer));
            sound(has_lanes ? omq_lane_map_check(lanes) : NULL);
        }
        (void)omq_assigned_queue_revoke(queue);
        sound(omq_assigned_queue_check(queue));
        omq_assigned_queue_discard(queue);
        omq_assigned_queue_set_done(queue, 0, 0);
        sound(omq_assigned_queue_check(queue));
        omq_assigned_queue_free(queue);
        omq_process_queue_free(buffer);
        omq_lane_map_free(lanes);
    }
    failing = odds;
}

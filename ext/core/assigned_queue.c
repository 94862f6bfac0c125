/* The assigned queue of ordermq.h: a state machine under the mutex of its process queue, so that a
 * claim, an answer and a revocation each happen before or after the other, and never within. */
#include <stdatomic.h>
#include <stdlib.h>

#include "check.h"
#include "platform.h"
#include "process_queue.h"

struct omq_assigned_queue {
    omq_process_queue *buffer; /* not owned; its mutex guards all of this */
    omq_lane_map *lanes;       /* not owned; NULL: claimed in order of offsets */
    omq_lease lease;           /* counts only with has_lease */
    int64_t generation;
    int64_t done;
    int64_t committed;
    int64_t life_start;
    int64_t isolate_until;
    int64_t oldest_lost_ms; /* of what the engine had buffered when the lease was lost; -1: none */
    size_t running;
    size_t room_below; /* messages; 0: nobody waits for room */
    uint32_t pauses;
    omq_stage stage;
    bool has_lease;
    bool counts_running;
    atomic_bool is_ending; /* read without the mutex by the worker, once per batch */
};

/* ---- life ---- */

omq_assigned_queue *omq_assigned_queue_new(omq_process_queue *buffer, omq_lane_map *lanes,
                                           omq_lease lease, int64_t start, bool counts_running) {
    omq_assigned_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL || (lanes != NULL && omq_lane_map_reset(lanes, start) != OMQ_OK)) {
        free(queue);
        return NULL;
    }
    queue->buffer = buffer;
    queue->lanes = lanes;
    queue->lease = lease;
    queue->has_lease = true;
    queue->done = queue->committed = start;
    queue->life_start = queue->isolate_until = queue->oldest_lost_ms = -1;
    queue->counts_running = counts_running;
    atomic_init(&queue->is_ending, false);
    omq_mutex_lock(&buffer->mutex);
    omq_locked_reset(buffer, start);
    buffer->next_pull = buffer->queue_end = start;
    omq_process_queue_unlock(buffer);
    return queue;
}

void omq_assigned_queue_free(omq_assigned_queue *queue) { free(queue); }

/* Every static function below is called under the mutex. */

static inline void lock(const omq_assigned_queue *queue) {
    omq_mutex_lock(&queue->buffer->mutex);
}

static inline void unlock(const omq_assigned_queue *queue) {
    omq_process_queue_unlock(queue->buffer);
}

static inline bool is_in(const omq_assigned_queue *queue, int64_t generation) {
    return generation == queue->generation && queue->stage == OMQ_STAGE_ACTIVE;
}

static inline bool is_valid(const omq_assigned_queue *queue, int64_t now_ms) {
    return queue->has_lease && now_ms < queue->lease.deadline_ms;
}

static inline void end_claim(omq_assigned_queue *queue) {
    atomic_store_explicit(&queue->is_ending, true, memory_order_relaxed);
}

static inline uint32_t begin_dispatch(omq_assigned_queue *queue) {
    bool is_on = queue->stage == OMQ_STAGE_ACTIVE && queue->pauses == 0;
    return is_on && omq_locked_begin_dispatch(queue->buffer) ? OMQ_DISPATCH : 0;
}

/* Give the lease up. Another owner may have continued from the committed offset, so neither the
 * buffered messages nor the running claims may count any more
 * (docs/internals/semantics.md#stale-buffers). The dispatch flag stays: a request that waits or runs
 * clears it itself, or a second worker could run beside it once the lease is regained. */
static void drop_lease(omq_assigned_queue *queue) {
    int64_t stored_ms;
    queue->has_lease = false;
    queue->generation++;
    queue->done = queue->committed;
    end_claim(queue);
    if (omq_locked_oldest_stored_ms(queue->buffer, &stored_ms)) {
        queue->oldest_lost_ms = stored_ms; /* nothing of it counts any more, but its age goes on */
    }
    omq_locked_clear(queue->buffer);
    if (queue->lanes != NULL) {
        /* Without memory they keep what nobody may claim: restart resets them again, or fails. */
        (void)omq_lane_map_reset(queue->lanes, queue->done);
    }
}

/* Begin anew at an offset; false without memory, and nothing was changed. */
static bool restart(omq_assigned_queue *queue, int64_t offset) {
    if (offset < 0 ||
        (queue->lanes != NULL && omq_lane_map_reset(queue->lanes, offset) != OMQ_OK)) {
        return false;
    }
    if (queue->life_start >= 0) {
        omq_locked_forget_read(queue->buffer); /* of the life before */
    }
    queue->generation++;
    queue->done = offset;
    queue->life_start = queue->isolate_until = queue->oldest_lost_ms = -1;
    queue->room_below = 0;
    omq_locked_reset(queue->buffer, offset);
    queue->buffer->next_pull = offset;
    return true;
}

/* ---- claim ---- */

/* Return why nothing may be claimed now, or CLAIMED. A lease that is over is given up. */
static omq_claim_result may_claim(omq_assigned_queue *queue, int64_t now_ms, uint32_t *follow) {
    if (queue->stage != OMQ_STAGE_ACTIVE) {
        return OMQ_CLAIM_REVOKED;
    }
    if (!queue->has_lease) {
        return OMQ_CLAIM_LEASE_LOST;
    }
    if (!is_valid(queue, now_ms)) {
        drop_lease(queue);
        *follow |= OMQ_LEASE_OVER;
        return OMQ_CLAIM_LEASE_LOST;
    }
    return queue->pauses != 0 ? OMQ_CLAIM_PAUSED : OMQ_CLAIMED;
}

static inline void begin_claim(omq_assigned_queue *queue) {
    queue->running += queue->counts_running;
    atomic_store_explicit(&queue->is_ending, false, memory_order_relaxed);
}

/* Return how many messages a claim may have while one that has failed is told apart. */
static size_t isolated(omq_assigned_queue *queue, size_t limit) {
    if (queue->isolate_until < 0) {
        return limit;
    }
    if (omq_locked_position(queue->buffer) <= queue->isolate_until) {
        return 1;
    }
    queue->isolate_until = -1;
    return limit;
}

static omq_status take(omq_assigned_queue *queue, omq_claim_kind kind, size_t limit,
                       omq_segment *segments, size_t *count, omq_claim *claim) {
    omq_process_queue *buffer = queue->buffer;
    omq_status status = OMQ_OK;
    if (kind != OMQ_CLAIM_FURTHER || buffer->pending.count > 0) {
        status = omq_locked_take_segments(buffer, segments, isolated(queue, limit), count);
    }
    if (*count == 0) {
        claim->result = OMQ_CLAIM_EMPTY;
        return status;
    }
    begin_claim(queue);
    if (kind == OMQ_CLAIM_SHARED) {
        buffer->is_dispatched = buffer->pending.count > 0;
        claim->follow |= buffer->is_dispatched ? OMQ_DISPATCH : OMQ_IDLE;
    }
    return status;
}

omq_status omq_assigned_queue_claim(omq_assigned_queue *queue, omq_claim_kind kind, int64_t now_ms,
                                    size_t limit, omq_segment *segments, size_t *count,
                                    omq_claim *claim) {
    omq_status status = OMQ_OK;
    *count = 0;
    *claim = (omq_claim){OMQ_CLAIM_EMPTY, 0, -1};
    if (limit == 0) {
        return OMQ_OUT_OF_RANGE;
    }
    lock(queue);
    claim->result = may_claim(queue, now_ms, &claim->follow);
    if (claim->result == OMQ_CLAIMED) {
        status = take(queue, kind, limit, segments, count, claim);
    } else if (kind != OMQ_CLAIM_FURTHER) {
        queue->buffer->is_dispatched = false;
    }
    claim->generation = queue->generation;
    unlock(queue);
    return status;
}

static bool can_start(omq_assigned_queue *queue) {
    omq_lane_map_state state;
    omq_lane_map_read(queue->lanes, &state);
    return state.can_start;
}

omq_status omq_assigned_queue_claim_lanes(omq_assigned_queue *queue, omq_claim_kind kind,
                                          int64_t now_ms, size_t limit, int64_t *offsets,
                                          uint64_t *tokens, size_t *count, omq_claim *claim) {
    omq_status status = OMQ_OK;
    *count = 0;
    *claim = (omq_claim){OMQ_CLAIM_EMPTY, 0, -1};
    lock(queue);
    claim->result = may_claim(queue, now_ms, &claim->follow);
    if (claim->result == OMQ_CLAIMED) {
        status = omq_lane_map_take(queue->lanes, offsets, tokens, limit, count);
        if (*count > 0) {
            begin_claim(queue);
            bool begins = kind == OMQ_CLAIM_SHARED && can_start(queue);
            claim->follow |= begins ? begin_dispatch(queue) : 0;
        } else {
            claim->result = OMQ_CLAIM_EMPTY;
        }
    }
    claim->generation = queue->generation;
    unlock(queue);
    return status;
}

void omq_assigned_queue_enter(omq_assigned_queue *queue, int64_t now_ms, bool alone,
                              omq_claim *claim) {
    lock(queue);
    *claim = (omq_claim){OMQ_CLAIMED, 0, queue->generation};
    if (queue->stage != OMQ_STAGE_ACTIVE) {
        claim->result = OMQ_CLAIM_REVOKED;
    } else if (!is_valid(queue, now_ms)) {
        claim->result = OMQ_CLAIM_LEASE_LOST;
    } else if (alone ? queue->running > 0 : queue->pauses != 0) {
        claim->result = OMQ_CLAIM_PAUSED;
    } else {
        queue->running++;
    }
    unlock(queue);
}

/* ---- settle ---- */

static uint32_t leave(omq_assigned_queue *queue) {
    /* Never below 0: a run may also be abandoned before it has claimed anything. */
    queue->running -= queue->running > 0;
    return queue->stage == OMQ_STAGE_DRAINING && queue->running == 0 ? OMQ_DRAINED : 0;
}

static uint32_t told_room(omq_assigned_queue *queue) {
    if (queue->room_below == 0 || omq_locked_count(queue->buffer) >= queue->room_below) {
        return 0;
    }
    queue->room_below = 0;
    return OMQ_HAS_ROOM;
}

/* Return OMQ_COUNTS if a claim's generation still stands under a valid lease. Generations are
 * compared, not leases: a renewal replaces the lease, and only a lost one ends the generation. */
static uint32_t judge(omq_assigned_queue *queue, int64_t generation, int64_t now_ms) {
    if (generation != queue->generation || !queue->has_lease) {
        return 0;
    }
    if (!is_valid(queue, now_ms)) {
        drop_lease(queue);
        return OMQ_LEASE_OVER | OMQ_WHILE_CLAIMED;
    }
    return OMQ_COUNTS;
}

static inline void commit(omq_assigned_queue *queue, uint32_t *slot) {
    queue->done = omq_locked_done_after(queue->buffer, omq_locked_commit(queue->buffer, slot));
}

/* Commit what is finished. The process queue commits all that is consuming, so the held part is put
 * back for that moment. It is the smallest of what is pending: the take gets just it again. */
static omq_status commit_finished(omq_assigned_queue *queue, const omq_settlement *settled,
                                  uint32_t *slot) {
    size_t moved;
    omq_status status = OMQ_OK;
    if (settled->again_from != INT64_MAX) {
        status = omq_locked_make_again_from(queue->buffer, settled->again_from, &moved);
    }
    if (status == OMQ_OK && settled->held > 0 && settled->commits) {
        status = omq_locked_make_again_from(queue->buffer, settled->held_from, &moved);
    }
    if (status != OMQ_OK || !settled->commits) {
        return status;
    }
    commit(queue, slot);
    return omq_locked_take_unnamed(queue->buffer, settled->held);
}

omq_status omq_assigned_queue_settle(omq_assigned_queue *queue, const omq_settlement *settlement,
                                     uint32_t *slot, uint32_t *follow) {
    omq_status status = OMQ_OK;
    *slot = OMQ_NO_SLOT;
    lock(queue);
    *follow = judge(queue, settlement->generation, settlement->now_ms);
    if (*follow & OMQ_COUNTS) {
        status = commit_finished(queue, settlement, slot);
    } else {
        queue->buffer->is_dispatched = false; /* this run ends here and submits no other */
    }
    *follow |= leave(queue);
    *follow |= told_room(queue);
    unlock(queue);
    return status;
}

omq_status omq_assigned_queue_roll_back(omq_assigned_queue *queue, int64_t generation,
                                        int64_t before, uint32_t *slot, uint32_t *follow) {
    omq_status status = OMQ_OK;
    size_t moved;
    *slot = OMQ_NO_SLOT;
    *follow = 0;
    lock(queue);
    if (generation == queue->generation && queue->has_lease) {
        int64_t from = before < 0 ? INT64_MIN : before;
        *follow = OMQ_COUNTS;
        status = omq_locked_make_again_from(queue->buffer, from, &moved);
        if (status == OMQ_OK && before >= 0) {
            commit(queue, slot);
        }
    } else {
        queue->buffer->is_dispatched = false;
    }
    *follow |= leave(queue);
    unlock(queue);
    return status;
}

/* End the flights of a claim by key: those of done messages, or, in another generation, all. */
static omq_status end_flights(omq_assigned_queue *queue, const int64_t *offsets, size_t count,
                              size_t done, bool counts) {
    size_t ended;
    if (counts) {
        return omq_lane_map_done_columns(queue->lanes, offsets, done, &ended);
    }
    /* The lanes were reset while this call ran. They remember it as an old flight, and start no
     * message of its keys before it is reported as ended. */
    for (size_t i = 0; i < count; i++) {
        (void)omq_lane_map_failed(queue->lanes, offsets[i]);
    }
    return OMQ_OK;
}

omq_status omq_assigned_queue_finish(omq_assigned_queue *queue, int64_t generation,
                                     int64_t now_ms, const int64_t *offsets, size_t count,
                                     size_t done, bool leaves, uint32_t *follow) {
    omq_status status = OMQ_OK;
    lock(queue);
    if (now_ms == INT64_MIN) {
        *follow = generation == queue->generation ? OMQ_COUNTS : 0;
    } else {
        *follow = judge(queue, generation, now_ms);
    }
    bool counts = *follow & OMQ_COUNTS;
    if (queue->lanes != NULL) {
        status = end_flights(queue, offsets, count, done, counts);
    }
    if (counts && status == OMQ_OK) {
        int64_t watermark;
        status = omq_locked_remove(queue->buffer, offsets, done, &watermark);
        int64_t after = omq_locked_done_after(queue->buffer, watermark);
        queue->done = after > queue->done ? after : queue->done;
    }
    *follow |= leaves ? leave(queue) : 0;
    *follow |= told_room(queue);
    bool is_idle = queue->lanes != NULL ? queue->running == 0 : queue->buffer->pending.count == 0;
    *follow |= is_idle ? OMQ_IDLE : 0;
    unlock(queue);
    return status;
}

omq_status omq_assigned_queue_requeue(omq_assigned_queue *queue, int64_t generation,
                                      const int64_t *offsets, size_t count, uint32_t *follow) {
    omq_status status = OMQ_OK;
    size_t moved;
    *follow = 0;
    lock(queue);
    if (is_in(queue, generation)) {
        status = omq_locked_make_again(queue->buffer, offsets, count, &moved);
        *follow = begin_dispatch(queue);
    }
    unlock(queue);
    return status;
}

uint32_t omq_assigned_queue_abandon(omq_assigned_queue *queue) {
    uint32_t follow = 0;
    lock(queue);
    if (queue->has_lease) {
        drop_lease(queue);
        follow = OMQ_LEASE_OVER;
    }
    queue->buffer->is_dispatched = false;
    follow |= leave(queue);
    unlock(queue);
    return follow;
}

uint32_t omq_assigned_queue_leave(omq_assigned_queue *queue) {
    lock(queue);
    uint32_t follow = leave(queue);
    unlock(queue);
    return follow;
}

uint32_t omq_assigned_queue_recount(omq_assigned_queue *queue, size_t running) {
    lock(queue);
    bool is_over = queue->stage == OMQ_STAGE_DRAINING && queue->running > 0 && running == 0;
    uint32_t follow = is_over ? OMQ_DRAINED : 0;
    queue->running = running;
    if (running == 0) { /* else its turn comes when that claim has ended */
        queue->buffer->is_dispatched = false;
        follow |= begin_dispatch(queue);
    }
    unlock(queue);
    return follow;
}

uint32_t omq_assigned_queue_end_run(omq_assigned_queue *queue) {
    lock(queue);
    bool has_more = queue->buffer->pending.count > 0;
    queue->buffer->is_dispatched = has_more;
    unlock(queue);
    return has_more ? OMQ_DISPATCH : OMQ_IDLE;
}

uint32_t omq_assigned_queue_begin_run(omq_assigned_queue *queue, bool only_startable) {
    lock(queue);
    bool may_begin = !only_startable || queue->lanes == NULL || can_start(queue);
    uint32_t follow = may_begin ? begin_dispatch(queue) : 0;
    unlock(queue);
    return follow;
}

/* ---- answers ---- */

static omq_status buffer_arrival(omq_assigned_queue *queue, const omq_arrival *arrival,
                                 uint32_t *slot) {
    omq_status status = OMQ_OK;
    if (queue->lanes != NULL) {
        size_t ignored;
        size_t added;
        status = omq_lane_map_add_columns(queue->lanes, arrival->offsets, arrival->tokens,
                                          arrival->keys, arrival->count, &ignored, &added);
    }
    return status == OMQ_OK ? omq_locked_put(queue->buffer, arrival, slot) : status;
}

omq_status omq_assigned_queue_accept(omq_assigned_queue *queue, int64_t generation,
                                     int64_t next_pull, omq_arrival *arrival, uint32_t *slot,
                                     uint32_t *follow) {
    omq_status status = OMQ_OK;
    *slot = OMQ_NO_SLOT;
    *follow = 0;
    if (next_pull < 0 || !omq_arrival_measure(arrival)) {
        return OMQ_OUT_OF_RANGE;
    }
    lock(queue);
    if (is_in(queue, generation)) {
        if (arrival->count > 0) {
            status = buffer_arrival(queue, arrival, slot);
        }
        if (status == OMQ_OK) { /* else the same answer is asked for again */
            queue->buffer->next_pull = next_pull;
            if (arrival->count > 0) {
                omq_locked_note_read(queue->buffer, arrival->last);
            }
            *follow = OMQ_COUNTS | (arrival->count > 0 ? begin_dispatch(queue) : 0);
        }
    }
    unlock(queue);
    return status;
}

void omq_assigned_queue_skip(omq_assigned_queue *queue, int64_t generation, int64_t next_pull) {
    lock(queue);
    if (is_in(queue, generation) && next_pull >= 0) {
        queue->buffer->next_pull = next_pull;
        /* With nothing buffered the skipped offsets are done. Without this, a queue whose tail is
         * filtered out would show a lag that never shrinks. */
        if (omq_locked_count(queue->buffer) == 0) {
            queue->done = next_pull > queue->done ? next_pull : queue->done;
            omq_locked_reset(queue->buffer, queue->done); /* empty: this only raises the floor */
        }
    }
    unlock(queue);
}

bool omq_assigned_queue_wait_for_room(omq_assigned_queue *queue, size_t below) {
    lock(queue);
    bool waits = omq_locked_count(queue->buffer) >= below;
    queue->room_below = waits ? below : queue->room_below;
    unlock(queue);
    return waits;
}

/* ---- leases, offsets ---- */

bool omq_assigned_queue_renew(omq_assigned_queue *queue, int64_t generation, omq_lease lease) {
    lock(queue);
    bool renews = generation == queue->generation && queue->has_lease &&
                  queue->lease.epoch == lease.epoch;
    /* Answers may overtake each other; an older grant must not shorten the lease. */
    if (renews && lease.deadline_ms > queue->lease.deadline_ms) {
        queue->lease = lease;
    }
    unlock(queue);
    return renews;
}

uint32_t omq_assigned_queue_lose(omq_assigned_queue *queue, int64_t generation) {
    lock(queue);
    bool loses = queue->has_lease && queue->stage != OMQ_STAGE_GONE &&
                 (generation < 0 || generation == queue->generation);
    if (loses) {
        drop_lease(queue);
    }
    unlock(queue);
    return loses ? OMQ_LEASE_OVER : 0;
}

bool omq_assigned_queue_regain(omq_assigned_queue *queue, omq_lease lease, int64_t start) {
    lock(queue);
    /* While a claim runs, the same message could run twice at once. */
    bool is_locked = queue->has_lease && queue->lease.epoch > 0;
    bool regains = queue->stage == OMQ_STAGE_ACTIVE && !is_locked && queue->running == 0 &&
                   restart(queue, start);
    if (regains) {
        queue->lease = lease;
        queue->has_lease = true;
        queue->committed = start;
    }
    unlock(queue);
    return regains;
}

bool omq_assigned_queue_rest(omq_assigned_queue *queue, omq_lease lease, int64_t epoch) {
    lock(queue);
    bool rests = queue->has_lease && queue->lease.epoch == epoch &&
                 queue->done == queue->committed && queue->running == 0 &&
                 omq_locked_count(queue->buffer) == 0;
    queue->lease = rests ? lease : queue->lease;
    unlock(queue);
    return rests;
}

bool omq_assigned_queue_reposition(omq_assigned_queue *queue, int64_t generation, int64_t offset) {
    lock(queue);
    bool moves = is_in(queue, generation) && queue->running == 0 && restart(queue, offset);
    unlock(queue);
    return moves;
}

bool omq_assigned_queue_uncommitted(omq_assigned_queue *queue, int64_t now_ms, int64_t *offset) {
    lock(queue);
    /* What is done is of a life that is over, until the queue is moved to its new one. */
    *offset = queue->life_start < 0 ? queue->done : queue->life_start;
    bool has_some = is_valid(queue, now_ms) && *offset != queue->committed;
    unlock(queue);
    return has_some;
}

void omq_assigned_queue_committed(omq_assigned_queue *queue, int64_t offset, int64_t epoch) {
    lock(queue);
    if (queue->has_lease && queue->lease.epoch == epoch) {
        queue->committed = offset;
    }
    unlock(queue);
}

void omq_assigned_queue_set_done(omq_assigned_queue *queue, int64_t generation, int64_t offset) {
    lock(queue);
    queue->done = generation == queue->generation ? offset : queue->done;
    unlock(queue);
}

bool omq_assigned_queue_begin_life(omq_assigned_queue *queue, int64_t offset) {
    lock(queue);
    if (queue->has_lease && queue->life_start < 0) {
        queue->life_start = offset;
    }
    bool must_move = queue->has_lease && queue->stage == OMQ_STAGE_ACTIVE;
    unlock(queue);
    return must_move;
}

/* ---- pauses, revocation ---- */

void omq_assigned_queue_pause(omq_assigned_queue *queue, uint32_t bits, bool ends_run) {
    lock(queue);
    queue->pauses |= bits;
    end_claim(queue);
    /* In one step: were the flag cleared after the pause, a resume in between would find it set and
     * submit nothing, and the queue would stand still for ever. */
    queue->buffer->is_dispatched = queue->buffer->is_dispatched && !ends_run;
    unlock(queue);
}

uint32_t omq_assigned_queue_resume(omq_assigned_queue *queue, uint32_t bits) {
    lock(queue);
    queue->pauses &= ~bits;
    uint32_t follow = begin_dispatch(queue);
    unlock(queue);
    return follow;
}

void omq_assigned_queue_end_claim(omq_assigned_queue *queue) { end_claim(queue); }

bool omq_assigned_queue_is_ending(const omq_assigned_queue *queue) {
    return atomic_load_explicit(&queue->is_ending, memory_order_relaxed);
}

void omq_assigned_queue_isolate(omq_assigned_queue *queue, int64_t until) {
    lock(queue);
    queue->isolate_until = until;
    unlock(queue);
}

bool omq_assigned_queue_revoke(omq_assigned_queue *queue) {
    lock(queue);
    if (queue->stage == OMQ_STAGE_ACTIVE) {
        queue->stage = OMQ_STAGE_DRAINING;
        end_claim(queue);
        omq_locked_forbid(queue->buffer);
    }
    bool is_drained = queue->running == 0;
    unlock(queue);
    return is_drained;
}

void omq_assigned_queue_discard(omq_assigned_queue *queue) {
    lock(queue);
    queue->stage = OMQ_STAGE_GONE;
    drop_lease(queue);
    unlock(queue);
}

/* ---- state ---- */

bool omq_assigned_queue_oldest_stored_ms(omq_assigned_queue *queue, int64_t *stored_ms) {
    lock(queue);
    bool is_found = omq_locked_oldest_stored_ms(queue->buffer, stored_ms);
    if (!is_found) {
        *stored_ms = queue->oldest_lost_ms;
        is_found = queue->oldest_lost_ms >= 0;
    }
    unlock(queue);
    return is_found;
}

omq_read_message omq_assigned_queue_known_read(omq_assigned_queue *queue, bool is_first) {
    lock(queue);
    omq_read_message known = is_first ? queue->buffer->first_read : queue->buffer->last_read;
    known.offset = queue->life_start < 0 ? known.offset : -1;
    unlock(queue);
    return known;
}

void omq_assigned_queue_read(omq_assigned_queue *queue, omq_assigned_queue_state *state) {
    lock(queue);
    *state = (omq_assigned_queue_state){
        .stage = queue->stage,
        .has_lease = queue->has_lease,
        .is_ending = omq_assigned_queue_is_ending(queue),
        .pauses = queue->pauses,
        .running = queue->running,
        .generation = queue->generation,
        .done = queue->done,
        .committed = queue->committed,
        .life_start = queue->life_start,
        .isolate_until = queue->isolate_until,
        .position = omq_locked_position(queue->buffer),
    };
    unlock(queue);
}

static const char *check(const omq_assigned_queue *queue) {
    REQUIRE(queue->stage != OMQ_STAGE_GONE || !queue->has_lease, "a queue that is gone has a lease");
    REQUIRE(queue->stage == OMQ_STAGE_ACTIVE || queue->buffer->permit == 0,
            "a queue that is revoked may be filled");
    REQUIRE(queue->done >= 0 && queue->committed >= 0 && queue->generation >= 0,
            "an offset or the generation is negative");
    return NULL;
}

const char *omq_assigned_queue_check(omq_assigned_queue *queue) {
    lock(queue);
    const char *broken = check(queue);
    unlock(queue);
    return broken;
}

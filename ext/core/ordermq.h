/* The C core of ordermq: offset map, process queue, lane map, lock table, message codec, id window
 * and message writer. The Python contract with the same semantics is ordermq/core/contract/.
 *
 * Rules that hold for every function:
 * - Offsets are queue offsets, 0 .. INT64_MAX - 1. Times are int64 milliseconds of whatever
 *   clock the caller uses throughout. Sizes are bytes.
 * - The core stores uint64 tokens, never objects. It makes no callback and reads no clock. Only
 *   the pull engine, where there is one, is woken by a queue with room, under its mutex
 *   (queue_filling.h).
 * - Ownership: an object from omq_<type>_new belongs to the caller, who frees it with
 *   omq_<type>_free. Arrays belong to the caller, both those that are read and those that are
 *   written. No function keeps a pointer that it was given, unless its comment says so.
 * - Threads: the heading of each section says who may call. "Any thread" means that one mutex
 *   per object makes each call atomic; only omq_<type>_free needs an object nobody else uses.
 * - Results: a function that can fail returns an omq_status. Its comment lists every status
 *   other than OMQ_OK. Results are written through the last pointers.
 * - Costs: n is the number of entries that the object holds.
 */
#ifndef ORDERMQ_H
#define ORDERMQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OMQ_REQUEST_GAPS_MOST = 4 }; /* of a request template */

/* <declarations>: cffi reads from here to the closing mark, and ext/c_core.py makes the
 * declarations for Cython of the same text. */

typedef enum {
    OMQ_OK = 0,
    OMQ_NO_MEMORY = 1,    /* what was done stays done and consistent; the call may be repeated */
    OMQ_OUT_OF_RANGE = 2, /* nothing was done; the same for the next two */
    OMQ_WRONG_SHAPE = 3,  /* the object holds batches (objects), the call is for columns, or v.v. */
    OMQ_DUPLICATE = 4,
    OMQ_MALFORMED = 5,    /* the omq_message_fault says where and why */
    OMQ_UNKNOWN_ID = 6    /* not an id of this lock table, or a forgotten one; nothing was done */
} omq_status;

/* ==== offset map: int64 offset -> uint64 token, ascending. One thread at a time. ==== */

typedef struct omq_offset_map omq_offset_map;

typedef struct {
    int64_t offset;
    uint64_t token;
} omq_entry;

/* Make an empty map. NULL without memory. */
omq_offset_map *omq_offset_map_new(void);

/* Free a map; NULL is allowed. O(n). */
void omq_offset_map_free(omq_offset_map *map);

/* Store a token. Sets *is_new if the offset was absent; otherwise its token is replaced.
 * NO_MEMORY (nothing stored), OUT_OF_RANGE. O(1) past the last offset, else O(log n). */
omq_status omq_offset_map_put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new);

/* Write the token of an offset. Returns false if the offset is absent. O(log n). */
bool omq_offset_map_get(const omq_offset_map *map, int64_t offset, uint64_t *token);

/* Delete an entry. Returns false if the offset is absent. O(log n). */
bool omq_offset_map_remove(omq_offset_map *map, int64_t offset);

/* Remove the smallest entries, at most `limit`, and write them to `entries`, which has room for
 * `limit`. Returns how many. O(limit). */
size_t omq_offset_map_pop_first(omq_offset_map *map, omq_entry *entries, size_t limit);

/* Write the smallest or the greatest entry. Returns false if the map is empty. O(1). */
bool omq_offset_map_first(const omq_offset_map *map, omq_entry *entry);
bool omq_offset_map_last(const omq_offset_map *map, omq_entry *entry);

/* Write the greatest entry <= offset, or the smallest >= offset. Returns false if there is none.
 * O(log n). */
bool omq_offset_map_floor(const omq_offset_map *map, int64_t offset, omq_entry *entry);
bool omq_offset_map_ceiling(const omq_offset_map *map, int64_t offset, omq_entry *entry);

/* Store one token per offset, and write how many offsets were absent. Each key costs what put
 * costs, but the memory that several keys need is loaded at the same time.
 * OUT_OF_RANGE (nothing stored), NO_MEMORY (a prefix is stored). */
omq_status omq_offset_map_put_columns(omq_offset_map *map, const int64_t *offsets,
                                      const uint64_t *tokens, size_t count, size_t *added);

/* Delete the entries of these offsets. Returns how many were present. */
size_t omq_offset_map_remove_columns(omq_offset_map *map, const int64_t *offsets, size_t count);

/* Copy the offsets >= start, ascending, at most `capacity`; also their tokens unless `tokens` is
 * NULL. Returns how many. O(log n + capacity). */
size_t omq_offset_map_read(const omq_offset_map *map, int64_t start, int64_t *offsets,
                           uint64_t *tokens, size_t capacity);

/* Return the number of entries. O(1). */
size_t omq_offset_map_count(const omq_offset_map *map);

/* Delete everything. O(n). */
void omq_offset_map_clear(omq_offset_map *map);

/* For tests: return NULL, or the first broken invariant (static text). O(n). */
const char *omq_offset_map_check(const omq_offset_map *map);

/* ==== process queue: the buffered messages of one assigned queue. Any thread. ==== */

typedef struct omq_process_queue omq_process_queue;

/* Neighbouring messages of one batch: messages first .. first + count - 1 of the slot. */
typedef struct {
    uint32_t slot;
    uint32_t first;
    uint32_t count;
} omq_segment;

/* The state of a queue at one moment. An offset is -1 where there is none. */
typedef struct {
    size_t pending;      /* messages not taken yet */
    size_t consuming;    /* messages taken and neither committed nor made pending again */
    uint64_t size_bytes; /* message bodies of both */
    int64_t first_pending;
    int64_t last_pending;
    int64_t first_consuming;
    int64_t last_consuming;
    int64_t max_offset; /* greatest buffered since the last clear or reset */
    int64_t floor;      /* puts below this offset are ignored */
    int64_t next_pull;  /* the offset to pull next, as last noted; 0 at first */
    int64_t queue_end;  /* of the queue at its broker, as last noted; 0 at first */
    uint64_t duplicates_ignored;
    bool is_dispatched; /* a consume request for this queue is submitted or running */
} omq_process_queue_state;

/* Make an empty queue. NULL without memory. */
omq_process_queue *omq_process_queue_new(void);

/* Free a queue, which no thread may be using; NULL is allowed. O(n). */
void omq_process_queue_free(omq_process_queue *queue);

/* Buffer `count` messages under the caller's tokens; the arrays are copied. `sizes` (bytes,
 * <= INT32_MAX) may be NULL for zeros. Offsets already buffered, or below the floor, are ignored.
 * Sets *dispatch if the caller must now submit a consume request.
 * NO_MEMORY (a prefix may be buffered), OUT_OF_RANGE, WRONG_SHAPE.
 * O(count) for ascending offsets, else O(count log n). */
omq_status omq_process_queue_put_columns(omq_process_queue *queue, const int64_t *offsets,
                                         const uint64_t *tokens, const uint32_t *sizes,
                                         size_t count, bool *dispatch);

/* Buffer one batch, count < UINT32_MAX; message i is known as (slot, i). The queue chooses the
 * slot and writes it, or UINT32_MAX if it buffered nothing; *slot is written on NO_MEMORY too.
 * The caller keeps slot -> batch until commit or collect hands the slot back. Otherwise as
 * put_columns. */
omq_status omq_process_queue_put_batch(omq_process_queue *queue, const int64_t *offsets,
                                       const uint32_t *sizes, size_t count, uint32_t *slot,
                                       bool *dispatch);

/* Buffer one batch of the offsets first .. first + count - 1, whose sizes sum to `bytes`.
 * `sizes` is kept, not copied: it must stay unchanged until the slot is handed back. Otherwise as
 * put_batch. O(1) past everything buffered before. */
omq_status omq_process_queue_put_run(omq_process_queue *queue, int64_t first,
                                     const uint32_t *sizes, size_t count, uint64_t bytes,
                                     uint32_t *slot, bool *dispatch);

/* Move the smallest pending messages, at most `limit` (>= 1), to consuming. Writes their offsets
 * and tokens, ascending, into arrays with room for `limit`, and how many. If none is pending the
 * dispatch flag is cleared, under the same mutex under which put sets it, so that no wake-up is
 * lost. NO_MEMORY (only if none could be moved), OUT_OF_RANGE, WRONG_SHAPE. O(limit). */
omq_status omq_process_queue_take_columns(omq_process_queue *queue, int64_t *offsets,
                                          uint64_t *tokens, size_t limit, size_t *taken);

/* Take as take_columns does, from a queue of batches. Writes segments, with room for `limit`, and
 * how many segments. */
omq_status omq_process_queue_take_segments(omq_process_queue *queue, omq_segment *segments,
                                           size_t limit, size_t *count);

/* Drop everything consuming. Returns its greatest offset + 1, or -1 if nothing was consuming.
 * Hands back one slot as collect does, or writes UINT32_MAX. O(consuming). */
int64_t omq_process_queue_commit(omq_process_queue *queue, uint32_t *slot);

/* Make every consuming offset >= start (INT64_MIN: all) pending again, and write how many.
 * NO_MEMORY (the greatest ones may be moved). O(moved log n); O(1) if all move and none is
 * pending. */
omq_status omq_process_queue_make_again_from(omq_process_queue *queue, int64_t start,
                                             size_t *moved);

/* Make those of `offsets` that are consuming pending again, and write how many.
 * NO_MEMORY (some may be moved). O(count log n). */
omq_status omq_process_queue_make_again(omq_process_queue *queue, const int64_t *offsets,
                                        size_t count, size_t *moved);

/* Drop these offsets, pending or consuming. Writes the watermark: every offset below it is done;
 * -1 if the queue was empty before the call.
 * NO_MEMORY (a prefix is dropped; the watermark is right). O(count log n). */
omq_status omq_process_queue_remove(omq_process_queue *queue, const int64_t *offsets, size_t count,
                                    int64_t *watermark);

/* Drop everything and forget max_offset. The dispatch flag and the floor stay. O(n). */
void omq_process_queue_clear(omq_process_queue *queue);

/* Clear, and set the floor, 0 .. INT64_MAX. OUT_OF_RANGE. O(n). */
omq_status omq_process_queue_reset(omq_process_queue *queue, int64_t floor);

/* Set the dispatch flag if a message is pending and the flag is clear. Returns whether it was
 * set; then the caller must submit a consume request. O(1). */
bool omq_process_queue_begin_dispatch(omq_process_queue *queue);

/* Clear the dispatch flag. O(1). */
void omq_process_queue_end_dispatch(omq_process_queue *queue);

/* Note the offset to pull next, and the end of the queue at its broker; -1 leaves one as it is. */
void omq_process_queue_advance(omq_process_queue *queue, int64_t next_pull, int64_t queue_end);

/* Hand back one slot that has no buffered message: the caller drops its batch, and a later put
 * may choose the slot again. Returns false, without locking, if there is none. The caller must
 * not put a batch between this call and dropping the old one. O(1). */
bool omq_process_queue_collect(omq_process_queue *queue, uint32_t *slot);

/* Return whether an offset is pending. O(log n). */
bool omq_process_queue_is_pending(omq_process_queue *queue, int64_t offset);

/* Write the state. O(1). */
void omq_process_queue_read(omq_process_queue *queue, omq_process_queue_state *state);

/* For tests: return NULL, or the first broken invariant (static text). O(n). */
const char *omq_process_queue_check(omq_process_queue *queue);

/* ==== lane map: the messages of one queue, in lanes by key. Any thread. ==== */

typedef struct omq_lane_map omq_lane_map;

/* A key, compared byte by byte. bytes NULL: the message has no key. */
typedef struct {
    const uint8_t *bytes;
    size_t size; /* < UINT32_MAX */
} omq_key;

/* A column of keys: key i is sizes[i] bytes from bytes + positions[i] on. A size of UINT32_MAX
 * means that message i has no key. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
    const uint32_t *positions;
    const uint32_t *sizes;
} omq_key_column;

/* The kind of flight that a call ended. */
typedef enum {
    OMQ_FLIGHT_NONE = 0, /* the offset was not in flight; nothing was done */
    OMQ_FLIGHT_OWN = 1,
    OMQ_FLIGHT_OLD = 2 /* taken before a reset, which dropped its message */
} omq_flight;

/* The state of a map at one moment. */
typedef struct {
    size_t messages;  /* delivered and not done */
    size_t in_flight; /* old flights included */
    size_t old_flights;
    size_t ready;     /* lanes whose first message may be taken */
    size_t keys;      /* lanes with a key */
    size_t parked;    /* lanes with a key that is parked */
    int64_t watermark;   /* lowest offset not done, or next_offset */
    int64_t next_offset; /* every offset below it has been delivered */
    uint64_t duplicates_ignored;
    bool is_full; /* next_offset - 1 is max_ahead or more above the watermark */
    bool can_start; /* a lane is ready, and fewer than max_in_flight are in flight */
} omq_lane_map_state;

/* Make an empty map. max_in_flight: messages, 1 .. INT32_MAX; max_ahead: offsets, >= 1; the
 * caller has checked both. has_barriers: a message without a key is a barrier, else all of them
 * share one lane. seed: a random secret, for the hash of keys. NULL without memory. */
omq_lane_map *omq_lane_map_new(uint32_t max_in_flight, int64_t max_ahead, bool has_barriers,
                               uint64_t seed);

/* Free a map, which no thread may be using; NULL is allowed. O(keys). */
void omq_lane_map_free(omq_lane_map *map);

/* Deliver messages known by their offsets, which ascend strictly. Keys are copied. Offsets below
 * next_offset are ignored: writes how many (they come first), and how many were added.
 * NO_MEMORY (a prefix was added), OUT_OF_RANGE, WRONG_SHAPE. O(count). */
omq_status omq_lane_map_add(omq_lane_map *map, const int64_t *offsets, const omq_key *keys,
                            size_t count, size_t *ignored, size_t *added);

/* Deliver messages known by tokens. Otherwise as add; OUT_OF_RANGE also if a key reaches past
 * the end of its bytes. */
omq_status omq_lane_map_add_columns(omq_lane_map *map, const int64_t *offsets,
                                    const uint64_t *tokens, const omq_key_column *keys,
                                    size_t count, size_t *ignored, size_t *added);

/* Put the lowest ready messages in flight, at most `limit` (>= 1). Writes their offsets,
 * ascending, their tokens (NULL for a map of objects), and how many.
 * OUT_OF_RANGE, WRONG_SHAPE. O(limit). */
omq_status omq_lane_map_take(omq_lane_map *map, int64_t *offsets, uint64_t *tokens, size_t limit,
                             size_t *taken);

/* Put the first messages of one parked key in flight, to be stored elsewhere. Otherwise as
 * take. */
omq_status omq_lane_map_divert(omq_lane_map *map, const omq_key *key, int64_t *offsets,
                               uint64_t *tokens, size_t limit, size_t *taken);

/* End the flight of an offset for good. If it has an old flight, that one ends. Returns which
 * kind ended. O(log n); O(1) if the offsets have no gaps. */
omq_flight omq_lane_map_done(omq_lane_map *map, int64_t offset);

/* End the flights of a column of offsets, and write how many ended. WRONG_SHAPE.
 * O(count log n). */
omq_status omq_lane_map_done_columns(omq_lane_map *map, const int64_t *offsets, size_t count,
                                     size_t *ended);

/* End the flight of an offset; its message waits in its lane again. Otherwise as done. If several
 * messages of the key were diverted, also O(those that failed before). */
omq_flight omq_lane_map_failed(omq_lane_map *map, int64_t offset);

/* Hold back the messages of a key. Sets *changed if it was not parked before.
 * OUT_OF_RANGE (no key), NO_MEMORY. O(1). */
omq_status omq_lane_map_park(omq_lane_map *map, const omq_key *key, bool *changed);

/* Release the messages of a parked key, or ask whether it is parked. Both return whether it was.
 * O(1). */
bool omq_lane_map_unpark(omq_lane_map *map, const omq_key *key);
bool omq_lane_map_is_parked(omq_lane_map *map, const omq_key *key);

/* Drop every message and set next_offset, 0 .. INT64_MAX. Flights stay, as old ones: their keys
 * and offsets are not taken again before they end.
 * NO_MEMORY, OUT_OF_RANGE: nothing was done. O(n). */
omq_status omq_lane_map_reset(omq_lane_map *map, int64_t next_offset);

/* Write the state. O(1). */
void omq_lane_map_read(omq_lane_map *map, omq_lane_map_state *state);

/* For tests: return NULL, or the first broken invariant (static text). O(n). */
const char *omq_lane_map_check(omq_lane_map *map);

/* ==== assigned queue: what may be done with a process queue, and when. Any thread. ==== */

/* Everything that may race about a queue which a member holds is decided here, under the mutex of
 * its process queue: its stage, the lease, pauses, running claims, what is done. Nothing is called
 * back: each call returns, as flags, what its caller must do once it has returned. */
typedef struct omq_assigned_queue omq_assigned_queue;

typedef enum {
    OMQ_STAGE_ACTIVE = 0,
    OMQ_STAGE_DRAINING = 1, /* no new claim, no new answer; claims may still be settled */
    OMQ_STAGE_GONE = 2      /* for good */
} omq_stage;

/* What follows from a call. */
typedef enum {
    OMQ_COUNTS = 1,      /* what was reported is taken; without it, it is void */
    OMQ_LEASE_OVER = 2,  /* the lease was given up by this call, the buffer dropped */
    OMQ_DRAINED = 4,     /* the queue is draining, and its last claim has ended */
    OMQ_HAS_ROOM = 8,    /* fewer messages are buffered than wait_for_room has named */
    OMQ_DISPATCH = 16,   /* submit a consume request: the dispatch flag was set */
    OMQ_IDLE = 32,       /* nothing is left to claim, for now */
    OMQ_WHILE_CLAIMED = 64 /* with OMQ_LEASE_OVER: found when a claim was settled */
} omq_follow;

typedef enum {
    OMQ_CLAIMED = 0,
    OMQ_CLAIM_EMPTY = 1,      /* nothing is pending, or no lane may run */
    OMQ_CLAIM_REVOKED = 2,    /* draining or gone */
    OMQ_CLAIM_PAUSED = 3,
    OMQ_CLAIM_LEASE_LOST = 4
} omq_claim_result;

/* How a claim treats the dispatch flag. Each clears it where it claims nothing, but the last. */
typedef enum {
    OMQ_CLAIM_ALONE = 0,   /* the flag stays: the queue has one claim at a time */
    OMQ_CLAIM_SHARED = 1,  /* the flag is answered: OMQ_DISPATCH if more may be claimed beside */
    OMQ_CLAIM_FURTHER = 2  /* the flag is of a request that waits: left as it is */
} omq_claim_kind;

typedef struct {
    int64_t epoch;
    int64_t deadline_ms; /* valid before it */
} omq_lease;

typedef struct {
    omq_claim_result result;
    uint32_t follow;    /* of omq_follow */
    int64_t generation; /* to settle it by; in another one the claim is void */
} omq_claim;

/* A whole claim that is settled in order: done up to `again_from`, and of that the part from
 * `held_from` on done without being committed. INT64_MAX: there is no such part. */
typedef struct {
    int64_t generation;
    int64_t now_ms;
    int64_t again_from;
    int64_t held_from;
    size_t held;  /* messages from held_from on that are done */
    bool commits; /* some are done and not held */
} omq_settlement;

/* A message that was read: what it is known again by at its broker. */
typedef struct {
    int64_t offset; /* in its queue; -1: none was read */
    int64_t stored_ms;
    int64_t physical_offset; /* in its broker's log */
    int64_t born_ms;
} omq_read_message;

/* Messages to buffer, ascending: as put_batch, or as put_run where `offsets` is NULL. */
typedef struct {
    const int64_t *offsets;
    int64_t first;
    const uint32_t *sizes;
    size_t count;
    uint64_t bytes;             /* sum of the sizes, where `offsets` is NULL */
    const uint64_t *tokens;     /* for the lanes; NULL where the queue has none */
    const omq_key_column *keys; /* likewise */
    omq_read_message last;      /* of the messages */
} omq_arrival;

/* The state at one moment. */
typedef struct {
    omq_stage stage;
    bool has_lease;
    bool is_ending;        /* the running claim should begin no further batch */
    uint32_t pauses;       /* bits of the caller's */
    size_t running;        /* claims not settled */
    int64_t generation;    /* grows whenever what is buffered or on its way becomes void */
    int64_t done;          /* the offset to commit */
    int64_t committed;     /* as the broker has acknowledged it */
    int64_t life_start;    /* of a new life of the queue, until it is moved there; -1: none */
    int64_t isolate_until; /* -1: not isolating */
    int64_t position;      /* lowest pending offset, or where the next pull begins */
} omq_assigned_queue_state;

/* Make the state of a queue that was just assigned, over an empty process queue and, to claim by
 * key, a lane map, else NULL. Both are reset to `start`, are kept, and outlive it.
 * counts_running: a revocation and a restart wait for running claims. NULL without memory. */
omq_assigned_queue *omq_assigned_queue_new(omq_process_queue *buffer, omq_lane_map *lanes,
                                           omq_lease lease, int64_t start, bool counts_running);
void omq_assigned_queue_free(omq_assigned_queue *queue);

/* Claim the lowest pending messages, at most `limit` (>= 1), or one while a failed one is isolated.
 * Writes segments as take_segments does. Statuses of take_segments. O(limit). */
omq_status omq_assigned_queue_claim(omq_assigned_queue *queue, omq_claim_kind kind, int64_t now_ms,
                                    size_t limit, omq_segment *segments, size_t *count,
                                    omq_claim *claim);

/* Claim the lowest messages whose lanes are ready, at most `limit`. Writes offsets and tokens.
 * The flag is never cleared: who serves the request has done so. SHARED: it is set, with
 * OMQ_DISPATCH, if another lane may start beside. Statuses of omq_lane_map_take. */
omq_status omq_assigned_queue_claim_lanes(omq_assigned_queue *queue, omq_claim_kind kind,
                                          int64_t now_ms, size_t limit, int64_t *offsets,
                                          uint64_t *tokens, size_t *count, omq_claim *claim);

/* Settle a claim whose messages are finished in order. Without OMQ_COUNTS the lease it began under
 * is over; then the flag is cleared, otherwise it stays. Hands back a slot as commit does.
 * NO_MEMORY: some may be pending again; the claim has ended. */
omq_status omq_assigned_queue_settle(omq_assigned_queue *queue, const omq_settlement *settlement,
                                     uint32_t *slot, uint32_t *follow);

/* End a claim: whatever is not committed becomes pending again, but what lies below `before`, which
 * is done (-1: nothing is). Without OMQ_COUNTS as settle. NO_MEMORY: as settle. */
omq_status omq_assigned_queue_roll_back(omq_assigned_queue *queue, int64_t generation,
                                        int64_t before, uint32_t *slot, uint32_t *follow);

/* Settle a claim by its offsets, in any order: the first `done` of `count` are done, the others stay
 * out. now_ms: the lease must be valid then; INT64_MIN: that is not looked at. leaves: the claim
 * ends. By key the others stay in flight, or end theirs without OMQ_COUNTS.
 * NO_MEMORY: a part may be done. */
omq_status omq_assigned_queue_finish(omq_assigned_queue *queue, int64_t generation,
                                     int64_t now_ms, const int64_t *offsets, size_t count,
                                     size_t done, bool leaves, uint32_t *follow);

/* Make offsets of a settled claim pending again: OMQ_DISPATCH, or nothing. */
omq_status omq_assigned_queue_requeue(omq_assigned_queue *queue, int64_t generation,
                                      const int64_t *offsets, size_t count, uint32_t *follow);

/* End a run that an error broke: give the lease up, clear the flag, end its claim. */
uint32_t omq_assigned_queue_abandon(omq_assigned_queue *queue);

/* Begin a claim on messages that are not taken here. alone: only while none runs, paused or not;
 * else beside others, while not paused. CLAIMED, or a reason. */
void omq_assigned_queue_enter(omq_assigned_queue *queue, int64_t now_ms, bool alone,
                              omq_claim *claim);

/* End a claim of which nothing is to be settled. */
uint32_t omq_assigned_queue_leave(omq_assigned_queue *queue);

/* Correct the number of running claims to `running`, and let the flag say whether the queue is due:
 * OMQ_DRAINED, OMQ_DISPATCH. */
uint32_t omq_assigned_queue_recount(omq_assigned_queue *queue, size_t running);

/* End a run: clear the flag, unless more is pending. OMQ_DISPATCH or OMQ_IDLE. */
uint32_t omq_assigned_queue_end_run(omq_assigned_queue *queue);

/* Set the flag for a queue that is active, not paused and due: OMQ_DISPATCH, or nothing. By key,
 * with can_start, only if a lane may start now. */
uint32_t omq_assigned_queue_begin_run(omq_assigned_queue *queue, bool only_startable);

/* Buffer an answer that was asked for in `generation`, and note where the next pull begins.
 * OMQ_COUNTS: it was buffered, and OMQ_DISPATCH. Writes a slot as put_batch does.
 * Statuses of put_batch and of omq_lane_map_add_columns. */
omq_status omq_assigned_queue_accept(omq_assigned_queue *queue, int64_t generation,
                                     int64_t next_pull, omq_arrival *arrival, uint32_t *slot,
                                     uint32_t *follow);

/* Note that no message lies before next_pull. */
void omq_assigned_queue_skip(omq_assigned_queue *queue, int64_t generation, int64_t next_pull);

/* Ask for OMQ_HAS_ROOM, once fewer messages than `below` are buffered. False: that is so now. */
bool omq_assigned_queue_wait_for_room(omq_assigned_queue *queue, size_t below);

/* Extend the lease by a newer grant. False: in another generation, without a lease, or by another
 * epoch, and nothing was changed. */
bool omq_assigned_queue_renew(omq_assigned_queue *queue, int64_t generation, omq_lease lease);

/* Give the lease up and drop the buffer; generation -1: in any. OMQ_LEASE_OVER, or nothing. */
uint32_t omq_assigned_queue_lose(omq_assigned_queue *queue, int64_t generation);

/* Begin anew under a new lease, from `start`. False: it has one of a lock (of an epoch above 0), is
 * revoked, or a claim runs. */
bool omq_assigned_queue_regain(omq_assigned_queue *queue, omq_lease lease, int64_t start);

/* Hold the queue under another lease from here on. False: the present one is not of this epoch, or
 * of its work not all is done and committed. */
bool omq_assigned_queue_rest(omq_assigned_queue *queue, omq_lease lease, int64_t epoch);

/* Go on from another offset, in this generation alone. False: a claim runs, or it is revoked. */
bool omq_assigned_queue_reposition(omq_assigned_queue *queue, int64_t generation, int64_t offset);

/* Write the offset to commit. False: there is none, or no valid lease. */
bool omq_assigned_queue_uncommitted(omq_assigned_queue *queue, int64_t now_ms, int64_t *offset);

/* Note what the broker acknowledged under a lease of this epoch. */
void omq_assigned_queue_committed(omq_assigned_queue *queue, int64_t offset, int64_t epoch);

/* Count what lies before an offset, and nothing behind it, as done. */
void omq_assigned_queue_set_done(omq_assigned_queue *queue, int64_t generation, int64_t offset);

/* Commit nothing but `offset` until the queue is moved. False: it is being given up. */
bool omq_assigned_queue_begin_life(omq_assigned_queue *queue, int64_t offset);

/* Claim nothing while a bit is set. ends_run: clear the flag with it, so that a later resume sets
 * it anew. */
void omq_assigned_queue_pause(omq_assigned_queue *queue, uint32_t bits, bool ends_run);

/* End pauses: OMQ_DISPATCH, or nothing. */
uint32_t omq_assigned_queue_resume(omq_assigned_queue *queue, uint32_t bits);

/* Have the running claim begin no further batch. */
void omq_assigned_queue_end_claim(omq_assigned_queue *queue);

/* Return whether it should; without the mutex, so perhaps a moment too early or too late. */
bool omq_assigned_queue_is_ending(const omq_assigned_queue *queue);

/* Claim one message at a time up to this offset; -1: no more. */
void omq_assigned_queue_isolate(omq_assigned_queue *queue, int64_t until);

/* Claim and buffer nothing from here on. True: no claim runs, else OMQ_DRAINED follows. */
bool omq_assigned_queue_revoke(omq_assigned_queue *queue);

/* Let nothing count any more. */
void omq_assigned_queue_discard(omq_assigned_queue *queue);

/* Write when the broker stored the lowest message that the pull engine has buffered, or had when the
 * lease was lost, ms since 1970. False: there is none. */
bool omq_assigned_queue_oldest_stored_ms(omq_assigned_queue *queue, int64_t *stored_ms);

/* Return the last message that was buffered of the queue's present life, or the last one of the first
 * answer; offset -1: there is none, or the queue is about to be moved to another life. */
omq_read_message omq_assigned_queue_known_read(omq_assigned_queue *queue, bool is_first);

void omq_assigned_queue_read(omq_assigned_queue *queue, omq_assigned_queue_state *state);

/* For tests: return NULL, or the first broken invariant (static text). */
const char *omq_assigned_queue_check(omq_assigned_queue *queue);

/* ==== lock table: which owner holds which queue of which group. Any thread. ====
 *
 * Groups, queues and owners are ids, which the table gives out; the caller keeps their names.
 * A lock expires when more than lease_ms have passed since it was granted or renewed. */

typedef struct omq_lock_table omq_lock_table;

typedef struct {
    uint64_t group;
    uint64_t queue;
    uint64_t owner;
    uint64_t epoch; /* >= 1 */
    int64_t granted_ms;
} omq_lock;

/* Make an empty table: lease_ms >= 0, first_epoch >= 1. NULL without memory. */
omq_lock_table *omq_lock_table_new(int64_t lease_ms, uint64_t first_epoch);

/* Free a table, which no thread may be using; NULL is allowed. O(n). */
void omq_lock_table_free(omq_lock_table *table);

/* Give out an id: never 0, never the same twice. Its low 32 bits are small numbers that are used
 * again, so they may index an array. An id lasts while it is pinned or a lock uses it, and after
 * that until the next forget. NO_MEMORY. O(1) amortised. */
omq_status omq_lock_table_add_id(omq_lock_table *table, uint64_t *id);

/* Add a pin to an id, or take one back. UNKNOWN_ID; OUT_OF_RANGE: 2^32 - 1 pins are there
 * already, or none. O(1). */
omq_status omq_lock_table_pin(omq_lock_table *table, uint64_t id);
omq_status omq_lock_table_unpin(omq_lock_table *table, uint64_t id);

/* Return how many of the ids, from the first on, are known. O(count). */
size_t omq_lock_table_known(omq_lock_table *table, const uint64_t *ids, size_t count);

/* Forget ids that have neither a pin nor a lock, at most `capacity`, and write them. Returns how
 * many; fewer than `capacity` means that none is left. O(ids that lost their last use). */
size_t omq_lock_table_forget(omq_lock_table *table, uint64_t *ids, size_t capacity);

/* Grant or renew each queue, all under one lock. Writes one epoch per queue, or 0 where another
 * owner holds a lock that has not expired. A new holder, or a grant after expiry, gets a new
 * epoch; a renewal keeps its own.
 * UNKNOWN_ID: nothing was done. NO_MEMORY: a prefix was granted. O(count). */
omq_status omq_lock_table_try_lock(omq_lock_table *table, uint64_t group, const uint64_t *queues,
                                   size_t count, uint64_t owner, int64_t now_ms, uint64_t *epochs);

/* Delete each lock that belongs to this owner and has the given epoch, all under one lock.
 * `epochs` NULL, or an epoch of 0, means any epoch. Writes whether each lock was deleted; an
 * unknown id holds none. O(count). */
void omq_lock_table_unlock(omq_lock_table *table, uint64_t group, const uint64_t *queues,
                           size_t count, uint64_t owner, const uint64_t *epochs, bool *unlocked);

/* Write the lock of a queue, expired or not. Returns false if there is none. O(1). */
bool omq_lock_table_holder(omq_lock_table *table, uint64_t group, uint64_t queue, omq_lock *lock);

/* Return whether the owner holds the queue in this epoch and has not expired. O(1). */
bool omq_lock_table_is_current(omq_lock_table *table, uint64_t group, uint64_t queue,
                               uint64_t owner, uint64_t epoch, int64_t now_ms);

/* Return whether every lock of the group has expired; true if it has none. O(group's locks). */
bool omq_lock_table_is_all_expired(omq_lock_table *table, uint64_t group, int64_t now_ms);

/* Delete expired locks, at most `capacity`, and write them. Returns how many; fewer than
 * `capacity` means that none is left. O(groups + locks of the groups that may have an expired
 * one). */
size_t omq_lock_table_sweep(omq_lock_table *table, int64_t now_ms, omq_lock *locks,
                            size_t capacity);

/* Write every lock, at most `capacity`. Returns how many there are. O(n). */
size_t omq_lock_table_snapshot(omq_lock_table *table, omq_lock *locks, size_t capacity);

/* Replace all locks. The next epoch becomes next_epoch if that is greater.
 * NO_MEMORY, OUT_OF_RANGE (an epoch, or next_epoch > INT64_MAX), DUPLICATE, UNKNOWN_ID: nothing
 * was done. O(n + count). */
omq_status omq_lock_table_restore(omq_lock_table *table, const omq_lock *locks, size_t count,
                                  uint64_t next_epoch);

/* Return the number of locks, or the epoch that the next new holder gets. O(1). */
size_t omq_lock_table_count(omq_lock_table *table);
uint64_t omq_lock_table_next_epoch(omq_lock_table *table);

/* For tests: return NULL, or the first broken invariant (static text). O(n). */
const char *omq_lock_table_check(omq_lock_table *table);

/* ==== message codec: reads stored records. Pure functions on bytes, any thread. ==== */

/* Reasons why a stored record or a batch body is malformed. ordermq/core/status.py has their
 * texts. */
typedef enum {
    OMQ_FAULT_TRAILING = 1, OMQ_FAULT_RECORD_SIZE = 2, OMQ_FAULT_TRUNCATED = 3,
    OMQ_FAULT_MAGIC = 4, OMQ_FAULT_FIXED_PART = 5, OMQ_FAULT_QUEUE_OFFSET = 6,
    OMQ_FAULT_BODY_SIZE = 7, OMQ_FAULT_TOPIC_SIZE = 8, OMQ_FAULT_PROPERTY_SIZE = 9,
    OMQ_FAULT_RECORD_END = 10, OMQ_FAULT_CRC = 11, OMQ_FAULT_INNER_SIZE = 12,
    OMQ_FAULT_INNER_BODY = 13, OMQ_FAULT_INNER_PROPERTIES = 14, OMQ_FAULT_INNER_COMPRESSED = 15,
    OMQ_FAULT_INNER_DELAYED = 16, /* or transactional; of a batch body, not of stored records */
    OMQ_FAULT_QUEUE_ID = 17, OMQ_FAULT_OFFSET_ORDER = 18, OMQ_FAULT_OFFSET_RANGE = 19,
    OMQ_FAULT_INNER_MARKS = 20
} omq_fault;

typedef struct {
    omq_fault fault;
    size_t record;   /* index of the record, or of the message of a batch body; from 0 */
    size_t position; /* bytes from the start of the body to the field at fault */
} omq_message_fault;

typedef struct {
    const uint8_t *bytes;
    size_t size;
} omq_text;

/* The pull that a body answers. */
typedef struct {
    int64_t first;    /* the offset that was asked for */
    int64_t end;      /* the offset to ask for next: every record lies before it */
    int32_t queue_id; /* -1: any */
} omq_pulled;

/* An index of a pull body: one row per message that was kept. The caller owns the arrays. */
typedef struct {
    uint32_t *positions;  /* of the message's record, or its entry of an inner batch, in the body */
    uint32_t *body_sizes; /* bytes */
    uint32_t *outers;     /* of the record around it, or the same; NULL: there is no inner batch */
    uint32_t *numbers;    /* index within the inner batch, else 0; NULL as outers */
    size_t count;
    uint64_t size_bytes;  /* sum of the body sizes */
    int64_t first_offset; /* queue offset of row 0 */
    bool is_run;          /* row i has offset first_offset + i: omq_process_queue_put_run applies */
} omq_message_rows;

/* Return an upper bound of the rows of a body, and write whether any record is an inner batch.
 * O(records). */
size_t omq_message_count(const uint8_t *body, size_t size, bool *has_inner);

/* Index concatenated stored records, v1 and v2, with inner batches taken apart. With tags
 * (tag_count > 0) only messages whose TAGS is one of them get a row. The arrays of `rows` have
 * room for omq_message_count rows. Writes the rows, and the offset of the last message scanned
 * (-1: none). check_crc: compare each stored body with its record's checksum (31 bits).
 * pulled: MALFORMED unless the records are of that queue, with ascending offsets inside the range;
 * messages of an inner batch before it get no row. NULL: any records.
 * OUT_OF_RANGE: size > UINT32_MAX. MALFORMED: *fault is written and the rows are garbage.
 * O(records); with tags O(property bytes), with check_crc O(size). */
omq_status omq_message_index(const uint8_t *body, size_t size, const omq_text *tags,
                             size_t tag_count, bool check_crc, const omq_pulled *pulled,
                             omq_message_rows *rows, int64_t *last_offset,
                             omq_message_fault *fault);

/* The parts of a message in the pull body: positions and sizes in bytes. */
typedef struct {
    uint32_t body_at;
    uint32_t body_size;
    uint32_t property_at;
    uint32_t property_size;
    bool is_compressed; /* the body */
} omq_message_parts;

/* The numbers of a message. */
typedef struct {
    int64_t queue_offset;
    int64_t physical_offset;
    int64_t born_ms;
    int64_t stored_ms;
    int64_t prepared_offset;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t reconsume_times;
    uint32_t born_host_at;   /* in the pull body: 4 or 16 bytes of address, 4 of port */
    uint32_t born_host_size; /* 8 or 20; the same for the store host */
    uint32_t store_host_at;
    uint32_t store_host_size;
} omq_message;

/* Write the parts or the numbers of a row, or return its queue offset. `body` and `rows` come
 * from an omq_message_index that returned OK, and the bytes have not changed since: it has
 * checked every length, so these check none. O(1). */
void omq_message_locate(const uint8_t *body, const omq_message_rows *rows, size_t row,
                        omq_message_parts *parts);
void omq_message_read(const uint8_t *body, const omq_message_rows *rows, size_t row,
                      omq_message *message);
int64_t omq_message_offset(const uint8_t *body, const omq_message_rows *rows, size_t row);

/* Return what the last message of rows that are not empty is known by. */
omq_read_message omq_message_last(const uint8_t *body, const omq_message_rows *rows);

/* Columns of an index: 0-3 are int64, 4-8 uint32, the others int32. ordermq/core/status.py has
 * their names. */
typedef enum {
    OMQ_COLUMN_OFFSETS = 0, OMQ_COLUMN_PHYSICAL_OFFSETS = 1, OMQ_COLUMN_BORN_TIMESTAMPS = 2,
    OMQ_COLUMN_STORE_TIMESTAMPS = 3, OMQ_COLUMN_POSITIONS = 4, OMQ_COLUMN_BODY_POSITIONS = 5,
    OMQ_COLUMN_BODY_SIZES = 6, OMQ_COLUMN_PROPERTY_POSITIONS = 7,
    OMQ_COLUMN_PROPERTY_SIZES = 8, OMQ_COLUMN_TAG_HASHES = 9, OMQ_COLUMN_QUEUE_IDS = 10,
    OMQ_COLUMN_FLAGS = 11, OMQ_COLUMN_SYS_FLAGS = 12, OMQ_COLUMN_RECONSUME_TIMES = 13,
    OMQ_COLUMN_END = 14
} omq_column;

/* Fill the caller's columns, each with room for rows->count. `columns` has OMQ_COLUMN_END
 * members; a NULL member is not filled. body and rows: as omq_message_locate.
 * O(rows); with tag hashes O(property bytes). */
void omq_message_read_columns(const uint8_t *body, const omq_message_rows *rows,
                              void *const *columns);

/* Write where the value of a property lies in the pull body, per row; size 0 where the message
 * has none. body and rows: as omq_message_locate. O(property bytes). */
void omq_message_find_property(const uint8_t *body, const omq_message_rows *rows,
                               const omq_text *name, uint32_t *positions, uint32_t *sizes);

typedef struct {
    omq_text name;
    omq_text value;
} omq_property;

/* Read the property at *at (0 at first), and move *at past it. Returns false at the end. Entries
 * without a name or a value are skipped, as Java does. If a name occurs twice, the last one
 * counts; this function reports both. */
bool omq_property_next(const uint8_t *text, size_t size, size_t *at, omq_property *property);

/* Return how many properties all rows have, names that occur twice included: the room that
 * list_properties needs. body and rows: as omq_message_locate. O(property bytes). */
size_t omq_message_count_properties(const uint8_t *body, const omq_message_rows *rows);

/* List the properties of all rows; of a name that occurs twice in a row only the last. Those of
 * row i are starts[i] .. starts[i + 1] - 1, so `starts` has room for rows->count + 1; the other
 * arrays have room for omq_message_count_properties. A value starts one byte behind its name.
 * Returns how many. O(property bytes), times the properties of a row at worst. */
size_t omq_message_list_properties(const uint8_t *body, const omq_message_rows *rows,
                                   int32_t *starts, uint32_t *name_positions,
                                   uint32_t *name_sizes, uint32_t *value_sizes);

/* Write where each piece of a body starts when the pieces are joined: count + 1 positions, the
 * last one is the total size. OUT_OF_RANGE: a piece reaches past the body, or the total is over
 * INT32_MAX. O(count). */
omq_status omq_gather_measure(size_t body_size, const uint32_t *positions, const uint32_t *sizes,
                              size_t count, int32_t *starts);

/* Join the pieces into `bytes`, as measured. Returns the first piece that is not UTF-8 if
 * is_text, else count. O(bytes). */
size_t omq_gather_copy(const uint8_t *body, const uint32_t *positions, const int32_t *starts,
                       size_t count, bool is_text, uint8_t *bytes);

/* Write the value of a property, which is never empty. Returns false if there is none.
 * O(size). */
bool omq_property_find(const uint8_t *text, size_t size, const omq_text *name, omq_text *value);

/* Return whether bytes are UTF-8 as Python's strict decoder defines it. O(size). */
bool omq_is_utf8(const uint8_t *text, size_t size);

/* Return Java's String.hashCode of UTF-8 text, as the broker's tag filter uses it; 0 for other
 * bytes. O(size). */
int32_t omq_java_hash(const omq_text *text);

/* ==== id window: the producers' ids of a queue's newest messages. One thread at a time. ==== */

typedef struct omq_id_window omq_id_window;

/* Make an empty window of `size` offsets, 1 or more. `seed`: of the hash, secret, so that nobody
 * can choose ids that meet in one place. NULL without memory. */
omq_id_window *omq_id_window_new(uint32_t size, uint64_t seed);

/* Free a window; NULL is allowed. O(n). */
void omq_id_window_free(omq_id_window *window);

/* Forget everything. O(n). */
void omq_id_window_clear(omq_id_window *window);

/* Return the number of ids: of messages less than `size` offsets before the newest one. O(1). */
size_t omq_id_window_count(const omq_id_window *window);

/* Note the rows of an index in order of their offsets, and leave those out of it whose property
 * UNIQ_KEY is that of a message noted at most `size` offsets before, with a stored body of the same
 * size and CRC-32. Rows at or before the newest
 * offset noted, rows from offset `end` on, and rows without the property, are kept and not noted.
 * Writes how many were left out. body and rows: as omq_message_locate; nobody else may be reading
 * the rows.
 * NO_MEMORY: the window is empty again, and the rows are those that were kept so far, and all
 * behind. O(bytes). */
omq_status omq_id_window_drop_copies(omq_id_window *window, const uint8_t *body, int64_t end,
                                     omq_message_rows *rows, size_t *dropped);

/* For tests: return NULL, or the first broken invariant (static text). O(n). */
const char *omq_id_window_check(const omq_id_window *window);

/* ==== message writer: makes stored records and batch bodies. Pure functions, any thread. ==== */

/* What a record holds besides its message. The texts are only read during the call. */
typedef struct {
    omq_text topic;      /* UTF-8, <= 32767 bytes; more than 127 make a v2 record */
    omq_text born_host;  /* 4 or 16 bytes of address, 4 of port */
    omq_text store_host;
    int64_t born_ms;
    int64_t stored_ms;
    int32_t queue_id;
    int32_t sys_flag;    /* its two IPv6 bits are set or cleared to match the hosts */
    int32_t reconsume_times;
} omq_record_head;

typedef struct {
    omq_text body;
    omq_text properties; /* <= 32767 bytes */
    int32_t flag;
} omq_outgoing;

/* Return the size of a record; 0 if a text or the record is too long, or a host is malformed.
 * O(1). */
size_t omq_record_size(const omq_record_head *head, size_t body_size, size_t property_size);

/* Write a record whose omq_record_size is not 0 (docs/internals/protocol.md#stored-message), with
 * both offsets 0: omq_records_stamp sets them. `record` has room for it. O(size). */
void omq_record_write(const omq_record_head *head, const omq_outgoing *message, uint8_t *record);

/* Check a whole batch body (docs/internals/protocol.md#batch-body). Writes how many messages it
 * has, and the total size of their records.
 * MALFORMED: *fault is written. OUT_OF_RANGE: `size` or *record_bytes is over UINT32_MAX, or a
 * record's omq_record_size is 0. O(property bytes). */
omq_status omq_batch_measure(const omq_record_head *head, const uint8_t *batch, size_t size,
                             size_t *count, size_t *record_bytes, omq_message_fault *fault);

/* Write the records of a batch body that was measured, joined. Writes count + 1 positions, the
 * last one is the end, and count tag hashes as omq_tag_hash. O(size + record_bytes). */
void omq_batch_write(const omq_record_head *head, const uint8_t *batch, size_t count,
                     uint8_t *records, uint32_t *positions, int64_t *tags);

/* Set the two offsets of joined records: both count up by one per record. O(count). */
void omq_records_stamp(uint8_t *records, const uint32_t *positions, size_t count,
                       int64_t queue_offset, int64_t physical_offset);

/* Return omq_java_hash of the property TAGS, 0 without it. O(size). */
int32_t omq_tag_hash(const omq_text *properties);

/* Write the size of the batch body of these messages. OUT_OF_RANGE: properties too long, a
 * message over INT32_MAX, or a total over UINT32_MAX. O(count). */
omq_status omq_batch_size(const omq_outgoing *messages, size_t count, size_t *size);

/* Write the batch body, as a producer sends it. `batch` has room for omq_batch_size. O(size). */
void omq_batch_encode(const omq_outgoing *messages, size_t count, uint8_t *batch);

/* ---- rows in columns, laid out as Arrow does ---- */

/* Byte strings: value i is bytes[positions[i] .. positions[i + 1]). Each is checked when read. */
typedef struct {
    const int32_t *positions; /* one more than rows */
    const uint8_t *bytes;
    size_t size;              /* of bytes */
} omq_texts;

typedef struct {
    omq_text name;            /* empty: the texts are whole properties already */
    omq_texts texts;
    const int64_t *numbers;   /* not NULL: used instead, in decimal; then the name is not empty */
} omq_property_column;

typedef struct {
    omq_texts bodies;
    size_t count;             /* rows of bodies and of every column */
    omq_text fixed;           /* properties that every message has, in text form */
    const omq_property_column *columns;
    size_t column_count;
    const uint8_t *unique;    /* 16 bytes, big-endian: the first UNIQ_KEY; NULL: none */
} omq_row_messages;

/* Find where the rows from `first` on (< end) stop to be in order: the first row of another queue
 * than the row before it (by id, or by one of the names), or whose offset is not greater. Writes
 * that row, or `end`. OUT_OF_RANGE: a position of a text. O(rows looked at). */
omq_status omq_ordered_rows(const int64_t *offsets, const int32_t *queue_ids,
                            const omq_texts *names, size_t name_count, size_t first, size_t end,
                            size_t *found);

/* Write how many of `rows` fit into a batch body (docs/internals/protocol.md#batch-body) of
 * most_bytes, at least one, and the size of that body. row_count >= 1. OUT_OF_RANGE: *fitting is
 * then the index of a row that is out of range, has no body, a value with a separator inside,
 * properties over 32767 bytes, or a size over INT32_MAX. O(size). */
omq_status omq_rows_measure(const omq_row_messages *messages, const uint32_t *rows,
                            size_t row_count, size_t most_bytes, size_t *fitting, size_t *size);

/* Write the batch body of the rows that fit, as measured. O(size). */
void omq_rows_encode(const omq_row_messages *messages, const uint32_t *rows, size_t row_count,
                     uint8_t *batch);

/* ==== frame codec: binary command headers, frames from templates. Pure functions, any thread.
 * ==== */

/* Reasons why a binary command header (docs/internals/protocol.md#binary-header) is malformed. */
typedef enum {
    OMQ_HEADER_OK = 0, OMQ_HEADER_END = 1, OMQ_HEADER_REMARK = 2, OMQ_HEADER_FIELDS = 3,
    OMQ_HEADER_NAME = 4, OMQ_HEADER_VALUE = 5, OMQ_HEADER_TEXT = 6
} omq_header_fault;

/* A header. Its texts point into the bytes that were read. */
typedef struct {
    int32_t opaque;
    int32_t flag;
    int16_t code;
    int16_t version;
    uint8_t language;
    omq_text remark;
    omq_text fields;
} omq_header;

/* Read and check a whole header, UTF-8 included. Returns OMQ_HEADER_OK, or the fault; then the
 * byte at fault is written. O(size). */
omq_header_fault omq_header_read(const uint8_t *bytes, size_t size, omq_header *header,
                                 size_t *position);

/* Read the field at *at (0 at first) of a header that was read, and move *at past it. Returns
 * false after the last one. O(1). */
bool omq_header_next_field(const omq_header *header, size_t *at, omq_property *field);

/* A value of a JSON header: a text, which is written in quotes, or a number. */
typedef struct {
    omq_text text;            /* UTF-8; bytes NULL: the number */
    int64_t number;
} omq_frame_value;

/* Return the size of a frame (docs/internals/protocol.md#frame) with a JSON header and a body. The
 * header is value_count + 1 texts with the values between them. 0: it would be over INT32_MAX.
 * O(size of the values). */
size_t omq_frame_size(const omq_text *texts, const omq_frame_value *values, size_t value_count,
                      size_t body_size);

/* Write a frame whose omq_frame_size is not 0. `frame` has room for it. O(size). */
void omq_frame_write(const omq_text *texts, const omq_frame_value *values, size_t value_count,
                     const omq_text *body, uint8_t *frame);

/* ---- request templates ---- */

/* A request that many frames differ from by their offset and request id only. It holds what else
 * the connection asks for: names with their namespace, a header in binary form, a signature. */
typedef struct omq_request_template omq_request_template;

typedef enum {
    OMQ_GAP_OFFSET = 0,      /* in decimal; in a binary header its size before it */
    OMQ_GAP_REQUEST_ID = 1,
    OMQ_GAP_SIGNATURE = 2,   /* 28 characters */
    OMQ_GAP_FIELDS_SIZE = 3  /* of a binary header: the bytes of its fields, the last part */
} omq_request_gap;

typedef struct {
    const omq_text *texts; /* of the header, gap_count + 1; the gaps lie between them */
    const uint8_t *gaps;   /* of omq_request_gap */
    size_t gap_count;
    bool is_binary;
    bool is_signed;
    omq_text secret_key;
    omq_text signed_before; /* the values that are signed before the offset, one after the other */
    omq_text signed_after;
} omq_request_plan;

/* Copy a plan; NULL without memory, or with too many gaps. O(size). */
omq_request_template *omq_request_template_new(const omq_request_plan *plan);
void omq_request_template_free(omq_request_template *made);

/* Return the bytes that a frame takes at most. */
size_t omq_request_template_most(const omq_request_template *made);

/* Write a frame and return its size. O(size). Pure: any thread, many at once. */
size_t omq_request_template_write(const omq_request_template *made, int64_t offset,
                                  uint32_t request_id, uint8_t *frame);

/* </declarations> */

#endif

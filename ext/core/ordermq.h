/* The C core of ordermq: offset map, process queue, lane map, lock table, message codec.
 *
 * The core stores uint64 tokens, never objects; it calls nothing upward and reads no clock.
 * Offsets are queue offsets, 0 .. INT64_MAX - 1; times are int64 milliseconds of the
 * caller's clock. No function keeps a pointer it was given, unless it says so. Where it says
 * "any thread", the object's own mutex makes the call atomic.
 * The semantics are those of ordermq/core/interface.py.
 */
#ifndef ORDERMQ_H
#define ORDERMQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* <declarations>: ext/cffi/build.py reads from here, libordermq.pxd says the same. */

typedef enum {
    OMQ_OK = 0,
    OMQ_NO_MEMORY = 1,    /* what was done stays done and consistent; the call may be repeated */
    OMQ_OUT_OF_RANGE = 2, /* nothing was done; so the next two */
    OMQ_WRONG_SHAPE = 3,  /* batches and columns in one process queue */
    OMQ_DUPLICATE = 4,
    OMQ_MALFORMED = 5,    /* omq_message_fault says where */
    OMQ_UNKNOWN_ID = 6    /* no id of this lock table, or one it forgot; nothing was done */
} omq_status;

/* ---- offset map: int64 offset -> uint64 token, ascending. One thread at a time. ---- */

typedef struct omq_offset_map omq_offset_map;

typedef struct {
    int64_t offset;
    uint64_t token;
} omq_entry;

/* Make an empty map; NULL without memory. The caller frees it. */
omq_offset_map *omq_offset_map_new(void);

/* Free a map; NULL is allowed. O(n). */
void omq_offset_map_free(omq_offset_map *map);

/* Store a token; is_new tells whether the offset was absent, else its token is replaced.
 * NO_MEMORY (nothing stored), OUT_OF_RANGE. O(1) past the end, else O(log n). */
omq_status omq_offset_map_put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new);

/* Write the token of an offset; false if there is none. O(log n). */
bool omq_offset_map_get(const omq_offset_map *map, int64_t offset, uint64_t *token);

/* Delete an entry; false if there is none. O(log n). */
bool omq_offset_map_remove(omq_offset_map *map, int64_t offset);

/* Move the smallest entries, up to `limit`, to `entries` (caller's); return how many. O(limit). */
size_t omq_offset_map_pop_first(omq_offset_map *map, omq_entry *entries, size_t limit);

/* Write the smallest or greatest entry; false if the map is empty. O(1). */
bool omq_offset_map_first(const omq_offset_map *map, omq_entry *entry);
bool omq_offset_map_last(const omq_offset_map *map, omq_entry *entry);

/* Write the greatest entry <= offset, or the smallest >= offset; false if none. O(log n). */
bool omq_offset_map_floor(const omq_offset_map *map, int64_t offset, omq_entry *entry);
bool omq_offset_map_ceiling(const omq_offset_map *map, int64_t offset, omq_entry *entry);

/* Put a column of each; write how many offsets were absent. The work a key is that of put, but
 * the leaves of several keys are loaded at once.
 * OUT_OF_RANGE (nothing stored), NO_MEMORY (a prefix is stored). */
omq_status omq_offset_map_put_columns(omq_offset_map *map, const int64_t *offsets,
                                      const uint64_t *tokens, size_t count, size_t *added);

/* Delete the entries of a column of offsets; return how many there were. */
size_t omq_offset_map_remove_columns(omq_offset_map *map, const int64_t *offsets, size_t count);

/* Copy offsets >= start, ascending, up to `capacity`, and tokens unless NULL; return how many.
 * O(log n + capacity). */
size_t omq_offset_map_read(const omq_offset_map *map, int64_t start, int64_t *offsets,
                           uint64_t *tokens, size_t capacity);

/* Entries. O(1). */
size_t omq_offset_map_count(const omq_offset_map *map);

/* Delete everything. O(n). */
void omq_offset_map_clear(omq_offset_map *map);

/* For tests: NULL, or the first invariant found broken (static text). O(n). */
const char *omq_offset_map_check(const omq_offset_map *map);

/* ---- process queue: any thread. ---- */

typedef struct omq_process_queue omq_process_queue;

/* A run of neighbours in one batch: messages first .. first + count - 1 of the slot. */
typedef struct {
    uint32_t slot;
    uint32_t first;
    uint32_t count;
} omq_segment;

/* What a queue holds, read at one moment; an offset is -1 where there is none. */
typedef struct {
    size_t pending;   /* messages; so the next */
    size_t consuming;
    uint64_t size_bytes;
    int64_t first_pending;
    int64_t last_pending;
    int64_t first_consuming;
    int64_t last_consuming;
    int64_t max_offset; /* greatest buffered since the last clear or reset */
    int64_t floor;      /* puts below it are ignored */
    uint64_t duplicates_ignored;
    bool is_dispatched;
} omq_process_queue_state;

/* Make an empty queue; NULL without memory. The caller frees it. */
omq_process_queue *omq_process_queue_new(void);

/* Free a queue, which no thread may be using; NULL is allowed. O(n). */
void omq_process_queue_free(omq_process_queue *queue);

/* Buffer messages under the caller's tokens. The arrays have `count` members and are copied;
 * sizes (bytes, <= INT32_MAX) may be NULL for zeros. Offsets already buffered, or below the
 * floor, are ignored. dispatch: the caller must now submit one consume request.
 * NO_MEMORY (a prefix may be buffered), OUT_OF_RANGE, WRONG_SHAPE.
 * Any thread. O(count) ascending, else O(count log n). */
omq_status omq_process_queue_put_columns(omq_process_queue *queue, const int64_t *offsets,
                                         const uint64_t *tokens, const uint32_t *sizes,
                                         size_t count, bool *dispatch);

/* The same for one batch: message i is known as (slot, i). The queue chooses the slot and
 * writes it, or UINT32_MAX if it buffered nothing; the caller keeps slot -> batch until commit
 * or collect hands the slot back. slot is written on NO_MEMORY too. count < UINT32_MAX. */
omq_status omq_process_queue_put_batch(omq_process_queue *queue, const int64_t *offsets,
                                       const uint32_t *sizes, size_t count, uint32_t *slot,
                                       bool *dispatch);

/* The same for a batch of offsets first .. first + count - 1, whose sizes sum up to `bytes`.
 * The sizes are not copied: the caller keeps them, unchanged, as long as the slot.
 * O(1) past everything buffered before. */
omq_status omq_process_queue_put_run(omq_process_queue *queue, int64_t first,
                                     const uint32_t *sizes, size_t count, uint64_t bytes,
                                     uint32_t *slot, bool *dispatch);

/* Move the `limit` (>= 1) smallest pending messages to consuming; write their offsets and
 * tokens, ascending (caller's, room for `limit`), and how many. None: the dispatch flag is
 * cleared under the same lock as put sets it, so no wake-up is lost.
 * NO_MEMORY (only if none could be moved), OUT_OF_RANGE, WRONG_SHAPE. Any thread. O(limit). */
omq_status omq_process_queue_take_columns(omq_process_queue *queue, int64_t *offsets,
                                          uint64_t *tokens, size_t limit, size_t *taken);

/* The same for batches: write the runs (caller's, room for `limit`), and how many runs. */
omq_status omq_process_queue_take_segments(omq_process_queue *queue, omq_segment *segments,
                                           size_t limit, size_t *count);

/* Drop consuming; return its greatest offset + 1, or -1 if it was empty. Hand back one slot as
 * collect does, or write UINT32_MAX. Any thread. O(consuming). */
int64_t omq_process_queue_commit(omq_process_queue *queue, uint32_t *slot);

/* Move every consuming offset >= start (INT64_MIN: all) back to pending; write how many.
 * NO_MEMORY (the greatest may be moved). Any thread. O(moved log n), all onto none O(1). */
omq_status omq_process_queue_make_again_from(omq_process_queue *queue, int64_t start,
                                             size_t *moved);

/* Move those of `offsets` that are consuming back to pending; write how many.
 * NO_MEMORY (some may be moved). Any thread. O(count log n). */
omq_status omq_process_queue_make_again(omq_process_queue *queue, const int64_t *offsets,
                                        size_t count, size_t *moved);

/* Drop these offsets from pending and consuming; write the watermark, below which all is
 * done, or -1 if both were empty before. NO_MEMORY (a prefix is dropped; the watermark is
 * right). Any thread. O(count log n). */
omq_status omq_process_queue_remove(omq_process_queue *queue, const int64_t *offsets, size_t count,
                                    int64_t *watermark);

/* Drop everything and forget max_offset; flag and floor stay. Any thread. O(n). */
void omq_process_queue_clear(omq_process_queue *queue);

/* Clear, and set the floor, 0 .. INT64_MAX. OUT_OF_RANGE. Any thread. O(n). */
omq_status omq_process_queue_reset(omq_process_queue *queue, int64_t floor);

/* Set the dispatch flag if a message is pending and it is clear; return whether set. Any thread. */
bool omq_process_queue_begin_dispatch(omq_process_queue *queue);

/* Clear the dispatch flag. Any thread. */
void omq_process_queue_end_dispatch(omq_process_queue *queue);

/* Hand back one slot without buffered messages: the caller forgets its batch, and a later
 * put_batch may choose the slot again. False if there is none; then no lock is taken.
 * Any thread, but the caller must not let a put_batch of its own come between this call and
 * the forgetting. O(1). */
bool omq_process_queue_collect(omq_process_queue *queue, uint32_t *slot);

/* Whether an offset is pending. Any thread. O(log n). */
bool omq_process_queue_is_pending(omq_process_queue *queue, int64_t offset);

/* Write the state. Any thread. O(1). */
void omq_process_queue_read(omq_process_queue *queue, omq_process_queue_state *state);

/* For tests: NULL, or the first invariant found broken (static text). Any thread. O(n). */
const char *omq_process_queue_check(omq_process_queue *queue);

/* ---- lane map: any thread. Messages of one queue, in lanes by key. ---- */

typedef struct omq_lane_map omq_lane_map;

/* A lane's name, compared byte by byte; bytes NULL: a message without a key. */
typedef struct {
    const uint8_t *bytes;
    size_t size; /* < UINT32_MAX */
} omq_key;

/* Keys as a column: key i is sizes[i] of `bytes` from positions[i] on; UINT32_MAX: none. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
    const uint32_t *positions;
    const uint32_t *sizes;
} omq_key_column;

/* What an offset's flight was that has ended. */
typedef enum {
    OMQ_FLIGHT_NONE = 0, /* there was none, nothing was done */
    OMQ_FLIGHT_OWN = 1,
    OMQ_FLIGHT_OLD = 2 /* from before a reset: its message had been dropped */
} omq_flight;

/* What a map holds, read at one moment. */
typedef struct {
    size_t messages;  /* delivered and not done */
    size_t in_flight; /* old flights included */
    size_t old_flights;
    size_t ready;     /* lanes whose first message may be taken */
    size_t keys;      /* lanes with a key */
    size_t parked;    /* of those */
    int64_t watermark;   /* lowest offset not done, or next_offset */
    int64_t next_offset; /* below it, all has been delivered */
    uint64_t duplicates_ignored;
    bool is_full; /* next_offset - 1 is max_ahead or more above the watermark */
} omq_lane_map_state;

/* Make an empty map; NULL without memory. 1 <= max_in_flight <= INT32_MAX, max_ahead >= 1 (the
 * caller has checked). has_barriers: messages without a key are barriers, else they share a
 * lane. seed: random, secret, for the hash of keys. The caller frees it. */
omq_lane_map *omq_lane_map_new(uint32_t max_in_flight, int64_t max_ahead, bool has_barriers,
                               uint64_t seed);

/* Free a map, which no thread may be using; NULL is allowed. O(keys). */
void omq_lane_map_free(omq_lane_map *map);

/* Deliver messages known by their offsets, strictly ascending. Those below next_offset, the
 * first `ignored`, are ignored; the next `added` were added. Keys are copied.
 * NO_MEMORY (a prefix was added), OUT_OF_RANGE, WRONG_SHAPE. Any thread. O(count). */
omq_status omq_lane_map_add(omq_lane_map *map, const int64_t *offsets, const omq_key *keys,
                            size_t count, size_t *ignored, size_t *added);

/* The same for messages known by tokens; OUT_OF_RANGE too if a key reaches past the bytes. */
omq_status omq_lane_map_add_columns(omq_lane_map *map, const int64_t *offsets,
                                    const uint64_t *tokens, const omq_key_column *keys,
                                    size_t count, size_t *ignored, size_t *added);

/* Put the lowest ready messages in flight, up to `limit` (>= 1); write their offsets,
 * ascending, their tokens (NULL: objects), and how many.
 * OUT_OF_RANGE, WRONG_SHAPE. Any thread. O(limit). */
omq_status omq_lane_map_take(omq_lane_map *map, int64_t *offsets, uint64_t *tokens, size_t limit,
                             size_t *taken);

/* The same with the first messages of one parked key, to be stored elsewhere. */
omq_status omq_lane_map_divert(omq_lane_map *map, const omq_key *key, int64_t *offsets,
                               uint64_t *tokens, size_t limit, size_t *taken);

/* End the flight of an offset for good; an old flight comes first. Any thread. O(log n), O(1)
 * without gaps between the offsets. */
omq_flight omq_lane_map_done(omq_lane_map *map, int64_t offset);

/* The same for a column; write how many flights ended. WRONG_SHAPE. O(count log n). */
omq_status omq_lane_map_done_columns(omq_lane_map *map, const int64_t *offsets, size_t count,
                                     size_t *ended);

/* End the flight of an offset; its message waits in its lane again. Any thread. As done, and
 * O(failed before it) if several of the key were diverted. */
omq_flight omq_lane_map_failed(omq_lane_map *map, int64_t offset);

/* Hold a key's messages back; changed: it was not parked. OUT_OF_RANGE (no key), NO_MEMORY.
 * Any thread. O(1). */
omq_status omq_lane_map_park(omq_lane_map *map, const omq_key *key, bool *changed);

/* Let them go on; whether the key was parked. Any thread. O(1). */
bool omq_lane_map_unpark(omq_lane_map *map, const omq_key *key);
bool omq_lane_map_is_parked(omq_lane_map *map, const omq_key *key);

/* Drop every message and set next_offset, 0 .. INT64_MAX. Flights stay as old ones, for which
 * their keys and offsets wait. NO_MEMORY, OUT_OF_RANGE: nothing was done. Any thread. O(n). */
omq_status omq_lane_map_reset(omq_lane_map *map, int64_t next_offset);

/* Write the state. Any thread. O(1). */
void omq_lane_map_read(omq_lane_map *map, omq_lane_map_state *state);

/* For tests: NULL, or the first invariant found broken (static text). Any thread. O(n). */
const char *omq_lane_map_check(omq_lane_map *map);

/* ---- lock table: any thread. Groups, queues and owners are ids that it gives out. ---- */

typedef struct omq_lock_table omq_lock_table;
typedef struct {
    uint64_t group;
    uint64_t queue;
    uint64_t owner;
    uint64_t epoch; /* >= 1 */
    int64_t granted_ms;
} omq_lock;
/* Make an empty table: lease_ms >= 0, first_epoch >= 1. NULL without memory. The caller frees
 * it; NULL is allowed. */
omq_lock_table *omq_lock_table_new(int64_t lease_ms, uint64_t first_epoch);
void omq_lock_table_free(omq_lock_table *table);
/* Give out an id: never 0, none twice; its low half may be an index. It lasts while it is
 * pinned or a lock uses it, else until the next forget. NO_MEMORY. O(1) amortised. */
omq_status omq_lock_table_add_id(omq_lock_table *table, uint64_t *id);
/* Count a pin, or take one back. UNKNOWN_ID; OUT_OF_RANGE: 2^32 pins, or none. O(1). */
omq_status omq_lock_table_pin(omq_lock_table *table, uint64_t id);
omq_status omq_lock_table_unpin(omq_lock_table *table, uint64_t id);
/* How many of the ids, from the first on, are known. O(count). */
size_t omq_lock_table_known(omq_lock_table *table, const uint64_t *ids, size_t count);
/* Forget ids without pin and lock, up to `capacity`, and write them; return how many. Fewer
 * than `capacity`: none is left. O(ids new, or without their last pin or lock, since). */
size_t omq_lock_table_forget(omq_lock_table *table, uint64_t *ids, size_t capacity);

/* Grant or renew each queue under one lock; write its epoch, or 0: another owner is live, until
 * now_ms - granted_ms > lease_ms. UNKNOWN_ID; NO_MEMORY (a prefix may be granted). O(count). */
omq_status omq_lock_table_try_lock(omq_lock_table *table, uint64_t group, const uint64_t *queues,
                                   size_t count, uint64_t owner, int64_t now_ms, uint64_t *epochs);

/* Delete each entry that is this owner's and of its epoch, under one lock; `epochs` may be
 * NULL, and an epoch 0, for any. Write whether it was; an unknown id holds nothing. O(count). */
void omq_lock_table_unlock(omq_lock_table *table, uint64_t group, const uint64_t *queues,
                           size_t count, uint64_t owner, const uint64_t *epochs, bool *unlocked);

/* Write the entry of a queue, expired or not; false if there is none. O(1). */
bool omq_lock_table_holder(omq_lock_table *table, uint64_t group, uint64_t queue, omq_lock *lock);
/* Whether the owner holds the queue live in this epoch. O(1). */
bool omq_lock_table_is_current(omq_lock_table *table, uint64_t group, uint64_t queue,
                               uint64_t owner, uint64_t epoch, int64_t now_ms);
/* Whether the group holds nothing live. O(entries of the group). */
bool omq_lock_table_is_all_expired(omq_lock_table *table, uint64_t group, int64_t now_ms);

/* Delete expired entries, up to `capacity`, and write them; return how many. Fewer: none is
 * left. O(groups + entries of those with one expired, or not swept since a lease). */
size_t omq_lock_table_sweep(omq_lock_table *table, int64_t now_ms, omq_lock *locks,
                            size_t capacity);
/* Write every entry, up to `capacity`; return how many there are. O(n). */
size_t omq_lock_table_snapshot(omq_lock_table *table, omq_lock *locks, size_t capacity);

/* Replace all entries; the next epoch becomes next_epoch if that is greater. NO_MEMORY,
 * OUT_OF_RANGE (an epoch), DUPLICATE, UNKNOWN_ID: nothing was done. O(n + count). */
omq_status omq_lock_table_restore(omq_lock_table *table, const omq_lock *locks, size_t count,
                                  uint64_t next_epoch);

/* Entries, and the epoch of the next new holder. O(1). */
size_t omq_lock_table_count(omq_lock_table *table);
uint64_t omq_lock_table_next_epoch(omq_lock_table *table);
/* For tests: NULL, or the first invariant found broken (static text). O(n). */
const char *omq_lock_table_check(omq_lock_table *table);

/* ---- message codec: pure functions on bytes, any thread. ---- */

/* What is wrong with a stored record; in words: ordermq/core/status.py. */
typedef enum {
    OMQ_FAULT_TRAILING = 1, OMQ_FAULT_RECORD_SIZE = 2, OMQ_FAULT_TRUNCATED = 3,
    OMQ_FAULT_MAGIC = 4, OMQ_FAULT_FIXED_PART = 5, OMQ_FAULT_QUEUE_OFFSET = 6,
    OMQ_FAULT_BODY_SIZE = 7, OMQ_FAULT_TOPIC_SIZE = 8, OMQ_FAULT_PROPERTY_SIZE = 9,
    OMQ_FAULT_RECORD_END = 10, OMQ_FAULT_CRC = 11, OMQ_FAULT_INNER_SIZE = 12,
    OMQ_FAULT_INNER_BODY = 13, OMQ_FAULT_INNER_PROPERTIES = 14, OMQ_FAULT_INNER_COMPRESSED = 15,
    OMQ_FAULT_INNER_DELAYED = 16 /* or transactional; of a batch body, not of stored records */
} omq_fault;
typedef struct {
    omq_fault fault;
    size_t record;   /* index of the record, from 0 */
    size_t position; /* bytes from the start of the body to the field at fault */
} omq_message_fault;

typedef struct {
    const uint8_t *bytes;
    size_t size;
} omq_text;

/* Where the messages of a pull body are: arrays of the caller, a row a kept message. */
typedef struct {
    uint32_t *positions;  /* of its record, or its entry of an inner batch, in the pull body */
    uint32_t *body_sizes; /* bytes */
    uint32_t *outers;     /* of the record around it, or the same; NULL: there is no inner batch */
    uint32_t *numbers;    /* its number within the inner batch, else 0; NULL as outers */
    size_t count;
    uint64_t size_bytes;  /* sum of the body sizes */
    int64_t first_offset; /* of row 0 */
    bool is_run;          /* row i has offset first_offset + i: what a process queue likes best */
} omq_message_rows;

/* A bound of the rows of a body, and whether some record is an inner batch. O(records). */
size_t omq_message_count(const uint8_t *body, size_t size, bool *has_inner);

/* Index a concatenation of stored records, v1 and v2, inner batches taken apart. With tags
 * (tag_count > 0) only messages whose TAGS is one of them get a row. The arrays of `rows` have
 * room for omq_message_count rows. Write rows and the offset of the last message scanned
 * (-1: none). check_crc: each stored body against its record's checksum, 31 bits. OUT_OF_RANGE:
 * size > UINT32_MAX. MALFORMED: fault is written, the rows are garbage.
 * O(records), with tags O(property bytes), with check_crc O(size). */
omq_status omq_message_index(const uint8_t *body, size_t size, const omq_text *tags,
                             size_t tag_count, bool check_crc, omq_message_rows *rows,
                             int64_t *last_offset, omq_message_fault *fault);

/* Bytes, positions from the start of the pull body. */
typedef struct {
    uint32_t body_at;
    uint32_t body_size;
    uint32_t property_at;
    uint32_t property_size;
    bool is_compressed; /* the body */
} omq_message_parts;

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
    uint32_t born_host_size; /* 8 or 20; so the next */
    uint32_t store_host_at;
    uint32_t store_host_size;
} omq_message;

/* Where the parts of a row are, or its numbers. `body` and `rows` are of an omq_message_index
 * that ended OK, and the bytes have not changed since: it has checked every length. O(1). */
void omq_message_locate(const uint8_t *body, const omq_message_rows *rows, size_t row,
                        omq_message_parts *parts);
void omq_message_read(const uint8_t *body, const omq_message_rows *rows, size_t row,
                      omq_message *message);
int64_t omq_message_offset(const uint8_t *body, const omq_message_rows *rows, size_t row);

/* The columns of an index: 0-3 int64, 4-8 uint32, then int32; see ordermq/core/columns.py. */
typedef enum {
    OMQ_COLUMN_OFFSETS = 0, OMQ_COLUMN_PHYSICAL_OFFSETS = 1, OMQ_COLUMN_BORN_TIMESTAMPS = 2,
    OMQ_COLUMN_STORE_TIMESTAMPS = 3, OMQ_COLUMN_POSITIONS = 4, OMQ_COLUMN_BODY_POSITIONS = 5,
    OMQ_COLUMN_BODY_SIZES = 6, OMQ_COLUMN_PROPERTY_POSITIONS = 7,
    OMQ_COLUMN_PROPERTY_SIZES = 8, OMQ_COLUMN_TAG_HASHES = 9, OMQ_COLUMN_QUEUE_IDS = 10,
    OMQ_COLUMN_FLAGS = 11, OMQ_COLUMN_SYS_FLAGS = 12, OMQ_COLUMN_RECONSUME_TIMES = 13,
    OMQ_COLUMN_END = 14
} omq_column;

/* Fill columns of the caller, each with room for rows->count. `columns` has OMQ_COLUMN_END
 * members; those that are NULL are not read. body and rows: as omq_message_locate.
 * O(rows), with tag hashes O(property bytes). */
void omq_message_read_columns(const uint8_t *body, const omq_message_rows *rows,
                              void *const *columns);

/* Write where the value of a property is, in the pull body; size 0 where there is none.
 * body and rows: as omq_message_locate. O(property bytes). */
void omq_message_find_property(const uint8_t *body, const omq_message_rows *rows,
                               const omq_text *name, uint32_t *positions, uint32_t *sizes);

typedef struct {
    omq_text name;
    omq_text value;
} omq_property;

/* Read the property at *at, from 0, and move *at behind it; false at the end. What has no name
 * or no value is passed over, as Java does. A name may come twice: the last one counts. */
bool omq_property_next(const uint8_t *text, size_t size, size_t *at, omq_property *property);

/* How many properties all rows have, doubles too; at least as many as the second lists: those of
 * row i are starts[i] .. starts[i + 1] - 1. A value begins a byte behind its name. `starts` has
 * room for rows->count + 1, the others for the count. Returns how many; of a name that comes
 * twice in a row, only the last. body and rows: as omq_message_locate. O(property bytes), times
 * a row's properties at worst. */
size_t omq_message_count_properties(const uint8_t *body, const omq_message_rows *rows);
size_t omq_message_list_properties(const uint8_t *body, const omq_message_rows *rows,
                                   int32_t *starts, uint32_t *name_positions,
                                   uint32_t *name_sizes, uint32_t *value_sizes);

/* Write where pieces of a body begin when they lie one behind the other: count + 1 members, the
 * last is the end. OUT_OF_RANGE: a piece reaches past the body, or all over INT32_MAX. Then copy
 * them there. Returns the first that is not UTF-8 if is_text; else, or if all are, count.
 * O(count); O(bytes). Any thread. */
omq_status omq_gather_measure(size_t body_size, const uint32_t *positions, const uint32_t *sizes,
                              size_t count, int32_t *starts);
size_t omq_gather_copy(const uint8_t *body, const uint32_t *positions, const int32_t *starts,
                       size_t count, bool is_text, uint8_t *bytes);

/* The value of a property, never empty; false if there is none. Whether bytes are UTF-8 as
 * Python's strict decoder has it. Java's String.hashCode of UTF-8 text, the broker's tag filter;
 * of other bytes 0. O(size). */
bool omq_property_find(const uint8_t *text, size_t size, const omq_text *name, omq_text *value);
bool omq_is_utf8(const uint8_t *text, size_t size);
int32_t omq_java_hash(const omq_text *text);

/* What a record says besides its message. Nothing is kept of the texts. */
typedef struct {
    omq_text topic;      /* UTF-8, up to 32767 bytes; more than 127 make the record a v2 one */
    omq_text born_host;  /* 4 or 16 bytes of address, 4 of port */
    omq_text store_host;
    int64_t born_ms;
    int64_t stored_ms;
    int32_t queue_id;
    int32_t sys_flag;    /* its two bits of hosts follow the hosts */
    int32_t reconsume_times;
} omq_record_head;
typedef struct {
    omq_text body;
    omq_text properties; /* up to 32767 bytes */
    int32_t flag;
} omq_outgoing;

/* Bytes of a record; 0 if a text or the whole is too long, or a host is none. O(1). Write such
 * a record (docs/internals/protocol.md#stored-message), its two offsets 0; the size is not 0, and
 * there is room. O(size). */
size_t omq_record_size(const omq_record_head *head, size_t body_size, size_t property_size);
void omq_record_write(const omq_record_head *head, const omq_outgoing *message, uint8_t *record);

/* Check a whole batch body (docs/internals/protocol.md#batch-body); write its messages and the
 * bytes of their records.
 * MALFORMED: fault is written. OUT_OF_RANGE: size or *record_bytes over UINT32_MAX, or
 * omq_record_size is 0. O(property bytes). Then write the records, joined, from the same bytes:
 * positions has room for count + 1, the last one is the end; tags for count, as omq_tag_hash.
 * O(size + *record_bytes). */
omq_status omq_batch_measure(const omq_record_head *head, const uint8_t *batch, size_t size,
                             size_t *count, size_t *record_bytes, omq_message_fault *fault);
void omq_batch_write(const omq_record_head *head, const uint8_t *batch, size_t count,
                     uint8_t *records, uint32_t *positions, int64_t *tags);

/* Give joined records consecutive places, from these on. O(count). */
void omq_records_stamp(uint8_t *records, const uint32_t *positions, size_t count,
                       int64_t queue_offset, int64_t physical_offset);

/* omq_java_hash of TAGS, 0 without it. O(size). */
int32_t omq_tag_hash(const omq_text *properties);

/* Bytes of the batch body of so many messages, and the body, as a producer sends it.
 * OUT_OF_RANGE: properties too long, a message over INT32_MAX, all over UINT32_MAX. O(size). */
omq_status omq_batch_size(const omq_outgoing *messages, size_t count, size_t *size);
void omq_batch_encode(const omq_outgoing *messages, size_t count, uint8_t *batch);

/* ---- rows in columns, laid out as Arrow does. Pure functions, any thread. ---- */

/* Byte strings: value i is bytes[positions[i] .. positions[i + 1]), which is checked when read. */
typedef struct {
    const int32_t *positions; /* one more than rows */
    const uint8_t *bytes;
    size_t size;              /* of bytes */
} omq_texts;
typedef struct {
    omq_text name;            /* empty: the texts are properties in text form already */
    omq_texts texts;
    const int64_t *numbers;   /* not NULL: these instead, in decimal; then there is a name */
} omq_property_column;
typedef struct {
    omq_texts bodies;
    size_t count;             /* rows of bodies and of every column */
    omq_text fixed;           /* properties of each message, in text form */
    const omq_property_column *columns;
    size_t column_count;
    const uint8_t *unique;    /* 16 bytes, big-endian: the first UNIQ_KEY; NULL: none */
} omq_row_messages;

/* Write the first row behind `first` (< end) that is of another queue than the one before it, by
 * its id or one of the names, or whose offset is not greater; else `end`. OUT_OF_RANGE: a
 * position is. O(rows looked at). */
omq_status omq_ordered_rows(const int64_t *offsets, const int32_t *queue_ids,
                            const omq_texts *names, size_t name_count, size_t first, size_t end,
                            size_t *found);

/* Write how many of `rows`, from the first on and at least one, fit in most_bytes as a batch
 * body (docs/internals/protocol.md#batch-body), and its size. OUT_OF_RANGE, then *fitting is the
 * index of: a row that is
 * out of range, has no body, a value with a separator inside, properties over 32767 bytes or
 * a size over INT32_MAX. row_count >= 1. Then write that body. O(size). */
omq_status omq_rows_measure(const omq_row_messages *messages, const uint32_t *rows,
                            size_t row_count, size_t most_bytes, size_t *fitting, size_t *size);
void omq_rows_encode(const omq_row_messages *messages, const uint32_t *rows, size_t row_count,
                     uint8_t *batch);

/* What is wrong with a binary command header (docs/internals/protocol.md#binary-header), or OK. */
typedef enum {
    OMQ_HEADER_OK = 0, OMQ_HEADER_END = 1, OMQ_HEADER_REMARK = 2, OMQ_HEADER_FIELDS = 3,
    OMQ_HEADER_NAME = 4, OMQ_HEADER_VALUE = 5, OMQ_HEADER_TEXT = 6
} omq_header_fault;
typedef struct {
    int32_t opaque;
    int32_t flag;
    int16_t code;
    int16_t version;
    uint8_t language;
    omq_text remark;
    omq_text fields;
} omq_header;

/* Read and check a header, texts as UTF-8 too; write the byte at fault. O(size). Then each
 * field at *at, from 0, which it moves; false behind the last. Pure functions, any thread. */
omq_header_fault omq_header_read(const uint8_t *bytes, size_t size, omq_header *header,
                                 size_t *position);
bool omq_header_next_field(const omq_header *header, size_t *at, omq_property *field);

/* </declarations> */

#endif

/* The C core without Python, for ci/sanitize.sh: `driver single STEPS SEED` drives every
 * structure at random with its check after each step, `driver starved STEPS SEED` maps, queues
 * and lanes that run out of memory again and again, `driver fuzz CASES SEED RECORD...` mutates
 * stored records, `driver headers` command headers, `driver batches` bodies of batch sends,
 * `driver replies` headers of answers to pulls, `driver answers` their bodies, of which it makes
 * columns, `driver sends` sends to a broker, `driver proxied` messages and answers of a proxy,
 * `driver handover ROUNDS SEED` hands answers from thread to thread,
 * `driver engine ROUNDS SEED` runs the pull engine, `driver threads ROUNDS` hammers one queue, one table, one lane map
 * and one assigned queue.
 *
 * ci/fuzz.sh builds it with OMQ_FUZZ: then it has no main, libFuzzer brings the inputs, and the
 * random numbers of the structures' steps are the bytes of the input. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32.h"
#include "sanitize.h"

enum { KEYS = 4000, QUEUES = 64 };

const char *seed_text = "-";

static const uint8_t *input; /* under libFuzzer: what the next numbers are drawn from */
static size_t input_left;

uint32_t draw(uint64_t *state, uint32_t below) {
    /* As few bytes as the range needs: the fuzzer then learns which byte decides what. */
    size_t width = below <= 0x100 ? 1 : below <= 0x10000 ? 2 : 4;
    if (input_left >= width) {
        uint32_t number = 0;
        for (input_left -= width; width > 0; width--) {
            number = number << 8 | *input++;
        }
        return number % below;
    }
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33) % below;
}

/* Linked with --wrap=malloc,calloc,realloc: of the core's calls, one in `failing` finds no memory. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

uint32_t failing;
static uint64_t luck = 5;

static bool fails(void) { return failing > 0 && draw(&luck, failing) == 0; }
void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *memory, size_t size) {
    return fails() ? NULL : __real_realloc(memory, size);
}

bool is_done(omq_status status) {
    return status == OMQ_OK || (failing > 0 && status == OMQ_NO_MEMORY);
}

void sound(const char *broken) {
    if (broken != NULL) {
        fprintf(stderr, "broken: %s, seed %s\n", broken, seed_text);
        abort();
    }
}

/* ---- offset map beside an array ---- */

/* Key i of the array is the offset base + i * stride: by the stride the map's blocks are dense,
 * thin, or directory entries alone. */
typedef struct {
    omq_offset_map *map;
    int64_t base;
    int64_t stride;
    bool is_held[KEYS];
    uint64_t tokens[KEYS];
    size_t held;
} mirror;

static int64_t offset_of(const mirror *side, size_t key) {
    return side->base + (int64_t)key * side->stride;
}

static void is_like(const mirror *side, size_t key, const omq_entry *entry) {
    REQUIRE(entry->offset == offset_of(side, key) && entry->token == side->tokens[key]);
}

static void put_keys(mirror *side, const uint32_t *keys, uint32_t count, uint64_t token) {
    int64_t offsets[BATCH];
    uint64_t tokens[BATCH];
    size_t added;
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = offset_of(side, keys[i]);
        tokens[i] = token + i;
    }
    omq_status status = omq_offset_map_put_columns(side->map, offsets, tokens, count, &added);
    REQUIRE(is_done(status));
    size_t expected = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!side->is_held[keys[i]] && status == OMQ_NO_MEMORY && expected == added) {
            break; /* a prefix is stored, and only an absent offset needs memory */
        }
        expected += !side->is_held[keys[i]];
        side->is_held[keys[i]] = true;
        side->tokens[keys[i]] = tokens[i];
    }
    REQUIRE(expected == added);
    side->held += added;
}

static void remove_keys(mirror *side, const uint32_t *keys, uint32_t count) {
    int64_t offsets[BATCH];
    size_t expected = 0;
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = offset_of(side, keys[i]);
        expected += side->is_held[keys[i]];
        side->is_held[keys[i]] = false;
    }
    REQUIRE(omq_offset_map_remove_columns(side->map, offsets, count) == expected);
    side->held -= expected;
}

static void pop_keys(mirror *side, size_t limit) {
    omq_entry entries[BATCH];
    size_t popped = omq_offset_map_pop_first(side->map, entries, limit);
    REQUIRE(popped == (limit < side->held ? limit : side->held));
    for (size_t key = 0, at = 0; at < popped; key++) {
        if (side->is_held[key]) {
            is_like(side, key, entries + at++);
            side->is_held[key] = false;
        }
    }
    side->held -= popped;
}

/* What the map says about one offset, held or not, and the columns from there on. */
static void look(const mirror *side, uint64_t *seed) {
    uint32_t key = draw(seed, KEYS);
    int64_t offset = offset_of(side, key);
    size_t below = key;
    size_t above = key;
    uint64_t token;
    omq_entry entry;
    while (below > 0 && !side->is_held[below]) {
        below--;
    }
    while (above < KEYS - 1 && !side->is_held[above]) {
        above++;
    }
    REQUIRE(omq_offset_map_get(side->map, offset, &token) == side->is_held[key]);
    REQUIRE(!side->is_held[key] || token == side->tokens[key]);
    REQUIRE(omq_offset_map_floor(side->map, offset, &entry) == side->is_held[below]);
    if (side->is_held[below]) {
        is_like(side, below, &entry);
    }
    REQUIRE(omq_offset_map_ceiling(side->map, offset, &entry) == side->is_held[above]);
    if (side->is_held[above]) {
        is_like(side, above, &entry);
    }
    int64_t offsets[BATCH];
    uint64_t tokens[BATCH];
    size_t capacity = 1 + draw(seed, BATCH);
    size_t copied = omq_offset_map_read(side->map, offset, offsets, tokens, capacity);
    size_t at = 0;
    for (; key < KEYS && at < capacity; key++) {
        if (side->is_held[key]) {
            REQUIRE(at < copied);
            is_like(side, key, &(omq_entry){offsets[at], tokens[at]});
            at++;
        }
    }
    REQUIRE(at == copied);
}

static void drive_map(uint64_t *seed, int steps, int64_t base, int64_t stride) {
    static mirror side;
    side = (mirror){.base = base, .stride = stride};
    uint32_t wanted = failing;
    failing = 0;
    side.map = omq_offset_map_new();
    failing = wanted;
    REQUIRE(side.map != NULL);
    for (int step = 0; step < steps; step++) {
        uint32_t keys[BATCH];
        uint32_t count = 1 + draw(seed, BATCH);
        uint32_t first = draw(seed, KEYS - BATCH);
        bool is_run = draw(seed, 2) == 0;
        for (uint32_t i = 0; i < count; i++) {
            keys[i] = is_run ? first + i : draw(seed, KEYS);
        }
        if (draw(seed, 500) == 0) {
            omq_offset_map_clear(side.map);
            memset(side.is_held, 0, sizeof side.is_held);
            side.held = 0;
        } else if (draw(seed, 20) == 0) {
            pop_keys(&side, count);
        } else if (draw(seed, 8) < 1 + (uint32_t)step / 64 % 7) { /* the map fills, and thins */
            put_keys(&side, keys, count, (uint64_t)step << 32);
        } else {
            remove_keys(&side, keys, count);
        }
        REQUIRE(omq_offset_map_count(side.map) == side.held);
        sound(omq_offset_map_check(side.map));
        look(&side, seed);
    }
    omq_offset_map_free(side.map);
}

/* Dense, in between, thin, alone, and up to the last offset there is. */
static void drive_maps(uint64_t *seed, int steps) {
    drive_map(seed, steps / 2, 100, 1);
    for (int64_t stride = 3; stride < 200; stride *= 3) {
        drive_map(seed, steps / 10, 0, stride);
    }
    int64_t far = INT64_MAX / KEYS;
    drive_map(seed, steps / 10, INT64_MAX - 1 - far * (KEYS - 1), far);
    drive_map(seed, steps / 10, INT64_MAX - 1 - (KEYS - 1), 1);
}

/* ---- process queue: its own check, and that what is taken ascends ---- */

static void put(omq_process_queue *queue, uint64_t *seed, uint32_t below) {
    int64_t offsets[BATCH];
    uint32_t sizes[BATCH];
    uint32_t count = 1 + draw(seed, BATCH);
    uint32_t slot;
    bool dispatch;
    int64_t first = draw(seed, below);
    uint32_t gap = draw(seed, 4) == 0 ? 2 : 1;
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = first + (int64_t)i * gap;
        sizes[i] = draw(seed, 1000);
    }
    if (gap == 1 && draw(seed, 2)) {
        static const uint32_t kept[BATCH] = {5, 0, 900};
        uint64_t bytes = count > 2 ? 905 : 5;
        REQUIRE(is_done(omq_process_queue_put_run(queue, first, kept, count, bytes, &slot, &dispatch)));
        return;
    }
    REQUIRE(is_done(omq_process_queue_put_batch(queue, offsets, draw(seed, 3) ? sizes : NULL, count,
                                                &slot, &dispatch)));
}

static void take(omq_process_queue *queue, uint64_t *seed) {
    omq_segment segments[BATCH];
    size_t count;
    size_t limit = 1 + draw(seed, BATCH);
    size_t messages = 0;
    REQUIRE(is_done(omq_process_queue_take_segments(queue, segments, limit, &count)));
    for (size_t i = 0; i < count; i++) {
        REQUIRE(segments[i].count > 0);
        messages += segments[i].count;
    }
    REQUIRE(messages <= limit);
}

static void step_queue(omq_process_queue *queue, uint64_t *seed, uint32_t below) {
    int64_t offsets[BATCH];
    uint32_t count = draw(seed, BATCH);
    uint32_t slot;
    size_t moved;
    int64_t watermark;
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = draw(seed, below);
    }
    switch (draw(seed, 12)) {
    case 0:
    case 1:
    case 2:
        put(queue, seed, below);
        break;
    case 3:
    case 4:
    case 5:
        take(queue, seed);
        break;
    case 6:
        (void)omq_process_queue_commit(queue, &slot);
        break;
    case 7:
        REQUIRE(is_done(omq_process_queue_make_again(queue, offsets, count, &moved)));
        break;
    case 8:
        REQUIRE(is_done(omq_process_queue_make_again_from(queue, draw(seed, below), &moved)));
        break;
    case 9:
        REQUIRE(is_done(omq_process_queue_remove(queue, offsets, count, &watermark)));
        break;
    case 10:
        if (draw(seed, 5) == 0) {
            REQUIRE(is_done(omq_process_queue_reset(queue, draw(seed, 100))));
        }
        break;
    default:
        while (omq_process_queue_collect(queue, &slot)) {
        }
    }
}

static void drive_queue(uint64_t *seed, int steps) {
    uint32_t odds = failing;
    failing = 0;
    omq_process_queue *queue = omq_process_queue_new();
    REQUIRE(queue != NULL);
    failing = odds;
    for (int step = 0; step < steps; step++) {
        step_queue(queue, seed, KEYS);
        uint32_t wanted = failing;
        failing = 0; /* the check needs memory itself */
        sound(omq_process_queue_check(queue));
        failing = wanted;
    }
    failing = 0;
    omq_process_queue_clear(queue);
    sound(omq_process_queue_check(queue));
    omq_process_queue_free(queue);
}

/* ---- lock table ---- */

enum { IDS = 512 };

/* The id of a name, which is a place in `ids`; a new one where the table forgot it. */
static uint64_t id_of(omq_lock_table *table, uint64_t *ids, uint64_t name) {
    if (omq_lock_table_known(table, ids + name, 1) == 0) {
        while (omq_lock_table_add_id(table, ids + name) != OMQ_OK) {
        }
    }
    return ids[name];
}

static void step_ids(omq_lock_table *table, uint64_t *ids, uint64_t *seed) {
    uint64_t forgotten[QUEUES];
    uint64_t unused;
    uint64_t id = id_of(table, ids, draw(seed, IDS));
    REQUIRE(omq_lock_table_pin(table, id) == OMQ_OK);
    if (draw(seed, 3) > 0) {
        REQUIRE(omq_lock_table_unpin(table, id) == OMQ_OK);
    }
    REQUIRE(is_done(omq_lock_table_add_id(table, &unused)));
    if (draw(seed, 4) == 0) {
        size_t count = omq_lock_table_forget(table, forgotten, QUEUES);
        REQUIRE(count == 0 || omq_lock_table_known(table, forgotten, 1) == 0);
        REQUIRE(count == 0 || omq_lock_table_pin(table, forgotten[0]) == OMQ_UNKNOWN_ID);
    }
}

static void step_table(omq_lock_table *table, uint64_t *ids, uint64_t *seed) {
    uint64_t queues[QUEUES];
    uint64_t epochs[QUEUES];
    bool unlocked[QUEUES];
    omq_lock locks[QUEUES];
    for (int i = 0; i < QUEUES; i++) {
        queues[i] = id_of(table, ids, draw(seed, 500));
    }
    int64_t now = draw(seed, 100);
    uint64_t group = id_of(table, ids, 500 + draw(seed, 3));
    uint64_t owner = id_of(table, ids, 504 + draw(seed, 4));
    REQUIRE(is_done(
        omq_lock_table_try_lock(table, group, queues, QUEUES, owner, now, epochs)));
    if (draw(seed, 2) == 0) {
        omq_lock_table_unlock(table, group, queues, QUEUES, owner, epochs, unlocked);
    }
    if (draw(seed, 4) == 0) {
        (void)omq_lock_table_sweep(table, now + 50, locks, QUEUES);
    }
    step_ids(table, ids, seed);
}

static void drive_table(uint64_t *seed, int steps) {
    uint32_t odds = failing;
    failing = 0;
    omq_lock_table *table = omq_lock_table_new(20, 1);
    REQUIRE(table != NULL);
    failing = odds;
    uint64_t ids[IDS] = {0};
    for (int step = 0; step < steps; step++) {
        step_table(table, ids, seed);
        sound(omq_lock_table_check(table));
    }
    failing = 0;
    size_t count = omq_lock_table_count(table);
    omq_lock *locks = malloc((count + 1) * sizeof *locks);
    REQUIRE(locks != NULL && omq_lock_table_snapshot(table, locks, count) == count);
    failing = odds;
    REQUIRE(is_done(omq_lock_table_restore(table, locks, count, 0)));
    REQUIRE(omq_lock_table_count(table) == count);
    sound(omq_lock_table_check(table));
    failing = 0;
    REQUIRE(omq_lock_table_restore(table, locks, count, 0) == OMQ_OK);
    sound(omq_lock_table_check(table));
    free(locks);
    omq_lock_table_free(table);
}

/* ---- message codec: mutated bodies, each in memory of exactly its size ---- */

static void read_row(const uint8_t *body, size_t size, const omq_message_rows *rows, size_t row) {
    omq_message_parts parts;
    omq_message message;
    omq_property property;
    size_t at = 0;
    omq_message_locate(body, rows, row, &parts);
    omq_message_read(body, rows, row, &message);
    REQUIRE((size_t)parts.body_at + parts.body_size <= size);
    REQUIRE((size_t)parts.property_at + parts.property_size <= size);
    REQUIRE((size_t)message.born_host_at + message.born_host_size <= size);
    REQUIRE((size_t)message.store_host_at + message.store_host_size <= size);
    REQUIRE(omq_message_offset(body, rows, row) == message.queue_offset);
    REQUIRE(message.queue_offset >= 0 && message.queue_offset < INT64_MAX);
    const uint8_t *text = body + parts.property_at;
    (void)omq_is_utf8(text, parts.property_size);
    while (omq_property_next(text, parts.property_size, &at, &property)) {
        omq_text value;
        REQUIRE(property.name.size > 0 && property.value.size > 0);
        REQUIRE(omq_property_find(text, parts.property_size, &property.name, &value));
        REQUIRE(value.size > 0 && value.bytes + value.size <= body + size);
        REQUIRE(value.bytes >= property.value.bytes); /* the last one of a name */
        (void)omq_java_hash(&value);
    }
}

static void gather_exactly(const uint8_t *body, size_t size, const uint32_t *positions,
                           const uint32_t *sizes, size_t count) {
    int32_t *starts = malloc((count + 1) * sizeof *starts);
    REQUIRE(starts != NULL);
    REQUIRE(omq_gather_measure(size, positions, sizes, count, starts) == OMQ_OK);
    uint8_t *bytes = malloc(starts[count] > 0 ? (size_t)starts[count] : 1);
    REQUIRE(bytes != NULL);
    REQUIRE(omq_gather_copy(body, positions, starts, count, true, bytes) <= count);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(memcmp(bytes + starts[i], body + positions[i], sizes[i]) == 0);
    }
    if (count > 0 && sizes[count - 1] > 0) { /* a byte fewer is one too few for some piece */
        size_t most = 0;
        for (size_t i = 0; i < count; i++) {
            size_t end = (size_t)positions[i] + sizes[i];
            most = end > most ? end : most;
        }
        REQUIRE(omq_gather_measure(most - 1, positions, sizes, count, starts) ==
                OMQ_OUT_OF_RANGE);
    }
    free(bytes);
    free(starts);
}

static void gather_properties(const uint8_t *body, size_t size, const omq_message_rows *rows) {
    size_t room = omq_message_count_properties(body, rows);
    int32_t *starts = malloc((rows->count + 1) * sizeof *starts);
    uint32_t *columns = malloc((room + 1) * 3 * sizeof *columns);
    REQUIRE(starts != NULL && columns != NULL);
    uint32_t *names = columns;
    uint32_t *name_sizes = columns + room;
    uint32_t *value_sizes = name_sizes + room;
    size_t count =
        omq_message_list_properties(body, rows, starts, names, name_sizes, value_sizes);
    REQUIRE(count <= room && starts[0] == 0 && (size_t)starts[rows->count] == count);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(name_sizes[i] > 0 && value_sizes[i] > 0);
        REQUIRE((size_t)names[i] + name_sizes[i] + 1 + value_sizes[i] <= size);
        REQUIRE(body[names[i] + name_sizes[i]] == 1);
    }
    gather_exactly(body, size, names, name_sizes, count);
    for (size_t i = 0; i < count; i++) {
        names[i] += name_sizes[i] + 1;
    }
    gather_exactly(body, size, names, value_sizes, count);
    free(starts);
    free(columns);
}

static void read_columns(const uint8_t *body, size_t size, const omq_message_rows *rows) {
    void *columns[OMQ_COLUMN_END];
    int64_t *memory = malloc((rows->count + 1) * OMQ_COLUMN_END * sizeof *memory);
    REQUIRE(memory != NULL);
    for (size_t i = 0; i < OMQ_COLUMN_END; i++) {
        columns[i] = memory + i * rows->count;
    }
    omq_message_read_columns(body, rows, columns);
    const uint32_t *bodies = columns[OMQ_COLUMN_BODY_POSITIONS];
    const uint32_t *sizes = columns[OMQ_COLUMN_BODY_SIZES];
    uint32_t *found = (uint32_t *)memory;
    omq_text name = {(const uint8_t *)"KEYS", 4};
    for (size_t i = 0; i < rows->count; i++) {
        REQUIRE((size_t)bodies[i] + sizes[i] <= size);
    }
    omq_message_find_property(body, rows, &name, found, found + rows->count);
    for (size_t i = 0; i < rows->count; i++) {
        REQUIRE((size_t)found[i] + found[rows->count + i] <= size);
    }
    gather_exactly(body, size, found, found + rows->count, rows->count);
    free(memory);
    gather_properties(body, size, rows);
}

static void index_exactly(const uint8_t *bytes, size_t size) {
    const omq_text tags[] = {{(const uint8_t *)"TagA", 4}, {(const uint8_t *)"x", 1}};
    uint8_t *body = malloc(size > 0 ? size : 1);
    REQUIRE(body != NULL);
    memcpy(body, bytes, size);
    REQUIRE(omq_crc32(body, size) == omq_crc32_by_tables(body, size));
    bool has_inner;
    size_t room = omq_message_count(body, size, &has_inner);
    omq_message_rows rows = {.positions = malloc((room + 1) * sizeof(uint32_t)),
                             .body_sizes = malloc((room + 1) * sizeof(uint32_t))};
    if (has_inner) {
        rows.outers = malloc((room + 1) * sizeof(uint32_t));
        rows.numbers = malloc((room + 1) * sizeof(uint32_t));
    }
    for (size_t tag_count = 0; tag_count <= 2; tag_count++) {
        int64_t last;
        omq_message_fault fault;
        omq_pulled pulled = {.first = 3, .end = INT64_MAX - 9, .queue_id = -1};
        omq_status status = omq_message_index(body, size, tags, tag_count, tag_count == 1,
                                              tag_count == 2 ? &pulled : NULL, &rows, &last, &fault);
        REQUIRE(status == OMQ_OK || status == OMQ_MALFORMED);
        REQUIRE(status == OMQ_OK || fault.position <= size);
        REQUIRE(rows.count <= room);
        for (size_t i = 0; status == OMQ_OK && i < rows.count; i++) {
            read_row(body, size, &rows, i);
        }
        if (status == OMQ_OK) {
            read_columns(body, size, &rows);
        }
    }
    free(rows.positions);
    free(rows.body_sizes);
    free(rows.outers);
    free(rows.numbers);
    free(body);
}

static void read_header_exactly(const uint8_t *bytes, size_t size) {
    uint8_t *data = malloc(size > 0 ? size : 1);
    omq_header header;
    omq_property field;
    size_t position;
    size_t at = 0;
    REQUIRE(data != NULL);
    memcpy(data, bytes, size);
    omq_header_fault fault = omq_header_read(data, size, &header, &position);
    REQUIRE(fault == OMQ_HEADER_OK || position <= size);
    while (fault == OMQ_HEADER_OK && omq_header_next_field(&header, &at, &field)) {
        REQUIRE(field.name.bytes >= data && field.value.bytes + field.value.size <= data + size);
        REQUIRE(omq_is_utf8(field.name.bytes, field.name.size));
    }
    REQUIRE(fault != OMQ_HEADER_OK || at == header.fields.size);
    free(data);
}

static size_t read_record(const char *path, uint8_t *bytes, size_t capacity) {
    FILE *file = fopen(path, "r");
    size_t size = 0;
    unsigned value;
    REQUIRE(file != NULL);
    while (size < capacity && fscanf(file, "%2x", &value) == 1) {
        bytes[size++] = (uint8_t)value;
    }
    (void)fclose(file);
    return size;
}

/* Mutate what the files hold, `copies` of each one behind the other. */
static void fuzz(uint64_t *seed, int cases, char **paths, int path_count, int copies,
                 void (*read_exactly)(const uint8_t *, size_t)) {
    static const uint8_t telling[] = {0, 1, 2, 0x7F, 0x80, 0xFF};
    uint8_t real[4096];
    uint8_t body[4096];
    size_t size = 0;
    for (int i = 0; i < copies * path_count; i++) {
        size += read_record(paths[i % path_count], real + size, sizeof real - size);
    }
    read_exactly(real, size);
    for (int i = 0; i < cases; i++) {
        memcpy(body, real, size);
        for (uint32_t changes = 1 + draw(seed, 4); changes > 0; changes--) {
            uint32_t at = draw(seed, (uint32_t)size);
            body[at] = draw(seed, 2) ? telling[draw(seed, sizeof telling)]
                                     : (uint8_t)(body[at] ^ (1U << draw(seed, 8)));
        }
        read_exactly(body, draw(seed, 3) == 0 ? draw(seed, (uint32_t)size + 1) : size);
    }
}

/* ---- threads ---- */

static omq_process_queue *shared_queue;
static omq_lock_table *shared_table;
static omq_lane_map *shared_lanes;
static omq_process_queue *shared_buffer;
static omq_assigned_queue *shared_assigned;
static uint64_t shared_ids[IDS]; /* pinned, and so known throughout */
static int rounds;

static void *hammer(void *argument) {
    uint64_t number = *(const uint64_t *)argument;
    uint64_t seed = number * 7919;
    REQUIRE(omq_crc32((const uint8_t *)"123456789", 9) == 0xCBF43926); /* all make its tables */
    for (int i = 0; i < rounds; i++) {
        omq_process_queue_state state;
        step_queue(shared_queue, &seed, 2000);
        omq_process_queue_read(shared_queue, &state);
        step_table(shared_table, shared_ids, &seed);
        step_lanes(shared_lanes, &seed, true);
        step_assigned(shared_assigned, false, &seed);
        if (i % 64 == 0) {
            sound(omq_process_queue_check(shared_queue));
            sound(omq_lock_table_check(shared_table));
            sound(omq_lane_map_check(shared_lanes));
            sound(omq_assigned_queue_check(shared_assigned));
            sound(omq_process_queue_check(shared_buffer));
        }
    }
    return NULL;
}

static void drive_threads(void) {
    pthread_t threads[4];
    uint64_t numbers[4];
    shared_queue = omq_process_queue_new();
    shared_table = omq_lock_table_new(20, 1);
    shared_lanes = omq_lane_map_new(24, 500, false, 7);
    shared_buffer = omq_process_queue_new();
    REQUIRE(shared_queue != NULL && shared_table != NULL && shared_lanes != NULL);
    REQUIRE(shared_buffer != NULL);
    shared_assigned =
        omq_assigned_queue_new(shared_buffer, NULL, (omq_lease){1, 50}, 0, true);
    REQUIRE(shared_assigned != NULL);
    for (uint64_t name = 0; name < IDS; name++) {
        uint64_t id = id_of(shared_table, shared_ids, name);
        REQUIRE(omq_lock_table_pin(shared_table, id) == OMQ_OK);
    }
    for (uint64_t i = 0; i < 4; i++) {
        numbers[i] = i + 1;
        REQUIRE(pthread_create(threads + i, NULL, hammer, numbers + i) == 0);
    }
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    sound(omq_process_queue_check(shared_queue));
    omq_process_queue_free(shared_queue);
    sound(omq_lane_map_check(shared_lanes));
    omq_lock_table_free(shared_table);
    omq_lane_map_free(shared_lanes);
    omq_assigned_queue_free(shared_assigned);
    omq_process_queue_free(shared_buffer);
}

#ifdef OMQ_FUZZ

/* Random steps of one structure, chosen and led by the input. */
static void drive_structures(const uint8_t *bytes, size_t size) {
    enum { STEPS = 24 };
    uint64_t seed = 1;
    input = bytes;
    input_left = size;
    switch (draw(&seed, 5)) {
    case 0: drive_maps(&seed, STEPS); break;
    case 1: drive_queue(&seed, STEPS); break;
    case 2: drive_table(&seed, STEPS); break;
    case 3: drive_rows(&seed, STEPS); break;
    default: drive_lanes(&seed, STEPS); break;
    }
    input_left = 0;
}

/* A sequence of calls on one assigned queue, as the input says. */
static void drive_calls(const uint8_t *bytes, size_t size) {
    uint64_t seed = 1;
    input = bytes;
    input_left = size;
    drive_assigned(&seed, 200);
    input_left = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Every target calls all functions, so that none is unused; OMQ_FUZZ names the one to feed. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const struct {
        const char *name;
        void (*read_exactly)(const uint8_t *, size_t);
    } targets[] = {{"records", index_exactly},
                   {"headers", read_header_exactly},
                   {"batches", write_exactly},
                   {"replies", read_reply_exactly},
                   {"columns", read_answer_exactly},
                   {"sends", read_sends_exactly},
                   {"proxied", read_proxied_exactly},
                   {"to_proxy", send_to_proxy_exactly},
                   {"structures", drive_structures},
                   {"assigned", drive_calls}};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        if (strcmp(targets[i].name, OMQ_FUZZ) == 0) {
            targets[i].read_exactly(bytes, size);
        }
    }
    return 0;
}

#else

int main(int argc, char **argv) {
    REQUIRE(argc >= 3);
    int amount = atoi(argv[2]);
    seed_text = argc > 3 ? argv[3] : "-";
    uint64_t seed = strtoull(argc > 3 ? argv[3] : "1", NULL, 10);
    if (strcmp(argv[1], "single") == 0) {
        drive_maps(&seed, amount);
        drive_queue(&seed, amount);
        drive_table(&seed, amount);
        drive_rows(&seed, amount);
        drive_ids(&seed, amount);
        drive_texts(&seed, amount);
        drive_answers(&seed, amount / 20);
        drive_assigned(&seed, 10 * amount);
        for (int i = 0; i < 20; i++) { /* the bounds are drawn anew */
            drive_lanes(&seed, amount / 20);
        }
    } else if (strcmp(argv[1], "starved") == 0) {
        for (uint32_t odds = 2; odds <= 32; odds *= 4) {
            failing = odds;
            drive_maps(&seed, amount);
            failing = odds;
            drive_queue(&seed, amount);
            for (int i = 0; i < 20; i++) {
                failing = odds;
                drive_lanes(&seed, amount / 20);
            }
            failing = odds;
            drive_table(&seed, amount);
            failing = odds;
            drive_ids(&seed, amount);
            failing = odds;
            drive_texts(&seed, amount);
            failing = odds;
            drive_answers(&seed, amount / 20);
            failing = odds;
            drive_assigned(&seed, 10 * amount);
        }
        starve_reset();
    } else if (strcmp(argv[1], "fuzz") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 3, index_exactly);
    } else if (strcmp(argv[1], "answers") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 3, read_answer_exactly);
    } else if (strcmp(argv[1], "handover") == 0) {
        drive_handover(&seed, amount);
    } else if (strcmp(argv[1], "batches") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 3, write_exactly);
    } else if (strcmp(argv[1], "headers") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 1, read_header_exactly);
    } else if (strcmp(argv[1], "replies") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 1, read_reply_exactly);
    } else if (strcmp(argv[1], "sends") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 1, read_sends_exactly);
    } else if (strcmp(argv[1], "proxied") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 1, read_proxied_exactly);
    } else if (strcmp(argv[1], "to_proxy") == 0) {
        REQUIRE(argc > 4);
        fuzz(&seed, amount, argv + 4, argc - 4, 1, send_to_proxy_exactly);
    } else if (strcmp(argv[1], "engine") == 0) {
        drive_engine(&seed, amount);
    } else if (strcmp(argv[1], "waits") == 0) {
        drive_waits(&seed, amount);
    } else {
        rounds = amount;
        drive_threads();
    }
    printf("ordermq: %s %d: sound\n", argv[1], amount);
    return 0;
}

#endif

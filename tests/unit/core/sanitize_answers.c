/* Answers of pulls between an engine and a reader, beside a plain model and by threads, and their
 * columns in memory of exactly its size, beside what the codec reads of each message. */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "answer_columns.h"
#include "bytes.h"
#include "crc32.h"
#include "sanitize.h"

enum { RECORD = 100, MOST_PROPERTIES = 400, ROWS = 12, KEPT = 64, CALLS = 60, PARTS = 3 };
enum { PART_END = 3000, MOST_KEPT = 4000 };

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

/* ---- records ---- */

static void *exactly(size_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    REQUIRE(memory != NULL);
    return memory;
}

/* Write properties with names that come again, values that are none, and bytes that are no text. */
static size_t draw_properties(uint64_t *seed, uint8_t *text) {
    static const char *const names[] = {"__SHARDINGKEY", "KEYS", "TAGS", "UNIQ_KEY", "a", "b",
                                        "c\xC3\xA9", "KEY", "ATAGS", ""};
    static const char *const values[] = {"x", "\xC3\xA9", "", "KEYS", "long enough\1to count"};
    size_t size = 0;
    for (uint32_t left = draw(seed, draw(seed, 6) == 0 ? 30 : 6); left > 0; left--) {
        const char *name = names[draw(seed, sizeof names / sizeof *names)];
        const char *value = values[draw(seed, sizeof values / sizeof *values)];
        if (size + strlen(name) + strlen(value) + 3 > MOST_PROPERTIES) {
            break;
        }
        memcpy(text + size, name, strlen(name));
        size += strlen(name);
        text[size++] = 1;
        memcpy(text + size, value, strlen(value));
        size += strlen(value);
        if (draw(seed, 300) == 0) {
            text[size++] = 0xFF;
        }
        text[size++] = 2;
    }
    return size > 0 ? size - draw(seed, 2) : 0; /* the last separator may be missing */
}

static size_t write_record(uint64_t *seed, uint8_t *at, int64_t offset) {
    uint8_t text[MOST_PROPERTIES];
    size_t properties = draw_properties(seed, text);
    size_t body = draw(seed, 4);
    size_t size = 88 + body + 2 + 2 + properties;
    memset(at, 0, size);
    omq_write_u32(at, (uint32_t)size);
    omq_write_u32(at + 4, 0xDAA320A7u);
    omq_write_u64(at + 20, (uint64_t)offset);
    at[39] = (uint8_t)(draw(seed, 9) == 0); /* compressed */
    omq_write_u64(at + 40, (uint64_t)INT64_MAX - draw(seed, 2)); /* no clock's time */
    at[87] = (uint8_t)body;
    memset(at + 88, 'b', body);
    at[88 + body] = 1;
    at[89 + body] = 't';
    at[90 + body] = (uint8_t)(properties >> 8);
    at[91 + body] = (uint8_t)properties;
    memcpy(at + 92 + body, text, properties);
    return size;
}

/* Make an answer to a pull at `first`, some of whose messages may be missing; NULL: no memory. */
static omq_answer *draw_answer(uint64_t *seed, int64_t first, int64_t *next) {
    uint8_t body[ROWS * (RECORD + MOST_PROPERTIES)];
    omq_answer *answer = NULL;
    size_t size = 0;
    *next = first + draw(seed, 3) / 2;
    for (uint32_t rows = 1 + draw(seed, ROWS); rows > 0; rows--) {
        size += write_record(seed, body + size, *next);
        *next += 1 + (draw(seed, 15) == 0) * draw(seed, 4);
    }
    omq_pulled pulled = {.first = first, .end = *next, .queue_id = 0};
    REQUIRE(is_done(omq_answer_new(body, size, NULL, 0, false, &pulled, &answer)));
    return answer;
}

/* ---- columns ---- */

static const struct {
    omq_column_buffer starts;
    omq_column_buffer wanted;
    omq_text name;
} FOUND[] = {{OMQ_BUFFER_SHARDING_KEY + 1, OMQ_BUFFER_SHARDING_KEY, TEXT("__SHARDINGKEY")},
             {OMQ_BUFFER_KEYS + 1, OMQ_BUFFER_KEYS, TEXT("KEYS")},
             {OMQ_BUFFER_TAGS + 1, OMQ_BUFFER_TAGS, TEXT("TAGS")},
             {OMQ_BUFFER_MESSAGE_ID, OMQ_BUFFER_MESSAGE_ID, TEXT("UNIQ_KEY")}};
enum { FOUND_COUNT = sizeof FOUND / sizeof *FOUND };

static bool has(omq_wanted_columns wanted, omq_column_buffer buffer) {
    return (wanted & UINT32_C(1) << buffer) != 0;
}

/* What the map may go without: nothing, names, a prefix, or both. */
static const omq_text LEFT_OUT_NAMES[] = {TEXT("a"), TEXT("KEY"), TEXT("KEYS"), TEXT("TAGS"),
                                          TEXT("UNIQ_KEY")};
static const omq_left_out LEFT_OUT[] = {
    {LEFT_OUT_NAMES, 0, {NULL, 0}},
    {LEFT_OUT_NAMES, sizeof LEFT_OUT_NAMES / sizeof *LEFT_OUT_NAMES, {NULL, 0}},
    {LEFT_OUT_NAMES, 0, TEXT("A")},
    {LEFT_OUT_NAMES, sizeof LEFT_OUT_NAMES / sizeof *LEFT_OUT_NAMES, TEXT("__SHARD")},
};

static bool is_same(omq_text one, omq_text other) {
    return one.size == other.size && (one.size == 0 || memcmp(one.bytes, other.bytes, one.size) == 0);
}

static bool is_left_out(const omq_left_out *left_out, omq_text name) {
    omq_text begin = {name.bytes, left_out->prefix.size};
    bool is_out = begin.size > 0 && name.size >= begin.size && is_same(begin, left_out->prefix);
    for (size_t i = 0; i < left_out->count; i++) {
        is_out |= is_same(left_out->names[i], name);
    }
    return is_out;
}

/* The columns of one block while they are read again. */
typedef struct {
    omq_wanted_columns wanted;
    const omq_left_out *left_out;
    const uint8_t *memory;
    const omq_answer_columns *columns;
} block;

static const void *at_buffer(const block *read, int buffer) {
    return read->memory + read->columns->spans[buffer].at;
}

static omq_text text_of(const block *read, int starts, size_t row) {
    const int32_t *ends = at_buffer(read, starts);
    const uint8_t *bytes = at_buffer(read, starts + 1);
    REQUIRE(ends[0] == 0 && ends[row] <= ends[row + 1]);
    REQUIRE((size_t)ends[row + 1] <= read->columns->spans[starts + 1].size);
    return (omq_text){bytes + ends[row], (size_t)(ends[row + 1] - ends[row])};
}

/* Return whether the texts that are wanted of a message are UTF-8. */
static bool has_texts(const block *read, const uint8_t *text, size_t size) {
    omq_wanted_columns wanted = read->wanted;
    omq_property property;
    omq_text value;
    bool are_all = true;
    for (size_t at = 0; has(wanted, OMQ_BUFFER_PROPERTIES) &&
                        omq_property_next(text, size, &at, &property);) {
        are_all &= is_left_out(read->left_out, property.name) ||
                   (omq_is_utf8(property.name.bytes, property.name.size) &&
                    omq_is_utf8(property.value.bytes, property.value.size));
    }
    for (size_t i = 0; i < FOUND_COUNT; i++) {
        if (has(wanted, FOUND[i].wanted) && omq_property_find(text, size, &FOUND[i].name, &value)) {
            are_all &= omq_is_utf8(value.bytes, value.size);
        }
    }
    return are_all;
}

static void check_found(const block *read, size_t row, const uint8_t *text, size_t size) {
    for (size_t i = 0; i < FOUND_COUNT; i++) {
        omq_text value = {NULL, 0};
        if (!has(read->wanted, FOUND[i].wanted)) {
            continue;
        }
        bool is_there = omq_property_find(text, size, &FOUND[i].name, &value);
        omq_text written = text_of(read, FOUND[i].starts, row);
        if (FOUND[i].starts == FOUND[i].wanted) { /* the broker's id takes its place */
            REQUIRE(is_there ? is_same(written, value) : written.size == 32 || written.size == 56);
            continue;
        }
        size_t bits = read->columns->spans[FOUND[i].wanted].size;
        const uint8_t *validity = at_buffer(read, FOUND[i].wanted);
        REQUIRE(is_same(written, value));
        REQUIRE(is_there == (bits == 0 || (validity[row / 8] & 1u << row % 8) != 0));
    }
}

/* The map of a message has its properties in the order in which each name comes last. */
static void check_properties(const block *read, size_t row, const uint8_t *text, size_t size) {
    const int32_t *rows = at_buffer(read, OMQ_BUFFER_PROPERTIES);
    omq_property property;
    size_t entry = (size_t)rows[row];
    for (size_t at = 0; omq_property_next(text, size, &at, &property);) {
        omq_text last;
        REQUIRE(omq_property_find(text, size, &property.name, &last));
        if (last.bytes == property.value.bytes && !is_left_out(read->left_out, property.name)) {
            REQUIRE(is_same(text_of(read, OMQ_BUFFER_PROPERTIES + 1, entry), property.name));
            REQUIRE(is_same(text_of(read, OMQ_BUFFER_PROPERTIES + 3, entry), property.value));
            entry++;
        }
    }
    REQUIRE((size_t)rows[row + 1] == entry && entry <= read->columns->entries);
}

static void check_row(const block *read, size_t row, const omq_answer *answer, size_t at) {
    omq_message message;
    omq_message_parts places;
    omq_message_read(answer->body, &answer->rows, at, &message);
    omq_message_locate(answer->body, &answer->rows, at, &places);
    const uint8_t *text = answer->body + places.property_at;
    if (has(read->wanted, OMQ_BUFFER_OFFSETS)) {
        const int64_t *offsets = at_buffer(read, OMQ_BUFFER_OFFSETS);
        REQUIRE(offsets[row] == message.queue_offset);
    }
    if (has(read->wanted, OMQ_BUFFER_BODY)) {
        const int32_t *flags = at_buffer(read, OMQ_BUFFER_SYS_FLAGS);
        omq_text body = {answer->body + places.body_at, places.body_size};
        REQUIRE(is_same(text_of(read, OMQ_BUFFER_BODY, row), body));
        REQUIRE(flags[row] == message.sys_flag);
        REQUIRE(read->columns->has_compressed || !places.is_compressed);
    }
    if (has(read->wanted, OMQ_BUFFER_RECONSUME_TIMES)) {
        const int32_t *times = at_buffer(read, OMQ_BUFFER_RECONSUME_TIMES);
        REQUIRE(times[row] == message.reconsume_times);
    }
    check_found(read, row, text, places.property_size);
    if (has(read->wanted, OMQ_BUFFER_PROPERTIES)) {
        check_properties(read, row, text, places.property_size);
    }
}

/* Write columns of parts and read them again. */
static void check_columns(const omq_answer_rows *parts, size_t count, omq_wanted_columns wanted,
                          const omq_left_out *left_out) {
    omq_answer_columns columns;
    size_t bad_part = count;
    size_t bad_row = 0;
    size_t most = omq_answer_columns_most(parts, count, wanted);
    REQUIRE(most > 0);
    uint8_t *memory = exactly(most);
    bool is_written = omq_answer_columns_write(parts, count, wanted, left_out, memory, &columns,
                                               &bad_part, &bad_row);
    block read = {wanted, left_out, memory, &columns};
    REQUIRE(is_written == (bad_part == count));
    for (size_t i = 0; is_written && i < OMQ_BUFFER_END; i++) {
        size_t next = i + 1 < OMQ_BUFFER_END ? columns.spans[i + 1].at : most;
        REQUIRE(columns.spans[i].at % 64 == 0 && columns.spans[i].at + columns.spans[i].size <= next);
    }
    size_t row = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t at = parts[i].first_row; at < parts[i].end_row; at++, row++) {
            omq_message_parts places;
            omq_message_locate(parts[i].answer->body, &parts[i].answer->rows, at, &places);
            bool is_bad = i == bad_part && at == bad_row;
            REQUIRE(is_bad != has_texts(&read, parts[i].answer->body + places.property_at,
                                        places.property_size));
            if (is_bad) {
                free(memory);
                return;
            }
            if (is_written) {
                check_row(&read, row, parts[i].answer, at);
            }
        }
    }
    REQUIRE(is_written && row == columns.rows && columns.bytes <= most);
    free(memory);
}

/* Any choice of columns. */
static omq_wanted_columns draw_wanted(uint64_t *seed) {
    static const uint8_t all[] = {OMQ_BUFFER_OFFSETS, OMQ_BUFFER_SHARDING_KEY, OMQ_BUFFER_KEYS,
                                  OMQ_BUFFER_TAGS, OMQ_BUFFER_MESSAGE_ID, OMQ_BUFFER_BODY,
                                  OMQ_BUFFER_PROPERTIES, OMQ_BUFFER_BORN, OMQ_BUFFER_STORED,
                                  OMQ_BUFFER_RECONSUME_TIMES};
    omq_wanted_columns wanted = 0;
    bool are_all = draw(seed, 2) == 0;
    for (size_t i = 0; i < sizeof all; i++) {
        wanted |= (omq_wanted_columns)(are_all || draw(seed, 2)) << all[i];
    }
    return wanted;
}

static const omq_left_out *draw_left_out(uint64_t *seed) {
    return &LEFT_OUT[draw(seed, sizeof LEFT_OUT / sizeof *LEFT_OUT)];
}

void read_answer_exactly(const uint8_t *bytes, size_t size) {
    uint64_t seed = omq_crc32(bytes, size);
    omq_answer *answer;
    if (omq_answer_new(bytes, size, NULL, 0, false, NULL, &answer) != OMQ_OK) {
        return;
    }
    omq_answer_rows parts[PARTS];
    size_t taken = 0;
    for (size_t i = 0; i < PARTS; i++) {
        size_t left = answer->rows.count - taken;
        parts[i] = (omq_answer_rows){answer, taken, taken + draw(&seed, (uint32_t)left + 1)};
        taken = parts[i].end_row;
    }
    check_columns(parts, PARTS, draw_wanted(&seed), draw_left_out(&seed));
    omq_answer_release(answer);
}

/* ---- the queue beside a model ---- */

typedef struct {
    omq_answer_queue *queue;
    omq_answer_rows kept[KEPT]; /* of the answers, none held */
    size_t count;
    int64_t next;
    int64_t end;
    uint64_t bytes;
    uint64_t most_bytes;
    uint64_t lost;
    int64_t first_lost;
    bool is_whole;
    bool is_ended;
    bool is_waiting;
    int notified; /* by the queue, since the last look */
} model;

static void note(void *context) { ((model *)context)->notified++; }

static void require_next(model *side, omq_fill_next next) {
    omq_fill_next expected = side->is_ended             ? OMQ_FILL_REFUSED
                             : side->next >= side->end ? OMQ_FILL_END
                             : side->bytes > side->most_bytes ? OMQ_FILL_WAIT
                                                              : OMQ_FILL_MORE;
    REQUIRE(next == expected);
    side->is_waiting |= next == OMQ_FILL_WAIT;
}

/* Require that the waiter was called once, or not. */
static void require_notified(model *side, bool is_due) {
    REQUIRE(side->notified == (is_due && side->is_waiting));
    side->is_waiting &= !is_due;
    side->notified = 0;
}

static void fill(model *side, uint64_t *seed) {
    int64_t next;
    int64_t first = side->next + (draw(seed, 12) == 0 ? (int64_t)draw(seed, 3) : 0);
    omq_answer *answer = side->count < KEPT ? draw_answer(seed, first, &next) : NULL;
    if (answer == NULL) {
        return;
    }
    omq_fill_next then =
        omq_answer_queue_fill(side->queue, answer, first, next, (omq_room_waiter){note, side});
    if (then == OMQ_FILL_REFUSED) {
        REQUIRE(side->is_ended || first != side->next || failing > 0);
        omq_answer_release(answer);
        return;
    }
    REQUIRE(!side->is_ended && first == side->next);
    size_t rows = 0;
    for (int64_t offset = first; offset < next && offset < side->end; offset++) {
        if (rows < answer->rows.count &&
            omq_message_offset(answer->body, &answer->rows, rows) == offset) {
            rows++;
        } else if (side->is_whole) {
            side->first_lost = side->lost++ == 0 ? offset : side->first_lost;
        }
    }
    side->next = next;
    if (rows > 0) {
        side->kept[side->count++] = (omq_answer_rows){answer, 0, rows};
        side->bytes += answer->size;
    }
    require_next(side, then);
    omq_answer_release(answer);
}

static void take(model *side, uint64_t *seed) {
    omq_answer_rows rows;
    size_t most = 1 + draw(seed, ROWS);
    omq_taken taken = omq_answer_queue_take(side->queue, most, 0, &rows);
    if (side->count == 0) {
        bool is_over = side->is_ended || side->next >= side->end;
        REQUIRE(taken == (is_over ? OMQ_TAKEN_ALL : OMQ_TAKEN_NONE));
        return;
    }
    omq_answer_rows *oldest = &side->kept[0];
    size_t end = oldest->end_row - oldest->first_row > most ? oldest->first_row + most
                                                            : oldest->end_row;
    REQUIRE(taken == OMQ_TAKEN_SOME && rows.answer == oldest->answer);
    REQUIRE(rows.first_row == oldest->first_row && rows.end_row == end);
    oldest->first_row = end;
    if (end == oldest->end_row) {
        side->bytes -= oldest->answer->size;
        memmove(side->kept, side->kept + 1, --side->count * sizeof *side->kept);
        require_notified(side, side->bytes <= side->most_bytes / 2);
    }
    uint32_t odds = failing;
    failing = 0;
    check_columns(&rows, 1, draw_wanted(seed), draw_left_out(seed));
    failing = odds;
    omq_answer_release(rows.answer);
}

static void call(model *side, uint64_t *seed) {
    switch (draw(seed, 16)) {
    case 0:
        require_next(side, omq_answer_queue_may_fill(side->queue, (omq_room_waiter){note, side}));
        break;
    case 1: {
        int64_t next = side->next + (int64_t)draw(seed, 4) - 1;
        omq_answer_queue_skip(side->queue, next);
        side->next = next > side->next ? next : side->next;
        break;
    }
    case 2: {
        bool is_own = draw(seed, 2) == 0;
        omq_answer_queue_forget_waiter(side->queue, is_own ? (void *)side : (void *)seed);
        side->is_waiting &= !is_own;
        break;
    }
    case 3:
        if (draw(seed, 4) == 0) {
            omq_answer_queue_end(side->queue);
            side->is_ended = true;
            require_notified(side, true);
        }
        break;
    case 4: case 5: case 6: case 7: case 8:
        take(side, seed);
        break;
    default:
        fill(side, seed);
        break;
    }
}

void drive_answers(uint64_t *seed, int steps) {
    for (int step = 0; step < steps; step++) {
        int64_t start = draw(seed, 1000);
        model side = {.next = start, .end = start + draw(seed, 200), .most_bytes = draw(seed, 8000),
                      .first_lost = -1, .is_whole = draw(seed, 2) == 0};
        side.queue = omq_answer_queue_new(start, side.end, side.most_bytes, side.is_whole);
        if (side.queue == NULL) {
            REQUIRE(failing > 0);
            continue;
        }
        for (int i = 0; i < CALLS; i++) {
            int64_t first_lost;
            call(&side, seed);
            REQUIRE(omq_answer_queue_next(side.queue) == side.next);
            REQUIRE(omq_answer_queue_lost(side.queue, &first_lost) == side.lost);
            REQUIRE(first_lost == side.first_lost && side.notified == 0);
        }
        omq_answer_queue_free(side.queue); /* with what was not taken */
    }
}

/* ---- the queue between threads ---- */

typedef struct {
    omq_answer_queue *queue;
    uint64_t seed;
    pthread_mutex_t lock;
    pthread_cond_t has_room;
    bool is_notified;
    bool is_cut; /* a third thread ends the queue at some time */
    bool has_offset[PART_END]; /* the filler's, until it is joined */
} handover;

static void wake_filler(void *context) {
    handover *between = context;
    (void)pthread_mutex_lock(&between->lock);
    between->is_notified = true;
    (void)pthread_cond_signal(&between->has_room);
    (void)pthread_mutex_unlock(&between->lock);
}

/* Wait for room, of which the queue notifies: a notice that is lost hangs the run. */
static void wait_for_room(handover *between) {
    (void)pthread_mutex_lock(&between->lock);
    while (!between->is_notified) {
        (void)pthread_cond_wait(&between->has_room, &between->lock);
    }
    between->is_notified = false;
    (void)pthread_mutex_unlock(&between->lock);
}

static void *fill_all(void *context) {
    handover *between = context;
    uint64_t seed = between->seed + 1;
    omq_room_waiter waiter = {wake_filler, between};
    omq_fill_next then = OMQ_FILL_MORE;
    while (then == OMQ_FILL_MORE) {
        int64_t first = omq_answer_queue_next(between->queue);
        int64_t next;
        if (draw(&seed, 20) == 0) {
            omq_answer_queue_skip(between->queue, first + 1);
            then = omq_answer_queue_may_fill(between->queue, waiter);
        } else {
            omq_answer *answer = draw_answer(&seed, first, &next);
            for (size_t row = 0; row < answer->rows.count; row++) {
                int64_t offset = omq_message_offset(answer->body, &answer->rows, row);
                if (offset < PART_END) {
                    between->has_offset[offset] = true;
                }
            }
            then = omq_answer_queue_fill(between->queue, answer, first, next, waiter);
            omq_answer_release(answer); /* the reader may have freed its rows by now */
        }
        if (then == OMQ_FILL_WAIT) {
            wait_for_room(between);
            then = omq_answer_queue_may_fill(between->queue, waiter);
        }
    }
    REQUIRE(then == OMQ_FILL_END || between->is_cut);
    return NULL;
}

static void *end_early(void *context) {
    handover *between = context;
    uint64_t seed = between->seed + 2;
    for (uint32_t turns = draw(&seed, 3000); turns > 0; turns--) {
        sched_yield();
    }
    omq_answer_queue_end(between->queue);
    return NULL;
}

/* Take all and return how many offsets came; none may come twice or out of order. */
static size_t read_all(handover *between, bool *came) {
    uint64_t seed = between->seed + 3;
    omq_answer_rows parts[PARTS];
    size_t held = 0;
    size_t count = 0;
    int64_t expected = 0;
    omq_taken taken;
    while ((taken = omq_answer_queue_take(between->queue, 1 + draw(&seed, ROWS), 50,
                                          &parts[held])) != OMQ_TAKEN_ALL) {
        if (taken == OMQ_TAKEN_NONE) {
            continue;
        }
        const omq_answer_rows *own = &parts[held++];
        for (size_t row = own->first_row; row < own->end_row; row++, count++) {
            int64_t offset = omq_message_offset(own->answer->body, &own->answer->rows, row);
            REQUIRE(offset >= expected && offset < PART_END);
            expected = offset + 1;
            came[offset] = true;
        }
        if (held == PARTS || draw(&seed, 3) == 0) {
            check_columns(parts, held, draw_wanted(&seed), draw_left_out(&seed));
            while (held > 0) {
                omq_answer_release(parts[--held].answer);
            }
        }
    }
    while (held > 0) {
        omq_answer_release(parts[--held].answer);
    }
    return count;
}

void drive_handover(uint64_t *seed, int rounds) {
    for (int round = 0; round < rounds; round++) {
        static handover between;
        bool came[PART_END] = {false};
        pthread_t filler;
        pthread_t ender;
        memset(&between, 0, sizeof between);
        between.seed = draw(seed, UINT32_MAX);
        between.is_cut = draw(seed, 3) == 0;
        between.queue = omq_answer_queue_new(0, PART_END, MOST_KEPT, true);
        REQUIRE(between.queue != NULL && pthread_mutex_init(&between.lock, NULL) == 0);
        REQUIRE(pthread_cond_init(&between.has_room, NULL) == 0);
        REQUIRE(pthread_create(&filler, NULL, fill_all, &between) == 0);
        if (between.is_cut) {
            REQUIRE(pthread_create(&ender, NULL, end_early, &between) == 0);
        }
        size_t count = read_all(&between, came);
        REQUIRE(pthread_join(filler, NULL) == 0);
        if (between.is_cut) {
            REQUIRE(pthread_join(ender, NULL) == 0);
        }
        size_t filled = 0;
        for (size_t offset = 0; offset < PART_END; offset++) {
            filled += between.has_offset[offset];
            REQUIRE(!came[offset] || between.has_offset[offset]);
        }
        REQUIRE(between.is_cut ? count <= filled : count == filled);
        omq_answer_queue_free(between.queue);
        (void)pthread_cond_destroy(&between.has_room);
        (void)pthread_mutex_destroy(&between.lock);
    }
}

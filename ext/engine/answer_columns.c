#include "answer_columns.h"

#include <string.h>

#include "bytes.h"
#include "message_layout.h"

enum {
    ALIGNMENT = 64,        /* as Arrow asks for */
    SMALLEST_PROPERTY = 3, /* bytes: a name, a separator, a value */
    LONGEST_ID = 2 * (16 + 4 + 8)
};

/* A property as it is looked for. */
typedef struct {
    omq_column_buffer buffer;
    omq_text name;
} omq_known_property;

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

static const omq_known_property KNOWN[] = {
    {OMQ_BUFFER_SHARDING_KEY, TEXT("__SHARDINGKEY")},
    {OMQ_BUFFER_KEYS, TEXT("KEYS")},
    {OMQ_BUFFER_TAGS, TEXT("TAGS")},
    {OMQ_BUFFER_MESSAGE_ID, TEXT("UNIQ_KEY")},
};
enum { KNOWN_COUNT = sizeof KNOWN / sizeof KNOWN[0] };

/* A column of texts while it is written. */
typedef struct {
    int32_t *starts;
    uint8_t *bytes;
    uint8_t *validity; /* NULL: there are no nulls */
    size_t size;
    size_t count;
    size_t nulls;
} omq_text_column;

enum { LONGEST_NAME = 64 }; /* bytes, of those that are left out */

/* The names that are left out, found by their size. */
typedef struct {
    const omq_left_out *all;
    uint16_t firsts[LONGEST_NAME + 2]; /* number of the names that are shorter */
} omq_name_index;

typedef struct {
    omq_wanted_columns wanted;
    omq_name_index left_out;
    uint8_t *memory;
    omq_answer_columns *columns;
    omq_text_column texts[KNOWN_COUNT];
    omq_text_column body;
    omq_text_column names;
    omq_text_column values;
} omq_column_writer;

static bool is_wanted(omq_wanted_columns wanted, omq_column_buffer buffer) {
    return (wanted & UINT32_C(1) << buffer) != 0;
}

typedef struct {
    size_t rows;
    size_t body_bytes;
    size_t property_bytes; /* or more */
} omq_row_totals;

static omq_row_totals totals_of(const omq_answer_rows *parts, size_t count) {
    omq_row_totals totals = {0, 0, 0};
    for (size_t i = 0; i < count; i++) {
        const omq_message_rows *rows = &parts[i].answer->rows;
        totals.rows += parts[i].end_row - parts[i].first_row;
        for (size_t row = parts[i].first_row; row < parts[i].end_row; row++) {
            totals.body_bytes += rows->body_sizes[row];
        }
        totals.property_bytes += parts[i].answer->size;
    }
    return totals;
}

/* Give each wanted buffer its place, with room for all it can hold. Returns the size of it all. */
static size_t lay_out(const omq_row_totals *totals, omq_wanted_columns wanted,
                      omq_buffer_span *spans) {
    size_t starts = (totals->rows + 1) * sizeof(int32_t);
    size_t properties = totals->property_bytes;
    size_t entries = properties / SMALLEST_PROPERTY + 1;
    size_t sizes[OMQ_BUFFER_END] = {0};
    if (is_wanted(wanted, OMQ_BUFFER_OFFSETS)) {
        sizes[OMQ_BUFFER_OFFSETS] = totals->rows * sizeof(int64_t);
    }
    for (size_t i = 0; i + 1 < KNOWN_COUNT; i++) {
        if (is_wanted(wanted, KNOWN[i].buffer)) {
            sizes[KNOWN[i].buffer] = totals->rows / 8 + 1;
            sizes[KNOWN[i].buffer + 1] = starts;
            sizes[KNOWN[i].buffer + 2] = properties;
        }
    }
    if (is_wanted(wanted, OMQ_BUFFER_MESSAGE_ID)) {
        sizes[OMQ_BUFFER_MESSAGE_ID] = starts;
        sizes[OMQ_BUFFER_MESSAGE_ID + 1] = properties + totals->rows * LONGEST_ID;
    }
    if (is_wanted(wanted, OMQ_BUFFER_BODY)) {
        sizes[OMQ_BUFFER_BODY] = starts;
        sizes[OMQ_BUFFER_BODY + 1] = totals->body_bytes;
        sizes[OMQ_BUFFER_SYS_FLAGS] = totals->rows * sizeof(int32_t);
    }
    if (is_wanted(wanted, OMQ_BUFFER_PROPERTIES)) {
        sizes[OMQ_BUFFER_PROPERTIES] = starts;
        sizes[OMQ_BUFFER_PROPERTIES + 1] = entries * sizeof(int32_t);
        sizes[OMQ_BUFFER_PROPERTIES + 2] = properties;
        sizes[OMQ_BUFFER_PROPERTIES + 3] = entries * sizeof(int32_t);
        sizes[OMQ_BUFFER_PROPERTIES + 4] = properties;
    }
    if (is_wanted(wanted, OMQ_BUFFER_BORN)) {
        sizes[OMQ_BUFFER_BORN] = totals->rows * sizeof(int64_t);
    }
    if (is_wanted(wanted, OMQ_BUFFER_STORED)) {
        sizes[OMQ_BUFFER_STORED] = totals->rows * sizeof(int64_t);
    }
    if (is_wanted(wanted, OMQ_BUFFER_RECONSUME_TIMES)) {
        sizes[OMQ_BUFFER_RECONSUME_TIMES] = totals->rows * sizeof(int32_t);
    }
    size_t at = 0;
    for (size_t i = 0; i < OMQ_BUFFER_END; i++) {
        spans[i] = (omq_buffer_span){at, sizes[i]};
        at += (sizes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return at;
}

size_t omq_answer_columns_most(const omq_answer_rows *parts, size_t count,
                               omq_wanted_columns wanted) {
    omq_buffer_span spans[OMQ_BUFFER_END];
    omq_row_totals totals = totals_of(parts, count);
    if (totals.body_bytes > INT32_MAX ||
        totals.property_bytes + totals.rows * LONGEST_ID > INT32_MAX) {
        return 0;
    }
    return lay_out(&totals, wanted, spans) + ALIGNMENT; /* > 0, also without a row */
}

/* ---- texts ---- */

static omq_text_column text_column(const omq_column_writer *writer, size_t starts,
                                   bool has_validity) {
    const omq_buffer_span *spans = writer->columns->spans;
    omq_text_column column = {
        .starts = (int32_t *)(void *)(writer->memory + spans[starts].at),
        .bytes = writer->memory + spans[starts + 1].at,
        .validity = has_validity ? writer->memory + spans[starts - 1].at : NULL,
    };
    column.starts[0] = 0;
    if (has_validity) {
        memset(column.validity, 0, spans[starts - 1].size);
    }
    return column;
}

static void add_bytes(omq_text_column *column, const uint8_t *bytes, size_t size) {
    memcpy(column->bytes + column->size, bytes, size);
    column->size += size;
    column->count++;
    column->starts[column->count] = (int32_t)column->size;
}

/* Add a text of a property; without one (size 0) it is null. */
static void add_optional(omq_text_column *column, omq_text text) {
    if (text.size > 0) {
        column->validity[column->count / 8] |= (uint8_t)(1U << column->count % 8);
    } else {
        column->nulls++;
    }
    add_bytes(column, text.size > 0 ? text.bytes : column->bytes, text.size);
}

/* Add the broker's id of a message without one of its producer's (ordermq/model/identifiers.py). */
static void add_broker_id(omq_text_column *column, const uint8_t *body,
                          const omq_message *message) {
    static const char DIGITS[] = "0123456789ABCDEF";
    uint8_t plain[LONGEST_ID / 2];
    uint8_t id[LONGEST_ID];
    size_t size = message->store_host_size;
    memcpy(plain, body + message->store_host_at, size);
    omq_write_u64(plain + size, (uint64_t)message->physical_offset);
    size += sizeof(uint64_t);
    for (size_t i = 0; i < size; i++) {
        id[2 * i] = (uint8_t)DIGITS[plain[i] >> 4];
        id[2 * i + 1] = (uint8_t)DIGITS[plain[i] & 0xF];
    }
    add_bytes(column, id, 2 * size);
}

/* ---- properties ---- */

static bool is_same(omq_text one, omq_text other) {
    return one.size == other.size && memcmp(one.bytes, other.bytes, one.size) == 0;
}

static omq_name_index index_of(const omq_left_out *left_out) {
    omq_name_index index = {.all = left_out};
    size_t number = 0;
    for (size_t size = 0; size < LONGEST_NAME + 2; size++) {
        while (number < left_out->count && left_out->names[number].size < size) {
            number++;
        }
        index.firsts[size] = (uint16_t)number;
    }
    return index;
}

/* Return whether the map goes without this name. */
static bool is_left_out(const omq_name_index *index, omq_text name) {
    omq_text prefix = index->all->prefix;
    if (prefix.size > 0 && name.size >= prefix.size &&
        memcmp(name.bytes, prefix.bytes, prefix.size) == 0) {
        return true;
    }
    if (name.size > LONGEST_NAME) {
        return false;
    }
    for (size_t i = index->firsts[name.size]; i < index->firsts[name.size + 1]; i++) {
        if (memcmp(index->all->names[i].bytes, name.bytes, name.size) == 0) {
            return true;
        }
    }
    return false;
}

/* Read the next property that the map has; false: there is none. */
static bool next_kept(const omq_name_index *left_out, const uint8_t *text, size_t size, size_t *at,
                      omq_property *property) {
    while (omq_property_next(text, size, at, property)) {
        if (!is_left_out(left_out, property->name)) {
            return true;
        }
    }
    return false;
}

/* Return whether a name comes again from `at` on: the last one of a name counts. */
static bool comes_again(const uint8_t *text, size_t size, size_t at, omq_text name) {
    omq_property later;
    while (omq_property_next(text, size, &at, &later)) {
        if (is_same(later.name, name)) {
            return true;
        }
    }
    return false;
}

enum { SEEN = 16 }; /* names of a message that are compared with each other at once */

/* Add the properties of a message to the map. */
static void add_properties(omq_column_writer *writer, const uint8_t *text, size_t size) {
    omq_property found[SEEN];
    size_t count = 0;
    size_t at = 0;
    while (count < SEEN && next_kept(&writer->left_out, text, size, &at, &found[count])) {
        count++;
    }
    bool has_more = count == SEEN && at < size;
    for (size_t i = 0; i < count; i++) {
        bool is_last = true;
        for (size_t later = i + 1; later < count && is_last; later++) {
            is_last = !is_same(found[later].name, found[i].name);
        }
        if (is_last && !(has_more && comes_again(text, size, at, found[i].name))) {
            add_bytes(&writer->names, found[i].name.bytes, found[i].name.size);
            add_bytes(&writer->values, found[i].value.bytes, found[i].value.size);
        }
    }
    omq_property property;
    while (has_more && next_kept(&writer->left_out, text, size, &at, &property)) {
        if (!comes_again(text, size, at, property.name)) {
            add_bytes(&writer->names, property.name.bytes, property.name.size);
            add_bytes(&writer->values, property.value.bytes, property.value.size);
        }
    }
}

/* Return whether all texts of the map are UTF-8. What has no name or no value is no property, and
 * nobody reads it. */
static bool are_texts(const omq_name_index *left_out, const uint8_t *text, size_t size) {
    omq_property property;
    size_t at = 0;
    if (omq_is_utf8(text, size)) {
        return true;
    }
    while (next_kept(left_out, text, size, &at, &property)) {
        if (!omq_is_utf8(property.name.bytes, property.name.size) ||
            !omq_is_utf8(property.value.bytes, property.value.size)) {
            return false;
        }
    }
    return true;
}

/* ---- a message ---- */

/* Write the columns that come from the properties; false: not UTF-8. */
static bool write_texts(omq_column_writer *writer, const uint8_t *body,
                        const omq_message_parts *parts, const omq_message *message) {
    const uint8_t *text = body + parts->property_at;
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        omq_text value = {NULL, 0};
        if (!is_wanted(writer->wanted, KNOWN[i].buffer)) {
            continue;
        }
        if (omq_property_find(text, parts->property_size, &KNOWN[i].name, &value) &&
            !omq_is_utf8(value.bytes, value.size)) {
            return false;
        }
        if (KNOWN[i].buffer != OMQ_BUFFER_MESSAGE_ID) {
            add_optional(&writer->texts[i], value);
        } else if (value.size > 0) {
            add_bytes(&writer->texts[i], value.bytes, value.size);
        } else {
            add_broker_id(&writer->texts[i], body, message);
        }
    }
    if (is_wanted(writer->wanted, OMQ_BUFFER_PROPERTIES)) {
        if (!are_texts(&writer->left_out, text, parts->property_size)) {
            return false;
        }
        add_properties(writer, text, parts->property_size);
    }
    return true;
}

static void *place(const omq_column_writer *writer, omq_column_buffer buffer) {
    return writer->memory + writer->columns->spans[buffer].at;
}

/* Microseconds of milliseconds; a time that no clock has wraps around, as NumPy's does. */
static int64_t micros(int64_t ms) { return (int64_t)((uint64_t)ms * 1000); }

/* Write the numbers of a message as row `row`. */
static void write_numbers(omq_column_writer *writer, size_t row, const omq_message *message) {
    omq_wanted_columns wanted = writer->wanted;
    if (is_wanted(wanted, OMQ_BUFFER_OFFSETS)) {
        ((int64_t *)place(writer, OMQ_BUFFER_OFFSETS))[row] = message->queue_offset;
    }
    if (is_wanted(wanted, OMQ_BUFFER_BORN)) {
        ((int64_t *)place(writer, OMQ_BUFFER_BORN))[row] = micros(message->born_ms);
    }
    if (is_wanted(wanted, OMQ_BUFFER_STORED)) {
        ((int64_t *)place(writer, OMQ_BUFFER_STORED))[row] = micros(message->stored_ms);
    }
    if (is_wanted(wanted, OMQ_BUFFER_RECONSUME_TIMES)) {
        ((int32_t *)place(writer, OMQ_BUFFER_RECONSUME_TIMES))[row] = message->reconsume_times;
    }
    if (is_wanted(wanted, OMQ_BUFFER_BODY)) {
        ((int32_t *)place(writer, OMQ_BUFFER_SYS_FLAGS))[row] = message->sys_flag;
    }
}

static void begin(omq_column_writer *writer) {
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        if (is_wanted(writer->wanted, KNOWN[i].buffer)) {
            bool is_optional = KNOWN[i].buffer != OMQ_BUFFER_MESSAGE_ID;
            writer->texts[i] = text_column(writer, KNOWN[i].buffer + is_optional, is_optional);
        }
    }
    if (is_wanted(writer->wanted, OMQ_BUFFER_BODY)) {
        writer->body = text_column(writer, OMQ_BUFFER_BODY, false);
    }
    if (is_wanted(writer->wanted, OMQ_BUFFER_PROPERTIES)) {
        writer->names = text_column(writer, OMQ_BUFFER_PROPERTIES + 1, false);
        writer->values = text_column(writer, OMQ_BUFFER_PROPERTIES + 3, false);
        ((int32_t *)place(writer, OMQ_BUFFER_PROPERTIES))[0] = 0;
    }
}

static void end_texts(omq_answer_columns *columns, size_t starts, const omq_text_column *column) {
    columns->spans[starts].size = (column->count + 1) * sizeof(int32_t);
    columns->spans[starts + 1].size = column->size;
}

/* Note how far each buffer was filled. */
static void end(omq_column_writer *writer) {
    omq_answer_columns *columns = writer->columns;
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        const omq_text_column *column = &writer->texts[i];
        if (!is_wanted(writer->wanted, KNOWN[i].buffer)) {
            continue;
        }
        bool is_optional = column->validity != NULL;
        end_texts(columns, KNOWN[i].buffer + is_optional, column);
        if (is_optional && column->nulls == 0) {
            columns->spans[KNOWN[i].buffer].size = 0;
        }
    }
    if (is_wanted(writer->wanted, OMQ_BUFFER_BODY)) {
        end_texts(columns, OMQ_BUFFER_BODY, &writer->body);
    }
    if (is_wanted(writer->wanted, OMQ_BUFFER_PROPERTIES)) {
        end_texts(columns, OMQ_BUFFER_PROPERTIES + 1, &writer->names);
        end_texts(columns, OMQ_BUFFER_PROPERTIES + 3, &writer->values);
        columns->entries = writer->names.count;
    }
    for (size_t i = 0; i < OMQ_BUFFER_END; i++) {
        columns->bytes += columns->spans[i].size;
    }
}

bool omq_answer_columns_write(const omq_answer_rows *parts, size_t count,
                              omq_wanted_columns wanted, const omq_left_out *left_out,
                              uint8_t *memory, omq_answer_columns *columns, size_t *part, size_t *row) {
    omq_row_totals totals = totals_of(parts, count);
    *columns = (omq_answer_columns){.rows = totals.rows};
    (void)lay_out(&totals, wanted, columns->spans);
    omq_column_writer writer = {
        .wanted = wanted,
        .left_out = index_of(left_out),
        .memory = memory,
        .columns = columns,
    };
    begin(&writer);
    size_t written = 0;
    for (size_t i = 0; i < count; i++) {
        const omq_answer *answer = parts[i].answer;
        for (size_t at = parts[i].first_row; at < parts[i].end_row; at++, written++) {
            omq_message message;
            omq_message_parts places;
            omq_message_read(answer->body, &answer->rows, at, &message);
            omq_message_locate(answer->body, &answer->rows, at, &places);
            write_numbers(&writer, written, &message);
            if (is_wanted(wanted, OMQ_BUFFER_BODY)) {
                add_bytes(&writer.body, answer->body + places.body_at, places.body_size);
                columns->has_compressed |= places.is_compressed;
            }
            if (!write_texts(&writer, answer->body, &places, &message)) {
                *part = i;
                *row = at;
                return false;
            }
            if (is_wanted(wanted, OMQ_BUFFER_PROPERTIES)) {
                ((int32_t *)place(&writer, OMQ_BUFFER_PROPERTIES))[written + 1] =
                    (int32_t)writer.names.count;
            }
        }
    }
    end(&writer);
    return true;
}

#include "bytes.h"
#include "message_layout.h"
#include "message_properties.h"
#include "ordermq.h"

/* The lengths read here were all checked by omq_message_index, of the same bytes. */

static uint32_t position_of(const omq_message_rows *rows, size_t row, bool *is_entry) {
    uint32_t position = rows->positions[row];
    *is_entry = rows->outers != NULL && rows->outers[row] != position;
    return position;
}

int64_t omq_message_offset(const uint8_t *body, const omq_message_rows *rows, size_t row) {
    if (rows->is_run) {
        return rows->first_offset + (int64_t)row;
    }
    bool is_entry;
    uint32_t position = position_of(rows, row, &is_entry);
    const uint8_t *record = body + (is_entry ? rows->outers[row] : position);
    return (int64_t)omq_read_u64(record + QUEUE_OFFSET_AT) + (is_entry ? rows->numbers[row] : 0);
}

void omq_message_locate(const uint8_t *body, const omq_message_rows *rows, size_t row,
                        omq_message_parts *parts) {
    bool is_entry;
    uint32_t at = position_of(rows, row, &is_entry);
    parts->body_size = rows->body_sizes[row];
    if (is_entry) {
        parts->is_compressed = false;
        parts->body_at = at + ENTRY_BODY_AT;
        parts->property_at = parts->body_at + parts->body_size + 2;
        parts->property_size = omq_read_u16(body + parts->property_at - 2);
        return;
    }
    uint32_t flags = omq_read_u32(body + at + SYS_FLAG_AT);
    uint32_t end = at + omq_read_u32(body + at);
    parts->is_compressed = flags & COMPRESSED;
    parts->body_at = at + BODY_AT + omq_hosts_extra(flags);
    at = parts->body_at + parts->body_size;
    if (omq_read_u32(body + rows->positions[row] + MAGIC_AT) == MAGIC_V1) {
        at += 1 + (uint32_t)body[at];
    } else {
        at += 2 + (uint32_t)omq_read_u16(body + at);
    }
    parts->property_at = at + 2;
    parts->property_size = end - parts->property_at;
}

void omq_message_read(const uint8_t *body, const omq_message_rows *rows, size_t row,
                      omq_message *message) {
    bool is_entry;
    uint32_t position = position_of(rows, row, &is_entry);
    uint32_t record = is_entry ? rows->outers[row] : position;
    const uint8_t *at = body + record;
    uint32_t flags = omq_read_u32(at + SYS_FLAG_AT);
    uint32_t cursor = BORN_HOST_AT;
    message->sys_flag = (int32_t)flags;
    message->queue_offset = omq_message_offset(body, rows, row);
    message->physical_offset = (int64_t)omq_read_u64(at + PHYSICAL_OFFSET_AT);
    message->queue_id = (int32_t)omq_read_u32(at + QUEUE_ID_AT);
    message->flag = (int32_t)(is_entry ? omq_read_u32(body + position + ENTRY_FLAG_AT)
                                       : omq_read_u32(at + FLAG_AT));
    message->born_ms = (int64_t)omq_read_u64(at + BORN_AT);
    message->born_host_at = record + cursor;
    message->born_host_size = HOST + (flags & BORN_HOST_V6 ? IPV6_EXTRA : 0);
    cursor += message->born_host_size;
    message->stored_ms = (int64_t)omq_read_u64(at + cursor);
    cursor += 8;
    message->store_host_at = record + cursor;
    message->store_host_size = HOST + (flags & STORE_HOST_V6 ? IPV6_EXTRA : 0);
    cursor += message->store_host_size;
    /* A message of an inner batch is stored at its first try, as Java has it. */
    message->reconsume_times = is_entry ? 0 : (int32_t)omq_read_u32(at + cursor);
    message->prepared_offset = is_entry ? 0 : (int64_t)omq_read_u64(at + cursor + 4);
}

static void store(void *const *columns, omq_column column, size_t row, int64_t value) {
    if (columns[column] == NULL) {
        return;
    }
    if (column <= OMQ_COLUMN_STORE_TIMESTAMPS) {
        ((int64_t *)columns[column])[row] = value;
    } else {
        ((uint32_t *)columns[column])[row] = (uint32_t)value;
    }
}

static bool is_any(void *const *columns, omq_column first, omq_column last) {
    bool is_found = false;
    for (int column = (int)first; column <= (int)last; column++) {
        is_found = is_found || columns[column] != NULL;
    }
    return is_found;
}

static void read_numbers(const uint8_t *body, const omq_message_rows *rows, void *const *columns) {
    for (size_t row = 0; row < rows->count; row++) {
        omq_message message;
        omq_message_read(body, rows, row, &message);
        store(columns, OMQ_COLUMN_PHYSICAL_OFFSETS, row, message.physical_offset);
        store(columns, OMQ_COLUMN_BORN_TIMESTAMPS, row, message.born_ms);
        store(columns, OMQ_COLUMN_STORE_TIMESTAMPS, row, message.stored_ms);
        store(columns, OMQ_COLUMN_QUEUE_IDS, row, message.queue_id);
        store(columns, OMQ_COLUMN_FLAGS, row, message.flag);
        store(columns, OMQ_COLUMN_SYS_FLAGS, row, message.sys_flag);
        store(columns, OMQ_COLUMN_RECONSUME_TIMES, row, message.reconsume_times);
    }
}

static void read_parts(const uint8_t *body, const omq_message_rows *rows, void *const *columns) {
    int32_t *hashes = columns[OMQ_COLUMN_TAG_HASHES];
    for (size_t row = 0; row < rows->count; row++) {
        omq_message_parts parts;
        omq_text tag;
        omq_message_locate(body, rows, row, &parts);
        store(columns, OMQ_COLUMN_POSITIONS, row, rows->positions[row]);
        store(columns, OMQ_COLUMN_BODY_POSITIONS, row, parts.body_at);
        store(columns, OMQ_COLUMN_PROPERTY_POSITIONS, row, parts.property_at);
        store(columns, OMQ_COLUMN_PROPERTY_SIZES, row, parts.property_size);
        if (hashes != NULL) {
            const uint8_t *text = body + parts.property_at;
            bool is_tagged = omq_find_tag(text, parts.property_size, &tag);
            hashes[row] = is_tagged ? omq_java_hash(&tag) : 0;
        }
    }
}

void omq_message_read_columns(const uint8_t *body, const omq_message_rows *rows,
                              void *const *columns) {
    int64_t *offsets = columns[OMQ_COLUMN_OFFSETS];
    uint32_t *sizes = columns[OMQ_COLUMN_BODY_SIZES];
    for (size_t row = 0; offsets != NULL && row < rows->count; row++) {
        offsets[row] = omq_message_offset(body, rows, row);
    }
    for (size_t row = 0; sizes != NULL && row < rows->count; row++) {
        sizes[row] = rows->body_sizes[row];
    }
    if (is_any(columns, OMQ_COLUMN_PHYSICAL_OFFSETS, OMQ_COLUMN_STORE_TIMESTAMPS) ||
        is_any(columns, OMQ_COLUMN_QUEUE_IDS, OMQ_COLUMN_RECONSUME_TIMES)) {
        read_numbers(body, rows, columns);
    }
    if (columns[OMQ_COLUMN_POSITIONS] != NULL || columns[OMQ_COLUMN_BODY_POSITIONS] != NULL ||
        is_any(columns, OMQ_COLUMN_PROPERTY_POSITIONS, OMQ_COLUMN_TAG_HASHES)) {
        read_parts(body, rows, columns);
    }
}

void omq_message_find_property(const uint8_t *body, const omq_message_rows *rows,
                               const omq_text *name, uint32_t *positions, uint32_t *sizes) {
    for (size_t row = 0; row < rows->count; row++) {
        omq_message_parts parts;
        omq_text value;
        omq_message_locate(body, rows, row, &parts);
        bool is_found =
            omq_property_find(body + parts.property_at, parts.property_size, name, &value);
        positions[row] = is_found ? (uint32_t)(value.bytes - body) : parts.property_at;
        sizes[row] = is_found ? (uint32_t)value.size : 0;
    }
}

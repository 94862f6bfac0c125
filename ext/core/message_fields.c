#include "bytes.h"
#include "message_layout.h"
#include "ordermq.h"

/* The lengths read here were all checked by omq_message_index, of the same bytes. */

static uint32_t position_of(const omq_message_rows *rows, size_t row, bool *is_entry) {
    uint32_t position = rows->positions[row];
    *is_entry = rows->outers != NULL && rows->outers[row] != position;
    return position;
}

void omq_message_locate(const uint8_t *body, const omq_message_rows *rows, size_t row,
                        omq_message_parts *parts) {
    bool is_entry;
    uint32_t at = position_of(rows, row, &is_entry);
    if (is_entry) {
        parts->is_compressed = false;
        parts->body_at = at + ENTRY_BODY_AT;
        parts->body_size = omq_read_u32(body + parts->body_at - SIZE_FIELD);
        parts->property_at = parts->body_at + parts->body_size + 2;
        parts->property_size = omq_read_u16(body + parts->property_at - 2);
        return;
    }
    uint32_t flags = omq_read_u32(body + at + SYS_FLAG_AT);
    uint32_t end = at + omq_read_u32(body + at);
    parts->is_compressed = flags & COMPRESSED;
    parts->body_at = at + BODY_AT + omq_hosts_extra(flags);
    parts->body_size = omq_read_u32(body + parts->body_at - SIZE_FIELD);
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
    message->queue_offset =
        (int64_t)omq_read_u64(at + QUEUE_OFFSET_AT) + (is_entry ? rows->numbers[row] : 0);
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

void omq_message_read_columns(const uint8_t *body, const omq_message_rows *rows,
                              void *const *columns) {
    static const omq_text tags = {(const uint8_t *)"TAGS", 4};
    omq_message_parts parts = {0};
    omq_message message = {0};
    bool is_located = columns[OMQ_COLUMN_BODY_POSITIONS] || columns[OMQ_COLUMN_BODY_SIZES] ||
                      columns[OMQ_COLUMN_PROPERTY_POSITIONS] ||
                      columns[OMQ_COLUMN_PROPERTY_SIZES] || columns[OMQ_COLUMN_TAG_HASHES];
    bool is_read = columns[OMQ_COLUMN_OFFSETS] || columns[OMQ_COLUMN_PHYSICAL_OFFSETS] ||
                   columns[OMQ_COLUMN_BORN_TIMESTAMPS] || columns[OMQ_COLUMN_STORE_TIMESTAMPS] ||
                   columns[OMQ_COLUMN_QUEUE_IDS] || columns[OMQ_COLUMN_FLAGS] ||
                   columns[OMQ_COLUMN_SYS_FLAGS] || columns[OMQ_COLUMN_RECONSUME_TIMES];
    for (size_t row = 0; row < rows->count; row++) {
        if (is_read) {
            omq_message_read(body, rows, row, &message);
        }
        if (is_located) {
            omq_message_locate(body, rows, row, &parts);
        }
#define STORE(column, type, value)                     \
    if (columns[column] != NULL) {                     \
        ((type *)columns[column])[row] = (type)(value); \
    }
        STORE(OMQ_COLUMN_OFFSETS, int64_t, message.queue_offset)
        STORE(OMQ_COLUMN_PHYSICAL_OFFSETS, int64_t, message.physical_offset)
        STORE(OMQ_COLUMN_BORN_TIMESTAMPS, int64_t, message.born_ms)
        STORE(OMQ_COLUMN_STORE_TIMESTAMPS, int64_t, message.stored_ms)
        STORE(OMQ_COLUMN_POSITIONS, uint32_t, rows->positions[row])
        STORE(OMQ_COLUMN_BODY_POSITIONS, uint32_t, parts.body_at)
        STORE(OMQ_COLUMN_BODY_SIZES, uint32_t, parts.body_size)
        STORE(OMQ_COLUMN_PROPERTY_POSITIONS, uint32_t, parts.property_at)
        STORE(OMQ_COLUMN_PROPERTY_SIZES, uint32_t, parts.property_size)
        STORE(OMQ_COLUMN_QUEUE_IDS, int32_t, message.queue_id)
        STORE(OMQ_COLUMN_FLAGS, int32_t, message.flag)
        STORE(OMQ_COLUMN_SYS_FLAGS, int32_t, message.sys_flag)
        STORE(OMQ_COLUMN_RECONSUME_TIMES, int32_t, message.reconsume_times)
#undef STORE
        if (columns[OMQ_COLUMN_TAG_HASHES] != NULL) {
            omq_text tag;
            bool is_tagged = omq_property_find(body + parts.property_at, parts.property_size,
                                               &tags, &tag);
            ((int32_t *)columns[OMQ_COLUMN_TAG_HASHES])[row] = is_tagged ? omq_java_hash(&tag) : 0;
        }
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

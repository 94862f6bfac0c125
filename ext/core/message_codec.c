#include <string.h>

#include "bytes.h"
#include "crc32.h"
#include "message_entry.h"
#include "message_layout.h"
#include "message_properties.h"
#include "ordermq.h"

typedef struct {
    const uint8_t *body;
    size_t size;
    const omq_text *tags;
    size_t tag_count;
    omq_message_rows *rows;
    omq_message_fault *fault;
} omq_scan;

typedef struct {
    uint32_t size;
    uint32_t sys_flag;
    int64_t offset;
    omq_message_parts parts;
} omq_record;

static omq_status malformed(omq_message_fault *fault, omq_fault kind, size_t position) {
    fault->fault = kind;
    fault->position = position;
    return OMQ_MALFORMED;
}

/* Read the record at `start`. No length is trusted: each is compared with what is left of the
 * record before it moves the cursor. */
static omq_status read_record(const omq_scan *scan, size_t start, omq_record *record) {
    omq_message_fault *fault = scan->fault;
    const uint8_t *at = scan->body + start;
    if (scan->size - start < SIZE_FIELD) {
        return malformed(fault, OMQ_FAULT_TRAILING, start);
    }
    uint32_t record_size = omq_read_u32(at);
    if (record_size < SMALLEST || record_size > INT32_MAX) {
        return malformed(fault, OMQ_FAULT_RECORD_SIZE, start);
    }
    if (record_size > scan->size - start) {
        return malformed(fault, OMQ_FAULT_TRUNCATED, start);
    }
    uint32_t magic = omq_read_u32(at + MAGIC_AT);
    if (magic != MAGIC_V1 && magic != MAGIC_V2) {
        return malformed(fault, OMQ_FAULT_MAGIC, start + MAGIC_AT);
    }
    uint64_t offset = omq_read_u64(at + QUEUE_OFFSET_AT);
    if (offset >= INT64_MAX) {
        return malformed(fault, OMQ_FAULT_QUEUE_OFFSET, start + QUEUE_OFFSET_AT);
    }
    uint32_t flags = omq_read_u32(at + SYS_FLAG_AT);
    uint32_t cursor = BODY_AT + omq_hosts_extra(flags);
    if (cursor > record_size) {
        return malformed(fault, OMQ_FAULT_FIXED_PART, start + SYS_FLAG_AT);
    }
    uint32_t body_size = omq_read_u32(at + cursor - SIZE_FIELD);
    if (body_size > record_size - cursor) {
        return malformed(fault, OMQ_FAULT_BODY_SIZE, start + cursor - SIZE_FIELD);
    }
    record->parts.body_at = (uint32_t)start + cursor;
    record->parts.body_size = body_size;
    cursor += body_size;

    uint32_t topic_field = magic == MAGIC_V1 ? 1 : 2;
    if (topic_field > record_size - cursor) {
        return malformed(fault, OMQ_FAULT_TOPIC_SIZE, start + cursor);
    }
    uint32_t topic_size = magic == MAGIC_V1 ? at[cursor] : omq_read_u16(at + cursor);
    uint32_t topic_max = magic == MAGIC_V1 ? V1_TOPIC_MAX : SHORT_MAX;
    if (topic_size > topic_max || topic_size > record_size - cursor - topic_field) {
        return malformed(fault, OMQ_FAULT_TOPIC_SIZE, start + cursor);
    }
    cursor += topic_field + topic_size;

    if (record_size - cursor < 2) {
        return malformed(fault, OMQ_FAULT_PROPERTY_SIZE, start + cursor);
    }
    uint32_t property_size = omq_read_u16(at + cursor);
    if (property_size > SHORT_MAX || property_size > record_size - cursor - 2) {
        return malformed(fault, OMQ_FAULT_PROPERTY_SIZE, start + cursor);
    }
    cursor += 2;
    record->parts.property_at = (uint32_t)start + cursor;
    record->parts.property_size = property_size;
    if (cursor + property_size != record_size) {
        return malformed(fault, OMQ_FAULT_RECORD_END, start + cursor + property_size);
    }
    record->size = record_size;
    record->sys_flag = flags;
    record->offset = (int64_t)offset;
    return OMQ_OK;
}

omq_status omq_read_entry(const uint8_t *bytes, size_t start, size_t end, uint32_t *entry_size,
                          omq_message_parts *parts, omq_message_fault *fault) {
    const uint8_t *at = bytes + start;
    if (end - start < ENTRY_SMALLEST) {
        return malformed(fault, OMQ_FAULT_INNER_SIZE, start);
    }
    uint32_t size = omq_read_u32(at);
    if (size < ENTRY_SMALLEST || size > end - start) {
        return malformed(fault, OMQ_FAULT_INNER_SIZE, start);
    }
    uint32_t body_size = omq_read_u32(at + ENTRY_BODY_AT - SIZE_FIELD);
    if (body_size > size - ENTRY_SMALLEST) {
        return malformed(fault, OMQ_FAULT_INNER_BODY, start + ENTRY_BODY_AT - SIZE_FIELD);
    }
    uint32_t cursor = ENTRY_BODY_AT + body_size;
    uint32_t property_size = omq_read_u16(at + cursor);
    cursor += 2;
    if (property_size > SHORT_MAX || property_size != size - cursor) {
        return malformed(fault, OMQ_FAULT_INNER_PROPERTIES, start + cursor - 2);
    }
    *entry_size = size;
    *parts = (omq_message_parts){.body_at = (uint32_t)start + ENTRY_BODY_AT,
                                 .body_size = body_size,
                                 .property_at = (uint32_t)start + cursor,
                                 .property_size = property_size};
    return OMQ_OK;
}

static bool is_wanted(const omq_scan *scan, const omq_message_parts *parts) {
    omq_text tag;
    if (scan->tag_count == 0) {
        return true;
    }
    if (!omq_find_tag(scan->body + parts->property_at, parts->property_size, &tag)) {
        return false;
    }
    for (size_t i = 0; i < scan->tag_count; i++) {
        const omq_text *wanted = scan->tags + i;
        if (wanted->size == tag.size && memcmp(wanted->bytes, tag.bytes, tag.size) == 0) {
            return true;
        }
    }
    return false;
}

static void add_row(const omq_scan *scan, size_t position, const omq_message_parts *parts,
                    int64_t offset, size_t outer, uint32_t number) {
    omq_message_rows *rows = scan->rows;
    if (rows->count == 0) {
        rows->first_offset = offset;
    }
    rows->is_run &= offset - rows->first_offset == (int64_t)rows->count;
    rows->size_bytes += parts->body_size;
    rows->body_sizes[rows->count] = parts->body_size;
    rows->positions[rows->count] = (uint32_t)position;
    if (rows->outers != NULL) {
        rows->outers[rows->count] = (uint32_t)outer;
        rows->numbers[rows->count] = number;
    }
    rows->count++;
}

/* The record at `start` holds messages: give each a row. */
static omq_status add_inner(const omq_scan *scan, size_t start, const omq_record *record,
                            int64_t *last_offset) {
    size_t at = record->parts.body_at;
    size_t end = at + record->parts.body_size;
    uint32_t number = 0;
    if (record->sys_flag & COMPRESSED) {
        return malformed(scan->fault, OMQ_FAULT_INNER_COMPRESSED, start + SYS_FLAG_AT);
    }
    for (; at < end; number++) {
        uint32_t size;
        omq_message_parts parts;
        if (omq_read_entry(scan->body, at, end, &size, &parts, scan->fault) != OMQ_OK) {
            return OMQ_MALFORMED;
        }
        if (number >= INT64_MAX - record->offset) {
            return malformed(scan->fault, OMQ_FAULT_QUEUE_OFFSET, start + QUEUE_OFFSET_AT);
        }
        *last_offset = record->offset + number;
        if (is_wanted(scan, &parts)) {
            add_row(scan, at, &parts, *last_offset, start, number);
        }
        at += size;
    }
    return OMQ_OK;
}

static bool has_its_crc(const uint8_t *body, size_t start, const omq_message_parts *parts) {
    uint32_t crc = omq_crc32(body + parts->body_at, parts->body_size);
    return (crc & INT32_MAX) == omq_read_u32(body + start + CRC_AT);
}

size_t omq_message_count(const uint8_t *body, size_t size, bool *has_inner) {
    size_t count = 0;
    *has_inner = false;
    for (size_t at = 0; size - at >= SIZE_FIELD;) {
        uint32_t record_size = omq_read_u32(body + at);
        if (record_size < SMALLEST || record_size > size - at) {
            break;
        }
        uint32_t flags = omq_read_u32(body + at + SYS_FLAG_AT);
        if (omq_is_inner_batch(flags)) {
            /* A bound: no entry is smaller, and the record has at least this many bytes besides. */
            *has_inner = true;
            count += (record_size - SMALLEST) / ENTRY_SMALLEST;
        } else {
            count++;
        }
        at += record_size;
    }
    return count;
}

omq_status omq_message_index(const uint8_t *body, size_t size, const omq_text *tags,
                             size_t tag_count, bool check_crc, omq_message_rows *rows,
                             int64_t *last_offset, omq_message_fault *fault) {
    omq_scan scan = {body, size, tags, tag_count, rows, fault};
    rows->count = 0;
    rows->size_bytes = 0;
    rows->first_offset = 0;
    rows->is_run = true;
    *last_offset = -1;
    if (size > UINT32_MAX) {
        return OMQ_OUT_OF_RANGE;
    }
    fault->record = 0;
    for (size_t start = 0; start < size; fault->record++) {
        omq_record record;
        if (read_record(&scan, start, &record) != OMQ_OK) {
            return OMQ_MALFORMED;
        }
        if (check_crc && !has_its_crc(body, start, &record.parts)) {
            return malformed(fault, OMQ_FAULT_CRC, start + CRC_AT);
        }
        *last_offset = record.offset;
        if (omq_is_inner_batch(record.sys_flag)) {
            if (add_inner(&scan, start, &record, last_offset) != OMQ_OK) {
                return OMQ_MALFORMED;
            }
        } else if (is_wanted(&scan, &record.parts)) {
            add_row(&scan, start, &record.parts, record.offset, start, 0);
        }
        start += record.size;
    }
    return OMQ_OK;
}

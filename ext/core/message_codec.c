/* The message codec of ordermq.h: index a pull body, then read fields and columns by the index. */
#include <string.h>

#include "bytes.h"
#include "crc32.h"
#include "message_layout.h"
#include "message_properties.h"
#include "ordermq.h"

/* ---- index ---- */

typedef struct {
    const uint8_t *body;
    size_t size;
    const omq_text *tags;
    size_t tag_count;
    const omq_pulled *pulled;
    omq_message_rows *rows;
    omq_message_fault *fault;
} omq_scan;

typedef struct {
    uint32_t size;
    uint32_t sys_flag;
    int32_t queue_id;
    int64_t offset;
    omq_message_parts parts;
} omq_record;

static omq_status malformed(omq_message_fault *fault, omq_fault kind, size_t position) {
    fault->fault = kind;
    fault->position = position;
    return OMQ_MALFORMED;
}

/* Read the record at `start`. No length is trusted: each is compared with what is left of the
 * record before it moves the cursor. Comparing differences, not sums: a sum may wrap. */
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
    if (offset >= INT64_MAX) { /* read as unsigned, so that negative offsets are refused, too */
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
    record->queue_id = (int32_t)omq_read_u32(at + QUEUE_ID_AT);
    record->offset = (int64_t)offset;
    return OMQ_OK;
}

/* Return whether a body is that of an inner batch: entries up to its end. */
static bool is_batch_body(const uint8_t *body, const omq_message_parts *parts) {
    size_t at = parts->body_at;
    size_t end = at + parts->body_size;
    while (at < end) {
        uint32_t size;
        omq_message_parts entry;
        omq_message_fault none;
        if (omq_read_entry(body, at, end, &size, &entry, &none) != OMQ_OK) {
            return false;
        }
        at += size;
    }
    return parts->body_size != 0;
}

/* Check a record against the pull that it answers; `before` is the offset of the message before
 * it. The offsets decide what is committed, and no checksum covers them. */
static omq_status check_pulled(const omq_scan *scan, size_t start, const omq_record *record,
                               int64_t before) {
    const omq_pulled *pulled = scan->pulled;
    if (pulled->queue_id >= 0 && record->queue_id != pulled->queue_id) {
        return malformed(scan->fault, OMQ_FAULT_QUEUE_ID, start + QUEUE_ID_AT);
    }
    if (record->offset <= before) {
        return malformed(scan->fault, OMQ_FAULT_OFFSET_ORDER, start + QUEUE_OFFSET_AT);
    }
    /* Brokers set both marks or none. One alone is a producer's on a plain message, which RocketMQ
     * stores, or damage that would hide the messages of an inner batch: the body tells. */
    uint32_t marks = record->sys_flag & INNER_BATCH;
    if (marks != 0 && marks != INNER_BATCH && is_batch_body(scan->body, &record->parts)) {
        return malformed(scan->fault, OMQ_FAULT_INNER_MARKS, start + SYS_FLAG_AT);
    }
    /* A pull from the middle of an inner batch is answered with all of it. */
    bool may_begin_before = omq_is_inner_batch(record->sys_flag);
    if (record->offset >= pulled->end || (record->offset < pulled->first && !may_begin_before)) {
        return malformed(scan->fault, OMQ_FAULT_OFFSET_RANGE, start + QUEUE_OFFSET_AT);
    }
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

/* Return whether a message passes the tag filter. The broker filters by hash only, so texts of
 * other tags with the same hash arrive here. */
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
    /* Known here for free, and it spares the process queue a look at every offset. */
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

/* Give each message of the inner batch at `start` a row. Their offsets count on from the
 * record's. */
static omq_status add_inner(const omq_scan *scan, size_t start, const omq_record *record,
                            int64_t *last_offset) {
    size_t at = record->parts.body_at;
    size_t batch_end = at + record->parts.body_size;
    int64_t first = scan->pulled != NULL ? scan->pulled->first : 0;
    int64_t end = scan->pulled != NULL ? scan->pulled->end : INT64_MAX;
    uint32_t number = 0;
    if (record->sys_flag & COMPRESSED) {
        return malformed(scan->fault, OMQ_FAULT_INNER_COMPRESSED, start + SYS_FLAG_AT);
    }
    for (; at < batch_end; number++) {
        uint32_t size;
        omq_message_parts parts;
        if (omq_read_entry(scan->body, at, batch_end, &size, &parts, scan->fault) != OMQ_OK) {
            return OMQ_MALFORMED;
        }
        if (number >= INT64_MAX - record->offset) {
            return malformed(scan->fault, OMQ_FAULT_QUEUE_OFFSET, start + QUEUE_OFFSET_AT);
        }
        *last_offset = record->offset + number;
        if (*last_offset >= first && is_wanted(scan, &parts)) {
            add_row(scan, at, &parts, *last_offset, start, number);
        }
        at += size;
    }
    if (*last_offset < first || *last_offset >= end) {
        return malformed(scan->fault, OMQ_FAULT_OFFSET_RANGE, start + QUEUE_OFFSET_AT);
    }
    return OMQ_OK;
}

/* Return whether a body matches its checksum. Java stores 31 bits of it: the field is signed. */
static bool has_its_crc(const uint8_t *body, size_t start, const omq_message_parts *parts) {
    uint32_t crc = omq_crc32(body + parts->body_at, parts->body_size);
    return (crc & INT32_MAX) == omq_read_u32(body + start + CRC_AT);
}

size_t omq_message_count(const uint8_t *body, size_t size, bool *has_inner) {
    size_t count = 0;
    *has_inner = false;
    for (size_t at = 0; size - at >= SIZE_FIELD;) {
        uint32_t record_size = omq_read_u32(body + at);
        if (record_size < SMALLEST || record_size > size - at) { /* omq_message_index says why */
            break;
        }
        uint32_t flags = omq_read_u32(body + at + SYS_FLAG_AT);
        if (omq_is_inner_batch(flags)) {
            /* A bound, without walking the entries: none is smaller than ENTRY_SMALLEST. */
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
                             size_t tag_count, bool check_crc, const omq_pulled *pulled,
                             omq_message_rows *rows, int64_t *last_offset,
                             omq_message_fault *fault) {
    omq_scan scan = {body, size, tags, tag_count, pulled, rows, fault};
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
        if (pulled != NULL && check_pulled(&scan, start, &record, *last_offset) != OMQ_OK) {
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

/* ---- fields and columns ---- */

/* The lengths read here were all checked by omq_message_index, of the same bytes. */

static uint32_t position_of(const omq_message_rows *rows, size_t row, bool *is_entry) {
    uint32_t position = rows->positions[row];
    *is_entry = rows->outers != NULL && rows->outers[row] != position;
    return position;
}

int64_t omq_message_offset(const uint8_t *body, const omq_message_rows *rows, size_t row) {
    if (rows->is_run) { /* nearly always: the record itself stays unread */
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

omq_read_message omq_message_last(const uint8_t *body, const omq_message_rows *rows) {
    omq_message last;
    omq_message_read(body, rows, rows->count - 1, &last);
    return (omq_read_message){last.queue_offset, last.stored_ms, last.physical_offset,
                              last.born_ms};
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
    /* Java's decoder gives messages of an inner batch neither retries nor a prepared offset. */
    message->reconsume_times = is_entry ? 0 : (int32_t)omq_read_u32(at + cursor);
    message->prepared_offset = is_entry ? 0 : (int64_t)omq_read_u64(at + cursor + 4);
}

/* Write one value of a column, if it is asked for. A negative int32 keeps its bits as uint32. */
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

/* Return whether any column of a range is asked for: else its fields are not read at all. */
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

/* ---- all properties; pieces gathered ---- */

size_t omq_message_count_properties(const uint8_t *body, const omq_message_rows *rows) {
    size_t count = 0;
    for (size_t row = 0; row < rows->count; row++) {
        omq_message_parts parts;
        omq_property property;
        size_t at = 0;
        omq_message_locate(body, rows, row, &parts);
        while (omq_property_next(body + parts.property_at, parts.property_size, &at, &property)) {
            count++;
        }
    }
    return count;
}

size_t omq_message_list_properties(const uint8_t *body, const omq_message_rows *rows,
                                   int32_t *starts, uint32_t *name_positions,
                                   uint32_t *name_sizes, uint32_t *value_sizes) {
    size_t count = 0;
    for (size_t row = 0; row < rows->count; row++) {
        omq_message_parts parts;
        omq_property property;
        omq_text later;
        size_t at = 0;
        omq_message_locate(body, rows, row, &parts);
        const uint8_t *text = body + parts.property_at;
        starts[row] = (int32_t)count; /* fits: a property has at least 3 bytes, a body < 4 GiB */
        while (omq_property_next(text, parts.property_size, &at, &property)) {
            /* If a name occurs twice the last one counts: skip this one if another follows. */
            if (at < parts.property_size && omq_property_find(text + at, parts.property_size - at,
                                                              &property.name, &later)) {
                continue;
            }
            name_positions[count] = (uint32_t)(property.name.bytes - body);
            name_sizes[count] = (uint32_t)property.name.size;
            value_sizes[count] = (uint32_t)property.value.size;
            count++;
        }
    }
    starts[rows->count] = (int32_t)count;
    return count;
}

omq_status omq_gather_measure(size_t body_size, const uint32_t *positions, const uint32_t *sizes,
                              size_t count, int32_t *starts) {
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        starts[i] = (int32_t)total;
        total += sizes[i];
        if ((uint64_t)positions[i] + sizes[i] > body_size || total > INT32_MAX) {
            return OMQ_OUT_OF_RANGE;
        }
    }
    starts[count] = (int32_t)total;
    return OMQ_OK;
}

size_t omq_gather_copy(const uint8_t *body, const uint32_t *positions, const int32_t *starts,
                       size_t count, bool is_text, uint8_t *bytes) {
    size_t first_wrong = count;
    for (size_t i = 0; i < count; i++) {
        size_t size = (size_t)(starts[i + 1] - starts[i]);
        memcpy(bytes + starts[i], body + positions[i], size);
        if (is_text && first_wrong == count && !omq_is_utf8(body + positions[i], size)) {
            first_wrong = i;
        }
    }
    return first_wrong;
}

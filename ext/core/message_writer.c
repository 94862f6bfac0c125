/* The message writer of ordermq.h: records for a store, batch bodies, and both from columns. */
#include <string.h>

#include "bytes.h"
#include "crc32.h"
#include "message_layout.h"
#include "message_properties.h"
#include "ordermq.h"

/* ---- records and batches ---- */

static uint8_t *put_u16(uint8_t *at, size_t value) {
    omq_write_u16(at, (uint16_t)value);
    return at + 2;
}

static uint8_t *put_u32(uint8_t *at, size_t value) {
    omq_write_u32(at, (uint32_t)value);
    return at + 4;
}

static uint8_t *put_u64(uint8_t *at, int64_t value) {
    omq_write_u64(at, (uint64_t)value);
    return at + 8;
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size) {
    if (size > 0) { /* an empty text may be NULL, and memcpy of NULL is undefined even for 0 */
        memcpy(at, bytes, size);
    }
    return at + size;
}

static uint8_t *put_text(uint8_t *at, const omq_text *text) {
    return put_bytes(at, text->bytes, text->size);
}

static bool is_host(size_t size) { return size == HOST || size == HOST + IPV6_EXTRA; }

size_t omq_record_size(const omq_record_head *head, size_t body_size, size_t property_size) {
    size_t born = head->born_host.size;
    size_t stored = head->store_host.size;
    size_t topic = head->topic.size;
    if (!is_host(born) || !is_host(stored) || topic > SHORT_MAX || property_size > SHORT_MAX ||
        body_size > INT32_MAX) {
        return 0;
    }
    /* No sum below wraps: each part was bounded above. */
    size_t size = SMALLEST + (born - HOST) + (stored - HOST) + (topic > V1_TOPIC_MAX) + topic +
                  body_size + property_size;
    return size > INT32_MAX ? 0 : size;
}

void omq_record_write(const omq_record_head *head, const omq_outgoing *message, uint8_t *record) {
    bool is_long = head->topic.size > V1_TOPIC_MAX;
    uint32_t hosts = (head->born_host.size > HOST ? BORN_HOST_V6 : 0) |
                     (head->store_host.size > HOST ? STORE_HOST_V6 : 0);
    uint32_t flags = ((uint32_t)head->sys_flag & ~(uint32_t)(BORN_HOST_V6 | STORE_HOST_V6)) | hosts;
    uint8_t *at = record;
    at = put_u32(at, omq_record_size(head, message->body.size, message->properties.size));
    at = put_u32(at, is_long ? MAGIC_V2 : MAGIC_V1);
    at = put_u32(at, omq_crc32(message->body.bytes, message->body.size) & INT32_MAX);
    at = put_u32(at, (uint32_t)head->queue_id);
    at = put_u32(at, (uint32_t)message->flag);
    at = put_u64(at, 0); /* its two offsets: the store knows them last, see omq_records_stamp */
    at = put_u64(at, 0);
    at = put_u32(at, flags);
    at = put_u64(at, head->born_ms);
    at = put_text(at, &head->born_host);
    at = put_u64(at, head->stored_ms);
    at = put_text(at, &head->store_host);
    at = put_u32(at, (uint32_t)head->reconsume_times);
    at = put_u64(at, 0);
    at = put_u32(at, message->body.size);
    at = put_text(at, &message->body);
    if (is_long) {
        at = put_u16(at, head->topic.size);
    } else {
        *at++ = (uint8_t)head->topic.size;
    }
    at = put_text(at, &head->topic);
    at = put_u16(at, message->properties.size);
    (void)put_text(at, &message->properties);
}

int32_t omq_tag_hash(const omq_text *properties) {
    omq_text tag;
    bool is_tagged = omq_find_tag(properties->bytes, properties->size, &tag);
    return is_tagged ? omq_java_hash(&tag) : 0;
}

/* Return whether a message only has to be stored. Delayed messages and halves of transactions go to
 * other topics first, so Java's broker refuses them in a batch, and so does ours. */
static bool is_plain(const uint8_t *text, size_t size) {
    static const omq_text delay = {(const uint8_t *)"DELAY", 5};
    static const omq_text transaction = {(const uint8_t *)"TRAN_MSG", 8};
    omq_text value;
    return !omq_property_find(text, size, &delay, &value) &&
           !omq_property_find(text, size, &transaction, &value);
}

omq_status omq_batch_measure(const omq_record_head *head, const uint8_t *batch, size_t size,
                             size_t *count, size_t *record_bytes, omq_message_fault *fault) {
    *count = 0;
    *record_bytes = 0;
    if (size > UINT32_MAX) {
        return OMQ_OUT_OF_RANGE;
    }
    for (size_t at = 0; at < size; *count += 1) {
        uint32_t entry_size;
        omq_message_parts parts;
        fault->record = *count;
        if (omq_read_entry(batch, at, size, &entry_size, &parts, fault) != OMQ_OK) {
            return OMQ_MALFORMED;
        }
        if (!is_plain(batch + parts.property_at, parts.property_size)) {
            fault->fault = OMQ_FAULT_INNER_DELAYED;
            fault->position = parts.property_at;
            return OMQ_MALFORMED;
        }
        size_t record_size = omq_record_size(head, parts.body_size, parts.property_size);
        if (record_size == 0 || record_size > UINT32_MAX - *record_bytes) {
            return OMQ_OUT_OF_RANGE;
        }
        *record_bytes += record_size;
        at += entry_size;
    }
    return OMQ_OK;
}

void omq_batch_write(const omq_record_head *head, const uint8_t *batch, size_t count,
                     uint8_t *records, uint32_t *positions, int64_t *tags) {
    const uint8_t *entry = batch;
    uint32_t at = 0;
    for (size_t i = 0; i < count; i++) { /* omq_batch_measure has checked these lengths */
        uint32_t body_size = omq_read_u32(entry + ENTRY_BODY_AT - SIZE_FIELD);
        const uint8_t *text = entry + ENTRY_BODY_AT + body_size + 2;
        omq_outgoing message = {{entry + ENTRY_BODY_AT, body_size},
                                {text, omq_read_u16(text - 2)},
                                (int32_t)omq_read_u32(entry + ENTRY_FLAG_AT)};
        omq_record_write(head, &message, records + at);
        positions[i] = at;
        tags[i] = omq_tag_hash(&message.properties);
        at += omq_read_u32(records + at);
        entry += omq_read_u32(entry);
    }
    positions[count] = at;
}

void omq_records_stamp(uint8_t *records, const uint32_t *positions, size_t count,
                       int64_t queue_offset, int64_t physical_offset) {
    for (size_t i = 0; i < count; i++) {
        uint8_t *record = records + positions[i];
        omq_write_u64(record + QUEUE_OFFSET_AT, (uint64_t)queue_offset + i);
        omq_write_u64(record + PHYSICAL_OFFSET_AT, (uint64_t)physical_offset + i);
    }
}

omq_status omq_batch_size(const omq_outgoing *messages, size_t count, size_t *size) {
    *size = 0;
    for (size_t i = 0; i < count; i++) {
        size_t body = messages[i].body.size;
        size_t properties = messages[i].properties.size;
        if (properties > SHORT_MAX || body > INT32_MAX - ENTRY_SMALLEST - properties ||
            body + properties + ENTRY_SMALLEST > UINT32_MAX - *size) {
            return OMQ_OUT_OF_RANGE;
        }
        *size += ENTRY_SMALLEST + body + properties;
    }
    return OMQ_OK;
}

void omq_batch_encode(const omq_outgoing *messages, size_t count, uint8_t *batch) {
    uint8_t *at = batch;
    for (size_t i = 0; i < count; i++) {
        const omq_outgoing *message = messages + i;
        at = put_u32(at, ENTRY_SMALLEST + message->body.size + message->properties.size);
        at = put_u64(at, 0); /* magic and checksum: brokers read neither in a batch body */
        at = put_u32(at, (uint32_t)message->flag);
        at = put_u32(at, message->body.size);
        at = put_text(at, &message->body);
        at = put_u16(at, message->properties.size);
        at = put_text(at, &message->properties);
    }
}

/* ---- rows in columns ---- */

enum {
    NAME_END = 1, /* a property's separators (docs/internals/protocol.md#stored-message) */
    VALUE_END = 2,
    UNIQUE_SIZE = 16
};
static const char unique_name[] = "UNIQ_KEY";
enum { UNIQUE_PROPERTY = sizeof unique_name - 1 + 2 + 2 * UNIQUE_SIZE };

static bool read_text(const omq_texts *column, size_t row, omq_text *text) {
    int32_t begin = column->positions[row];
    int32_t end = column->positions[row + 1];
    if (begin < 0 || end < begin || (size_t)end > column->size) {
        return false;
    }
    text->bytes = column->bytes + begin;
    text->size = (size_t)(end - begin);
    return true;
}

static bool is_same(const omq_text *one, const omq_text *other) {
    return one->size == other->size &&
           (one->size == 0 || memcmp(one->bytes, other->bytes, one->size) == 0);
}

omq_status omq_ordered_rows(const int64_t *offsets, const int32_t *queue_ids,
                            const omq_texts *names, size_t name_count, size_t first, size_t end,
                            size_t *found) {
    for (size_t row = first + 1; row < end; row++) {
        bool goes_on = offsets[row] > offsets[row - 1] && queue_ids[row] == queue_ids[row - 1];
        for (size_t i = 0; goes_on && i < name_count; i++) {
            omq_text before, here;
            if (!read_text(&names[i], row - 1, &before) || !read_text(&names[i], row, &here)) {
                return OMQ_OUT_OF_RANGE;
            }
            goes_on = is_same(&before, &here);
        }
        if (!goes_on) {
            *found = row;
            return OMQ_OK;
        }
    }
    *found = end;
    return OMQ_OK;
}

/* A separator inside a value would end the property early and forge the next one. */
static bool has_separator(const omq_text *text) {
    for (size_t i = 0; i < text->size; i++) {
        if (text->bytes[i] == NAME_END || text->bytes[i] == VALUE_END) {
            return true;
        }
    }
    return false;
}

/* Return the bytes of a row's properties; SIZE_MAX if one of them cannot be written. */
static size_t row_property_size(const omq_row_messages *messages, size_t row) {
    size_t size = messages->fixed.size + (messages->unique != NULL ? UNIQUE_PROPERTY : 0);
    for (size_t i = 0; i < messages->column_count; i++) {
        const omq_property_column *column = &messages->columns[i];
        if (column->numbers != NULL) {
            size += column->name.size + 2 + omq_decimal_size(column->numbers[row]);
            continue;
        }
        omq_text value;
        if (!read_text(&column->texts, row, &value)) {
            return SIZE_MAX;
        }
        if (column->name.size == 0) {
            size += value.size;
        } else if (value.size > 0) {
            if (has_separator(&value)) {
                return SIZE_MAX;
            }
            size += column->name.size + value.size + 2;
        }
    }
    return size;
}

/* Return the bytes of a row as a message of a batch; 0 if no broker would take it. */
static size_t row_entry_size(const omq_row_messages *messages, size_t row) {
    omq_text body;
    if (row >= messages->count || !read_text(&messages->bodies, row, &body) || body.size == 0) {
        return 0;
    }
    size_t properties = row_property_size(messages, row);
    if (properties > SHORT_MAX || body.size > INT32_MAX - ENTRY_SMALLEST - properties) {
        return 0;
    }
    return ENTRY_SMALLEST + body.size + properties;
}

omq_status omq_rows_measure(const omq_row_messages *messages, const uint32_t *rows,
                            size_t row_count, size_t most_bytes, size_t *fitting, size_t *size) {
    *size = 0;
    for (*fitting = 0; *fitting < row_count; *fitting += 1) {
        size_t entry = row_entry_size(messages, rows[*fitting]);
        if (entry == 0) {
            return OMQ_OUT_OF_RANGE;
        }
        if (*fitting > 0 && (entry > most_bytes || *size > most_bytes - entry)) {
            break;
        }
        *size += entry;
    }
    return OMQ_OK;
}

static uint8_t *put_columns(uint8_t *at, const omq_row_messages *messages, size_t row) {
    for (size_t i = 0; i < messages->column_count; i++) {
        const omq_property_column *column = &messages->columns[i];
        omq_text value = {NULL, 0};
        if (column->numbers == NULL) {
            (void)read_text(&column->texts, row, &value); /* measured, so it can be read */
            if (column->name.size == 0 || value.size == 0) {
                at = put_bytes(at, value.bytes, value.size);
                continue;
            }
        }
        at = put_bytes(at, column->name.bytes, column->name.size);
        *at++ = NAME_END;
        at = column->numbers != NULL ? at + omq_write_decimal(at, column->numbers[row])
                                     : put_bytes(at, value.bytes, value.size);
        *at++ = VALUE_END;
    }
    return at;
}

static uint8_t *put_unique(uint8_t *at, const uint8_t *unique) {
    static const char digits[] = "0123456789ABCDEF";
    at = put_bytes(at, unique_name, sizeof unique_name - 1);
    *at++ = NAME_END;
    for (size_t i = 0; i < UNIQUE_SIZE; i++) {
        *at++ = (uint8_t)digits[unique[i] >> 4];
        *at++ = (uint8_t)digits[unique[i] & 15];
    }
    *at++ = VALUE_END;
    return at;
}

/* Add one to a 16-byte number, big-endian. */
static void add_one_to(uint8_t *unique) {
    for (size_t i = UNIQUE_SIZE; i-- > 0 && ++unique[i] == 0;) {
    }
}

void omq_rows_encode(const omq_row_messages *messages, const uint32_t *rows, size_t row_count,
                     uint8_t *batch) {
    uint8_t unique[UNIQUE_SIZE] = {0};
    if (messages->unique != NULL) {
        memcpy(unique, messages->unique, UNIQUE_SIZE);
    }
    uint8_t *entry = batch;
    for (size_t i = 0; i < row_count; i++) {
        size_t row = rows[i];
        omq_text body = {NULL, 0};
        (void)read_text(&messages->bodies, row, &body); /* measured, so it can be read */
        memset(entry, 0, ENTRY_BODY_AT); /* magic, checksum and flag, too */
        omq_write_u32(entry + ENTRY_BODY_AT - SIZE_FIELD, (uint32_t)body.size);
        uint8_t *text = put_bytes(entry + ENTRY_BODY_AT, body.bytes, body.size) + 2;
        uint8_t *at = put_bytes(text, messages->fixed.bytes, messages->fixed.size);
        at = put_columns(at, messages, row);
        if (messages->unique != NULL) {
            at = put_unique(at, unique);
            add_one_to(unique);
        }
        omq_write_u16(text - 2, (uint16_t)(at - text));
        omq_write_u32(entry, (uint32_t)(at - entry));
        entry = at;
    }
}

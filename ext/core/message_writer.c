#include <string.h>

#include "bytes.h"
#include "crc32.h"
#include "message_entry.h"
#include "message_layout.h"
#include "message_properties.h"
#include "ordermq.h"

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

static uint8_t *put_text(uint8_t *at, const omq_text *text) {
    if (text->size > 0) { /* an empty one may have no address, which memcpy must not be given */
        memcpy(at, text->bytes, text->size);
    }
    return at + text->size;
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
    at = put_u64(at, 0); /* its two offsets, which omq_records_stamp writes */
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

/* What a broker must do more with a message than store it cannot be in a batch. */
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
    for (size_t i = 0; i < count; i++) { /* its lengths are those that omq_batch_measure checked */
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
        at = put_u64(at, 0); /* magic and checksum, which nobody reads */
        at = put_u32(at, (uint32_t)message->flag);
        at = put_u32(at, message->body.size);
        at = put_text(at, &message->body);
        at = put_u16(at, message->properties.size);
        at = put_text(at, &message->properties);
    }
}

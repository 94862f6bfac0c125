#include <string.h>

#include "bytes.h"
#include "ordermq.h"

/* A stored record (protocol 2.1), in bytes from its start; all integers big-endian:
 * 0 size, 4 magic, 8 crc, 12 queue id, 16 flag, 20 queue offset, 28 physical offset,
 * 36 sysFlag, 40 born, 48 born host (8, or 20 as IPv6), store time 8, store host (8 or 20),
 * reconsume times 4, prepared offset 8, body size 4, body, topic size (v1: 1, v2: 2), topic,
 * properties size 2, properties. */
enum {
    SIZE_FIELD = 4,
    MAGIC_AT = 4,
    QUEUE_OFFSET_AT = 20,
    SYS_FLAG_AT = 36,
    BODY_AT = 88, /* with two IPv4 hosts */
    IPV6_EXTRA = 12,
    SMALLEST = 91,
    BORN_HOST_V6 = 0x10,
    STORE_HOST_V6 = 0x20,
    V1_TOPIC_MAX = 127, /* its size is a signed byte, as the next is a signed short */
    SHORT_MAX = 32767
};

#define MAGIC_V1 UINT32_C(0xDAA320A7)
#define MAGIC_V2 UINT32_C(0xDAA320AB)

typedef struct {
    size_t size; /* of the record */
    int64_t offset;
    uint32_t body_at; /* in the pull body; so the next */
    uint32_t body_size;
    uint32_t property_at;
    uint32_t property_size;
} omq_record;

static omq_status malformed(omq_message_fault *fault, omq_fault kind, size_t position) {
    fault->fault = kind;
    fault->position = position;
    return OMQ_MALFORMED;
}

/* Read the record at `start`. No length is trusted: each is compared with what is left of the
 * record before it moves the cursor. */
static omq_status read_record(const uint8_t *body, size_t size, size_t start, omq_record *record,
                              omq_message_fault *fault) {
    const uint8_t *at = body + start;
    if (size - start < SIZE_FIELD) {
        return malformed(fault, OMQ_FAULT_TRAILING, start);
    }
    uint32_t record_size = omq_read_u32(at);
    if (record_size < SMALLEST || record_size > INT32_MAX) {
        return malformed(fault, OMQ_FAULT_RECORD_SIZE, start);
    }
    if (record_size > size - start) {
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
    uint32_t cursor = BODY_AT + (flags & BORN_HOST_V6 ? IPV6_EXTRA : 0) +
                      (flags & STORE_HOST_V6 ? IPV6_EXTRA : 0);
    if (cursor > record_size) {
        return malformed(fault, OMQ_FAULT_FIXED_PART, start + SYS_FLAG_AT);
    }
    uint32_t body_size = omq_read_u32(at + cursor - SIZE_FIELD);
    if (body_size > record_size - cursor) {
        return malformed(fault, OMQ_FAULT_BODY_SIZE, start + cursor - SIZE_FIELD);
    }
    record->body_at = (uint32_t)start + cursor;
    record->body_size = body_size;
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
    record->property_at = (uint32_t)start + cursor;
    record->property_size = property_size;
    if (cursor + property_size != record_size) {
        return malformed(fault, OMQ_FAULT_RECORD_END, start + cursor + property_size);
    }
    record->size = record_size;
    record->offset = (int64_t)offset;
    return OMQ_OK;
}

/* Find the value of TAGS; size 0 if there is none, for empty values do not count. The last
 * entry wins, as it does in Java's map. */
static omq_tag find_tag(const uint8_t *properties, size_t size) {
    static const uint8_t name[] = {'T', 'A', 'G', 'S', 1};
    omq_tag found = {NULL, 0};
    const uint8_t *end = properties + size;
    for (const uint8_t *at = properties; at < end;) {
        const uint8_t *separator = memchr(at, 2, (size_t)(end - at));
        const uint8_t *entry_end = separator == NULL ? end : separator;
        size_t entry_size = (size_t)(entry_end - at);
        if (entry_size > sizeof name && memcmp(at, name, sizeof name) == 0) {
            found = (omq_tag){at + sizeof name, entry_size - sizeof name};
        }
        at = entry_end + 1;
    }
    return found;
}

static bool is_wanted(const omq_tag *tags, size_t tag_count, const uint8_t *properties,
                      size_t size) {
    omq_tag tag = find_tag(properties, size);
    for (size_t i = 0; tag.size > 0 && i < tag_count; i++) {
        if (tags[i].size == tag.size && memcmp(tags[i].bytes, tag.bytes, tag.size) == 0) {
            return true;
        }
    }
    return false;
}

size_t omq_message_count(const uint8_t *body, size_t size) {
    size_t count = 0;
    for (size_t at = 0; size - at >= SIZE_FIELD;) {
        uint32_t record_size = omq_read_u32(body + at);
        if (record_size < SMALLEST || record_size > size - at) {
            break;
        }
        at += record_size;
        count++;
    }
    return count;
}

omq_status omq_message_index(const uint8_t *body, size_t size, const omq_tag *tags,
                             size_t tag_count, const omq_message_columns *columns, size_t *rows,
                             int64_t *last_offset, omq_message_fault *fault) {
    size_t row = 0;
    *rows = 0;
    *last_offset = -1;
    if (size > UINT32_MAX) {
        return OMQ_OUT_OF_RANGE;
    }
    fault->record = 0;
    for (size_t start = 0; start < size; fault->record++) {
        omq_record record;
        if (read_record(body, size, start, &record, fault) != OMQ_OK) {
            return OMQ_MALFORMED;
        }
        *last_offset = record.offset;
        if (tag_count == 0 ||
            is_wanted(tags, tag_count, body + record.property_at, record.property_size)) {
            columns->offsets[row] = record.offset;
            columns->positions[row] = (uint32_t)start;
            columns->body_positions[row] = record.body_at;
            columns->body_sizes[row] = record.body_size;
            columns->property_positions[row] = record.property_at;
            columns->property_sizes[row] = record.property_size;
            row++;
        }
        start += record.size;
    }
    *rows = row;
    return OMQ_OK;
}

/* The frame codec of ordermq.h: reads binary command headers, writes frames with JSON headers. */
#include <string.h>

#include "bytes.h"
#include "ordermq.h"

/* A binary header (docs/internals/protocol.md#binary-header), big-endian: code 2, language 1,
 * version 2, opaque 4, flag 4,
 * remark size 4, remark, fields size 4, then for each: name size 2, name, value size 4, value. */
enum { LANGUAGE_AT = 2, VERSION_AT = 3, OPAQUE_AT = 5, FLAG_AT = 9, REMARK_AT = 13 };

typedef struct {
    const uint8_t *bytes;
    size_t size;
    size_t at;
    omq_header_fault fault;
    size_t fault_at;
} omq_cursor;

static bool fails(omq_cursor *cursor, omq_header_fault fault, size_t position) {
    cursor->fault = fault;
    cursor->fault_at = position;
    return false;
}

/* Read a size of `width` bytes at the cursor, and the text of that size behind it. Java's sizes are
 * signed, so one over INT16_MAX or INT32_MAX is negative there, and refused here. */
static bool read_sized(omq_cursor *cursor, size_t width, omq_header_fault fault, omq_text *text) {
    size_t position = cursor->at;
    if (cursor->size - position < width) {
        return fails(cursor, OMQ_HEADER_END, cursor->size);
    }
    const uint8_t *at = cursor->bytes + position;
    uint32_t size = width == 2 ? omq_read_u16(at) : omq_read_u32(at);
    uint32_t most = width == 2 ? INT16_MAX : INT32_MAX;
    cursor->at += width;
    if (size > most || size > cursor->size - cursor->at) {
        return fails(cursor, fault, position);
    }
    *text = (omq_text){cursor->bytes + cursor->at, size};
    cursor->at += size;
    return true;
}

static bool read_text(omq_cursor *cursor, size_t width, omq_header_fault fault, omq_text *text) {
    if (!read_sized(cursor, width, fault, text)) {
        return false;
    }
    return omq_is_utf8(text->bytes, text->size) ||
           fails(cursor, OMQ_HEADER_TEXT, (size_t)(text->bytes - cursor->bytes));
}

static bool read_header(omq_cursor *cursor, omq_header *header) {
    const uint8_t *bytes = cursor->bytes;
    omq_property field;
    if (cursor->size < REMARK_AT) {
        return fails(cursor, OMQ_HEADER_END, cursor->size);
    }
    header->code = (int16_t)omq_read_u16(bytes);
    header->language = bytes[LANGUAGE_AT];
    header->version = (int16_t)omq_read_u16(bytes + VERSION_AT);
    header->opaque = (int32_t)omq_read_u32(bytes + OPAQUE_AT);
    header->flag = (int32_t)omq_read_u32(bytes + FLAG_AT);
    if (!read_text(cursor, 4, OMQ_HEADER_REMARK, &header->remark)) {
        return false;
    }
    size_t fields_at = cursor->at;
    if (!read_sized(cursor, 4, OMQ_HEADER_FIELDS, &header->fields)) {
        return false;
    }
    if (cursor->at != cursor->size) { /* the fields end the header: bytes behind them are a fault */
        return fails(cursor, OMQ_HEADER_FIELDS, fields_at);
    }
    cursor->at = fields_at + 4; /* back to check every field once, so that next_field need not */
    while (cursor->at < cursor->size) {
        if (!read_text(cursor, 2, OMQ_HEADER_NAME, &field.name) ||
            !read_text(cursor, 4, OMQ_HEADER_VALUE, &field.value)) {
            return false;
        }
    }
    return true;
}

omq_header_fault omq_header_read(const uint8_t *bytes, size_t size, omq_header *header,
                                 size_t *position) {
    omq_cursor cursor = {bytes, size, REMARK_AT, OMQ_HEADER_OK, 0};
    (void)read_header(&cursor, header);
    *position = cursor.fault_at;
    return cursor.fault;
}

bool omq_header_next_field(const omq_header *header, size_t *at, omq_property *field) {
    if (*at >= header->fields.size) {
        return false;
    }
    const uint8_t *start = header->fields.bytes + *at;
    field->name = (omq_text){start + 2, omq_read_u16(start)};
    start += 2 + field->name.size;
    field->value = (omq_text){start + 4, omq_read_u32(start)};
    *at += 6 + field->name.size + field->value.size;
    return true;
}

enum { FRAME_HEAD = 8 }; /* length, and encoding and size of the header */

/* By byte of a string in JSON: the characters it takes. UTF-8 beyond ASCII stays as it is. */
static size_t escaped_size(uint8_t byte) {
    if (byte == '"' || byte == '\\') {
        return 2;
    }
    if (byte >= ' ') {
        return 1;
    }
    return byte == '\b' || byte == '\t' || byte == '\n' || byte == '\f' || byte == '\r' ? 2 : 6;
}

static uint8_t *put_escaped(uint8_t *at, uint8_t byte) {
    static const char digits[] = "0123456789abcdef";
    static const char letters[] = "btn_fr"; /* of 8 to 13 */
    size_t size = escaped_size(byte);
    if (size > 1) {
        *at++ = '\\';
    }
    if (size == 6) {
        memcpy(at, "u00", 3);
        at[3] = (uint8_t)digits[byte >> 4];
        at[4] = (uint8_t)digits[byte & 15];
        return at + 5;
    }
    *at = size == 2 && byte < ' ' ? (uint8_t)letters[byte - '\b'] : byte;
    return at + 1;
}

static size_t value_size(const omq_frame_value *value) {
    if (value->text.bytes == NULL) {
        return omq_decimal_size(value->number);
    }
    size_t size = 2;
    for (size_t i = 0; i < value->text.size; i++) {
        size += escaped_size(value->text.bytes[i]);
    }
    return size;
}

static uint8_t *put_value(uint8_t *at, const omq_frame_value *value) {
    if (value->text.bytes == NULL) {
        return at + omq_write_decimal(at, value->number);
    }
    *at++ = '"';
    for (size_t i = 0; i < value->text.size; i++) {
        at = put_escaped(at, value->text.bytes[i]);
    }
    *at++ = '"';
    return at;
}

size_t omq_frame_size(const omq_text *texts, const omq_frame_value *values, size_t value_count,
                      size_t body_size) {
    size_t header = texts[value_count].size;
    for (size_t i = 0; i < value_count; i++) {
        header += texts[i].size + value_size(&values[i]);
    }
    /* The size of the header has three bytes. */
    if (header >= 1 << 24 || body_size > INT32_MAX - FRAME_HEAD - header) {
        return 0;
    }
    return FRAME_HEAD + header + body_size;
}

void omq_frame_write(const omq_text *texts, const omq_frame_value *values, size_t value_count,
                     const omq_text *body, uint8_t *frame) {
    uint8_t *at = frame + FRAME_HEAD;
    for (size_t i = 0; i < value_count; i++) {
        at = put_value(omq_put_bytes(at, texts[i].bytes, texts[i].size), &values[i]);
    }
    at = omq_put_bytes(at, texts[value_count].bytes, texts[value_count].size);
    omq_write_u32(frame + 4, (uint32_t)(at - frame - FRAME_HEAD));
    at = omq_put_bytes(at, body->bytes, body->size);
    omq_write_u32(frame, (uint32_t)(at - frame - 4));
}

/* Rows in columns: whether they are in order, and batch bodies of them. */
#include <stdbool.h>
#include <string.h>

#include "bytes.h"
#include "message_layout.h"
#include "ordermq.h"

enum {
    NAME_END = 1, /* a property's separators (docs/internals/protocol.md#stored-message) */
    VALUE_END = 2,
    UNIQUE_SIZE = 16,
    DECIMAL_MAX = 20 /* characters of an int64 */
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

static size_t decimal(int64_t number, uint8_t *text) {
    uint8_t reversed[DECIMAL_MAX];
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t count = 0, at = 0;
    do {
        reversed[count++] = (uint8_t)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0) {
        text[at++] = '-';
    }
    while (count > 0) {
        text[at++] = reversed[--count];
    }
    return at;
}

static size_t decimal_size(int64_t number) {
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t size = number < 0 ? 2 : 1;
    while (rest >= 10) {
        rest /= 10;
        size++;
    }
    return size;
}

static bool has_separator(const omq_text *text) {
    for (size_t i = 0; i < text->size; i++) {
        if (text->bytes[i] == NAME_END || text->bytes[i] == VALUE_END) {
            return true;
        }
    }
    return false;
}

/* Bytes of a row's properties; SIZE_MAX if one of them cannot be written. */
static size_t property_size(const omq_row_messages *messages, size_t row) {
    size_t size = messages->fixed.size + (messages->unique != NULL ? UNIQUE_PROPERTY : 0);
    for (size_t i = 0; i < messages->column_count; i++) {
        const omq_property_column *column = &messages->columns[i];
        if (column->numbers != NULL) {
            size += column->name.size + 2 + decimal_size(column->numbers[row]);
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

/* Bytes of a row as a message of a batch; 0 if no broker takes it. */
static size_t entry_size(const omq_row_messages *messages, size_t row) {
    omq_text body;
    if (row >= messages->count || !read_text(&messages->bodies, row, &body) || body.size == 0) {
        return 0;
    }
    size_t properties = property_size(messages, row);
    if (properties > SHORT_MAX || body.size > INT32_MAX - ENTRY_SMALLEST - properties) {
        return 0;
    }
    return ENTRY_SMALLEST + body.size + properties;
}

omq_status omq_rows_measure(const omq_row_messages *messages, const uint32_t *rows,
                            size_t row_count, size_t most_bytes, size_t *fitting, size_t *size) {
    *size = 0;
    for (*fitting = 0; *fitting < row_count; *fitting += 1) {
        size_t entry = entry_size(messages, rows[*fitting]);
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

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size) {
    if (size > 0) { /* an empty text may have no address, which memcpy must not be given */
        memcpy(at, bytes, size);
    }
    return at + size;
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
        at = column->numbers != NULL ? at + decimal(column->numbers[row], at)
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

static void add_one(uint8_t *unique) {
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
            add_one(unique);
        }
        omq_write_u16(text - 2, (uint16_t)(at - text));
        omq_write_u32(entry, (uint32_t)(at - entry));
        entry = at;
    }
}

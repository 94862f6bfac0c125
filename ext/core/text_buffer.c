/* Texts that grow at their end. */
#include "text_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "bytes.h"

enum { FIRST_ROOM = 4096, LONGEST_ESCAPE = 6 };

/* Return the place of `more` further bytes, which the caller writes; NULL if memory is short. */
static uint8_t *extended(omq_text_buffer *buffer, size_t more) {
    if (buffer->was_short || more > SIZE_MAX / 2 - buffer->size) {
        buffer->was_short = true;
        return NULL;
    }
    if (buffer->size + more > buffer->room) {
        size_t room = buffer->room < FIRST_ROOM ? FIRST_ROOM : buffer->room;
        while (room < buffer->size + more) {
            room *= 2;
        }
        uint8_t *bytes = realloc(buffer->bytes, room);
        if (bytes == NULL) {
            buffer->was_short = true;
            return NULL;
        }
        buffer->bytes = bytes;
        buffer->room = room;
    }
    return buffer->bytes + buffer->size;
}

void omq_buffer_add(omq_text_buffer *buffer, const uint8_t *bytes, size_t size) {
    uint8_t *at = extended(buffer, size);
    if (at != NULL) {
        omq_put_bytes(at, bytes, size);
        buffer->size += size;
    }
}

void omq_buffer_add_decimal(omq_text_buffer *buffer, int64_t number) {
    uint8_t *at = extended(buffer, OMQ_DECIMAL_MAX);
    if (at != NULL) {
        buffer->size += omq_write_decimal(at, number);
    }
}

/* Write an ASCII character that JSON strings must escape; return the place behind it. */
static uint8_t *put_escaped(uint8_t *at, uint8_t character) {
    static const char digits[] = "0123456789abcdef";
    const char *letter = NULL;
    *at++ = '\\';
    switch (character) {
    case '"': letter = "\""; break;
    case '\\': letter = "\\"; break;
    case '\b': letter = "b"; break;
    case '\f': letter = "f"; break;
    case '\n': letter = "n"; break;
    case '\r': letter = "r"; break;
    case '\t': letter = "t"; break;
    default: break;
    }
    if (letter != NULL) {
        *at++ = (uint8_t)*letter;
        return at;
    }
    at = omq_put_bytes(at, (const uint8_t *)"u00", 3);
    *at++ = (uint8_t)digits[character >> 4];
    *at++ = (uint8_t)digits[character & 15];
    return at;
}

void omq_buffer_add_json(omq_text_buffer *buffer, const uint8_t *text, size_t size) {
    if (size > (SIZE_MAX / 4 - 2) / LONGEST_ESCAPE) {
        buffer->was_short = true;
        return;
    }
    uint8_t *begin = extended(buffer, size * LONGEST_ESCAPE + 2);
    if (begin == NULL) {
        return;
    }
    uint8_t *at = begin;
    *at++ = '"';
    for (size_t i = 0; i < size; i++) {
        if (text[i] < ' ' || text[i] == '"' || text[i] == '\\') {
            at = put_escaped(at, text[i]);
        } else {
            *at++ = text[i];
        }
    }
    *at++ = '"';
    buffer->size += (size_t)(at - begin);
}

bool omq_buffer_cut(omq_text_buffer *buffer, size_t size) {
    bool was_short = buffer->was_short;
    buffer->size = size;
    buffer->was_short = false;
    return was_short;
}

void omq_buffer_clear(omq_text_buffer *buffer, size_t kept) {
    buffer->size = 0;
    buffer->was_short = false;
    if (buffer->room > kept) {
        free(buffer->bytes);
        buffer->bytes = NULL;
        buffer->room = 0;
    }
}

/* The parts of JSON that headers are read with: no values are kept, no escapes are undone.
 * Pure functions, any thread. They are here to be inlined: they take a few bytes each, and a header
 * takes fifty calls. For the same reason they step through a copy of `at`: a byte that is read may
 * be part of *json as far as the compiler knows, which then loads both pointers again. */
#ifndef OMQ_JSON_SCAN_H
#define OMQ_JSON_SCAN_H

#include <string.h>

#include "ordermq.h"

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} omq_json;

static inline void omq_json_skip_blanks(omq_json *json) {
    const uint8_t *at = json->at;
    const uint8_t *end = json->end;
    /* Most often there are none: one comparison tells. */
    while (at < end && *at <= ' ' && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) {
        at++;
    }
    json->at = at;
}

/* Take a byte, and blanks before it. False, at another one: only the blanks are taken. */
static inline bool omq_json_take_byte(omq_json *json, uint8_t byte) {
    omq_json_skip_blanks(json);
    if (json->at == json->end || *json->at != byte) {
        return false;
    }
    json->at++;
    return true;
}

/* Return the first byte that a string cannot have, or that ends it or begins an escape. */
static inline const uint8_t *omq_json_past_plain(const uint8_t *at, const uint8_t *end) {
    const uint64_t ones = UINT64_C(0x0101010101010101);
    for (; end - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        uint64_t quote = word ^ ones * '"';
        uint64_t escape = word ^ ones * '\\';
        /* The high bit of a byte is set if it is zero, or below a blank; and perhaps in bytes next
         * to such a one, so that the loop below looks again. */
        uint64_t found = ((quote - ones) & ~quote) | ((escape - ones) & ~escape) |
                         ((word - ones * ' ') & ~word);
        if (found & ones * 0x80) {
            break;
        }
    }
    while (at < end && *at >= ' ' && *at != '"' && *at != '\\') {
        at++;
    }
    return at;
}

/* Take a string, its escapes left as they are. False: there is none, or it is not ended. */
static inline bool omq_json_take_string(omq_json *json, omq_text *text, bool *is_escaped) {
    *is_escaped = false;
    if (!omq_json_take_byte(json, '"')) {
        return false;
    }
    const uint8_t *start = json->at;
    const uint8_t *end = json->end;
    const uint8_t *at = omq_json_past_plain(start, end);
    while (at < end && *at == '\\') {
        *is_escaped = true;
        if (++at == end) {
            break;
        }
        at = omq_json_past_plain(at + 1, end);
    }
    json->at = at;
    if (at == end || *at != '"') {
        return false;
    }
    *text = (omq_text){start, (size_t)(at - start)};
    json->at++;
    return true;
}

/* Return whether a text is this one; of a literal the compiler knows the size. */
static inline bool omq_text_is(const omq_text *text, const char *other) {
    return text->size == strlen(other) && memcmp(text->bytes, other, text->size) == 0;
}

#endif

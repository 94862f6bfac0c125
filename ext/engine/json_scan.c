#include "json_scan.h"

#include <string.h>

void omq_json_skip_blanks(omq_json *json) {
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' ||
                                    *json->at == '\r')) {
        json->at++;
    }
}

bool omq_json_take_byte(omq_json *json, uint8_t byte) {
    omq_json_skip_blanks(json);
    if (json->at == json->end || *json->at != byte) {
        return false;
    }
    json->at++;
    return true;
}

bool omq_json_take_string(omq_json *json, omq_text *text, bool *is_escaped) {
    *is_escaped = false;
    if (!omq_json_take_byte(json, '"')) {
        return false;
    }
    const uint8_t *start = json->at;
    for (; json->at < json->end && *json->at != '"'; json->at++) {
        if (*json->at < ' ') {
            return false;
        }
        if (*json->at == '\\') {
            *is_escaped = true;
            if (++json->at == json->end) {
                return false;
            }
        }
    }
    if (json->at == json->end) {
        return false;
    }
    *text = (omq_text){start, (size_t)(json->at - start)};
    json->at++;
    return true;
}

bool omq_text_is(const omq_text *text, const char *other) {
    return text->size == strlen(other) && memcmp(text->bytes, other, text->size) == 0;
}

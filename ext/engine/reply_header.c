#include "reply_header.h"

#include <string.h>

#include "ordermq.h"

enum { DEEPEST = 32 }; /* values within values; answers have two */

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} omq_json;

static void skip_blanks(omq_json *json) {
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' ||
                                    *json->at == '\r')) {
        json->at++;
    }
}

static bool take_byte(omq_json *json, uint8_t byte) {
    skip_blanks(json);
    if (json->at == json->end || *json->at != byte) {
        return false;
    }
    json->at++;
    return true;
}

/* Read a string, its escapes left as they are. */
static bool take_string(omq_json *json, omq_text *text, bool *is_escaped) {
    *is_escaped = false;
    if (!take_byte(json, '"')) {
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

/* Skip a number, true, false or null; what is none of them ends at once. */
static bool skip_word(omq_json *json) {
    const uint8_t *start = json->at;
    while (json->at < json->end && (*json->at == '-' || *json->at == '+' || *json->at == '.' ||
                                    (*json->at >= '0' && *json->at <= '9') ||
                                    (*json->at >= 'a' && *json->at <= 'z') || *json->at == 'E')) {
        json->at++;
    }
    return json->at > start;
}

/* Read a value: a string into `text`, any other into `text` with is_string false. */
static bool take_value(omq_json *json, int depth, omq_text *text, bool *is_string,
                       bool *is_escaped);

static bool skip_members(omq_json *json, int depth, uint8_t close, bool has_names) {
    omq_text text;
    bool is_string;
    bool is_escaped;
    json->at++;
    if (depth == DEEPEST) {
        return false;
    }
    if (take_byte(json, close)) {
        return true;
    }
    do {
        if (has_names && !(take_string(json, &text, &is_escaped) && take_byte(json, ':'))) {
            return false;
        }
        if (!take_value(json, depth + 1, &text, &is_string, &is_escaped)) {
            return false;
        }
    } while (take_byte(json, ','));
    return take_byte(json, close);
}

static bool take_value(omq_json *json, int depth, omq_text *text, bool *is_string,
                       bool *is_escaped) {
    skip_blanks(json);
    *is_string = false;
    *is_escaped = false;
    if (json->at == json->end) {
        return false;
    }
    const uint8_t *start = json->at;
    bool is_read;
    if (*start == '"') {
        *is_string = true;
        return take_string(json, text, is_escaped);
    }
    if (*start == '{') {
        is_read = skip_members(json, depth, '}', true);
    } else if (*start == '[') {
        is_read = skip_members(json, depth, ']', false);
    } else {
        is_read = skip_word(json);
    }
    *text = (omq_text){start, (size_t)(json->at - start)};
    return is_read;
}

static bool is_named(const omq_text *text, const char *name) {
    return text->size == strlen(name) && memcmp(text->bytes, name, text->size) == 0;
}

/* Read the fields of a pull; all of them are strings, as Java's broker writes them. */
static bool take_fields(omq_json *json, omq_reply_header *header) {
    if (!take_byte(json, '{')) {
        return false;
    }
    if (take_byte(json, '}')) {
        return true;
    }
    do {
        omq_text name;
        omq_text value;
        bool is_string;
        bool is_escaped;
        bool is_name_escaped;
        if (!take_string(json, &name, &is_name_escaped) || !take_byte(json, ':') ||
            !take_value(json, 1, &value, &is_string, &is_escaped)) {
            return false;
        }
        omq_text *wanted = NULL;
        if (is_named(&name, "nextBeginOffset")) {
            wanted = &header->next_offset;
        } else if (is_named(&name, "maxOffset")) {
            wanted = &header->max_offset;
        } else if (is_named(&name, "suggestWhichBrokerId")) {
            wanted = &header->suggestion;
        } else if (is_named(&name, "offsetDelta")) {
            header->has_offset_delta = true;
        }
        header->is_odd |= is_name_escaped;
        if (wanted != NULL) {
            header->is_odd |= !is_string || is_escaped || wanted->bytes != NULL;
            *wanted = value;
        }
    } while (take_byte(json, ','));
    return take_byte(json, '}');
}

/* Return an int of Java; `other` for anything else. */
static int64_t int_of(omq_text text, int64_t other) {
    bool is_negative = text.size > 0 && text.bytes[0] == '-';
    omq_text digits = {text.bytes + is_negative, text.size - is_negative};
    int64_t number = omq_offset_of(digits);
    if (number < 0 || number > (int64_t)INT32_MAX + is_negative) {
        return other;
    }
    return is_negative ? -number : number;
}

int64_t omq_offset_of(omq_text text) {
    int64_t number = 0;
    if (text.size == 0 || text.size > 18) {
        return -1;
    }
    for (size_t i = 0; i < text.size; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9') {
            return -1;
        }
        number = number * 10 + (text.bytes[i] - '0');
    }
    return number;
}

static bool take_member(omq_json *json, omq_reply_header *header, bool *has_fields) {
    omq_text name;
    omq_text value;
    bool is_string;
    bool is_escaped;
    if (!take_string(json, &name, &is_escaped) || !take_byte(json, ':')) {
        return false;
    }
    header->is_odd |= is_escaped;
    skip_blanks(json);
    if (is_named(&name, "extFields") && json->at < json->end && *json->at == '{') {
        header->is_odd |= *has_fields;
        *has_fields = true;
        return take_fields(json, header);
    }
    if (!take_value(json, 1, &value, &is_string, &is_escaped)) {
        return false;
    }
    if (is_string) {
        value.size = 0; /* a number in quotes is none */
    }
    if (is_named(&name, "code")) {
        header->code = int_of(value, -1);
    } else if (is_named(&name, "opaque")) {
        header->opaque = int_of(value, 0);
    } else if (is_named(&name, "flag")) {
        header->flag = int_of(value, 0);
    } else if (is_named(&name, "extFields")) {
        header->is_odd = true;
    }
    return true;
}

bool omq_read_reply_header(const uint8_t *bytes, size_t size, omq_reply_header *header) {
    omq_json json = {bytes, bytes + size};
    bool has_fields = false;
    *header = (omq_reply_header){.code = -1};
    if (!take_byte(&json, '{') || !omq_is_utf8(bytes, size)) {
        return false;
    }
    if (!take_byte(&json, '}')) {
        do {
            if (!take_member(&json, header, &has_fields)) {
                return false;
            }
        } while (take_byte(&json, ','));
        if (!take_byte(&json, '}')) {
            return false;
        }
    }
    skip_blanks(&json);
    return json.at == json.end;
}

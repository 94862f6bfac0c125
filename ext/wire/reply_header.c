#include "reply_header.h"

#include "bytes.h"
#include "json_scan.h"
#include "ordermq.h"

enum {
    DEEPEST = 32,      /* values within values; answers have two */
    OPAQUE_AT = 5,     /* of a binary header */
    FLAG_AT = 9,
    BINARY_HEAD = 13   /* bytes up to its remark */
};

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
    if (omq_json_take_byte(json, close)) {
        return true;
    }
    do {
        if (has_names && !(omq_json_take_string(json, &text, &is_escaped) &&
                           omq_json_take_byte(json, ':'))) {
            return false;
        }
        if (!take_value(json, depth + 1, &text, &is_string, &is_escaped)) {
            return false;
        }
    } while (omq_json_take_byte(json, ','));
    return omq_json_take_byte(json, close);
}

static bool take_value(omq_json *json, int depth, omq_text *text, bool *is_string,
                       bool *is_escaped) {
    omq_json_skip_blanks(json);
    *is_string = false;
    *is_escaped = false;
    if (json->at == json->end) {
        return false;
    }
    const uint8_t *start = json->at;
    bool is_read;
    if (*start == '"') {
        *is_string = true;
        return omq_json_take_string(json, text, is_escaped);
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

/* Return where the value of a field belongs; NULL: it is not kept. */
static omq_text *place_of(omq_reply_header *header, const omq_text *name) {
    if (omq_text_is(name, "nextBeginOffset")) {
        return &header->next_offset;
    }
    if (omq_text_is(name, "maxOffset")) {
        return &header->max_offset;
    }
    if (omq_text_is(name, "suggestWhichBrokerId")) {
        return &header->suggestion;
    }
    if (omq_text_is(name, "msgId")) {
        return &header->message_id;
    }
    if (omq_text_is(name, "queueId")) {
        return &header->queue_id;
    }
    if (omq_text_is(name, "queueOffset")) {
        return &header->queue_offset;
    }
    if (omq_text_is(name, "offsetDelta")) {
        header->has_offset_delta = true;
    } else if (omq_text_is(name, "recallHandle")) {
        header->has_recall_handle = true;
    }
    return NULL;
}

/* Read the fields of a pull and a send; all are strings, as Java's broker writes them. */
static bool take_fields(omq_json *json, omq_reply_header *header) {
    if (!omq_json_take_byte(json, '{')) {
        return false;
    }
    if (omq_json_take_byte(json, '}')) {
        return true;
    }
    do {
        omq_text name;
        omq_text value;
        bool is_string;
        bool is_escaped;
        bool is_name_escaped;
        if (!omq_json_take_string(json, &name, &is_name_escaped) ||
            !omq_json_take_byte(json, ':') ||
            !take_value(json, 1, &value, &is_string, &is_escaped)) {
            return false;
        }
        omq_text *wanted = place_of(header, &name);
        header->is_odd |= is_name_escaped;
        if (wanted != NULL) {
            header->is_odd |= !is_string || is_escaped || wanted->bytes != NULL;
            *wanted = value;
        }
    } while (omq_json_take_byte(json, ','));
    return omq_json_take_byte(json, '}');
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
    if (!omq_json_take_string(json, &name, &is_escaped) || !omq_json_take_byte(json, ':')) {
        return false;
    }
    header->is_odd |= is_escaped;
    omq_json_skip_blanks(json);
    if (omq_text_is(&name, "extFields") && json->at < json->end && *json->at == '{') {
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
    if (omq_text_is(&name, "code")) {
        header->code = int_of(value, -1);
    } else if (omq_text_is(&name, "opaque")) {
        header->opaque = int_of(value, 0);
    } else if (omq_text_is(&name, "flag")) {
        header->flag = int_of(value, 0);
    } else if (omq_text_is(&name, "extFields")) {
        header->is_odd = true;
    }
    return true;
}

static bool read_json(const uint8_t *bytes, size_t size, omq_reply_header *header) {
    omq_json json = {bytes, bytes + size};
    bool has_fields = false;
    if (!omq_json_take_byte(&json, '{') || !omq_is_utf8(bytes, size)) {
        return false;
    }
    if (!omq_json_take_byte(&json, '}')) {
        do {
            if (!take_member(&json, header, &has_fields)) {
                return false;
            }
        } while (omq_json_take_byte(&json, ','));
        if (!omq_json_take_byte(&json, '}')) {
            return false;
        }
    }
    omq_json_skip_blanks(&json);
    return json.at == json.end;
}

static bool read_binary(const uint8_t *bytes, size_t size, omq_reply_header *header) {
    omq_header found;
    omq_property field;
    size_t position;
    size_t at = 0;
    if (size < BINARY_HEAD) {
        return false;
    }
    header->opaque = (int32_t)omq_read_u32(bytes + OPAQUE_AT);
    header->flag = (int32_t)omq_read_u32(bytes + FLAG_AT);
    if (omq_header_read(bytes, size, &found, &position) != OMQ_HEADER_OK) {
        header->is_odd = true; /* it has a request id all the same: who asked shall see it */
        return true;
    }
    header->code = found.code;
    while (omq_header_next_field(&found, &at, &field)) {
        omq_text *place = place_of(header, &field.name);
        if (place != NULL) {
            header->is_odd |= place->bytes != NULL;
            *place = field.value;
        }
    }
    return true;
}

bool omq_read_reply_header(uint32_t encoding, const uint8_t *bytes, size_t size,
                           omq_reply_header *header) {
    *header = (omq_reply_header){.code = -1};
    if (encoding == OMQ_HEADER_JSON) {
        return read_json(bytes, size, header);
    }
    return encoding == OMQ_HEADER_BINARY && read_binary(bytes, size, header);
}

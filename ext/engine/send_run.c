#include "send_run.h"

#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "frame.h"
#include "json_scan.h"
#include "message_layout.h"
#include "reply_header.h"

enum {
    SEND_MESSAGE_V2 = 310,
    ONEWAY = 2, /* a bit of a command's flag */
    COUNTER_SIZE = 12, /* of an id: its time and counter, which only grow; before, its producer */
    MOST_PARTS = 256   /* they are searched one after the other */
};

/* ---- one send ---- */

/* The fields of a send by their letters. A bit of `seen` per letter: what comes twice, or has no
 * letter here, is not judged. */
typedef struct {
    omq_text values['n' - 'a' + 1];
    uint32_t seen;
    bool is_text_escaped; /* of the properties, which have separators */
} omq_send_fields;

static uint32_t bit_of(char letter) { return UINT32_C(1) << (letter - 'a'); }

static const omq_text *value_of(const omq_send_fields *fields, char letter) {
    return &fields->values[letter - 'a'];
}

/* Take extFields: an object of strings with one letter each. */
static bool take_fields(omq_json *json, omq_send_fields *fields) {
    if (!omq_json_take_byte(json, '{')) {
        return false;
    }
    do {
        omq_text name;
        omq_text value;
        bool is_name_escaped;
        bool is_escaped;
        if (!omq_json_take_string(json, &name, &is_name_escaped) ||
            !omq_json_take_byte(json, ':') || !omq_json_take_string(json, &value, &is_escaped) ||
            name.size != 1 || name.bytes[0] < 'a' || name.bytes[0] > 'n') {
            return false;
        }
        uint32_t bit = bit_of((char)name.bytes[0]);
        if (fields->seen & bit) {
            return false;
        }
        fields->seen |= bit;
        fields->values[name.bytes[0] - 'a'] = value;
        if (name.bytes[0] == 'i') {
            fields->is_text_escaped = is_escaped;
        } else if (is_escaped) {
            return false;
        }
    } while (omq_json_take_byte(json, ','));
    return omq_json_take_byte(json, '}');
}

/* Take a number of 31 bits as JSON writes it. */
static bool take_number(omq_json *json, int32_t *number) {
    int64_t found = 0;
    omq_json_skip_blanks(json);
    const uint8_t *start = json->at;
    const uint8_t *at = start;
    for (; at < json->end && *at >= '0' && *at <= '9'; at++) {
        found = found * 10 + (*at - '0');
        if (found > INT32_MAX) {
            return false;
        }
    }
    json->at = at;
    *number = (int32_t)found;
    return at > start && (*start != '0' || at == start + 1);
}

/* Members of a command's header that a plain send may have, each once. */
enum { CODE = 1, FIELDS = 2, FLAG = 4, LANGUAGE = 8, OPAQUE = 16, ENCODING = 32, VERSION = 64 };

static bool take_member(omq_json *json, omq_plain_send *send, omq_send_fields *fields,
                        unsigned *seen) {
    omq_text name;
    omq_text text;
    bool is_escaped;
    int32_t number;
    unsigned member;
    bool is_taken;
    if (!omq_json_take_string(json, &name, &is_escaped) || !omq_json_take_byte(json, ':')) {
        return false;
    }
    if (omq_text_is(&name, "extFields")) {
        member = FIELDS;
        is_taken = take_fields(json, fields);
    } else if (omq_text_is(&name, "code")) {
        member = CODE;
        is_taken = take_number(json, &number) && number == SEND_MESSAGE_V2;
    } else if (omq_text_is(&name, "opaque")) {
        member = OPAQUE;
        is_taken = take_number(json, &send->opaque);
    } else if (omq_text_is(&name, "flag")) {
        member = FLAG;
        is_taken = take_number(json, &send->flag) && (send->flag & OMQ_RESPONSE_FLAG) == 0;
    } else if (omq_text_is(&name, "version")) {
        member = VERSION;
        is_taken = take_number(json, &number);
    } else if (omq_text_is(&name, "language")) {
        member = LANGUAGE;
        is_taken = omq_json_take_string(json, &text, &is_escaped) && !is_escaped;
    } else if (omq_text_is(&name, "serializeTypeCurrentRPC")) {
        member = ENCODING;
        is_taken = omq_json_take_string(json, &text, &is_escaped) && !is_escaped;
    } else {
        return false;
    }
    if (*seen & member) {
        return false;
    }
    *seen |= member;
    return is_taken;
}

static bool read_header(const uint8_t *bytes, size_t size, omq_plain_send *send,
                        omq_send_fields *fields) {
    omq_json json = {bytes, bytes + size};
    unsigned seen = 0;
    if (!omq_is_utf8(bytes, size) || !omq_json_take_byte(&json, '{')) {
        return false;
    }
    do {
        if (!take_member(&json, send, fields, &seen)) {
            return false;
        }
    } while (omq_json_take_byte(&json, ','));
    if (!omq_json_take_byte(&json, '}')) {
        return false;
    }
    omq_json_skip_blanks(&json);
    return json.at == json.end && (seen & CODE) != 0;
}

/* Read a number from 0 to `most`. */
static bool read_number(const omq_text *text, int64_t most, int64_t *number) {
    *number = omq_offset_of(*text);
    return *number >= 0 && *number <= most;
}

static bool read_fields(const omq_send_fields *fields, omq_plain_send *send) {
    const uint32_t needed = bit_of('a') | bit_of('b') | bit_of('c') | bit_of('d') | bit_of('e') |
                            bit_of('f') | bit_of('g') | bit_of('h') | bit_of('i');
    int64_t queues, queue_id, sys_flag, flag;
    if ((fields->seen & needed) != needed || (fields->seen & bit_of('l')) != 0 ||
        ((fields->seen & bit_of('j')) != 0 && !omq_text_is(value_of(fields, 'j'), "0")) ||
        !read_number(value_of(fields, 'd'), INT32_MAX, &queues) ||
        !read_number(value_of(fields, 'e'), INT32_MAX, &queue_id) ||
        !read_number(value_of(fields, 'f'), INT32_MAX, &sys_flag) ||
        (sys_flag & INNER_BATCH) != 0 || /* which is refused */
        !read_number(value_of(fields, 'g'), INT64_MAX, &send->born_ms) ||
        !read_number(value_of(fields, 'h'), INT32_MAX, &flag)) {
        return false;
    }
    send->topic = *value_of(fields, 'b');
    send->queue_id = (int32_t)queue_id;
    send->sys_flag = (int32_t)sys_flag;
    send->message_flag = (int32_t)flag;
    return true;
}

static int hexadecimal(uint8_t digit) {
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    uint8_t small = digit | 0x20;
    return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

/* Undo an escape behind its backslash. Return its bytes, 0 for one that is no ASCII character. */
static size_t unescape(const uint8_t *at, const uint8_t *end, uint8_t *character) {
    static const char names[] = "\"\\/bfnrt";
    static const char meant[] = "\"\\/\b\f\n\r\t";
    if (*at != 'u') { /* which separators of properties have */
        const char *name = *at == 0 ? NULL : strchr(names, *at);
        if (name == NULL) {
            return 0;
        }
        *character = (uint8_t)meant[name - names];
        return 1;
    }
    if (end - at < 5 || at[1] != '0' || at[2] != '0') {
        return 0;
    }
    int high = hexadecimal(at[3]);
    int low = hexadecimal(at[4]);
    if (high < 0 || high > 7 || low < 0) {
        return 0;
    }
    *character = (uint8_t)(high << 4 | low);
    return 5;
}

/* Copy the properties without escapes to `copy`, which has room for them with escapes. */
static bool copy_properties(const omq_send_fields *fields, uint8_t *copy, omq_text *properties) {
    const omq_text *text = value_of(fields, 'i');
    const uint8_t *at = text->bytes;
    const uint8_t *end = at + text->size;
    *properties = (omq_text){copy, text->size};
    if (!fields->is_text_escaped) {
        memcpy(copy, at, text->size);
        return text->size <= SHORT_MAX;
    }
    while (at < end) {
        const uint8_t *escape = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((escape == NULL ? end : escape) - at);
        memcpy(copy, at, plain);
        copy += plain;
        at += plain;
        if (escape != NULL) {
            size_t taken = unescape(at + 1, end, copy++);
            if (taken == 0) {
                return false;
            }
            at += 1 + taken;
        }
    }
    properties->size = (size_t)(copy - properties->bytes);
    return properties->size <= SHORT_MAX;
}

static bool begins_with(const uint8_t *at, const uint8_t *end, const char *word, size_t size) {
    return (size_t)(end - at) >= size && memcmp(at, word, size) == 0;
}
#define BEGINS_WITH(at, end, word) begins_with(at, end, word, sizeof(word) - 1)

/* Find the id. False: there is none, or there are words by which a broker knows a message that is
 * not stored in its queue as it came, whether they mean that here or not. */
static bool read_properties(omq_plain_send *send) {
    const uint8_t *start = send->properties.bytes;
    const uint8_t *end = start + send->properties.size;
    const uint8_t *id = NULL;
    for (const uint8_t *at = start; at < end; at++) {
        switch (*at) {
        case 'D':
            if (BEGINS_WITH(at, end, "DELAY")) {
                return false;
            }
            break;
        case 'R':
            if (BEGINS_WITH(at, end, "REPLY_TO_CLIENT")) {
                return false;
            }
            break;
        case 'T':
            if (BEGINS_WITH(at, end, "TRAN_MSG") || BEGINS_WITH(at, end, "TIMER_DELIVER")) {
                return false;
            }
            break;
        case 'U':
            if (id == NULL && BEGINS_WITH(at, end, "UNIQ_KEY\x01")) {
                if (at > start && at[-1] != 2) {
                    return false;
                }
                id = at + sizeof("UNIQ_KEY\x01") - 1;
            }
            break;
        default: break;
        }
    }
    const uint8_t *id_end = id == NULL ? NULL : memchr(id, 2, (size_t)(end - id));
    if (id_end == NULL || id_end - id < COUNTER_SIZE) {
        return false;
    }
    send->unique_id = (omq_text){id, (size_t)(id_end - id)};
    for (; id < id_end; id++) {
        if (*id >= 0x80) {
            return false;
        }
    }
    return true;
}

/* Read the send of a whole frame; `texts` has room for its header. */
static bool read_send(const omq_frame *frame, size_t most_body, uint8_t *texts,
                      omq_plain_send *send) {
    omq_send_fields fields; /* a value is there if its letter was seen */
    fields.seen = 0;
    fields.is_text_escaped = false;
    if (frame->encoding != OMQ_HEADER_JSON || frame->body_size > most_body) {
        return false;
    }
    *send = (omq_plain_send){.opaque = 0};
    send->body = (omq_text){frame->body, frame->body_size};
    return read_header(frame->header, frame->header_size, send, &fields) &&
           read_fields(&fields, send) && copy_properties(&fields, texts, &send->properties) &&
           read_properties(send);
}

/* ---- a run ---- */

static bool is_after(const omq_text *id, const omq_text *before) {
    return id->size == before->size &&
           memcmp(id->bytes, before->bytes, id->size - COUNTER_SIZE) == 0 &&
           memcmp(id->bytes, before->bytes, id->size) > 0;
}

/* Add a send to the part of its queue. False: its id is not higher than the one before it. */
static bool add_to_part(omq_send_run *run, omq_plain_send *send) {
    uint32_t position = (uint32_t)run->count;
    for (size_t i = 0; i < run->part_count; i++) {
        omq_send_part *part = &run->parts[i];
        const omq_plain_send *last = &run->sends[part->last];
        if (last->queue_id == send->queue_id && last->topic.size == send->topic.size &&
            memcmp(last->topic.bytes, send->topic.bytes, send->topic.size) == 0) {
            send->part = (uint32_t)i;
            if (!is_after(&send->unique_id, &last->unique_id)) {
                return false;
            }
            run->sends[part->last].next = position;
            part->last = position;
            part->count++;
            return true;
        }
    }
    if (run->part_count == MOST_PARTS) {
        return false;
    }
    send->part = (uint32_t)run->part_count;
    run->parts[run->part_count++] = (omq_send_part){position, position, 1};
    return true;
}

/* Return how many whole frames there are, and write the size of their headers. */
static size_t count_frames(const uint8_t *bytes, size_t size, size_t most_frame, size_t *headers) {
    size_t count = 0;
    size_t at = 0;
    omq_frame frame;
    *headers = 0;
    while (omq_frame_read(bytes + at, size - at, most_frame, &frame) == OMQ_FRAME_WHOLE) {
        *headers += frame.header_size;
        at += frame.size;
        count++;
    }
    return count;
}

omq_send_run *omq_send_run_read(const uint8_t *bytes, size_t size, size_t most_frame,
                                size_t most_body) {
    size_t headers;
    size_t most = count_frames(bytes, size, most_frame, &headers);
    omq_send_run *run = calloc(1, sizeof *run);
    if (run == NULL || most == 0) {
        return run;
    }
    run->sends = malloc(most * sizeof *run->sends);
    run->parts = malloc((most < MOST_PARTS ? most : MOST_PARTS) * sizeof *run->parts);
    run->texts = malloc(headers > 0 ? headers : 1);
    if (run->sends == NULL || run->parts == NULL || run->texts == NULL) {
        omq_send_run_free(run);
        return NULL;
    }
    uint8_t *texts = run->texts;
    for (; run->count < most; run->count++) {
        omq_plain_send *send = &run->sends[run->count];
        omq_frame frame;
        if (omq_frame_read(bytes + run->size, size - run->size, most_frame, &frame) !=
                OMQ_FRAME_WHOLE ||
            !read_send(&frame, most_body, texts, send) || !add_to_part(run, send)) {
            break;
        }
        texts += send->properties.size;
        run->size += frame.size;
    }
    return run;
}

void omq_send_run_free(omq_send_run *run) {
    if (run != NULL) {
        free(run->sends);
        free(run->parts);
        free(run->texts);
        free(run);
    }
}

/* ---- its records ---- */

omq_status omq_send_part_measure(const omq_send_run *run, size_t part, const omq_record_head *head,
                                 size_t *record_bytes) {
    uint32_t next = run->parts[part].first;
    *record_bytes = 0;
    for (size_t left = run->parts[part].count; left > 0; left--) {
        const omq_plain_send *send = &run->sends[next];
        next = send->next;
        size_t size = omq_record_size(head, send->body.size, send->properties.size);
        if (size == 0 || size > UINT32_MAX - *record_bytes) {
            return OMQ_OUT_OF_RANGE;
        }
        *record_bytes += size;
    }
    return OMQ_OK;
}

void omq_send_part_write(const omq_send_run *run, size_t part, const omq_record_head *head,
                         uint8_t *records, uint32_t *positions, int64_t *tags) {
    omq_record_head own = *head;
    uint32_t next = run->parts[part].first;
    uint32_t at = 0;
    size_t number = 0;
    for (; number < run->parts[part].count; number++) {
        const omq_plain_send *send = &run->sends[next];
        next = send->next;
        omq_outgoing message = {send->body, send->properties, send->message_flag};
        own.sys_flag = send->sys_flag;
        own.born_ms = send->born_ms;
        omq_record_write(&own, &message, records + at);
        positions[number] = at;
        tags[number] = omq_tag_hash(&message.properties);
        at += omq_read_u32(records + at);
    }
    positions[number] = at;
}

/* ---- its answers ---- */

enum { PHYSICAL_DIGITS = 16 };

static uint8_t *put_text(uint8_t *at, const omq_text *text) {
    memcpy(at, text->bytes, text->size);
    return at + text->size;
}

static uint8_t *put_hexadecimal(uint8_t *at, int64_t number) {
    static const char digits[] = "0123456789ABCDEF";
    for (int shift = 4 * PHYSICAL_DIGITS - 4; shift >= 0; shift -= 4) {
        *at++ = (uint8_t)digits[number >> shift & 15];
    }
    return at;
}

size_t omq_send_answers_most(const omq_send_run *run, const omq_answer_text *text) {
    size_t most = OMQ_FRAME_HEAD + text->store_host.size + PHYSICAL_DIGITS + 3 * OMQ_DECIMAL_MAX;
    for (size_t i = 0; i < 5; i++) {
        most += text->around[i].size;
    }
    return run->count * most;
}

size_t omq_send_answers(const omq_send_run *run, const omq_answer_text *text,
                        const int64_t *queue_offsets, const int64_t *physical_offsets,
                        uint8_t *answers) {
    uint32_t places[MOST_PARTS] = {0}; /* of the next send of each part */
    uint8_t *at = answers;
    for (size_t i = 0; i < run->count; i++) {
        const omq_plain_send *send = &run->sends[i];
        uint32_t place = places[send->part]++;
        if (send->flag & ONEWAY) {
            continue;
        }
        uint8_t *frame = at;
        at = put_text(at + OMQ_FRAME_HEAD, &text->around[0]);
        at = put_text(at, &text->store_host);
        at = put_hexadecimal(at, physical_offsets[send->part] + place);
        at = put_text(at, &text->around[1]);
        at += omq_write_decimal(at, send->queue_id);
        at = put_text(at, &text->around[2]);
        at += omq_write_decimal(at, queue_offsets[send->part] + place);
        at = put_text(at, &text->around[3]);
        at += omq_write_decimal(at, send->opaque);
        at = put_text(at, &text->around[4]);
        uint32_t header = (uint32_t)(at - frame) - OMQ_FRAME_HEAD;
        omq_write_u32(frame, 4 + header);
        omq_write_u32(frame + 4, header);
    }
    return (size_t)(at - answers);
}

#include "proxy_message.h"

#include <string.h>

#include "bytes.h"

enum {
    VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, /* how a field is written */
    VARINT_MOST = 10,                                /* bytes */
    NAME_END = 1,                                    /* separators of properties */
    VALUE_END = 2,
    ZIPPED = 2                                       /* of the enumeration Encoding */
};
/* Fields of answers, of a Message, of an entry of its map, and of a Timestamp. */
enum { STATUS = 1, MESSAGE = 2, ENTRY = 2, CODE = 1, OK = 20000 };
enum { TAKEN_STATUS = 3 }; /* of an acknowledgement's entry */
enum { SENT_STATUS = 1, SENT_ID = 2, SENT_TRANSACTION = 3, SENT_OFFSET = 4, SENT_RECALL = 5 };
enum { USER_PROPERTY = 2, SYSTEM = 3, BODY = 4, NAME = 1, VALUE = 2, SECONDS = 1, NANOS = 2 };
enum {
    TAG = 1, KEY = 2, MESSAGE_ID = 3, BODY_ENCODING = 5, BORN = 7, STORED = 9, DELIVER = 11,
    RECEIPT = 12, QUEUE_ID = 13, QUEUE_OFFSET = 14, ATTEMPT = 16, GROUP = 17, TRACE = 18
};
#define SECONDS_MOST (INT64_C(1) << 53) /* so that milliseconds are an int64 */

static const char malformed[] = "it is truncated or malformed";
static const char not_text[] = "a text is not UTF-8";
static const char out_of_range[] = "a number is out of its range";

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} cursor;

typedef struct {
    uint64_t number;
    uint64_t value; /* of a VARINT */
    omq_text bytes; /* of BYTES */
    int kind;
} field;

static cursor over(omq_text text) { return (cursor){text.bytes, text.bytes + text.size}; }

static bool take_varint(cursor *from, uint64_t *value) {
    *value = 0;
    for (int i = 0; i < VARINT_MOST && from->at < from->end; i++) {
        uint8_t byte = *from->at++;
        *value |= (uint64_t)(byte & 0x7F) << 7 * i;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

/* Take the next field, of which there must be one. */
static bool take(cursor *from, field *found) {
    uint64_t key;
    *found = (field){0};
    if (!take_varint(from, &key)) {
        return false;
    }
    found->number = key >> 3;
    found->kind = (int)(key & 7);
    size_t left = (size_t)(from->end - from->at);
    switch (found->kind) {
    case VARINT:
        return take_varint(from, &found->value);
    case BYTES:
        if (!take_varint(from, &found->value)) {
            return false;
        }
        left = (size_t)(from->end - from->at);
        if (found->value > left) {
            return false;
        }
        found->bytes = (omq_text){from->at, (size_t)found->value};
        from->at += found->bytes.size;
        return true;
    case FIXED64:
    case FIXED32: {
        size_t size = found->kind == FIXED64 ? 8 : 4;
        if (left < size) {
            return false;
        }
        from->at += size;
        return true;
    }
    default:
        return false;
    }
}

static const char *read_text(const field *from, omq_text *text) {
    if (from->kind != BYTES) {
        return from->kind == VARINT ? malformed : NULL;
    }
    *text = from->bytes;
    return omq_is_utf8(text->bytes, text->size) ? NULL : not_text;
}

static const char *read_number(const field *from, int64_t least, int64_t most, int64_t *number) {
    if (from->kind != VARINT) {
        return from->kind == BYTES ? malformed : NULL;
    }
    *number = (int64_t)from->value;
    return *number < least || *number > most ? out_of_range : NULL;
}

static const char *read_time(const field *from, int64_t *ms) {
    int64_t seconds = 0;
    int64_t nanos = 0;
    if (from->kind != BYTES) {
        return from->kind == VARINT ? malformed : NULL;
    }
    for (cursor parts = over(from->bytes); parts.at < parts.end;) {
        field part;
        const char *problem = NULL;
        if (!take(&parts, &part)) {
            return malformed;
        }
        if (part.number == SECONDS) {
            problem = read_number(&part, -SECONDS_MOST, SECONDS_MOST, &seconds);
        } else if (part.number == NANOS) {
            problem = read_number(&part, 0, INT32_MAX, &nanos);
        }
        if (problem != NULL) {
            return problem;
        }
    }
    *ms = seconds * 1000 + nanos / 1000000;
    return NULL;
}

/* Read an entry of the user's properties. */
static const char *read_entry(omq_text entry, omq_text *name, omq_text *value) {
    *name = (omq_text){NULL, 0};
    *value = (omq_text){NULL, 0};
    for (cursor parts = over(entry); parts.at < parts.end;) {
        field part;
        const char *problem = NULL;
        if (!take(&parts, &part)) {
            return malformed;
        }
        if (part.number == NAME || part.number == VALUE) {
            problem = read_text(&part, part.number == NAME ? name : value);
        }
        if (problem != NULL) {
            return problem;
        }
    }
    return NULL;
}

static const char *read_system(omq_proxy_message *message) {
    int64_t queue_id = 0;
    int64_t encoding = 0;
    int64_t attempt = 0;
    omq_text key;
    message->queue_offset = -1;
    for (cursor parts = over(message->system); parts.at < parts.end;) {
        field part;
        const char *problem = NULL;
        if (!take(&parts, &part)) {
            return malformed;
        }
        switch (part.number) {
        case TAG:
            problem = read_text(&part, &message->tag);
            break;
        case KEY:
            problem = read_text(&part, &key);
            break;
        case MESSAGE_ID:
            problem = read_text(&part, &message->message_id);
            break;
        case BODY_ENCODING:
            problem = read_number(&part, INT32_MIN, INT32_MAX, &encoding);
            break;
        case BORN:
            problem = read_time(&part, &message->born_ms);
            break;
        case STORED:
            problem = read_time(&part, &message->stored_ms);
            break;
        case DELIVER:
            problem = read_time(&part, &message->deliver_ms);
            message->is_timed = message->is_timed || part.kind == BYTES;
            break;
        case RECEIPT:
            problem = read_text(&part, &message->receipt_handle);
            break;
        case QUEUE_ID:
            problem = read_number(&part, INT32_MIN, INT32_MAX, &queue_id);
            break;
        case QUEUE_OFFSET:
            problem = read_number(&part, 0, INT64_MAX - 1, &message->queue_offset);
            break;
        case ATTEMPT:
            problem = read_number(&part, INT32_MIN, INT32_MAX, &attempt);
            break;
        case GROUP:
            problem = read_text(&part, &message->message_group);
            break;
        case TRACE:
            problem = read_text(&part, &message->trace_context);
            break;
        default: /* of a newer server, or not used here */
            break;
        }
        if (problem != NULL) {
            return problem;
        }
    }
    message->queue_id = (int32_t)queue_id;
    message->is_zipped = encoding == ZIPPED;
    message->reconsume_times = attempt > 1 ? (int32_t)(attempt - 1) : 0;
    return message->queue_offset < 0 ? "it has no offset" : NULL;
}

static const char *read_message(omq_proxy_message *message) {
    for (cursor parts = over(message->data); parts.at < parts.end;) {
        field part;
        omq_text name;
        omq_text value;
        const char *problem = NULL;
        if (!take(&parts, &part)) {
            return malformed;
        }
        bool is_used =
            part.number == USER_PROPERTY || part.number == SYSTEM || part.number == BODY;
        if (!is_used || part.kind != BYTES) {
            problem = is_used && part.kind == VARINT ? malformed : NULL;
        } else if (part.number == USER_PROPERTY) {
            problem = read_entry(part.bytes, &name, &value);
        } else {
            *(part.number == SYSTEM ? &message->system : &message->body) = part.bytes;
        }
        if (problem != NULL) {
            return problem;
        }
    }
    return message->system.bytes == NULL ? "it has no offset" : read_system(message);
}

const char *omq_proxy_message_read(const uint8_t *data, size_t size, omq_proxy_message *message) {
    memset(message, 0, sizeof *message);
    for (cursor parts = over((omq_text){data, size}); parts.at < parts.end;) {
        field part;
        if (!take(&parts, &part) || (part.number == MESSAGE && part.kind == VARINT)) {
            return malformed;
        }
        if (part.number == MESSAGE && part.kind == BYTES) {
            message->data = part.bytes;
        }
    }
    return message->data.bytes == NULL ? NULL : read_message(message);
}

/* Return whether a status says that all is well. */
static bool is_well(omq_text status) {
    uint64_t code = 0;
    for (cursor parts = over(status); parts.at < parts.end;) {
        field part;
        if (!take(&parts, &part)) {
            return false;
        }
        if (part.number == CODE) {
            code = part.kind == VARINT ? part.value : 0;
        }
    }
    return code == OK;
}

/* Return whether a status is the field `number`, and all such fields say that all is well. */
static bool has_well(omq_text text, uint64_t number) {
    bool found = false;
    for (cursor parts = over(text); parts.at < parts.end;) {
        field part;
        if (!take(&parts, &part)) {
            return false;
        }
        if (part.number == number) {
            if (part.kind != BYTES || !is_well(part.bytes)) {
                return false;
            }
            found = true;
        }
    }
    return found;
}

/* Return whether all is well with an answer that has an entry each for several things, whose status
 * is the field `entry_status` of it. */
static bool all_well(omq_text whole, uint64_t entry_status) {
    if (!has_well(whole, STATUS)) {
        return false;
    }
    for (cursor parts = over(whole); parts.at < parts.end;) {
        field part;
        (void)take(&parts, &part); /* has_well took it, so it can be taken */
        if (part.number == ENTRY && (part.kind != BYTES || !has_well(part.bytes, entry_status))) {
            return false;
        }
    }
    return true;
}

bool omq_proxy_all_well(const uint8_t *data, size_t size) {
    return all_well((omq_text){data, size}, TAKEN_STATUS);
}

static bool read_stored(omq_text entry, omq_proxy_stored *stored) {
    memset(stored, 0, sizeof *stored);
    for (cursor parts = over(entry); parts.at < parts.end;) {
        field part;
        const char *problem = NULL;
        (void)take(&parts, &part); /* all_well took it, so it can be taken */
        switch (part.number) {
        case SENT_ID:
            problem = read_text(&part, &stored->message_id);
            break;
        case SENT_TRANSACTION:
            problem = read_text(&part, &stored->transaction_id);
            break;
        case SENT_OFFSET:
            problem = read_number(&part, 0, INT64_MAX - 1, &stored->offset);
            break;
        case SENT_RECALL:
            problem = read_text(&part, &stored->recall_handle);
            break;
        default: /* its status is known, and what a newer server adds is not used */
            break;
        }
        if (problem != NULL) {
            return false;
        }
    }
    return true;
}

size_t omq_proxy_stored_read(const uint8_t *data, size_t size, omq_proxy_stored *stored) {
    size_t count = 0;
    omq_proxy_stored other;
    omq_text whole = {data, size};
    if (!all_well(whole, SENT_STATUS)) {
        return 0;
    }
    for (cursor parts = over(whole); parts.at < parts.end;) {
        field part;
        (void)take(&parts, &part); /* as above */
        if (part.number == ENTRY) {
            if (!read_stored(part.bytes, count == 0 ? stored : &other)) {
                return 0;
            }
            count++;
        }
    }
    return count;
}

static uint8_t *put(uint8_t *at, omq_text text) {
    if (text.size > 0) { /* an empty text may be NULL, and memcpy of NULL is undefined even for 0 */
        memcpy(at, text.bytes, text.size);
    }
    return at + text.size;
}

size_t omq_proxy_stored_ids(const uint8_t *data, size_t size, uint8_t *text) {
    uint8_t *at = text;
    bool is_first = true;
    for (cursor parts = over((omq_text){data, size}); parts.at < parts.end;) {
        field part;
        omq_proxy_stored stored;
        (void)take(&parts, &part); /* it was read, so it can be */
        if (part.number == ENTRY && read_stored(part.bytes, &stored)) {
            if (!is_first) {
                *at++ = ',';
            }
            at = put(at, stored.message_id);
            is_first = false;
        }
    }
    return (size_t)(at - text);
}

/* Write one property; nothing of one without a name or a value, which is none. */
static uint8_t *put_property(uint8_t *at, omq_text name, omq_text value) {
    if (name.size == 0 || value.size == 0) {
        return at;
    }
    at = put(at, name);
    *at++ = NAME_END;
    at = put(at, value);
    *at++ = VALUE_END;
    return at;
}

static omq_text named(const char *name) {
    return (omq_text){(const uint8_t *)name, strlen(name)};
}

/* Write the keys as one property, with blanks between them. */
static uint8_t *put_keys(uint8_t *at, omq_text system) {
    uint8_t *value = put(at, named("KEYS")) + 1;
    uint8_t *end = value;
    bool is_first = true;
    for (cursor parts = over(system); parts.at < parts.end;) {
        field part;
        (void)take(&parts, &part); /* it was read, so it can be */
        if (part.number == KEY && part.kind == BYTES) {
            if (!is_first) {
                *end++ = ' ';
            }
            end = put(end, part.bytes);
            is_first = false;
        }
    }
    if (end == value) {
        return at;
    }
    value[-1] = NAME_END;
    *end++ = VALUE_END;
    return end;
}

size_t omq_proxy_properties(const omq_proxy_message *message, uint8_t *text) {
    uint8_t *at = text;
    for (cursor parts = over(message->data); parts.at < parts.end;) {
        field part;
        omq_text name;
        omq_text value;
        (void)take(&parts, &part); /* it was read, so it can be; so can its entries */
        if (part.number == USER_PROPERTY && part.kind == BYTES) {
            (void)read_entry(part.bytes, &name, &value);
            at = put_property(at, name, value);
        }
    }
    at = put_property(at, named("TAGS"), message->tag);
    at = put_keys(at, message->system);
    at = put_property(at, named("UNIQ_KEY"), message->message_id);
    at = put_property(at, named("__SHARDINGKEY"), message->message_group);
    at = put_property(at, named("TRACE_CONTEXT"), message->trace_context);
    if (message->is_timed) {
        uint8_t digits[OMQ_DECIMAL_MAX];
        size_t size = omq_write_decimal(digits, message->deliver_ms);
        at = put_property(at, named("TIMER_DELIVER_MS"), (omq_text){digits, size});
    }
    return (size_t)(at - text);
}

#include "proxy_send.h"

#include <string.h>

#include "bytes.h"
#include "message_layout.h"

enum { VARINT = 0, BYTES = 2 }; /* how a field is written */
/* Fields of a SendMessageRequest, of a Message, of an entry of its map, and of a time. */
enum { MESSAGE = 1, TOPIC = 1, USER_PROPERTY = 2, SYSTEM = 3, BODY = 4 };
enum { NAME = 1, VALUE = 2, SECONDS = 1, NANOS = 2 };
enum {
    TAG = 1, KEY = 2, MESSAGE_ID = 3, BODY_ENCODING = 5, TYPE = 6, BORN = 7, DELIVER = 11,
    GROUP = 17, TRACE = 18, RECOVERY = 19
};
enum { IDENTITY = 1, ZIPPED = 2 };
enum { NORMAL = 1, FIFO = 2, DELAYED = 3, TRANSACTION = 4 };
static const char transient[] = "__RMQ.TRANSIENT.";

#define NAMED(text) {(const uint8_t *)(text), sizeof(text) - 1}
/* Names with a meaning to RocketMQ that no field of a message has; PROTOCOL_NAMES of
 * ordermq/model/properties.py has all. */
static const omq_text unsaid[] = {
    NAMED("WAIT"), NAMED("RETRY_TOPIC"), NAMED("REAL_TOPIC"), NAMED("REAL_QID"),
    NAMED("ORIGIN_MESSAGE_ID"), NAMED("RECONSUME_TIME"), NAMED("MAX_RECONSUME_TIMES"),
    NAMED("PGROUP"), NAMED("__transactionId__"), NAMED("TIMER_OUT_MS"), NAMED("CORRELATION_ID"),
    NAMED("REPLY_TO_CLIENT"), NAMED("TTL"), NAMED("MSG_TYPE"), NAMED("CLUSTER"),
    NAMED("PUSH_REPLY_TIME"), NAMED("MSG_REGION"), NAMED("TRACE_ON"), NAMED("DLQ_ORIGIN_TOPIC"),
    NAMED("DLQ_ORIGIN_MESSAGE_ID"), NAMED("POP_CK"), NAMED("1ST_POP_TIME"), NAMED("ARRIVE_TIME"),
    NAMED("BORN_TIMESTAMP"), NAMED("BUYER_ID"), NAMED("CONSUME_START_TIME"),
    NAMED("CORRECTION_FLAG"), NAMED("DUP_INFO"), NAMED("EXTEND_UNIQ_INFO"), NAMED("INNER_BASE"),
    NAMED("INNER_MULTI_DISPATCH"), NAMED("INNER_MULTI_QUEUE_OFFSET"), NAMED("INNER_NUM"),
    NAMED("INSTANCE_ID"), NAMED("MAX_OFFSET"), NAMED("MIN_OFFSET"), NAMED("MQ2_FLAG"),
    NAMED("POP_CK_OFFSET"), NAMED("PROPERTY_FORWARD_QUEUE_ID"), NAMED("REDIRECT"),
    NAMED("TIMER_DELAY_LEVEL"), NAMED("TIMER_DEL_UNIQKEY"), NAMED("TIMER_DEQUEUE_MS"),
    NAMED("TIMER_ENQUEUE_MS"), NAMED("TIMER_ROLL_TIMES"), NAMED("TRANSACTION_CHECK_TIMES"),
    NAMED("TRANSFER_FLAG"), NAMED("TRAN_PREPARED_QUEUE_OFFSET"), NAMED("__BORNHOST"),
    NAMED("__CRC32#"),
};

/* What the properties of a message say besides its fields. */
typedef struct {
    omq_text deliver_ms; /* bytes NULL: it does not say it; so for all */
    omq_text delay_ms;
    omq_text delay_s;
    omq_text immunity_s;
    omq_text delay_level;
    omq_text transaction;
    size_t users; /* bytes of the user's properties, as fields */
} properties;

static size_t varint_size(uint64_t value) {
    size_t size = 1;
    for (; value >= 0x80; value >>= 7) {
        size++;
    }
    return size;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
        *at++ = (uint8_t)(value | 0x80);
    }
    *at++ = (uint8_t)value;
    return at;
}

static size_t number_size(uint64_t number, int64_t value) {
    return varint_size(number << 3) + varint_size((uint64_t)value);
}

static uint8_t *put_number(uint8_t *at, uint64_t number, int64_t value) {
    return put_varint(put_varint(at, number << 3 | VARINT), (uint64_t)value);
}

static size_t part_size(uint64_t number, size_t size) {
    return varint_size(number << 3) + varint_size(size) + size;
}

/* Write the head of a field of so many bytes. */
static uint8_t *put_head(uint8_t *at, uint64_t number, size_t size) {
    return put_varint(put_varint(at, number << 3 | BYTES), size);
}

/* Return the size of a text's field, which is not written without a text. */
static size_t text_size(uint64_t number, omq_text text) {
    return text.size > 0 ? part_size(number, text.size) : 0;
}

static uint8_t *put_text(uint8_t *at, uint64_t number, omq_text text) {
    if (text.size == 0) {
        return at;
    }
    return omq_put_bytes(put_head(at, number, text.size), text.bytes, text.size);
}

/* ---- times ---- */

static int64_t seconds_of(int64_t ms) { return ms / 1000 - (ms % 1000 < 0); }

static int64_t nanos_of(int64_t ms) { return (ms - seconds_of(ms) * 1000) * 1000000; }

static size_t time_inner(int64_t ms) {
    int64_t nanos = nanos_of(ms);
    return (seconds_of(ms) != 0 ? number_size(SECONDS, seconds_of(ms)) : 0) +
           (nanos != 0 ? number_size(NANOS, nanos) : 0);
}

static size_t time_size(uint64_t number, int64_t ms) { return part_size(number, time_inner(ms)); }

static uint8_t *put_time(uint8_t *at, uint64_t number, int64_t ms) {
    at = put_head(at, number, time_inner(ms));
    if (seconds_of(ms) != 0) {
        at = put_number(at, SECONDS, seconds_of(ms));
    }
    return nanos_of(ms) != 0 ? put_number(at, NANOS, nanos_of(ms)) : at;
}

/* ---- properties ---- */

static bool is_named(omq_text name, const char *wanted, size_t size) {
    return name.size == size && memcmp(name.bytes, wanted, size) == 0;
}
#define IS(name, wanted) is_named(name, wanted, sizeof(wanted) - 1)

/* Return where a property's value belongs; NULL: it is none that a message says by a field. */
static omq_text *place_of(omq_text name, omq_proxy_send *send, properties *said) {
    return IS(name, "UNIQ_KEY")                       ? &send->message_id
           : IS(name, "__SHARDINGKEY")                ? &send->message_group
           : IS(name, "TAGS")                         ? &send->tag
           : IS(name, "KEYS")                         ? &send->keys
           : IS(name, "TRACE_CONTEXT")                ? &send->trace_context
           : IS(name, "DELAY")                        ? &said->delay_level
           : IS(name, "TIMER_DELIVER_MS")             ? &said->deliver_ms
           : IS(name, "TIMER_DELAY_MS")               ? &said->delay_ms
           : IS(name, "TIMER_DELAY_SEC")              ? &said->delay_s
           : IS(name, "TRAN_MSG")                     ? &said->transaction
           : IS(name, "CHECK_IMMUNITY_TIME_IN_SECONDS") ? &said->immunity_s
                                                      : NULL;
}

static bool is_of_user(omq_text name) {
    for (size_t i = 0; i < sizeof unsaid / sizeof *unsaid; i++) {
        if (name.size == unsaid[i].size && memcmp(name.bytes, unsaid[i].bytes, name.size) == 0) {
            return false;
        }
    }
    size_t prefix = sizeof transient - 1;
    return name.size < prefix || memcmp(name.bytes, transient, prefix) != 0;
}

static size_t user_inner(const omq_property *property) {
    return part_size(NAME, property->name.size) + part_size(VALUE, property->value.size);
}

/* Read all properties; of a name that occurs twice the last one counts. */
static void read_properties(omq_proxy_send *send, properties *said) {
    omq_text text = send->message.properties;
    omq_property property;
    for (size_t at = 0; omq_property_next(text.bytes, text.size, &at, &property);) {
        omq_text *place = place_of(property.name, send, said);
        if (place != NULL) {
            *place = property.value;
        } else if (is_of_user(property.name)) {
            said->users += part_size(USER_PROPERTY, user_inner(&property));
        }
    }
}

static uint8_t *put_users(uint8_t *at, const omq_proxy_send *send) {
    omq_text text = send->message.properties;
    omq_proxy_send ignored;
    properties also_ignored;
    omq_property property;
    for (size_t place = 0; omq_property_next(text.bytes, text.size, &place, &property);) {
        if (place_of(property.name, &ignored, &also_ignored) == NULL && is_of_user(property.name)) {
            at = put_head(at, USER_PROPERTY, user_inner(&property));
            at = put_text(at, NAME, property.name);
            at = put_text(at, VALUE, property.value);
        }
    }
    return at;
}

/* Take the next of the keys, which are separated by blanks. */
static bool next_key(omq_text keys, size_t *at, omq_text *key) {
    while (*at < keys.size && keys.bytes[*at] == ' ') {
        *at += 1;
    }
    if (*at >= keys.size) {
        return false;
    }
    const uint8_t *start = keys.bytes + *at;
    const uint8_t *blank = memchr(start, ' ', keys.size - *at);
    key->bytes = start;
    key->size = blank == NULL ? keys.size - *at : (size_t)(blank - start);
    *at += key->size;
    return true;
}

/* Read a decimal number; a text that is not there is 0. */
static bool read_number(omq_text text, int64_t *number) {
    bool is_negative = text.size > 0 && text.bytes[0] == '-';
    size_t at = is_negative ? 1 : 0;
    *number = 0;
    if (text.bytes == NULL) {
        return true;
    }
    if (at == text.size) {
        return false;
    }
    for (; at < text.size; at++) {
        unsigned digit = (unsigned)text.bytes[at] - '0';
        if (digit > 9) {
            return false;
        }
        *number = *number * 10 + (int64_t)digit;
        if (*number > OMQ_PROXY_NUMBER_MOST) {
            return false;
        }
    }
    *number = is_negative ? -*number : *number;
    return true;
}

/* Read what the properties say in numbers; the first of the ways to say a time counts. */
static bool read_times(omq_proxy_send *send, const properties *said) {
    const omq_text *due = said->deliver_ms.bytes != NULL ? &said->deliver_ms
                          : said->delay_ms.bytes != NULL ? &said->delay_ms
                                                         : &said->delay_s;
    send->is_timed = due->bytes != NULL;
    send->has_immunity = said->immunity_s.bytes != NULL;
    if (!read_number(*due, &send->deliver_ms) || !read_number(said->immunity_s, &send->immunity_s)) {
        return false;
    }
    if (due != &said->deliver_ms) { /* no product or sum overflows: each number is bounded */
        send->deliver_ms *= due == &said->delay_s ? 1000 : 1;
        send->deliver_ms += send->head->now_ms;
    }
    return true;
}

/* ---- messages ---- */

static size_t immunity_inner(const omq_proxy_send *send) {
    return send->immunity_s != 0 ? number_size(SECONDS, send->immunity_s) : 0;
}

static size_t system_size(const omq_proxy_send *send) {
    size_t size = text_size(TAG, send->tag) + text_size(MESSAGE_ID, send->message_id) +
                  number_size(BODY_ENCODING, IDENTITY) + number_size(TYPE, send->type) +
                  time_size(BORN, send->head->born_ms) + text_size(GROUP, send->message_group) +
                  text_size(TRACE, send->trace_context);
    omq_text key;
    for (size_t at = 0; next_key(send->keys, &at, &key);) {
        size += part_size(KEY, key.size);
    }
    size += send->is_timed ? time_size(DELIVER, send->deliver_ms) : 0;
    return size + (send->has_immunity ? part_size(RECOVERY, immunity_inner(send)) : 0);
}

static uint8_t *put_system(uint8_t *at, const omq_proxy_send *send) {
    omq_text key;
    at = put_text(at, TAG, send->tag);
    for (size_t place = 0; next_key(send->keys, &place, &key);) {
        at = put_text(at, KEY, key);
    }
    at = put_text(at, MESSAGE_ID, send->message_id);
    at = put_number(at, BODY_ENCODING, send->head->is_zipped ? ZIPPED : IDENTITY);
    at = put_number(at, TYPE, send->type);
    at = put_time(at, BORN, send->head->born_ms);
    if (send->is_timed) {
        at = put_time(at, DELIVER, send->deliver_ms);
    }
    at = put_text(at, GROUP, send->message_group);
    at = put_text(at, TRACE, send->trace_context);
    if (send->has_immunity) {
        at = put_head(at, RECOVERY, immunity_inner(send));
        at = send->immunity_s != 0 ? put_number(at, SECONDS, send->immunity_s) : at;
    }
    return at;
}

bool omq_proxy_send_measure(const omq_proxy_head *head, const omq_outgoing *message,
                            omq_proxy_send *send) {
    properties said;
    memset(&said, 0, sizeof said);
    memset(send, 0, sizeof *send);
    send->head = head;
    send->message = *message;
    read_properties(send, &said);
    if (message->flag != 0 || said.delay_level.bytes != NULL || !read_times(send, &said)) {
        return false;
    }
    send->is_keyed = send->message_group.size > 0;
    send->type = said.transaction.bytes != NULL ? TRANSACTION
                 : send->is_timed               ? DELAYED
                 : send->is_keyed               ? FIFO
                                                : NORMAL;
    send->system_size = system_size(send);
    send->inner_size = text_size(TOPIC, head->topic) + said.users +
                       part_size(SYSTEM, send->system_size) + text_size(BODY, message->body);
    send->size = part_size(MESSAGE, send->inner_size);
    return true;
}

uint8_t *omq_proxy_send_write(const omq_proxy_send *send, uint8_t *at) {
    at = put_head(at, MESSAGE, send->inner_size);
    at = put_text(at, TOPIC, send->head->topic);
    at = put_users(at, send);
    at = put_system(put_head(at, SYSTEM, send->system_size), send);
    return put_text(at, BODY, send->message.body);
}

/* Take the next message of a batch body. */
static bool next_entry(omq_text batch, size_t *at, omq_outgoing *message) {
    uint32_t size;
    omq_message_parts parts;
    omq_message_fault fault;
    if (omq_read_entry(batch.bytes, *at, batch.size, &size, &parts, &fault) != OMQ_OK) {
        return false;
    }
    message->body = (omq_text){batch.bytes + parts.body_at, parts.body_size};
    message->properties = (omq_text){batch.bytes + parts.property_at, parts.property_size};
    message->flag = (int32_t)omq_read_u32(batch.bytes + *at + ENTRY_FLAG_AT);
    *at += size;
    return true;
}

bool omq_proxy_batch_measure(const omq_proxy_head *head, omq_text batch, size_t *size) {
    omq_outgoing message;
    omq_proxy_send send;
    *size = 0;
    if (batch.size > UINT32_MAX) {
        return false;
    }
    for (size_t at = 0; at < batch.size;) {
        if (!next_entry(batch, &at, &message) || !omq_proxy_send_measure(head, &message, &send) ||
            !omq_is_utf8(message.properties.bytes, message.properties.size) ||
            send.type == TRANSACTION) { /* brokers take no half message in a batch */
            return false;
        }
        *size += send.size;
    }
    return true;
}

void omq_proxy_batch_write(const omq_proxy_head *head, omq_text batch, uint8_t *request) {
    omq_outgoing message;
    omq_proxy_send send;
    for (size_t at = 0; at < batch.size;) {
        (void)next_entry(batch, &at, &message); /* it was measured, so it can be */
        (void)omq_proxy_send_measure(head, &message, &send);
        request = omq_proxy_send_write(&send, request);
    }
}

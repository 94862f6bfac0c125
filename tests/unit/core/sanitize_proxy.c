/* Answers of a proxy in memory of exactly their size: read, and their messages written as records
 * that are read again; and requests to a proxy, whose messages are read again. */
#include <string.h>

#include "proxy_message.h"
#include "proxy_send.h"
#include "sanitize.h"

static void *exactly(size_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    REQUIRE(memory != NULL);
    return memory;
}

static void require_within(omq_text text, const uint8_t *bytes, size_t size, bool is_text) {
    if (text.size > 0) {
        REQUIRE(text.bytes >= bytes && text.bytes + text.size <= bytes + size);
        REQUIRE(!is_text || omq_is_utf8(text.bytes, text.size));
    }
}

static void read_again(const omq_proxy_message *message, const uint8_t *record, size_t size,
                       omq_text properties) {
    uint32_t position;
    uint32_t body_size;
    int64_t last;
    bool has_inner;
    omq_message_fault fault;
    omq_message_parts parts;
    omq_message_rows rows = {.positions = &position, .body_sizes = &body_size};
    omq_pulled pulled = {.first = message->queue_offset, .end = message->queue_offset + 1,
                         .queue_id = message->queue_id};
    REQUIRE(omq_message_count(record, size, &has_inner) == 1 && !has_inner);
    REQUIRE(omq_message_index(record, size, NULL, 0, true, &pulled, &rows, &last, &fault) ==
            OMQ_OK);
    REQUIRE(rows.count == 1 && last == message->queue_offset);
    omq_message_locate(record, &rows, 0, &parts);
    REQUIRE(parts.body_size == message->body.size && parts.property_size == properties.size);
    REQUIRE(properties.size == 0 ||
            memcmp(record + parts.property_at, properties.bytes, properties.size) == 0);
}

/* As ext/cython/proxy_message.pyx does it. */
static void write_record(const omq_proxy_message *message, size_t size) {
    static const uint8_t host[8];
    uint32_t positions[2] = {0, 0};
    uint8_t *text = exactly(size + OMQ_PROXY_PROPERTIES_MORE);
    omq_text properties = {text, omq_proxy_properties(message, text)};
    REQUIRE(properties.size <= size + OMQ_PROXY_PROPERTIES_MORE);
    REQUIRE(omq_is_utf8(properties.bytes, properties.size));
    omq_outgoing outgoing = {message->body, properties, 0};
    omq_record_head head = {.topic = {(const uint8_t *)"orders", 6},
                            .born_host = {host, sizeof host}, .store_host = {host, sizeof host},
                            .born_ms = message->born_ms, .stored_ms = message->stored_ms,
                            .queue_id = message->queue_id,
                            .reconsume_times = message->reconsume_times};
    size_t record_size = omq_record_size(&head, outgoing.body.size, properties.size);
    if (record_size == 0) {
        REQUIRE(properties.size > INT16_MAX);
    } else {
        uint8_t *record = exactly(record_size);
        positions[1] = (uint32_t)record_size;
        omq_record_write(&head, &outgoing, record);
        omq_records_stamp(record, positions, 1, message->queue_offset, 0);
        read_again(message, record, record_size, properties);
        free(record);
    }
    free(text);
}

static void read_stored_exactly(const uint8_t *bytes, size_t size) {
    omq_proxy_stored stored;
    size_t count = omq_proxy_stored_read(bytes, size, &stored);
    if (count > 0) {
        uint8_t *text = exactly(size);
        omq_text ids = {text, omq_proxy_stored_ids(bytes, size, text)};
        REQUIRE(ids.size <= size && omq_is_utf8(ids.bytes, ids.size));
        REQUIRE(ids.size + 1 >= stored.message_id.size + count);
        require_within(stored.message_id, bytes, size, true);
        free(text);
    }
}

void read_proxied_exactly(const uint8_t *bytes, size_t size) {
    omq_proxy_message message;
    uint8_t *exact = exactly(size);
    if (size > 0) {
        memcpy(exact, bytes, size);
    }
    (void)omq_proxy_all_well(exact, size);
    read_stored_exactly(exact, size);
    if (omq_proxy_message_read(exact, size, &message) == NULL && message.data.bytes != NULL) {
        const omq_text texts[] = {message.message_id, message.receipt_handle, message.tag,
                                  message.message_group, message.trace_context};
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            require_within(texts[i], exact, size, true);
        }
        require_within(message.body, exact, size, false);
        REQUIRE(message.queue_offset >= 0 && message.reconsume_times >= 0);
        write_record(&message, size);
    }
    free(exact);
}

/* Require that a request has the messages of its field 1, and each its fields. */
static void require_request(const uint8_t *request, size_t size) {
    omq_proxy_message message;
    const char *problem = omq_proxy_message_read(request, size, &message);
    REQUIRE(problem == NULL && message.data.bytes == NULL); /* none of an answer's kind */
}

void send_to_proxy_exactly(const uint8_t *bytes, size_t size) {
    static const omq_proxy_head head = {
        .topic = {(const uint8_t *)"\x12\x06orders", 8}, .born_ms = 1700000000123, .now_ms = 1};
    omq_proxy_send send;
    size_t request_size;
    uint8_t *exact = exactly(size);
    if (size > 0) {
        memcpy(exact, bytes, size);
    }
    if (omq_proxy_batch_measure(&head, (omq_text){exact, size}, &request_size)) {
        uint8_t *request = exactly(request_size);
        omq_proxy_batch_write(&head, (omq_text){exact, size}, request);
        require_request(request, request_size);
        free(request);
    }
    for (size_t i = 0; i < size; i++) { /* more of it are properties */
        exact[i] = exact[i] < 8 ? exact[i] % 3 : exact[i];
    }
    omq_outgoing message = {{exact, size / 2}, {exact, size}, 0};
    if (omq_proxy_send_measure(&head, &message, &send)) {
        uint8_t *request = exactly(send.size);
        REQUIRE(omq_proxy_send_write(&send, request) == request + send.size);
        require_request(request, send.size);
        free(request);
    }
    free(exact);
}

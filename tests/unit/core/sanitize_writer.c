/* The message writer in memory of exactly its size: what is written must be read again. */
#include <string.h>

#include "sanitize.h"

static void *exactly(size_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    REQUIRE(memory != NULL);
    return memory;
}

/* The records as a pull body: every message of the batch, its checksum, its place. */
static omq_outgoing *read_again(const uint8_t *records, size_t size, size_t count,
                                const int64_t *tags, int64_t first) {
    bool has_inner;
    size_t room = omq_message_count(records, size, &has_inner);
    REQUIRE(room == count && !has_inner);
    omq_message_rows rows = {.positions = exactly(count * sizeof(uint32_t)),
                             .body_sizes = exactly(count * sizeof(uint32_t))};
    omq_outgoing *messages = exactly(count * sizeof *messages);
    int64_t last;
    omq_message_fault fault;
    omq_pulled pulled = {.first = first, .end = first + (int64_t)count, .queue_id = -1};
    REQUIRE(omq_message_index(records, size, NULL, 0, true, &pulled, &rows, &last, &fault) ==
            OMQ_OK);
    REQUIRE(rows.count == count && (count == 0 || last == first + (int64_t)count - 1));
    for (size_t i = 0; i < count; i++) {
        omq_message_parts parts;
        omq_message message;
        omq_message_locate(records, &rows, i, &parts);
        omq_message_read(records, &rows, i, &message);
        REQUIRE(message.queue_offset == first + (int64_t)i);
        REQUIRE(message.physical_offset == 2 * first + (int64_t)i);
        messages[i] = (omq_outgoing){{records + parts.body_at, parts.body_size},
                                     {records + parts.property_at, parts.property_size},
                                     message.flag};
        REQUIRE(omq_tag_hash(&messages[i].properties) == tags[i]);
    }
    free(rows.positions);
    free(rows.body_sizes);
    return messages;
}

/* Encoded once more the messages are the batch, but for magic and checksum, which are 0. */
static void encode_again(const omq_outgoing *messages, size_t count, const uint8_t *batch,
                         size_t size) {
    size_t encoded_size;
    REQUIRE(omq_batch_size(messages, count, &encoded_size) == OMQ_OK && encoded_size == size);
    uint8_t *encoded = exactly(size);
    omq_batch_encode(messages, count, encoded);
    for (size_t at = 0, i = 0; i < count; i++) {
        size_t entry_size = 22 + messages[i].body.size + messages[i].properties.size;
        REQUIRE(memcmp(encoded + at, batch + at, 4) == 0);
        REQUIRE(memcmp(encoded + at + 12, batch + at + 12, entry_size - 12) == 0);
        at += entry_size;
    }
    free(encoded);
}

static void write_with(const omq_record_head *head, const uint8_t *batch, size_t size) {
    size_t count;
    size_t record_bytes;
    omq_message_fault fault = {.position = SIZE_MAX};
    omq_status status = omq_batch_measure(head, batch, size, &count, &record_bytes, &fault);
    if (status == OMQ_MALFORMED) {
        REQUIRE(fault.position <= size && fault.record == count);
        return;
    }
    bool is_writable = omq_record_size(head, 0, 0) > 0;
    REQUIRE(status == (is_writable || size == 0 ? OMQ_OK : OMQ_OUT_OF_RANGE));
    if (status != OMQ_OK) {
        return;
    }
    uint8_t *records = exactly(record_bytes);
    uint32_t *positions = exactly((count + 1) * sizeof *positions);
    int64_t *tags = exactly(count * sizeof *tags);
    omq_batch_write(head, batch, count, records, positions, tags);
    REQUIRE(positions[count] == record_bytes);
    omq_records_stamp(records, positions, count, 1000, 2000);
    omq_outgoing *messages = read_again(records, record_bytes, count, tags, 1000);
    encode_again(messages, count, batch, size);
    free(messages);
    free(records);
    free(positions);
    free(tags);
}

void write_exactly(const uint8_t *bytes, size_t size) {
    static const size_t topic_sizes[] = {0, 127, 128, 32767, 32768};
    static const size_t host_sizes[] = {8, 20, 8, 20, 9};
    for (size_t i = 0; i < sizeof topic_sizes / sizeof *topic_sizes; i++) {
        uint8_t *batch = exactly(size);
        uint8_t *topic = exactly(topic_sizes[i]);
        uint8_t *host = exactly(host_sizes[i]);
        memcpy(batch, bytes, size);
        memset(topic, 't', topic_sizes[i]);
        memset(host, 1, host_sizes[i]);
        omq_record_head head = {.topic = {topic, topic_sizes[i]},
                                .born_host = {host, host_sizes[i]},
                                .store_host = {host, host_sizes[i]},
                                .sys_flag = 0x30};
        write_with(&head, batch, size);
        free(batch);
        free(topic);
        free(host);
    }
}

/* Plain sends in memory of exactly its size: read, written as records that are read again, and
 * answered. */
#include <string.h>

#include "sanitize.h"
#include "send_run.h"

enum { MOST_BODY = 600 };

static void *exactly(size_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    REQUIRE(memory != NULL);
    return memory;
}

static void write_part(const omq_send_run *run, size_t part) {
    static const uint8_t host[8] = {127, 0, 0, 1, 0, 0, 0x1F, 0x90};
    const omq_send_part *own = &run->parts[part];
    const omq_plain_send *first = &run->sends[own->first];
    omq_record_head head = {.topic = first->topic, .born_host = {host, sizeof host},
                            .store_host = {host, sizeof host}, .queue_id = first->queue_id,
                            .stored_ms = 7};
    size_t size;
    if (omq_send_part_measure(run, part, &head, &size) != OMQ_OK) {
        REQUIRE(first->topic.size > INT16_MAX);
        return;
    }
    uint8_t *records = exactly(size);
    uint32_t *positions = exactly((own->count + 1) * sizeof *positions);
    int64_t *tags = exactly(own->count * sizeof *tags);
    omq_send_part_write(run, part, &head, records, positions, tags);
    REQUIRE(positions[own->count] == size);
    uint32_t place = own->first;
    for (uint32_t i = 0; i < own->count; i++) {
        const omq_plain_send *send = &run->sends[place];
        REQUIRE(send->part == part && place < run->count && send->body.size <= MOST_BODY);
        REQUIRE(positions[i + 1] - positions[i] ==
                omq_record_size(&head, send->body.size, send->properties.size));
        REQUIRE(tags[i] == omq_tag_hash(&send->properties));
        REQUIRE(omq_is_utf8(send->properties.bytes, send->properties.size));
        place = send->next;
    }
    free(records);
    free(positions);
    free(tags);
}

static void answer(const omq_send_run *run) {
    omq_answer_text text = {.store_host = {(const uint8_t *)"7F00000100001F90", 16}};
    for (size_t i = 0; i < 5; i++) {
        text.around[i] = (omq_text){(const uint8_t *)"around", 6};
    }
    int64_t *offsets = exactly(run->part_count * sizeof *offsets);
    for (size_t i = 0; i < run->part_count; i++) {
        offsets[i] = INT64_MAX - (int64_t)run->count; /* the longest */
    }
    size_t most = omq_send_answers_most(run, &text);
    uint8_t *answers = exactly(most);
    REQUIRE(omq_send_answers(run, &text, offsets, offsets, answers) <= most);
    free(answers);
    free(offsets);
}

void read_sends_exactly(const uint8_t *bytes, size_t size) {
    uint8_t *exact = exactly(size);
    if (size > 0) {
        memcpy(exact, bytes, size);
    }
    omq_send_run *run = omq_send_run_read(exact, size, 1 << 20, MOST_BODY);
    REQUIRE(run != NULL && run->size <= size);
    size_t count = 0;
    for (size_t i = 0; i < run->part_count; i++) {
        count += run->parts[i].count;
        write_part(run, i);
    }
    REQUIRE(count == run->count);
    answer(run);
    omq_send_run_free(run);
    free(exact);
}

/* The id window under the sanitizers: windows of many sizes, short and long ids, bodies to the
 * byte. */
#include <string.h>

#include "sanitize.h"

void *__real_malloc(size_t size); /* that never fails on purpose */

enum { ROWS = 40, RECORD = 91, NAMED = 9, LONGEST = 60 };

/* Write a stored record without a body or a topic, and return its size. */
static size_t write_record(uint8_t *at, int64_t offset, uint32_t number, size_t id_size) {
    size_t named = id_size > 0 ? NAMED + id_size : 0;
    size_t size = RECORD + named;
    memset(at, 0, size);
    at[3] = (uint8_t)size;
    memcpy(at + 4, "\xda\xa3\x20\xa7", 4);
    for (int i = 0; i < 8; i++) {
        at[20 + i] = (uint8_t)((uint64_t)offset >> (56 - 8 * i));
    }
    at[RECORD - 1] = (uint8_t)named;
    if (id_size > 0) {
        memcpy(at + RECORD, "UNIQ_KEY\x01", NAMED);
        memset(at + RECORD + NAMED, 'x', id_size);
        at[RECORD + NAMED] = (uint8_t)('0' + number % 64);
    }
    return size;
}

static void step_ids(omq_id_window *window, uint64_t *seed, int64_t *offset, uint32_t names) {
    uint8_t bytes[ROWS * (RECORD + NAMED + LONGEST)];
    uint32_t positions[ROWS];
    uint32_t sizes[ROWS];
    omq_message_rows rows = {.positions = positions, .body_sizes = sizes};
    omq_message_fault fault;
    size_t count = draw(seed, ROWS);
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
        static const size_t id_sizes[] = {0, 1, 31, 32, 33, LONGEST};
        uint32_t name = draw(seed, names);
        size += write_record(bytes + size, *offset, name, id_sizes[name % 6]);
        *offset += 1 + (draw(seed, 20) == 0 ? (int64_t)draw(seed, 200) : 0);
    }
    uint8_t *body = __real_malloc(size > 0 ? size : 1); /* exactly, to find a byte too far */
    REQUIRE(body != NULL);
    memcpy(body, bytes, size);
    int64_t last;
    size_t dropped;
    REQUIRE(omq_message_index(body, size, NULL, 0, false, NULL, &rows, &last, &fault) == OMQ_OK);
    int64_t end = draw(seed, 5) == 0 ? *offset - 3 : INT64_MAX;
    omq_status status = omq_id_window_drop_copies(window, body, end, &rows, &dropped);
    REQUIRE(is_done(status) && dropped + rows.count == count);
    REQUIRE(status == OMQ_OK || omq_id_window_count(window) == 0);
    int64_t before = -1;
    for (size_t row = 0; row < rows.count; row++) {
        REQUIRE(omq_message_offset(body, &rows, row) > before);
        before = omq_message_offset(body, &rows, row);
    }
    sound(omq_id_window_check(window));
    free(body);
}

void drive_ids(uint64_t *seed, int steps) {
    static const uint32_t sizes[] = {1, 2, 63, 64, 65, 1000};
    omq_id_window *window = NULL;
    int64_t offset = 0;
    for (int i = 0; i < steps; i++) {
        if (window == NULL || draw(seed, 50) == 0) {
            omq_id_window_free(window);
            window = omq_id_window_new(sizes[draw(seed, 6)], draw(seed, UINT32_MAX));
        }
        if (window != NULL && draw(seed, 60) == 0) {
            omq_id_window_clear(window);
        }
        if (window != NULL) {
            step_ids(window, seed, &offset, 1 + draw(seed, 300));
        }
    }
    omq_id_window_free(window);
    failing = 0;
}

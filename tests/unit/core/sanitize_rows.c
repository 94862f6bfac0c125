/* Rows in columns under the sanitizers: positions that are wrong now and then, room to the byte. */
#include <string.h>

#include "sanitize.h"

enum { ROWS = 12, BYTES = 40, COLUMNS = 3 };

/* A copy of exactly its size, so that a byte too far is found. */
static void *exactly(const void *bytes, size_t size) {
    void *copy = malloc(size > 0 ? size : 1);
    REQUIRE(copy != NULL);
    if (size > 0) {
        memcpy(copy, bytes, size);
    }
    return copy;
}

static omq_texts draw_texts(uint64_t *seed, size_t rows) {
    int32_t positions[ROWS + 1];
    uint8_t bytes[BYTES];
    int32_t at = 0;
    for (size_t i = 0; i <= rows; i++) {
        positions[i] = at;
        if (draw(seed, 200) == 0) {
            positions[i] = (int32_t)draw(seed, UINT32_MAX);
        }
        at += (int32_t)draw(seed, 4);
    }
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = (uint8_t)draw(seed, 100) == 0 ? (uint8_t)(1 + draw(seed, 2)) : 'x';
    }
    size_t size = (size_t)at <= BYTES && draw(seed, 50) > 0 ? (size_t)at : draw(seed, BYTES);
    omq_texts texts = {exactly(positions, (rows + 1) * sizeof *positions), exactly(bytes, size),
                       size};
    return texts;
}

static void free_texts(omq_texts *texts) {
    free((void *)texts->positions);
    free((void *)texts->bytes);
}

static void order(uint64_t *seed, size_t rows) {
    int64_t offsets[ROWS];
    int32_t ids[ROWS];
    for (size_t i = 0; i < rows; i++) {
        offsets[i] = (int64_t)i + (draw(seed, 9) == 0 ? -3 : 0);
        ids[i] = draw(seed, 9) == 0;
    }
    int64_t *own_offsets = exactly(offsets, rows * sizeof *offsets);
    int32_t *own_ids = exactly(ids, rows * sizeof *ids);
    omq_texts names[2] = {draw_texts(seed, rows), draw_texts(seed, rows)};
    size_t first = draw(seed, (uint32_t)rows);
    size_t found = 0;
    if (omq_ordered_rows(own_offsets, own_ids, names, 2, first, rows, &found) == OMQ_OK) {
        REQUIRE(found > first && found <= rows);
    }
    free_texts(&names[0]);
    free_texts(&names[1]);
    free(own_offsets);
    free(own_ids);
}

static void encode(uint64_t *seed, size_t rows) {
    static const uint8_t name[] = "name";
    int64_t numbers[ROWS];
    uint32_t chosen[ROWS];
    for (size_t i = 0; i < rows; i++) {
        numbers[i] = draw(seed, 3) == 0 ? INT64_MIN : (int64_t)draw(seed, UINT32_MAX) - 1000;
        chosen[i] = draw(seed, (uint32_t)rows + (draw(seed, 40) == 0));
    }
    int64_t *own_numbers = exactly(numbers, rows * sizeof *numbers);
    uint32_t *own_rows = exactly(chosen, rows * sizeof *chosen);
    uint8_t *unique = exactly("0123456789abcdef", 16);
    memset(unique + 8, 0xff, 8); /* the next one carries */
    omq_property_column columns[COLUMNS] = {
        {{name, 4}, draw_texts(seed, rows), NULL},
        {{name, 4}, {NULL, NULL, 0}, own_numbers},
        {{NULL, 0}, draw_texts(seed, rows), NULL},
    };
    omq_row_messages messages = {draw_texts(seed, rows), rows, {name, draw(seed, 5)}, columns,
                                 COLUMNS, draw(seed, 2) ? unique : NULL};
    size_t fitting = 0;
    size_t size = 0;
    if (omq_rows_measure(&messages, own_rows, rows, draw(seed, 400), &fitting, &size) == OMQ_OK) {
        REQUIRE(fitting >= 1 && fitting <= rows);
        uint8_t *batch = malloc(size);
        REQUIRE(batch != NULL);
        omq_rows_encode(&messages, own_rows, fitting, batch);
        write_exactly(batch, size); /* the store takes what was written */
        free(batch);
    } else {
        REQUIRE(fitting < rows);
    }
    free_texts(&messages.bodies);
    free_texts(&columns[0].texts);
    free_texts(&columns[2].texts);
    free(own_numbers);
    free(own_rows);
    free(unique);
}

void drive_rows(uint64_t *seed, int steps) {
    for (int i = 0; i < steps; i++) {
        order(seed, 1 + draw(seed, ROWS));
        encode(seed, 1 + draw(seed, ROWS));
    }
}

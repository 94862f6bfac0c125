#include "crc32.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { SLICES = 8 };

/* tables[k][b]: what byte b does to the checksum when k more bytes follow it. */
static uint32_t tables[SLICES][256];

enum { ABSENT, BEING_MADE, READY };
static _Atomic int state = ABSENT;

static uint32_t of_byte(uint32_t byte) {
    for (int bit = 0; bit < 8; bit++) {
        byte = byte & 1 ? byte >> 1 ^ UINT32_C(0xEDB88320) : byte >> 1;
    }
    return byte;
}

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        tables[0][byte] = of_byte(byte);
    }
    for (int slice = 1; slice < SLICES; slice++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = before >> 8 ^ tables[0][before & 0xFF];
        }
    }
}

/* Whether the tables can be read; the first caller makes them. Not pthread_once: it would tie
 * the wheels to a C library of 2021 and later. */
static bool have_tables(void) {
    int seen = atomic_load_explicit(&state, memory_order_acquire);
    if (seen == ABSENT && atomic_compare_exchange_strong(&state, &seen, BEING_MADE)) {
        make_tables();
        atomic_store_explicit(&state, READY, memory_order_release);
        return true;
    }
    return seen == READY;
}

uint32_t omq_crc32(const uint8_t *bytes, size_t size) {
    uint32_t crc = UINT32_MAX;
    bool is_ready = have_tables();
    for (; is_ready && size >= SLICES; size -= SLICES, bytes += SLICES) {
        uint32_t low = crc ^ ((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 |
                              (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][bytes[4]] ^ tables[2][bytes[5]] ^
              tables[1][bytes[6]] ^ tables[0][bytes[7]];
    }
    for (; size > 0; size--, bytes++) {
        uint32_t byte = (crc ^ *bytes) & 0xFF;
        /* A thread that meets another making the tables goes on without. */
        crc = crc >> 8 ^ (is_ready ? tables[0][byte] : of_byte(byte));
    }
    return ~crc;
}

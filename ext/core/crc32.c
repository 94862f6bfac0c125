#include "crc32.h"

#include <pthread.h>

enum { SLICES = 8 };

/* tables[k][b]: what byte b does to the checksum when k more bytes follow it. */
static uint32_t tables[SLICES][256];
static pthread_once_t are_made = PTHREAD_ONCE_INIT;

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) {
            value = value & 1 ? value >> 1 ^ UINT32_C(0xEDB88320) : value >> 1;
        }
        tables[0][byte] = value;
    }
    for (int slice = 1; slice < SLICES; slice++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = before >> 8 ^ tables[0][before & 0xFF];
        }
    }
}

uint32_t omq_crc32(const uint8_t *bytes, size_t size) {
    uint32_t crc = UINT32_MAX;
    (void)pthread_once(&are_made, make_tables);
    for (; size >= SLICES; size -= SLICES, bytes += SLICES) {
        uint32_t low = crc ^ ((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 |
                              (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][bytes[4]] ^ tables[2][bytes[5]] ^
              tables[1][bytes[6]] ^ tables[0][bytes[7]];
    }
    for (; size > 0; size--, bytes++) {
        crc = crc >> 8 ^ tables[0][(crc ^ *bytes) & 0xFF];
    }
    return ~crc;
}

/* Big-endian reads and writes, numbers in decimal, and copies. The caller has checked the bounds; the
 * compiler makes each read and write one load or store. */
#ifndef OMQ_BYTES_H
#define OMQ_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ordermq.h"

static inline uint16_t omq_read_u16(const uint8_t *at) {
    return (uint16_t)((uint16_t)at[0] << 8 | at[1]);
}

static inline uint32_t omq_read_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t omq_read_u64(const uint8_t *at) {
    return (uint64_t)omq_read_u32(at) << 32 | omq_read_u32(at + 4);
}

static inline void omq_write_u16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void omq_write_u32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

static inline void omq_write_u64(uint8_t *at, uint64_t value) {
    omq_write_u32(at, (uint32_t)(value >> 32));
    omq_write_u32(at + 4, (uint32_t)value);
}

enum { OMQ_DECIMAL_MAX = 20 }; /* characters of an int64 */

/* Write an int64 in decimal; return its characters. The rest is unsigned, for -INT64_MIN is no
 * int64. */
static inline size_t omq_write_decimal(uint8_t *text, int64_t number) {
    uint8_t reversed[OMQ_DECIMAL_MAX];
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t count = 0, at = 0;
    do {
        reversed[count++] = (uint8_t)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0) {
        text[at++] = '-';
    }
    while (count > 0) {
        text[at++] = reversed[--count];
    }
    return at;
}

static inline size_t omq_decimal_size(int64_t number) {
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t size = number < 0 ? 2 : 1;
    while (rest >= 10) {
        rest /= 10;
        size++;
    }
    return size;
}

/* Copy bytes; return the place behind them. NULL may stand for none. */
static inline uint8_t *omq_put_bytes(uint8_t *at, const uint8_t *bytes, size_t size) {
    if (size > 0) {
        memcpy(at, bytes, size);
    }
    return at + size;
}

/* Copy a text to *at, which moves behind it; return the copy. */
static inline omq_text omq_keep_text(uint8_t **at, omq_text text) {
    omq_text kept = {*at, text.size};
    *at = omq_put_bytes(*at, text.bytes, text.size);
    return kept;
}

#endif

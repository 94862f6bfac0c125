/* Big-endian reads. The caller has checked the bounds; the compiler makes each one load. */
#ifndef OMQ_BYTES_H
#define OMQ_BYTES_H

#include <stdint.h>

static inline uint16_t omq_read_u16(const uint8_t *at) {
    return (uint16_t)((uint16_t)at[0] << 8 | at[1]);
}

static inline uint32_t omq_read_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t omq_read_u64(const uint8_t *at) {
    return (uint64_t)omq_read_u32(at) << 32 | omq_read_u32(at + 4);
}

#endif

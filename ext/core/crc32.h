/* CRC-32 as zlib and java.util.zip have it (polynomial 0x04C11DB7, reflected). */
#ifndef OMQ_CRC32_H
#define OMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Any thread. O(size): some bytes a nanosecond, or some ten where the CPU has instructions for it. */
uint32_t omq_crc32(const uint8_t *bytes, size_t size);

/* The same without such instructions, for tests. */
uint32_t omq_crc32_by_tables(const uint8_t *bytes, size_t size);

#endif

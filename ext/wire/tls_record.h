/* Records of TLS: type 1, version 2, size 2, and as many bytes (RFC 8446, 5.1). What is in them is a
 * library's to decipher. Pure, any thread. */
#ifndef OMQ_TLS_RECORD_H
#define OMQ_TLS_RECORD_H

#include <stddef.h>
#include <stdint.h>

enum {
    OMQ_RECORD_HEAD = 5,           /* bytes */
    OMQ_MOST_RECORD = 16384 + 2048 /* bytes of a record behind its head (RFC 5246, 6.2.3) */
};

/* Return the size of the whole records at the start of `have` bytes, and their number. What is no
 * record counts as one: the library says what is wrong with it. */
static inline size_t omq_whole_records(const uint8_t *bytes, size_t have, size_t *count) {
    size_t size = 0;
    *count = 0;
    while (have - size >= OMQ_RECORD_HEAD) {
        size_t record = (size_t)bytes[size + 3] << 8 | bytes[size + 4];
        if (record > OMQ_MOST_RECORD) {
            *count += 1;
            return have;
        }
        if (have - size < OMQ_RECORD_HEAD + record) {
            break;
        }
        size += OMQ_RECORD_HEAD + record;
        *count += 1;
    }
    return size;
}

#endif

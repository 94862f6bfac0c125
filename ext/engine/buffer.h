/* Bytes that come at the end and leave at the beginning, of one thread at a time. */
#ifndef OMQ_BUFFER_H
#define OMQ_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *bytes; /* its owner's to free */
    size_t begin;
    size_t end;
    size_t room;
} omq_buffer;

/* Make room behind `end`; false without memory. It moves what is held at most once for each
 * doubling, or when all in front of it has left. */
static inline bool omq_buffer_make_room(omq_buffer *buffer, size_t more) {
    if (buffer->begin == buffer->end) {
        buffer->begin = buffer->end = 0;
    }
    if (buffer->room - buffer->end >= more) {
        return true;
    }
    size_t held = buffer->end - buffer->begin;
    if (buffer->room - held < more) {
        size_t wanted = held + more < 2 * buffer->room ? 2 * buffer->room : held + more;
        uint8_t *grown = realloc(buffer->bytes, wanted);
        if (grown == NULL) {
            return false;
        }
        buffer->bytes = grown;
        buffer->room = wanted;
    }
    if (held > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->begin, held);
    }
    buffer->begin = 0;
    buffer->end = held;
    return true;
}

#endif

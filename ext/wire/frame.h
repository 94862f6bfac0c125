/* The frames of a connection: length 4, encoding of the header 1 and its size 3, header, body
 * (docs/internals/protocol.md#frame). The only place that cuts received bytes into frames. Pure,
 * any thread. */
#ifndef OMQ_FRAME_H
#define OMQ_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"

enum {
    OMQ_FRAME_HEAD = 8, /* bytes: length, and encoding and size of the header */
    OMQ_RESPONSE_FLAG = 1
};

typedef struct {
    uint8_t encoding; /* of the header */
    const uint8_t *header;
    size_t header_size;
    const uint8_t *body;
    size_t body_size;
    size_t size; /* of all of it; 0 as long as it is not known */
} omq_frame;

typedef enum {
    OMQ_FRAME_WHOLE,
    OMQ_FRAME_PART, /* its end has not come; of the frame only the size is set */
    OMQ_FRAME_NONE  /* the bytes are no frame, or one over the limit */
} omq_frame_state;

/* Read the frame at the beginning of `have` bytes. O(1).
 *
 * max_bytes: of a frame, its length included. */
static inline omq_frame_state omq_frame_read(const uint8_t *bytes, size_t have, size_t max_bytes,
                                             omq_frame *frame) {
    frame->size = 0;
    if (have < OMQ_FRAME_HEAD) {
        return OMQ_FRAME_PART;
    }
    uint32_t length = omq_read_u32(bytes);
    uint32_t mark = omq_read_u32(bytes + 4);
    size_t header_size = mark & 0xFFFFFF;
    /* Java's length is signed: with its highest bit it is negative. */
    if (length < 4 || length > INT32_MAX || (size_t)length + 4 > max_bytes ||
        header_size > length - 4) {
        return OMQ_FRAME_NONE;
    }
    frame->size = (size_t)length + 4;
    if (have < frame->size) {
        return OMQ_FRAME_PART;
    }
    frame->encoding = (uint8_t)(mark >> 24);
    frame->header = bytes + OMQ_FRAME_HEAD;
    frame->header_size = header_size;
    frame->body = frame->header + header_size;
    frame->body_size = frame->size - OMQ_FRAME_HEAD - header_size;
    return OMQ_FRAME_WHOLE;
}

#endif

/* A text that grows at its end: lines of histories, records of traces. Not thread-safe: the owner
 * serialises the calls. */
#ifndef OMQ_TEXT_BUFFER_H
#define OMQ_TEXT_BUFFER_H

#include "ordermq.h"

/* All zero is an empty buffer. Once memory was short, nothing is added until the caller has cut the
 * buffer back to a size that it knows, so that one look at the end is enough for many additions. */
typedef struct {
    uint8_t *bytes; /* owned */
    size_t size;
    size_t room;
    bool was_short;
} omq_text_buffer;

void omq_buffer_add(omq_text_buffer *buffer, const uint8_t *bytes, size_t size);
void omq_buffer_add_decimal(omq_text_buffer *buffer, int64_t number);

/* Add UTF-8 as a JSON string, in quotes and escaped as orjson does it. */
void omq_buffer_add_json(omq_text_buffer *buffer, const uint8_t *text, size_t size);

/* Forget what is behind `size`, which is at most the present size, and that memory was short.
 * Returns whether it had been. */
bool omq_buffer_cut(omq_text_buffer *buffer, size_t size);

/* Empty the buffer; memory for more than `kept` bytes is freed. */
void omq_buffer_clear(omq_text_buffer *buffer, size_t kept);

#endif

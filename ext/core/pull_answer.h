/* A pull answer without an interpreter: its stored records and their index, in one block of memory
 * that the queue which buffers it and the bindings that read it share. Any thread. */
#ifndef OMQ_PULL_ANSWER_H
#define OMQ_PULL_ANSWER_H

#include <stdatomic.h>

#include "ordermq.h"

typedef struct {
    _Atomic uint32_t holders;
    const uint8_t *body; /* the records */
    size_t size;
    omq_message_rows rows;
    int64_t last_offset; /* of the last message scanned */
} omq_answer;

/* Index a body as omq_message_index does, with its checks, and copy it. Writes an answer with one
 * holder. NO_MEMORY, OUT_OF_RANGE, MALFORMED: there is none. */
omq_status omq_answer_new(const uint8_t *body, size_t size, const omq_text *tags,
                          size_t tag_count, bool check_crc, const omq_pulled *pulled,
                          omq_answer **answer);

/* Add a holder; take one away, the last of which frees the answer. */
void omq_answer_hold(omq_answer *answer);
void omq_answer_release(omq_answer *answer);

#endif

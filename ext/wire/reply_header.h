/* The header of an answer, in JSON or binary form, read as far as a pull or a send needs it. Pure,
 * any thread. */
#ifndef OMQ_REPLY_HEADER_H
#define OMQ_REPLY_HEADER_H

#include "frame.h"
#include "ordermq.h"

typedef struct {
    int64_t code;   /* -1: there is none, or no number of 32 bits; so for the next two, 0 */
    int64_t opaque;
    int64_t flag;
    omq_text next_offset; /* of extFields, within the header; bytes NULL: there is none */
    omq_text max_offset;
    omq_text suggestion;
    omq_text message_id;
    omq_text queue_id;
    omq_text queue_offset;
    bool has_offset_delta;
    bool has_recall_handle;
    bool is_odd; /* what this reader does not judge, as an escaped name or a malformed field */
} omq_reply_header;

/* Encodings of a header (docs/internals/protocol.md#frame). */
enum { OMQ_HEADER_JSON = 0, OMQ_HEADER_BINARY = 1 };

/* Read a header. False: it is neither a JSON object nor long enough for a binary one, or its
 * encoding is unknown. O(size). */
bool omq_read_reply_header(uint32_t encoding, const uint8_t *bytes, size_t size,
                           omq_reply_header *header);

/* Return whether it is an answer: brokers send requests on the same connection. */
static inline bool omq_is_answer(const omq_reply_header *header) {
    return (header->flag & OMQ_RESPONSE_FLAG) != 0 && header->opaque > 0;
}

/* Return a decimal number of up to 18 digits; -1 for anything else. */
int64_t omq_offset_of(omq_text text);

#endif

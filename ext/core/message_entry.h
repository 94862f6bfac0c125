/* A message of a batch (docs/internals/protocol.md#batch-body): inside a stored record, or on its
 * way there. */
#ifndef OMQ_MESSAGE_ENTRY_H
#define OMQ_MESSAGE_ENTRY_H

#include "ordermq.h"

/* Read the message at `start` of a batch that ends at `end`, and write its size. No length is
 * trusted. MALFORMED: where and why, but not of which message. */
omq_status omq_read_entry(const uint8_t *bytes, size_t start, size_t end, uint32_t *entry_size,
                          omq_message_parts *parts, omq_message_fault *fault);

#endif

/* Answers of RocketMQ's proxy over gRPC (docs/internals/protocol.md#grpc) that have a part per
 * message: messages, which are written again as a stored record's parts, and what became of
 * acknowledgements. Pure, any thread; no byte is trusted. */
#ifndef OMQ_PROXY_MESSAGE_H
#define OMQ_PROXY_MESSAGE_H

#include "ordermq.h"

typedef struct {
    omq_text message_id;     /* within the data, as all texts; UTF-8; empty: there is none */
    omq_text receipt_handle;
    omq_text body;
    int64_t queue_offset;
    int64_t born_ms;         /* 0: it says none; so for the next one */
    int64_t stored_ms;
    int32_t queue_id;
    int32_t reconsume_times;
    bool is_zipped;
    /* For omq_proxy_properties. */
    omq_text data;           /* bytes NULL: the part has no message, and nothing else is set */
    omq_text system;
    omq_text tag;
    omq_text message_group;
    omq_text trace_context;
    int64_t deliver_ms;
    bool is_timed;
} omq_proxy_message;

/* More bytes that properties may have than the data that they are read from. */
enum { OMQ_PROXY_PROPERTIES_MORE = 128 };

/* Read the message in a part of the answer to a receive, and check all of it that is used. Returns
 * NULL, or what is wrong with it (static text). O(size). */
const char *omq_proxy_message_read(const uint8_t *data, size_t size, omq_proxy_message *message);

/* Write the properties of a message that was read, in text form, and return their size: those of
 * the user, then RocketMQ's own, so that of a name that occurs twice RocketMQ's counts. `text` has
 * room for OMQ_PROXY_PROPERTIES_MORE more bytes than the data. O(size). */
size_t omq_proxy_properties(const omq_proxy_message *message, uint8_t *text);

/* Return whether the answer to an acknowledgement has a status for each of its entries and one for
 * all, and each says that all is well; false: something is not, or the answer is malformed.
 * O(size). */
bool omq_proxy_all_well(const uint8_t *data, size_t size);

typedef struct {
    omq_text message_id;     /* within the data, as all texts; UTF-8; empty: there is none */
    omq_text transaction_id;
    omq_text recall_handle;
    int64_t offset;
} omq_proxy_stored;

/* Read the answer to a send whose messages are stored. Writes what it says of the first one, and
 * returns how many there are; 0 if it says anything else, or is malformed: then nothing of `stored`
 * counts. O(size). */
size_t omq_proxy_stored_read(const uint8_t *data, size_t size, omq_proxy_stored *stored);

/* Write the ids of the messages of an answer that was read, with commas between them, and return
 * their size. `text` has room for `size` bytes. O(size). */
size_t omq_proxy_stored_ids(const uint8_t *data, size_t size, uint8_t *text);

#endif

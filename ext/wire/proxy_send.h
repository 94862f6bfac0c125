/* Sends to RocketMQ's proxy over gRPC (docs/internals/protocol.md#grpc): what a request to a broker
 * holds, as a `Message` of a `SendMessageRequest`. Pure, any thread. */
#ifndef OMQ_PROXY_SEND_H
#define OMQ_PROXY_SEND_H

#include "ordermq.h"

/* Largest time of a head, ms since 1970, and largest number in a property. */
#define OMQ_PROXY_NUMBER_MOST (INT64_C(1) << 53)

typedef struct {
    omq_text topic;    /* a `Resource` */
    int64_t born_ms;   /* as the next one, 0 .. OMQ_PROXY_NUMBER_MOST */
    int64_t now_ms;    /* what a delay counts from */
    bool is_zipped;    /* the body */
} omq_proxy_head;

/* A message that was measured; the texts lie in what it was measured from. */
typedef struct {
    size_t size;       /* of its field in the request */
    bool is_keyed;     /* it has a message group */
    /* For omq_proxy_send_write. */
    const omq_proxy_head *head;
    omq_outgoing message;
    size_t inner_size;
    size_t system_size;
    omq_text tag;
    omq_text keys;
    omq_text message_id;
    omq_text message_group;
    omq_text trace_context;
    int64_t deliver_ms;
    int64_t immunity_s;
    int32_t type;
    bool is_timed;
    bool has_immunity;
} omq_proxy_send;

/* Measure a message, whose properties are UTF-8. Returns false if the protocol has no way to say
 * it: it has a flag or a delay level, or a time that is no number. O(properties). */
bool omq_proxy_send_measure(const omq_proxy_head *head, const omq_outgoing *message,
                            omq_proxy_send *send);

/* Write the field of a message that was measured; return the place behind it. O(size). */
uint8_t *omq_proxy_send_write(const omq_proxy_send *send, uint8_t *at);

/* Measure the messages of a batch body (docs/internals/protocol.md#batch-body), and write the size
 * of the request that they make. Returns false as omq_proxy_send_measure does, or for a body that
 * is malformed or has a half message. O(size). */
bool omq_proxy_batch_measure(const omq_proxy_head *head, omq_text batch, size_t *size);

/* Write the request of a batch body that was measured. O(size). */
void omq_proxy_batch_write(const omq_proxy_head *head, omq_text batch, uint8_t *request);

#endif

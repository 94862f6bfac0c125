/* Where the fields of a stored record and of a batch's messages lie, for the files that read
 * and write them. */
#ifndef OMQ_MESSAGE_LAYOUT_H
#define OMQ_MESSAGE_LAYOUT_H

#include "ordermq.h"

/* A stored record (docs/internals/protocol.md#stored-message), in bytes from its start; all
 * integers big-endian:
 * 0 size, 4 magic, 8 crc, 12 queue id, 16 flag, 20 queue offset, 28 physical offset,
 * 36 sysFlag, 40 born, 48 born host (8, or 20 as IPv6), store time 8, store host (8 or 20),
 * reconsume times 4, prepared offset 8, body size 4, body, topic size (v1: 1, v2: 2), topic,
 * properties size 2, properties. */
enum {
    SIZE_FIELD = 4,
    MAGIC_AT = 4,
    CRC_AT = 8,
    QUEUE_ID_AT = 12,
    FLAG_AT = 16,
    QUEUE_OFFSET_AT = 20,
    PHYSICAL_OFFSET_AT = 28,
    SYS_FLAG_AT = 36,
    BORN_AT = 40,
    BORN_HOST_AT = 48,
    BODY_AT = 88, /* with two IPv4 hosts */
    HOST = 8,
    IPV6_EXTRA = 12,
    SMALLEST = 91,
    V1_TOPIC_MAX = 127, /* Java's sizes are signed: a byte here, a short in SHORT_MAX */
    SHORT_MAX = 32767
};

/* A message of an inner batch (docs/internals/protocol.md#batch-body): 0 size, 4 magic, 8 crc, 12
 * flag, 16 body size, 20 body, properties size 2, properties. */
enum { ENTRY_FLAG_AT = 12, ENTRY_BODY_AT = 20, ENTRY_SMALLEST = 22 };

enum {
    COMPRESSED = 0x1,
    BORN_HOST_V6 = 0x10,
    STORE_HOST_V6 = 0x20,
    INNER_BATCH = 0x40 | 0x80 /* both bits: need-unwrap and inner-batch */
};

#define MAGIC_V1 UINT32_C(0xDAA320A7)
#define MAGIC_V2 UINT32_C(0xDAA320AB)

static inline uint32_t omq_hosts_extra(uint32_t flags) {
    return (flags & BORN_HOST_V6 ? IPV6_EXTRA : 0) + (flags & STORE_HOST_V6 ? IPV6_EXTRA : 0);
}

static inline bool omq_is_inner_batch(uint32_t flags) {
    return (flags & INNER_BATCH) == INNER_BATCH;
}

/* Read the message at `start` of a batch body that ends at `end`, and write its size. No length is
 * trusted. MALFORMED: where and why, but not of which message. */
omq_status omq_read_entry(const uint8_t *bytes, size_t start, size_t end, uint32_t *entry_size,
                          omq_message_parts *parts, omq_message_fault *fault);

#endif

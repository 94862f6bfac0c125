/* Plain sends at the beginning of received bytes, for a broker: read, grouped by queue, written as
 * records, answered. Whatever is unusual ends the run and is left to the broker's handlers, which
 * are the reference; ordermq/broker/processors/received_sends.py says what is plain. An object is
 * used by one thread at a time. */
#ifndef OMQ_SEND_RUN_H
#define OMQ_SEND_RUN_H

#include "ordermq.h"

/* A send; its texts are where the run was read from, its properties and id in the run. */
typedef struct {
    omq_text topic;
    omq_text properties;
    omq_text unique_id; /* ASCII */
    omq_text body;
    int64_t born_ms;
    int32_t queue_id;
    int32_t sys_flag;
    int32_t message_flag;
    int32_t opaque;
    int32_t flag; /* of the command */
    uint32_t part;
    uint32_t next; /* position of the next send of its part */
} omq_plain_send;

/* The sends of one queue: their ids ascend and have one producer. */
typedef struct {
    uint32_t first; /* positions in the run */
    uint32_t last;
    uint32_t count;
} omq_send_part;

typedef struct {
    omq_plain_send *sends;
    omq_send_part *parts;
    uint8_t *texts; /* properties without JSON's escapes */
    size_t count;
    size_t part_count;
    size_t size; /* bytes of its frames */
} omq_send_run;

/* Read the plain sends at the beginning of `bytes`, which stay where they are as long as the run.
 * Frames over `most_frame` and bodies over `most_body` bytes end it. NULL: no memory. O(size). */
omq_send_run *omq_send_run_read(const uint8_t *bytes, size_t size, size_t most_frame,
                                size_t most_body);

/* NULL is allowed. */
void omq_send_run_free(omq_send_run *run);

/* Write the total size of a part's records. OUT_OF_RANGE: a record's size is 0, as
 * omq_record_size tells, or the total is over UINT32_MAX. O(count). */
omq_status omq_send_part_measure(const omq_send_run *run, size_t part, const omq_record_head *head,
                                 size_t *record_bytes);

/* Write the records of a part that was measured, joined, as omq_batch_write does. `head` has their
 * topic, queue, hosts and store time. */
void omq_send_part_write(const omq_send_run *run, size_t part, const omq_record_head *head,
                         uint8_t *records, uint32_t *positions, int64_t *tags);

/* The text of an answer's header around message id, queue id, queue offset and opaque. */
typedef struct {
    omq_text around[5];
    omq_text store_host; /* in hexadecimal: the beginning of message ids */
} omq_answer_text;

/* Write the answers' frames; one-way sends have none. `answers` has room for omq_send_answers_most.
 * Args: of each part, the offsets of its first message: in its queue and in the broker.
 * Returns the size of the answers. O(count). */
size_t omq_send_answers(const omq_send_run *run, const omq_answer_text *text,
                        const int64_t *queue_offsets, const int64_t *physical_offsets,
                        uint8_t *answers);

/* Return the most bytes that the answers may take. O(1). */
size_t omq_send_answers_most(const omq_send_run *run, const omq_answer_text *text);

#endif

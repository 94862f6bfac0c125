/* Slots: the batches whose messages a process queue buffers. The binding keeps slot -> batch, an
 * object that C cannot hold; this side counts the messages that are left of each. */
#ifndef OMQ_BATCH_SLOTS_H
#define OMQ_BATCH_SLOTS_H

#include <stdatomic.h>

#include "pull_answer.h"

#define OMQ_NO_SLOT UINT32_MAX

/* One batch. A slot is live (messages > 0), or on exactly one of two lists: emptied, until the
 * binding has dropped its batch, then free. Without the first list a slot could be given to a new
 * batch while the binding still holds the old one under it. */
typedef struct {
    const uint32_t *sizes; /* bytes of each message of the batch; NULL: zeros, or it is free */
    uint32_t *own_sizes;   /* the same if they were copied and are freed here, else NULL */
    omq_answer *answer;    /* held, if the batch was not put by the binding, else NULL */
    uint64_t bytes;        /* of the buffered messages */
    uint32_t messages;     /* buffered ones */
    uint32_t next;         /* on its list; OMQ_NO_SLOT ends it */
} omq_slot;

typedef struct {
    omq_slot *slots;
    uint32_t count;
    uint32_t free;               /* first of the free list */
    uint32_t emptied;            /* first of the emptied list */
    _Atomic uint32_t to_collect; /* length of that list; atomic, so that a caller with nothing to
                                    collect needs no mutex */
} omq_batch_slots;

void omq_batch_slots_open(omq_batch_slots *slots);
void omq_batch_slots_close(omq_batch_slots *slots);

/* Choose a slot for a batch with these sizes (NULL: zeros), copied or kept. It stays free
 * until it is filled, or is given back by omq_batch_slots_drop. NO_MEMORY. */
omq_status omq_batch_slots_choose(omq_batch_slots *slots, const uint32_t *sizes, size_t count,
                                  bool is_copied, uint32_t *slot);
void omq_batch_slots_drop(omq_batch_slots *slots, uint32_t slot);
void omq_batch_slots_fill(omq_batch_slots *slots, uint32_t slot, uint32_t messages,
                          uint64_t bytes);

/* Subtract `count` messages of a batch, from `index` on, which left the queue; return their
 * bytes. */
uint64_t omq_batch_slots_release(omq_batch_slots *slots, uint32_t slot, uint32_t index,
                                 uint32_t count);

/* Subtract all messages. */
void omq_batch_slots_release_all(omq_batch_slots *slots);

/* Make an emptied slot free; false if there is none. */
bool omq_batch_slots_collect(omq_batch_slots *slots, uint32_t *slot);

/* Sum the sizes of neighbours in a batch; sizes NULL: 0. */
uint64_t omq_sum_sizes(const uint32_t *sizes, size_t count);

/* A token of a batch's message is slot << 32 | index. */
static inline uint32_t omq_token_slot(uint64_t token) { return (uint32_t)(token >> 32); }
static inline uint32_t omq_token_index(uint64_t token) { return (uint32_t)token; }

#endif

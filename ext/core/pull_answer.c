#include "pull_answer.h"

#include <stdlib.h>
#include <string.h>

omq_status omq_answer_new(const uint8_t *body, size_t size, const omq_text *tags,
                          size_t tag_count, bool check_crc, const omq_pulled *pulled,
                          omq_answer **answer) {
    bool has_inner;
    omq_message_fault fault;
    size_t room = omq_message_count(body, size, &has_inner);
    size_t columns = has_inner ? 4 : 2;
    /* One block for all of it: an allocation per part cost more than indexing the records. */
    omq_answer *made = malloc(sizeof *made + room * columns * sizeof(uint32_t) + size);
    if (made == NULL) {
        return OMQ_NO_MEMORY;
    }
    uint32_t *column = (uint32_t *)(made + 1);
    made->rows = (omq_message_rows){.positions = column,
                                    .body_sizes = column + room,
                                    .outers = has_inner ? column + 2 * room : NULL,
                                    .numbers = has_inner ? column + 3 * room : NULL};
    omq_status status = omq_message_index(body, size, tags, tag_count, check_crc, pulled,
                                          &made->rows, &made->last_offset, &fault);
    if (status != OMQ_OK) {
        free(made);
        return status;
    }
    uint8_t *copy = (uint8_t *)(column + columns * room);
    if (size > 0) {
        memcpy(copy, body, size);
    }
    made->body = copy;
    made->size = size;
    atomic_init(&made->holders, 1);
    *answer = made;
    return OMQ_OK;
}

void omq_answer_hold(omq_answer *answer) {
    atomic_fetch_add_explicit(&answer->holders, 1, memory_order_relaxed);
}

void omq_answer_release(omq_answer *answer) {
    /* Release and acquire: what other holders read must be read before it is freed here. */
    if (atomic_fetch_sub_explicit(&answer->holders, 1, memory_order_acq_rel) == 1) {
        free(answer);
    }
}

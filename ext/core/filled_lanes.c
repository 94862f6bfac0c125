#include "filled_lanes.h"

#include <stdlib.h>
#include <string.h>

/* Numbers with the highest bit are of batches that the binding has put itself. */
#define NUMBERS 0x7FFFFFFFu

static const omq_text SHARDING_KEY = {(const uint8_t *)"__SHARDINGKEY", 13};

void omq_filled_lanes_close(omq_filled_lanes *lanes) {
    omq_filled_lanes_release(lanes, INT64_MAX);
    free(lanes->answers);
}

static bool make_room(omq_filled_lanes *lanes) {
    if (lanes->end < lanes->room) {
        return true;
    }
    size_t held = lanes->end - lanes->begin;
    if (held <= lanes->room / 2 && lanes->room > 0) {
        memmove(lanes->answers, lanes->answers + lanes->begin, held * sizeof *lanes->answers);
    } else {
        size_t room = lanes->room == 0 ? 16 : 2 * lanes->room;
        omq_numbered_answer *grown = malloc(room * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        if (held > 0) {
            memcpy(grown, lanes->answers + lanes->begin, held * sizeof *grown);
        }
        free(lanes->answers);
        lanes->answers = grown;
        lanes->room = room;
    }
    lanes->begin = 0;
    lanes->end = held;
    return true;
}

/* Put them, with `columns` as room for a token, a position and a size per message. */
static omq_status add(omq_filled_lanes *lanes, const omq_answer *answer, const int64_t *offsets,
                      uint64_t *columns, size_t *added) {
    size_t count = answer->rows.count;
    uint32_t *positions = (uint32_t *)(columns + count);
    uint32_t *sizes = positions + count;
    size_t ignored;
    omq_message_find_property(answer->body, &answer->rows, &SHARDING_KEY, positions, sizes);
    for (size_t i = 0; i < count; i++) {
        columns[i] = (uint64_t)lanes->next_number << 32 | i;
        if (sizes[i] == 0) {
            sizes[i] = UINT32_MAX; /* no key */
        }
    }
    omq_key_column keys = {answer->body, answer->size, positions, sizes};
    return omq_lane_map_add_columns(lanes->map, offsets, columns, &keys, count, &ignored, added);
}

omq_status omq_filled_lanes_add(omq_filled_lanes *lanes, omq_answer *answer,
                                const int64_t *offsets) {
    size_t count = answer->rows.count;
    size_t added = 0;
    if (count == 0) {
        return OMQ_OK;
    }
    uint64_t *columns = malloc(count * (sizeof *columns + 2 * sizeof(uint32_t)));
    if (columns == NULL || !make_room(lanes)) {
        free(columns);
        return OMQ_NO_MEMORY;
    }
    omq_status status = add(lanes, answer, offsets, columns, &added);
    free(columns);
    if (added > 0) {
        omq_answer_hold(answer);
        lanes->answers[lanes->end++] =
            (omq_numbered_answer){lanes->next_number, offsets[count - 1], answer};
        lanes->next_number = (lanes->next_number + 1) & NUMBERS;
    }
    return status;
}

omq_answer *omq_filled_lanes_answer(const omq_filled_lanes *lanes, uint32_t number) {
    /* Numbers ascend by one, but may begin anew at 0. */
    if (lanes->begin == lanes->end) {
        return NULL;
    }
    size_t at = (number - lanes->answers[lanes->begin].number) & NUMBERS;
    if (at >= lanes->end - lanes->begin) {
        return NULL;
    }
    omq_answer *answer = lanes->answers[lanes->begin + at].answer;
    omq_answer_hold(answer);
    return answer;
}

void omq_filled_lanes_release(omq_filled_lanes *lanes, int64_t below) {
    while (lanes->begin < lanes->end && lanes->answers[lanes->begin].last_offset < below) {
        omq_answer_release(lanes->answers[lanes->begin++].answer);
    }
}

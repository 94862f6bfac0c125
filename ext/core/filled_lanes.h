/* Pull answers whose messages are in the lanes of their keys: a token of such a message is the number
 * of its answer << 32 | its row, and the answer is held until all of its messages are done. */
#ifndef OMQ_FILLED_LANES_H
#define OMQ_FILLED_LANES_H

#include "pull_answer.h"

typedef struct {
    uint32_t number;
    int64_t last_offset; /* of its messages */
    omq_answer *answer;
} omq_numbered_answer;

typedef struct {
    omq_lane_map *map; /* NULL: there are no lanes; outlives what is here */
    omq_numbered_answer *answers; /* ascending, from `begin` on */
    size_t begin;
    size_t end;
    size_t room;
    uint32_t next_number;
} omq_filled_lanes;

void omq_filled_lanes_close(omq_filled_lanes *lanes);

/* Put messages into the lanes of their keys. Those that are there already are ignored, so after
 * NO_MEMORY, which may leave a part, the same messages may come again. O(property bytes). */
omq_status omq_filled_lanes_add(omq_filled_lanes *lanes, omq_answer *answer,
                                const int64_t *offsets);

/* Return the answer of a number, held once more; NULL: it is not held. O(1). */
omq_answer *omq_filled_lanes_answer(const omq_filled_lanes *lanes, uint32_t number);

/* Release answers that end below an offset; INT64_MAX: all. */
void omq_filled_lanes_release(omq_filled_lanes *lanes, int64_t below);

#endif

/* What the checks share: each returns NULL, or what is broken. */
#ifndef OMQ_CHECK_H
#define OMQ_CHECK_H

#include "offset_runs.h"

#define REQUIRE(holds, text) \
    do {                     \
        if (!(holds)) {      \
            return text;     \
        }                    \
    } while (0)

/* The entries of a tree lie in 0 .. high. */
const char *omq_offset_tree_check(const omq_offset_tree *tree, int64_t high);

#endif

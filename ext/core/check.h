/* One step of an invariant check: a check returns NULL, or static text naming what is broken. */
#ifndef OMQ_CHECK_H
#define OMQ_CHECK_H

#define REQUIRE(holds, text) \
    do {                     \
        if (!(holds)) {      \
            return text;     \
        }                    \
    } while (0)

#endif

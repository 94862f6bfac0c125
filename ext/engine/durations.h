/* Histograms of durations, with the buckets that OpenTelemetry's conventions want for each of them:
 * BOUNDARIES of ordermq/metrics/instruments.py. */
#ifndef OMQ_DURATIONS_H
#define OMQ_DURATIONS_H

#include <stdint.h>

enum { OMQ_DURATION_BUCKETS = 15 };

/* Return the bucket of a duration: the first whose boundary is not below it; the last has none. */
static inline unsigned omq_duration_bucket(int64_t ns) {
    static const int64_t boundaries_ms[OMQ_DURATION_BUCKETS - 1] = {
        5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000,
    };
    unsigned bucket = 0;
    /* Most are short: a search by halves would take longer. */
    while (bucket < OMQ_DURATION_BUCKETS - 1 && ns > boundaries_ms[bucket] * 1000000) {
        bucket++;
    }
    return bucket;
}

#endif

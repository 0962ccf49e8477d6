/* Counters of ended updates: the time of each phase by source, errors by code. */
#ifndef BATON_CONTROL_UPDATE_METRICS_H
#define BATON_CONTROL_UPDATE_METRICS_H

#include "base/buf.h"
#include "base/err.h"
#include "control/histogram.h"

struct update_record;

enum {
    UPDATE_N_PHASES = 4,
    UPDATE_N_SOURCES = 7,
    UPDATE_N_OUTCOMES = 3,
    UPDATE_COMMITS_KEPT = 256 /* versions whose commit time is known */
};

struct update_metrics {
    struct histogram phases[UPDATE_N_SOURCES][UPDATE_N_PHASES]; /* of committed updates */
    struct histogram whole[UPDATE_N_SOURCES];
    atomic_uint_fast64_t errors[ERR_CODE_COUNT], outcomes[UPDATE_N_OUTCOMES];

    atomic_uint_fast64_t newest; /* serial of the latest commit */
    struct {
        atomic_uint_fast64_t serial, at_us;
    } commits[UPDATE_COMMITS_KEPT]; /* [serial % UPDATE_COMMITS_KEPT] */
    struct histogram age_versions, age;
};

/* update_metrics_count - count the end of an update. Threads: any; no lock. */
void update_metrics_count(struct update_metrics *m, const struct update_record *u);

/* update_metrics_token_age - a generation has ended whose oldest tokens are of version `serial`.
 * Threads: any; no lock, no allocation. */
void update_metrics_token_age(struct update_metrics *m, uint64_t serial);

/* update_metrics_put - Prometheus text. Threads: any; no lock. */
void update_metrics_put(const struct update_metrics *m, struct buf *out);

#endif

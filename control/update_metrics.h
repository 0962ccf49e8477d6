/* Counters of ended updates: the time of each phase by source, refusals by code. */
#ifndef BATON_CONTROL_UPDATE_METRICS_H
#define BATON_CONTROL_UPDATE_METRICS_H

#include "base/buf.h"
#include "base/err.h"
#include "control/histogram.h"

struct update_record;

enum { UPDATE_N_PHASES = 4, UPDATE_N_SOURCES = 6 };

struct update_metrics {
    struct histogram phases[UPDATE_N_SOURCES][UPDATE_N_PHASES]; /* of committed updates */
    struct histogram whole[UPDATE_N_SOURCES];
    atomic_uint_fast64_t refused[ERR_CODE_COUNT];
};

/* update_metrics_count - count the end of an update. Threads: any; no lock. */
void update_metrics_count(struct update_metrics *m, const struct update_record *u);

/* update_metrics_put - Prometheus text. Threads: any; no lock. */
void update_metrics_put(const struct update_metrics *m, struct buf *out);

#endif

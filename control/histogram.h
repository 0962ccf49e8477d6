/* A histogram of relaxed atomics with fixed bounds: times, or counts. */
#ifndef BATON_CONTROL_HISTOGRAM_H
#define BATON_CONTROL_HISTOGRAM_H

#include "base/buf.h"
#include "base/prometheus.h"

#include <stdatomic.h>
#include <stdint.h>

enum { HISTOGRAM_N_BOUNDS = 17 };

/* Rising bounds: histogram_times in microseconds; histogram_counts in the same unit, where a count
 * of one is one second; histogram_versions the same, from 0 on. */
extern const uint64_t histogram_times[HISTOGRAM_N_BOUNDS];
extern const uint64_t histogram_counts[HISTOGRAM_N_BOUNDS];
extern const uint64_t histogram_versions[HISTOGRAM_N_BOUNDS];
#define HISTOGRAM_COUNT(n) ((n)*UINT64_C(1000000))

struct histogram {
    atomic_uint_fast64_t counts[HISTOGRAM_N_BOUNDS + 1];
    atomic_uint_fast64_t sum_us;
};

/* histogram_index - the bucket of a value: 0..HISTOGRAM_N_BOUNDS. */
size_t histogram_index(const uint64_t *bounds, uint64_t us);

/* histogram_observe - count one value. Threads: any; no lock, no allocation. */
void histogram_observe(struct histogram *h, const uint64_t *bounds, uint64_t us);

/* histogram_n - how many values were counted. */
uint64_t histogram_n(const struct histogram *h);

/* histogram_put - its samples in Prometheus text, after prom_head. Threads: any; no lock. */
void histogram_put(struct buf *out, const char *name, const struct prom_label *labels,
                   const uint64_t *bounds, const struct histogram *h);

#endif

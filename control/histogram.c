/* Histograms of times and counts. */
#include "control/histogram.h"

#define COUNT HISTOGRAM_COUNT

const uint64_t histogram_times[HISTOGRAM_N_BOUNDS] = {
    1000,    2500,    5000,    10000,    25000,    50000,    100000,    250000,   500000,
    1000000, 2500000, 5000000, 10000000, 30000000, 60000000, 300000000, 600000000};

const uint64_t histogram_counts[HISTOGRAM_N_BOUNDS] = {
    COUNT(1),     COUNT(2),     COUNT(5),     COUNT(10),     COUNT(20),    COUNT(50),
    COUNT(100),   COUNT(200),   COUNT(500),   COUNT(1000),   COUNT(2000),  COUNT(5000),
    COUNT(10000), COUNT(20000), COUNT(50000), COUNT(100000), COUNT(200000)};

const uint64_t histogram_versions[HISTOGRAM_N_BOUNDS] = {
    COUNT(0),  COUNT(1),   COUNT(2),   COUNT(3),   COUNT(4),   COUNT(5),
    COUNT(6),  COUNT(8),   COUNT(10),  COUNT(15),  COUNT(20),  COUNT(30),
    COUNT(50), COUNT(100), COUNT(200), COUNT(500), COUNT(1000)};

size_t histogram_index(const uint64_t *bounds, uint64_t us)
{
    size_t i = 0;

    while (i < HISTOGRAM_N_BOUNDS && us > bounds[i])
        i++;
    return i;
}

void histogram_observe(struct histogram *h, const uint64_t *bounds, uint64_t us)
{
    size_t i = histogram_index(bounds, us);

    (void)atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
}

uint64_t histogram_n(const struct histogram *h)
{
    uint64_t n = 0;

    for (size_t i = 0; i <= HISTOGRAM_N_BOUNDS; i++)
        n += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
    return n;
}

void histogram_put(struct buf *out, const char *name, const struct prom_label *labels,
                   const uint64_t *bounds, const struct histogram *h)
{
    uint64_t counts[HISTOGRAM_N_BOUNDS + 1];
    uint64_t sum_us = atomic_load_explicit(&h->sum_us, memory_order_relaxed);

    for (size_t i = 0; i <= HISTOGRAM_N_BOUNDS; i++)
        counts[i] = atomic_load_explicit(&h->counts[i], memory_order_relaxed);
    prom_buckets(out, name, labels,
                 &(struct prom_histogram){bounds, counts, HISTOGRAM_N_BOUNDS, sum_us});
}

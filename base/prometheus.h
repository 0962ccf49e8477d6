/* Writing the Prometheus text format 0.0.4. */
#ifndef BATON_BASE_PROMETHEUS_H
#define BATON_BASE_PROMETHEUS_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* Arrays of these end with a NULL name; a NULL array has no labels. */
struct prom_label {
    const char *name, *value;
};

/* prom_head - write HELP and TYPE of a family. Its samples must follow, with no other family's
 * samples between them.
 * @type  "counter", "gauge" or "histogram" */
void prom_head(struct buf *out, const char *name, const char *type, const char *help);

/* Write one sample. Label values are escaped; bytes in them that are not UTF-8 become '?'. */
void prom_u64(struct buf *out, const char *name, const struct prom_label *labels, uint64_t value);
void prom_f64(struct buf *out, const char *name, const struct prom_label *labels, double value);
void prom_seconds(struct buf *out, const char *name, const struct prom_label *labels,
                  uint64_t value_us);

/* prom_one - a family of one sample without labels. */
void prom_one(struct buf *out, const char *name, const char *type, const char *help,
              uint64_t value);
void prom_one_seconds(struct buf *out, const char *name, const char *type, const char *help,
                      uint64_t value_us);

struct prom_histogram {
    const uint64_t *bounds_us; /* [n], rising */
    const uint64_t *counts;    /* [n + 1]: not cumulative; the last is above every bound */
    size_t n;
    uint64_t sum_us;
};
/* prom_buckets - _bucket (cumulative, +Inf last), _sum and _count of one histogram, in seconds. */
void prom_buckets(struct buf *out, const char *name, const struct prom_label *labels,
                  const struct prom_histogram *h);

#endif

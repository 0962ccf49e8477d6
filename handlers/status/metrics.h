/* Counters of requests by route and status, and the Prometheus text of everything. */
#ifndef BATON_HANDLERS_STATUS_METRICS_H
#define BATON_HANDLERS_STATUS_METRICS_H

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct app;
struct metrics;
struct route;

int metrics_new(struct metrics **out, struct err *e);
void metrics_free(struct metrics *m); /* accepts NULL */

/* metrics_request - count one ended request. @route NULL: no route matched. Any thread, no lock. */
void metrics_request(struct metrics *m, const struct route *route, int status,
                     uint64_t duration_us, uint64_t nbytes_in, uint64_t nbytes_out);

/* metrics_generation - count one ended generation (for latency histograms). */
void metrics_generation(struct metrics *m, uint32_t n_prompt, uint32_t n_tokens,
                        uint64_t first_token_us, uint64_t total_us, const char *finish);

/* metrics_text - Prometheus text format 0.0.4 of all there is. */
void metrics_text(struct metrics *m, struct app *app, struct buf *out);

#endif

/* Counters of requests by operation and status, and of generations, as Prometheus text. */
#ifndef BATON_CONTROL_METRICS_H
#define BATON_CONTROL_METRICS_H

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct metrics;

/* metrics_new - @operation  the name of each of the n operations that requests are counted by: a
 *                           label; lives as long as the metrics. Errors: ERR_NO_MEMORY. */
int metrics_new(struct metrics **out, size_t n, const char *(*operation)(size_t i), struct err *e);
void metrics_free(struct metrics *m); /* accepts NULL */

/* metrics_request - count one ended request. @operation  which of the n; n or more: none matched.
 * Any thread, no lock. */
void metrics_request(struct metrics *m, size_t operation, int status, uint64_t duration_us,
                     uint64_t nbytes_in, uint64_t nbytes_out);

/* metrics_generation - count one ended generation (for latency histograms). */
void metrics_generation(struct metrics *m, uint32_t n_prompt, uint32_t n_tokens,
                        uint64_t first_token_us, uint64_t total_us, const char *finish);

/* metrics_put - all of them, in Prometheus text format 0.0.4. metrics_put_vllm - those of
 * generations by the names that dashboards and trainers made for vLLM read. Any thread, no lock. */
void metrics_put(const struct metrics *m, struct buf *out);
void metrics_put_vllm(const struct metrics *m, const char *model, struct buf *out);

#endif

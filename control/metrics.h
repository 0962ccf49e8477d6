/* Counters of requests by operation and status, and of generations, as Prometheus text. */
#ifndef BATON_CONTROL_METRICS_H
#define BATON_CONTROL_METRICS_H

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct metrics;
struct update_record;

/* metrics_new - make the counters of n operations.
 * @operation  returns the name of the i-th operation, a label; must outlive the metrics
 * Errors: ERR_NO_MEMORY. */
int metrics_new(struct metrics **out, size_t n, const char *(*operation)(size_t i), struct err *e);
void metrics_free(struct metrics *m); /* accepts NULL */

/* metrics_request - count one ended request.
 * @operation  which of the n; n or more: no operation matched
 * Threads: any; no lock. */
void metrics_request(struct metrics *m, size_t operation, int status, uint64_t duration_us,
                     uint64_t nbytes_in, uint64_t nbytes_out);

/* metrics_generation - count one ended generation (for latency histograms). */
void metrics_generation(struct metrics *m, uint32_t n_prompt, uint32_t n_tokens,
                        uint64_t first_token_us, uint64_t total_us, const char *finish);

/* metrics_token_age - one ended sequence, whose oldest tokens are of version `serial`. Threads:
 * any; no lock. */
void metrics_token_age(struct metrics *m, uint64_t serial);

/* metrics_update - count the end of an update (control/history.h). Threads: any; no lock. */
void metrics_update(struct metrics *m, const struct update_record *u);

/* metrics_put - write all of them in Prometheus text format 0.0.4. metrics_put_vllm - write those
 * of generations under the names of vLLM, for dashboards and trainers that read these.
 * Threads: any; no lock. */
void metrics_put(const struct metrics *m, struct buf *out);
void metrics_put_vllm(const struct metrics *m, const char *model, struct buf *out);

#endif

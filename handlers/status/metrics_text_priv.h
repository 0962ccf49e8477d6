/* What the files of metrics_text() share: each appends the metrics of one part of the server. */
#ifndef BATON_HANDLERS_STATUS_METRICS_TEXT_PRIV_H
#define BATON_HANDLERS_STATUS_METRICS_TEXT_PRIV_H

#include "base/prometheus.h"
#include "handlers/app.h"
#include "handlers/status/metrics_text.h"

#include <stdbool.h>
#include <stdint.h>

#define LABELS(...) ((const struct prom_label[]){__VA_ARGS__, {NULL, NULL}})

void metrics_text_weights(const struct app_weights *w, struct buf *out);
void metrics_text_generate(const struct app *app, struct buf *out);

/* metrics_text_age_us - the time since then, 0 if that is in the future. */
uint64_t metrics_text_age_us(uint64_t since_us);

/* metrics_text_has_vllm - is there an engine, and are vLLM's routes on? Then its metrics are too.
 */
bool metrics_text_has_vllm(const struct app *app);

#endif

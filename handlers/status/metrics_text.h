/* The metrics as Prometheus text. */
#ifndef BATON_HANDLERS_STATUS_METRICS_TEXT_H
#define BATON_HANDLERS_STATUS_METRICS_TEXT_H

#include "base/buf.h"

struct app;
struct metrics;

/* metrics_text - append all metrics: life, weights, updates, admission, engine or upstream engines,
 * HTTP server, pools, log, process, requests and generations. A part of `app` that is NULL is left
 * out. Threads: any; no lock held. */
void metrics_text(const struct metrics *m, struct app *app, struct buf *out);

#endif

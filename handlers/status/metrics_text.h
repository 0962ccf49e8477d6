/* What each room says of itself, as Prometheus text. Private to the metrics. */
#ifndef BATON_HANDLERS_STATUS_METRICS_TEXT_H
#define BATON_HANDLERS_STATUS_METRICS_TEXT_H

#include "base/buf.h"

struct app;

/* metrics_rooms - life, weights, updates, admission, engine, front, pools, log, process. A part of
 * `app` that is NULL is left out. Threads: any; no lock held. */
void metrics_rooms(struct app *app, struct buf *out);

/* metrics_fleet - upstream engines; app->upstreams is there. Threads: any; no lock held. */
void metrics_fleet(struct app *app, struct buf *out);

#endif

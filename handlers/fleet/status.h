/* What is true of the upstreams, told: readiness, the status, who is in rotation and why not. */
#ifndef BATON_HANDLERS_FLEET_STATUS_H
#define BATON_HANDLERS_FLEET_STATUS_H

#include "base/buf.h"
#include "base/err.h"
#include "http/http_request.h"

#include <jansson.h>

struct app;

/* fleet_ready - would a generate sent now be served? Threads: any. Blocks: no.
 * Errors: ERR_UNSYNCED (too few upstreams serve: which do not, and why), ERR_PAUSED, ERR_ASLEEP. */
int fleet_ready(const struct app *app, struct err *why);

/* metrics_fleet - upstream engines as Prometheus text. Threads: any; no lock held. */
void metrics_fleet(struct app *app, struct buf *out);

/* fleet_status_json - as GET /v1/status has it (new, or NULL without memory). */
json_t *fleet_status_json(const struct app *app);

/* Routes' handlers, in front of upstreams. */
int handle_fleet_status(struct app *app, struct http_request *x, struct err *e);
/* handle_fleet_ranks - the status, in `cuda` the ranks of all upstreams that answer, and for a
 * client that asks with config_format=json their vllm_config. Blocks.
 * Errors: ERR_UNSYNCED: fewer than --min-ready answer; ERR_UPSTREAM: one does not say. */
int handle_fleet_ranks(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_upstreams(struct app *app, struct http_request *x, struct err *e);
/* handle_fleet_resync - asks it first. Blocks; errors: as fleet_resync_one. */
int handle_fleet_resync(struct app *app, struct http_request *x, struct err *e);

#endif

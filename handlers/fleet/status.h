/* The state of a fleet: readiness, status, metrics, and which engines are out of rotation and
 * why. */
#ifndef BATON_HANDLERS_FLEET_STATUS_H
#define BATON_HANDLERS_FLEET_STATUS_H

#include "base/buf.h"
#include "base/err.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdint.h>

struct app;
struct upstream;
struct upstream_info;

/* fleet_ready - would a generate that is sent now be served? Threads: any. Blocks: no.
 * Errors: ERR_UNSYNCED: too few engines serve (which do not, and why); ERR_PAUSED; ERR_ASLEEP;
 * ERR_OVERLOADED: the queue is full. */
int fleet_ready(const struct app *app, struct err *why);

/* metrics_fleet - metrics of the engines as Prometheus text. Threads: any; no lock held. */
void metrics_fleet(struct app *app, struct buf *out);

/* fleet_status_json - the reply of GET /v1/status (new); NULL: no memory. */
json_t *fleet_status_json(const struct app *app);

/* fleet_upstream_json - the row of one engine in GET /v1/upstreams (new); NULL: no memory. */
json_t *fleet_upstream_json(const struct app *app, struct upstream *upstream);

/* fleet_removed_json - the same of an engine that was removed just now. */
json_t *fleet_removed_json(const struct app *app, struct upstream *upstream);

/* fleet_handed_json - with --stage: each upstream, and whether it has the version that was
 * committed here with this serial (new); NULL: no memory. Threads: any. Blocks: no. */
json_t *fleet_handed_json(const struct app *app, uint64_t serial);

/* Handlers of routes in front of upstream engines. */
int handle_fleet_status(struct app *app, struct http_request *x, struct err *e);
/* handle_fleet_ranks - the status, with the ranks of all engines that answer in `cuda`, and their
 * vllm_config for a client that asks with config_format=json. Blocks.
 * Errors: ERR_UNSYNCED: fewer than --min-ready engines answer; ERR_UPSTREAM: one reports no
 * ranks. */
int handle_fleet_ranks(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_upstreams(struct app *app, struct http_request *x, struct err *e);
/* handle_fleet_upstream_ready - is one in rotation? For the health check of a router that is in
 * front of the engines themselves. Errors: ERR_BAD_REQUEST; ERR_NOT_FOUND. */
int handle_fleet_upstream_ready(struct app *app, struct http_request *x, struct err *e);
/* handle_fleet_upstream_add, handle_fleet_upstream_remove - an engine joins or leaves the fleet.
 * The reply does not wait for it. Errors: of upstreams_add, upstreams_remove. */
int handle_fleet_upstream_add(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_upstream_remove(struct app *app, struct http_request *x, struct err *e);
/* handle_fleet_prove - blocks until the upstreams are proven. Errors: of fleet_proof_ask. */
int handle_fleet_prove(struct app *app, struct http_request *x, struct err *e);
/* handle_fleet_resync - asks the engine first. Blocks. Errors: as fleet_resync_one. */
int handle_fleet_resync(struct app *app, struct http_request *x, struct err *e);

#endif

/* What a trainer tells the whole fleet: the update that is open, the pause, the sleep, the group,
 * the adapters. Handlers of control routes in front of upstream engines work with it.
 *
 * No lock is held while upstreams are asked. What may not overlap takes its turn (a sleep and the
 * end of an update); a pause, and an abort, have turns of their own, so that neither waits for one
 * that hangs in something else. Tensors of one update come beside each other, and beside a pause.
 */
#ifndef BATON_FLEET_FLEET_CONTROL_H
#define BATON_FLEET_FLEET_CONTROL_H

#include "base/err.h"
#include "http/exchange.h"

#include <jansson.h>
#include <stdbool.h>

struct app;
struct fleet_control;

/* fleet_control_new - after upstreams_new; app->upstreams and app->abort are used.
 * Errors: ERR_NO_MEMORY. */
int fleet_control_new(struct fleet_control **out, struct app *app, struct err *e);

/* fleet_control_free - after upstreams_stop, when the control pool has ended. Accepts NULL. */
void fleet_control_free(struct fleet_control *fc);

/* fleet_update_json - the update that is open (new), or JSON null. Any thread; NULL: no memory. */
json_t *fleet_update_json(struct fleet_control *fc);

/* fleet_pause_json, fleet_sleep_json - as /v1/status shows a pause (null: none) and what sleeps
 * (new). Any thread; NULL: no memory. */
json_t *fleet_pause_json(struct fleet_control *fc);
json_t *fleet_sleep_json(struct fleet_control *fc);

/* fleet_holds - has a trainer paused the fleet? Threads: any. */
bool fleet_holds(struct fleet_control *fc);

/* Handlers in front of upstreams (server/operations.h). */
int fleet_update_start(struct app *app, struct exchange *x, struct err *e);
int fleet_update(struct app *app, struct exchange *x, struct err *e);
int fleet_update_verify(struct app *app, struct exchange *x, struct err *e);
int fleet_update_finish(struct app *app, struct exchange *x, struct err *e);
int fleet_update_abort(struct app *app, struct exchange *x, struct err *e);
int fleet_update_renew(struct app *app, struct exchange *x, struct err *e);
int fleet_update_get(struct app *app, struct exchange *x, struct err *e);
int fleet_update_delete(struct app *app, struct exchange *x, struct err *e);
int fleet_commit_resume(struct app *app, struct exchange *x, struct err *e);
int fleet_commit_implicit(struct app *app, struct exchange *x, struct err *e);
int fleet_weights_label(struct app *app, struct exchange *x, struct err *e);
int fleet_plan_put(struct app *app, struct exchange *x, struct err *e);
int fleet_transfer_init(struct app *app, struct exchange *x, struct err *e);
int fleet_transfer_get(struct app *app, struct exchange *x, struct err *e);
int fleet_transfer_delete(struct app *app, struct exchange *x, struct err *e);
int fleet_pause(struct app *app, struct exchange *x, struct err *e);
int fleet_resume(struct app *app, struct exchange *x, struct err *e);
int fleet_sleep(struct app *app, struct exchange *x, struct err *e);
int fleet_wake(struct app *app, struct exchange *x, struct err *e);
int fleet_reset_cache(struct app *app, struct exchange *x, struct err *e);
int fleet_flush_cache(struct app *app, struct exchange *x, struct err *e);
int fleet_abort_requests(struct app *app, struct exchange *x, struct err *e);
int fleet_lora_load(struct app *app, struct exchange *x, struct err *e);
int fleet_lora_unload(struct app *app, struct exchange *x, struct err *e);
int fleet_lora_list(struct app *app, struct exchange *x, struct err *e);

#endif

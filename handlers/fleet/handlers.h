/* Handlers in front of upstream engines, and how they reply. */
#ifndef BATON_HANDLERS_FLEET_HANDLERS_H
#define BATON_HANDLERS_FLEET_HANDLERS_H

#include "base/err.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct api_object;
struct app;
struct fleet_control;
struct fleet_results;
struct fleet_session;
struct label_req;

/* handle_fleet_proxy - pass a request on to an engine. Threads: the event loop. Errors:
 * proxy_forward's. */
int handle_fleet_proxy(struct app *app, struct http_request *x, struct err *e);

/* handle_fleet_rollouts - the same, if all engines make batches. Errors: ERR_HAS_UPSTREAMS; those
 * of handle_fleet_proxy. */
int handle_fleet_rollouts(struct app *app, struct http_request *x, struct err *e);

/* The handlers that server/operations.h names. */
int handle_fleet_update_start(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_update(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_update_finish(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_update_abort(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_update_renew(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_update_get(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_update_delete(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_commit_resume(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_weights_label(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_tensor_list_put(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_transfer_init(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_transfer_get(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_transfer_delete(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_pause(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_resume(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_sleep(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_wake(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_reset_cache(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_flush_cache(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_abort_requests(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_lora_load(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_lora_unload(struct app *app, struct http_request *x, struct err *e);
int handle_fleet_lora_list(struct app *app, struct http_request *x, struct err *e);

/* fleet_result_json - {"upstream", "ok", "status", "error"} (new). @error  NULL: none */
json_t *fleet_result_json(const char *name, bool ok, int status, const char *error);

/* fleet_body_parse - the request's body, in the form in which engines get it. Errors: body_parse's.
 * fleet_body_auto - the type of one that is freed at the end of the block; zeroed. */
int fleet_body_parse(struct api_object *out, const struct http_request *x, struct err *e);
void fleet_body_fini(struct api_object *body);
#define fleet_body_auto struct api_object __attribute__((cleanup(fleet_body_fini)))

/* fleet_reply - reply 200, or with `e` if it is set, with each engine's result.
 * @reply    of a 200; stolen
 * @results  zeroed: nothing was sent; then -1 is returned, and nothing is replied */
int fleet_reply(struct app *app, struct http_request *x, json_t *reply,
                const struct fleet_results *results, struct err *e);

/* fleet_rename - give the version that is served here and at the engines (--stage) another name,
 * and reply. An engine that does not take it is out of step, and is repaired with it.
 * @reply  of a 200; stolen
 * @named  called before the reply: is the name recorded here? It is also then if an engine did not
 *         take it
 * Threads: those that may wait for engines. Blocks: for the operation lock, then as
 * fleet_label_all. Errors, in the reply: of the lock; fleet_label_all's; ERR_CONFLICT: an update is
 * open, or the version is not handed over yet. */
void fleet_rename(struct app *app, struct http_request *x, const struct label_req *req,
                  json_t *reply, void (*named)(void *arg, bool recorded), void *arg);

/* fleet_update_json - the update that is open or starts (new), or JSON null. Threads: any. NULL: no
 * memory. */
json_t *fleet_update_json(const struct app *app);

/* fleet_pause_json, fleet_sleep_json - the pause (null: there is none) and the sleep as /v1/status
 * shows them (new). Threads: any. NULL: no memory. */
json_t *fleet_pause_json(const struct app *app);
json_t *fleet_sleep_json(const struct app *app);

/* fleet_inherit_packing - add to a request what it leaves out about packing, as it was given when
 * the transfer was set up: each engine gets it in the form of its release. @body  in, out
 * Errors: ERR_BAD_REQUEST, ERR_NO_MEMORY. */
int fleet_inherit_packing(struct fleet_control *fc, json_t *body, struct err *e);

/* fleet_inherit_list - replace plan_id "last" by the columns of the last committed update of the
 * group: an engine that has restarted would take an empty list, and load nothing. @body  in, out
 * Errors: ERR_BAD_REQUEST at /names: there is none; fleet_require_group's; ERR_NO_MEMORY. */
int fleet_inherit_list(struct fleet_control *fc, json_t *body, struct err *e);

/* fleet_session_json - the update object (new), with `upstreams`; NULL: no memory. */
json_t *fleet_session_json(const struct app *app, struct fleet_session *s);
json_t *fleet_session_details(const struct app *app, struct fleet_session *s);

#endif

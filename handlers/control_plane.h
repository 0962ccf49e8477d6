/* The handlers of health, status, weights, adapters and the life cycle, and the members that
 * each accepts. */
#ifndef BATON_HANDLERS_CONTROL_PLANE_H
#define BATON_HANDLERS_CONTROL_PLANE_H

#include "handlers/app.h"
#include "handlers/rows/member.h"

#include <jansson.h>

/* Each is the handler of an operation (server/operations.h). */
int handle_live(struct app *app, struct http_request *x, struct err *e);
/* ready_is_for_control - *out: is it a probe of control readiness ("?for=control"), and not of
 * generate readiness? Errors: ERR_BAD_REQUEST (another value). */
int ready_is_for_control(bool *out, const struct http_request *x, struct err *e);
extern const struct member ready_query[];
int handle_ready(struct app *app, struct http_request *x, struct err *e);
int handle_status(struct app *app, struct http_request *x, struct err *e);
int handle_events(struct app *app, struct http_request *x, struct err *e);
int handle_generations(struct app *app, struct http_request *x, struct err *e);
int handle_page(struct app *app, struct http_request *x, struct err *e);
int handle_docs(struct app *app, struct http_request *x, struct err *e);
int handle_openapi(struct app *app, struct http_request *x, struct err *e);
int handle_version(struct app *app, struct http_request *x, struct err *e);
int handle_upstreams(struct app *app, struct http_request *x, struct err *e);
int handle_metrics(struct app *app, struct http_request *x, struct err *e);
int handle_models(struct app *app, struct http_request *x, struct err *e);
int handle_model(struct app *app, struct http_request *x, struct err *e);
int handle_lora_load(struct app *app, struct http_request *x, struct err *e);
int handle_lora_unload(struct app *app, struct http_request *x, struct err *e);
int handle_lora_list(struct app *app, struct http_request *x, struct err *e);
int handle_lora_file(struct app *app, struct http_request *x, struct err *e);
int handle_update(struct app *app, struct http_request *x, struct err *e);
int handle_update_start(struct app *app, struct http_request *x, struct err *e);
int handle_update_verify(struct app *app, struct http_request *x, struct err *e);
int handle_update_finish(struct app *app, struct http_request *x, struct err *e);
int handle_update_abort(struct app *app, struct http_request *x, struct err *e);
int handle_update_renew(struct app *app, struct http_request *x, struct err *e);
int handle_update_get(struct app *app, struct http_request *x, struct err *e);
int handle_update_delete(struct app *app, struct http_request *x, struct err *e);
int handle_tensor_list_put(struct app *app, struct http_request *x, struct err *e);
int handle_weights_list(struct app *app, struct http_request *x, struct err *e);
int handle_weights_diff(struct app *app, struct http_request *x, struct err *e);
int handle_weights_get(struct app *app, struct http_request *x, struct err *e);
int handle_leases_open(struct app *app, struct http_request *x, struct err *e);
int handle_leases_renew(struct app *app, struct http_request *x, struct err *e);
int handle_leases_delete(struct app *app, struct http_request *x, struct err *e);
int handle_weights_file(struct app *app, struct http_request *x, struct err *e);
int handle_handles_get(struct app *app, struct http_request *x, struct err *e);
int handle_weights_seed(struct app *app, struct http_request *x, struct err *e);
int handle_handles_renew(struct app *app, struct http_request *x, struct err *e);
int handle_handles_delete(struct app *app, struct http_request *x, struct err *e);
int handle_weights_label(struct app *app, struct http_request *x, struct err *e);
int handle_weights_check(struct app *app, struct http_request *x, struct err *e);
int handle_preflight(struct app *app, struct http_request *x, struct err *e);
int handle_pause(struct app *app, struct http_request *x, struct err *e);
int handle_resume(struct app *app, struct http_request *x, struct err *e);
int handle_sleep(struct app *app, struct http_request *x, struct err *e);
int handle_wake(struct app *app, struct http_request *x, struct err *e);
int handle_reset_cache(struct app *app, struct http_request *x, struct err *e);
/* handle_reset_cache_of - with `running`, of generations that run too, whatever the request says.
 */
int handle_reset_cache_of(struct app *app, struct http_request *x, bool running, struct err *e);
int handle_abort_requests(struct app *app, struct http_request *x, struct err *e);
int handle_flush_cache(struct app *app, struct http_request *x, struct err *e);
int handle_weight_values(struct app *app, struct http_request *x, struct err *e);
int handle_unsupported(struct app *app, struct http_request *x, struct err *e);
int handle_session_finish(struct app *app, struct http_request *x, struct err *e);
int handle_transfer_init(struct app *app, struct http_request *x, struct err *e);
int handle_transfer_get(struct app *app, struct http_request *x, struct err *e);
int handle_transfer_delete(struct app *app, struct http_request *x, struct err *e);

extern const struct member events_query[];
extern const struct member update_members[];
extern const struct member update_verify_members[];
extern const struct member update_start_members[], update_finish_members[];
extern const struct member update_zmq_members[];
extern const struct member pull_members[], pull_commit_members[];
extern const struct member update_abort_members[], update_renew_members[];
extern const struct member tensor_list_members[];
extern const struct member upstream_members[], upstream_ready_query[];
extern const struct member upstreams_prove_members[];
extern const struct member weights_list_query[], weights_diff_query[];
extern const struct member weights_label_members[], weights_check_members[];
extern const struct member handles_query[], handles_renew_members[], weights_seed_members[];
extern const struct member leases_members[], weights_file_query[];
extern const struct member lora_file_query[];
extern const struct member preflight_members[];
extern const struct member lora_load_members[];
extern const struct member lora_unload_members[];
extern const struct member transfer_init_members[], transfer_delete_members[];
extern const struct member weight_values_members[];
extern const struct member pause_members[], abort_requests_members[];
extern const struct member sleep_members[], wake_members[];
extern const struct member reset_cache_members[];

#endif

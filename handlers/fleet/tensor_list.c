/* POST /v1/weights/plans in front of upstream engines: each engine keeps the tensor list, and all
 * must give it the same id. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/fleet/handlers.h"

#include <string.h>

/* Compares the ids. @reply  the first engine's (new) */
static int compare_ids(const struct fleet_results *results, json_t **reply, struct err *e)
{
    const char *first = NULL;

    for (size_t i = 0; i < results->n; i++) {
        const struct fleet_result *r = &results->list[i];
        json_t *answer = json_loadb(r->text, r->text_len, 0, NULL);
        const char *id = json_string_value(json_object_get(answer, "plan_id"));

        if (id == NULL || (first != NULL && strcmp(first, id) != 0)) {
            json_decref(answer);
            return err_set(e, ERR_UPSTREAM, "", "%.100s made %s of these tensors",
                           upstream_name(r->upstream), id == NULL ? "no plan" : "another plan");
        }
        if (first == NULL) {
            *reply = answer;
            first = id;
        } else {
            json_decref(answer);
        }
    }
    return 0;
}

int handle_fleet_tensor_list_put(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    const struct api_args args = {.native = &body};
    fleet_results_auto results = {0};
    json_t *reply = NULL;

    if (fleet_body_parse(&body, x, e) != 0)
        return -1;
    if (fleet_request_all(app->fleet->control, API_PUT_TENSOR_LIST, &args, FLEET_CACHE_US, &results,
                          e) == 0 &&
        fleet_results_ok(&results, e))
        (void)compare_ids(&results, &reply, e);
    return fleet_reply(app, x, reply, &results, e);
}

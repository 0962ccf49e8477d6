/* POST /v1/weights/plans in front of upstream engines: each engine keeps the tensor list, and all
 * must give it the same id. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/fleet/handlers.h"

#include <string.h>

/* Compares the ids. @reply  the first engine's (new) */
static int compare_ids(const struct fleet_result *results, size_t n, json_t **reply, struct err *e)
{
    const char *first = NULL;

    for (size_t i = 0; i < n; i++) {
        json_t *answer = results[i].text != NULL
                             ? json_loadb(results[i].text, results[i].text_len, 0, NULL)
                             : NULL;
        const char *id = json_string_value(json_object_get(answer, "plan_id"));

        if (id == NULL || (first != NULL && strcmp(first, id) != 0)) {
            json_decref(answer);
            return err_set(e, ERR_UPSTREAM, "", "%.100s made %s of these tensors",
                           upstream_name(results[i].upstream),
                           id == NULL ? "no plan" : "another plan");
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

static int put_tensor_list(struct app *app, struct http_request *x, struct api_object *body,
                           struct err *e)
{
    const struct api_args args = {.native = body};
    struct fleet_result *results = NULL;
    json_t *reply = NULL;
    size_t n = 0;

    if (fleet_request_all(app->fleet->control, API_PUT_TENSOR_LIST, &args, FLEET_CACHE_US, &results,
                          &n, e) == 0 &&
        fleet_results_ok(results, n, e))
        (void)compare_ids(results, n, &reply, e);
    return fleet_reply(app, x, reply, results, n, e);
}

int handle_fleet_tensor_list_put(struct app *app, struct http_request *x, struct err *e)
{
    return fleet_with_body(app, x, put_tensor_list, e);
}

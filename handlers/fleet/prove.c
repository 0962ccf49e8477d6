/* POST /v1/upstreams/prove: a proof of the upstreams that is asked for, and waited for. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/fleet/status.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"

#include <string.h>

static bool is_proven(const json_t *row)
{
    const char *state = json_string_value(json_object_get(json_object_get(row, "proof"), "state"));

    return state != NULL && strcmp(state, "proven") == 0;
}

/* Equal to those of another engine, or to committed bytes: an engine without a checker is proven by
 * its canary alone. */
static bool has_equal_checksums(const json_t *row)
{
    const json_t *sums = json_object_get(json_object_get(row, "proof"), "checksums");
    const char *state = json_string_value(json_object_get(sums, "state"));

    return state != NULL && strcmp(state, "proven") == 0 &&
           (json_integer_value(json_object_get(sums, "n_compared")) > 0 ||
            json_integer_value(json_object_get(json_object_get(sums, "committed"), "n_equal")) > 0);
}

/* @asked  [all->n] */
static json_t *proof_answer_json(const struct app *app, const struct upstream_list *all,
                                 const uint64_t *asked)
{
    json_t *list = json_array();
    size_t n_proven = 0, n_checksums = 0;

    for (size_t i = 0; i < all->n; i++) {
        json_t *row;

        if (asked[i] == 0)
            continue;
        row = fleet_upstream_json(app, all->items[i]);
        n_proven += is_proven(row);
        n_checksums += has_equal_checksums(row);
        list = json_list_append(list, row);
    }
    return json_pack("{s:I, s:I, s:I, s:o}", "n", (json_int_t)json_array_size(list), "n_proven",
                     (json_int_t)n_proven, "n_checksums", (json_int_t)n_checksums, "list", list);
}

int handle_fleet_prove(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    struct prove_request req = {0};
    struct fleet_proof_request r;
    uint64_t asked[FLEET_MAX] = {0};

    if (fleet_body_parse(&body, x, e) != 0 ||
        member_read(&req, upstreams_prove_members, body.json, "", e) != 0)
        return -1;
    r = (struct fleet_proof_request){.upstream = req.upstream,
                                     .checksums = req.checksums,
                                     .timeout_us = req.timeout_s * 1000000,
                                     .life = app->life,
                                     .all = all};
    if (fleet_proof_ask(app->fleet->control, x, &r, asked, e) != 0)
        return -1;
    reply_json(x, 200, proof_answer_json(app, all, asked));
    return 0;
}

/* POST /v1/upstreams/prove: a proof of the upstreams that is asked for, and waited for. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/fleet/status.h"
#include "handlers/reply.h"

#include <string.h>

enum { PROVE_S_DEFAULT = 120, PROVE_S_MAX = 3600 };


static int parse(struct fleet_proof_request *out, const struct app *app, const json_t *body,
                 struct err *e)
{
    uint64_t timeout_s = PROVE_S_DEFAULT;

    out->checksums = true;
    out->life = app->life;
    if (body_str(&out->upstream, body, "", "upstream", e) != 0 ||
        body_bool(&out->checksums, body, "", "checksums", e) != 0 ||
        body_u64(&timeout_s, body, "", "timeout_s", 1, PROVE_S_MAX, e) != 0)
        return -1;
    out->timeout_us = timeout_s * 1000000;
    return 0;
}

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
static json_t *answer_json(const struct app *app, const struct upstream_list *all,
                           const uint64_t *asked)
{
    json_t *list = json_array();
    size_t n_proven = 0, n_checksums = 0;

    for (size_t i = 0; i < all->n; i++) {
        json_t *row = asked[i] != 0 ? fleet_upstream_json(app, all->items[i]) : NULL;

        n_proven += is_proven(row);
        n_checksums += has_equal_checksums(row);
        if (row != NULL)
            (void)json_array_append_new(list, row);
    }
    return json_pack("{s:I, s:I, s:I, s:o}", "n", (json_int_t)json_array_size(list), "n_proven",
                     (json_int_t)n_proven, "n_checksums", (json_int_t)n_checksums, "list", list);
}

int handle_fleet_prove(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    struct fleet_proof_request r = {.all = all};
    uint64_t asked[FLEET_MAX] = {0};

    if (fleet_body_parse(&body, x, e) != 0 || parse(&r, app, body.json, e) != 0 ||
        fleet_proof_ask(app->fleet->control, x, &r, asked, e) != 0)
        return -1;
    reply_json(x, 200, answer_json(app, all, asked));
    return 0;
}

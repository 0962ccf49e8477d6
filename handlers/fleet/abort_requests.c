/* Aborts requests: all of them, those that wait for a permit here too, or those on the engines with
 * the ids that their clients gave them.
 *
 * An SGLang knows its requests by the rid in their bodies, aborts one at a time, and does not reply
 * whether there was one. So it gets one request for each id, and adds nothing to the count. */
#include "base/clock.h"
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/fleet/handlers.h"
#include "handlers/rows/life_request.h"

#include <stdio.h>

enum { REQUESTS_BY_ONE_MAX = 1024 /* ids of one request, if an engine takes one at a time */ };

/* The engines that take one id at a time. */
struct one_by_one {
    size_t at[FLEET_MAX]; /* [n], indexes of the results */
    size_t n;
};

static int check_one_by_one(const json_t *ids, struct err *e)
{
    char field[ERR_FIELD_MAX];
    const json_t *id;
    size_t i;

    if (json_array_size(ids) > REQUESTS_BY_ONE_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/request_ids",
                       "%zu ids; sglang upstreams take one at a time, and no more than %d",
                       json_array_size(ids), REQUESTS_BY_ONE_MAX);
    json_array_foreach(ids, i, id)
    {
        if (json_string_length(id) > 0)
            continue;
        (void)snprintf(field, sizeof field, "/request_ids/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "an id must be a non-empty string: sglang upstreams identify requests by "
                       "their rid");
    }
    return 0;
}

/* Sends the next id to each engine of `b`. An engine that fails keeps that result, and gets no more
 * ids. */
static int send_next(struct app *app, const json_t *id, uint64_t timeout_us, struct one_by_one *b,
                     struct fleet_results *results, struct err *e)
{
    const char *rid = json_string_value(id);
    const struct api_args args = {.ids = &rid, .n_ids = 1};
    struct fleet_target targets[FLEET_MAX];
    fleet_results_auto more = {0};
    size_t n = b->n;

    for (size_t i = 0; i < n; i++)
        targets[i] = (struct fleet_target){.upstream = results->list[b->at[i]].upstream,
                                           .args = &args};
    if (fleet_request(app->fleet->control, API_ABORT_REQUESTS, targets, n, timeout_us, &more, e) !=
        0)
        return -1;
    b->n = 0;
    for (size_t i = 0; i < n; i++) {
        struct fleet_result *kept = &results->list[b->at[i]], swap = *kept;

        *kept = more.list[i];
        more.list[i] = swap;
        if (result_ok(kept))
            b->at[b->n++] = b->at[i];
    }
    return 0;
}

/* Sends the first id to every engine; an engine that takes several gets all of them. */
static int send_first(struct app *app, const json_t *ids, struct fleet_target *targets, size_t n,
                      struct one_by_one *b, struct fleet_results *results, struct err *e)
{
    const char *rid = json_string_value(json_array_get(ids, 0));
    const struct api_args first = {.ids = &rid, .n_ids = 1};

    for (size_t i = 0; i < n; i++) {
        if (!upstream_caps_of(targets[i].upstream)->aborts_one_request || json_array_size(ids) == 0)
            continue;
        targets[i].args = &first;
        b->at[b->n++] = i;
    }
    if (b->n > 0 && check_one_by_one(ids, e) != 0)
        return -1;
    return fleet_request(app->fleet->control, API_ABORT_REQUESTS, targets, n, FLEET_CACHE_US,
                         results, e);
}

static int abort_on_engines(struct app *app, const json_t *ids, struct api_object *native,
                            struct fleet_results *results, struct err *e)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    uint64_t deadline_us = clock_after_us(FLEET_CACHE_US);
    const struct api_args args = {.native = native, .all = ids == NULL};
    struct fleet_target targets[FLEET_MAX];
    struct one_by_one b = {0};
    /* fewer than --min-ready will do */
    size_t n = fleet_reachable(app->fleet->control, all, &args, targets);

    if (n == 0)
        return err_set(e, ERR_UNSYNCED, "", "no upstream is reachable: nothing was sent");
    if (send_first(app, ids, targets, n, &b, results, e) != 0)
        return -1;
    for (size_t k = 1; b.n > 0 && k < json_array_size(ids); k++) {
        uint64_t now_us = clock_now_us();
        int rc = now_us < deadline_us
                     ? send_next(app, json_array_get(ids, k), deadline_us - now_us, &b, results, e)
                     : err_set(e, ERR_UPSTREAM_TIMEOUT, "",
                               "%zu of %zu ids were sent to the sglang upstreams in time", k,
                               json_array_size(ids));

        if (rc != 0)
            return -1;
    }
    return 0;
}

int handle_fleet_abort_requests(struct app *app, struct http_request *x, struct err *e)
{
    fleet_body_auto body = {0};
    fleet_results_auto results = {0};
    struct abort_request req = {0};
    size_t n_queued = 0;

    if (fleet_body_parse(&body, x, e) != 0 || abort_parse(&req, body.json, e) != 0)
        return -1;
    if (req.all)
        n_queued = fleet_abort_queued(fleet_of(app->fleet->control), true);
    if (abort_on_engines(app, req.ids, &body, &results, e) != 0)
        return -1;
    n_queued += fleet_results_sum(&results, "aborted");
    (void)fleet_results_done(&results, e);
    return fleet_reply(app, x, json_pack("{s:I}", "aborted", (json_int_t)n_queued), &results, e);
}

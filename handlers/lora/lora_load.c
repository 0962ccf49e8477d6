/* POST /v1/load_lora_adapter, for every source of tensors.
 *
 * The handler's thread reserves the name and refuses what can be refused at once; a thread for
 * loads reads the bytes. The previous revision is served until the last check of the new one has
 * passed. */
#include "handlers/lora/lora_load.h"

#include "base/clock.h"
#include "control/lora_loads.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/lora/lora_json.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/rows/lora_request.h"
#include "handlers/source/source_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* For lora_path to appear, unless timeout_s is given: it may be mistyped. */
enum { LORA_APPEAR_S = 5 };

static void load_free(struct lora_load *l)
{
    if (l == NULL)
        return;
    adapters_cancel(l->place);
    update_chunk_free(l->chunk);
    adapter_config_free(l->config);
    free(l->delta_base);
    made_sums_fini(&l->made);
    if (l->root >= 0)
        (void)close(l->root);
    free(l->path);
    free(l->name);
    free(l);
}

/* Returns 0; 1 if the directory is not complete yet; -1. */
static int load_adapter(struct lora_load *l, struct lora_loaded *d, struct err *e)
{
    struct adapters_load *place;
    struct adapter *a;
    int rc;

    if (l->delta && adapters_pin_base(l->place, &l->base, e) != 0)
        return -1;
    rc = l->path != NULL ? lora_read_directory(l, &a, &d->report, e)
                         : lora_read_tensors(l, &a, &d->report, e);
    adapters_unpin(l->app->generate->adapters, &l->base);
    if (rc != 0)
        return rc;
    (void)snprintf(d->digest, sizeof d->digest, "%s", adapter_digest(a));
    d->rank = adapter_rank(a);
    d->nbytes = adapter_nbytes(a);
    place = l->place;
    l->place = NULL;
    return adapters_put(place, a, &d->outcome, e);
}

/* The trainer is still writing: other loads run first. This pauses before it queues the load
 * again, because several waiting loads would otherwise poll without a pause. */
static int retry_later(struct lora_load *l, struct err *e)
{
    static const struct timespec poll = {.tv_nsec = ADAPTER_POLL_MS * 1000000L};

    (void)nanosleep(&poll, NULL);
    return lora_loads_again(l->app->generate->loads, &l->job, e);
}

/* The source is closed, and the reservation cancelled, before the answer: a trainer may send the
 * next request as soon as it has the reply. */
static void load_run(void *arg)
{
    struct lora_load *l = arg;
    struct lora_loaded d = {.name = l->name, .pinned = l->options.pinned};
    uint64_t group = l->chunk != NULL ? source_group(l->chunk->source) : 0;
    struct err e = {0};
    int rc = load_adapter(l, &d, &e);

    if (rc == 1 && retry_later(l, &e) == 0)
        return;
    adapters_cancel(l->place);
    l->place = NULL;
    update_chunk_free(l->chunk);
    l->chunk = NULL;
    lora_loads_end(l->app->generate->loads, &l->job,
                   rc != 0               ? LORA_ON_FAILED
                   : d.outcome.unchanged ? LORA_ON_UNCHANGED
                                         : LORA_ON_LOADED);
    if (rc == 0) {
        lora_warn_non_finite(l, &d);
        lora_log_loaded(l, &d);
        lora_reply_loaded(l, &d);
    } else {
        if (group != 0)
            weight_transfer_tell(l->app->weights->transfer, group, &e);
        lora_log_failed(l, &e);
        reply_error(l->x, &e, NULL);
    }
    adapter_report_fini(&d.report);
    load_free(l);
}

static int load_new(struct lora_load **out, struct app *app, struct http_request *x,
                    const struct lora_load_request *w, struct err *e)
{
    struct lora_load *l = calloc(1, sizeof *l);

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
    l->root = -1;
    l->app = app;
    l->x = x;
    l->allow_partial = w->allow_partial;
    l->delta = w->delta;
    l->deadline_us = clock_after_us(w->timeout_s * 1000000);
    l->appear_us = w->timeout_given ? 0 : clock_after_us(LORA_APPEAR_S * 1000000);
    l->options = (struct adapters_options){.only_new = !w->in_place,
                                           .has_if_revision = w->if_revision_given,
                                           .if_revision = w->if_revision,
                                           .pinned = w->pinned};
    (void)snprintf(l->options.if_digest, sizeof l->options.if_digest, "%s",
                   w->if_digest != NULL ? w->if_digest : "");
    l->name = strdup(w->name);
    l->path = w->path != NULL ? strdup(w->path) : NULL;
    if (l->name == NULL || (w->path != NULL && l->path == NULL)) {
        load_free(l);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
    }
    l->options.path = l->path;
    *out = l;
    return 0;
}

/* A number may be of another revision since a restart. */
static int check_delta(const struct lora_load_request *w, struct err *e)
{
    if (!w->delta || w->if_digest != NULL)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/delta",
                   "a delta needs if_digest: the digest of the revision that it builds on, as its "
                   "load answered; numbers of revisions begin anew with the server");
}

/* From here on the load's thread answers the request. */
static int post_load(struct lora_load *l, struct err *e)
{
    if (adapters_begin(l->app->generate->adapters, l->name, &l->options, &l->place, e) != 0)
        return -1;
    l->job = (struct lora_job){.run = load_run, .arg = l, .pool = lora_pool_of(l)};
    return lora_loads_post(l->app->generate->loads, &l->job, e);
}

static int load_from_json(struct app *app, struct http_request *x, const json_t *body,
                          struct err *e)
{
    struct lora_load_request w = {0};
    struct lora_load *l;

    if (member_read(&w, lora_load_members, body, "", e) != 0)
        return -1;
    if (w.three_d)
        return err_set(e, ERR_BAD_REQUEST, "/is_3d_lora_weight",
                       "is_3d_lora_weight is true; models with experts are not supported");
    if (check_delta(&w, e) != 0 || load_new(&l, app, x, &w, e) != 0)
        return -1;
    if (lora_open(l, body, e) == 0 && post_load(l, e) == 0)
        return 0;
    load_free(l);
    return -1;
}

static int load_from_stream(struct app *app, struct http_request *x, struct err *e)
{
    struct lora_load_request w = {0};
    struct lora_load *l;

    if (member_read_query(&w, lora_load_members, x, e) != 0 || check_delta(&w, e) != 0 ||
        load_new(&l, app, x, &w, e) != 0)
        return -1;
    if (lora_open_stream(l, e) == 0 && post_load(l, e) == 0)
        return 0;
    load_free(l);
    return -1;
}

static int check_app(struct app *app, struct err *e)
{
    if (pause_controller_allows(app->pause_controller, CALL_LORA_LOAD, e) != 0)
        return -1;
    if (app->generate->adapters == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "this server holds weights only (--engine none): it has no adapters");
    return 0;
}

static int refuse_lora_query(const struct http_request *x, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "",
                   "query member '%.60s': with a JSON body, send members in the body",
                   x->query[0].name);
}

/* A trainer may broadcast without waiting for the answer, so a refusal puts the group in doubt. */
int handle_lora_load(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    bool stream = body_is_tensors(x);
    json_t *body = NULL;
    int rc;

    if (check_app(app, e) != 0 ||
        (!stream && ((route->strict && x->n_query > 0 && refuse_lora_query(x, e) != 0) ||
                     body_parse(&body, x, route, e) != 0))) {
        update_refused_unread(app, x, e);
        return -1;
    }
    if (stream)
        return load_from_stream(app, x, e);
    rc = load_from_json(app, x, body, e);
    if (rc != 0)
        update_refused(app, x, body, e);
    json_decref(body);
    return rc;
}

/* See the header. Rejected: to send all that waits here on to the engines before their pause, and
 * to leave it to them: none says when a request has come, and each has its own limit. */
#include "fleet/want/fleet_pause_before.h"

#include "fleet/calls/fleet_priv.h"

enum {
    BEFORE_POLL_US = 100000, /* while it waits it sees a resume so soon */
    BEFORE_CUT_US = 2000000 /* after an abort, without another reply: what has none came too late */
};

/* May what came before run at all? Not once an update holds it back, which waits for the pause. */
static bool engines_run(struct fleet_control *fc, const struct pause *before)
{
    bool run;

    mtx_lock(&fc->lock);
    run = !pause_is_held(before) && !fc->sleep.weights && !fc->sleep.kv &&
          !(fc->session != NULL && fc->session->prepare_begun);
    mtx_unlock(&fc->lock);
    return run;
}

static bool is_pending(struct fleet_control *fc)
{
    bool pending;

    mtx_lock(&fc->lock);
    pending = pause_is_pending(&fc->pause);
    mtx_unlock(&fc->lock);
    return pending;
}

static int await_before(struct fleet_control *fc, const struct pause *before, uint64_t deadline_us,
                        struct err *e)
{
    struct fleet *f = fleet_of(fc);
    size_t n = 1;

    while (n > 0 && engines_run(fc, before)) {
        uint64_t poll_us = clock_after_us(BEFORE_POLL_US);

        n = fleet_await_before(f, poll_us < deadline_us ? poll_us : deadline_us);
        if (!is_pending(fc))
            return err_set(e, ERR_CONFLICT, "",
                           "generation was resumed before the pause took effect");
        if (n > 0 && fleet_is_closed(f))
            return err_set(e, ERR_DRAINING, "", "the server is draining: generation is not paused");
        if (n > 0 && clock_passed(deadline_us))
            return err_set(e, ERR_TIMEOUT, "",
                           "%zu requests that came before the pause wait here for an upstream, or "
                           "run and have sent nothing yet; generation is not paused",
                           n);
    }
    return 0;
}

/* Could the pause be sent? */
static int check_engines(struct fleet_control *fc, const struct api_args *args, struct err *e)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];
    size_t n;
    int rc = fleet_reachable_quorum(fc, all, args, targets, &n, e);

    if (rc == 0)
        rc = fleet_validate(fc, API_PAUSE, targets, n, e);
    upstream_list_unref(all);
    return rc;
}

int fleet_cover_queued(struct fleet_control *fc, const struct pause_request *req,
                       const struct pause *before, const struct api_args *args,
                       uint64_t deadline_us, size_t *n_aborted, struct err *e)
{
    struct fleet *f = fleet_of(fc);

    *n_aborted = 0;
    if (check_engines(fc, args, e) != 0)
        return -1;
    if (req->mode == PAUSE_KEEP) {
        fleet_draw_line(f, pause_begins_anew(before, req->mode), false);
        return 0;
    }
    fleet_draw_line(f, pause_begins_anew(before, req->mode), true);
    if (req->mode == PAUSE_ABORT)
        *n_aborted = fleet_abort_queued(f, false);
    else
        return await_before(fc, before, deadline_us, e);
    return 0;
}

void fleet_end_aborted(struct fleet_control *fc)
{
    struct fleet *f = fleet_of(fc);
    size_t last, n = fleet_await_before(f, clock_now_us());

    do {
        last = n;
        n = fleet_await_before(f, clock_after_us(BEFORE_CUT_US));
    } while (n > 0 && n < last && !fleet_is_closed(f));
    if (n == 0)
        return;
    fleet_cut_aborted(f);
    (void)fleet_await_before(f, clock_after_us(BEFORE_CUT_US));
}

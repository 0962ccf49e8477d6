/* The update ends on the update worker. A resume may wait for other operations of the pause
 * controller, so it runs on a control thread again: the worker never waits for the pause
 * controller. */
#include "handlers/update/commit_resume.h"

#include "base/jobs/workers.h"
#include "control/pause_controller.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/want/fleet_pause.h"
#include "handlers/reply.h"
#include "handlers/update/update_requester.h"
#include "handlers/update_json.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <stdlib.h>

/* A request to be answered when the update has ended. */
struct finish_request {
    struct job job;
    struct app *app;
    struct http_request *x;
    struct err why; /* of the update; ERR_NONE: committed, or there was none */
    struct update_info info;
};

/* The error of the update; the message adds that generation runs. */
static void reply_not_committed(struct http_request *x, const struct err *why, json_t *details)
{
    struct err e = {0};

    (void)err_set(&e, why->code, why->field,
                  "generation was resumed with the previous weights, because the update could not "
                  "be committed: %s",
                  why->msg);
    reply_error(x, &e, details);
}

/* With --stage the engines were paused, and not this server. */
static int resume_fleet(struct fleet_control *fc, bool *was_paused, uint64_t *epoch, struct err *e)
{
    fleet_results_auto results = {0};
    struct pause now;

    if (fleet_resume_all(fc, false, &results, was_paused, e) != 0)
        return -1;
    fleet_get_pause(fc, &now);
    *epoch = now.epoch;
    return fleet_results_done(&results, e) ? 0 : -1;
}

static int resume(struct app *app, bool *was_paused, uint64_t *epoch, struct err *e)
{
    struct pause_controller_info info;

    if (app->fleet != NULL)
        return resume_fleet(app->fleet->control, was_paused, epoch, e);
    *was_paused = pause_controller_resume(app->pause_controller, &info);
    *epoch = info.pause.epoch;
    return 0;
}

static void resume_run(void *arg)
{
    struct finish_request *r = arg;
    struct err e = {0};
    uint64_t epoch = 0;
    bool was_paused = false;
    int rc = resume(r->app, &was_paused, &epoch, &e);

    update_note_end(r->x, &r->info, &r->why);
    if (r->why.code != ERR_NONE && r->info.phase == UPDATE_COMMITTED) /* it failed after that */
        reply_error(r->x, &r->why, update_details(&r->info));
    else if (r->why.code != ERR_NONE)
        reply_not_committed(r->x, &r->why, update_details(&r->info));
    else if (rc != 0)
        reply_error(r->x, &e, update_details(&r->info));
    else
        reply_json(r->x, 200,
                   json_pack("{s:b, s:b, s:I}", "paused", 0, "was_paused", (int)was_paused, "epoch",
                             (json_int_t)epoch));
    free(r);
}

/* On the update worker, or within updates_commit_auto. If the executor's threads have ended,
 * nothing runs any more that the pause controller could wait for. */
static void on_finished_resume(void *arg, const struct update_info *info, const struct err *e)
{
    struct finish_request *r = arg;
    struct err ignored = {0};

    r->why = *e;
    r->info = *info;
    r->job = (struct job){.run = resume_run, .arg = r};
    if (workers_post(r->app->control_executor, &r->job, WORKERS_URGENT, &ignored) != 0)
        resume_run(r);
}

static int finish_request_new(struct finish_request **out, struct app *app, struct http_request *x,
                              struct err *e)
{
    struct finish_request *r = calloc(1, sizeof *r);

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to end the update");
    r->app = app;
    r->x = x;
    *out = r;
    return 0;
}

/* Without memory, or while buckets are still being received, nothing is committed; the resume
 * needs neither. */
int handle_commit_resume(struct app *app, struct http_request *x, struct err *e)
{
    struct finish_request *r;
    struct err why = {0}, ignored = {0};
    uint64_t epoch;
    bool was_paused;

    (void)e;
    if (finish_request_new(&r, app, x, &why) == 0) {
        if (updates_commit_auto(app->weights->updates, on_finished_resume, r, &why) == 0)
            return 0;
        free(r);
    }
    (void)resume(app, &was_paused, &epoch, &ignored);
    reply_not_committed(x, &why, NULL);
    return 0;
}

/* The update ends on its worker, and resuming may wait for other operations of the pause
 * controller, so that half runs on a control thread again: the worker never waits for the pause
 * controller. */
#include "handlers/update/commit_resume.h"

#include "base/workers.h"
#include "control/pause_controller.h"
#include "handlers/reply.h"
#include "handlers/update_json.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <stdlib.h>

/* What has to be answered when the update has ended. */
struct ending {
    struct job job;
    struct app *app;
    struct http_request *x;
    struct err why; /* of the update; clean: committed, or there was none */
    struct update_info info;
};

/* Says that generation runs all the same. */
static void reply_unserved(struct http_request *x, const struct err *why, json_t *details)
{
    struct err e = {0};

    (void)err_set(&e, why->code, why->field,
                  "generation was resumed with the weights of before, because what was sent since "
                  "could not be put into service: %s",
                  why->msg);
    reply_error(x, &e, details);
}

static void resume_run(void *arg)
{
    struct ending *end = arg;
    struct pause_controller_info info;
    bool was = pause_controller_resume(end->app->pause_controller, &info);

    if (end->why.code != ERR_NONE)
        reply_unserved(end->x, &end->why, update_details(&end->info));
    else
        reply_json(end->x, 200,
                   json_pack("{s:b, s:b, s:I}", "paused", 0, "was_paused", (int)was, "epoch",
                             (json_int_t)info.pause.epoch));
    free(end);
}

/* On the update's worker, or within updates_commit_auto. A pool whose threads have ended runs
 * nothing, and nothing that the pause controller could wait for. */
static void then_resume(void *arg, const struct update_info *info, const struct err *e)
{
    struct ending *end = arg;
    struct err ignored = {0};

    end->why = *e;
    end->info = *info;
    end->job = (struct job){.run = resume_run, .arg = end};
    if (workers_post(end->app->control_executor, &end->job, WORKERS_URGENT, &ignored) != 0)
        resume_run(end);
}

static json_t *committed_json(const struct update_info *info)
{
    bool some = info->phase == UPDATE_COMMITTED;

    return json_pack("{s:b, s:o, s:o}", "committed", (int)some, "weight_version",
                     some ? json_string(info->label) : json_null(), "serial",
                     some ? json_integer((json_int_t)info->serial) : json_null());
}

static void then_answer(void *arg, const struct update_info *info, const struct err *e)
{
    struct ending *end = arg;

    if (e->code != ERR_NONE)
        reply_error(end->x, e, update_details(info));
    else
        reply_json(end->x, 200, committed_json(info));
    free(end);
}

static int ending_new(struct ending **out, struct app *app, struct http_request *x, struct err *e)
{
    struct ending *end = calloc(1, sizeof *end);

    if (end == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to end the update");
    end->app = app;
    end->x = x;
    *out = end;
    return 0;
}

/* Without memory, or while buckets are still on their way, nothing is committed; resuming needs
 * neither. */
int handle_commit_resume(struct app *app, struct http_request *x, struct err *e)
{
    struct pause_controller_info info;
    struct ending *end;
    struct err why = {0};

    (void)e;
    if (ending_new(&end, app, x, &why) == 0) {
        if (updates_commit_auto(app->weights->updates, then_resume, end, &why) == 0)
            return 0;
        free(end);
    }
    (void)pause_controller_resume(app->pause_controller, &info);
    reply_unserved(x, &why, NULL);
    return 0;
}

int handle_commit_open(struct app *app, struct http_request *x, struct err *e)
{
    struct ending *end;

    if (pause_controller_allows(app->pause_controller, CALL_UPDATE_FINISH, e) != 0 ||
        ending_new(&end, app, x, e) != 0)
        return -1;
    if (updates_commit_auto(app->weights->updates, then_answer, end, e) == 0)
        return 0;
    free(end);
    return -1;
}

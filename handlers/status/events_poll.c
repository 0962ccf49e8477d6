/* Readiness follows from many parts, and progress from every byte: both are compared with what was
 * seen last. */
#include "handlers/status/events_poll.h"

#include "base/log.h"
#include "handlers/app.h"
#include "handlers/reply.h"
#include "handlers/status_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void poll_readiness(struct events_poll *p)
{
    struct err why = {0};
    bool ready = app_ready(p->app, &why);
    struct log_rec r;

    if (p->known && p->ready == ready && p->why == why.code)
        return;
    p->known = true;
    p->ready = ready;
    p->why = why.code;
    log_begin(&r, LOG_DEBUG, "readiness");
    log_str(&r, "state", ready ? "ready" : "not_ready");
    if (!ready)
        log_err(&r, &why);
    log_event(&r);
}

static json_t *open_update(const struct app *app)
{
    return app->weights != NULL ? status_update_json(app) : app->fleet->update(app);
}

static const char *member_text(const json_t *update, const char *name)
{
    const char *text = json_string_value(json_object_get(update, name));

    return text != NULL ? text : "";
}

/* Has the update come further? What is left of its lease always changes. */
static bool has_moved(struct events_poll *p, const json_t *update)
{
    char at[sizeof p->at];
    bool moved;

    (void)snprintf(at, sizeof at, "%.64s %.16s %lld", member_text(update, "update_id"),
                   member_text(update, "phase"),
                   (long long)json_integer_value(json_object_get(update, "nbytes_done")));
    moved = strcmp(at, p->at) != 0;
    memcpy(p->at, at, sizeof at);
    return moved;
}

static const char *poll_progress(struct events_poll *p)
{
    json_t *update = open_update(p->app);
    struct buf text = {0};
    size_t len;

    if (json_is_object(update) && has_moved(p, update)) {
        reply_append_json(&text, update);
        free(p->progress);
        p->progress = buf_take(&text, &len);
        buf_fini(&text);
        json_decref(update);
        return p->progress;
    }
    json_decref(update);
    return NULL;
}

const char *events_poll(void *arg, size_t n_subscribers)
{
    struct events_poll *p = arg;

    poll_readiness(p);
    return n_subscribers > 0 ? poll_progress(p) : NULL;
}

void events_poll_fini(struct events_poll *p)
{
    free(p->progress);
    p->progress = NULL;
}

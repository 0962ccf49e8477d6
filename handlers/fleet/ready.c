/* Would a generate sent now be served? From what is so at this moment: who is in rotation, and what
 * a trainer holds still. */
#include "handlers/fleet/status.h"

#include "fleet/fleet_priv.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"

#include <stdio.h>
#include <string.h>

enum { WHY_ALL_MAX = 400 }; /* bytes, of what keeps upstreams away */

/* Appends "; http://…: down, connection refused", while there is room. */
static void add_why(char *text, size_t *len, const char *name, const struct upstream_info *info)
{
    char one[256];
    int n = snprintf(one, sizeof one, "; %.80s: %s%s%.120s", name, upstream_state_name(info->state),
                     info->error.msg[0] != '\0' ? ", " : "", info->error.msg);

    if (n < 0 || (size_t)n >= sizeof one || *len + (size_t)n >= WHY_ALL_MAX)
        return;
    memcpy(text + *len, one, (size_t)n + 1);
    *len += (size_t)n;
}

static int too_few(const struct app *app, const struct fleet_stats *s, struct err *why)
{
    struct fleet *f = upstreams_fleet(app->fleet->upstreams);
    size_t n = upstreams_n(app->fleet->upstreams), len = 0;
    char text[WHY_ALL_MAX] = "";
    struct upstream_info info;
    struct upstream_endpoint at;

    for (size_t i = 0; i < n; i++) {
        upstreams_get(app->fleet->upstreams, i, &at);
        fleet_info(f, i, &info);
        if (!at.removed && info.state != UPSTREAM_SERVING)
            add_why(text, &len, at.name, &info);
    }
    return err_set(why, ERR_UNSYNCED, "", "%zu of %zu upstreams serve, %zu are needed%s",
                   s->n_serving, s->n_upstreams, s->min_ready, text);
}

/* Those that an update made stand still: they take requests, and serve none now. */
static size_t n_held_locked(struct fleet_control *fc)
{
    const struct fleet_session *s = fc->session;
    struct upstream_info info;
    size_t n = 0;

    for (size_t i = 0; s != NULL && i < s->n_parts; i++) {
        if (!s->parts[i].paused)
            continue;
        fleet_info(fleet_of(fc), s->parts[i].upstream, &info);
        n += info.state == UPSTREAM_SERVING;
    }
    return n;
}

/* What a trainer told the whole fleet. */
static int control_ready(struct fleet_control *fc, const struct fleet_stats *s, struct err *why)
{
    int rc = 0;
    size_t n_held;

    mtx_lock(&fc->lock);
    n_held = n_held_locked(fc);
    if (fc->weights_asleep || fc->kv_asleep)
        rc = err_set(why, ERR_ASLEEP, "", "the upstreams are asleep (level %d)", fc->sleep_level);
    else if (pause_is_held(&fc->pause))
        rc = err_set(why, ERR_PAUSED, "", "generation is paused by '%s' (%s)", fc->pause.owner,
                     lifecycle_pause_name(fc->pause.mode));
    else if (n_held > s->n_serving || s->n_serving - n_held < s->min_ready)
        rc = err_set(why, ERR_PAUSED, "",
                     "an update holds %zu of the %zu upstreams that serve, %zu are needed", n_held,
                     s->n_serving, s->min_ready);
    mtx_unlock(&fc->lock);
    return rc;
}

int fleet_ready(const struct app *app, struct err *why)
{
    enum fleet_queue lane = FLEET_GENERATE;
    struct fleet_stats s;

    fleet_stats(upstreams_fleet(app->fleet->upstreams), &s);
    if (!s.ready)
        return fleet_version_undecided(upstreams_fleet(app->fleet->upstreams), why)
                   ? -1
                   : too_few(app, &s, why);
    if (s.n_waiting[lane] > 0 && s.n_waiting[lane] >= app->settings.generate_queue)
        return err_set(why, ERR_OVERLOADED, "", "the generate queue is full");
    return control_ready(app->fleet->control, &s, why);
}

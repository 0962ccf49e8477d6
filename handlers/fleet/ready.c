/* Would a generate that is sent now be served? That depends on the engines in rotation, and on
 * pauses and sleeps. */
#include "handlers/fleet/status.h"

#include "fleet/calls/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"

#include <stdio.h>
#include <string.h>

enum { WHY_ALL_MAX = 400, WHY_ONE_MAX = 120 }; /* bytes, of the reasons of all engines; of one */

/* How much of a message to show: all of it if it is short, else whole words. */
static int shown_len(const char *msg)
{
    int len = (int)strnlen(msg, WHY_ONE_MAX + 1);

    if (len <= WHY_ONE_MAX)
        return len;
    for (len = WHY_ONE_MAX; len > 0 && msg[len] != ' ';)
        len--;
    return len;
}

/* Appends "; http://…: down, connection refused", if it fits. */
static void append_reason(char *text, size_t *len, const char *name, const char *state,
                          const char *msg)
{
    char one[256];
    int len_shown = shown_len(msg);
    const char *rest = msg[len_shown] != '\0' ? " …" : "";
    int n = snprintf(one, sizeof one, "; %.80s: %s%s%.*s%s", name, state,
                     *state != '\0' && *msg != '\0' ? ", " : "", len_shown, msg, rest);

    if (n < 0 || (size_t)n >= sizeof one || *len + (size_t)n >= WHY_ALL_MAX)
        return;
    memcpy(text + *len, one, (size_t)n + 1);
    *len += (size_t)n;
}

static int refuse_too_few(const struct app *app, const struct fleet_stats *s, struct err *why)
{
    struct fleet *f = upstreams_fleet(app->fleet->upstreams);
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    size_t len = 0;
    char text[WHY_ALL_MAX] = "";
    struct upstream_info info;
    struct upstream_name_info name;

    for (size_t i = 0; i < all->n; i++) {
        fleet_info(f, all->items[i], &info);
        if (!upstream_is_removed(all->items[i]) && info.state != UPSTREAM_SERVING)
            append_reason(text, &len, upstream_name(all->items[i]), upstream_state_name(info.state),
                          info.error.why.msg);
    }
    for (size_t i = 0; upstreams_name(app->fleet->upstreams, i, &name); i++)
        if (name.why.code != ERR_NONE)
            append_reason(text, &len, name.name, "", name.why.msg);
    return err_set(why, ERR_UNSYNCED, "", "%zu of %zu upstreams serve, %zu are needed%s",
                   s->n_serving, s->n_upstreams, s->min_ready, text);
}

int fleet_ready(const struct app *app, struct err *why)
{
    enum fleet_queue lane = FLEET_GENERATE;
    struct fleet_stats s;

    fleet_stats(upstreams_fleet(app->fleet->upstreams), &s);
    if (!s.ready)
        return fleet_version_undecided(upstreams_fleet(app->fleet->upstreams), why)
                   ? -1
                   : refuse_too_few(app, &s, why);
    if (s.n_waiting[lane] > 0 && s.n_waiting[lane] >= app->settings.generate_queue)
        return err_set(why, ERR_OVERLOADED, "", "the generate queue is full");
    return fleet_check_serving(app->fleet->control, &s, why);
}

/* The adapters that each engine has to have besides the weights. A process whose adapters have not
 * been checked since it started may lack some, so it is out of rotation from its first report on.
 */
#include "fleet/members/fleet_priv.h"

#include <string.h>

void fleet_require_adapters(struct fleet *f)
{
    mtx_lock(&f->lock);
    f->requires_adapters = true;
    for (size_t i = 0; i < f->n; i++) {
        f->upstreams[i].requires_adapters = true;
        f->upstreams[i].adapters_incarnation = f->upstreams[i].incarnation;
    }
    mtx_unlock(&f->lock);
}

void fleet_set_missing_errors_locked(struct fleet *f)
{
    for (size_t i = 0; i < f->n; i++) {
        struct upstream *u = &f->upstreams[i];
        struct err why = {0};

        if (!fleet_is_alive(u) || u->error.code != ERR_NONE)
            continue;
        if (fleet_is_out(u, OUT_AUTH)) /* an update has cleared its error */
            (void)err_set(&why, ERR_UPSTREAM_KEY, "",
                          "it refuses the key of this server, or requires one (key-file)");
        else if (fleet_is_out(u, OUT_PAUSE_MISSED))
            (void)err_set(&why, ERR_UNSYNCED, "",
                          "it started, or was not reachable, when the others were paused: it "
                          "serves again when they resume");
        else if (u->missing.code != ERR_NONE && !fleet_has_adapters(u))
            why = u->missing;
        else if (!fleet_has_adapters(u))
            (void)err_set(&why, ERR_UNSYNCED, "",
                          "it may have restarted, and its adapters have not been checked yet");
        if (why.code != ERR_NONE)
            fleet_set_error(u, &why);
    }
}

/* A check of an earlier process, or one that is older than the last, is ignored. */
void fleet_set_missing_adapters(struct fleet *f, size_t upstream,
                                const struct fleet_adapter_check *o)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;
    bool lacked;

    fleet_change_begin(f, &c);
    lacked = !fleet_has_adapters(u);
    if (o->incarnation == u->incarnation && o->change >= u->adapters_change) {
        u->adapters_incarnation = o->incarnation;
        u->adapters_change = o->change;
        u->missing = *o->missing;
        if (lacked && fleet_is_reliable(u) && u->error.code == ERR_UNSYNCED)
            err_clear(&u->error);
    }
    fleet_change_end(f, &c);
}

/* What all upstreams are to have besides the weights. A process that nobody has looked at since it
 * began may lack it, so it is out of rotation from its first answer on. */
#include "fleet/members/fleet_priv.h"

#include <string.h>

void fleet_needs_outfit(struct fleet *f)
{
    mtx_lock(&f->lock);
    f->needs_outfit = true;
    for (size_t i = 0; i < f->n; i++) {
        f->upstreams[i].needs_outfit = true;
        f->upstreams[i].fit_life = f->upstreams[i].n_lives;
    }
    mtx_unlock(&f->lock);
}

void fleet_blame_unfit_locked(struct fleet *f)
{
    for (size_t i = 0; i < f->n; i++) {
        struct upstream *u = &f->upstreams[i];
        struct err why = {0};

        if (!fleet_is_alive(u) || u->error.code != ERR_NONE)
            continue;
        if (fleet_is_out(u, OUT_KEY)) /* an update has ended well there all the same */
            (void)err_set(&why, ERR_UPSTREAM_KEY, "",
                          "it refuses the key of this server, or wants one (key-file)");
        else if (fleet_is_out(u, OUT_PAUSE_MISSED))
            (void)err_set(&why, ERR_UNSYNCED, "",
                          "it began, or was away, when the others were told to stand still: it "
                          "serves when they go on");
        else if (u->lack.code != ERR_NONE && !fleet_is_fit(u))
            why = u->lack;
        else if (!fleet_is_fit(u))
            (void)err_set(&why, ERR_UNSYNCED, "",
                          "it may have been restarted, and lack adapters of the fleet");
        if (why.code != ERR_NONE)
            fleet_blame(u, &why);
    }
}

/* What was found of a process before it, or before what is known already, is not looked at. */
void fleet_outfit(struct fleet *f, size_t upstream, const struct fleet_outfit *o)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;
    bool lacked;

    fleet_change_begin(f, &c);
    lacked = !fleet_is_fit(u);
    if (o->life == u->n_lives && o->change >= u->fit_change) {
        u->fit_life = o->life;
        u->fit_change = o->change;
        u->lack = *o->lack;
        if (lacked && fleet_is_sound(u) && u->error.code == ERR_UNSYNCED)
            err_clear(&u->error);
    }
    fleet_change_end(f, &c);
}

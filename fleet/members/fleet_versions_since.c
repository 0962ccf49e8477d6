/* Which versions may have made a reply: what the fleet served when its permit was granted, and what
 * it has served since.
 *
 * The weights of an engine change only between fleet_note_overwrite, which comes before the first
 * byte of an update, and its confirmation; no permit of it is granted in between. So a reply that
 * has arrived whole before the number of changes grew was made by the version of its grant. */
#include "fleet/members/fleet_priv.h"

#include <stdio.h>
#include <string.h>

void fleet_keep_name_locked(struct fleet *f)
{
    struct fleet_version *v = &f->named[f->n_named % FLEET_VERSIONS_MAX];

    mtx_assert_held(&f->lock);
    v->serial = f->serial;
    memcpy(v->label, f->label, sizeof v->label);
    f->n_named++;
}

void fleet_note_overwrite(struct fleet *f, struct upstream *u)
{
    mtx_lock(&f->lock);
    u->n_overwrites++;
    mtx_unlock(&f->lock);
}

/* The process that had the version may be another one by now, which nobody has seen. */
static bool versions_is_same_process(const struct upstream *u, const struct fleet_ticket *t)
{
    return u->incarnation == t->incarnation && u->probe_ok_us + FLEET_RESTART_US >= t->granted_us;
}

static bool is_same(const struct fleet_version *a, const struct fleet_version *b)
{
    return a->serial == b->serial && strcmp(a->label, b->label) == 0;
}

void fleet_versions_since(struct fleet *f, const struct fleet_ticket *t, struct fleet_versions *out)
{
    const struct upstream *u = t->upstream;
    uint64_t from = t->n_named;

    out->n = 1;
    out->items[0] = t->served;
    mtx_lock(&f->lock);
    out->one = u->n_overwrites == t->n_overwrites;
    out->last_is_unknown = !out->one && f->updating;
    out->complete = !out->last_is_unknown && f->n_named - from <= FLEET_VERSIONS_MAX;
    if (f->n_named - from > FLEET_VERSIONS_MAX)
        from = f->n_named - FLEET_VERSIONS_MAX;
    for (; from < f->n_named; from++) {
        const struct fleet_version *v = &f->named[from % FLEET_VERSIONS_MAX];

        if (!is_same(v, &out->items[out->n - 1]))
            out->items[out->n++] = *v;
    }
    out->one = out->one && versions_is_same_process(u, t);
    mtx_unlock(&f->lock);
}

bool fleet_await_idle(struct fleet *f, struct upstream *u, uint64_t deadline_us)
{
    const size_t *n = &u->n_outstanding[FLEET_GENERATE];
    bool idle, in_time = true;

    mtx_lock(&f->lock);
    f->n_idle_waits++;
    while (*n > 0 && in_time)
        in_time = cnd_wait(&f->idle, &f->lock, deadline_us);
    idle = *n == 0;
    f->n_idle_waits--;
    mtx_unlock(&f->lock);
    return idle;
}

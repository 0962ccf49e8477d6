/* Which generate requests came before a pause of the fleet, and where they are: in the queue here,
 * or on the way to an engine. What is known to be in an engine is the engine's to end. */
#include "fleet/members/fleet_priv.h"

static bool is_aborted_locked(const struct fleet *f, const struct ticket *t)
{
    return t->arrival != 0 && t->arrival < f->abort_line;
}

bool fleet_is_kept_locked(const struct fleet *f, const struct fleet_ticket *t)
{
    return is_aborted_locked(f, &t->ticket) ||
           (f->since_held && t->queue == FLEET_GENERATE &&
            !arrivals_came_before(&f->arrivals, t->ticket.arrival));
}

int fleet_arrive_locked(struct fleet *f, struct fleet_ticket *t, struct err *e)
{
    if (t->queue != FLEET_GENERATE)
        return 0;
    if (t->ticket.arrival == 0) {
        t->ticket.arrival = arrivals_next(&f->arrivals);
        arrivals_add(&f->arrivals, t->ticket.arrival);
    }
    if (is_aborted_locked(f, &t->ticket))
        return err_set(e, ERR_ABORTED, "", "the request was aborted before an engine had it");
    return 0;
}

void fleet_settle(struct fleet *f, struct fleet_ticket *t)
{
    mtx_lock(&f->lock);
    if (t->ticket.arrival != 0 && !t->settled) {
        t->settled = true;
        if (arrivals_end(&f->arrivals, t->ticket.arrival))
            cnd_broadcast(&f->before_settled);
    }
    mtx_unlock(&f->lock);
}

bool fleet_is_aborted(struct fleet *f, const struct fleet_ticket *t, bool sent)
{
    bool aborted;

    mtx_lock(&f->lock);
    aborted = is_aborted_locked(f, &t->ticket) && (!sent || t->ticket.arrival < f->cut_line);
    mtx_unlock(&f->lock);
    return aborted;
}

void fleet_draw_line(struct fleet *f, bool anew, bool holds)
{
    mtx_lock(&f->lock);
    if (anew)
        (void)arrivals_draw_line(&f->arrivals);
    f->since_held = holds;
    mtx_unlock(&f->lock);
}

void fleet_release_since(struct fleet *f)
{
    mtx_lock(&f->lock);
    f->since_held = false;
    mtx_unlock(&f->lock);
    fleet_grant_all(f);
}

/* Tells the proxy that requests wait in vain. */
static void report_aborted(const struct fleet *f)
{
    if (f->cfg.left_rotation != NULL)
        f->cfg.left_rotation(f->cfg.arg);
}

size_t fleet_abort_queued(struct fleet *f, bool all)
{
    uint64_t line;
    size_t n = 0;

    mtx_lock(&f->lock);
    line = all ? f->arrivals.last + 1 : f->arrivals.line;
    for (const struct ticket *t = f->queues[FLEET_GENERATE].head; t != NULL; t = t->next)
        n += !is_aborted_locked(f, t) && t->arrival < line;
    if (line > f->abort_line)
        f->abort_line = line;
    mtx_unlock(&f->lock);
    report_aborted(f);
    return n;
}

void fleet_cut_aborted(struct fleet *f)
{
    mtx_lock(&f->lock);
    f->cut_line = f->arrivals.line;
    mtx_unlock(&f->lock);
    report_aborted(f);
}

size_t fleet_await_before(struct fleet *f, uint64_t deadline_us)
{
    bool in_time = true;
    size_t n;

    mtx_lock(&f->lock);
    while (f->arrivals.n_before > 0 && !f->closed && in_time)
        in_time = cnd_wait(&f->before_settled, &f->lock, deadline_us);
    n = f->arrivals.n_before;
    mtx_unlock(&f->lock);
    return n;
}

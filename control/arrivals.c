/* Which requests came before a line (control/arrivals.h). */
#include "control/arrivals.h"

#include <assert.h>

static size_t *count_of(struct arrivals *a, uint64_t arrival)
{
    return arrivals_came_before(a, arrival) ? &a->n_before : &a->n_since;
}

uint64_t arrivals_next(struct arrivals *a)
{
    return ++a->last;
}

void arrivals_add(struct arrivals *a, uint64_t arrival)
{
    if (!arrivals_aborted(a, arrival))
        ++*count_of(a, arrival);
}

bool arrivals_end(struct arrivals *a, uint64_t arrival)
{
    size_t *n = count_of(a, arrival);

    if (arrivals_aborted(a, arrival))
        return false;
    assert(*n > 0);
    return --*n == 0 && n == &a->n_before;
}

uint64_t arrivals_draw_line(struct arrivals *a)
{
    a->line = a->last + 1;
    a->n_before += a->n_since;
    a->n_since = 0;
    return a->line;
}

bool arrivals_abort_before(struct arrivals *a)
{
    bool any = a->n_before > 0;

    if (a->line > a->abort_line)
        a->abort_line = a->line;
    a->n_before = 0;
    return any;
}

bool arrivals_abort_all(struct arrivals *a)
{
    a->abort_line = a->last + 1;
    a->n_since = 0;
    return arrivals_abort_before(a);
}

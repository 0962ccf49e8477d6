/* An intrusive list under one lock. A generation is removed when it is freed, so a thread that
 * walks the list may access every entry. */
#include "control/generations.h"

#include "base/mtx.h"
#include "control/arrivals.h"
#include "weights/version_label.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct generations {
    struct mtx lock; /* rank MTX_GENERATIONS; guards down to the blank line */
    struct generations_entry *first;
    struct arrivals arrivals; /* a request counts twice while its handler runs and it is in the list
                               */

    void (*idle)(void *arg); /* immutable; may be NULL */
    void *idle_arg;
};

int generations_new(struct generations **out, struct err *e)
{
    struct generations *gs = calloc(1, sizeof *gs);

    if (gs == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the list of generations");
    mtx_init(&gs->lock, MTX_GENERATIONS);
    *out = gs;
    return 0;
}

void generations_free(struct generations *gs)
{
    if (gs == NULL)
        return;
    assert(gs->first == NULL);
    mtx_fini(&gs->lock);
    free(gs);
}

void generations_on_idle(struct generations *gs, void (*idle)(void *arg), void *arg)
{
    if (gs == NULL)
        return;
    gs->idle = idle;
    gs->idle_arg = arg;
}

static void report_idle(struct generations *gs, bool idle)
{
    if (idle && gs->idle != NULL)
        gs->idle(gs->idle_arg);
}

uint64_t generations_arrive(struct generations *gs)
{
    uint64_t arrival;

    if (gs == NULL)
        return 0;
    mtx_lock(&gs->lock);
    arrival = arrivals_next(&gs->arrivals);
    arrivals_add(&gs->arrivals, arrival);
    mtx_unlock(&gs->lock);
    return arrival;
}

void generations_parsed(struct generations *gs, uint64_t arrival)
{
    bool idle;

    if (gs == NULL || arrival == 0)
        return;
    mtx_lock(&gs->lock);
    idle = arrivals_end(&gs->arrivals, arrival);
    mtx_unlock(&gs->lock);
    report_idle(gs, idle);
}

void generations_add(struct generations *gs, struct generations_entry *g)
{
    if (gs == NULL)
        return;
    mtx_lock(&gs->lock);
    if (g->arrival == 0)
        g->arrival = arrivals_next(&gs->arrivals);
    g->ended = false;
    g->next = gs->first;
    g->prev_next = &gs->first;
    if (gs->first != NULL)
        gs->first->prev_next = &g->next;
    gs->first = g;
    arrivals_add(&gs->arrivals, g->arrival);
    if (arrivals_aborted(&gs->arrivals, g->arrival))
        (void)g->ops->abort(g->arg);
    mtx_unlock(&gs->lock);
}

static bool end_locked(struct generations *gs, struct generations_entry *g)
{
    bool ends = g->prev_next != NULL && !g->ended;

    g->ended = true;
    return ends && arrivals_end(&gs->arrivals, g->arrival);
}

void generations_end(struct generations *gs, struct generations_entry *g)
{
    bool idle;

    if (gs == NULL)
        return;
    mtx_lock(&gs->lock);
    idle = end_locked(gs, g);
    mtx_unlock(&gs->lock);
    report_idle(gs, idle);
}

void generations_remove(struct generations *gs, struct generations_entry *g)
{
    bool idle;

    if (gs == NULL)
        return;
    mtx_lock(&gs->lock);
    idle = end_locked(gs, g);
    if (g->prev_next != NULL) {
        *g->prev_next = g->next;
        if (g->next != NULL)
            g->next->prev_next = g->prev_next;
        g->next = NULL;
        g->prev_next = NULL;
    }
    mtx_unlock(&gs->lock);
    report_idle(gs, idle);
}

uint64_t generations_draw_line(struct generations *gs)
{
    uint64_t line;

    if (gs == NULL)
        return 0;
    mtx_lock(&gs->lock);
    line = arrivals_draw_line(&gs->arrivals);
    mtx_unlock(&gs->lock);
    return line;
}

static struct arrivals read_arrivals(struct generations *gs)
{
    struct arrivals a = {0};

    if (gs == NULL)
        return a;
    mtx_lock(&gs->lock);
    a = gs->arrivals;
    mtx_unlock(&gs->lock);
    return a;
}

size_t generations_n_before(struct generations *gs)
{
    return read_arrivals(gs).n_before;
}

size_t generations_n(struct generations *gs)
{
    struct arrivals a = read_arrivals(gs);

    return a.n_before + a.n_since;
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Those of which arrivals_abort_before or arrivals_abort_all has been told. */
static uint32_t abort_told_locked(struct generations *gs)
{
    uint32_t n = 0;

    for (struct generations_entry *g = gs->first; g != NULL; g = g->next)
        if (arrivals_aborted(&gs->arrivals, g->arrival))
            n += g->ops->abort(g->arg) ? 1 : 0;
    return n;
}

static uint32_t abort_named(struct generations *gs, const char **ids, size_t n_ids)
{
    uint32_t n = 0;

    qsort(ids, n_ids, sizeof *ids, by_text);
    mtx_lock(&gs->lock);
    for (struct generations_entry *g = gs->first; g != NULL; g = g->next)
        n += g->ops->abort_named(g->arg, ids, n_ids);
    mtx_unlock(&gs->lock);
    return n;
}

uint32_t generations_abort(struct generations *gs, const char **ids, size_t n_ids)
{
    uint32_t n;
    bool idle;

    if (gs == NULL)
        return 0;
    if (ids != NULL)
        return abort_named(gs, ids, n_ids);
    mtx_lock(&gs->lock);
    idle = arrivals_abort_all(&gs->arrivals);
    n = abort_told_locked(gs);
    mtx_unlock(&gs->lock);
    report_idle(gs, idle);
    return n;
}

uint32_t generations_abort_before(struct generations *gs)
{
    uint32_t n;
    bool idle;

    if (gs == NULL)
        return 0;
    mtx_lock(&gs->lock);
    idle = arrivals_abort_before(&gs->arrivals);
    n = abort_told_locked(gs);
    mtx_unlock(&gs->lock);
    report_idle(gs, idle);
    return n;
}

size_t generations_list(struct generations *gs, struct generations_row *rows, size_t cap)
{
    size_t n = 0;

    if (gs == NULL)
        return 0;
    mtx_lock(&gs->lock);
    for (struct generations_entry *g = gs->first; g != NULL; g = g->next)
        n += g->ops->list(g->arg, n < cap ? rows + n : NULL, n < cap ? cap - n : 0);
    mtx_unlock(&gs->lock);
    return n;
}

void generations_rows_fini(struct generations_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < rows[i].n_spans; k++)
            version_label_unref(rows[i].spans[k].name);
}

void generations_cut(struct generations *gs)
{
    if (gs == NULL)
        return;
    mtx_lock(&gs->lock);
    for (struct generations_entry *g = gs->first; g != NULL; g = g->next)
        g->ops->cut(g->arg);
    mtx_unlock(&gs->lock);
}

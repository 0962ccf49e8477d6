/* An intrusive list under one lock. A generation is removed when it is freed, so a thread that
 * walks the list may access every entry. */
#include "control/generations.h"

#include "base/mtx.h"
#include "weights/version_label.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct generations {
    struct mtx lock; /* rank MTX_GENERATIONS; guards down to the end */
    struct generations_entry *first;
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

void generations_add(struct generations *gs, struct generations_entry *g)
{
    if (gs == NULL)
        return;
    mtx_lock(&gs->lock);
    g->next = gs->first;
    g->prev_next = &gs->first;
    if (gs->first != NULL)
        gs->first->prev_next = &g->next;
    gs->first = g;
    mtx_unlock(&gs->lock);
}

void generations_remove(struct generations *gs, struct generations_entry *g)
{
    if (gs == NULL)
        return;
    mtx_lock(&gs->lock);
    if (g->prev_next != NULL) {
        *g->prev_next = g->next;
        if (g->next != NULL)
            g->next->prev_next = g->prev_next;
        g->next = NULL;
        g->prev_next = NULL;
    }
    mtx_unlock(&gs->lock);
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

uint32_t generations_abort(struct generations *gs, const char **ids, size_t n_ids)
{
    uint32_t n = 0;

    if (gs == NULL)
        return 0;
    if (ids != NULL)
        qsort(ids, n_ids, sizeof *ids, by_text);
    mtx_lock(&gs->lock);
    for (struct generations_entry *g = gs->first; g != NULL; g = g->next)
        n += ids != NULL ? g->ops->abort_named(g->arg, ids, n_ids) : g->ops->abort(g->arg) ? 1 : 0;
    mtx_unlock(&gs->lock);
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

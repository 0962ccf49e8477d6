/* Unpinning for readers that must not wait for memory to be freed: another thread frees it. */
#include "weights/store/store_priv.h"

#include <assert.h>

void store_pin_again(struct store *s, const struct version *v)
{
    struct version_owned *o = (struct version_owned *)(uintptr_t)v;

    mtx_lock(&s->lock);
    assert(o->refs > 0);
    o->refs++;
    mtx_unlock(&s->lock);
}

bool store_unpin_deferred(struct store *s, const struct version *v)
{
    struct version_owned *o = (struct version_owned *)(uintptr_t)v;
    bool last;

    mtx_lock(&s->lock);
    assert(o->refs > 0);
    last = --o->refs == 0;
    if (last) {
        o->next_retired = s->retired;
        s->retired = o;
    } else if (o == s->current) {
        cnd_broadcast(&s->changed);
    }
    mtx_unlock(&s->lock);
    return last;
}

void store_reap(struct store *s)
{
    struct version_owned *v, *next;
    uint32_t n = 0;

    mtx_lock(&s->lock);
    v = s->retired;
    s->retired = NULL;
    mtx_unlock(&s->lock);
    for (; v != NULL; v = next, n++) {
        next = v->next_retired;
        version_free(v);
    }
    mtx_lock(&s->lock);
    s->n_live -= n;
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
}

/* One state, which one request at a time has. */
#include "weights/delta/pull_chain.h"

#include "base/mtx.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct pull_chain {
    struct mtx lock; /* rank MTX_LEAF; guards down to the end */
    bool taken;
    struct pull_state state;
};

int pull_chain_new(struct pull_chain **out, struct err *e)
{
    struct pull_chain *c = calloc(1, sizeof *c);

    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the state of pulls");
    mtx_init(&c->lock, MTX_LEAF);
    c->state.version = c->state.ended = c->state.pulled = PULL_NO_VERSION;
    *out = c;
    return 0;
}

void pull_chain_free(struct pull_chain *c)
{
    if (c == NULL)
        return;
    mtx_fini(&c->lock);
    free(c);
}

static bool place_is_named(const struct pull_place *p, const char *name)
{
    return p->name[0] != '\0' && strcmp(p->name, name) == 0;
}

bool pull_chain_is_named(struct pull_chain *c, const char *name, uint64_t serial)
{
    mtx_auto held = mtx_hold(&c->lock);
    const struct pull_state *s = &c->state;

    (void)held;
    return (s->pulled != PULL_NO_VERSION && place_is_named(&s->pulled_place, name)) ||
           (s->version != PULL_NO_VERSION && s->serial == serial &&
            place_is_named(&s->place, name));
}

int pull_chain_take(struct pull_chain *c, struct pull_state *out, struct err *e)
{
    mtx_auto held = mtx_hold(&c->lock);

    (void)held;
    if (c->taken)
        return err_set(e, ERR_CONFLICT, "", "a pull or its commit is under way");
    c->taken = true;
    *out = c->state;
    return 0;
}

void pull_chain_put(struct pull_chain *c, const struct pull_state *state)
{
    mtx_auto held = mtx_hold(&c->lock);

    (void)held;
    assert(c->taken);
    c->taken = false;
    c->state = *state;
}

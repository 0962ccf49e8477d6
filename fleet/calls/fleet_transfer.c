/* Several groups exist at SGLang engines only; a group of any other engine replaces the one before.
 */
#include "fleet/calls/fleet_transfer.h"

#include "fleet/calls/fleet_priv.h"

#include <assert.h>
#include <string.h>

static bool fleet_transfer_is_named(const struct fleet_group *g, const char *name)
{
    return strcmp(g->name, name) == 0 ||
           (g->name[0] == '\0' && strcmp(name, SGLANG_GROUP_NAME) == 0);
}

struct fleet_group *fleet_any_group_locked(struct fleet_control *fc, const char *name)
{
    struct fleet_transfer *t = &fc->transfer;

    if (name == NULL)
        return t->n_groups > 0 ? &t->groups[t->n_groups - 1] : NULL;
    for (size_t i = 0; i < t->n_groups; i++)
        if (fleet_transfer_is_named(&t->groups[i], name))
            return &t->groups[i];
    return NULL;
}

struct fleet_group *fleet_group_locked(struct fleet_control *fc, const char *name)
{
    struct fleet_transfer *t = &fc->transfer;

    for (size_t i = t->n_groups; i-- > 0;)
        if (!t->groups[i].left && (name == NULL || fleet_transfer_is_named(&t->groups[i], name)))
            return &t->groups[i];
    return NULL;
}

struct fleet_group *fleet_group_since_locked(struct fleet_control *fc, uint64_t began_us)
{
    struct fleet_transfer *t = &fc->transfer;

    for (size_t i = 0; i < t->n_groups; i++)
        if (t->groups[i].began_us == began_us)
            return &t->groups[i];
    return NULL;
}

/* An SGLang process ends when it is asked to receive by a group that it has not joined. */
int fleet_require_group_locked(struct fleet_control *fc, const char *name, struct fleet_group **out,
                               struct err *e)
{
    *out = fleet_any_group_locked(fc, name);
    if (*out != NULL && (*out)->left)
        return err_set(e, ERR_GROUP_LEFT, "/transport",
                       FLEET_GROUP_REFUSED ", so nothing is received by its group any more: join a "
                                           "new group");
    if (*out != NULL)
        return 0;
    if (fc->transfer.n_groups == 0)
        return err_set(e, ERR_CONFLICT, "/transport",
                       "there is no group to receive from; POST /v1/weight_transfer/init joins "
                       "the upstreams to one");
    return err_set(e, ERR_CONFLICT, "/group_name",
                   "the group's name is '%.100s', not '%.100s': join it under the name that its "
                   "updates have",
                   fleet_any_group_locked(fc, NULL)->name, name);
}

int fleet_require_group(struct fleet_control *fc, const char *name, struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct fleet_group *g;

    return fleet_require_group_locked(fc, name, &g, e);
}

/* @out  zeroed if there is none */
static bool copy_group(struct fleet_group *out, const struct fleet_group *g)
{
    *out = g != NULL ? *g : (struct fleet_group){0};
    out->list = NULL;
    return g != NULL;
}

bool fleet_get_group(struct fleet_control *fc, const char *name, struct fleet_group *out)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return copy_group(out, fleet_group_locked(fc, name));
}

static const struct fleet_group_member *transfer_find_member(const struct fleet_group *g,
                                                             const struct upstream *upstream)
{
    for (size_t i = 0; i < g->n_members; i++)
        if (g->members[i].number == upstream_number(upstream))
            return &g->members[i];
    return NULL;
}

struct fleet_group_member *fleet_group_member_of(struct fleet_group *g,
                                                 const struct upstream *upstream)
{
    const struct fleet_group_member *m = transfer_find_member(g, upstream);

    return m != NULL ? &g->members[m - g->members] : NULL;
}

bool fleet_group_has(struct fleet_control *fc, const struct fleet_group *g,
                     struct upstream *upstream)
{
    const struct fleet_group_member *m = transfer_find_member(g, upstream);
    struct upstream_info info;

    if (m == NULL)
        return false;
    fleet_info(fleet_of(fc), upstream, &info);
    return info.incarnation == m->incarnation;
}

void fleet_get_handles(struct fleet_control *fc, struct fleet_handles *out)
{
    mtx_lock(&fc->lock);
    *out = fc->transfer.handles;
    mtx_unlock(&fc->lock);
}

static void fleet_transfer_forget_locked(struct fleet_transfer *t, struct fleet_group *g)
{
    struct fleet_group *end = &t->groups[t->n_groups--];

    api_object_unref(g->list);
    memmove(g, g + 1, (size_t)(end - (g + 1)) * sizeof *g);
}

void fleet_add_group(struct fleet_control *fc, const struct fleet_group *g)
{
    struct fleet_transfer *t = &fc->transfer;

    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    if (t->n_groups == FLEET_GROUPS_MAX)
        fleet_transfer_forget_locked(t, &t->groups[0]);
    t->groups[t->n_groups++] = *g;
    mtx_unlock(&fc->lock);
}

bool fleet_forget_group(struct fleet_control *fc, const char *name, struct fleet_group *out)
{
    struct fleet_group *g;
    bool more;

    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    g = fleet_any_group_locked(fc, name);
    if (out != NULL)
        (void)copy_group(out, g);
    if (g != NULL)
        fleet_transfer_forget_locked(&fc->transfer, g);
    more = fc->transfer.n_groups > 0;
    mtx_unlock(&fc->lock);
    return more;
}

void fleet_transfer_clear(struct fleet_transfer *t)
{
    while (t->n_groups > 0)
        fleet_transfer_forget_locked(t, &t->groups[t->n_groups - 1]);
}

void fleet_forget_groups(struct fleet_control *fc)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    fleet_transfer_clear(&fc->transfer);
    mtx_unlock(&fc->lock);
}

void fleet_set_handles(struct fleet_control *fc, const struct fleet_handles *handles)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    fc->transfer.handles = handles != NULL ? *handles : (struct fleet_handles){0};
    mtx_unlock(&fc->lock);
}

void fleet_keep_list(struct fleet_control *fc, struct api_object *list, uint64_t began_us)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct fleet_group *g = fleet_group_since_locked(fc, began_us);

    if (g == NULL)
        return;
    api_object_unref(g->list);
    g->list = api_object_ref(list);
}

struct api_object *fleet_group_list(struct fleet_control *fc, const char *name)
{
    mtx_auto held = mtx_hold(&fc->lock);
    const struct fleet_group *g = fleet_group_locked(fc, name);

    return g != NULL ? api_object_ref(g->list) : NULL;
}

int fleet_check_group_name(struct fleet_control *fc, const char *name, struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (name == NULL || fc->transfer.n_groups == 0 || fleet_any_group_locked(fc, name) != NULL)
        return 0;
    return err_set(e, ERR_NOT_FOUND, "/group_name", "the group's name is '%.100s', not '%.100s'",
                   fleet_any_group_locked(fc, NULL)->name, name);
}

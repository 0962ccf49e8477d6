/* The way from one version to another: which versions, and what they change. */
#include "weights/delta/pull_priv.h"

#include "base/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void version_fini(struct pull_version *v)
{
    free(v->changes);
    free(v->of);
}

void pull_close(struct pull *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->n_versions; i++)
        version_fini(&p->versions[i]);
    for (uint32_t i = 0; i < p->n_files; i++)
        (void)close(p->files[i].fd);
    free(p->versions);
    free(p->files);
    free(p->index);
    tensor_list_unref(p->list);
    free(p);
}

static int read_version(struct pull *p, uint64_t number, struct err *e)
{
    static int (*const readers[PULL_FORM_COUNT])(struct pull *, struct pull_version *,
                                                 struct err *) = {
        [PULL_SLIME] = pull_read_slime, [PULL_SKYRL] = pull_read_skyrl};
    struct pull_version *versions, *v;

    versions = realloc(p->versions, (p->n_versions + 1) * sizeof *versions);
    if (versions == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the versions");
    p->versions = versions;
    v = &versions[p->n_versions++];
    *v = (struct pull_version){.number = number};
    p->reading = number;
    p->nbytes_left = PULL_FETCH_FACTOR * p->cfg.spec->tensor_list->nbytes + PULL_HEADS_NBYTES_MAX;
    return readers[p->cfg.form](p, v, e) == 0 ? 0 : pull_say_version(e, number);
}

static int refuse_too_many(const struct pull_cfg *c, struct err *e)
{
    return err_set(e, ERR_TOO_LARGE, "",
                   "version %llu is served and %llu is wanted: at most %d versions are pulled at "
                   "once, and there is no whole checkpoint among the last of them; pull version "
                   "%llu first",
                   (unsigned long long)c->served, (unsigned long long)c->target,
                   (int)PULL_VERSIONS_MAX, (unsigned long long)c->served + PULL_VERSIONS_MAX);
}

static int refuse_no_base(const struct pull_cfg *c, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "",
                   "it is not known which version is served, and no version up to %llu is a whole "
                   "checkpoint: begin with version 0, which is the model that the server started "
                   "with, or publish a whole checkpoint",
                   (unsigned long long)c->target);
}

/* Reads the versions from the target on downwards, to one that needs none before it. */
static int read_versions(struct pull *p, struct err *e)
{
    const struct pull_cfg *c = &p->cfg;
    uint64_t number = c->target;

    if (c->served == c->target)
        return read_version(p, number, e);
    if (c->served != PULL_NO_VERSION && c->served > c->target)
        return err_set(e, ERR_CONFLICT, "",
                       "version %llu is served, which is beyond version %llu: an earlier version "
                       "cannot be pulled; a new run begins with version 0",
                       (unsigned long long)c->served, (unsigned long long)c->target);
    while (c->served == PULL_NO_VERSION || number > c->served) {
        if (c->served == PULL_NO_VERSION && number == 0)
            return refuse_no_base(c, e);
        if (p->n_versions == PULL_VERSIONS_MAX)
            return c->served == PULL_NO_VERSION ? refuse_no_base(c, e) : refuse_too_many(c, e);
        if (read_version(p, number, e) != 0)
            return -1;
        if (p->versions[p->n_versions - 1].whole)
            break;
        number--;
    }
    for (uint32_t i = 0; i < p->n_versions / 2; i++) {
        struct pull_version v = p->versions[i];

        p->versions[i] = p->versions[p->n_versions - 1 - i];
        p->versions[p->n_versions - 1 - i] = v;
    }
    return 0;
}

/* The list of what changes. */
static int make_list(struct pull *p, struct err *e)
{
    const struct tensor_list *all = p->cfg.spec->tensor_list;
    struct tensor_list_builder *b;
    uint32_t n = 0;

    p->index = malloc((size_t)all->n_tensors * sizeof *p->index);
    if (p->index == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a list of tensors");
    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < all->n_tensors; i++) {
        const struct tensor_spec *t = &all->tensors[i];

        if (pull_next(p, i, 0) == PULL_NO_CHANGE)
            continue;
        if (tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
        p->index[n++] = i;
    }
    if (n > 0)
        return tensor_list_builder_finish(b, &p->list, e);
    tensor_list_builder_free(b);
    return 0;
}

int pull_open(struct pull **out, const struct pull_cfg *cfg, struct err *e)
{
    struct pull *p = calloc(1, sizeof *p);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a pull");
    p->cfg = *cfg;
    p->nbytes_all_left = PULL_FETCH_ALL_FACTOR * cfg->spec->tensor_list->nbytes +
                         PULL_HEADS_NBYTES_MAX;
    if (read_versions(p, e) != 0 || make_list(p, e) != 0) {
        pull_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

struct tensor_list *pull_tensors(const struct pull *p)
{
    return p->list;
}

bool pull_is_whole(const struct pull *p)
{
    return p->versions[0].whole;
}

uint32_t pull_n_versions(const struct pull *p)
{
    return p->n_versions;
}

/* A flag for each tensor of the model, and a tensor list of all names that were sent. */
#include "weights/tally.h"

#include "base/utf8.h"
#include "weights/update/update_priv.h"

#include <stdio.h>
#include <stdlib.h>

struct tally {
    const struct model_spec *model_spec; /* borrowed; NULL: not known */
    bool *has;                        /* owned; [n_tensors] of the model spec; NULL without one */
    uint32_t n_missing;               /* number of false elements */
    uint32_t first;                   /* all before this one were sent */
    struct tensor_list_builder *came; /* owned; each name once; NULL after tally_model_spec */
    uint32_t n_came;
    uint32_t n_unknown;               /* of those: names that the model spec does not have */
    char unknown[TALLY_NAME_MAX + 1]; /* the first of them, cut */
};

int tally_new(struct tally **out, const struct model_spec *m, struct err *e)
{
    uint32_t n = m != NULL ? m->tensor_list->n_tensors : 0;
    struct tally *t = calloc(1, sizeof *t);

    if (t != NULL && n > 0)
        t->has = calloc(n, sizeof *t->has);
    if (t == NULL || (n > 0 && t->has == NULL) || tensor_list_builder_new(&t->came, e) != 0) {
        tally_free(t);
        err_clear(e);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to count %u tensors", n);
    }
    t->model_spec = m;
    t->n_missing = n;
    *out = t;
    return 0;
}

void tally_free(struct tally *t)
{
    if (t == NULL)
        return;
    tensor_list_builder_free(t->came);
    free(t->has);
    free(t);
}

static int refuse_again(const char *name, uint32_t i, struct err *e)
{
    char field[48];

    (void)snprintf(field, sizeof field, "/names/%u", i);
    return err_set(e, ERR_PRECONDITION, field, "'%.*s' was already sent in this update",
                   utf8_cut_name(name), name);
}

int tally_check(const struct tally *t, const struct tensor_list *list, bool shapes, bool once,
                struct err *e)
{
    struct model_spec_match match = {.index = TENSOR_LIST_NO_TENSOR};

    for (uint32_t i = 0; i < list->n_tensors; i++) {
        const struct tensor_spec *one = &list->tensors[i];

        if (once && tensor_list_builder_find(t->came, one->name) != TENSOR_LIST_NO_TENSOR)
            return refuse_again(one->name, i, e);
        if (shapes && t->model_spec != NULL &&
            model_spec_find(t->model_spec, &match, one->name, &match) &&
            model_spec_check_shape(t->model_spec, &match, one, i, e) != 0)
            return -1;
    }
    return 0;
}

static void tally_mark(struct tally *t, const struct model_spec_match *match)
{
    uint32_t n;
    const uint32_t *targets = match_targets(match, &n);

    for (uint32_t k = 0; k < n; k++) {
        t->n_missing -= !t->has[targets[k]];
        t->has[targets[k]] = true;
    }
}

int tally_add(struct tally *t, const struct tensor_list *list, struct err *e)
{
    struct model_spec_match match = {.index = TENSOR_LIST_NO_TENSOR};

    for (uint32_t i = 0; i < list->n_tensors; i++) {
        const struct tensor_spec *one = &list->tensors[i];

        bool known = t->model_spec == NULL ||
                     model_spec_find(t->model_spec, &match, one->name, &match);

        if (t->model_spec != NULL && known)
            tally_mark(t, &match);
        if (tensor_list_builder_find(t->came, one->name) != TENSOR_LIST_NO_TENSOR)
            continue;
        if (tensor_list_builder_add(t->came, one->name, one->dtype, one->shape, one->ndim,
                                    UINT64_MAX, e) != 0)
            return -1;
        t->n_came++;
        if (!known && t->n_unknown++ == 0)
            (void)snprintf(t->unknown, sizeof t->unknown, "%.*s",
                           utf8_cut(one->name, TALLY_NAME_MAX), one->name);
    }
    while (t->n_missing > 0 && t->has[t->first])
        t->first++;
    return 0;
}

uint32_t tally_n_sent(const struct tally *t)
{
    return t->n_came;
}

uint32_t tally_unknown(const struct tally *t, const char **name)
{
    *name = t->unknown;
    return t->n_unknown;
}

const char *tally_lacks(const struct tally *t, const struct tensor_list *list)
{
    for (uint32_t i = 0; i < list->n_tensors; i++)
        if (tensor_list_builder_find(t->came, list->tensors[i].name) == TENSOR_LIST_NO_TENSOR)
            return list->tensors[i].name;
    return NULL;
}

uint32_t tally_missing(const struct tally *t, const char **out, uint32_t cap)
{
    uint32_t n = 0;

    for (uint32_t i = t->first; n < t->n_missing && n < cap; i++)
        if (!t->has[i])
            out[n++] = t->model_spec->tensor_list->tensors[i].name;
    return t->n_missing;
}

int tally_model_spec(struct model_spec **out, struct tally *t, struct err *e)
{
    struct tensor_list_builder *came = t->came;
    struct tensor_list *tensor_list;

    t->came = NULL;
    if (tensor_list_builder_finish(came, &tensor_list, e) != 0)
        return -1;
    return model_spec_new(out, tensor_list, NULL, 0, e);
}

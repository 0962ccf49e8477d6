/* Is the model that a run begins with the one that is served? Deltas say nothing of the tensors
 * that they do not change, so all bytes are compared once. */
#include "weights/delta/pull.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct base_check {
    struct store *store;
    const struct version *v;
    const struct model_spec *spec;
    struct progress *progress;
    bool *seen;          /* owned; [tensors of the spec] */
    char *sent, *served; /* owned; of the tensor's size; `served` of a piece's */
    uint64_t nbytes;     /* of `sent` */
};

static int base_refuse(const char *name, struct err *e)
{
    return err_set(e, ERR_PRECONDITION, "",
                   "tensor '%.*s' that is served is not the base model's: serve that first (start "
                   "the server with it, or send it as a whole update)",
                   utf8_cut_name(name), name);
}

static int base_compare_target(struct base_check *b, uint32_t index, const char *bytes,
                               struct err *e)
{
    const struct tensor_spec *t = &b->spec->tensor_list->tensors[index];

    for (uint64_t at = 0, n; at < t->nbytes; at += n) {
        n = t->nbytes - at < SOURCE_PIECE_NBYTES ? t->nbytes - at : SOURCE_PIECE_NBYTES;
        if (progress_check(b->progress, e) != 0 ||
            store_read(b->store, b->v, index, at, n, b->served, e) != 0)
            return -1;
        if (memcmp(b->served, bytes + at, n) != 0)
            return base_refuse(t->name, e);
    }
    b->seen[index] = true;
    return 0;
}

/* One incoming tensor may be several here. */
static int base_compare_tensor(struct base_check *b, struct source *source,
                               const struct tensor_list *list, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &list->tensors[i];
    struct model_spec_match m = {.index = TENSOR_LIST_NO_TENSOR};
    const uint32_t *targets = &m.index;
    uint32_t n = 1;
    char *grown;

    if (model_spec_match(b->spec, t, false, i, &m, e) != 0)
        return -1;
    if (t->nbytes > b->nbytes) {
        grown = realloc(b->sent, t->nbytes);
        if (grown == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory to compare the base model");
        b->sent = grown;
        b->nbytes = t->nbytes;
    }
    if (source->ops->fill(source, list, i, 1, b->sent, b->progress, e) != 0)
        return -1;
    if (m.alias != NULL) {
        targets = m.alias->targets;
        n = m.alias->n_targets; /* 0: ignored */
    }
    for (uint64_t k = 0, at = 0; k < n; k++) {
        if (base_compare_target(b, targets[k], b->sent + at, e) != 0)
            return -1;
        at += b->spec->tensor_list->tensors[targets[k]].nbytes;
    }
    return 0;
}

static int base_compare_all(struct base_check *b, struct source *source,
                            const struct tensor_list *list, struct err *e)
{
    const struct tensor_list *all = b->spec->tensor_list;

    for (uint32_t i = 0; i < list->n_tensors; i++)
        if (base_compare_tensor(b, source, list, i, e) != 0)
            return -1;
    for (uint32_t i = 0; i < all->n_tensors; i++)
        if (!b->seen[i])
            return err_set(e, ERR_PRECONDITION, "", "the base model has no tensor '%.*s'",
                           utf8_cut_name(all->tensors[i].name), all->tensors[i].name);
    return source->ops->finish != NULL ? source->ops->finish(source, b->progress, e) : 0;
}

int pull_base_check(struct source *source, const struct tensor_list *list, struct store *store,
                    const struct version *v, struct progress *progress, struct err *e)
{
    struct base_check b = {
        .store = store, .v = v, .spec = store_model_spec(store), .progress = progress};
    int rc;

    b.seen = calloc(b.spec->tensor_list->n_tensors, sizeof *b.seen);
    b.served = malloc(SOURCE_PIECE_NBYTES);
    if (b.seen != NULL && b.served != NULL)
        rc = base_compare_all(&b, source, list, e);
    else
        rc = err_set(e, ERR_NO_MEMORY, "", "no memory to compare the base model");
    free(b.seen);
    free(b.sent);
    free(b.served);
    return rc;
}

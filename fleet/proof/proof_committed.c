#include "fleet/proof/proof_committed.h"

#include "fleet/proof/tensor_digest.h"
#include "weights/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SOURCE_PIECE_NBYTES % TENSOR_DIGEST_TILE == 0, "tensor_digest_add takes pieces");

/* One tensor. */
struct digests {
    char text[TENSOR_DIGESTS][TENSOR_DIGEST_TEXT_MAX + 1]; /* "": not made yet */
    bool repeats; /* with text: its bytes repeat one word */
};

struct proof_committed {
    struct store *store;
    const atomic_bool *stop; /* relaxed: looked at again and again */
    char commit_id[ID_LEN + 1];
    struct digests *list; /* [n_tensors], of this commit; owned */
    char *piece;          /* [SOURCE_PIECE_NBYTES]; owned */
};

int proof_committed_new(struct proof_committed **out, struct store *store, const atomic_bool *stop,
                        struct err *e)
{
    struct proof_committed *c = calloc(1, sizeof *c);

    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to prove the upstreams");
    c->store = store;
    c->stop = stop;
    *out = c;
    return 0;
}

void proof_committed_free(struct proof_committed *c)
{
    if (c == NULL)
        return;
    free(c->list);
    free(c->piece);
    free(c);
}

/* Memory is taken at the first comparison: most servers make none. */
static int proof_committed_begin(struct proof_committed *c, const struct version *v, struct err *e)
{
    size_t n = store_model_spec(c->store)->tensor_list->n_tensors;

    if (c->list == NULL)
        c->list = malloc(n * sizeof *c->list);
    if (c->piece == NULL)
        c->piece = malloc(SOURCE_PIECE_NBYTES);
    if (c->list == NULL || c->piece == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to compare checksums");
    if (strcmp(c->commit_id, v->commit_id) != 0)
        memset(c->list, 0, n * sizeof *c->list);
    (void)snprintf(c->commit_id, sizeof c->commit_id, "%s", v->commit_id);
    return 0;
}

static bool repeats_word(const char *bytes, size_t n)
{
    return n <= 4 || memcmp(bytes, bytes + 4, n - 4) == 0;
}

static int digest(struct proof_committed *c, const struct version *v, uint32_t i,
                  enum tensor_digest_kind kind, struct err *e)
{
    uint64_t nbytes = store_model_spec(c->store)->tensor_list->tensors[i].nbytes, n;
    struct digests *out = &c->list[i];
    struct tensor_digest d;
    bool repeats = true;

    tensor_digest_begin(&d, kind, nbytes);
    for (uint64_t at = 0; at < nbytes; at += n) {
        n = nbytes - at < SOURCE_PIECE_NBYTES ? nbytes - at : SOURCE_PIECE_NBYTES;
        if (atomic_load_explicit(c->stop, memory_order_relaxed) ||
            store_reader_awaited(c->store, v))
            return err_set(e, ERR_CONFLICT, "", "the memory of the version is needed");
        if (store_read(c->store, v, i, at, n, c->piece, e) != 0)
            return -1;
        repeats = repeats && repeats_word(c->piece, n);
        tensor_digest_add(&d, c->piece, n);
    }
    tensor_digest_end(&d, out->text[kind]);
    out->repeats = repeats;
    return 0;
}

static int proof_committed_compare_one(struct proof_committed *c, const struct version *v,
                                       struct proof_sum *sum, enum tensor_digest_kind kind,
                                       struct proof_compared *out, struct err *e)
{
    uint32_t i = tensor_list_find(store_model_spec(c->store)->tensor_list, sum->name);

    sum->equal = false;
    if (i == TENSOR_LIST_NO_TENSOR || !tensor_digest_fits(kind, sum->sum))
        return 0;
    if (c->list[i].text[kind][0] == '\0' && digest(c, v, i, kind, e) != 0)
        return -1;
    sum->equal = tensor_digest_matches(kind, c->list[i].text[kind], sum->sum);
    sum->known = sum->equal && !c->list[i].repeats;
    out->n_checked++;
    out->n_equal += sum->equal;
    return 0;
}

/* A checksum of 64 bits does not say which kind it is: the one by which anything is equal. */
static int compare_all(struct proof_committed *c, const struct version *v, struct proof_sums *sums,
                       struct proof_compared *out, struct err *e)
{
    for (int kind = 0; kind < TENSOR_DIGESTS && out->n_equal == 0; kind++) {
        *out = (struct proof_compared){0};
        for (size_t i = 0; i < sums->n; i++)
            if (proof_committed_compare_one(c, v, &sums->list[i], (enum tensor_digest_kind)kind,
                                            out, e) != 0)
                return -1;
    }
    out->n_different = out->n_checked - out->n_equal;
    return 0;
}

static void proof_compare_with_before(struct proof_committed *c, struct proof_sums *sums,
                                      const struct proof_sums *before, struct proof_compared *out)
{
    const struct tensor_list *list = store_model_spec(c->store)->tensor_list;

    for (size_t i = 0; i < sums->n; i++) {
        struct proof_sum *s = &sums->list[i];
        const struct proof_sum *was = proof_sums_find(before, s->key);

        if (was == NULL || !was->known || tensor_list_find(list, s->name) == TENSOR_LIST_NO_TENSOR)
            continue;
        s->known = true;
        if (!s->equal && out->n_wrong++ == 0)
            (void)snprintf(out->wrong, sizeof out->wrong, "%s", s->name);
    }
}

int proof_committed_compare(struct proof_committed *c, struct proof_sums *sums,
                            const struct proof_sums *before, uint64_t serial,
                            struct proof_compared *out, struct err *e)
{
    struct proof_compared found = {0};
    const struct version *v;
    int rc = -1;

    if (store_pin(c->store, &v, e) != 0)
        return -1;
    if (v->serial != serial)
        (void)err_set(e, ERR_CONFLICT, "", "another version is served here");
    else if (proof_committed_begin(c, v, e) == 0 && compare_all(c, v, sums, &found, e) == 0)
        rc = 0;
    store_unpin(c->store, v);
    if (rc != 0)
        return -1;
    proof_compare_with_before(c, sums, before, &found);
    *out = found;
    return 0;
}

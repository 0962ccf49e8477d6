#include "fleet/proof/proof_sums.h"

#include <stdlib.h>
#include <string.h>

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct proof_sum *)a)->key, ((const struct proof_sum *)b)->key);
}

/* FNV-1a. */
static uint64_t sum_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211U;
    return (hash ^ '\n') * 1099511628211U;
}

static char *end_of(char *text)
{
    return text + strlen(text) + 1;
}

static void proof_sums_fill(struct proof_sums *out, enum upstream_kind kind, size_t len)
{
    for (char *at = out->text; at < out->text + len; at = end_of(end_of(at)))
        out->list[out->n++] = (struct proof_sum){
            .key = at, .name = api_checksum_parameter(kind, at), .sum = end_of(at)};
    qsort(out->list, out->n, sizeof *out->list, by_key);
    out->hash = 14695981039346656037U;
    for (size_t i = 0; i < out->n; i++)
        out->hash = sum_text(sum_text(out->hash, out->list[i].key), out->list[i].sum);
}

struct proof_sums *proof_sums_new(enum upstream_kind kind, struct buf *from)
{
    struct proof_sums *s = calloc(1, sizeof *s);
    size_t len = 0, n = 0;

    if (s == NULL)
        return NULL;
    s->n_refs = 1;
    s->text = buf_take(from, &len);
    for (size_t i = 0; i < len; i++)
        n += s->text[i] == '\0';
    s->list = calloc(n / 2 + 1, sizeof *s->list);
    if (s->list == NULL || s->text == NULL) {
        proof_sums_unref(s);
        return NULL;
    }
    proof_sums_fill(s, kind, len);
    return s;
}

struct proof_sums *proof_sums_ref(struct proof_sums *s)
{
    if (s != NULL)
        s->n_refs++;
    return s;
}

void proof_sums_unref(struct proof_sums *s)
{
    if (s == NULL || --s->n_refs > 0)
        return;
    free(s->list);
    free(s->text);
    free(s);
}

const struct proof_sum *proof_sums_find(const struct proof_sums *s, const char *key)
{
    const struct proof_sum wanted = {.key = key};

    return s != NULL ? bsearch(&wanted, s->list, s->n, sizeof *s->list, by_key) : NULL;
}

double proof_sums_distance(const struct proof_sums *a, const struct proof_sums *b)
{
    size_t n_different = 0;

    if (a->n != b->n)
        return -1;
    for (size_t i = 0; i < a->n; i++) {
        if (strcmp(a->list[i].key, b->list[i].key) != 0)
            return -1;
        n_different += strcmp(a->list[i].sum, b->list[i].sum) != 0;
    }
    return (double)n_different;
}

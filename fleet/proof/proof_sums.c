#include "fleet/proof/proof_sums.h"

#include <stdlib.h>
#include <string.h>

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct proof_sum *)a)->key, ((const struct proof_sum *)b)->key);
}

static size_t text_nbytes(const struct api_checksums *from)
{
    size_t nbytes = 0;

    for (size_t i = 0; i < from->n; i++)
        nbytes += strlen(from->list[i].key) + strlen(from->list[i].sum) + 2;
    return nbytes;
}

/* FNV-1a. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211U;
    return (hash ^ '\n') * 1099511628211U;
}

static const char *copy_text(char **at, const char *text)
{
    char *copy = *at;
    size_t nbytes = strlen(text) + 1;

    memcpy(copy, text, nbytes);
    *at += nbytes;
    return copy;
}

static void fill(struct proof_sums *out, enum upstream_kind kind, const struct api_checksums *from)
{
    char *at = out->text;

    for (size_t i = 0; i < from->n; i++) {
        struct proof_sum *s = &out->list[out->n++];

        s->key = copy_text(&at, from->list[i].key);
        s->name = api_checksum_parameter(kind, s->key);
        s->sum = copy_text(&at, from->list[i].sum);
    }
    qsort(out->list, out->n, sizeof *out->list, by_key);
    out->hash = 14695981039346656037U;
    for (size_t i = 0; i < out->n; i++)
        out->hash = hash_text(hash_text(out->hash, out->list[i].key), out->list[i].sum);
}

struct proof_sums *proof_sums_new(enum upstream_kind kind, const struct api_checksums *from)
{
    struct proof_sums *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->n_refs = 1;
    s->list = calloc(from->n + 1, sizeof *s->list);
    s->text = malloc(text_nbytes(from) + 1);
    if (s->list == NULL || s->text == NULL) {
        proof_sums_unref(s);
        return NULL;
    }
    fill(s, kind, from);
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

/* Abort by id. An id names a whole request, one of its prompts, or one sequence. */
#include "handlers/generate/generation_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* @ids  sorted: comparing many ids with many sequences one by one would hold the lock for seconds
 */
static bool is_one_of(const char *id, const char *const *ids, size_t n_ids)
{
    if (id == NULL)
        return false;
    return bsearch(&id, ids, n_ids, sizeof *ids, compare_text) != NULL;
}

/* Aborts the sequences of prompt I if the rest of the id is "-I". */
static uint32_t abort_prompt(struct generation *g, const char *rest)
{
    unsigned long prompt;
    uint32_t n = 0;
    char *end;

    if (rest[0] != '-' || rest[1] < '0' || rest[1] > '9' || (rest[1] == '0' && rest[2] != '\0'))
        return 0;
    prompt = strtoul(rest + 1, &end, 10);
    if (*end != '\0')
        return 0;
    for (unsigned long i = prompt < g->n_prompts ? prompt * g->params.n : g->n_seqs;
         i < g->n_seqs && g->seqs[i].prompt == prompt; i++)
        n += generation_abort_seq(g, (uint32_t)i) ? 1 : 0;
    return n;
}

/* Index of the first sorted id that is not less than `text`. */
static size_t lower_bound(const char *text, const char *const *ids, size_t n_ids)
{
    size_t low = 0, high = n_ids;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(ids[middle], text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* vLLM's ids: PREFIX-ID names the request, PREFIX-ID-I its prompt I. */
static uint32_t abort_prompts(struct generation *g, const char *const *ids, size_t n_ids)
{
    char id[GENERATION_REQUEST_ID_MAX + 64];
    uint32_t n = 0;
    size_t len;

    if (g->id_prefix == NULL || g->request_id == NULL)
        return 0;
    (void)snprintf(id, sizeof id, "%s%s", g->id_prefix, g->request_id);
    if (is_one_of(id, ids, n_ids))
        return generation_abort(g) ? 1 : 0;
    len = strlen(id);
    for (size_t i = lower_bound(id, ids, n_ids); i < n_ids && strncmp(ids[i], id, len) == 0; i++)
        n += abort_prompt(g, ids[i] + len);
    return n;
}

/* Aborts the sequences that have ids of their own. */
static uint32_t abort_seqs(struct generation *g, const char *const *ids, size_t n_ids)
{
    uint32_t n = 0;

    for (uint32_t i = 0; g->seq_ids != NULL && i < g->n_seqs; i++)
        if (is_one_of(g->seq_ids[i], ids, n_ids))
            n += generation_abort_seq(g, i) ? 1 : 0;
    return n;
}

uint32_t generation_abort_named(void *arg, const char *const *ids, size_t n_ids)
{
    struct generation *g = arg;

    if (is_one_of(g->request_id, ids, n_ids))
        return generation_abort(g) ? 1 : 0;
    return abort_seqs(g, ids, n_ids) + abort_prompts(g, ids, n_ids);
}

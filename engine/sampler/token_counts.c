/* Open addressing, at most half full. Rejected: a counter for each token of the vocabulary, which
 * is half a megabyte for a request that may make sixteen tokens. */
#include "engine/sampler/token_counts.h"

#include "base/id.h"

#include <assert.h>
#include <stdlib.h>

int token_counts_init(struct token_counts *s, uint32_t n_max, struct err *e)
{
    size_t n_slots = 2;

    assert(n_max >= 1 && n_max <= UINT32_MAX / 4);
    while (n_slots < (size_t)n_max * 2)
        n_slots *= 2;
    *s = (struct token_counts){
        .n_max = n_max, .mask = (uint32_t)(n_slots - 1), .key = id_random_u64()};
    s->tokens = malloc(n_max * sizeof *s->tokens);
    s->slots = calloc(n_slots, sizeof *s->slots);
    if (s->tokens != NULL && s->slots != NULL)
        return 0;
    token_counts_fini(s);
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the penalties of %u tokens", n_max);
}

void token_counts_fini(struct token_counts *s)
{
    free(s->tokens);
    free(s->slots);
    *s = (struct token_counts){0};
}

/* SplitMix64's output function. */
static uint64_t token_counts_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

static struct token_count *find_or_add(struct token_counts *s, uint32_t id)
{
    uint32_t at = (uint32_t)token_counts_mix(s->key + id) & s->mask;

    for (; s->slots[at] != 0; at = (at + 1) & s->mask)
        if (s->tokens[s->slots[at] - 1].id == id)
            return &s->tokens[s->slots[at] - 1];
    assert(s->n < s->n_max);
    s->tokens[s->n] = (struct token_count){.id = id};
    s->slots[at] = s->n + 1;
    return &s->tokens[s->n++];
}

void token_counts_add_prompt(struct token_counts *s, uint32_t id)
{
    (void)find_or_add(s, id);
}

void token_counts_add_output(struct token_counts *s, uint32_t id)
{
    find_or_add(s, id)->n_out++;
}

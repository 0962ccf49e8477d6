/* Byte-pair merging of one word, in O(n log n): a heap of candidate pairs over a linked list.
 *
 * A candidate is (rank, position) in one number. It may be stale when it is popped; it still counts
 * if the pair that is there now gives the same token, even by another merge. The Rust crate does
 * so, and with merges "a bc" and "ab c" it decides. Rejected: the plain loop that
 * looks for the best pair again after each merge (a word of 1 MB takes it hours). */
#include "text/tokenizer_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAP_PER_SYMBOL = 2, /* n - 1 candidates at first; a merge takes one and adds two at most */
    SCRATCH_CAP_MIN = 64,
    IDS_CAP_MIN = 64,
    SLOTS_MIN = 16,
};

#define LINK_NONE UINT32_MAX

struct bpe_symbol {
    uint32_t id; /* TOKENIZER_ID_NONE once merged into its left neighbour */
    uint32_t prev, next;
};

int id_list_push(struct id_list *l, uint32_t id, struct err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? IDS_CAP_MIN : 2 * l->cap;
        uint32_t *ids = realloc(l->ids, cap * sizeof *ids);

        if (ids == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu tokens", cap);
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    return 0;
}

static uint64_t tokenizer_bpe_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

static uint64_t hash_bytes(const void *data, size_t len)
{
    const unsigned char *p = data;
    uint64_t h = len;

    for (; len >= 8; p += 8, len -= 8) {
        uint64_t word;

        memcpy(&word, p, sizeof word);
        h = tokenizer_bpe_mix(h ^ word);
    }
    for (size_t i = 0; i < len; i++)
        h = h << 8 ^ p[i] ^ h >> 56;
    return tokenizer_bpe_mix(h);
}

/* Slots for n entries, at most half full. */
static int new_slots(uint32_t **slots, size_t *n_slots, size_t n, struct err *e)
{
    size_t cap = SLOTS_MIN;

    while (cap < 2 * n)
        cap *= 2;
    *slots = calloc(cap, sizeof **slots);
    if (*slots == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a table of %zu slots", cap);
    *n_slots = cap;
    return 0;
}

/* The slot that holds the pair's rank + 1, or the empty one where it belongs. */
static uint32_t *pair_slot(const struct bpe *b, uint32_t left, uint32_t right)
{
    size_t mask = b->n_pair_slots - 1;
    size_t at = tokenizer_bpe_mix((uint64_t)left << 32 | right) & mask;

    for (; b->pair_slots[at] != 0; at = (at + 1) & mask) {
        const struct merge *m = &b->merges[b->pair_slots[at] - 1];

        if (m->left == left && m->right == right)
            break;
    }
    return &b->pair_slots[at];
}

/* What a word is compared with: the spelling, or the bytes that it means. */
static const void *tokenizer_bpe_key_of(const struct bpe *b, const struct token *token, size_t *len)
{
    *len = b->spelled ? token->text_len : token->n_bytes;
    return b->spelled ? (const void *)token->text : token->bytes;
}

/* The slot that holds the word's id + 1, or the empty one where it belongs. */
static uint32_t *word_slot(const struct bpe *b, const struct tokenizer *t, const void *word,
                           size_t len)
{
    size_t mask = b->n_word_slots - 1;
    size_t at = hash_bytes(word, len) & mask;

    for (; b->word_slots[at] != 0; at = (at + 1) & mask) {
        size_t key_len;
        const void *key = tokenizer_bpe_key_of(b, &t->tokens[b->word_slots[at] - 1], &key_len);

        if (key_len == len && memcmp(key, word, len) == 0)
            break;
    }
    return &b->word_slots[at];
}

int bpe_index(struct bpe *b, const struct tokenizer *t, struct err *e)
{
    if (new_slots(&b->pair_slots, &b->n_pair_slots, b->n_merges, e) != 0)
        return -1;
    for (size_t rank = 0; rank < b->n_merges; rank++)
        *pair_slot(b, b->merges[rank].left, b->merges[rank].right) = (uint32_t)rank + 1;
    if (!b->ignore_merges && !b->spelled)
        return 0;
    if (new_slots(&b->word_slots, &b->n_word_slots, t->n_tokens, e) != 0)
        return -1;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        const struct token *token = &t->tokens[id];
        size_t len;
        const void *key = tokenizer_bpe_key_of(b, token, &len);

        if (token->in_model && (b->spelled || token->mapped))
            *word_slot(b, t, key, len) = id + 1;
    }
    return 0;
}

void bpe_fini(struct bpe *b)
{
    free(b->merges);
    free(b->pair_slots);
    free(b->word_slots);
    memset(b, 0, sizeof *b);
}

void bpe_scratch_fini(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    memset(s, 0, sizeof *s);
}

static int scratch_reserve(struct bpe_scratch *s, size_t n, struct err *e)
{
    size_t cap = s->cap < SCRATCH_CAP_MIN ? SCRATCH_CAP_MIN : s->cap;
    uint64_t n_moves = s->n_moves;

    if (n <= s->cap)
        return 0;
    while (cap < n)
        cap *= 2;
    bpe_scratch_fini(s); /* the content is of no use: no realloc */
    s->n_moves = n_moves;
    s->symbols = malloc(cap * sizeof *s->symbols);
    s->heap = malloc(cap * HEAP_PER_SYMBOL * sizeof *s->heap);
    if (s->symbols == NULL || s->heap == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to merge a word of %zu bytes", n);
    s->cap = cap;
    return 0;
}

/* A binary min-heap of numbers, which counts its moves. */
struct heap {
    uint64_t *x;
    size_t n;
    uint64_t n_moves;
};

static void bpe_sift_down(struct heap *h, size_t at)
{
    uint64_t x = h->x[at];

    for (size_t child = 2 * at + 1; child < h->n; child = 2 * at + 1) {
        if (child + 1 < h->n && h->x[child + 1] < h->x[child])
            child++;
        if (h->x[child] >= x)
            break;
        h->x[at] = h->x[child];
        at = child;
        h->n_moves++;
    }
    h->x[at] = x;
    h->n_moves++;
}

static void heap_push(struct heap *h, uint64_t x)
{
    size_t at = h->n++;

    for (; at > 0 && h->x[(at - 1) / 2] > x; at = (at - 1) / 2) {
        h->x[at] = h->x[(at - 1) / 2];
        h->n_moves++;
    }
    h->x[at] = x;
    h->n_moves++;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->x[0];

    h->x[0] = h->x[--h->n];
    bpe_sift_down(h, 0);
    return top;
}

/* The merge of the symbols at `left` and `right` as a candidate; false if they do not merge. */
static bool candidate_add(const struct bpe *b, const struct bpe_symbol *s, uint32_t left,
                          uint32_t right, uint64_t *x)
{
    uint32_t slot;

    if (left == LINK_NONE || right == LINK_NONE)
        return false;
    slot = *pair_slot(b, s[left].id, s[right].id);
    *x = (uint64_t)(slot - 1) << 32 | left;
    return slot != 0;
}

/* One symbol for each byte that has a token; bytes without one become unk, or nothing. */
static size_t split_bytes(const struct bpe *b, struct bpe_symbol *s, const char *word, size_t len)
{
    size_t n = 0;
    bool in_unk = false;

    for (size_t i = 0; i < len; i++) {
        uint32_t id = b->byte_ids[(unsigned char)word[i]];
        bool unk = id == TOKENIZER_ID_NONE;

        if (unk && (b->unk_id == TOKENIZER_ID_NONE || (in_unk && b->fuse_unk)))
            continue;
        in_unk = unk;
        s[n++].id = unk ? b->unk_id : id;
    }
    return n;
}

/* Whether byte fallback has a token for every byte of a character. */
static bool has_bytes(const struct bpe *b, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (b->byte_ids[(unsigned char)text[i]] == TOKENIZER_ID_NONE)
            return false;
    return b->byte_fallback;
}

/* One symbol for each character that has a token, or for each of its bytes. An unk waits for the
 * next symbol that is none: bytes overtake it, as they do in the Rust crate. */
static size_t split_chars(const struct bpe *b, const struct tokenizer *t, struct bpe_symbol *s,
                          const char *word, size_t len)
{
    bool unk_waits = false;
    size_t n = 0;
    uint32_t cp;

    for (size_t at = 0; at < len;) {
        int k = utf8_scan((const unsigned char *)word + at, len - at, &cp);
        uint32_t slot = *word_slot(b, t, word + at, (size_t)k);
        bool bytes = slot == 0 && has_bytes(b, word + at, (size_t)k);

        assert(k > 0); /* words are UTF-8 */
        if (unk_waits && (slot != 0 || (!bytes && !b->fuse_unk)))
            s[n++].id = b->unk_id;
        unk_waits = !bytes && slot == 0 ? b->unk_id != TOKENIZER_ID_NONE : unk_waits && bytes;
        for (int i = 0; bytes && i < k; i++)
            s[n++].id = b->byte_ids[(unsigned char)word[at + (size_t)i]];
        if (slot != 0)
            s[n++].id = slot - 1;
        at += (size_t)k;
    }
    if (unk_waits)
        s[n++].id = b->unk_id;
    return n;
}

static void link_symbols(struct bpe_symbol *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        s[i].prev = i == 0 ? LINK_NONE : (uint32_t)i - 1;
        s[i].next = i + 1 == n ? LINK_NONE : (uint32_t)i + 1;
    }
}

static void first_candidates(const struct bpe *b, const struct bpe_symbol *s, size_t n,
                             struct heap *h)
{
    for (size_t i = 0; i + 1 < n; i++)
        if (candidate_add(b, s, (uint32_t)i, (uint32_t)i + 1, &h->x[h->n]))
            h->n++;
    for (size_t i = h->n / 2; i-- > 0;)
        bpe_sift_down(h, i);
}

/* Merges the symbol at `at` with its right neighbour and pushes the pairs that this makes. */
static void merge_at(const struct bpe *b, struct bpe_symbol *s, uint32_t at, uint32_t result,
                     struct heap *h)
{
    uint32_t right = s[at].next;
    uint64_t x;

    s[at].id = result;
    s[at].next = s[right].next;
    s[right].id = TOKENIZER_ID_NONE;
    if (s[at].next != LINK_NONE)
        s[s[at].next].prev = at;
    if (candidate_add(b, s, s[at].prev, at, &x))
        heap_push(h, x);
    if (candidate_add(b, s, at, s[at].next, &x))
        heap_push(h, x);
}

static void bpe_merge_all(const struct bpe *b, struct bpe_symbol *s, size_t n, struct heap *h)
{
    first_candidates(b, s, n, h);
    while (h->n > 0) {
        uint64_t top = heap_pop(h);
        uint32_t at = (uint32_t)top, result = b->merges[top >> 32].result;
        uint64_t now;

        if (s[at].id != TOKENIZER_ID_NONE && candidate_add(b, s, at, s[at].next, &now) &&
            b->merges[now >> 32].result == result)
            merge_at(b, s, at, result, h);
    }
}

int bpe_word(const struct bpe *b, const struct tokenizer *t, const char *word, size_t len,
             struct bpe_scratch *scratch, struct id_list *out, struct err *e)
{
    struct heap heap;
    size_t n;

    if (b->ignore_merges) {
        uint32_t slot = *word_slot(b, t, word, len);

        if (slot != 0)
            return id_list_push(out, slot - 1, e);
    }
    assert(len < LINK_NONE);
    if (scratch_reserve(scratch, len, e) != 0)
        return -1;
    n = b->spelled ? split_chars(b, t, scratch->symbols, word, len)
                   : split_bytes(b, scratch->symbols, word, len);
    link_symbols(scratch->symbols, n);
    heap = (struct heap){.x = scratch->heap};
    bpe_merge_all(b, scratch->symbols, n, &heap);
    scratch->n_moves += heap.n_moves;
    for (uint32_t i = 0; n > 0 && i != LINK_NONE; i = scratch->symbols[i].next)
        if (id_list_push(out, scratch->symbols[i].id, e) != 0)
            return -1;
    return 0;
}

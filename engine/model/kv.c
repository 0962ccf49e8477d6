/* The pool is one anonymous mapping cut into chunks, and a stack of the free ones: the chunk that
 * was freed last is taken first, because its pages exist.
 *
 * What can be found is a tree: a chunk is a child of the one before it in its sequence. It is found
 * by its parent and its first token, and the tokens themselves are compared. Whoever uses a chunk
 * uses all those before it, so a parent is not unused before its children, and gets behind them
 * into the list of unused chunks: the first of that list never has a child. */
#include "engine/model/kv.h"

#include "weights/model/model_config.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KV_PAGES_LOOKED_AT = 4096 }; /* at a time */

#define NO_CHUNK UINT32_MAX

struct chunk {
    uint32_t n_users;      /* sequences that have it */
    uint32_t n_told;       /* first positions whose tokens are known; 0: it is not in the tree */
    uint32_t parent;       /* NO_CHUNK: it is the first of its sequence */
    uint32_t next;         /* in its bucket */
    uint32_t older, newer; /* in the list of unused ones */
    struct kv_key key;
    uint32_t tokens[KV_CHUNK];
};

struct kv_pool {
    float *base; /* owned; mapped */
    uint64_t nbytes;
    uint64_t chunk_numel; /* floats of one chunk */
    uint64_t layer_numel; /* of one layer in it */
    uint32_t n_kv_heads, k_dim, v_dim;
    uint32_t n_chunks;
    uint32_t n_free;
    uint32_t *free_chunks; /* owned; a stack of n_free */
    bool released;

    struct chunk *chunks;    /* owned; [n_chunks] */
    uint32_t *buckets;       /* owned; [n_chunks]: first chunk with that hash */
    uint32_t n_unused;       /* in the tree, of no sequence */
    uint32_t oldest, newest; /* of these */
    uint64_t serial;         /* unused KV of other versions is not kept */
    uint64_t epoch;          /* 1, and one more for each kv_pool_forget */
};

int kv_pool_new(struct kv_pool **out, const struct model_config *cfg, uint64_t nbytes_max,
                struct err *e)
{
    struct kv_pool *p = calloc(1, sizeof *p);
    uint64_t chunk_nbytes, n_chunks;

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the kv pool");
    p->n_kv_heads = cfg->n_kv_heads;
    p->k_dim = cfg->head_dim;
    p->v_dim = cfg->v_head_dim;
    p->layer_numel = (uint64_t)cfg->n_kv_heads * KV_CHUNK * (p->k_dim + p->v_dim);
    p->chunk_numel = cfg->n_layers * p->layer_numel;
    chunk_nbytes = p->chunk_numel * sizeof(float);
    n_chunks = nbytes_max / chunk_nbytes;
    n_chunks = n_chunks < 1 ? 1 : n_chunks;
    p->n_chunks = n_chunks > UINT32_MAX / KV_CHUNK ? UINT32_MAX / KV_CHUNK : (uint32_t)n_chunks;
    p->nbytes = p->n_chunks * chunk_nbytes;
    p->free_chunks = calloc(p->n_chunks, sizeof *p->free_chunks);
    p->chunks = calloc(p->n_chunks, sizeof *p->chunks);
    p->buckets = calloc(p->n_chunks, sizeof *p->buckets);
    if (p->free_chunks == NULL || p->chunks == NULL || p->buckets == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for a list of %" PRIu32 " kv chunks",
                      p->n_chunks);
        goto err_free;
    }
    p->base = mmap(NULL, p->nbytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->base == MAP_FAILED) {
        (void)err_set_errno(e, ERR_NO_MEMORY, "", errno, "no %" PRIu64 " bytes for the kv pool",
                            p->nbytes);
        goto err_free;
    }
    for (uint32_t i = 0; i < p->n_chunks; i++)
        p->free_chunks[i] = p->n_chunks - 1 - i;
    p->n_free = p->n_chunks;
    p->oldest = p->newest = NO_CHUNK;
    kv_pool_forget(p);
    *out = p;
    return 0;

err_free:
    free(p->buckets);
    free(p->chunks);
    free(p->free_chunks);
    free(p);
    return -1;
}

void kv_pool_free(struct kv_pool *p)
{
    if (p == NULL)
        return;
    assert(p->n_free + p->n_unused == p->n_chunks); /* every sequence has been released */
    (void)munmap(p->base, p->nbytes);
    free(p->buckets);
    free(p->chunks);
    free(p->free_chunks);
    free(p);
}

uint64_t kv_pool_tokens_max(const struct kv_pool *p)
{
    return (uint64_t)p->n_chunks * KV_CHUNK;
}

uint64_t kv_pool_tokens_used(const struct kv_pool *p)
{
    return (uint64_t)(p->n_chunks - p->n_free - p->n_unused) * KV_CHUNK;
}

uint64_t kv_pool_tokens_kept(const struct kv_pool *p)
{
    return (uint64_t)p->n_unused * KV_CHUNK;
}

/* ---- the tree ---- */

static uint32_t *bucket_of(const struct kv_pool *p, const struct kv_key *key, uint32_t parent,
                           uint32_t token)
{
    uint64_t h = key->serial, scope;

    memcpy(&scope, key->scope, sizeof scope);
    h = (h ^ scope) * 0x9e3779b97f4a7c15U;
    h = (h ^ (h >> 29) ^ ((uint64_t)parent << 32) ^ token) * 0x9e3779b97f4a7c15U;
    return &p->buckets[(h >> 32) % p->n_chunks];
}

bool kv_keys_equal(const struct kv_key *a, const struct kv_key *b)
{
    return a->serial == b->serial && memcmp(a->scope, b->scope, sizeof a->scope) == 0;
}

static void tree_add(struct kv_pool *p, uint32_t i)
{
    struct chunk *c = &p->chunks[i];
    uint32_t *bucket = bucket_of(p, &c->key, c->parent, c->tokens[0]);

    c->next = *bucket;
    *bucket = i;
}

static void tree_remove(struct kv_pool *p, uint32_t i)
{
    struct chunk *c = &p->chunks[i];
    uint32_t *at = bucket_of(p, &c->key, c->parent, c->tokens[0]);

    while (*at != i)
        at = &p->chunks[*at].next;
    *at = c->next;
    c->n_told = 0;
}

/* The child of `parent` that has most of the tokens, in their order. *n: how many; 0: NO_CHUNK. */
static uint32_t tree_find(const struct kv_pool *p, const struct kv_key *key, uint32_t parent,
                          const uint32_t *tokens, uint32_t n_tokens, uint32_t *n)
{
    uint32_t best = NO_CHUNK;

    *n = 0;
    if (n_tokens == 0)
        return NO_CHUNK;
    for (uint32_t i = *bucket_of(p, key, parent, tokens[0]); i != NO_CHUNK; i = p->chunks[i].next) {
        const struct chunk *c = &p->chunks[i];
        uint32_t same = 0, max = n_tokens < c->n_told ? n_tokens : c->n_told;

        if (c->parent != parent || !kv_keys_equal(&c->key, key))
            continue;
        while (same < max && c->tokens[same] == tokens[same])
            same++;
        if (same > *n) {
            *n = same;
            best = i;
        }
    }
    return best;
}

/* ---- chunks of no sequence ---- */

static void unused_add(struct kv_pool *p, uint32_t i)
{
    struct chunk *c = &p->chunks[i];

    c->older = p->newest;
    c->newer = NO_CHUNK;
    *(p->newest == NO_CHUNK ? &p->oldest : &p->chunks[p->newest].newer) = i;
    p->newest = i;
    p->n_unused++;
}

static void unused_remove(struct kv_pool *p, uint32_t i)
{
    struct chunk *c = &p->chunks[i];

    *(c->older == NO_CHUNK ? &p->oldest : &p->chunks[c->older].newer) = c->newer;
    *(c->newer == NO_CHUNK ? &p->newest : &p->chunks[c->newer].older) = c->older;
    p->n_unused--;
}

static void unused_drop(struct kv_pool *p, uint32_t i)
{
    unused_remove(p, i);
    tree_remove(p, i);
    p->free_chunks[p->n_free++] = i;
}

void kv_pool_serve(struct kv_pool *p, uint64_t serial)
{
    if (p->serial == serial)
        return;
    p->serial = serial;
    for (uint32_t i = p->oldest, newer; i != NO_CHUNK; i = newer) {
        newer = p->chunks[i].newer;
        if (p->chunks[i].key.serial != serial)
            unused_drop(p, i);
    }
}

void kv_pool_forget(struct kv_pool *p)
{
    while (p->oldest != NO_CHUNK)
        unused_drop(p, p->oldest);
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        p->chunks[i].n_told = 0;
        p->buckets[i] = NO_CHUNK;
    }
    p->epoch++;
}

/* A free chunk; if there is none, the one that was unused longest. There is one. */
static uint32_t chunk_get(struct kv_pool *p)
{
    if (p->n_free == 0)
        unused_drop(p, p->oldest);
    return p->free_chunks[--p->n_free];
}

static void chunk_put(struct kv_pool *p, uint32_t i)
{
    struct chunk *c = &p->chunks[i];

    if (--c->n_users > 0)
        return;
    if (c->n_told > 0 && c->key.serial == p->serial) {
        unused_add(p, i);
        return;
    }
    if (c->n_told > 0)
        tree_remove(p, i);
    p->free_chunks[p->n_free++] = i;
}

/* Bytes of the pool that are resident; 0 where the system does not report them. */
static uint64_t kv_resident_nbytes(const struct kv_pool *p)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), step = page * KV_PAGES_LOOKED_AT, n = 0;
    unsigned char there[KV_PAGES_LOOKED_AT];

    for (uint64_t at = 0; at < p->nbytes; at += step) {
        uint64_t len = p->nbytes - at < step ? p->nbytes - at : step;

        if (mincore((char *)p->base + at, len, there) != 0)
            return 0;
        for (uint64_t i = 0; i < (len + page - 1) / page; i++)
            n += there[i] & 1;
    }
    return n * page;
}

uint64_t kv_pool_release(struct kv_pool *p)
{
    uint64_t before = kv_resident_nbytes(p), after;
    int rc;

    kv_pool_forget(p);
    assert(p->n_free == p->n_chunks);
    p->released = true;
    rc = madvise(p->base, p->nbytes, MADV_DONTNEED);
    assert(rc == 0); /* our own private pages */
    (void)rc;
    after = kv_resident_nbytes(p);
    return before > after ? before - after : 0;
}

void kv_pool_restore(struct kv_pool *p)
{
    p->released = false;
}

static uint32_t chunks_of(uint32_t n_tokens)
{
    return n_tokens / KV_CHUNK + (n_tokens % KV_CHUNK != 0 ? 1 : 0);
}

static uint32_t at_most_chunk(uint32_t n)
{
    return n < KV_CHUNK ? n : KV_CHUNK;
}

bool kv_prepare(struct kv_seq *out, uint32_t n_tokens)
{
    struct kv_seq s = {.n_wanted = chunks_of(n_tokens)};

    s.chunks = calloc(s.n_wanted > 0 ? s.n_wanted : 1, sizeof *s.chunks);
    if (s.chunks == NULL)
        return false;
    *out = s;
    return true;
}

uint32_t kv_find(const struct kv_pool *p, const struct kv_prefix *prefix)
{
    uint32_t parent = NO_CHUNK, at = 0, n;

    do {
        parent = tree_find(p, &prefix->key, parent, prefix->tokens + at,
                           at_most_chunk(prefix->n_tokens - at), &n);
        at += n;
    } while (n == KV_CHUNK);
    return at;
}

/* The first n positions of a chunk: of each head those of one layer are contiguous. */
static void chunk_copy(struct kv_pool *p, uint32_t to, uint32_t from, uint32_t n)
{
    size_t v_at = (size_t)p->n_kv_heads * KV_CHUNK * p->k_dim;

    for (uint64_t at = 0; at < p->chunk_numel; at += p->layer_numel) {
        const float *src = p->base + from * p->chunk_numel + at;
        float *dst = p->base + to * p->chunk_numel + at;

        for (size_t h = 0; h < p->n_kv_heads; h++) {
            size_t k = h * KV_CHUNK * p->k_dim, v = v_at + h * KV_CHUNK * p->v_dim;

            memcpy(dst + k, src + k, (size_t)n * p->k_dim * sizeof *dst);
            memcpy(dst + v, src + v, (size_t)n * p->v_dim * sizeof *dst);
        }
    }
}

/* Lists the full chunks that the prefix finds, without taking them. Returns: how many. */
static uint32_t list_full(struct kv_seq *s, const struct kv_pool *p, const struct kv_prefix *prefix,
                          uint32_t *n_unused)
{
    uint32_t parent = NO_CHUNK, n_full = 0, n;

    *n_unused = 0;
    for (;; n_full++) {
        uint32_t at = n_full * KV_CHUNK;

        parent = tree_find(p, &prefix->key, parent, prefix->tokens + at,
                           at_most_chunk(prefix->n_tokens - at), &n);
        if (n < KV_CHUNK)
            return n_full;
        s->chunks[n_full] = parent;
        *n_unused += p->chunks[parent].n_users == 0;
    }
}

/* Fills the first chunk of its own as far as one in the pool has it. The chunk that is read may be
 * the one that is taken: then all is there already. */
static void take_partly(struct kv_seq *s, struct kv_pool *p, const struct kv_prefix *prefix)
{
    uint32_t parent = s->n_chunks > 0 ? s->chunks[s->n_chunks - 1] : NO_CHUNK, n, from, to;
    const uint32_t *tokens = prefix->tokens + s->n_found;

    from = tree_find(p, &prefix->key, parent, tokens, at_most_chunk(prefix->n_tokens - s->n_found),
                     &n);
    if (from != NO_CHUNK && p->chunks[from].n_users == 0) {
        unused_remove(p, from);
        unused_add(p, from);
    }
    to = chunk_get(p);
    p->chunks[to].n_users = 1;
    s->chunks[s->n_chunks++] = to;
    if (n > 0 && from != to)
        chunk_copy(p, to, from, n);
    for (uint32_t i = 0; i < n; i++)
        kv_tell(s, s->n_found + i, tokens[i]);
    s->n_found += n;
}

bool kv_take(struct kv_seq *s, struct kv_pool *p, const struct kv_prefix *prefix)
{
    uint32_t n_full = 0, n_unused = 0;

    assert(s->n_chunks == 0);
    if (p->released)
        return false;
    if (prefix != NULL)
        n_full = list_full(s, p, prefix, &n_unused);
    if (s->n_wanted - n_full > p->n_free + p->n_unused - n_unused)
        return false;
    s->pool = p;
    for (; s->n_chunks < n_full; s->n_chunks++) {
        uint32_t i = s->chunks[s->n_chunks];

        if (p->chunks[i].n_users++ == 0)
            unused_remove(p, i);
    }
    s->n_found = s->n_told = n_full * KV_CHUNK;
    s->epoch = 0;
    if (prefix != NULL) {
        s->epoch = p->epoch;
        s->key = prefix->key;
        assert(prefix->n_tokens / KV_CHUNK < s->n_wanted);
        take_partly(s, p, prefix);
    }
    while (s->n_chunks < s->n_wanted) {
        uint32_t i = chunk_get(p);

        p->chunks[i].n_users = 1;
        s->chunks[s->n_chunks++] = i;
    }
    return true;
}

void kv_tell(struct kv_seq *s, uint32_t pos, uint32_t token)
{
    uint32_t i = s->chunks[pos / KV_CHUNK], at = pos % KV_CHUNK;
    struct chunk *c = &s->pool->chunks[i];

    if (s->epoch != s->pool->epoch || pos != s->n_told)
        return;
    assert(c->n_users == 1 && c->n_told == at);
    c->tokens[at] = token;
    if (at == 0) {
        c->parent = pos > 0 ? s->chunks[pos / KV_CHUNK - 1] : NO_CHUNK;
        c->key = s->key;
        tree_add(s->pool, i);
    }
    c->n_told++;
    s->n_told++;
}

/* The last ones first: see the list of unused chunks. */
void kv_give_back(struct kv_seq *s)
{
    while (s->n_chunks > 0)
        chunk_put(s->pool, s->chunks[--s->n_chunks]);
}

void kv_release(struct kv_seq *s)
{
    kv_give_back(s);
    free(s->chunks);
    *s = (struct kv_seq){0};
}

/* A layer of the chunk that holds the position. */
static float *kv_layer(const struct kv_seq *s, uint32_t layer, uint32_t kv_head, uint32_t pos)
{
    const struct kv_pool *p = s->pool;

    assert(pos / KV_CHUNK < s->n_chunks && kv_head < p->n_kv_heads);
    return p->base + s->chunks[pos / KV_CHUNK] * p->chunk_numel + layer * p->layer_numel;
}

float *kv_k(const struct kv_seq *s, uint32_t layer, uint32_t kv_head, uint32_t pos)
{
    size_t at = (size_t)kv_head * KV_CHUNK + pos % KV_CHUNK;

    return kv_layer(s, layer, kv_head, pos) + at * s->pool->k_dim;
}

float *kv_v(const struct kv_seq *s, uint32_t layer, uint32_t kv_head, uint32_t pos)
{
    size_t all_k = (size_t)s->pool->n_kv_heads * KV_CHUNK * s->pool->k_dim;
    size_t at = (size_t)kv_head * KV_CHUNK + pos % KV_CHUNK;

    return kv_layer(s, layer, kv_head, pos) + all_k + at * s->pool->v_dim;
}

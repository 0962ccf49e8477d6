/* The pool is one anonymous mapping cut into chunks, and a stack of the free ones: the chunk that
 * was freed last is taken first, because its pages exist. */
#include "engine/model/kv.h"

#include "weights/model/model_config.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KV_PAGES_LOOKED_AT = 4096 }; /* at a time */

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
    if (p->free_chunks == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for a list of %" PRIu32 " kv chunks",
                      p->n_chunks);
        goto err_free;
    }
    p->base = mmap(NULL, p->nbytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->base == MAP_FAILED) {
        (void)err_set_errno(e, ERR_NO_MEMORY, "", errno, "no %" PRIu64 " bytes for the kv pool",
                            p->nbytes);
        goto err_free_list;
    }
    for (uint32_t i = 0; i < p->n_chunks; i++)
        p->free_chunks[i] = p->n_chunks - 1 - i;
    p->n_free = p->n_chunks;
    *out = p;
    return 0;

err_free_list:
    free(p->free_chunks);
err_free:
    free(p);
    return -1;
}

void kv_pool_free(struct kv_pool *p)
{
    if (p == NULL)
        return;
    assert(p->n_free == p->n_chunks); /* every sequence has been released */
    (void)munmap(p->base, p->nbytes);
    free(p->free_chunks);
    free(p);
}

uint64_t kv_pool_tokens_max(const struct kv_pool *p)
{
    return (uint64_t)p->n_chunks * KV_CHUNK;
}

uint64_t kv_pool_tokens_used(const struct kv_pool *p)
{
    return (uint64_t)(p->n_chunks - p->n_free) * KV_CHUNK;
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

bool kv_prepare(struct kv_seq *out, uint32_t n_tokens)
{
    struct kv_seq s = {.n_wanted = chunks_of(n_tokens)};

    s.chunks = calloc(s.n_wanted > 0 ? s.n_wanted : 1, sizeof *s.chunks);
    if (s.chunks == NULL)
        return false;
    *out = s;
    return true;
}

bool kv_take(struct kv_seq *s, struct kv_pool *p)
{
    assert(s->n_chunks == 0);
    if (s->n_wanted > p->n_free || p->released)
        return false;
    s->pool = p;
    while (s->n_chunks < s->n_wanted)
        s->chunks[s->n_chunks++] = p->free_chunks[--p->n_free];
    return true;
}

void kv_give_back(struct kv_seq *s)
{
    while (s->n_chunks > 0)
        s->pool->free_chunks[s->pool->n_free++] = s->chunks[--s->n_chunks];
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

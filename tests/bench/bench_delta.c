/* How close applying a delta comes to copying the same memory: a bf16 model of which one element in
 * 100 changed by one step, as gaps and xor, raw and in zstd frames, against memcpy of the base in
 * the same run. One thread; the best of several rounds. Memory of the results was written before.
 * Usage: bench_delta [MEGABYTES of the model, 200] [changed elements of 10,000, 100] */
#include "base/clock.h"
#include "weights/delta/delta.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { TENSOR_NUMEL = 4 << 20, ROUNDS = 7, ZSTD_LEVEL = 1, UNIT = 2 };
#define TENSOR_NBYTES ((size_t)TENSOR_NUMEL * UNIT)

struct change {
    uint16_t *gaps, *xors; /* owned; [n] */
    char *frames[2];       /* owned; of both */
    size_t nbytes_frames[2];
    size_t n;
};

struct bench {
    size_t n_tensors;
    uint64_t share;        /* changed elements of 10,000 */
    char *base, *out;      /* owned; [n_tensors][TENSOR_NBYTES] */
    struct change *change; /* owned; [n_tensors] */
    struct delta_merge *merge;
    struct tensor_spec t;
};

static uint64_t seed = 88172645463325252U;

static uint64_t random_u64(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void *must(void *memory)
{
    if (memory == NULL) {
        (void)fprintf(stderr, "bench_delta: no memory\n");
        exit(1);
    }
    return memory;
}

static void compress(struct change *c, int k, const void *data, size_t nbytes)
{
    size_t cap = ZSTD_compressBound(nbytes);

    c->frames[k] = must(malloc(cap));
    c->nbytes_frames[k] = ZSTD_compress(c->frames[k], cap, data, nbytes, ZSTD_LEVEL);
}

/* Values as of weights, and a step of one to the next bf16 value, up or down. */
static void make_tensor(const struct bench *b, size_t k)
{
    uint16_t *base = (uint16_t *)(void *)(b->base + k * TENSOR_NBYTES);
    struct change *c = &b->change[k];
    size_t before = 0;

    c->gaps = must(malloc(TENSOR_NBYTES));
    c->xors = must(malloc(TENSOR_NBYTES));
    for (size_t i = 0; i < TENSOR_NUMEL; i++) {
        uint64_t r = random_u64();

        base[i] = (uint16_t)(0x3c00U + (r & 0x83ffU));
        if ((r >> 32) % 10000 >= b->share)
            continue;
        c->gaps[c->n] = (uint16_t)(i - before);
        c->xors[c->n++] = base[i] ^ (uint16_t)(base[i] + ((r >> 20 & 1) != 0 ? 1U : 0xffffU));
        before = i + 1;
    }
    compress(c, 0, c->gaps, c->n * sizeof *c->gaps);
    compress(c, 1, c->xors, c->n * sizeof *c->xors);
}

static double time_copy(const struct bench *b)
{
    uint64_t begin = clock_now_us();

    for (size_t k = 0; k < b->n_tensors; k++) {
        memcpy(b->out + k * TENSOR_NBYTES, b->base + k * TENSOR_NBYTES, TENSOR_NBYTES);
        __asm__ volatile("" : : "r"(b->out) : "memory"); /* the copy is wanted */
    }
    return (double)(clock_now_us() - begin) / 1e6;
}

static double time_apply(const struct bench *b, bool zstd)
{
    const struct delta_part part = {.i = TENSOR_LIST_NO_TENSOR, .zstd = zstd};
    const struct delta_tensor d = {
        .kind = DELTA_GAP, .unit = UNIT, .positions = part, .values = part};
    uint64_t begin = clock_now_us();
    struct err e = {0};

    for (size_t k = 0; k < b->n_tensors; k++) {
        const struct change *c = &b->change[k];
        struct delta_bytes raw[] = {{c->gaps, c->n * UNIT}, {c->xors, c->n * UNIT}};
        struct delta_bytes frames[] = {{c->frames[0], c->nbytes_frames[0]},
                                       {c->frames[1], c->nbytes_frames[1]}};
        const struct delta_bytes *from = zstd ? frames : raw;

        if (delta_apply(b->merge, b->out + k * TENSOR_NBYTES, &b->t, &d,
                        b->base + k * TENSOR_NBYTES, from[0], from[1], &e) != 0) {
            (void)fprintf(stderr, "bench_delta: %s\n", e.msg);
            exit(1);
        }
    }
    return (double)(clock_now_us() - begin) / 1e6;
}

int main(int argc, char **argv)
{
    size_t nbytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 200) * 1000000;
    struct bench b = {.n_tensors = nbytes / TENSOR_NBYTES + 1,
                      .share = argc > 2 ? strtoul(argv[2], NULL, 10) : 100};
    double copy = 1e9, apply[2] = {1e9, 1e9}, total;
    size_t sent[2] = {0, 0};
    struct err e = {0};

    total = (double)(b.n_tensors * TENSOR_NBYTES);
    b.base = must(malloc(b.n_tensors * TENSOR_NBYTES));
    b.out = must(calloc(b.n_tensors, TENSOR_NBYTES));
    b.change = must(calloc(b.n_tensors, sizeof *b.change));
    b.t = (struct tensor_spec){
        .name = "w", .dtype = DTYPE_BF16, .numel = TENSOR_NUMEL, .nbytes = TENSOR_NBYTES};
    if (delta_merge_new(&b.merge, &e) != 0)
        must(NULL);
    for (size_t k = 0; k < b.n_tensors; k++) {
        make_tensor(&b, k);
        sent[0] += 2 * b.change[k].n * UNIT;
        sent[1] += b.change[k].nbytes_frames[0] + b.change[k].nbytes_frames[1];
    }
    for (int round = 0; round < ROUNDS; round++) {
        double s = time_copy(&b);

        copy = s < copy ? s : copy;
        for (int zstd = 0; zstd < 2; zstd++) {
            s = time_apply(&b, zstd != 0);
            apply[zstd] = s < apply[zstd] ? s : apply[zstd];
        }
    }
    printf("model of %.0f MB, %.2f %% of the elements changed: copy %.2f GB/s\n", total / 1e6,
           (double)b.share / 100, total / 1e9 / copy);
    for (int zstd = 0; zstd < 2; zstd++)
        printf("gap, xor %-5s %.2f %% of the bytes, apply %.2f GB/s, %.2f of the copy\n",
               zstd != 0 ? "zstd" : "raw", 100 * (double)sent[zstd] / total,
               total / 1e9 / apply[zstd], copy / apply[zstd]);
    for (size_t k = 0; k < b.n_tensors; k++) {
        free(b.change[k].gaps);
        free(b.change[k].xors);
        free(b.change[k].frames[0]);
        free(b.change[k].frames[1]);
    }
    delta_merge_free(b.merge);
    free(b.change);
    free(b.base);
    free(b.out);
    return 0;
}

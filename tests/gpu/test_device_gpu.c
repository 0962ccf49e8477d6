/* weights/device on a real GPU: what the kernel brings is compared byte by byte and sum by sum with
 * a model in host memory, over thousands of pieces at any alignment; then how fast it is.
 *
 * Exit status: 0 good, 1 not, 77 no GPU (1 with BATON_REQUIRE_GPU=1). Argument: a path of libcuda,
 * and "correct" to leave the measuring out. */
#include "base/clock.h"
#include "driver/cuda_info.h"
#include "memory/device.h"
#include "tests/unit/device_pieces.h"
#include "tests/unit/scatter_cases.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ARENA = 64 << 20,
    ROUNDS = 12,
    PIECES_MAX = 4000,
    SKIPPED = 77,
    CHUNK = 16 << 20,
    ROUNDS_WARM = 3,
    SAMPLES = 20,
    BUCKET = 1 << 30,
    BUCKET_PIECES = 331,
    IN_A_ROW = 8,
    BAD = 500 /* in an arena: of a few pieces each */
};

#define LONG_NBYTES ((4ULL << 30) + (1 << 20) + 3) /* more than 32 bits count */

static struct cuda_info info;
static struct err e;
static struct device *d;

static void need(int rc, const char *what)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "%s: %s\n", what, e.msg[0] != '\0' ? e.msg : "differs");
    exit(1);
}

static struct progress patient(void)
{
    struct progress p = {0};

    p.deadline_us = clock_after_us(60 * 1000000ULL);
    return p;
}

static void copy(const struct device_piece *pieces, uint32_t n, struct device_made *sums)
{
    struct progress p = patient();
    struct device_batch *b;

    need(device_batch_new(d, &b, &e), "device_batch_new");
    need(device_batch_copy(b, pieces, n, sums, &e), "device_batch_copy");
    need(device_batch_wait(b, &p, &e), "device_batch_wait");
    device_batch_free(b);
}

/* Without sums too: that path has loops of its own. */
static uint64_t random_pieces(struct pieces_world *w, int round)
{
    static struct device_piece pieces[PIECES_MAX];
    static struct device_made sums[PIECES_MAX];
    bool summed = round % 3 != 2;
    uint32_t n = pieces_make(w, pieces, PIECES_MAX);

    copy(pieces, n, summed ? sums : NULL);
    for (uint32_t i = 0; summed && i < n; i++) {
        const struct device_piece *p = &pieces[i];

        if (checksum_equal(sums[i].sum, pieces_sum(w, p)) &&
            sums[i].suspect == pieces_suspect(w, p, device_has_kernels(d)))
            continue;
        (void)fprintf(stderr,
                      "piece %u of round %d: src %% 16 = %d, dst %% 128 = %d, %llu bytes, %s\n", i,
                      round, (int)(p->src % 16), (int)(p->dst % 128), (unsigned long long)p->nbytes,
                      p->dtype != DTYPE_NONE ? dtype_name(p->dtype) : "no dtype");
        need(-1, checksum_equal(sums[i].sum, pieces_sum(w, p)) ? "look for NaN" : "sum");
    }
    return n;
}

/* With few numbers that are not finite. */
static void make_finite(struct pieces_world *w)
{
    pieces_fill_finite(w, w->host_src, ARENA, BAD);
    pieces_fill_finite(w, w->host_dst, ARENA, BAD);
    need(device_write(d, w->src, w->host_src, ARENA, &e), "device_write");
    need(device_write(d, w->dst, w->host_dst, ARENA, &e), "device_write");
}

static void test_random_pieces(struct slab_pool *pool)
{
    struct pieces_world w = {0, 0, ARENA, malloc(ARENA), malloc(ARENA), 7};
    unsigned char *back = malloc(ARENA);
    struct slab *src, *dst;
    uint64_t n = 0;

    need(w.host_src == NULL || w.host_dst == NULL || back == NULL, "host memory");
    need(slab_new(&src, pool, ARENA, &e), "slab_new");
    need(slab_new(&dst, pool, ARENA, &e), "slab_new");
    w.src = src->addr;
    w.dst = dst->addr;
    pieces_fill(&w, w.host_src, ARENA);
    pieces_fill(&w, w.host_dst, ARENA);
    need(device_write(d, w.src, w.host_src, ARENA, &e), "device_write");
    need(device_write(d, w.dst, w.host_dst, ARENA, &e), "device_write");
    for (int round = 0; round < ROUNDS; round++) {
        if (round == ROUNDS / 2)
            make_finite(&w);
        n += random_pieces(&w, round);
        need(device_read(d, back, w.dst, ARENA, &e), "device_read");
        need(memcmp(back, w.host_dst, ARENA), "bytes, or bytes between the pieces");
    }
    (void)printf("%llu random pieces: every byte and every sum as expected, and NaN seen\n",
                 (unsigned long long)n);
    slab_unref(src);
    slab_unref(dst);
    free(w.host_src);
    free(w.host_dst);
    free(back);
}

/* Changes of few units against delta_apply. @part_max  bytes of a tensor */
static void test_random_changes(struct slab_pool *pool, uint64_t part_max)
{
    struct scatter_world w;

    if (!device_has_kernels(d))
        return;
    need(scatter_world_open(&w, d, pool, 3ULL * ARENA, part_max, &e), "scatter_world_open");
    for (int round = 0; round < ROUNDS; round++)
        if (scatter_round(&w, &e) != 0)
            need(-1, w.why[0] != '\0' ? w.why : "changes");
    (void)printf("%u random changes of tensors: every byte as on the host; %u more refused there "
                 "and here\n",
                 w.n_good, w.n_bad);
    need(w.n_good == 0 || w.n_bad == 0 ? -1 : 0, "no change was good, or none bad");
    scatter_world_close(&w);
}

/* Bytes that hold no period of the GPU's: doubled from a random beginning. */
static void fill_random(uint64_t at, uint64_t nbytes, const unsigned char *bytes, uint64_t n_random)
{
    need(device_write(d, at, bytes, n_random, &e), "device_write");
    for (uint64_t done = n_random; done < nbytes; done *= 2) {
        struct device_piece p = {at, at + done, done < nbytes - done ? done : nbytes - done,
                                 DTYPE_NONE};

        copy(&p, 1, NULL);
    }
}

/* Chunk by chunk: the bytes at dst against the random ones, and their sum joined from parts. */
static struct checksum read_long(uint64_t dst, uint64_t skip, const unsigned char *bytes,
                                 unsigned char *back)
{
    struct checksum sum = {0, 0};

    for (uint64_t done = 0; done < LONG_NBYTES; done += CHUNK) {
        uint64_t nbytes = LONG_NBYTES - done < CHUNK ? LONG_NBYTES - done : CHUNK;
        uint64_t from = (skip + done) % CHUNK, head = CHUNK - from < nbytes ? CHUNK - from : nbytes;
        struct checksum part;

        need(device_read(d, back, dst + done, nbytes, &e), "device_read");
        need(memcmp(back, bytes + from, head) != 0 ||
                 memcmp(back + head, bytes, nbytes - head) != 0,
             "bytes of a long piece");
        part = checksum_of(back, nbytes);
        sum.a += part.a;
        sum.b += part.b + done / 4 * part.a;
    }
    return sum;
}

/* One piece of more than 4 GiB, with both sides and the length at odd places. */
static void test_long_piece(struct slab_pool *pool)
{
    unsigned char *bytes = malloc(CHUNK), *back = malloc(CHUNK);
    struct pieces_world w = {.seed = 99};
    struct slab *src, *dst;
    struct device_piece p;
    struct device_made made;
    struct checksum sum, again;

    need(bytes == NULL || back == NULL, "host memory");
    need(slab_new(&src, pool, LONG_NBYTES + 64, &e), "slab_new");
    need(slab_new(&dst, pool, LONG_NBYTES + 64, &e), "slab_new");
    pieces_fill(&w, bytes, CHUNK);
    fill_random(src->addr, LONG_NBYTES + 64, bytes, CHUNK);
    p = (struct device_piece){src->addr + 5, dst->addr + 3, LONG_NBYTES, DTYPE_NONE};
    copy(&p, 1, &made);
    sum = made.sum;
    again = read_long(p.dst, 5, bytes, back);
    need(!checksum_equal(sum, again), "sum of a long piece");
    need(device_sum(d, p.dst, LONG_NBYTES, &again, &e), "device_sum");
    need(!checksum_equal(sum, again), "device_sum of a long piece");
    (void)printf("one piece of %llu bytes: as expected\n", LONG_NBYTES);
    slab_unref(src);
    slab_unref(dst);
    free(bytes);
    free(back);
}

/* The measuring: each case once a round, so that what disturbs one disturbs all. */
enum how { DRIVER, KERNEL, SUMMED, SUM_ONLY, LOOKED, CHANGED, CHANGE_ONLY };

struct bench {
    const char *name;
    enum how how;
    uint32_t n;            /* pieces */
    uint64_t shift;        /* of the source */
    double us[2][SAMPLES]; /* alone; IN_A_ROW of them, for each */
};

static struct bench benches[] = {
    {"cuMemcpyDtoDAsync, 1 piece", DRIVER, 1, 0, {{0}}},
    {"cuMemcpyDtoDAsync, 331 pieces", DRIVER, BUCKET_PIECES, 0, {{0}}},
    {"kernel copy, 1 piece", KERNEL, 1, 0, {{0}}},
    {"kernel copy, 331 pieces", KERNEL, BUCKET_PIECES, 0, {{0}}},
    {"kernel copy, 331, source + 2", KERNEL, BUCKET_PIECES, 2, {{0}}},
    {"copy and sum, 1 piece", SUMMED, 1, 0, {{0}}},
    {"copy and sum, 331 pieces", SUMMED, BUCKET_PIECES, 0, {{0}}},
    {"the same, and a look for NaN", LOOKED, BUCKET_PIECES, 0, {{0}}},
    {"copy and sum, 331, source + 2", SUMMED, BUCKET_PIECES, 2, {{0}}},
    {"the same, and a look for NaN", LOOKED, BUCKET_PIECES, 2, {{0}}},
    {"copy and sum, 331, source + 8", SUMMED, BUCKET_PIECES, 8, {{0}}},
    {"sum only, 331 pieces", SUM_ONLY, BUCKET_PIECES, 0, {{0}}},
    {"copied, 1 % of u16 changed, summed", CHANGED, BUCKET_PIECES, 0, {{0}}},
    {"the same, in place", CHANGE_ONLY, BUCKET_PIECES, 0, {{0}}},
};

enum { N_BENCHES = sizeof benches / sizeof benches[0] };

/* The driver's copies as they are used without baton: a stream of their own. */
struct raw {
    CUcontext ctx;
    CUstream stream;
};

static void raw_need(CUresult result, const char *call)
{
    need(cu_try(&info.api, result, call, &e), "raw");
}

static void run_raw(const struct raw *r, const struct device_piece *pieces, uint32_t n, int times)
{
    CUresult result;

    for (int i = 0; i < times; i++) {
        for (uint32_t k = 0; k < n; k++)
            raw_need(info.api.memcpy_dtod_async(pieces[k].dst, pieces[k].src, pieces[k].nbytes,
                                                r->stream),
                     "cuMemcpyDtoDAsync");
    }
    do {
        result = info.api.stream_query(r->stream);
    } while (result == CUDA_ERROR_NOT_READY);
    raw_need(result, "cuStreamQuery");
}

/* Each 100th of a piece's u16, by gaps of 99, which are the values too. */
static uint64_t gaps_at;

static void queue_changes(struct device_batch *b, const struct device_piece *pieces, uint32_t n,
                          struct device_made *made)
{
    static struct scatter_piece changes[BUCKET_PIECES + 17];

    for (uint32_t i = 0; i < n; i++)
        changes[i] = (struct scatter_piece){
            .copy = {.src = pieces[i].src, .dst = pieces[i].dst, .nbytes = pieces[i].nbytes},
            .positions = gaps_at,
            .values = gaps_at,
            .n_values = pieces[i].nbytes / 200,
            .kind = SCATTER_GAP,
            .unit = 2,
            .dtype = DTYPE_BF16};
    need(device_batch_scatter(b, changes, n, made, &e), "device_batch_scatter");
}

/* Polled without a pause, as the driver's copies are. */
static void run_kernel(const struct bench *bench, const struct device_piece *pieces, uint32_t n,
                       int times)
{
    static struct device_made sums[IN_A_ROW][BUCKET_PIECES + 17];
    struct device_batch *b;
    int rc;

    need(device_batch_new(d, &b, &e), "device_batch_new");
    for (int i = 0; i < times; i++) {
        bool summed = bench->how == SUMMED || bench->how == SUM_ONLY || bench->how == LOOKED;

        if (bench->how != CHANGED && bench->how != CHANGE_ONLY)
            need(device_batch_copy(b, pieces, n, summed ? sums[i] : NULL, &e), "device_batch_copy");
        else
            queue_changes(b, pieces, n, sums[i]);
    }
    do {
        rc = device_batch_poll(b, &e);
    } while (rc == 0);
    need(rc == 1 ? 0 : -1, "device_batch_poll");
    device_batch_free(b);
}

/* An unsummed piece alone would go by the driver: 17 empty ones beside it make it the kernel's. */
static uint32_t bench_pieces(const struct bench *bench, uint64_t src, uint64_t dst,
                             struct device_piece *pieces)
{
    uint64_t each = BUCKET / bench->n / 256 * 256, at = 0;
    uint32_t n = bench->n;

    for (uint32_t i = 0; i < bench->n; i++, at += each) {
        uint64_t nbytes = i + 1 < bench->n ? each : BUCKET - at;

        pieces[i] = (struct device_piece){src + bench->shift + at, dst + at, nbytes,
                                          bench->how == LOOKED ? DTYPE_BF16 : DTYPE_NONE};
        if (bench->how == SUM_ONLY || bench->how == CHANGE_ONLY)
            pieces[i].src = pieces[i].dst;
    }
    if (bench->how == KERNEL && n <= 16) {
        for (uint32_t i = 0; i < 17; i++)
            pieces[n++] = (struct device_piece){src, dst, 0, DTYPE_NONE};
    }
    return n;
}

static void sample(struct bench *bench, const struct raw *r, const struct slab *src,
                   const struct slab *dst, int round)
{
    static struct device_piece pieces[BUCKET_PIECES + 17];
    uint32_t n = bench_pieces(bench, src->addr, dst->addr, pieces);

    for (int in_a_row = 0; in_a_row < 2; in_a_row++) {
        int times = in_a_row ? IN_A_ROW : 1;
        uint64_t start = clock_now_us(), us;

        if (bench->how == DRIVER)
            run_raw(r, pieces, n, times);
        else
            run_kernel(bench, pieces, n, times);
        us = clock_now_us() - start;
        if (round >= 0)
            bench->us[in_a_row][round] = (double)us / times;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double gb_per_s(double *us)
{
    qsort(us, SAMPLES, sizeof *us, by_value);
    return BUCKET / ((us[SAMPLES / 2 - 1] + us[SAMPLES / 2]) / 2) / 1e3;
}

static void report(void)
{
    double raw[2] = {gb_per_s(benches[0].us[0]), gb_per_s(benches[0].us[1])};

    (void)printf("\n1 GiB of payload, medians of %d, host clock     alone        %d in a row\n"
                 "%-32s  GB/s  to raw    GB/s  to raw\n",
                 SAMPLES, IN_A_ROW, "");
    for (int i = 0; i < N_BENCHES; i++) {
        double one = gb_per_s(benches[i].us[0]), row = gb_per_s(benches[i].us[1]);

        (void)printf("%-32s %5.0f   %.3f   %5.0f   %.3f\n", benches[i].name, one, one / raw[0], row,
                     row / raw[1]);
    }
}

static void measure(struct slab_pool *pool)
{
    unsigned char *bytes = malloc(CHUNK);
    struct pieces_world w = {.seed = 3};
    uint64_t n_gaps = BUCKET / BUCKET_PIECES / 64; /* more than a piece has, the last one too */
    struct slab *src, *dst, *gaps;
    struct raw r;

    need(bytes == NULL, "host memory");
    need(slab_new(&src, pool, BUCKET + 64ULL, &e), "slab_new");
    need(slab_new(&dst, pool, BUCKET + 64ULL, &e), "slab_new");
    need(slab_new(&gaps, pool, 2 * n_gaps, &e), "slab_new");
    for (uint64_t i = 0; i < n_gaps; i++)
        memcpy(bytes + 2 * i, &(uint16_t){99}, 2);
    need(device_write(d, gaps->addr, bytes, 2 * n_gaps, &e), "device_write");
    gaps_at = gaps->addr;
    pieces_fill(&w, bytes, CHUNK);
    fill_random(src->addr, BUCKET + 64ULL, bytes, CHUNK);
    raw_need(info.api.primary_ctx_retain(&r.ctx, 0), "cuDevicePrimaryCtxRetain");
    raw_need(info.api.ctx_push_current(r.ctx), "cuCtxPushCurrent");
    raw_need(info.api.stream_create(&r.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (int round = -ROUNDS_WARM; round < SAMPLES; round++) {
        for (int i = 0; i < N_BENCHES; i++)
            sample(&benches[i], &r, src, dst, round);
    }
    report();
    raw_need(info.api.stream_destroy(r.stream), "cuStreamDestroy");
    raw_need(info.api.ctx_pop_current(&r.ctx), "cuCtxPopCurrent");
    raw_need(info.api.primary_ctx_release(0), "cuDevicePrimaryCtxRelease");
    slab_unref(src);
    slab_unref(dst);
    slab_unref(gaps);
    free(bytes);
}

/* 0: there is a GPU to test. */
static int find_gpu(const char *libcuda)
{
    const char *required = getenv("BATON_REQUIRE_GPU");
    bool must = required != NULL && strcmp(required, "1") == 0;

    cuda_probe(&info, libcuda);
    if (!info.available) {
        (void)fprintf(stderr, "no GPU: %s\n", info.reason);
        return must ? 1 : SKIPPED;
    }
    if (must && strcmp(info.devices[0].name, "Fake GPU") == 0) {
        (void)fprintf(stderr, "a GPU is required, and this is a fake\n");
        return 1;
    }
    (void)printf("%s, CUDA %s\n", info.devices[0].name, info.driver_version);
    return 0;
}

int main(int argc, char **argv)
{
    int rc = find_gpu(argc > 1 ? argv[1] : NULL);
    bool correct_only = argc > 2 && strcmp(argv[2], "correct") == 0;
    struct slab_memory memory;
    struct slab_pool *pool;
    uint64_t start = clock_now_us();

    if (rc != 0)
        return rc;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    need(device_new(&d, &info.api, &info.devices[0], &e), "device_new");
    (void)printf("%s: sums on the %s\n", device_name(d), device_has_kernels(d) ? "GPU" : "host");
    memory = device_memory(d);
    need(slab_pool_new(&pool, &memory, UINT64_MAX, 0, &e), "slab_pool_new");
    test_random_pieces(pool);
    test_random_changes(pool, 256 << 10);
    test_random_changes(pool, 16 << 20);
    if (info.devices[0].nbytes_total > 3 * LONG_NBYTES)
        test_long_piece(pool);
    if (!correct_only)
        measure(pool);
    slab_pool_free(pool);
    device_free(d);
    (void)printf("%.1f s\n", (double)(clock_now_us() - start) / 1e6);
    return 0;
}

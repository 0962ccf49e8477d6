/* How close making a version by a delta comes to moving the same memory: a bf16 model of which one
 * element in 100 changed by one step, as gaps and xor, raw and in zstd frames, and as slime's xor
 * and overwrite with their hash, from files in the page cache. Each is one fill of all tensors, by
 * as many threads as an update has, in memory that was written before. In the same run: memcpy of
 * the base, and a loop that reads and writes the same cache lines, by one thread and by as many.
 * The best of several rounds. Usage: bench_delta [MEGABYTES of the model, 200] [changed elements of
 * 10,000, 100] [ROUNDS, 7] */
#include "base/clock.h"
#include "base/jobs/parallel.h"
#include "memory/hash.h"
#include "weights/delta/delta_source.h"
#include "weights/delta/pull.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

enum { TENSOR_NUMEL = 4 << 20, ZSTD_LEVEL = 1, UNIT = 2 };
#define TENSOR_NBYTES ((size_t)TENSOR_NUMEL * UNIT)

enum form { GAP_RAW, GAP_ZSTD, OVERWRITE, XOR, FORM_COUNT };
static const char *const form_names[FORM_COUNT] = {
    [GAP_RAW] = "gap, xor raw",
    [GAP_ZSTD] = "gap, xor zstd",
    [OVERWRITE] = "slime overwrite",
    [XOR] = "slime xor",
};

struct bytes {
    char *data; /* owned */
    size_t n;
};

struct bench {
    uint32_t n_tensors;
    uint64_t share;                       /* changed elements of 10,000 */
    char *base, *next, *out;              /* owned; [n_tensors][TENSOR_NBYTES] */
    struct bytes (*parts)[FORM_COUNT][2]; /* owned; [n_tensors]; slime's forms have one */
    uint64_t sent[FORM_COUNT];
    struct store *store;
    char root[64]; /* with a directory for each of slime's forms */
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

static void need(bool ok, const struct err *e)
{
    if (ok)
        return;
    (void)fprintf(stderr, "bench_delta: %s\n", e != NULL ? e->msg : "a file cannot be written");
    exit(1);
}

/* ---- what changed ---- */

static void put(struct bytes *b, const void *data, size_t n)
{
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static struct bytes compressed(const struct bytes *b)
{
    struct bytes out = {must(malloc(ZSTD_compressBound(b->n))), 0};

    out.n = ZSTD_compress(out.data, ZSTD_compressBound(b->n), b->data, b->n, ZSTD_LEVEL);
    return out;
}

static struct bytes room(size_t n)
{
    return (struct bytes){must(malloc(n)), 0};
}

/* Values as of weights, and a step of one to the next bf16 value, up or down. */
static void change_tensor(struct bench *b, uint32_t k)
{
    uint16_t *base = (uint16_t *)(void *)(b->base + k * TENSOR_NBYTES);
    uint16_t *next = (uint16_t *)(void *)(b->next + k * TENSOR_NBYTES);
    struct bytes gaps = room(TENSOR_NBYTES), xors = room(TENSOR_NBYTES);
    size_t before = 0;

    for (size_t i = 0; i < TENSOR_NUMEL; i++) {
        uint64_t r = random_u64();
        uint16_t gap = (uint16_t)(i - before), changed;

        base[i] = next[i] = (uint16_t)(0x3c00U + (r & 0x83ffU));
        if ((r >> 32) % 10000 >= b->share)
            continue;
        next[i] = (uint16_t)(base[i] + ((r >> 20 & 1) != 0 ? 1U : 0xffffU));
        changed = base[i] ^ next[i];
        put(&gaps, &gap, UNIT);
        put(&xors, &changed, UNIT);
        before = i + 1;
    }
    b->parts[k][GAP_RAW][0] = gaps;
    b->parts[k][GAP_RAW][1] = xors;
    b->parts[k][GAP_ZSTD][0] = compressed(&gaps);
    b->parts[k][GAP_ZSTD][1] = compressed(&xors);
}

/* As slime's publisher writes them. */
static void change_as_slime(struct bench *b, uint32_t k)
{
    const char *base = b->base + k * TENSOR_NBYTES, *next = b->next + k * TENSOR_NBYTES;
    struct bytes xors = room(TENSOR_NBYTES), all = room(4 + 5 * TENSOR_NBYTES);
    uint32_t n = 0;

    put(&all, &n, sizeof n);
    for (uint32_t i = 0; i < TENSOR_NBYTES; i++) {
        char changed = (char)(base[i] ^ next[i]);

        put(&xors, &changed, 1);
        if (changed == 0)
            continue;
        put(&all, &i, sizeof i);
        n++;
    }
    memcpy(all.data, &n, sizeof n);
    for (uint32_t i = 0; i < TENSOR_NBYTES; i++)
        if (base[i] != next[i])
            put(&all, &next[i], 1);
    b->parts[k][OVERWRITE][0] = compressed(&all);
    b->parts[k][XOR][0] = compressed(&xors);
    free(xors.data);
    free(all.data);
}

/* ---- slime's directory ---- */

static FILE *create(const struct bench *b, enum form form, const char *name)
{
    char path[256];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%u", b->root, (unsigned)form);
    (void)mkdir(path, 0700);
    (void)snprintf(path, sizeof path, "%s/%u/weight_v000001", b->root, (unsigned)form);
    (void)mkdir(path, 0700);
    (void)snprintf(path, sizeof path, "%s/%u/weight_v000001/%s", b->root, (unsigned)form, name);
    f = fopen(path, "we");
    need(f != NULL, NULL);
    return f;
}

#define PAYLOAD "model-00000-of-00001.safetensors"
#define INDEX   "model.safetensors.index.json"

static void write_directory(const struct bench *b, enum form form)
{
    FILE *index = create(b, form, INDEX), *file = create(b, form, PAYLOAD);
    char *head = NULL, sum[HASH_TEXT_MAX + 1];
    size_t n_head = 0, at = 0;
    FILE *h = must(open_memstream(&head, &n_head));
    uint64_t prefix;

    (void)fprintf(index,
                  "{\"metadata\":{\"version\":\"000001\",\"base_version\":\"000000\","
                  "\"delta_encoding\":\"%s\",\"compression_format\":\"zstd\","
                  "\"checksum_format\":\"xxh3-128\"},\"weight_map\":{",
                  form == XOR ? "xor" : "overwrite");
    (void)fprintf(h, "{\"__metadata__\":{");
    for (uint32_t k = 0; k < b->n_tensors; k++) {
        hash_of(HASH_XXH3_128, b->next + k * TENSOR_NBYTES, TENSOR_NBYTES, sum);
        (void)fprintf(h, "%s\"w%u\":\"%s\"", k > 0 ? "," : "", k, sum);
        (void)fprintf(index, "%s\"w%u\":\"" PAYLOAD "\"", k > 0 ? "," : "", k);
    }
    (void)fprintf(h, "}");
    for (uint32_t k = 0; k < b->n_tensors; k++) {
        size_t n = b->parts[k][form][0].n;

        (void)fprintf(h, ",\"w%u\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}",
                      k, n, at, at + n);
        at += n;
    }
    (void)fprintf(h, "}");
    (void)fprintf(index, "}}");
    (void)fclose(h);
    prefix = n_head;
    (void)fwrite(&prefix, sizeof prefix, 1, file);
    (void)fwrite(head, 1, n_head, file);
    for (uint32_t k = 0; k < b->n_tensors; k++)
        (void)fwrite(b->parts[k][form][0].data, 1, b->parts[k][form][0].n, file);
    need(fclose(file) == 0 && fclose(index) == 0, NULL);
    free(head);
}

static void remove_directory(const struct bench *b, enum form form)
{
    static const char *const names[] = {"/weight_v000001/" INDEX, "/weight_v000001/" PAYLOAD,
                                        "/weight_v000001", ""};
    char path[256];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%u%s", b->root, (unsigned)form, names[i]);
        (void)remove(path);
    }
}

/* ---- the model, and sources of the next version ---- */

static void serve_base(struct bench *b)
{
    struct staging_memory memory = {0};
    struct staging_cfg staging = {0};
    struct tensor_list_builder *list = NULL;
    struct tensor_list *tensors = NULL;
    struct store_cfg cfg = {.n_versions_max = 3, .nbytes_max = UINT64_MAX};
    const uint64_t numel = TENSOR_NUMEL;
    struct staging *g = NULL;
    struct store_stats stats;
    struct err e = {0};
    char name[16];

    need(tensor_list_builder_new(&list, &e) == 0, &e);
    for (uint32_t k = 0; k < b->n_tensors; k++) {
        (void)snprintf(name, sizeof name, "w%u", k);
        need(tensor_list_builder_add(list, name, DTYPE_BF16, &numel, 1, UINT64_MAX, &e) == 0, &e);
    }
    need(tensor_list_builder_finish(list, &tensors, &e) == 0, &e);
    need(model_spec_new(&cfg.model_spec, tensors, NULL, 0, &e) == 0, &e);
    need(store_new(&b->store, &cfg, &e) == 0, &e);
    need(store_stage(b->store, &staging, CLOCK_NEVER, NULL, &g, &e) == 0, &e);
    need(staging_memory(g, 0, b->n_tensors * TENSOR_NBYTES, &memory, &e) == 0, &e);
    memcpy(memory.slab->base, b->base, b->n_tensors * TENSOR_NBYTES);
    for (uint32_t k = 0; k < b->n_tensors; k++)
        need(staging_view(g, 0, k, memory.slab, memory.slab->addr + k * TENSOR_NBYTES, &e) == 0,
             &e);
    staging_memory_return(g, 0, &memory);
    need(store_commit(b->store, g, "base", &stats, &e) == 0, &e);
}

struct parts_source {
    struct source source; /* first */
    const struct bench *b;
    enum form form;
};

static int parts_fill(struct source *s, const struct tensor_list *list, uint32_t first, uint32_t n,
                      void *dst, struct progress *p, struct err *e)
{
    const struct parts_source *from = (struct parts_source *)s;
    char *at = dst;

    (void)p;
    (void)e;
    for (uint32_t i = first; i < first + n; at += list->tensors[i].nbytes, i++)
        memcpy(at, from->b->parts[i / 2][from->form][i % 2].data, list->tensors[i].nbytes);
    return 0;
}

static void parts_close(struct source *s)
{
    free(s);
}

static struct source *native(const struct bench *b, enum form form)
{
    static const struct source_ops ops = {
        .name = "parts", .fill = parts_fill, .close = parts_close};
    static const char *const suffixes[2][2] = {{"gap", "xor"}, {"gap.zst", "xor.zst"}};
    struct delta_source_cfg cfg = {.store = b->store, .base_serial = 1};
    struct parts_source *parts = must(calloc(1, sizeof *parts));
    struct delta_link link = {.source = &parts->source};
    struct tensor_list_builder *list = NULL;
    struct tensor_list *made = NULL;
    struct source *out = NULL;
    struct err e = {0};

    *parts = (struct parts_source){{&ops}, b, form};
    need(tensor_list_builder_new(&list, &e) == 0, &e);
    for (uint32_t i = 0; i < 2 * b->n_tensors; i++) {
        bool raw = form == GAP_RAW;
        uint64_t n = b->parts[i / 2][form][i % 2].n / (raw ? UNIT : 1);
        char name[32];

        (void)snprintf(name, sizeof name, "w%u#%s", i / 2, suffixes[!raw][i % 2]);
        need(tensor_list_builder_add(list, name, raw ? DTYPE_U16 : DTYPE_U8, &n, 1, UINT64_MAX,
                                     &e) == 0,
             &e);
    }
    need(tensor_list_builder_finish(list, &link.sent.tensor_list, &e) == 0 &&
             delta_of_parts(&link.delta, store_model_spec(b->store), link.sent.tensor_list, &e) ==
                 0 &&
             delta_source_new(&out, &made, &link, &cfg, &e) == 0,
         &e);
    tensor_list_unref(made);
    return out;
}

static struct source *slime(const struct bench *b, enum form form)
{
    char path[128];
    struct pull_cfg cfg = {.form = PULL_SLIME,
                           .spec = store_model_spec(b->store),
                           .rootfd = AT_FDCWD,
                           .source = path,
                           .target = 1};
    struct source *out = NULL;
    struct pull *p = NULL;
    struct err e = {0};

    (void)snprintf(path, sizeof path, "%s/%u", b->root, (unsigned)form);
    need(pull_open(&p, &cfg, &e) == 0 && pull_source(&out, p, b->store, 1, &e) == 0, &e);
    return out;
}

/* ---- what is timed ---- */

static double seconds_since(uint64_t begin)
{
    __asm__ volatile("" : : : "memory"); /* the bytes are wanted */
    return (double)(clock_now_us() - begin) / 1e6;
}

static int copy_item(void *arg, unsigned thread, uint64_t k, struct err *e)
{
    const struct bench *b = arg;

    (void)thread;
    (void)e;
    memcpy(b->out + k * TENSOR_NBYTES, b->base + k * TENSOR_NBYTES, TENSOR_NBYTES);
    return 0;
}

/* The compiler must not make it a memcpy, which writes past the caches. */
static int loop_item(void *arg, unsigned thread, uint64_t k, struct err *e)
{
    static volatile uint64_t nothing;
    const struct bench *b = arg;
    const uint64_t *from = (const uint64_t *)(void *)(b->base + k * TENSOR_NBYTES);
    uint64_t *to = (uint64_t *)(void *)(b->out + k * TENSOR_NBYTES), key = nothing;

    (void)thread;
    (void)e;
    for (size_t i = 0; i < TENSOR_NBYTES / sizeof *to; i++)
        to[i] = from[i] ^ key;
    return 0;
}

static double time_loop(struct bench *b, parallel_fn *fn, bool threads)
{
    uint64_t begin = clock_now_us();
    struct err e = {0};

    (void)parallel_run(fn, b, b->n_tensors, threads ? b->n_tensors * TENSOR_NBYTES : 0, "bench",
                       &e);
    return seconds_since(begin);
}

static double time_fill(const struct bench *b, enum form form)
{
    struct source *s = form < OVERWRITE ? native(b, form) : slime(b, form);
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct err e = {0};
    uint64_t begin;
    double took;

    begin = clock_now_us();
    need(s->ops->fill(s, store_model_spec(b->store)->tensor_list, 0, b->n_tensors, b->out, &p,
                      &e) == 0,
         &e);
    took = seconds_since(begin);
    source_close(s);
    return took;
}

/* Are they the next version's? */
static void check_made(struct bench *b)
{
    struct err e = {0};

    if (memcmp(b->out, b->next, b->n_tensors * TENSOR_NBYTES) != 0)
        (void)err_set(&e, ERR_INTERNAL, "", "other bytes were made");
    need(e.code == ERR_NONE, &e);
    memset(b->out, 0, b->n_tensors * TENSOR_NBYTES);
}

static void make(struct bench *b)
{
    size_t nbytes = b->n_tensors * TENSOR_NBYTES;

    b->base = must(malloc(nbytes));
    b->next = must(malloc(nbytes));
    b->out = must(malloc(nbytes));
    b->parts = must(calloc(b->n_tensors, sizeof *b->parts));
    memset(b->out, 0, nbytes);
    (void)snprintf(b->root, sizeof b->root, "/tmp/bench-delta-XXXXXX");
    need(mkdtemp(b->root) != NULL, NULL);
    for (uint32_t k = 0; k < b->n_tensors; k++) {
        change_tensor(b, k);
        change_as_slime(b, k);
        for (int form = 0; form < FORM_COUNT; form++)
            b->sent[form] += b->parts[k][form][0].n + b->parts[k][form][1].n;
    }
    write_directory(b, OVERWRITE);
    write_directory(b, XOR);
    serve_base(b);
}

static void unmake(struct bench *b)
{
    remove_directory(b, OVERWRITE);
    remove_directory(b, XOR);
    (void)rmdir(b->root);
    for (uint32_t k = 0; k < b->n_tensors; k++)
        for (int form = 0; form < FORM_COUNT; form++) {
            free(b->parts[k][form][0].data);
            free(b->parts[k][form][1].data);
        }
    store_free(b->store);
    free(b->parts);
    free(b->base);
    free(b->next);
    free(b->out);
}

static void keep_best(double *best, double s)
{
    *best = *best == 0 || s < *best ? s : *best;
}

int main(int argc, char **argv)
{
    size_t nbytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 200) * 1000000;
    struct bench b = {.n_tensors = (uint32_t)(nbytes / TENSOR_NBYTES) + 1,
                      .share = argc > 2 ? strtoul(argv[2], NULL, 10) : 100};
    double loop[2] = {0}, copy[2] = {0}, fill[FORM_COUNT] = {0};
    double total = (double)(b.n_tensors * TENSOR_NBYTES) / 1e9;

    make(&b);
    for (unsigned long round = argc > 3 ? strtoul(argv[3], NULL, 10) : 7; round > 0; round--) {
        for (int threads = 0; threads < 2; threads++) {
            keep_best(&copy[threads], time_loop(&b, copy_item, threads != 0));
            keep_best(&loop[threads], time_loop(&b, loop_item, threads != 0));
        }
        for (int form = 0; form < FORM_COUNT; form++) {
            keep_best(&fill[form], time_fill(&b, (enum form)form));
            check_made(&b);
        }
    }
    printf("model of %.0f MB, %.2f %% of the elements changed; GB/s, one thread and all: memcpy "
           "%.2f %.2f, loop %.2f %.2f\n",
           total * 1e3, (double)b.share / 100, total / copy[0], total / copy[1], total / loop[0],
           total / loop[1]);
    for (int form = 0; form < FORM_COUNT; form++)
        printf("%-15s %.2f %% of the bytes, made at %.2f GB/s: %.2f of memcpy by one thread, %.2f "
               "of the loop by one, %.2f by all\n",
               form_names[form], (double)b.sent[form] / total / 1e7, total / fill[form],
               copy[0] / fill[form], loop[0] / fill[form], loop[1] / fill[form]);
    unmake(&b);
    return 0;
}

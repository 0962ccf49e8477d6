/* Adapters made by a test: configs, tensors, files. Included after cmocka.h, in programs that are
 * linked with --wrap for malloc, calloc, realloc, strdup, posix_memalign, mmap and munmap. */
#ifndef BATON_TESTS_ADAPTER_FIXTURE_H
#define BATON_TESTS_ADAPTER_FIXTURE_H

#include "engine/lora/adapter.h"
#include "engine/lora/adapter_names.h"
#include "weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOUT  FIXTURES "/kjv-qwen3-1m/adapters/shout"
#define RSLORA FIXTURES "/kjv-qwen3-1m/adapters/rslora"

/* ---- allocations are counted, and made to fail ---- */

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);
int __real_posix_memalign(void **out, size_t alignment, size_t n);
int __wrap_posix_memalign(void **out, size_t alignment, size_t n);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t n);
int __wrap_munmap(void *at, size_t n);

static atomic_long n_allocations, nbytes_mapped;
static atomic_long fails_at = -1;

static inline bool fails(void)
{
    return atomic_fetch_add(&n_allocations, 1) == atomic_load(&fails_at);
}

static inline void fail_nth(long n)
{
    atomic_store(&n_allocations, 0);
    atomic_store(&fails_at, n);
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    return fails() ? NULL : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *text)
{
    char *p = __wrap_malloc(strlen(text) + 1);

    return p != NULL ? memcpy(p, text, strlen(text) + 1) : NULL;
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t n)
{
    return fails() ? ENOMEM : __real_posix_memalign(out, alignment, n);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    void *p = fails() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, offset);

    if (p != MAP_FAILED)
        (void)atomic_fetch_add(&nbytes_mapped, (long)n);
    return p;
}

int __wrap_munmap(void *at, size_t n)
{
    (void)atomic_fetch_sub(&nbytes_mapped, (long)n);
    return __real_munmap(at, n);
}

/* ---- models ---- */

/* Two layers, every width another: 20 in, q 24, kv 12, intermediate 40. */
static inline struct model_config small_model(void)
{
    static const char json[] =
        "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":20,"
        "\"intermediate_size\":40,\"num_hidden_layers\":2,\"num_attention_heads\":6,"
        "\"num_key_value_heads\":3,\"head_dim\":4,\"vocab_size\":50,\"hidden_act\":\"silu\","
        "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
        "\"tie_word_embeddings\":true}";
    struct model_config c;
    struct err e = {0};

    if (model_config_parse(&c, json, sizeof json - 1, NULL, 0, &e) != 0)
        fail_msg("%s %s", e.field, e.msg);
    return c;
}

static inline struct model_config kjv_model(void)
{
    struct model_config c;
    struct err e = {0};

    if (model_config_load(&c, FIXTURES "/kjv-qwen3-1m", &e) != 0)
        fail_msg("%s %s", e.field, e.msg);
    return c;
}

static inline struct adapter_config *config_of(const char *json)
{
    struct adapter_config *c = NULL;
    struct err e = {0};

    if (adapter_config_parse(&c, json, strlen(json), &e) != 0)
        fail_msg("%s %s", e.field, e.msg);
    return c;
}

/* ---- tensors ---- */

enum { TENSORS_MAX = 64 };

struct tensor {
    char name[160];
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[3];
};

struct tensors {
    struct tensor list[TENSORS_MAX];
    uint32_t n;
};

#define ALL_MODULES 0x7fU

/* Pairs of rank r for the modules of `mask`, in every layer. */
static inline struct tensors tensors_of(const struct model_config *c, unsigned mask, uint32_t r,
                                        enum dtype dtype, const char *prefix)
{
    struct tensors t = {.n = 0};
    char path[MODEL_NAME_MAX];

    for (uint32_t l = 0; l < c->n_layers; l++) {
        for (int m = 0; m < ADAPTER_MODULE_COUNT; m++) {
            uint32_t n_out, n_in;

            if ((mask & 1U << m) == 0)
                continue;
            adapter_module_shape(c, (enum adapter_module)m, &n_out, &n_in);
            for (int half = 0; half < 2; half++) {
                struct tensor *x = &t.list[t.n++];

                assert_true(t.n <= TENSORS_MAX);
                (void)snprintf(x->name, sizeof x->name, "%s%s.lora_%c.weight", prefix,
                               adapter_module_path(l, (enum adapter_module)m, path),
                               half == 0 ? 'A' : 'B');
                x->dtype = dtype;
                x->ndim = 2;
                x->shape[0] = half == 0 ? r : n_out;
                x->shape[1] = half == 0 ? n_in : r;
            }
        }
    }
    return t;
}

#define PEFT "base_model.model."

static inline struct tensor_list *tensor_list_of(const struct tensors *t)
{
    struct tensor_list_builder *b = NULL;
    struct tensor_list *p = NULL;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < t->n; i++)
        if (tensor_list_builder_add(b, t->list[i].name, t->list[i].dtype, t->list[i].shape,
                                    t->list[i].ndim, UINT64_MAX, &e) != 0)
            fail_msg("%s", e.msg);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

/* Values in (-1, 1), the same for a seed and a tensor's name, wherever it lies. */
static inline void fill_tensor(char *dst, const struct tensor_spec *t, uint64_t seed)
{
    const char *at = strstr(t->name, "model.layers.");

    for (const char *c = at != NULL ? at : t->name; *c != '\0'; c++)
        seed = (seed ^ (uint64_t)(unsigned char)*c) * 1099511628211U;
    for (uint64_t i = 0; i < t->numel; i++) {
        float f;

        seed = seed * 6364136223846793005U + 1442695040888963407U;
        f = (float)(int32_t)(seed >> 33) * 0x1p-30F - 1.0F;
        if (dtype_nbytes(t->dtype) == 1)
            dst[i] = 0;
        else
            dtype_convert(dst + i * dtype_nbytes(t->dtype), t->dtype, &f, DTYPE_F32, 1);
    }
}

/* The packed bucket; the caller's (free). */
static inline char *bytes_of(const struct tensor_list *p, uint64_t seed)
{
    char *bytes = malloc(p->nbytes);

    assert_non_null(bytes);
    for (uint32_t i = 0; i < p->n_tensors; i++)
        fill_tensor(bytes + p->tensors[i].offset, &p->tensors[i], seed);
    return bytes;
}

static inline struct adapter_spec spec_of(const struct model_config *m, struct adapter_config *c)
{
    return (struct adapter_spec){
        .model = m, .config = c, .rank_max = 64, .nbytes_max = ADAPTER_NBYTES_MAX};
}

/* An adapter from the packed bytes of `tensor_list`, which it frees, also on failure. */
static inline int adapter_of_bytes(struct adapter **out, struct adapter_report *report,
                                   const struct adapter_spec *spec,
                                   const struct tensor_list *tensor_list, void *bytes,
                                   struct err *e)
{
    struct adapter_builder *b = NULL;
    int rc = adapter_builder_new(&b, spec, tensor_list, e);

    if (rc == 0)
        rc = adapter_builder_reserve(b, e);
    for (uint32_t i = 0; rc == 0 && i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];
        void *place = adapter_builder_place(b, i);

        if (place != NULL)
            memcpy(place, (const char *)bytes + t->offset, t->nbytes);
        rc = adapter_builder_came(b, tensor_list, i, e);
    }
    if (rc == 0)
        rc = adapter_builder_apply(b, &(struct made_sums){0}, e);
    free(bytes);
    if (rc != 0) {
        adapter_builder_free(b);
        return -1;
    }
    *out = adapter_builder_finish(b, report);
    return 0;
}

/* An adapter for the modules of `mask`, made whole. */
static inline struct adapter *adapter_made(const struct model_config *m, unsigned mask, uint32_t r,
                                           enum dtype dtype, uint64_t seed)
{
    struct tensors t = tensors_of(m, mask, r, dtype, PEFT);
    struct tensor_list *tensor_list = tensor_list_of(&t);
    struct adapter_config *c;
    struct adapter_spec spec;
    struct adapter *a = NULL;
    struct err e = {0};
    char json[128];

    (void)snprintf(json, sizeof json, "{\"r\":%u,\"lora_alpha\":%u}", r, 2 * r);
    c = config_of(json);
    spec = spec_of(m, c);
    if (adapter_of_bytes(&a, NULL, &spec, tensor_list, bytes_of(tensor_list, seed), &e) != 0)
        fail_msg("%s", e.msg);
    tensor_list_unref(tensor_list);
    adapter_config_free(c);
    return a;
}

/* ---- files ---- */

struct blob {
    char *data; /* owned */
    size_t len;
};

/* A safetensors file of these tensors. */
static inline struct blob safetensors_blob(const struct tensor_list *p, uint64_t seed)
{
    size_t cap = 64 + 512 * (size_t)p->n_tensors, at = 8;
    struct blob b = {.data = malloc(cap + p->nbytes)};
    uint64_t n;
    char *bytes = bytes_of(p, seed);

    assert_non_null(b.data);
    at += (size_t)snprintf(b.data + at, cap - at, "{");
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const struct tensor_spec *t = &p->tensors[i];

        at += (size_t)snprintf(b.data + at, cap - at,
                               "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu,%llu],"
                               "\"data_offsets\":[%llu,%llu]}",
                               i > 0 ? "," : "", t->name, dtype_name(t->dtype),
                               (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
                               (unsigned long long)t->offset,
                               (unsigned long long)(t->offset + t->nbytes));
    }
    at += (size_t)snprintf(b.data + at, cap - at, "}");
    n = at - 8;
    memcpy(b.data, &n, sizeof n);
    memcpy(b.data + at, bytes, p->nbytes);
    b.len = at + p->nbytes;
    free(bytes);
    return b;
}

static inline struct blob read_blob(const char *path)
{
    struct blob b = {0};
    struct stat st;
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    b.len = (size_t)st.st_size;
    b.data = malloc(b.len + 1);
    assert_non_null(b.data);
    assert_int_equal(read(fd, b.data, b.len), (ssize_t)b.len);
    b.data[b.len] = '\0';
    (void)close(fd);
    return b;
}

#endif

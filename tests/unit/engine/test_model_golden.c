/* The fixture models, of each architecture and stored dtype, against what transformers computed in
 * float32: the logprob of every token, and the greedy choice wherever it is decided by more than
 * the tolerance of two logprobs. */
#include "engine/model/model.h"
#include "tests/unit/engine/kv_taken.h"
#include "weights/safetensors.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define KJV "kjv-qwen3-1m"
enum { ROWS_MAX = 64, TOKENS_MAX = 256, ROUTES_MAX = 64, KV_NBYTES = 8 << 20, N_THREADS = 2 };
static const double TOLERANCE = 1e-4, MARGIN = 2e-4;

/* A checkpoint file as a version of the model's model spec. */
struct loaded {
    struct model_config cfg;
    struct safetensors file;
    struct model_spec *model_spec;
    char *bytes;
    struct view *views;
    struct version version;
    struct model *model;
    struct kv_pool *pool;
    float *logits; /* [ROWS_MAX, vocab_size] */
};

static char *read_bytes(int fd, uint64_t from, uint64_t nbytes)
{
    char *bytes = malloc(nbytes);

    assert_non_null(bytes);
    for (uint64_t got = 0; got < nbytes;) {
        ssize_t n = pread(fd, bytes + got, nbytes - got, (off_t)(from + got));

        assert_true(n > 0);
        got += (uint64_t)n;
    }
    return bytes;
}

static void load(struct loaded *l, const char *model, const char *weights)
{
    const struct tensor_list *tensor_list;
    char path[512], dir[256], *stored;
    struct err e = {0};
    int fd;

    *l = (struct loaded){0};
    (void)snprintf(dir, sizeof dir, FIXTURES "/%s", model);
    (void)snprintf(path, sizeof path, "%s/%s.safetensors", dir, weights);
    assert_int_equal(model_config_load(&l->cfg, dir, &e), 0);
    assert_int_equal(safetensors_open(&l->file, &fd, AT_FDCWD, path, &e), 0);
    assert_int_equal(model_spec_of_config(&l->model_spec, &l->cfg, l->file.tensor_list, &e), 0);
    stored = read_bytes(fd, l->file.nbytes_head, l->file.tensor_list->nbytes);
    (void)close(fd);
    tensor_list = l->model_spec->tensor_list;
    l->bytes = malloc(tensor_list->nbytes);
    l->views = calloc(tensor_list->n_tensors, sizeof *l->views);
    assert_true(l->bytes != NULL && l->views != NULL);
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i], *from;
        uint32_t at = tensor_list_find(l->file.tensor_list, t->name);

        assert_int_not_equal(at, TENSOR_LIST_NO_TENSOR);
        from = &l->file.tensor_list->tensors[at];
        dtype_convert(l->bytes + t->offset, t->dtype, stored + from->offset, from->dtype, t->numel);
        l->views[i].data = l->bytes + t->offset;
    }
    free(stored);
    l->version = (struct version){.serial = 1, .views = l->views};
    assert_int_equal(model_new(&l->model, &l->cfg, l->model_spec, ROWS_MAX, N_THREADS, &e), 0);
    assert_int_equal(kv_pool_new(&l->pool, &l->cfg, KV_NBYTES, &e), 0);
    l->logits = malloc(sizeof(float) * ROWS_MAX * l->cfg.vocab_size);
    assert_non_null(l->logits);
}

static void unload(struct loaded *l)
{
    free(l->logits);
    kv_pool_free(l->pool);
    model_free(l->model);
    free(l->views);
    free(l->bytes);
    model_spec_free(l->model_spec);
    safetensors_fini(&l->file);
}

static double logprob(const float *logits, uint32_t n, uint32_t id)
{
    double max = (double)logits[0], sum = 0.0;

    for (uint32_t i = 1; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

static uint32_t best(const float *logits, uint32_t n)
{
    uint32_t id = 0;

    for (uint32_t i = 1; i < n; i++)
        id = logits[i] > logits[id] ? i : id;
    return id;
}

static uint32_t ids_of(const json_t *list, uint32_t *ids)
{
    uint32_t n = (uint32_t)json_array_size(list);

    assert_in_range(n, 1, TOKENS_MAX);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void near(double found, const json_t *expected, double *worst)
{
    double off = fabs(found - json_number_value(expected));

    assert_true(json_is_number(expected));
    *worst = off > *worst ? off : *worst;
    if (!(off <= TOLERANCE)) /* NaN fails too */
        fail_msg("logprob %.6f, not %.6f", found, json_number_value(expected));
}

/* The experts that a row was routed to; a dense model has none. */
static void same_routes(const struct loaded *l, const uint16_t *routes, const json_t *expected)
{
    const struct model_experts *ex = &l->cfg.experts;

    assert_int_equal(json_array_size(expected), ex->n_sparse_layers);
    for (size_t i = 0; i < ex->n_sparse_layers; i++) {
        const json_t *layer = json_array_get(expected, i);

        assert_int_equal(json_array_size(layer), ex->n_per_token);
        for (size_t k = 0; k < ex->n_per_token; k++)
            assert_int_equal(routes[i * ex->n_per_token + k],
                             json_integer_value(json_array_get(layer, k)));
    }
}

/* The prompt in one piece, then token after token. Returns the number of logprobs compared. */
static uint32_t run_case(struct loaded *l, const json_t *c, double *worst)
{
    uint32_t prompt[TOKENS_MAX], greedy[TOKENS_MAX], vocab = l->cfg.vocab_size;
    const json_t *prompt_logprobs = json_object_get(c, "prompt_logprobs");
    uint32_t n_prompt = ids_of(json_object_get(c, "prompt_token_ids"), prompt);
    uint32_t n_greedy = ids_of(json_object_get(c, "greedy_token_ids"), greedy);
    struct model_row rows[ROWS_MAX];
    bool decided = json_number_value(json_object_get(c, "min_top2_margin")) >
                   MARGIN; /* absent: 0 */
    const json_t *routed = json_object_get(c, "routed_experts");
    uint32_t n_routes = l->cfg.experts.n_sparse_layers * l->cfg.experts.n_per_token;
    uint16_t routes[ROWS_MAX][ROUTES_MAX];
    const float *last;
    struct kv_seq kv;

    assert_in_range(n_prompt, 2, ROWS_MAX);
    assert_true(n_routes <= ROUTES_MAX);
    assert_int_equal(json_array_size(routed), n_routes > 0 ? n_prompt + n_greedy - 1 : 0);
    assert_int_equal(json_array_size(prompt_logprobs), n_prompt);
    assert_true(kv_taken(&kv, l->pool, n_prompt + n_greedy));
    for (uint32_t i = 0; i < n_prompt; i++)
        rows[i] = (struct model_row){prompt[i], i,    &kv,
                                     true,      NULL, n_routes > 0 ? routes[i] : NULL};
    model_step(l->model, &l->version, rows, n_prompt, l->logits);
    for (uint32_t i = 0; n_routes > 0 && i < n_prompt; i++)
        same_routes(l, routes[i], json_array_get(routed, i));
    for (uint32_t i = 1; i < n_prompt; i++)
        near(logprob(l->logits + (size_t)(i - 1) * vocab, vocab, prompt[i]),
             json_array_get(prompt_logprobs, i), worst);
    last = l->logits + (size_t)(n_prompt - 1) * vocab;
    for (uint32_t i = 0; i < n_greedy; i++) {
        if (decided)
            assert_int_equal(best(last, vocab), greedy[i]);
        near(logprob(last, vocab, greedy[i]),
             json_array_get(json_object_get(c, "greedy_logprobs"), i), worst);
        rows[0] = (struct model_row){greedy[i], n_prompt + i, &kv,
                                     true,      NULL,         n_routes > 0 ? routes[0] : NULL};
        model_step(l->model, &l->version, rows, 1, l->logits);
        if (n_routes > 0 && i + 1 < n_greedy) /* the last token was not fed there */
            same_routes(l, routes[0], json_array_get(routed, n_prompt + i));
        last = l->logits;
    }
    kv_release(&kv);
    return n_prompt - 1 + n_greedy;
}

/* @cases  of golden.json;  @n_min  logprobs there must be at least */
static void run_cases(const char *model, const char *weights, const json_t *cases, uint32_t n_min)
{
    struct loaded l;
    double worst = 0.0;
    uint32_t n = 0;

    assert_true(json_array_size(cases) >= 4);
    load(&l, model, weights);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        assert_true(json_number_value(
                        json_object_get(json_array_get(cases, i), "min_top2_margin")) > MARGIN);
        n += run_case(&l, json_array_get(cases, i), &worst);
    }
    print_message("%s, %s: %u logprobs, worst difference %.2e\n", model, weights, n, worst);
    assert_true(n >= n_min);
    unload(&l);
}

static void run_checkpoint(const char *name)
{
    json_t *golden = json_load_file(FIXTURES "/" KJV "/golden.json", 0, NULL);
    char weights[64];

    (void)snprintf(weights, sizeof weights, "checkpoints/%s", name);
    run_cases(
        KJV, weights,
        json_object_get(json_object_get(json_object_get(golden, "checkpoints"), name), "cases"),
        100);
    json_decref(golden);
}

static void run_model(const char *name)
{
    char path[256];
    json_t *golden;

    (void)snprintf(path, sizeof path, FIXTURES "/%s/golden.json", name);
    golden = json_load_file(path, 0, NULL);
    run_cases(name, "model", json_object_get(golden, "cases"), 64);
    json_decref(golden);
}

static void test_step_00000(void **state)
{
    (void)state;
    run_checkpoint("step-00000");
}

static void test_step_00100(void **state)
{
    (void)state;
    run_checkpoint("step-00100");
}

static void test_step_01500(void **state)
{
    (void)state;
    run_checkpoint("step-01500");
}

/* float16, untied, llama3 scaling of angles, the old keys. */
static void test_tiny_llama3(void **state)
{
    (void)state;
    run_model("tiny-llama3");
}

/* bfloat16, tied, biases of q, k and v, the new keys. */
static void test_tiny_qwen2(void **state)
{
    (void)state;
    run_model("tiny-qwen2");
}

/* float32, untied. */
static void test_tiny_llama2(void **state)
{
    (void)state;
    run_model("tiny-llama2-spm");
}

/* bfloat16, layer 0 dense, layers 1 and 2 with 8 experts, 2 for a token. */
static void test_tiny_qwen3_moe(void **state)
{
    (void)state;
    run_model("tiny-qwen3-moe");
}

/* bfloat16, 6 experts in each layer, 3 for a token. */
static void test_tiny_mixtral(void **state)
{
    (void)state;
    run_model("tiny-mixtral");
}

/* bfloat16 and float32, latent attention, layers 1 and 2 with 16 experts in 4 groups. */
static void test_tiny_deepseek(void **state)
{
    (void)state;
    run_model("tiny-deepseek");
}

/* Queries without latents, one group, angles of halves, values wider than keys. */
static void test_tiny_deepseek_flat(void **state)
{
    (void)state;
    run_model("tiny-deepseek-flat");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_00000),     cmocka_unit_test(test_step_00100),
        cmocka_unit_test(test_step_01500),     cmocka_unit_test(test_tiny_llama3),
        cmocka_unit_test(test_tiny_qwen2),     cmocka_unit_test(test_tiny_llama2),
        cmocka_unit_test(test_tiny_qwen3_moe), cmocka_unit_test(test_tiny_mixtral),
        cmocka_unit_test(test_tiny_deepseek),  cmocka_unit_test(test_tiny_deepseek_flat),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

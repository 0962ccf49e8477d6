/* Batches of rollouts: where every value of a small batch lies, and which requests are refused. */
#include "engine/gen.h"
#include "handlers/batch/batch.h"
#include "tests/unit/failing_alloc.h"
#include "weights/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAD = 9, VOCAB = 100 };

/* Two prompts, two samples each; the last sequence failed, the one before it has no token. */
static const uint32_t prompts[2][3] = {{11, 12, 13}, {21}};
static const struct gen_token tokens[4][3] = {
    {{.id = 31, .logprob = -0.25F}, {.id = 32, .logprob = -INFINITY}, {.id = 33, .logprob = -1}},
    {{.id = 41, .logprob = -2}},
    {{0}},
    {{.id = 51, .logprob = -3}, {.id = 52, .logprob = -4}}};
static const struct gen_span spans[4][2] = {{{0, 1, 7, NULL, "v7"}, {1, 3, 8, NULL, "v8"}},
                                            {{0, 1, 8, NULL, "v8"}},
                                            {{0}},
                                            {{0, 2, 8, NULL, "v8b"}}};
static const struct gen_output outs[4] = {
    {.n_tokens = 3, .tokens = tokens[0], .n_spans = 2, .spans = spans[0], .finish = GEN_LENGTH},
    {.n_tokens = 1, .tokens = tokens[1], .n_spans = 1, .spans = spans[1], .finish = GEN_STOP},
    {.finish = GEN_ABORT},
    {.n_tokens = 2,
     .tokens = tokens[3],
     .n_spans = 1,
     .spans = spans[3],
     .finish = GEN_ERROR,
     .error = {.code = ERR_ENGINE, .msg = "not finite"}}};
/* [rows, 1 layer, 2 of 300 experts] */
static const uint16_t routes[4][10] = {
    {299, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {5, 4, 3, 2, 1, 0}, {7, 8}, {9, 8, 7, 6}};
static const uint32_t n_routed[4] = {5, 3, 1, 2};

/* A built batch, read back. */
struct read {
    char *body;
    size_t nbytes;
    struct safetensors head;
    json_t *metadata;
};

static void read_metadata(struct read *r)
{
    json_t *root = json_loadb(r->body + 8, r->head.nbytes_head - 8, JSON_REJECT_DUPLICATES, NULL);
    json_t *all;

    assert_non_null(root);
    all = json_object_get(root, "__metadata__");
    assert_string_equal(json_string_value(json_object_get(all, "format")), "pt");
    r->metadata = json_loads(json_string_value(json_object_get(all, "baton.rollouts")), 0, NULL);
    assert_non_null(r->metadata);
    json_decref(root);
}

/* @fails_at  the allocation that fails, -1: none. Returns -1 if it did. */
static int try_build(struct read *r, const struct batch_options *o, bool with_routes, long fails_at)
{
    struct gen_output made[4];
    struct batch_row rows[4];
    struct batch b = {.options = o, .rows = rows, .n_rows = 4};
    struct batch_shape shape = {0};
    struct err e = {0};
    int rc;

    if (with_routes)
        b.routes = (struct batch_routes){.n_experts = 300, .n_layers = 1, .top_k = 2};
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t p = i / 2;

        made[i] = outs[i];
        made[i].routes = with_routes ? routes[i] : NULL;
        made[i].n_routed = with_routes ? n_routed[i] : 0;
        rows[i] = (struct batch_row){.prompt = p,
                                     .sample = i % 2,
                                     .prompt_ids = prompts[p],
                                     .n_prompt = p == 0 ? 3 : 1,
                                     .out = &made[i]};
        batch_shape_add(&shape, rows[i].n_prompt, outs[i].n_tokens);
    }
    b.metadata = json_pack("{s:s}", "request_id", "r1");
    atomic_store(&alloc_left, fails_at);
    rc = batch_build(&r->body, &r->nbytes, &b, &e);
    atomic_store(&alloc_left, -1);
    assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_NO_MEMORY);
    assert_true((rc == 0) == (r->body != NULL)); /* untouched by a failure */
    if (rc != 0)
        return -1;
    assert_int_equal(
        safetensors_parse(&r->head, r->body, *(uint64_t *)(void *)r->body + 8, r->nbytes, &e), 0);
    assert_int_equal(r->nbytes - r->head.nbytes_head, batch_nbytes(&shape, o, &b.routes));
    read_metadata(r);
    return 0;
}

static struct read build(const struct batch_options *o, bool with_routes)
{
    struct read r = {0};

    assert_int_equal(try_build(&r, o, with_routes, -1), 0);
    return r;
}

static void read_fini(struct read *r)
{
    json_decref(r->metadata);
    safetensors_fini(&r->head);
    free(r->body);
}

/* Compares a tensor with its numbers; `text` has the dtype, the shape and the values. */
static void check(const struct read *r, const char *name, const char *expected)
{
    uint32_t at = tensor_list_find(r->head.tensor_list, name);
    const struct tensor_spec *t;
    char text[1024];
    int len = 0;

    if (at == TENSOR_LIST_NO_TENSOR)
        fail_msg("no tensor %s", name);
    t = &r->head.tensor_list->tensors[at];
    len += snprintf(text, sizeof text, "%s", dtype_name(t->dtype));
    for (uint32_t d = 0; d < t->ndim; d++)
        len += snprintf(text + len, sizeof text - (size_t)len, "%c%d", d > 0 ? 'x' : ' ',
                        (int)t->shape[d]);
    for (uint64_t i = 0; i < t->numel; i++) {
        const char *from = r->body + r->head.nbytes_head + t->offset + i * dtype_nbytes(t->dtype);
        int32_t i32 = (uint8_t)*from;
        float f32;

        assert_int_equal((uintptr_t)from % dtype_nbytes(t->dtype), 0);
        if (dtype_nbytes(t->dtype) == 2)
            i32 = *(const int16_t *)(const void *)from;
        else if (dtype_nbytes(t->dtype) == 4)
            memcpy(&i32, from, 4);
        memcpy(&f32, &i32, 4);
        len += t->dtype == DTYPE_F32
                   ? snprintf(text + len, sizeof text - (size_t)len, " %g", (double)f32)
                   : snprintf(text + len, sizeof text - (size_t)len, " %d", i32);
    }
    if (strcmp(text, expected) != 0)
        fail_msg("%s:\n%s\n%s expected", name, text, expected);
}

static void check_metadata(const struct read *r, const char *member, const char *expected)
{
    char *text = json_dumps(json_object_get(r->metadata, member), JSON_COMPACT | JSON_ENCODE_ANY);

    assert_string_equal(text, expected);
    free(text);
}

static void test_left_padded(void **state)
{
    const struct batch_options o = {
        .layout = BATCH_LEFT_PADDED, .sequence_multiple = 2, .pad_token_id = PAD, .n_prompts = 2};
    struct read r = build(&o, false);

    (void)state;
    check(&r, "input_ids",
          "I32 4x8 9 11 12 13 31 32 33 9 9 11 12 13 41 9 9 9 9 9 9 21 9 9 9 9 9 9 9 21 51 52 9 9");
    check(&r, "attention_mask",
          "BOOL 4x8 0 1 1 1 1 1 1 0 0 1 1 1 1 0 0 0 0 0 0 1 0 0 0 0 0 0 0 1 1 1 0 0");
    check(&r, "loss_mask",
          "BOOL 4x8 0 0 0 0 1 1 1 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0");
    check(&r, "position_ids",
          "I32 4x8 0 0 1 2 3 4 5 0 0 0 1 2 3 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 2 0 0");
    check(&r, "logprobs",
          "F32 4x8 0 0 0 0 -0.25 -9999 -1 0 0 0 0 0 -2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 -3 -4 0 0");
    check(&r, "versions",
          "I32 4x8 -1 -1 -1 -1 0 1 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 "
          "-1 2 2 -1 -1");
    check(&r, "prompt_offsets", "I32 4 1 1 3 3");
    check(&r, "prompt_lengths", "I32 4 3 3 1 1");
    check(&r, "response_offsets", "I32 4 4 4 4 4");
    check(&r, "response_lengths", "I32 4 3 1 0 2");
    check(&r, "groups", "I32 4 0 0 1 1");
    check(&r, "samples", "I32 4 0 1 0 1");
    check(&r, "finish_reasons", "U8 4 2 1 3 4");
    assert_int_equal(r.head.tensor_list->n_tensors, 13);
    check_metadata(&r, "versions",
                   "[{\"version\":\"v7\",\"serial\":7},{\"version\":\"v8\",\"serial\":8},"
                   "{\"version\":\"v8b\",\"serial\":8}]");
    check_metadata(&r, "finish_reasons",
                   "[null,\"stop\",\"length\",\"abort\",\"error\",\"repetition\"]");
    check_metadata(&r, "errors",
                   "[null,null,null,{\"code\":\"engine_error\",\"message\":\"not finite\","
                   "\"param\":null,\"retryable\":false}]");
    check_metadata(&r, "layout", "\"left_padded\"");
    check_metadata(&r, "width", "8");
    check_metadata(&r, "response_width", "4");
    check_metadata(&r, "request_id", "\"r1\"");
    check_metadata(&r, "trajectory_ids", "null");
    read_fini(&r);
}

static void test_tight_with_routes(void **state)
{
    const struct batch_options o = {
        .layout = BATCH_TIGHT, .sequence_multiple = 1, .pad_token_id = PAD, .n_prompts = 2};
    struct read r = build(&o, true);

    (void)state;
    check(&r, "input_ids", "I32 4x6 11 12 13 31 32 33 9 9 11 12 13 41 9 9 9 9 9 21 9 9 9 21 51 52");
    check(&r, "attention_mask", "BOOL 4x6 1 1 1 1 1 1 0 0 1 1 1 1 0 0 0 0 0 1 0 0 0 1 1 1");
    check(&r, "versions",
          "I32 4x6 -1 -1 -1 0 1 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 2 2");
    check(&r, "prompt_offsets", "I32 4 0 2 5 3");
    check(&r, "response_offsets", "I32 4 3 5 6 4");
    check(&r, "route_lengths", "I32 4 5 3 1 2");
    check(&r, "routed_experts",
          "I16 4x6x1x2 299 1 2 3 4 5 6 7 8 9 0 1 0 1 0 1 5 4 3 2 1 0 0 1 0 1 0 1 0 1 0 1 0 1 7 8 "
          "0 1 0 1 0 1 9 8 7 6 0 1");
    check_metadata(&r, "width", "6");
    check_metadata(&r, "response_width", "3");
    read_fini(&r);
}

static int parse(struct batch_options *o, const char *text, struct err *e)
{
    json_t *body = json_loads(text, 0, NULL);
    int rc;

    assert_non_null(body);
    rc = batch_options_parse(o, body, 3, VOCAB, e);
    json_decref(body);
    return rc;
}

static void test_steps(void **state)
{
    struct batch_options o;
    struct err e = {0};
    struct read r;

    (void)state;
    assert_int_equal(parse(&o,
                           "{\"layout\":\"tight\",\"steps\":[{\"trajectory_id\":\"a\",\"step\":4},"
                           "{\"trajectory_id\":\"a\",\"step\":5},"
                           "{\"trajectory_id\":\"b\",\"step\":0}]}",
                           &e),
                     0);
    assert_int_equal(batch_group_of(&o, 1).first, 0);
    assert_int_equal(batch_group_of(&o, 1).end, 2);
    assert_int_equal(batch_group_of(&o, 2).first, 2);
    r = build(&o, false); /* its prompts are the two steps of the first trajectory */
    check(&r, "steps", "I32 4 4 4 5 5");
    check(&r, "groups", "I32 4 0 0 0 0");
    check(&r, "is_last_step", "BOOL 4 0 0 1 1");
    check_metadata(&r, "trajectory_ids", "[\"a\",\"a\",\"a\",\"a\"]");
    read_fini(&r);
    batch_options_fini(&o);
}

#define STEP(id, step) "{\"trajectory_id\":\"" id "\",\"step\":" #step "}"

static void test_parse_refuses(void **state)
{
    static const char *const cases[][3] = {
        {"{\"layout\":\"right\"}", "/layout", "not one of left_padded, tight"},
        {"{\"sequence_multiple\":0}", "/sequence_multiple", "0"},
        {"{\"pad_token_id\":100}", "/pad_token_id", "100"},
        {"{\"steps\":[]}", "/steps", "0 steps for 3 prompts"},
        {"{\"steps\":[1,2,3]}", "/steps/0", "an object with 'trajectory_id' and 'step'"},
        {"{\"steps\":[" STEP("a", 0) "," STEP("", 1) "," STEP("b", 0) "]}",
         "/steps/1/trajectory_id", "0 bytes"},
        {"{\"steps\":[" STEP("a", 0) "," STEP("a", 2) "," STEP("b", 0) "]}", "/steps/1",
         "step 2 of trajectory 'a' follows its step 0"},
        {"{\"steps\":[" STEP("a", 1) "," STEP("a", 0) "," STEP("b", 0) "]}", "/steps/1",
         "ascend by 1"},
        {"{\"steps\":[" STEP("a", 0) "," STEP("b", 0) "," STEP("a", 1) "]}", "/steps/2",
         "its step at /steps/0 is followed by another trajectory"},
        {"{\"steps\":[{\"trajectory_id\":\"a\"},1,2]}", "/steps/0/step", "required"},
        {"{\"steps\":[{\"trajectory_id\":\"a\",\"step\":0,\"last\":true},1,2]}", "/steps/0/last",
         "last"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct batch_options o;
        struct err e = {0};

        assert_int_equal(parse(&o, cases[i][0], &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, cases[i][1]);
        if (strstr(e.msg, cases[i][2]) == NULL)
            fail_msg("%s: '%s' is not in '%s'", cases[i][0], cases[i][2], e.msg);
        batch_options_fini(&o);
    }
}

static void test_nbytes_bound(void **state)
{
    const struct batch_options o = {.layout = BATCH_TIGHT, .sequence_multiple = 1};
    const struct batch_routes none = {0}, huge = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    struct batch_shape shape = {0};

    (void)state;
    for (int i = 0; i < 1024; i++)
        batch_shape_add(&shape, UINT32_MAX, UINT32_MAX);
    assert_true(batch_nbytes(&shape, &o, &none) > BATCH_NBYTES_MAX);
    assert_true(batch_nbytes(&shape, &o, &none) < UINT64_MAX);
    assert_true(batch_nbytes(&shape, &o, &huge) == UINT64_MAX);
}

static void test_every_allocation_fails(void **state)
{
    const struct batch_options o = {.layout = BATCH_TIGHT, .sequence_multiple = 1, .n_prompts = 2};
    struct read r = {0};
    long n = 0;

    (void)state;
    while (try_build(&r, &o, true, n) != 0)
        n++;
    assert_true(n >= 3);
    read_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_padded),  cmocka_unit_test(test_tight_with_routes),
        cmocka_unit_test(test_steps),        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_nbytes_bound), cmocka_unit_test(test_every_allocation_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

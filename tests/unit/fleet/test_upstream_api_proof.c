/* Replies to a canary and to a request for checksums, in the forms that real engines answered. */
#include "fleet/api/api_json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const int ids[] = {17, 42, 23, 61, 34, 52, 19, 58, 27, 45, 38, 63, 21, 49, 30, 55};
enum { N = 16, TEXT_MAX = 8192 };

/* As vLLM 0.32. @special  in place of the value at 3; NULL: the value -3.5 */
static void vllm_reply(char out[TEXT_MAX], const char *special)
{
    int len = snprintf(out, TEXT_MAX, "{\"choices\":[{\"text\":\"ed\",\"prompt_logprobs\":[null");

    for (int i = 1; i < N; i++)
        len += snprintf(out + len, (size_t)(TEXT_MAX - len),
                        ",{\"%d\":{\"logprob\":%s%.1f,\"rank\":756,\"decoded_token\":\"K\"},"
                        "\"82\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\"s\"}}",
                        ids[i], i == 3 && special != NULL ? special : "-", i + 0.5);
    (void)snprintf(out + len, (size_t)(TEXT_MAX - len), "]}]}");
}

/* As SGLang 0.5.16. @special  the value at 3; NULL: -3.5 */
static void sglang_reply(char out[TEXT_MAX], const char *special)
{
    char value[32];
    int len = snprintf(out, TEXT_MAX,
                       "{\"text\":\"ed\",\"meta_info\":{\"input_token_logprobs\":[[null,17,null]");

    for (int i = 1; i < N; i++) {
        (void)snprintf(value, sizeof value, "-%.1f", i + 0.5);
        len += snprintf(out + len, (size_t)(TEXT_MAX - len), ",[%s,%d,null]",
                        i == 3 && special != NULL ? special : value, ids[i]);
    }
    (void)snprintf(out + len, (size_t)(TEXT_MAX - len), "]}}");
}

static enum api_answer kind_of(enum upstream_kind kind, int status, const char *text)
{
    double values[API_CANARY_VALUES];

    return api_read_canary(values, kind, status, text, strlen(text));
}

static void test_values(void **state)
{
    char text[TEXT_MAX];

    (void)state;
    for (int kind = UPSTREAM_VLLM; kind <= UPSTREAM_SGLANG; kind++) {
        double values[API_CANARY_VALUES];
        enum api_answer answer;

        if (kind == UPSTREAM_VLLM)
            vllm_reply(text, NULL);
        else
            sglang_reply(text, NULL);
        answer = api_read_canary(values, (enum upstream_kind)kind, 200, text, strlen(text));
        assert_int_equal(answer, API_ANSWER_VALUE);
        for (int i = 0; i < API_CANARY_VALUES; i++)
            assert_true(fabs(values[i] + (i + 1.5)) < 1e-9);
    }
}

/* The prompt that is sent has the ids whose values are read. */
static void test_prompt(void **state)
{
    (void)state;
    for (int kind = UPSTREAM_VLLM; kind <= UPSTREAM_SGLANG; kind++) {
        struct api_request r;
        struct err e = {0};
        json_t *body, *prompt;

        assert_int_equal(api_make_query(&r, (enum upstream_kind)kind, API_GENERATE_CANARY, &e), 0);
        body = json_loadb(r.body, r.body_len, 0, NULL);
        prompt = json_object_get(body, kind == UPSTREAM_VLLM ? "prompt" : "input_ids");
        assert_int_equal(json_array_size(prompt), N);
        for (size_t i = 0; i < N; i++)
            assert_int_equal(json_integer_value(json_array_get(prompt, i)), ids[i]);
        json_decref(body);
        api_request_fini(&r);
    }
}

static void test_not_finite(void **state)
{
    char text[TEXT_MAX];

    (void)state;
    sglang_reply(text, "null");
    assert_int_equal(kind_of(UPSTREAM_SGLANG, 200, text), API_ANSWER_NOT_FINITE);
    assert_int_equal(
        kind_of(UPSTREAM_VLLM, 400,
                "{\"error\":{\"message\":\"Out of range float values are not JSON compliant: nan\","
                "\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}"),
        API_ANSWER_NOT_FINITE);
    assert_int_equal(kind_of(UPSTREAM_VLLM, 500,
                             "{\"detail\":\"Out of range float values are not JSON compliant\"}"),
                     API_ANSWER_NOT_FINITE);
}

static void test_no_answer(void **state)
{
    static const struct {
        int status;
        const char *text;
        enum api_answer kind;
    } rows[] = {
        {0, "", API_ANSWER_PENDING},
        {200, "", API_ANSWER_PENDING},
        {200, "{}", API_ANSWER_PENDING},
        {200, "[]", API_ANSWER_PENDING},
        {200, "{\"choices\":[{\"prompt_logprobs\":null,\"finish_reason\":\"abort\"}]}",
         API_ANSWER_PENDING},
        {200, "{\"choices\":[{\"prompt_logprobs\":[null,{\"42\":{\"logprob\":-1}}]}]}",
         API_ANSWER_PENDING},
        {200, "{\"meta_info\":{\"input_token_logprobs\":[[null,17,null],[-1.5,42,null]]}}",
         API_ANSWER_PENDING},
        {429, "{}", API_ANSWER_PENDING},
        {401, "{}", API_ANSWER_PENDING},
        {500, "{\"error\":\"x\"}", API_ANSWER_PENDING},
        {503, "", API_ANSWER_PENDING},
        {400, "{\"error\":{\"message\":\"prompt_logprobs is not supported\"}}",
         API_ANSWER_NO_VALUE},
        {404, "{\"detail\":\"Not Found\"}", API_ANSWER_NO_VALUE},
    };
    char text[TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(kind_of(UPSTREAM_VLLM, rows[i].status, rows[i].text), rows[i].kind);
        assert_int_equal(kind_of(UPSTREAM_SGLANG, rows[i].status, rows[i].text), rows[i].kind);
    }
    assert_int_equal(kind_of(UPSTREAM_BATON, 200, "{}"), API_ANSWER_NO_VALUE);
    vllm_reply(text, "\"x\":"); /* no JSON */
    assert_int_equal(kind_of(UPSTREAM_VLLM, 200, text), API_ANSWER_PENDING);
    vllm_reply(text, NULL);
    memcpy(strstr(text, "\"61\""), "\"60\"", 4); /* another token's */
    assert_int_equal(kind_of(UPSTREAM_VLLM, 200, text), API_ANSWER_PENDING);
}

static void assert_sums(enum upstream_kind kind, const char *text, const char *expected, size_t len)
{
    struct buf sums = {0};

    assert_int_equal(api_read_checksums(&sums, kind, text, strlen(text)), API_ANSWER_VALUE);
    assert_int_equal(sums.len, len);
    assert_memory_equal(sums.data, expected, len);
    buf_fini(&sums);
}

static void test_checksums(void **state)
{
    static const char *const bad[] = {"",
                                      "{}",
                                      "{\"checksums\":{}}",
                                      "{\"ranks\":[]}",
                                      "[1]",
                                      "{\"success\":false,\"message\":\"no\"}"};
    static const char vllm[] = "dp0:pp0:pcp0:tp0:model.norm.weight\0ab\0b\0";
    static const char sglang[] = "rank 0/a\00001\0rank 0/b\00002\0rank 1/a\00003\0rank 1/b\0"
                                 "\0draft rank 1/a\00005";

    (void)state;
    assert_sums(UPSTREAM_VLLM,
                "{\"checksums\":{\"dp0:pp0:pcp0:tp0:model.norm.weight\":\"ab\",\"b\":7}}", vllm,
                sizeof vllm);
    assert_sums(UPSTREAM_SGLANG,
                "{\"success\":true,\"ranks\":["
                "{\"checksums\":{\"a\":\"01\",\"b\":\"02\"},\"parallelism_info\":{\"rank\":0}},"
                "{\"checksums\":{\"a\":\"03\",\"b\":4},\"parallelism_info\":{\"rank\":1}},"
                "{\"checksums\":{\"a\":\"05\"},\"parallelism_info\":{\"role\":\"draft\","
                "\"rank\":1}}]}",
                sglang, sizeof sglang);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
            struct buf sums = {0};

            assert_int_equal(
                api_read_checksums(&sums, (enum upstream_kind)kind, bad[i], strlen(bad[i])),
                API_ANSWER_NO_VALUE);
            assert_int_equal(sums.len, 0);
        }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),     cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_checksums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The experts of each position in the form of each server's clients, and what is refused. */
#include "handlers/generate/routed_experts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPT = 2, N_TOKENS = 2, N_ROUTED = N_PROMPT + N_TOKENS - 1, N_LAYERS = 3, K = 2 };

static const uint16_t sparse[] = {0, 2};

/* A request with one prompt, and its output: layers 0 and 2 of 3 have experts. */
struct world {
    struct app_generate generate;
    struct app app;
    struct generation_prompt prompt;
    struct generation g;
    struct generation_seq seq;
    uint16_t routes[N_ROUTED][2][K];
    struct gen_output made;
};

static void world_init(struct world *w)
{
    *w = (struct world){.routes = {{{1, 2}, {3, 4}}, {{5, 6}, {7, 0}}, {{2, 1}, {4, 3}}}};
    w->generate = (struct app_generate){.model_name = "m",
                                        .max_model_len = 100,
                                        .info = {.n_experts = 8,
                                                 .n_layers = N_LAYERS,
                                                 .n_route_layers = 2,
                                                 .n_routes_per_token = K,
                                                 .route_layers = sparse}};
    w->app.generate = &w->generate;
    w->prompt.n = N_PROMPT;
    w->g = (struct generation){.app = &w->app,
                               .prompts = &w->prompt,
                               .n_prompts = 1,
                               .params = {.n = 1, .gen = {.max_tokens = 4}},
                               .routes_start_at = "/start"};
    w->seq.g = &w->g;
    w->made = (struct gen_output){.n_tokens = N_TOKENS,
                                  .routes = &w->routes[0][0][0],
                                  .n_routed = N_ROUTED,
                                  .n_route_layers = 2,
                                  .n_routes_per_token = K};
}

static void assert_put(struct world *w, uint32_t n_tokens, enum routed_form form, const char *want)
{
    struct buf out = {0};

    routed_experts_put(&out, &w->seq, &w->made, n_tokens, form);
    assert_false(out.failed);
    assert_string_equal(out.data, want);
    buf_fini(&out);
}

static void test_forms(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    assert_put(&w, N_TOKENS, ROUTED_NATIVE,
               "{\"data\":\"AQIDBAUGBwACAQQD\",\"shape\":[3,2,2],\"dtype\":\"uint8\",\"start\":0,"
               "\"layers\":[0,2]}");
    assert_put(&w, N_TOKENS, ROUTED_SKYRL,
               "{\"data\":\"AQIAAAMEBQYAAAcAAgEAAAQD\",\"shape\":[3,3,2],\"dtype\":\"uint8\"}");
    assert_put(&w, N_TOKENS, ROUTED_PRIME_RL,
               "{\"data\":\"AQIAAAMEBQYAAAcAAgEAAAQD\",\"shape\":[3,3,2],\"dtype\":\"uint8\","
               "\"start\":0}");
    assert_put(&w, 0, ROUTED_INT32, "\"AQAAAAIAAAAAAAAAAAAAAAMAAAAEAAAA\""); /* 1 token, 1 row */
    w.g.params.routes_start = 2;
    assert_put(&w, N_TOKENS, ROUTED_NATIVE,
               "{\"data\":\"AgEEAw==\",\"shape\":[1,2,2],\"dtype\":\"uint8\",\"start\":2,"
               "\"layers\":[0,2]}");
    assert_put(&w, 0, ROUTED_INT32, "\"\"");
}

/* np.save(…, np.array(…, dtype)): a head of 128 bytes in 172 digits. */
static void assert_npy(struct world *w, const char *descr, const char *data)
{
    struct buf out = {0};
    char head[256];
    size_t n = 0;

    routed_experts_put(&out, &w->seq, &w->made, N_TOKENS, ROUTED_NPY);
    assert_false(out.failed);
    assert_int_equal(out.data[0], '"');
    for (size_t i = 1; i + 3 < out.len && n + 3 <= 128; i += 4) {
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        uint32_t bits = 0;

        for (size_t k = 0; k < 4; k++)
            bits = bits << 6 | (uint32_t)(strchr(digits, out.data[i + k]) - digits);
        head[n++] = (char)(bits >> 16);
        head[n++] = (char)(bits >> 8);
        head[n++] = (char)bits;
    }
    assert_memory_equal(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    head[n] = '\0';
    assert_non_null(strstr(head + 10, descr));
    assert_non_null(strstr(head + 10, "'fortran_order': False, 'shape': (3, 3, 2), }"));
    assert_non_null(strstr(out.data, data));
    buf_fini(&out);
}

static void test_npy(void **state)
{
    struct world w;

    (void)state;
    world_init(&w);
    assert_npy(&w, "'descr': '|u1'", "IAoBAgAAAwQFBgAABwACAQAABAM=\""); /* " \n", then ids */
    w.generate.info.n_experts = 256;
    assert_npy(&w, "'descr': '|u1'", "");
    w.generate.info.n_experts = 257;
    assert_npy(&w, "'descr': '<u2'", "");
}

static void test_dtypes(void **state)
{
    static const struct {
        uint16_t id;
        const char *smallest;
    } rows[] = {{255, "uint8"}, {256, "int16"}, {32767, "int16"}, {32768, "int32"}};
    struct world w;

    (void)state;
    world_init(&w);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf out = {0};

        w.routes[1][0][1] = rows[i].id;
        routed_experts_put(&out, &w.seq, &w.made, N_TOKENS, ROUTED_SKYRL);
        assert_non_null(strstr(out.data, rows[i].smallest));
        buf_fini(&out);
    }
    w.g.params.routes_start = 2; /* of what is in the reply, not of all */
    assert_put(&w, N_TOKENS, ROUTED_SKYRL,
               "{\"data\":\"AgEAAAQD\",\"shape\":[1,3,2],\"dtype\":\"uint8\"}");
    w.generate.info.n_experts = 300; /* of the model, the same for every reply */
    assert_put(
        &w, N_TOKENS, ROUTED_PRIME_RL,
        "{\"data\":\"AgABAAAAAAAEAAMA\",\"shape\":[1,3,2],\"dtype\":\"uint16\",\"start\":2}");
}

static void test_without_routes(void **state)
{
    struct world w;
    struct buf out = {0};

    (void)state;
    world_init(&w);
    w.made.n_tokens = w.made.n_routed = 0; /* aborted before anything was computed */
    assert_put(&w, 0, ROUTED_SKYRL, "{\"data\":\"\",\"shape\":[0,3,2],\"dtype\":\"uint8\"}");
    w.made.n_routed = 1; /* or within its prompt */
    assert_put(
        &w, 0, ROUTED_NATIVE,
        "{\"data\":\"AQIDBA==\",\"shape\":[1,2,2],\"dtype\":\"uint8\",\"start\":0,\"layers\":"
        "[0,2]}");
    w.made.n_route_layers = 0;
    assert_put(&w, 0, ROUTED_NPY, "null");
    routed_experts_put(&out, &w.seq, NULL, 0, ROUTED_NPY);
    assert_string_equal(out.data, "null");
    buf_fini(&out);
}

static void test_ask(void **state)
{
    struct world w;
    struct err e = {0};

    (void)state;
    world_init(&w);
    assert_int_equal(routed_experts_ask(&w.g, true, &e), 0);
    assert_true(w.g.params.gen.routes);
    assert_int_equal(routed_experts_ask(&w.g, false, &e), 0);
    assert_false(w.g.params.gen.routes);
    w.generate.info.n_route_layers = 0;
    assert_int_equal(routed_experts_ask(&w.g, false, &e), 0);
    assert_int_equal(routed_experts_ask(&w.g, true, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/return_routed_experts");
    assert_non_null(strstr(e.msg, "'m' has no experts"));
}

static void test_limits(void **state)
{
    struct world w;
    struct err e = {0};

    (void)state;
    world_init(&w);
    w.g.params.routes_start = N_PROMPT;
    assert_int_equal(routed_experts_check(&w.g, &e), 0);
    w.g.params.routes_start = N_PROMPT + 1;
    assert_int_equal(routed_experts_check(&w.g, &e), -1);
    assert_string_equal(e.field, "/start");
    assert_non_null(strstr(e.msg, "expected 0 to 2"));
    e = (struct err){0};
    w.g.params.routes_start = 0;
    w.generate.info.n_route_layers = GENERATION_ROUTES_MAX / 16;
    w.g.params.n = 8; /* rows: 8 * (2 + 4 - 1) */
    w.generate.info.n_routes_per_token = 1;
    assert_int_equal(routed_experts_check(&w.g, &e), 0); /* it did not ask */
    w.g.params.gen.routes = true;
    assert_int_equal(routed_experts_check(&w.g, &e), -1);
    assert_string_equal(e.field, "/return_routed_experts");
    assert_non_null(strstr(e.msg, "up to 40 positions"));
    assert_non_null(strstr(e.msg, "671088640 ids; a request may have 268435456"));
    e = (struct err){0};
    w.g.params.n = 3;
    assert_int_equal(routed_experts_check(&w.g, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),  cmocka_unit_test(test_npy),
        cmocka_unit_test(test_dtypes), cmocka_unit_test(test_without_routes),
        cmocka_unit_test(test_ask),    cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

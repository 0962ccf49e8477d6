/* The forward pass on a small model of awkward sizes: against a plain one in double, and against
 * itself, to the bit, over batches, chunks, threads and instruction sets. */
#include "engine/kernels/attention.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"

#include "base/clock.h"
#include "weights/model/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/kv_taken.h"
#include "tests/unit/engine/random_model.h"

/* Nothing is a multiple of 16; three query heads share a KV head; every bias there is. */
enum { V = 53, H = 20, I = 37, L = 2, NH = 6, NKV = 2, D = 10, ROWS_MAX = 400, N_SEQS = 3 };

static const struct model_config cfg = {
    .arch = ARCH_QWEN3,
    .vocab_size = V,
    .hidden_size = H,
    .intermediate_size = I,
    .n_layers = L,
    .n_heads = NH,
    .n_kv_heads = NKV,
    .head_dim = D,
    .v_head_dim = D,
    .rope_dim = D,
    .max_position_embeddings = 512,
    .rms_norm_eps = 1e-2F, /* large, so that a wrong one shows */
    .rope_kind = ROPE_DEFAULT,
    .rope_theta = 5000.0,
    .tie_word_embeddings = false,
    .qkv_bias = true,
    .o_bias = true,
    .mlp_bias = true,
    .qk_norm = true,
    .dtype = DTYPE_BF16,
};

static const uint32_t seq_len[N_SEQS] = {150, 67, 5};

static uint32_t token(uint32_t seq, uint32_t pos)
{
    return (pos * 31 + seq * 17 + pos * pos % 7) % V;
}

/* --- the plain forward pass: one sequence, double, no cache ---------------------------------- */

static const float *plain_weight(const struct weights *w, int layer, const char *suffix)
{
    char name[128];
    uint32_t i;

    if (layer < 0)
        (void)snprintf(name, sizeof name, "%s", suffix);
    else
        (void)snprintf(name, sizeof name, "model.layers.%d.%s", layer, suffix);
    i = tensor_list_find(w->model_spec->tensor_list, name);
    assert_int_not_equal(i, TENSOR_LIST_NO_TENSOR);
    return w->values[i];
}

static void plain_norm(double *y, const double *x, const float *w, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = (double)w[i] * x[i] / sqrt(sum / n + (double)cfg.rms_norm_eps);
}

/* y = W x + b, named "<module>.weight" and ".bias". */
static void plain_linear(const struct weights *w, int layer, const char *module, double *y,
                         const double *x, int n, int k, bool bias)
{
    char name[64];
    const float *m, *b = NULL;

    (void)snprintf(name, sizeof name, "%s.weight", module);
    m = plain_weight(w, layer, name);
    (void)snprintf(name, sizeof name, "%s.bias", module);
    if (bias)
        b = plain_weight(w, layer, name);
    for (int i = 0; i < n; i++) {
        y[i] = b != NULL ? (double)b[i] : 0.0;
        for (int j = 0; j < k; j++)
            y[i] += (double)m[i * k + j] * x[j];
    }
}

static void plain_head(double *x, const float *norm, uint32_t pos)
{
    double y[D];

    plain_norm(y, x, norm, D);
    for (int i = 0; i < D / 2; i++) {
        float f = 1.0F / (float)pow(cfg.rope_theta, (double)((float)(2 * i) / (float)D));
        double a = (double)((float)pos * f);

        x[i] = y[i] * cos(a) - y[i + D / 2] * sin(a);
        x[i + D / 2] = y[i + D / 2] * cos(a) + y[i] * sin(a);
    }
}

static void plain_attention(double *o, const double *q, double (*k)[NKV * D], double (*v)[NKV * D],
                            uint32_t pos)
{
    double p[512], sum = 0;

    for (int h = 0; h < NH; h++) {
        int kvh = h / (NH / NKV);

        sum = 0;
        for (uint32_t j = 0; j <= pos; j++) {
            double s = 0;

            for (int i = 0; i < D; i++)
                s += q[h * D + i] * k[j][kvh * D + i];
            p[j] = exp(s / sqrt((double)D));
            sum += p[j];
        }
        for (int i = 0; i < D; i++) {
            o[h * D + i] = 0;
            for (uint32_t j = 0; j <= pos; j++)
                o[h * D + i] += p[j] / sum * v[j][kvh * D + i];
        }
    }
}

struct plain {
    double k[L][512][NKV * D], v[L][512][NKV * D];
};

static void plain_layer(const struct weights *w, struct plain *past, int l, double *x, uint32_t pos)
{
    double h[H], q[NH * D], o[NH * D], y[H], gate[I], up[I];

    plain_norm(h, x, plain_weight(w, l, "input_layernorm.weight"), H);
    plain_linear(w, l, "self_attn.q_proj", q, h, NH * D, H, true);
    plain_linear(w, l, "self_attn.k_proj", past->k[l][pos], h, NKV * D, H, true);
    plain_linear(w, l, "self_attn.v_proj", past->v[l][pos], h, NKV * D, H, true);
    for (int i = 0; i < NH; i++)
        plain_head(q + i * D, plain_weight(w, l, "self_attn.q_norm.weight"), pos);
    for (int i = 0; i < NKV; i++)
        plain_head(past->k[l][pos] + i * D, plain_weight(w, l, "self_attn.k_norm.weight"), pos);
    plain_attention(o, q, past->k[l], past->v[l], pos);
    plain_linear(w, l, "self_attn.o_proj", y, o, H, NH * D, true);
    for (int i = 0; i < H; i++)
        x[i] += y[i];
    plain_norm(h, x, plain_weight(w, l, "post_attention_layernorm.weight"), H);
    plain_linear(w, l, "mlp.gate_proj", gate, h, I, H, true);
    plain_linear(w, l, "mlp.up_proj", up, h, I, H, true);
    for (int i = 0; i < I; i++)
        gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
    plain_linear(w, l, "mlp.down_proj", y, gate, H, I, true);
    for (int i = 0; i < H; i++)
        x[i] += y[i];
}

static void plain_token(const struct weights *w, struct plain *past, uint32_t id, uint32_t pos,
                        double *logits)
{
    const float *embed = plain_weight(w, -1, "model.embed_tokens.weight");
    double x[H], h[H];

    for (int i = 0; i < H; i++)
        x[i] = (double)embed[id * H + i];
    for (int l = 0; l < L; l++)
        plain_layer(w, past, l, x, pos);
    plain_norm(h, x, plain_weight(w, -1, "model.norm.weight"), H);
    plain_linear(w, -1, "lm_head", logits, h, V, H, false);
}

/* --- runs of the engine ---------------------------------------------------------------------- */

struct run {
    struct model *model;
    struct kv_pool *pool;
    struct kv_seq kv[N_SEQS];
    float *logits; /* [ROWS_MAX, V] of the last step */
};

static struct run run_new(const struct model_config *c, const struct weights *w, uint32_t n_threads)
{
    struct run r = {0};
    struct kv_seq hole;
    struct err e = {0};

    assert_int_equal(model_new(&r.model, c, w->model_spec, ROWS_MAX, n_threads, &e), 0);
    assert_int_equal(kv_pool_new(&r.pool, c, 1 << 20, &e), 0);
    r.logits = malloc(sizeof(float) * ROWS_MAX * V);
    assert_non_null(r.logits);
    assert_true(kv_taken(&hole, r.pool, KV_CHUNK)); /* so that chunks are out of order */
    assert_true(kv_taken(&r.kv[1], r.pool, seq_len[1]));
    kv_release(&hole);
    assert_true(kv_taken(&r.kv[0], r.pool, seq_len[0]));
    assert_true(kv_taken(&r.kv[2], r.pool, seq_len[2]));
    return r;
}

static void run_free(struct run *r)
{
    for (int i = 0; i < N_SEQS; i++)
        kv_release(&r->kv[i]);
    free(r->logits);
    kv_pool_free(r->pool);
    model_free(r->model);
}

/* [sequence][position][V] */
typedef float all_logits[N_SEQS][150][V];

/* Each sequence alone, token after token. */
static void run_decode(struct run *r, const struct weights *w, all_logits out)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t pos = 0; pos < seq_len[s]; pos++) {
            struct model_row row = {token(s, pos), pos, &r->kv[s], true, NULL, NULL};

            model_step(r->model, &w->version, &row, 1, out[s][pos]);
        }
    }
}

/* All sequences together, up to `chunk` positions of each in a step, their rows in turns; logits
 * wanted where (position + sequence) % every == 0. */
static void run_mixed(struct run *r, const struct weights *w, uint32_t chunk, uint32_t every,
                      const all_logits expected)
{
    struct model_row rows[ROWS_MAX];
    uint32_t n_compared = 0;

    for (uint32_t base = 0; base < seq_len[0]; base += chunk) {
        uint32_t n = 0, n_wanted = 0;

        for (uint32_t pos = base; pos < base + chunk; pos++) {
            for (uint32_t s = 0; s < N_SEQS; s++) {
                if (pos < seq_len[s])
                    rows[n++] = (struct model_row){token(s, pos),          pos,  &r->kv[s],
                                                   (pos + s) % every == 0, NULL, NULL};
            }
        }
        model_step(r->model, &w->version, rows, n, r->logits);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t s = (uint32_t)(rows[i].kv - r->kv);

            if (!rows[i].want_logits)
                continue;
            if (memcmp(r->logits + (size_t)n_wanted * V, expected[s][rows[i].pos],
                       sizeof expected[s][0]) != 0)
                fail_msg("sequence %u, position %u differs in a mixed batch", s, rows[i].pos);
            n_wanted++;
        }
        n_compared += n_wanted;
    }
    assert_true(n_compared >= (seq_len[0] + seq_len[1] + seq_len[2]) / every - 1);
}

static void test_forward_equals_a_plain_one_in_double(void **state)
{
    struct weights w = weights_new(&cfg, 7);
    struct run r = run_new(&cfg, &w, 2);
    struct plain *past = malloc(sizeof *past);
    all_logits *out = malloc(sizeof *out);
    double worst = 0, spread = 0;

    (void)state;
    assert_true(past != NULL && out != NULL);
    run_decode(&r, &w, *out);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t pos = 0; pos < seq_len[s]; pos++) {
            double expected[V];

            plain_token(&w, past, token(s, pos), pos, expected);
            for (int i = 0; i < V; i++) {
                worst = fmax(worst, fabs((double)(*out)[s][pos][i] - expected[i]));
                spread = fmax(spread, fabs(expected[i]));
            }
        }
    }
    print_message("worst difference %.2e of logits up to %.1f\n", worst, spread);
    assert_true(spread > 1.0);
    assert_true(worst < 2e-5);
    free(out);
    free(past);
    run_free(&r);
    weights_free(&w);
}

static void test_result_depends_on_nothing_but_the_sequence(void **state)
{
    struct weights w = weights_new(&cfg, 7);
    all_logits *expected = malloc(sizeof *expected);
    struct run r;
    unsigned n_sets = 0;

    (void)state;
    assert_non_null(expected);
    assert_true(kernels_select(KERNELS_SCALAR));
    r = run_new(&cfg, &w, 1);
    run_decode(&r, &w, *expected);
    run_free(&r);
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
        if (!kernels_select((enum kernels_isa)isa))
            continue;
        n_sets++;
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            r = run_new(&cfg, &w, n_threads);
            run_mixed(&r, &w, 1, 1, (const float(*)[150][V]) * expected);
            run_mixed(&r, &w, 7, 1, (const float(*)[150][V]) * expected);
            run_mixed(&r, &w, 64, 5, (const float(*)[150][V]) * expected);
            run_mixed(&r, &w, 150, 1, (const float(*)[150][V]) * expected);
            run_free(&r);
        }
    }
    print_message("%u instruction sets, 1 to 3 threads\n", n_sets);
    free(expected);
    weights_free(&w);
}

/* Attention sees only differences of positions, so the angles themselves are checked here; far out
 * the float32 product is not what double would give, and must be the former. */
static void test_rope_angles_are_float_products(void **state)
{
    float frequencies[D / 2], row[D];
    unsigned n_rounded = 0;

    (void)state;
    rope_frequencies(frequencies, &cfg);
    for (int i = 0; i < D / 2; i++)
        assert_true(fabs((double)frequencies[i] - pow(5000.0, -2.0 * i / D)) < 1e-7);
    rope_row(row, frequencies, &cfg, 0);
    for (int i = 0; i < D / 2; i++)
        assert_true(row[i] == 1.0F && row[D / 2 + i] == 0.0F);
    rope_row(row, frequencies, &cfg, 131071);
    for (int i = 0; i < D / 2; i++) {
        float angle = 131071.0F * frequencies[i];

        assert_true(fabs((double)row[i] - cos((double)angle)) < 1e-7);
        assert_true(fabs((double)row[D / 2 + i] - sin((double)angle)) < 1e-7);
        n_rounded += (double)angle != 131071.0 * (double)frequencies[i];
    }
    assert_true(n_rounded > 0);
}

/* By the definition, in double: waves are kept, divided or blended by how many of them the original
 * context holds. */
static double scaled_frequency(double f, const struct rope_scaling *r)
{
    double n_waves = r->original_positions * f / 6.283185307179586, s;

    if (n_waves > r->high_freq_factor)
        return f;
    if (n_waves < r->low_freq_factor)
        return f / r->factor;
    s = (n_waves - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - s) * f / r->factor + s * f;
}

static void test_rope_frequencies_are_scaled(void **state)
{
    enum { DIM = 128 };
    struct model_config c = {.rope_dim = DIM,
                             .rope_theta = 500000.0,
                             .rope_kind = ROPE_LLAMA3,
                             .rope_scaling = {8, 1, 4, 8192}};
    unsigned n_kept = 0, n_divided = 0, n_blended = 0;
    float out[DIM / 2];

    (void)state;
    rope_frequencies(out, &c);
    for (int i = 0; i < DIM / 2; i++) {
        double f = pow(c.rope_theta, -2.0 * i / DIM), want = scaled_frequency(f, &c.rope_scaling);

        assert_true(fabs((double)out[i] - want) < 2e-6 * want);
        n_kept += want >= f;
        n_divided += want <= f / 8;
        n_blended += want < f && want > f / 8;
    }
    assert_true(n_kept > 10 && n_divided > 10 && n_blended > 2);
    c.rope_kind = ROPE_LINEAR;
    rope_frequencies(out, &c);
    for (int i = 0; i < DIM / 2; i++) {
        double want = pow(c.rope_theta, -2.0 * i / DIM) / 8;

        assert_true(fabs((double)out[i] - want) < 2e-6 * want);
    }
}

/* What transformers 5.19 computes for DeepSeek-V3, and for a Qwen3 without whole pairs. */
static const float yarn_deepseek[] = {1.0F,
                                      0.749894202F,
                                      0.562341332F,
                                      0.421696514F,
                                      0.316227764F,
                                      0.237137362F,
                                      0.177827939F,
                                      0.133352146F,
                                      0.100000001F,
                                      0.0749894157F,
                                      0.0562341288F,
                                      0.0390069261F,
                                      0.0268793609F,
                                      0.0183781441F,
                                      0.012447956F,
                                      0.0083345091F,
                                      0.00550000044F,
                                      0.00356199732F,
                                      0.00224936521F,
                                      0.00137051346F,
                                      0.000790569407F,
                                      0.000414990413F,
                                      0.00017782794F,
                                      3.3338034e-05F,
                                      2.49999994e-05F,
                                      1.87473543e-05F,
                                      1.40585325e-05F,
                                      1.05424124e-05F,
                                      7.90569447e-06F,
                                      5.92843435e-06F,
                                      4.44569832e-06F,
                                      3.33380353e-06F};
static const float yarn_qwen[] = {1.0F,
                                  0.421696514F,
                                  0.177827939F,
                                  0.0749894157F,
                                  0.0316227786F,
                                  0.0133352149F,
                                  0.00551727042F,
                                  0.00188350258F,
                                  0.000607408001F,
                                  0.000177344235F,
                                  4.44569851e-05F,
                                  1.87473561e-05F,
                                  7.90569356e-06F,
                                  3.33380353e-06F,
                                  1.40585337e-06F,
                                  5.92843435e-07F};

static void same_frequencies(const struct model_config *c, const float *expected)
{
    float out[32];

    rope_frequencies(out, c);
    for (uint32_t i = 0; i < c->rope_dim / 2; i++)
        if (out[i] < expected[i] || out[i] > expected[i])
            fail_msg("pair %u has %.9g, not %.9g", i, (double)out[i], (double)expected[i]);
}

static void test_yarn_frequencies_are_those_of_transformers(void **state)
{
    struct model_config c = {.rope_dim = 64,
                             .rope_theta = 10000.0,
                             .rope_kind = ROPE_YARN,
                             .rope_scaling = {.factor = 40,
                                              .original_positions = 4096,
                                              .beta_fast = 32,
                                              .beta_slow = 1,
                                              .truncate = true}};

    (void)state;
    same_frequencies(&c, yarn_deepseek);
    c.rope_dim = 32;
    c.rope_theta = 1e6;
    c.rope_scaling.factor = 4;
    c.rope_scaling.original_positions = 32768;
    c.rope_scaling.truncate = false;
    same_frequencies(&c, yarn_qwen);
}

/* The same bytes must be read, not a copy made when the model was. */
static void test_step_reads_the_version_it_is_given(void **state)
{
    struct weights w = weights_new(&cfg, 7);
    struct run r = run_new(&cfg, &w, 1);
    float before[V], after[V], again[V];
    struct model_row row = {token(0, 0), 0, &r.kv[0], true, NULL, NULL};
    uint32_t n = w.model_spec->tensor_list->n_tensors;
    struct view *other = malloc(n * sizeof *other);
    struct version next = {.serial = 2, .views = other};
    uint64_t began_us;

    (void)state;
    assert_non_null(other);
    assert_int_equal(model_pulse(r.model), 0);
    began_us = clock_now_us();
    model_step(r.model, &w.version, &row, 1, before);
    assert_true(model_pulse(r.model) >= began_us); /* health sees a long step at work */
    for (uint32_t i = 0; i < n; i++) {             /* each tensor alone changes the result */
        const struct tensor_spec *t = &w.model_spec->tensor_list->tensors[i];
        float *values = malloc(t->numel * sizeof(float));
        void *data = malloc(t->nbytes);

        assert_true(values != NULL && data != NULL);
        for (uint64_t j = 0; j < t->numel; j++)
            values[j] = w.values[i][j] * (1.25F + 0.5F * (float)(j % 2));
        dtype_convert(data, t->dtype, values, DTYPE_F32, t->numel);
        memcpy(other, w.views, n * sizeof *other);
        other[i].data = data;
        model_step(r.model, &next, &row, 1, after);
        /* One position: softmax is 1 whatever q and k are. */
        if (strstr(t->name, ".q_") == NULL && strstr(t->name, ".k_") == NULL &&
            memcmp(before, after, sizeof before) == 0)
            fail_msg("a change of '%s' is not seen", t->name);
        free(data);
        free(values);
    }
    model_step(r.model, &w.version, &row, 1, again);
    assert_memory_equal(before, again, sizeof before);
    free(other);
    run_free(&r);
    weights_free(&w);
}

static void test_tied_head_is_the_embedding(void **state)
{
    struct model_config tied = cfg;
    struct weights w, u;
    struct run r, s;
    float a[V], b[V];
    uint32_t head, embed;

    (void)state;
    tied.tie_word_embeddings = true;
    w = weights_new(&tied, 7);
    u = weights_new(&cfg, 7);
    assert_int_equal(tensor_list_find(w.model_spec->tensor_list, "lm_head.weight"),
                     TENSOR_LIST_NO_TENSOR);
    /* An untied model whose head holds the embedding's bytes gives the same. */
    head = tensor_list_find(u.model_spec->tensor_list, "lm_head.weight");
    embed = tensor_list_find(u.model_spec->tensor_list, "model.embed_tokens.weight");
    r = run_new(&tied, &w, 1);
    s = run_new(&cfg, &u, 1);
    model_step(r.model, &w.version, &(struct model_row){3, 0, &r.kv[0], true, NULL, NULL}, 1, a);
    dtype_convert((void *)(uintptr_t)u.views[head].data,
                  u.model_spec->tensor_list->tensors[head].dtype, u.values[embed], DTYPE_F32,
                  (uint64_t)V * H);
    model_step(s.model, &u.version, &(struct model_row){3, 0, &s.kv[0], true, NULL, NULL}, 1, b);
    assert_int_equal(u.model_spec->tensor_list->tensors[head].dtype,
                     DTYPE_F32); /* holds BF16 exactly */
    assert_memory_equal(a, b, sizeof a);
    run_free(&s);
    run_free(&r);
    weights_free(&u);
    weights_free(&w);
}

static void test_model_new_names_the_tensor_that_is_missing(void **state)
{
    struct model_config more = cfg;
    struct weights w = weights_new(&cfg, 7);
    struct model *m = NULL;
    struct err e = {0};

    (void)state;
    more.n_layers = L + 1;
    assert_int_equal(model_new(&m, &more, w.model_spec, 1, 1, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "model.layers.2.input_layernorm.weight"));
    assert_null(m);
    model_free(NULL);
    weights_free(&w);
}

static void test_no_rows_and_no_wanted_rows_write_nothing(void **state)
{
    struct weights w = weights_new(&cfg, 7);
    struct run r = run_new(&cfg, &w, 2);
    struct model_row row = {1, 0, &r.kv[0], false, NULL, NULL};
    float untouched = 42.0F;

    (void)state;
    model_step(r.model, &w.version, &row, 0, &untouched);
    model_step(r.model, &w.version, &row, 1, &untouched);
    assert_true(untouched == 42.0F);
    run_free(&r);
    weights_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_equals_a_plain_one_in_double),
        cmocka_unit_test(test_result_depends_on_nothing_but_the_sequence),
        cmocka_unit_test(test_rope_angles_are_float_products),
        cmocka_unit_test(test_rope_frequencies_are_scaled),
        cmocka_unit_test(test_yarn_frequencies_are_those_of_transformers),
        cmocka_unit_test(test_step_reads_the_version_it_is_given),
        cmocka_unit_test(test_tied_head_is_the_embedding),
        cmocka_unit_test(test_model_new_names_the_tensor_that_is_missing),
        cmocka_unit_test(test_no_rows_and_no_wanted_rows_write_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

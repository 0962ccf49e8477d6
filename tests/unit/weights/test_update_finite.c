/* Numbers that are not finite, on their way into host memory: whatever pieces they come in. */
#include "tests/unit/update_fixture.h"

enum { N = 9, NBYTES_MAX = 8192, PIECES_MAX = NBYTES_MAX, ROUNDS = 300 };

static const struct fx_tensor cut_model[N] = {
    {"u8", DTYPE_U8, 1, {13}},       {"f16", DTYPE_F16, 1, {50}}, {"bf16", DTYPE_BF16, 1, {301}},
    {"f32", DTYPE_F32, 1, {77}},     {"f64", DTYPE_F64, 1, {41}}, {"e4m3", DTYPE_F8_E4M3, 1, {99}},
    {"e5m2", DTYPE_F8_E5M2, 1, {7}}, {"i32", DTYPE_I32, 1, {20}}, {"late", DTYPE_BF16, 2, {9, 5}},
};

static struct tensor_list *cut_tensor_list(void)
{
    const struct fx_tensor *all[N];

    for (uint32_t i = 0; i < N; i++)
        all[i] = &cut_model[i];
    return fx_tensor_list(all, N);
}

static struct model_spec *cut_model_spec(void)
{
    struct model_spec *m = NULL;
    struct err e = {0};

    assert_int_equal(model_spec_new(&m, cut_tensor_list(), NULL, 0, &e), 0);
    return m;
}

/* What is sent, packed, and how it is told of. */
static struct {
    uint8_t bytes[NBYTES_MAX];
    uint64_t random;
    enum { TELL_ALL, TELL_SOME, TELL_NOTHING } tell;
} sent;

static uint64_t draw(uint64_t n)
{
    sent.random = sent.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (sent.random >> 33) % n;
}

struct piece {
    uint64_t at, nbytes;
};

/* Cut anywhere, in any order, as by several threads of which one has not come to a piece before
 * another has ended the next. */
static int cut_fill(struct source *s, const struct tensor_list *tensor_list, uint32_t first,
                    uint32_t n, void *dst, struct progress *p, struct err *e)
{
    const struct tensor_spec *t = tensor_list->tensors;
    uint64_t begin = t[first].offset, nbytes = t[first + n - 1].offset + t[first + n - 1].nbytes;
    struct piece pieces[PIECES_MAX];
    uint32_t n_pieces = 0;

    (void)s;
    (void)e;
    nbytes -= begin;
    memset(dst, 0xff, nbytes); /* what has not come must not count */
    for (uint64_t at = 0, len; at < nbytes; at += len) {
        len = 1 + draw(97);
        len = len < nbytes - at ? len : nbytes - at;
        pieces[n_pieces++] = (struct piece){at, len};
    }
    for (; n_pieces > 0; n_pieces--) {
        struct piece *one = &pieces[draw(n_pieces)];

        memcpy((uint8_t *)dst + one->at, sent.bytes + begin + one->at, one->nbytes);
        if (sent.tell == TELL_ALL || (sent.tell == TELL_SOME && draw(2) > 0))
            progress_came(p, (uint8_t *)dst + one->at, one->nbytes);
        *one = pieces[n_pieces - 1];
    }
    (void)atomic_fetch_add(&p->nbytes_done, nbytes);
    return 0;
}

/* @wrong  the tensor whose checksum is not that of its bytes; N: none */
static void give_sums(struct update_chunk *c, uint32_t wrong)
{
    c->checksums = calloc(N, sizeof *c->checksums);
    assert_non_null(c->checksums);
    for (uint32_t i = 0; i < N; i++) {
        const struct tensor_spec *t = &c->tensor_list->tensors[i];

        c->checksums[i] = checksum_of(sent.bytes + t->offset, t->nbytes);
        c->checksums[i].b += i == wrong;
    }
}

static enum err_code cut_push_summed(struct bench *b, const char *label, uint32_t wrong)
{
    static const struct source_ops ops = {.name = "cut", .fill = cut_fill, .close = fx_close};
    struct update_chunk *c = chunk_of(b, "", cut_tensor_list(), FX_STEP(1));

    c->source->ops = &ops;
    give_sums(c, wrong);
    (void)snprintf(c->label, sizeof c->label, "%s", label);
    submit(b, c);
    return fx_await(&b->answer);
}

static enum err_code cut_push(struct bench *b, const char *label)
{
    return cut_push_summed(b, label, N);
}

/* Finite bytes, and in them up to two elements of all ones. Returns a bit for each tensor that then
 * is not finite, by looking at it in one piece. */
static unsigned make_bytes(const struct tensor_list *tensor_list, unsigned round)
{
    unsigned bad = 0;

    sent.random = round;
    sent.tell = round % 8 == 1 ? TELL_SOME : round % 8 == 2 ? TELL_NOTHING : TELL_ALL;
    for (uint64_t i = 0; i < tensor_list->nbytes; i++)
        sent.bytes[i] = (uint8_t)draw(0x70);
    for (uint64_t k = draw(3); k > 0; k--) {
        const struct tensor_spec *t = &tensor_list->tensors[draw(N)];
        uint64_t size = dtype_nbytes(t->dtype);

        memset(sent.bytes + t->offset + size * draw(t->numel), 0xff, size);
    }
    for (uint32_t i = 0; i < N; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        bad |= non_finite_in(sent.bytes + t->offset, t->nbytes, t->dtype) ? 1U << i : 0;
    }
    return bad;
}

static unsigned told(const struct non_finite_names *names)
{
    unsigned bits = 0;

    for (uint32_t i = 0; i < names->n; i++)
        for (uint32_t k = 0; k < N; k++)
            bits |= strcmp(names->names[i], cut_model[k].name) == 0 ? 1U << k : 0;
    assert_int_equal(__builtin_popcount(bits), names->n);
    return bits;
}

static void test_whatever_the_cuts(void **state)
{
    unsigned n_bad = 0;
    struct tensor_list *tensor_list = cut_tensor_list();
    struct bench b;

    (void)state;
    assert_true(tensor_list->nbytes <= NBYTES_MAX);
    bench_model_spec = cut_model_spec;
    for (int policy = NON_FINITE_REFUSE; policy <= NON_FINITE_ALLOW; policy++) {
        bench_non_finite = (enum non_finite_policy)policy;
        bench_open(&b);
        for (unsigned round = 0; round < ROUNDS; round++) {
            unsigned bad = make_bytes(tensor_list, round);
            enum err_code code = cut_push(&b, "step");

            n_bad += bad != 0;
            if (policy == NON_FINITE_REFUSE)
                assert_int_equal(code, bad != 0 ? ERR_NON_FINITE : ERR_NONE);
            else
                assert_int_equal(code, ERR_NONE);
            assert_int_equal(told(&b.answer.info.non_finite), policy == NON_FINITE_WARN ? bad : 0);
        }
        bench_close(&b);
    }
    assert_in_range(n_bad, ROUNDS, 3 * ROUNDS - ROUNDS / 2);
    bench_model_spec = NULL;
    bench_non_finite = NON_FINITE_REFUSE;
    tensor_list_unref(tensor_list);
}

/* The checksums of tensors are joined from those of the pieces, whatever they are. */
static void test_a_wrong_checksum_is_refused(void **state)
{
    struct tensor_list *tensor_list = cut_tensor_list();
    struct bench b;

    (void)state;
    bench_model_spec = cut_model_spec;
    bench_non_finite = NON_FINITE_ALLOW;
    bench_open(&b);
    for (unsigned round = 0; round < 8 * N; round++) {
        char field[32];

        (void)make_bytes(tensor_list, round);
        (void)snprintf(field, sizeof field, "/checksums/%u", round % N);
        assert_int_equal(cut_push_summed(&b, "step", round % N), ERR_CHECKSUM);
        assert_string_equal(b.answer.e.field, field);
        assert_int_equal(cut_push_summed(&b, "step", N), ERR_NONE);
    }
    bench_close(&b);
    bench_model_spec = NULL;
    bench_non_finite = NON_FINITE_REFUSE;
    tensor_list_unref(tensor_list);
}

static void test_the_refusal_says_which(void **state)
{
    struct tensor_list *tensor_list = cut_tensor_list();
    struct bench b;

    (void)state;
    bench_model_spec = cut_model_spec;
    bench_open(&b);
    (void)make_bytes(tensor_list, 0);
    memset(sent.bytes, 0, sizeof sent.bytes);
    sent.bytes[tensor_list->tensors[3].offset + 4 * 70 + 2] =
        0x80; /* infinity at 70, NaN behind it */
    sent.bytes[tensor_list->tensors[3].offset + 4 * 70 + 3] = 0xff;
    memset(sent.bytes + tensor_list->tensors[3].offset + 4 * 71, 0xff, 4);
    assert_int_equal(cut_push(&b, "step-7"), ERR_NON_FINITE);
    assert_string_equal(b.answer.e.field, "/names/3");
    assert_non_null(strstr(b.answer.e.msg, "'f32' of 'step-7': 2 of its 77 numbers are not finite, "
                                           "the first is -infinity at index 70"));
    assert_int_equal(b.answer.info.phase, UPDATE_ABORTED);
    bench_close(&b);
    bench_model_spec = NULL;
    tensor_list_unref(tensor_list);
}

/* The first tensor of the model, all of one element. */
struct of_one {
    struct source source;
    uint32_t bits;
    uint64_t size;
};

static int one_fill(struct source *s, const struct tensor_list *tensor_list, uint32_t first,
                    uint32_t n, void *dst, struct progress *p, struct err *e)
{
    const struct of_one *one = (const struct of_one *)(const void *)s;
    uint64_t nbytes = tensor_list->tensors[first].nbytes;

    (void)e;
    assert_int_equal(first + n, 1);
    for (uint64_t at = 0; at < nbytes; at += one->size)
        memcpy((uint8_t *)dst + at, &one->bits, one->size);
    (void)atomic_fetch_add(&p->nbytes_done, nbytes);
    return 0;
}

static void one_close(struct source *s)
{
    free(s);
}

/* Tensor 0 of the fixture's model (BF16), or a name of it, sent as F32 or BF16, in a session. */
static enum err_code one_push(struct bench *b, const char *id, const char *name, enum dtype dtype,
                              uint32_t bits)
{
    static const struct source_ops ops = {.name = "one", .fill = one_fill, .close = one_close};
    struct fx_tensor tensor = {name, dtype, 2, {16, 8}};
    const struct fx_tensor *list[] = {&tensor};
    struct update_chunk *c = chunk_of(b, id, fx_tensor_list(list, 1), FX_STEP(1));
    struct of_one *one = calloc(1, sizeof *one);

    assert_non_null(one);
    *one = (struct of_one){{&ops}, bits, dtype_nbytes(dtype)};
    source_close(c->source);
    c->source = &one->source;
    c->convert = true;
    submit(b, c);
    return fx_await(&b->answer);
}

/* A refused chunk leaves its session as a failed checksum does: it may be sent again. */
static void test_a_session_goes_on(void **state)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        uint32_t bits;
        const char *says;
    } bad[] = {
        {"embed.weight", DTYPE_BF16, 0x7f80, "'embed.weight' of 'step-2': 128 of its 128"},
        {"embed.weight", DTYPE_F32, 0x7f800001, "'embed.weight' of 'step-2': 128"},
        {"embed.weight", DTYPE_F32, 0x7f7fffff,
         "'embed.weight' as BF16 of 'step-2'"}, /* rounds up */
        {"lm_head.weight", DTYPE_F32, 0xff7fffff, "is -infinity at index 0"},
        {"lm_head.weight", DTYPE_BF16, 0xffc0, "'lm_head.weight' of 'step-2'"},
    };
    struct update_info info;
    struct err e = {0};
    struct bench b;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    info = start(&b, (struct update_start){.partial = true, .label = "step-2"});
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(one_push(&b, info.id, bad[i].name, bad[i].dtype, bad[i].bits),
                         ERR_NON_FINITE);
        assert_non_null(strstr(b.answer.e.msg, bad[i].says));
        assert_string_equal(b.answer.e.field, "/names/0");
        fx_assert_step(b.store, 1);
    }
    assert_int_equal(one_push(&b, info.id, "embed.weight", DTYPE_F32, 0x7f7f0000), ERR_NONE);
    assert_int_equal(updates_finish(b.updates, info.id, "", NULL, 0, fx_done, &b.answer, &e), 0);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.serial, 2);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whatever_the_cuts),
        cmocka_unit_test(test_a_wrong_checksum_is_refused),
        cmocka_unit_test(test_the_refusal_says_which),
        cmocka_unit_test(test_a_session_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

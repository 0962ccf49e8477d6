/* Making an adapter: every tensor understood, or none taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/engine/adapter_fixture.h"

/* Makes one out of `t`; on failure *a stays NULL. */
static int make(struct adapter **a, struct adapter_report *report, const struct model_config *m,
                const struct tensors *t, const char *json, uint64_t seed, bool allow_partial,
                struct err *e)
{
    struct tensor_list *tensor_list = tensor_list_of(t);
    struct adapter_config *c = config_of(json);
    struct adapter_spec spec = spec_of(m, c);
    int rc;

    spec.allow_partial = allow_partial;
    rc = adapter_of_bytes(a, report, &spec, tensor_list, bytes_of(tensor_list, seed), e);
    adapter_config_free(c);
    tensor_list_unref(tensor_list);
    return rc;
}

static void check_fixture(const char *dir, uint32_t r, float scale, unsigned mask, bool bytes_too)
{
    struct model_config m = kjv_model();
    struct safetensors s;
    struct adapter_report report;
    struct adapter *a = NULL;
    struct adapter_config *c;
    struct adapter_spec spec;
    struct err e = {0};
    struct blob text, file;
    char path[300], *bytes;
    uint32_t n = 0;

    (void)snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    text = read_blob(path);
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    file = read_blob(path);
    c = config_of(text.data);
    spec = spec_of(&m, c);
    assert_int_equal(
        safetensors_parse(&s, file.data, 8 + *(uint64_t *)(void *)file.data, file.len, &e), 0);
    bytes = malloc(s.tensor_list->nbytes);
    assert_non_null(bytes);
    memcpy(bytes, file.data + s.nbytes_head, s.tensor_list->nbytes);
    if (adapter_of_bytes(&a, &report, &spec, s.tensor_list, bytes, &e) != 0)
        fail_msg("%s", e.msg);
    for (uint32_t i = 0; i < m.n_layers * ADAPTER_MODULE_COUNT; i++) {
        const struct adapter_pair *p = adapter_pair(a, i / 7, (enum adapter_module)(i % 7));
        char name[200], module[MODEL_NAME_MAX];
        uint32_t at;

        assert_int_equal(p->r, (mask >> i % 7 & 1) != 0 ? r : 0);
        if (p->r == 0)
            continue;
        n += 2;
        assert_true(p->scale == scale && p->a_dtype == DTYPE_BF16 && p->b_dtype == DTYPE_BF16);
        assert_int_equal((uintptr_t)p->a % ADAPTER_ALIGN + (uintptr_t)p->b % ADAPTER_ALIGN, 0);
        (void)snprintf(name, sizeof name, PEFT "%s.lora_B.weight",
                       adapter_module_path(i / 7, (enum adapter_module)(i % 7), module));
        at = tensor_list_find(s.tensor_list, name);
        assert_int_not_equal(at, TENSOR_LIST_NO_TENSOR);
        if (bytes_too)
            assert_memory_equal(p->b, file.data + s.nbytes_head + s.tensor_list->tensors[at].offset,
                                s.tensor_list->tensors[at].nbytes);
    }
    assert_int_equal(report.matched.n, n);
    assert_int_equal(report.matched.n, s.tensor_list->n_tensors);
    assert_int_equal(report.unmatched.n + report.ignored.n + report.missing.n, 0);
    assert_int_equal(adapter_rank(a), r);
    assert_true(adapter_nbytes(a) >= s.tensor_list->nbytes);
    assert_int_equal(strlen(adapter_digest(a)), ADAPTER_DIGEST_LEN);
    adapter_report_fini(&report);
    adapter_free(a);
    safetensors_fini(&s);
    adapter_config_free(c);
    free(text.data);
    free(file.data);
}

static void test_new_takes_what_peft_wrote(void **state)
{
    (void)state;
    check_fixture(SHOUT, 16, 2.0F, ALL_MODULES, true);
    check_fixture(RSLORA, 4, 4.0F, 1U << ADAPTER_Q | 1U << ADAPTER_V, true);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

/* One change to a whole adapter of q and v, rank 4: what is said about it. */
enum { A_OF_Q = 0, B_OF_Q = 1, GONE = -1 };
static const struct {
    const char *says, *json;
    int change; /* of which tensor; GONE: of none */
    const char *name;
    enum dtype dtype;
    uint64_t rows, columns; /* 0: as it was */
    enum err_code code;
} misfits[] = {
    {"[5, 20], but rank 4 and this model make it [4, 20]", NULL, A_OF_Q, NULL, 0, 5, 0,
     ERR_MISMATCH},
    {"[4, 21]", NULL, A_OF_Q, NULL, 0, 0, 21, ERR_MISMATCH},
    {"make it [24, 4]", NULL, B_OF_Q, NULL, 0, 20, 0, ERR_MISMATCH},
    {"[24, 5]", NULL, B_OF_Q, NULL, 0, 0, 5, ERR_MISMATCH},
    {"rank 2 and this model make it [2, 20]", "{\"r\":2}", GONE, NULL, 0, 0, 0, ERR_MISMATCH},
    {"rank 2 and this model", "{\"r\":4,\"rank_pattern\":{\"layers.1.*v_proj\":2}}", GONE, NULL, 0,
     0, 0, ERR_MISMATCH},
    {"is I8, which is not one of BF16, F16, F32", NULL, B_OF_Q, NULL, DTYPE_I8, 0, 0, ERR_MISMATCH},
    {"has no lora_B", NULL, B_OF_Q, "junk", 0, 0, 0, ERR_MISMATCH},
    {"has no lora_A", NULL, A_OF_Q, "junk", 0, 0, 0, ERR_MISMATCH},
    {"one and the same", NULL, 2, "model.layers.0.self_attn.q_proj.lora_A.weight", 0, 4, 20,
     ERR_BAD_REQUEST},
    {"DoRA", NULL, 2, PEFT "model.layers.0.self_attn.q_proj.lora_magnitude_vector", 0, 0, 0,
     ERR_BAD_REQUEST},
    {"biases", NULL, 2, PEFT "model.layers.0.self_attn.q_proj.lora_B.bias", 0, 0, 0,
     ERR_BAD_REQUEST},
    {"embeddings", NULL, 2, PEFT "model.embed_tokens.lora_embedding_A", 0, 0, 0, ERR_BAD_REQUEST},
    {"lm_head", NULL, 2, PEFT "lm_head.lora_A.weight", 0, 0, 0, ERR_BAD_REQUEST},
    {"base model", NULL, 2, PEFT "model.layers.0.self_attn.q_proj.base_layer.weight", 0, 0, 0,
     ERR_BAD_REQUEST},
    {"names lm_head", "{\"r\":4,\"target_modules\":[\"q_proj\",\"lm_head\"]}", GONE, NULL, 0, 0, 0,
     ERR_BAD_REQUEST},
    {"names model.embed_tokens", "{\"r\":4,\"target_modules\":\".*(embed_tokens|_proj)\"}", GONE,
     NULL, 0, 0, 0, ERR_BAD_REQUEST},
    {"4 of 8 tensors belong to no module", "{\"r\":4,\"target_modules\":[\"q_proj\"]}", GONE, NULL,
     0, 0, 0, ERR_MISMATCH},
    {"4 of 8 tensors", "{\"r\":4,\"layers_to_transform\":[1]}", GONE, NULL, 0, 0, 0, ERR_MISMATCH},
    {"none of 8 tensors", "{\"r\":4,\"target_modules\":[\"wq\"]}", GONE, NULL, 0, 0, 0,
     ERR_MISMATCH},
    {"2 modules that the adapter targets have no tensors; the first is "
     "'model.layers.0.self_attn.k_proj'",
     "{\"r\":4,\"target_modules\":[\"q_proj\",\"k_proj\",\"v_proj\"]}", GONE, NULL, 0, 0, 0,
     ERR_MISMATCH},
    {"rank 65, at most 64", "{\"r\":65}", GONE, NULL, 0, 65, 65, ERR_BAD_REQUEST},
};

static void test_new_refuses_what_does_not_fit(void **state)
{
    struct model_config m = small_model();

    (void)state;
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        struct tensors t = tensors_of(&m, 1U << ADAPTER_Q | 1U << ADAPTER_V,
                                      misfits[i].rows == 65 ? 65 : 4, DTYPE_F32, PEFT);
        struct tensor *x = misfits[i].change >= 0 ? &t.list[misfits[i].change] : NULL;
        struct adapter *a = NULL;
        struct err e = {0};

        if (x != NULL && misfits[i].name != NULL)
            (void)snprintf(x->name, sizeof x->name, "%s", misfits[i].name);
        if (x != NULL && misfits[i].dtype != DTYPE_NONE)
            x->dtype = misfits[i].dtype;
        if (x != NULL && misfits[i].rows != 0)
            x->shape[0] = misfits[i].rows;
        if (x != NULL && misfits[i].columns != 0)
            x->shape[1] = misfits[i].columns;
        assert_int_equal(make(&a, NULL, &m, &t,
                              misfits[i].json != NULL ? misfits[i].json : "{\"r\":4}", 1, false,
                              &e),
                         -1);
        assert_null(a);
        if (e.code != misfits[i].code || strstr(e.msg, misfits[i].says) == NULL)
            fail_msg("row %zu: %s: %s", i, err_wire_name(e.code), e.msg);
    }
}

static void test_new_takes_a_part_only_when_told(void **state)
{
    struct model_config m = small_model();
    struct tensors t = tensors_of(&m, 1U << ADAPTER_Q | 1U << ADAPTER_UP, 4, DTYPE_F16, "");
    static const char json[] = "{\"r\":4,\"target_modules\":[\"q_proj\",\"k_proj\"]}";
    struct adapter_report report = {0};
    struct adapter *a = NULL;
    struct err e = {0};

    (void)state;
    (void)snprintf(t.list[t.n].name, sizeof t.list[0].name, "model.rotary_emb.inv_freq");
    t.list[t.n] = (struct tensor){
        .name = "model.rotary_emb.inv_freq", .dtype = DTYPE_F32, .ndim = 1, .shape = {2}};
    t.n++;
    t.list[t.n++] = (struct tensor){.name = PEFT "model.layers.2.self_attn.q_proj.lora_A.weight",
                                    .dtype = DTYPE_F32,
                                    .ndim = 2,
                                    .shape = {4, 20}};
    assert_int_equal(make(&a, &report, &m, &t, json, 1, false, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_null(report.matched.items);
    err_clear(&e);
    assert_int_equal(make(&a, &report, &m, &t, json, 1, true, &e), 0);
    assert_int_equal(report.matched.n, 4);
    assert_int_equal(report.unmatched.n, 5);
    assert_int_equal(report.ignored.n, 1);
    assert_int_equal(report.missing.n, 2);
    assert_string_equal(report.missing.items[1], "model.layers.1.self_attn.k_proj");
    assert_int_equal(adapter_pair(a, 0, ADAPTER_Q)->r, 4);
    assert_int_equal(adapter_pair(a, 0, ADAPTER_UP)->r, 0);
    adapter_report_fini(&report);
    adapter_free(a);
    a = NULL;
    /* Nothing at all is never a part. */
    assert_int_equal(make(&a, &report, &m, &t, "{\"r\":4,\"target_modules\":[\"x\"]}", 1, true, &e),
                     -1);
    assert_int_equal(e.code, ERR_MISMATCH);
}

/* A sparse layer has experts instead of an MLP: an adapter of its MLP has no place there. */
static void test_new_refuses_the_mlp_of_a_sparse_layer(void **state)
{
    static const char json[] = "{\"r\":4,\"target_modules\":[\"q_proj\",\"up_proj\"]}";
    struct model_config m = small_model();
    struct tensors t = tensors_of(&m, 1U << ADAPTER_Q | 1U << ADAPTER_UP, 4, DTYPE_F32, PEFT);
    struct adapter_report report = {0};
    struct adapter *a = NULL;
    struct err e = {0};

    (void)state;
    m.experts = (struct model_experts){.n = 4,
                                       .n_per_token = 2,
                                       .intermediate_size = 8,
                                       .n_sparse_layers = 1,
                                       .sparse_layers = {1U << 1}};
    assert_int_equal(make(&a, &report, &m, &t, json, 1, false, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "model.layers.1.mlp.up_proj"));
    err_clear(&e);
    assert_int_equal(make(&a, &report, &m, &t, json, 1, true, &e), 0);
    assert_int_equal(report.unmatched.n, 2);
    assert_int_equal(report.missing.n, 0);
    assert_int_equal(adapter_pair(a, 0, ADAPTER_UP)->r, 4);
    assert_int_equal(adapter_pair(a, 1, ADAPTER_UP)->r, 0);
    assert_int_equal(adapter_pair(a, 1, ADAPTER_Q)->r, 4);
    adapter_report_fini(&report);
    adapter_free(a);
}

/* Latent attention has no k_proj and no v_proj, and with a latent for queries no q_proj. */
static void test_new_refuses_what_latent_attention_lacks(void **state)
{
    static const char json[] = "{\"r\":4,\"target_modules\":[\"q_proj\",\"k_proj\",\"o_proj\"]}";
    struct model_config m = small_model();
    struct tensors t = tensors_of(&m, 1U << ADAPTER_Q | 1U << ADAPTER_K | 1U << ADAPTER_O, 4,
                                  DTYPE_F32, PEFT);
    struct adapter_report report = {0};
    struct adapter *a = NULL;
    struct err e = {0};

    (void)state;
    m.latents.kv_rank = 8;
    assert_int_equal(make(&a, &report, &m, &t, json, 1, false, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "model.layers.0.self_attn.k_proj"));
    err_clear(&e);
    assert_int_equal(make(&a, &report, &m, &t, json, 1, true, &e), 0);
    assert_int_equal(report.unmatched.n, 4);
    assert_int_equal(adapter_pair(a, 1, ADAPTER_Q)->r, 4);
    assert_int_equal(adapter_pair(a, 1, ADAPTER_K)->r, 0);
    assert_int_equal(adapter_pair(a, 1, ADAPTER_O)->r, 4);
    adapter_report_fini(&report);
    adapter_free(a);
    m.latents.q_rank = 8;
    assert_int_equal(make(&a, &report, &m, &t, json, 1, false, &e), -1);
    assert_non_null(strstr(e.msg, "model.layers.0.self_attn.q_proj"));
}

/* The digest is of what is computed: not of names, places or keys that say nothing. */
static void test_digest_tells_what_differs(void **state)
{
    static const struct {
        const char *json, *prefix;
        enum dtype dtype;
        uint64_t seed;
        bool reversed, same;
    } rows[] = {
        {"{\"r\":4,\"lora_alpha\":8}", PEFT, DTYPE_BF16, 1, false, true},
        {"{\"r\":4,\"lora_alpha\":8,\"lora_dropout\":0.5}", "", DTYPE_BF16, 1, true, true},
        {"{\"r\":4,\"lora_alpha\":4,\"use_rslora\":true}", PEFT, DTYPE_BF16, 1, false, true},
        {"{\"r\":4,\"lora_alpha\":9}", PEFT, DTYPE_BF16, 1, false, false},
        {"{\"r\":4,\"lora_alpha\":8,\"alpha_pattern\":{\"layers.1.*q_proj\":9}}", PEFT, DTYPE_BF16,
         1, false, false},
        {"{\"r\":4,\"lora_alpha\":8}", PEFT, DTYPE_F16, 1, false, false},
        {"{\"r\":4,\"lora_alpha\":8}", PEFT, DTYPE_BF16, 2, false, false},
    };
    struct model_config m = small_model();
    char first[ADAPTER_DIGEST_LEN + 1] = "";

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tensors t = tensors_of(&m, ALL_MODULES, 4, rows[i].dtype, rows[i].prefix);
        struct adapter *a = NULL;
        struct err e = {0};

        for (uint32_t k = 0; rows[i].reversed && k < t.n / 2; k++) {
            struct tensor x = t.list[k];

            t.list[k] = t.list[t.n - 1 - k];
            t.list[t.n - 1 - k] = x;
        }
        if (make(&a, NULL, &m, &t, rows[i].json, rows[i].seed, false, &e) != 0)
            fail_msg("%s", e.msg);
        if (i == 0)
            (void)snprintf(first, sizeof first, "%s", adapter_digest(a));
        assert_int_equal(strcmp(first, adapter_digest(a)) == 0, rows[i].same);
        adapter_free(a);
    }
}

static void test_new_bounds_bytes_and_tensors(void **state)
{
    struct model_config m = small_model();
    struct tensors t = tensors_of(&m, ALL_MODULES, 4, DTYPE_F32, PEFT);
    struct tensor_list *tensor_list = tensor_list_of(&t);
    struct adapter_config *c = config_of("{\"r\":4}");
    struct adapter_spec spec = spec_of(&m, c);
    struct adapter_builder *b = NULL;
    struct err e = {0};
    uint64_t nbytes;

    (void)state;
    assert_int_equal(adapter_builder_new(&b, &spec, tensor_list, &e), 0);
    nbytes = adapter_builder_nbytes(b);
    adapter_builder_free(b);
    spec.nbytes_max = nbytes;
    assert_int_equal(adapter_builder_new(&b, &spec, tensor_list, &e), 0);
    adapter_builder_free(b);
    spec.nbytes_max = nbytes - 1;
    assert_int_equal(adapter_builder_new(&b, &spec, tensor_list, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    adapter_config_free(c);
    tensor_list_unref(tensor_list);
}

static void test_names_are_read_exactly(void **state)
{
    static const struct {
        const char *name;
        enum adapter_name_kind kind;
        uint32_t layer;
        enum adapter_module module;
        bool is_b;
    } rows[] = {
        {PEFT "model.layers.0.self_attn.q_proj.lora_A.weight", ADAPTER_NAME_HALF, 0, ADAPTER_Q, 0},
        {"model.layers.11.mlp.down_proj.lora_B.weight", ADAPTER_NAME_HALF, 11, ADAPTER_DOWN, 1},
        {"model.layers.12.mlp.down_proj.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.01.mlp.down_proj.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.4294967296.mlp.up_proj.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.-1.mlp.up_proj.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers..mlp.up_proj.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.0.mlp.up_proj.lora_C.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.0.mlp.up_proj.lora_B.weight.x", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.0.mlp.up_projx.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.0.mlp.experts.0.up_proj.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.0.lora_A.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {".lora_A.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {PEFT, ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {PEFT PEFT "model.layers.0.mlp.up_proj.lora_B.weight", ADAPTER_NAME_FOREIGN, 0, 0, 0},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", ADAPTER_NAME_IGNORED, 0, 0, 0},
        {PEFT "lm_head.weight", ADAPTER_NAME_REFUSED, 0, 0, 0},
        {PEFT "model.norm.modules_to_save.default.weight", ADAPTER_NAME_REFUSED, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct adapter_name n = adapter_name_parse(rows[i].name, 12);

        if (n.kind != rows[i].kind)
            fail_msg("'%s' is of kind %d", rows[i].name, (int)n.kind);
        if (n.kind == ADAPTER_NAME_HALF)
            assert_true(n.layer == rows[i].layer && n.module == rows[i].module &&
                        n.is_b == rows[i].is_b);
    }
}

static void test_new_unwinds_every_failed_allocation(void **state)
{
    struct model_config m = small_model();
    struct tensors t = tensors_of(&m, ALL_MODULES, 4, DTYPE_BF16, PEFT);
    struct tensor_list *tensor_list = tensor_list_of(&t);
    struct adapter_config *c = config_of("{\"r\":4}");
    struct adapter_spec spec = spec_of(&m, c);
    int rc = -1;

    (void)state;
    for (long n = 0; rc != 0; n++) {
        struct adapter_report report = {0};
        struct adapter *a = NULL;
        char *bytes = bytes_of(tensor_list, 1);
        struct err e = {0};

        assert_true(n < 1000);
        fail_nth(n);
        rc = adapter_of_bytes(&a, &report, &spec, tensor_list, bytes, &e);
        fail_nth(-1);
        assert_true((rc == 0) == (a != NULL) && (rc == 0) == (report.matched.n > 0));
        assert_true(rc == 0 || e.code == ERR_NO_MEMORY);
        adapter_report_fini(&report);
        adapter_free(a);
        assert_int_equal(atomic_load(&nbytes_mapped), 0);
    }
    adapter_config_free(c);
    tensor_list_unref(tensor_list);
}

/* The last value of each tensor of the base. */
static struct tensor_list *list_of_parts(const struct tensor_list *base)
{
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct err e = {0};
    uint64_t one = 1;
    char name[300];

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < base->n_tensors; i++) {
        (void)snprintf(name, sizeof name, "%s#index", base->tensors[i].name);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U64, &one, 1, 1, &e), 0);
        (void)snprintf(name, sizeof name, "%s#value", base->tensors[i].name);
        assert_int_equal(tensor_list_builder_add(b, name, base->tensors[i].dtype, &one, 1, 1, &e),
                         0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    return list;
}

/* Into the parts, and into the bytes of all tensors. */
static void change_last(const struct tensor_list *base, const struct tensor_list *list, char *parts,
                        char *whole)
{
    static const uint16_t value = 0x3c01;

    for (uint32_t i = 0; i < base->n_tensors; i++) {
        const struct tensor_spec *t = &base->tensors[i];
        uint64_t last = t->numel - 1;

        memcpy(parts + list->tensors[2 * i].offset, &last, sizeof last);
        memcpy(parts + list->tensors[2 * i + 1].offset, &value, sizeof value);
        memcpy(whole + t->offset + last * sizeof value, &value, sizeof value);
    }
}

/* Equal to what all tensors make, or nothing is left. */
static void test_a_delta_makes_the_whole_or_unwinds(void **state)
{
    struct model_config m = small_model();
    struct adapter *base = adapter_made(&m, ALL_MODULES, 4, DTYPE_BF16, 1), *whole = NULL;
    const struct tensor_list *tensors = adapter_tensors(base);
    struct tensor_list *list = list_of_parts(tensors);
    struct adapter_config *c = config_of("{\"r\":4}");
    struct adapter_spec spec = spec_of(&m, c), plain = spec;
    int64_t before = atomic_load(&nbytes_mapped);
    char *bytes = malloc(tensors->nbytes), *parts = malloc(list->nbytes);
    struct err e = {0};
    int rc = -1;

    (void)state;
    assert_true(bytes != NULL && parts != NULL);
    for (uint32_t i = 0; i < tensors->n_tensors; i++)
        memcpy(bytes + tensors->tensors[i].offset, adapter_bytes(base, i),
               tensors->tensors[i].nbytes);
    spec.base = base;
    change_last(tensors, list, parts, bytes);
    for (long n = 0; rc != 0; n++) {
        struct adapter *a = NULL;
        char *copy = malloc(list->nbytes);

        assert_true(copy != NULL && n < 1000);
        memcpy(copy, parts, list->nbytes);
        err_clear(&e);
        fail_nth(n);
        rc = adapter_of_bytes(&a, NULL, &spec, list, copy, &e);
        fail_nth(-1);
        assert_true((rc == 0) == (a != NULL) && (rc == 0 || e.code == ERR_NO_MEMORY));
        if (rc == 0) {
            assert_int_equal(adapter_of_bytes(&whole, NULL, &plain, adapter_tensors(a), bytes, &e),
                             0);
            assert_string_equal(adapter_digest(a), adapter_digest(whole));
            assert_string_not_equal(adapter_digest(a), adapter_digest(base));
            assert_int_equal(adapter_nbytes(a), adapter_nbytes(base));
            adapter_free(whole);
        }
        adapter_free(a);
        assert_int_equal(atomic_load(&nbytes_mapped), before);
    }
    free(parts);
    tensor_list_unref(list);
    adapter_free(base);
    adapter_config_free(c);
}

static void test_free_gives_the_memory_back(void **state)
{
    struct model_config m = small_model();
    struct adapter *a = adapter_made(&m, ALL_MODULES, 4, DTYPE_BF16, 1);

    (void)state;
    assert_true(atomic_load(&nbytes_mapped) > 0);
    adapter_free(a);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
    adapter_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_takes_what_peft_wrote),
        cmocka_unit_test(test_new_refuses_what_does_not_fit),
        cmocka_unit_test(test_new_takes_a_part_only_when_told),
        cmocka_unit_test(test_new_refuses_the_mlp_of_a_sparse_layer),
        cmocka_unit_test(test_new_refuses_what_latent_attention_lacks),
        cmocka_unit_test(test_digest_tells_what_differs),
        cmocka_unit_test(test_new_bounds_bytes_and_tensors),
        cmocka_unit_test(test_names_are_read_exactly),
        cmocka_unit_test(test_new_unwinds_every_failed_allocation),
        cmocka_unit_test(test_a_delta_makes_the_whole_or_unwinds),
        cmocka_unit_test(test_free_gives_the_memory_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

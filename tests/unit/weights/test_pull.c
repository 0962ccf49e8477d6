/* Deltas that slime's and Miles' own publishers made, applied in chains, and everything that
 * their own receivers take although it is wrong. */
#include "tests/unit/weights/pull_fixture.h"

static const struct set {
    enum pull_form form;
    const char *path;
    unsigned n;
} sets[] = {
    {PULL_SLIME, DELTA "slime/overwrite-blake3", 4}, {PULL_SLIME, DELTA "slime/xor-adler32", 2},
    {PULL_SLIME, DELTA "slime/two-ranks", 2},        {PULL_SLIME, DELTA "miles/xor-xxh3", 4},
    {PULL_SLIME, DELTA "miles/two-ranks", 2},        {PULL_SKYRL, DELTA "skyrl/many-files", 4}};
enum { N_SETS = sizeof sets / sizeof sets[0] };

static void test_every_set_one_version_after_the_other(void **state)
{
    (void)state;
    for (int i = 0; i < N_SETS; i++) {
        struct bench b;
        struct err e = {0};

        setup(&b);
        for (unsigned v = 1; v <= sets[i].n; v++) {
            assert_int_equal(pull_to(&b, sets[i].form, sets[i].path, v - 1, v, &e), ERR_NONE);
            assert_version(&b, v);
        }
        bench_close(&b);
    }
}

static void test_every_set_all_versions_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < N_SETS; i++) {
        struct bench b;
        struct err e = {0};

        setup(&b);
        assert_int_equal(pull_to(&b, sets[i].form, sets[i].path, 0, sets[i].n, &e), ERR_NONE);
        assert_version(&b, sets[i].n);
        bench_close(&b);
    }
}

/* ---- what is refused ---- */

#define V1    "weight_v000001"
#define V2    "weight_v000002"
#define INDEX "model.safetensors.index.json"
#define FILE0 "model-00000-of-00001.safetensors"
#define LAST  "model.norm.weight"

enum { PADDING = 16 << 10 }; /* behind a frame */

/* ---- what is refused ---- */

static void remove_file(void)
{
    assert_int_equal(unlink(in_scratch(V1, "model-00001-of-00002.safetensors")), 0);
}
static void remove_index(void)
{
    assert_int_equal(unlink(in_scratch(V1, INDEX)), 0);
}
static void remove_version(void)
{
    (void)nftw(in_scratch(V1, ""), remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
static void flip_payload(void)
{
    flip(V1, FILE0, 40);
}
static void cut_file(void)
{
    struct stat st;

    assert_int_equal(stat(in_scratch(V1, FILE0), &st), 0);
    assert_int_equal(truncate(in_scratch(V1, FILE0), st.st_size - 5), 0);
}
static void lengthen_file(void)
{
    struct stat st;

    assert_int_equal(stat(in_scratch(V1, FILE0), &st), 0);
    assert_int_equal(truncate(in_scratch(V1, FILE0), st.st_size + 1), 0);
}
static void other_version(void)
{
    replace(V1, INDEX, "\"version\": \"000001\"", "\"version\": \"000002\"");
}
static void other_base(void)
{
    replace(V1, INDEX, "\"base_version\": \"000000\"", "\"base_version\": \"000007\"");
}
static void other_encoding(void)
{
    replace(V1, INDEX, "\"delta_encoding\": \"xor\"", "\"delta_encoding\": \"add\"");
}
static void other_hash(void)
{
    replace(V1, INDEX, "\"checksum_format\": \"adler32\"", "\"checksum_format\": \"crc32\"");
}
static void other_compression(void)
{
    replace(V1, INDEX, "\"compression_format\": \"zstd\"", "\"compression_format\": \"lz4\"");
}
static void file_outside(void)
{
    replace(V1, INDEX, "\"" LAST "\": \"" FILE0, "\"" LAST "\": \"../" FILE0);
}
static void file_not_listed(void)
{
    write_all(in_scratch(V1, "model-00001-of-00001.safetensors"), "x", 1);
}
static void tensor_not_listed(void)
{
    replace(V1, INDEX, ", \"" LAST "\": \"" FILE0 "\"", "");
}
static void tensor_in_no_file(void)
{
    replace(V1, INDEX, "\"weight_map\": {", "\"weight_map\": {\"model.other\": \"" FILE0 "\", ");
}
static void tensor_unknown(void)
{
    replace(V1, INDEX, "\"" LAST "\"", "\"model.norn.weight\"");
    replace(V1, FILE0, "\"" LAST "\"", "\"model.norn.weight\"");
    replace(V1, FILE0, "\"" LAST "\"", "\"model.norn.weight\"");
}
static void no_checksum(void)
{
    replace(V1, FILE0, "\"__metadata__\"", "\"__metadat4__\"");
}
static void no_json(void)
{
    replace(V1, INDEX, "\"weight_map\": {", "\"weight_map\": {{");
}
static void index_a_link(void)
{
    assert_int_equal(unlink(in_scratch(V1, FILE0)), 0);
    assert_int_equal(symlink("/etc/passwd", in_scratch(V1, FILE0)), 0);
}

static const struct refusal refusals[] = {
    {"slime/two-ranks", remove_file, ERR_NOT_FOUND, "model-00001-of-00002.safetensors"},
    {"slime/xor-adler32", remove_index, ERR_MISMATCH, "no model.safetensors.index.json yet"},
    {"slime/xor-adler32", remove_version, ERR_NOT_FOUND, "weight_v000001"},
    {"slime/xor-adler32", flip_payload, ERR_BAD_REQUEST, ""},
    {"slime/xor-adler32", cut_file, ERR_BAD_REQUEST, FILE0},
    {"slime/xor-adler32", lengthen_file, ERR_BAD_REQUEST, FILE0},
    {"slime/xor-adler32", other_version, ERR_BAD_REQUEST, "its version is 2"},
    {"slime/xor-adler32", other_base, ERR_PRECONDITION, "it builds on version 7"},
    {"slime/xor-adler32", other_encoding, ERR_BAD_REQUEST, "delta_encoding 'add'"},
    {"slime/xor-adler32", other_hash, ERR_BAD_REQUEST, "checksum_format 'crc32'"},
    {"slime/xor-adler32", other_compression, ERR_BAD_REQUEST, "compression_format 'lz4'"},
    {"slime/xor-adler32", file_outside, ERR_BAD_REQUEST, "is not a plain name"},
    {"slime/xor-adler32", file_not_listed, ERR_BAD_REQUEST, "does not name the file"},
    {"slime/xor-adler32", tensor_not_listed, ERR_BAD_REQUEST, "'" LAST "'"},
    {"slime/xor-adler32", tensor_in_no_file, ERR_BAD_REQUEST, "'model.other'"},
    {"slime/xor-adler32", tensor_unknown, ERR_MISMATCH, "no tensor 'model.norn.weight'"},
    {"slime/xor-adler32", no_checksum, ERR_BAD_REQUEST, ""},
    {"slime/xor-adler32", no_json, ERR_BAD_REQUEST, INDEX},
    {"slime/xor-adler32", index_a_link, ERR_BAD_REQUEST, FILE0},
    {"miles/xor-xxh3", flip_payload, ERR_BAD_REQUEST, ""},
};

static void test_what_peers_take_although_it_is_wrong(void **state)
{
    struct bench b;

    (void)state;
    setup(&b);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        char set[PATH_MAX_];

        (void)snprintf(set, sizeof set, DELTA "%s", r->set);
        copy_set(set);
        r->spoil();
        print_message("%s: %s\n", r->set, r->says);
        check_refused(&b, PULL_SLIME, set, r->code, r->says);
    }
    bench_close(&b);
}

/* ---- versions that no publisher writes ---- */

/* A tensor of a payload file, with the content of its frame. */
struct payload {
    const char *name, *sum;
    const void *content;
    size_t nbytes;
    enum { FRAME, NO_SIZE, TRAILING, PADDED, NO_FRAME } how;
};

static size_t compress(char *out, size_t cap, const struct payload *p)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    size_t n;

    assert_non_null(c);
    assert_false(
        ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, p->how != NO_SIZE)));
    n = ZSTD_compress2(c, out, cap, p->content, p->nbytes);
    assert_false(ZSTD_isError(n));
    (void)ZSTD_freeCCtx(c);
    if (p->how == TRAILING)
        out[n++] = 0;
    if (p->how == PADDED) {
        assert_true(n + PADDING <= cap);
        memset(out + n, 0, PADDING);
        n += PADDING;
    }
    if (p->how == NO_FRAME)
        memset(out, 0x41, n);
    return n;
}

static void write_payloads(const char *dir, const char *name, const struct payload *p, int n)
{
    static char data[TEXT_MAX], out[2 * TEXT_MAX];
    json_t *head = json_object(), *sums = json_object();
    size_t at = 0, nbytes;
    uint64_t len;
    char *text;

    for (int i = 0; i < n; i++) {
        nbytes = compress(data + at, sizeof data - at, &p[i]);
        if (p[i].sum != NULL)
            (void)json_object_set_new(sums, p[i].name, json_string(p[i].sum));
        (void)json_object_set_new(head, p[i].name,
                                  json_pack("{s:s, s:[I], s:[I, I]}", "dtype", "U8", "shape",
                                            (json_int_t)nbytes, "data_offsets", (json_int_t)at,
                                            (json_int_t)(at + nbytes)));
        at += nbytes;
    }
    (void)json_object_set_new(head, "__metadata__", sums);
    text = json_dumps(head, 0);
    len = strlen(text);
    memcpy(out, &len, 8);
    memcpy(out + 8, text, len);
    memcpy(out + 8 + len, data, at);
    write_all(in_scratch(dir, name), out, 8 + len + at);
    free(text);
    json_decref(head);
}

static void write_index(const char *dir, const char *encoding, json_t *map)
{
    json_t *index = json_pack("{s:{s:s, s:s, s:s, s:s, s:s}, s:o}", "metadata", "version", dir + 8,
                              "base_version", "000000", "delta_encoding", encoding,
                              "compression_format", "zstd", "checksum_format", "adler32",
                              "weight_map", map);
    char *text;

    if (strcmp(dir, V1) != 0) {
        char base[16];

        (void)snprintf(base, sizeof base, "%06d", atoi(dir + 8) - 1);
        (void)json_object_set_new(json_object_get(index, "metadata"), "base_version",
                                  json_string(base));
    }
    text = json_dumps(index, 0);
    write_all(in_scratch(dir, INDEX), text, strlen(text));
    free(text);
    json_decref(index);
}

static void begin_scratch(void)
{
    (void)nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(scratch, 0700), 0);
    assert_int_equal(mkdir(in_scratch(V1, ""), 0700), 0);
}

/* Version 1 changes one tensor. */
static void write_one(const char *encoding, const struct payload *p)
{
    begin_scratch();
    write_payloads(V1, FILE0, p, 1);
    write_index(V1, encoding, json_pack("{s:s}", p->name, FILE0));
}

/* The bytes of the last norm, as they are served: 128 elements of BF16. */
enum { NORM_NBYTES = 256 };

static void read_norm(struct bench *b, unsigned char *out)
{
    const struct tensor_list *list = store_model_spec(b->store)->tensor_list;
    const struct version *v = NULL;
    struct err e = {0};

    assert_int_equal(store_pin(b->store, &v, &e), 0);
    assert_int_equal(store_read(b->store, v, tensor_list_find(list, LAST), 0, NORM_NBYTES, out, &e),
                     0);
    store_unpin(b->store, v);
}

/* A count, positions and values as slime has them. */
static size_t overwrite(unsigned char *out, uint32_t count, const uint32_t *positions, uint32_t n,
                        const unsigned char *values, uint32_t n_values)
{
    memcpy(out, &count, 4);
    memcpy(out + 4, positions, (size_t)n * 4);
    memcpy(out + 4 + (size_t)n * 4, values, n_values);
    return 4 + (size_t)n * 4 + n_values;
}

static void test_overwrite_is_read_strictly(void **state)
{
    static const struct {
        uint32_t count, positions[3], n;
        unsigned char values[4];
        uint32_t n_values;
        enum err_code code;
        const char *says;
    } rows[] = {
        {2, {1, 200}, 2, {7, 9}, 2, ERR_NONE, ""},
        {0, {0}, 0, {0}, 0, ERR_NONE, ""},
        {2, {1, 1}, 2, {7, 9}, 2, ERR_BAD_REQUEST, LAST},      /* doubled */
        {2, {200, 1}, 2, {7, 9}, 2, ERR_BAD_REQUEST, LAST},    /* not ascending */
        {2, {1, 256}, 2, {7, 9}, 2, ERR_BAD_REQUEST, LAST},    /* out of range */
        {3, {1, 200}, 2, {7, 9}, 2, ERR_BAD_REQUEST, "count"}, /* too large */
        {1, {1, 200}, 2, {7, 9}, 2, ERR_BAD_REQUEST, "count"}, /* too small */
        {2, {1, 200}, 2, {7, 9, 3}, 3, ERR_BAD_REQUEST, LAST}, /* a value too many */
        {2, {1, 200}, 2, {7}, 1, ERR_BAD_REQUEST, LAST},       /* a value too few */
        {0xffffffff, {1, 200}, 2, {7, 9}, 2, ERR_BAD_REQUEST, "count"},
    };
    struct bench b;

    (void)state;
    setup(&b);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char content[64], norm[NORM_NBYTES], now[NORM_NBYTES];
        char sum[HASH_TEXT_MAX + 1];
        struct payload p = {.name = LAST, .sum = sum, .content = content};
        struct err e = {0};

        read_norm(&b, norm);
        for (uint32_t k = 0; k < rows[i].n && rows[i].code == ERR_NONE; k++)
            norm[rows[i].positions[k]] = rows[i].values[k];
        hash_of(HASH_ADLER32, norm, sizeof norm, sum);
        p.nbytes = overwrite(content, rows[i].count, rows[i].positions, rows[i].n, rows[i].values,
                             rows[i].n_values);
        write_one("overwrite", &p);
        assert_int_equal(pull_to(&b, PULL_SLIME, scratch, 0, 1, &e), rows[i].code);
        assert_non_null(strstr(e.msg, rows[i].says));
        read_norm(&b, now);
        assert_memory_equal(now, norm, sizeof norm);
    }
    bench_close(&b);
}

static void test_frames_are_read_strictly(void **state)
{
    unsigned char zeros[NORM_NBYTES + 1] = {0}, norm[NORM_NBYTES];
    char sum[HASH_TEXT_MAX + 1];
    const struct {
        size_t nbytes;
        int how;
        const char *sum;
        enum err_code code;
        const char *says;
    } rows[] = {
        {NORM_NBYTES, FRAME, sum, ERR_NONE, ""},
        {NORM_NBYTES + 1, FRAME, sum, ERR_BAD_REQUEST, "257 bytes"},
        {NORM_NBYTES - 1, FRAME, sum, ERR_BAD_REQUEST, "255 bytes"},
        {NORM_NBYTES, NO_SIZE, sum, ERR_BAD_REQUEST, "states its size"},
        {NORM_NBYTES, NO_FRAME, sum, ERR_BAD_REQUEST, LAST},
        {NORM_NBYTES, TRAILING, sum, ERR_BAD_REQUEST, "follow"},
        {NORM_NBYTES, PADDED, sum, ERR_BAD_REQUEST, "more than any frame of 256 bytes has"},
        {NORM_NBYTES, FRAME, "12345678", ERR_CHECKSUM, LAST},
        {NORM_NBYTES, FRAME, "1234567", ERR_BAD_REQUEST, "no checksum"},
        {NORM_NBYTES, FRAME, "1234567G", ERR_BAD_REQUEST, "no checksum"},
        {NORM_NBYTES, FRAME, NULL, ERR_BAD_REQUEST, "no checksum"},
    };
    struct bench b;

    (void)state;
    setup(&b);
    read_norm(&b, norm);
    hash_of(HASH_ADLER32, norm, sizeof norm, sum);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct payload p = {
            .name = LAST, .sum = rows[i].sum, .content = zeros, .nbytes = rows[i].nbytes};
        struct err e = {0};

        p.how = (unsigned)rows[i].how;
        write_one("xor", &p);
        assert_int_equal(pull_to(&b, PULL_SLIME, scratch, 0, 1, &e), rows[i].code);
        if (strstr(e.msg, rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", e.msg, rows[i].says);
    }
    assert_version(&b, 0);
    bench_close(&b);
}

/* As two ranks of slime publish a tied tensor: taken if both say the same. */
static void test_a_tensor_in_two_files(void **state)
{
    const char *first = "model-00000-of-00002.safetensors";
    const char *second = "model-00001-of-00002.safetensors";
    const char *third = "model.layers.0.input_layernorm.weight";
    unsigned char change[NORM_NBYTES] = {1}, other[NORM_NBYTES] = {2}, none[NORM_NBYTES] = {0};
    unsigned char norm[NORM_NBYTES], now[NORM_NBYTES];
    char sum[HASH_TEXT_MAX + 1], same[HASH_TEXT_MAX + 1];
    struct payload mine = {.name = LAST, .sum = sum, .content = change, .nbytes = NORM_NBYTES};
    struct payload theirs[2] = {mine, {third, same, none, NORM_NBYTES, FRAME}};
    struct bench b;
    struct err e = {0};

    (void)state;
    setup(&b);
    read_norm(&b, norm); /* the other norm is the same at first */
    hash_of(HASH_ADLER32, norm, sizeof norm, same);
    norm[0] ^= 1;
    hash_of(HASH_ADLER32, norm, sizeof norm, sum);
    for (int differs = 1; differs >= 0; differs--) {
        begin_scratch();
        theirs[0].content = differs ? other : change;
        write_payloads(V1, first, &mine, 1);
        write_payloads(V1, second, theirs, 2);
        write_index(V1, "xor", json_pack("{s:s, s:s}", LAST, first, third, second));
        assert_int_equal(pull_to(&b, PULL_SLIME, scratch, 0, 1, &e),
                         differs ? ERR_BAD_REQUEST : ERR_NONE);
        if (differs)
            assert_true(strstr(e.msg, first) != NULL && strstr(e.msg, second) != NULL);
    }
    read_norm(&b, now);
    assert_memory_equal(now, norm, sizeof norm);
    bench_close(&b);
}

static void test_a_chain_has_a_limit_and_a_base(void **state)
{
    struct bench b;
    struct pull *p = NULL;
    struct err e = {0};

    (void)state;
    setup(&b);
    begin_scratch();
    for (int v = 1; v <= PULL_VERSIONS_MAX + 1; v++) {
        char dir[32];

        pull_directory(dir, PULL_SLIME, (uint64_t)v);
        (void)mkdir(in_scratch(dir, ""), 0700);
        write_index(dir, "xor", json_object());
    }
    assert_int_equal(open_at(&p, &b, PULL_SLIME, scratch, 0, PULL_VERSIONS_MAX, &e), 0);
    assert_int_equal(pull_n_versions(p), PULL_VERSIONS_MAX);
    assert_null(pull_tensors(p));
    pull_close(p);
    assert_int_equal(open_at(&p, &b, PULL_SLIME, scratch, 0, PULL_VERSIONS_MAX + 1, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    assert_non_null(strstr(e.msg, "pull version 64 first"));
    err_clear(&e);
    assert_int_equal(open_at(&p, &b, PULL_SLIME, scratch, PULL_NO_VERSION, 3, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    assert_int_equal(open_at(&p, &b, PULL_SLIME, scratch, 4, 3, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    bench_close(&b);
}

/* Another version was committed between the pull and its bytes. */
static void test_another_base_is_noticed(void **state)
{
    struct bench b;
    struct pull *p = NULL;
    struct source *s = NULL;
    struct tensor_list *list;
    struct err e = {0};

    (void)state;
    setup(&b);
    assert_int_equal(open_at(&p, &b, PULL_SLIME, DELTA "slime/xor-adler32", 0, 1, &e), 0);
    list = pull_tensors(p);
    assert_int_equal(pull_source(&s, p, b.store, serial_of(&b), &e), 0);
    serve_base(&b);
    assert_int_equal(updates_submit(b.updates, chunk_from(&b, list, s, true, "x"), &e), 0);
    assert_int_equal(fx_await(&b.answer), ERR_CONFLICT);
    assert_version(&b, 0);
    /* The right bytes, but a tensor that changes is another: version 2 on the base. */
    assert_int_equal(pull_to(&b, PULL_SLIME, DELTA "slime/xor-adler32", 1, 2, &e), ERR_CHECKSUM);
    assert_non_null(strstr(e.msg, "version 2: tensor '"));
    assert_version(&b, 0);
    bench_close(&b);
}

/* A fill after the refused one is refused too. */
static void test_another_base_stays_refused(void **state)
{
    struct progress progress = {.deadline_us = CLOCK_NEVER};
    struct bench b;
    struct pull *p = NULL;
    struct source *s = NULL;
    const struct tensor_list *list;
    struct err e = {0};
    void *out;

    (void)state;
    setup(&b);
    assert_int_equal(open_at(&p, &b, PULL_SLIME, DELTA "slime/xor-adler32", 0, 1, &e), 0);
    list = pull_tensors(p);
    out = malloc(list->tensors[0].nbytes);
    assert_non_null(out);
    assert_int_equal(pull_source(&s, p, b.store, serial_of(&b), &e), 0);
    serve_base(&b);
    for (int i = 0; i < 2; i++) {
        err_clear(&e);
        assert_int_equal(s->ops->fill(s, list, 0, 1, out, &progress, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
    }
    source_close(s);
    free(out);
    bench_close(&b);
}

/* The memory for frames and what they hold is the store's, which has a bound. */
static void test_frames_count_as_memory_for_weights(void **state)
{
    static const char *const of[] = {"slime/xor-adler32", "slime/overwrite-blake3"};

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        struct progress progress = {.deadline_us = CLOCK_NEVER};
        char path[PATH_MAX_];
        struct slab_stats before, after;
        struct bench b;
        struct pull *p = NULL;
        struct source *s = NULL;
        const struct tensor_list *list;
        struct err e = {0};
        void *out;

        setup(&b);
        (void)snprintf(path, sizeof path, DELTA "%s", of[i]);
        assert_int_equal(open_at(&p, &b, PULL_SLIME, path, 0, 1, &e), 0);
        list = pull_tensors(p);
        out = malloc(list->tensors[0].nbytes);
        assert_non_null(out);
        assert_int_equal(pull_source(&s, p, b.store, serial_of(&b), &e), 0);
        slab_pool_stats(b.store->scratch, &before);
        assert_int_equal(s->ops->fill(s, list, 0, 1, out, &progress, &e), 0);
        slab_pool_stats(b.store->scratch, &after);
        assert_int_equal(after.n_live - before.n_live, i + 1);
        source_close(s);
        slab_pool_stats(b.store->scratch, &after);
        assert_int_equal(after.n_live, before.n_live);
        free(out);
        bench_close(&b);
    }
}

/* Only of a whole checkpoint no hash tells: the file's stamp does. */
static void test_a_checkpoint_that_changes_meanwhile(void **state)
{
    const struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct progress progress = {.deadline_us = CLOCK_NEVER};
    const struct version *v = NULL;
    struct tensor_list *list;
    struct pull *p = NULL;
    struct source *s = NULL;
    struct bench b;
    struct err e = {0};
    char *data;
    size_t n;

    (void)state;
    setup(&b);
    begin_scratch();
    read_all(BASE, &data, &n);
    write_all(in_scratch(V1, FILE0), data, n);
    for (int changed = 0; changed < 2; changed++) {
        const char *path = in_scratch(V1, FILE0);

        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
        assert_int_equal(open_at(&p, &b, PULL_SLIME, scratch, PULL_NO_VERSION, 1, &e), 0);
        assert_true(pull_is_whole(p));
        if (changed != 0) {
            data[n - 1] ^= 1;
            write_all(path, data, n);
        }
        list = pull_tensors(p);
        assert_int_equal(pull_source(&s, p, b.store, serial_of(&b), &e), 0);
        assert_int_equal(updates_submit(b.updates, chunk_from(&b, list, s, false, "pulled"), &e),
                         0);
        (void)fx_await(&b.answer);
        assert_int_equal(b.answer.e.code, changed != 0 ? ERR_UNREADABLE : ERR_NONE);
    }
    assert_non_null(strstr(b.answer.e.msg, "was changed while it was read"));
    assert_version(&b, 0);
    assert_int_equal(store_pin(b.store, &v, &e), 0);
    for (int changed = 1; changed >= 0; changed--) { /* the file is; it is compared byte for byte */
        assert_int_equal(open_at(&p, &b, PULL_SLIME, scratch, 1, 1, &e), 0);
        assert_int_equal(pull_prove(p, b.store, v, &progress, &e), changed != 0 ? -1 : 0);
        assert_int_equal(e.code, changed != 0 ? ERR_PRECONDITION : ERR_NONE);
        err_clear(&e);
        pull_close(p);
        data[n - 1] ^= 1;
        write_all(in_scratch(V1, FILE0), data, n);
    }
    store_unpin(b.store, v);
    free(data);
    bench_close(&b);
}

static void test_a_served_version_is_proven(void **state)
{
    struct progress progress = {.deadline_us = CLOCK_NEVER};
    const struct version *v = NULL;
    struct bench b;
    struct err e = {0};

    (void)state;
    setup(&b);
    assert_int_equal(pull_to(&b, PULL_SLIME, DELTA "slime/xor-adler32", 0, 1, &e), ERR_NONE);
    assert_int_equal(store_pin(b.store, &v, &e), 0);
    for (uint64_t version = 1; version <= 2; version++) {
        struct pull *p = NULL;

        assert_int_equal(
            open_at(&p, &b, PULL_SLIME, DELTA "slime/xor-adler32", version, version, &e), 0);
        assert_int_equal(pull_prove(p, b.store, v, &progress, &e), version == 1 ? 0 : -1);
        pull_close(p);
    }
    assert_int_equal(e.code, ERR_PRECONDITION);
    store_unpin(b.store, v);
    bench_close(&b);
}

static void test_the_base_model_is_compared(void **state)
{
    struct progress progress = {.deadline_us = CLOCK_NEVER};
    struct file_bytes *f = file_bytes_open(BASE);
    const struct version *v = NULL;
    struct bench b;
    struct err e = {0};

    (void)state;
    setup(&b);
    for (int changed = 0; changed <= 1; changed++) {
        if (changed)
            assert_int_equal(pull_to(&b, PULL_SLIME, DELTA "slime/xor-adler32", 0, 1, &e), 0);
        assert_int_equal(store_pin(b.store, &v, &e), 0);
        assert_int_equal(
            pull_base_check(&f->source, f->head.tensor_list, b.store, v, &progress, &e),
            changed ? -1 : 0);
        store_unpin(b.store, v);
    }
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_non_null(strstr(e.msg, "is not the base model's"));
    file_bytes_close(&f->source);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_set_one_version_after_the_other),
        cmocka_unit_test(test_every_set_all_versions_at_once),
        cmocka_unit_test(test_what_peers_take_although_it_is_wrong),
        cmocka_unit_test(test_overwrite_is_read_strictly),
        cmocka_unit_test(test_frames_are_read_strictly),
        cmocka_unit_test(test_a_tensor_in_two_files),
        cmocka_unit_test(test_a_chain_has_a_limit_and_a_base),
        cmocka_unit_test(test_another_base_is_noticed),
        cmocka_unit_test(test_another_base_stays_refused),
        cmocka_unit_test(test_frames_count_as_memory_for_weights),
        cmocka_unit_test(test_a_checkpoint_that_changes_meanwhile),
        cmocka_unit_test(test_a_served_version_is_proven),
        cmocka_unit_test(test_the_base_model_is_compared),
    };

    return run_pull_tests(tests, sizeof tests / sizeof tests[0]);
}

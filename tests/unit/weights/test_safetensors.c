/* Heads of safetensors files: a table of everything that is refused, and what a good one says. */
#include "weights/safetensors.h"

#include "base/buf.h"
#include "base/clock.h"
#include "memory/checksum.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* 8 + N bytes of head, owned by the caller. */
static uint8_t *head_of(const char *json, size_t len, uint64_t *nbytes)
{
    uint8_t *head = malloc(8 + len); /* exactly: so that ASan sees a read beyond */

    assert_non_null(head);
    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)((uint64_t)len >> (8 * i));
    memcpy(head + 8, json, len);
    *nbytes = 8 + len;
    return head;
}

static int parse(struct safetensors *s, const char *json, uint64_t nbytes_data, struct err *e)
{
    uint64_t nbytes;
    uint8_t *head = head_of(json, strlen(json), &nbytes);
    uint64_t total = nbytes_data == UINT64_MAX ? UINT64_MAX : nbytes + nbytes_data;
    int rc = safetensors_parse(s, head, nbytes, total, e);

    free(head);
    return rc;
}

#define T(name, rest)                                                                              \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]" rest "}"
#define OFFSETS "\"data_offsets\":[0,8]"

/* One row for each rule; `says` must be in the message. */
static const struct {
    const char *what, *json;
    uint64_t nbytes_data;
    const char *says;
} refused[] = {
    {"no tensors", "{}", 0, "no tensors"},
    {"only metadata", "{\"__metadata__\":{\"a\":\"b\"}}", 0, "no tensors"},
    {"not an object", "[]", 0, "0x5b"},
    {"leading space", " {}", 0, "0x20"},
    {"ends early", "{" T("a", ""), 8, "expected"},
    {"ends in a string", "{\"a", 0, "ends inside a string"},
    {"trailing bytes", "{" T("a", "") "}x", 8, "more after the end"},
    {"trailing NUL", "{" T("a", "") "} \x01", 8, "more after the end"},
    {"missing comma", "{" T("a", "") T("b", "") "}", 8, "','"},
    {"trailing comma", "{" T("a", "") ",}", 8, "a string was expected"},
    {"missing colon", "{\"a\" {}}", 0, "':'"},
    {"bad UTF-8", "{\"a\xff\":1}", 0, "UTF-8"},
    {"overlong UTF-8", "{\"a\xc0\x80\":1}", 0, "UTF-8"},
    {"surrogate in UTF-8", "{\"a\xed\xa0\x80\":1}", 0, "UTF-8"},
    {"beyond Unicode", "{\"a\xf4\x90\x80\x80\":1}", 0, "UTF-8"},
    {"lone surrogate", "{\"\\ud800x\":1}", 0, "surrogate"},
    {"low surrogate first", "{\"\\udc00\":1}", 0, "surrogate"},
    {"bad escape", "{\"\\x\":1}", 0, "backslash"},
    {"bad hex", "{\"\\u00g0\":1}", 0, "hex"},
    {"NUL in a name", "{\"a\\u0000b\":1}", 0, "NUL"},
    {"control in a name", "{\"a\tb\":1}", 0, "control character"},
    {"escaped control in a name", "{" T("a\\tb", "") "}", 8, "control character"},
    {"empty name", "{" T("", "") "}", 8, "empty"},
    {"duplicate name", "{" T("a.b", "") "," T("a.b", "") "}", 8, "'a.b' is named twice"},
    {"duplicate name, escaped", "{" T("a", "") "," T("\\u0061", "") "}", 8, "'a' is named twice"},
    {"duplicate metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "is repeated"},
    {"duplicate metadata key", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0,
     "'k' is repeated"},
    {"metadata a number", "{\"__metadata__\":{\"k\":1}}", 0, "string was expected"},
    {"metadata null", "{\"__metadata__\":null}", 0, "object was expected"},
    {"metadata nested", "{\"__metadata__\":{\"k\":{}}}", 0, "string was expected"},
    {"duplicate field", "{" T("a", ",\"dtype\":\"F32\"") "}", 8, "'a' has 'dtype' twice"},
    {"duplicate offsets", "{" T("a", "," OFFSETS) "}", 8, "'a' has 'data_offsets' twice"},
    {"no dtype", "{\"a\":{\"shape\":[2]," OFFSETS "}}", 8, "'a' has no 'dtype'"},
    {"no shape", "{\"a\":{\"dtype\":\"F32\"," OFFSETS "}}", 8, "'a' has no 'shape'"},
    {"no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "'a' has no 'data_offsets'"},
    {"tensor not an object", "{\"a\":[]}", 0, "'a': an object was expected"},
    {"unknown dtype", "{\"a\":{\"dtype\":\"F7\",\"shape\":[2]," OFFSETS "}}", 8,
     "'a' has dtype 'F7'"},
    {"torch dtype", "{\"a\":{\"dtype\":\"float32\",\"shape\":[2]," OFFSETS "}}", 8,
     "dtype 'float32'"},
    {"dtype a number", "{\"a\":{\"dtype\":1,\"shape\":[2]," OFFSETS "}}", 8, "'a': a string"},
    {"shape a number", "{\"a\":{\"dtype\":\"F32\",\"shape\":2," OFFSETS "}}", 8, "'a': an array"},
    {"negative dim", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2]," OFFSETS "}}", 8, "non-negative"},
    {"float dim", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0]," OFFSETS "}}", 8, "non-negative"},
    {"exponent dim", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2e0]," OFFSETS "}}", 8, "non-negative"},
    {"leading zero", "{\"a\":{\"dtype\":\"F32\",\"shape\":[02]," OFFSETS "}}", 8, "non-negative"},
    {"true dim", "{\"a\":{\"dtype\":\"F32\",\"shape\":[true]," OFFSETS "}}", 8, "non-negative"},
    {"dim of 2^64", "{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616]," OFFSETS "}}", 8,
     "2^64"},
    {"nine dims", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2]," OFFSETS "}}", 8,
     "8 dimensions"},
    {"one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", 8,
     "1 data_offsets"},
    {"three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8,
     "3 data_offsets"},
    {"ends before begin", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
     "before it begins"},
    {"hole at the start", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12,
     "hole after byte 0"},
    {"hole", "{" T("a", "") ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]}}", 10,
     "'b' begins at byte 9"},
    {"overlap", "{" T("a", "") ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[7,11]}}",
     11, "overlaps 'a'"},
    {"same bytes twice", "{" T("a", "") "," T("b", "") "}", 8,
     "'b' begins at byte 0 and overlaps 'a'"},
    {"numel overflow", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296]," OFFSETS "}}",
     8, "2^63"},
    {"nbytes overflow", "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952]," OFFSETS "}}",
     8, "2^63"},
    {"length differs from shape", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3]," OFFSETS "}}", 8,
     "but 12 by shape"},
    {"data cut", "{" T("a", "") "}", 7, "in all, but there are"},
    {"data too long", "{" T("a", "") "}", 9, "in all, but there are"},
    {"too deep", "{\"a\":{\"x\":[[[[[[[1]]]]]]],\"dtype\":\"F32\"}}", 8, "too deep"},
    {"bad number over there", "{\"a\":{\"x\":-}}", 8, "digit"},
    {"bad word over there", "{\"a\":{\"x\":nul}}", 8, "JSON value"},
    {"checksum not hex", "{\"__metadata__\":{\"baton.checksum.a\":\"12\"}," T("a", "") "}", 8,
     "not a checksum"},
    {"checksum of nothing",
     "{\"__metadata__\":{\"baton.checksum.b\":\"00000000000000000000000000000000\"}," T("a",
                                                                                        "") "}",
     8, "'b', which the file does not have"},
};

static void test_safetensors_parse_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct safetensors s = {.nbytes_head = 77};
        struct err e = {0};
        if (parse(&s, refused[i].json, refused[i].nbytes_data, &e) != -1)
            fail_msg("%s: accepted", refused[i].what);
        if (e.code != ERR_BAD_REQUEST || strstr(e.msg, refused[i].says) == NULL)
            fail_msg("%s: %d %s", refused[i].what, e.code, e.msg);
        assert_true(s.nbytes_head == 77 && s.tensor_list == NULL);
    }
}

static void test_safetensors_parse_too_long_names(void **state)
{
    struct buf b = {0};
    struct safetensors s;
    struct err e = {0};

    (void)state;
    buf_puts(&b, "{\"");
    for (int i = 0; i < TENSOR_LIST_NAME_LEN_MAX + 1; i++)
        buf_puts(&b, "n");
    buf_puts(&b, "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
    assert_int_equal(parse(&s, b.data, 8, &e), -1);
    assert_non_null(strstr(e.msg, "1024"));
    buf_fini(&b);
}

static void test_safetensors_parse_orders_by_place(void **state)
{
    static const char json[] =
        "{\"z\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8],\"more\":{\"x\":[1,-2."
        "5e3,"
        "\"\\u00e9\",null,true]}},\n"
        "\"empty.b\":{\"data_offsets\":[8,8],\"shape\":[0,4],\"dtype\":\"F32\"},"
        "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]},"
        "\"empty.a\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[8,8]},"
        "\"__metadata__\":{\"format\":\"pt\",\"baton.weight_version\":\"step-7\","
        "\"baton.checksum.scalar\":\"0123456789abcdef0123456789ABCDEF\"}}  \t\r\n ";
    struct safetensors s;
    struct err e = {0};

    (void)state;
    if (parse(&s, json, 16, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(s.tensor_list->n_tensors, 4);
    assert_string_equal(s.tensor_list->tensors[0].name, "z");
    assert_string_equal(s.tensor_list->tensors[1].name, "empty.a");
    assert_string_equal(s.tensor_list->tensors[2].name, "empty.b");
    assert_string_equal(s.tensor_list->tensors[3].name, "scalar");
    assert_int_equal(s.tensor_list->tensors[3].ndim, 0);
    assert_int_equal(s.tensor_list->tensors[3].offset, 8);
    assert_int_equal(s.tensor_list->nbytes, 16);
    assert_int_equal(s.nbytes_head, 8 + sizeof json - 1);
    assert_int_equal(s.nbytes_total, s.nbytes_head + 16);
    assert_string_equal(s.weight_version, "step-7");
    assert_false(s.has_checksum[0]);
    assert_true(s.has_checksum[3]);
    assert_true(s.checksums[3].a == 0x0123456789abcdef);
    safetensors_fini(&s);
    assert_int_equal(parse(&s, json, UINT64_MAX, &e), 0);
    safetensors_fini(&s);
    safetensors_fini(&s);
}

/* Other programs write "format", "version" and "base_version" too, of any length. */
static void test_safetensors_parse_tells_deltas(void **state)
{
    static const struct {
        const char *metadata, *base, *version; /* NULL: none */
    } rows[] = {
        {"\"format\":\"baton-delta-1\",\"base_version\":\"a\",\"version\":\"b\"", "a", "b"},
        {"\"version\":\"b\",\"base_version\":\"a\",\"format\":\"baton-delta-1\"", "a", "b"},
        {"\"format\":\"baton-delta-1\"", "", NULL},
        {"\"format\":\"baton-delta-1\",\"version\":\"b\",\"baton.weight_version\":\"c\"", "", "c"},
        {"\"format\":\"pt\",\"base_version\":\"a\",\"version\":\"b\"", NULL, NULL},
        {"\"format\":\"baton-delta-2\",\"base_version\":\"a\"", NULL, NULL},
        {NULL, NULL, NULL}, /* "version" of 400 digits */
    };

    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        struct safetensors s = {0};
        struct err e = {0};
        char metadata[600], json[800];

        if (rows[k].metadata != NULL)
            (void)snprintf(metadata, sizeof metadata, "%s", rows[k].metadata);
        else
            (void)snprintf(metadata, sizeof metadata, "\"format\":\"pt\",\"version\":\"%0400d\"",
                           7);
        (void)snprintf(json, sizeof json, "{\"__metadata__\":{%s}," T("a", "") "}", metadata);
        assert_int_equal(parse(&s, json, 8, &e), 0);
        assert_int_equal(s.delta_base != NULL, rows[k].base != NULL);
        if (rows[k].base != NULL)
            assert_string_equal(s.delta_base, rows[k].base);
        assert_int_equal(s.weight_version != NULL, rows[k].version != NULL);
        if (rows[k].version != NULL)
            assert_string_equal(s.weight_version, rows[k].version);
        safetensors_fini(&s);
    }
}

/* Of a delta they are checksums of what it makes; other programs may write such keys too. */
static void test_safetensors_parse_checksums_of_a_delta(void **state)
{
    static const char sum[] = "\"checksum.a\":\"0123456789abcdef0123456789ABCDEF\"";
    static const char delta[] = "\"format\":\"baton-delta-1\"";
    struct safetensors s = {0};
    struct err e = {0};
    char json[900];

    (void)state;
    for (int first = 0; first < 2; first++) {
        (void)snprintf(json, sizeof json, "{\"__metadata__\":{%s,%s}," T("a", "") "}",
                       first ? delta : sum, first ? sum : delta);
        assert_int_equal(parse(&s, json, 8, &e), 0);
        assert_int_equal(s.made.names.n, 1);
        assert_string_equal(s.made.names.items[0], "a");
        assert_true(s.made.sums[0].a == 0x0123456789abcdef);
        safetensors_fini(&s);
    }
    for (int k = 0; k < 4; k++) { /* no checksum; a value that is too long */
        (void)snprintf(json, sizeof json,
                       "{\"__metadata__\":{\"checksum.a\":\"%0*d\",%s}," T("a", "") "}",
                       k % 2 ? 400 : 31, 7, k < 2 ? delta : "\"format\":\"pt\"");
        e = (struct err){0};
        assert_int_equal(parse(&s, json, 8, &e), k < 2 ? -1 : 0);
        if (k < 2)
            assert_non_null(strstr(e.msg, "'checksum.a' is not a checksum"));
        else
            assert_int_equal(s.made.names.n, 0);
        safetensors_fini(&s);
    }
}

static void test_made_sums_add_takes_one_of_each(void **state)
{
    struct made_sums m = {0};
    struct err e = {0};
    char name[16];

    (void)state;
    for (unsigned k = 0; k < 200; k++) {
        (void)snprintf(name, sizeof name, "t%u", k);
        assert_int_equal(made_sums_add(&m, name, (struct checksum){k, 1}, &e), 0);
    }
    assert_int_equal(made_sums_add(&m, "t7", (struct checksum){7, 1}, &e), 0);
    assert_int_equal(m.names.n, 200);
    assert_int_equal(made_sums_add(&m, "t7", (struct checksum){8, 1}, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_non_null(strstr(e.msg, "'t7'"));
    assert_true(m.sums[names_find(&m.names, "t199")].a == 199);
    made_sums_fini(&m);
    made_sums_fini(&m);
}

static void test_safetensors_parse_decodes_names(void **state)
{
    struct safetensors s;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&s, "{" T("\\u00e9\\ud83d\\ude00\\/\\\"", "") "}", 8, &e), 0);
    assert_string_equal(s.tensor_list->tensors[0].name, "\xc3\xa9\xf0\x9f\x98\x80/\"");
    safetensors_fini(&s);
}

static void test_safetensors_head_nbytes_bounds(void **state)
{
    static const uint8_t zero[8] = {0}, ok[8] = {0x00, 0xe1, 0xf5, 0x05},
                         over[8] = {0x01, 0xe1, 0xf5, 0x05};
    static const uint8_t most[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    struct err e = {0};
    uint64_t n = 5;

    (void)state;
    assert_int_equal(safetensors_head_nbytes(ok, 7, &n, &e), 0);
    assert_int_equal(n, 0);
    assert_int_equal(safetensors_head_nbytes(ok, 8, &n, &e), 0);
    assert_int_equal(n, 100000008);
    assert_int_equal(safetensors_head_nbytes(zero, 8, &n, &e), -1);
    err_clear(&e);
    assert_int_equal(safetensors_head_nbytes(over, 8, &n, &e), -1);
    err_clear(&e);
    assert_int_equal(safetensors_head_nbytes(most, 20, &n, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
}

static void test_safetensors_head_nbytes_names_other_formats(void **state)
{
    static const struct {
        const char *head, *says;
    } rows[] = {
        {"PK\3\4\0\0\10\10", "this is a zip file, as torch.save writes; a safetensors file"},
        {"PK\3\4\24\0\0\0", "this is a zip file"},
        {"\x80\2\x8a\nl\xfc\x9c"
         "F",
         "this is a pickle"},
        {"version https", "a Git LFS pointer, and 'git lfs pull'"},
        {"GGUF\3\0\0\0", "this is a GGUF file"},
        {"\x89HDF\r\n\x1a\n", "this is an HDF5 file"},
        {"\x93NUMPY\1\0", "this is a NumPy file"},
        {"{\"names\"", "this is JSON"},
        {"hello hello", "7307126058341131624 bytes, expected 1 to 100000000"},
        {"{\1\0\0\0\0\0\0", NULL}, /* a header of 379 bytes */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        uint64_t n = 0;

        assert_int_equal(safetensors_head_nbytes(rows[i].head, 8, &n, &e),
                         rows[i].says == NULL ? 0 : -1);
        if (rows[i].says != NULL && strstr(e.msg, rows[i].says) == NULL)
            fail_msg("'%s' is not in '%s'", rows[i].says, e.msg);
    }
}

static void test_safetensors_parse_wants_the_whole_head(void **state)
{
    uint64_t nbytes;
    uint8_t *head = head_of("{" T("a", "") "}", 52, &nbytes);
    struct safetensors s;
    struct err e = {0};

    (void)state;
    assert_int_equal(safetensors_parse(&s, head, nbytes - 1, UINT64_MAX, &e), -1);
    err_clear(&e);
    assert_int_equal(safetensors_parse(&s, head, 4, UINT64_MAX, &e), -1);
    free(head);
}

static void test_safetensors_parse_100000_tensors(void **state)
{
    struct buf b = {0};
    struct safetensors s;
    struct err e = {0};
    uint64_t began;

    (void)state;
    buf_puts(&b, "{");
    for (unsigned i = 100000; i-- > 0;) /* the worst order */
        buf_printf(
            &b,
            "%s\"model.layers.%u.weight\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\""
            ":[%u,%u]}",
            i == 99999 ? "" : ",", i, 4 * i, 4 * i + 4);
    buf_puts(&b, "}");
    began = clock_now_us();
    assert_int_equal(parse(&s, b.data, 400000, &e), 0);
    print_message("header of 100000 tensors: %llu us\n",
                  (unsigned long long)(clock_now_us() - began));
    assert_string_equal(s.tensor_list->tensors[77].name, "model.layers.77.weight");
    safetensors_fini(&s);
    buf_fini(&b);
}

static char dir[] = "/tmp/baton-test-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir);
}

static void test_safetensors_open_fixture(void **state)
{
    struct safetensors s;
    struct err e = {0};
    struct stat st;
    int fd;

    (void)state;
    if (safetensors_open(&s, &fd, AT_FDCWD,
                         FIXTURES "/kjv-qwen3-1m/checkpoints/step-00100.safetensors", &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(s.nbytes_total, st.st_size);
    assert_int_not_equal(tensor_list_find(s.tensor_list, "model.embed_tokens.weight"),
                         TENSOR_LIST_NO_TENSOR);
    safetensors_fini(&s);
    (void)close(fd);
}

static void test_safetensors_open_refusals(void **state)
{
    struct safetensors s;
    struct err e = {0};
    char path[64];
    int fd = -7, file;

    (void)state;
    assert_int_equal(safetensors_open(&s, &fd, AT_FDCWD, "/nowhere/at/all", &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    err_clear(&e);
    assert_int_equal(safetensors_open(&s, &fd, AT_FDCWD, dir, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    err_clear(&e);
    (void)snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(safetensors_open(&s, &fd, AT_FDCWD, path, &e), -1); /* and does not wait */
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "regular"));
    (void)unlink(path);
    err_clear(&e);
    file = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(file, "1234567", 7), 7);
    assert_int_equal(safetensors_open(&s, &fd, AT_FDCWD, path, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    err_clear(&e);
    assert_int_equal(pwrite(file, "\x40\0\0\0\0\0\0\0{}", 10, 0), 10);
    assert_int_equal(safetensors_open(&s, &fd, AT_FDCWD, path, &e), -1);
    assert_non_null(strstr(e.msg, "header needs 72"));
    err_clear(&e);
    assert_int_equal(pwrite(file, "\x02\0\0\0\0\0\0\0{}", 10, 0), 10);
    assert_int_equal(safetensors_open(&s, &fd, AT_FDCWD, path, &e), -1);
    assert_non_null(strstr(e.msg, "no tensors"));
    assert_non_null(strstr(e.msg, path)); /* names the file */
    assert_int_equal(fd, -7);
    (void)close(file);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_parse_refusals),
        cmocka_unit_test(test_safetensors_parse_too_long_names),
        cmocka_unit_test(test_safetensors_parse_orders_by_place),
        cmocka_unit_test(test_safetensors_parse_tells_deltas),
        cmocka_unit_test(test_safetensors_parse_checksums_of_a_delta),
        cmocka_unit_test(test_made_sums_add_takes_one_of_each),
        cmocka_unit_test(test_safetensors_parse_decodes_names),
        cmocka_unit_test(test_safetensors_head_nbytes_bounds),
        cmocka_unit_test(test_safetensors_head_nbytes_names_other_formats),
        cmocka_unit_test(test_safetensors_parse_wants_the_whole_head),
        cmocka_unit_test(test_safetensors_parse_100000_tensors),
        cmocka_unit_test(test_safetensors_open_fixture),
        cmocka_unit_test_setup_teardown(test_safetensors_open_refusals, make_dir, remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

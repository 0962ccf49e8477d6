/* The tokenizer: what it refuses and how it says so, its limits, its time, and every allocation
 * failing in turn. That ids are right is test_tokenizer_golden's; of threads,
 * test_tokenizer_threads'. */
#include "tests/unit/failing_alloc.h"
#include "tests/unit/text/tokenizer_fixture.h"
#include "text/tokenizer_priv.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { MB = 1000000 };

static struct tokenizer *fixture(void)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    assert_int_equal(tokenizer_load(&t, FIXTURE_DIR, &e), 0);
    return t;
}

/* The root of a fixture with one member set to `value` (JSON text; NULL removes it). */
static json_t *with_member_of(const char *dir, const char *pointer, const char *value)
{
    json_t *v = value == NULL ? NULL : json_loads(value, JSON_DECODE_ANY, NULL), *root;
    char path[256], *rest = path;
    const char *keys[8];
    size_t n = 0;

    assert_true(value == NULL || v != NULL);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    root = fixture_json(path);
    (void)snprintf(path, sizeof path, "%s", pointer + 1);
    while (n < 8 && (keys[n] = strsep(&rest, "/")) != NULL)
        n++;
    fixture_set(root, keys, n, v);
    return root;
}

static json_t *with_member(const char *pointer, const char *value)
{
    return with_member_of(FIXTURE_DIR, pointer, value);
}

static struct tokenizer *tokenizer_with(const char *pointer, const char *value)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    if (fixture_parse(&t, with_member(pointer, value), &e) != 0)
        print_error("%s: %s\n", e.field, e.msg);
    assert_non_null(t);
    return t;
}

#define SPLIT(re)                                                                                  \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re                                             \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define BYTE_LEVEL                                                                                 \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":"      \
    "false}"
#define SPLIT_THEN_BYTES(re)                                                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(re) "," BYTE_LEVEL "]}"
#define ADDED(id, content, normalized)                                                             \
    "{\"id\":" id ",\"content\":\"" content "\",\"single_word\":false,\"lstrip\":false,"           \
    "\"rstrip\":false,\"normalized\":" normalized ",\"special\":false}"
#define TEMPLATE(single, specials)                                                                 \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single                                         \
    "],\"pair\":[],\"special_tokens\":{" specials "}}"
#define TEXT_A    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define SPECIAL_B "{\"SpecialToken\":{\"id\":\"b\",\"type_id\":0}}"
#define PRE       "/pre_tokenizer/pretokenizers/0"
#define REGEX     PRE "/pattern/Regex"

struct refusal {
    const char *pointer, *value; /* the member and what it is set to */
    const char *field;           /* the error's; NULL: the member itself */
    const char *msg;             /* part of the message */
};

static const struct refusal refusals[] = {
    {"/version", "\"2.0\"", NULL, "1.0"},
    {"/version", NULL, NULL, "1.0"},
    {"/model", "[]", NULL, "an array where an object"},
    {"/model/type", "\"Unigram\"", NULL, "'Unigram' is not supported; BPE"},
    {"/model/type", "3", NULL, "an integer where a string"},
    {"/model/byte_fallback", "true", NULL, "byte-level"},
    {"/model/byte_fallback", "1", NULL, "an integer"},
    {"/model/fuse_unk", "null", NULL, "null where true or false"},
    {"/model/dropout", "0.1", NULL, "null or 0"},
    {"/model/continuing_subword_prefix", "\"##\"", NULL, "empty"},
    {"/model/end_of_word_suffix", "\"</w>\"", NULL, "empty"},
    {"/model/unk_token", "\"<unk>\"", NULL, "'<unk>' is not in the vocabulary"},
    {"/model/unk_token", "7", NULL, "an integer where a string or null"},
    {"/model/vocab", NULL, NULL, "nothing where an object"},
    {"/model/vocab", "{}", NULL, "empty"},
    {"/model/vocab/!", "-1", "/model/vocab", "id -1; 0 to"},
    {"/model/vocab/!", "2097152", "/model/vocab", "id 2097152; 0 to 2097151"},
    {"/model/vocab/!", "\"0\"", "/model/vocab", "a string where an id"},
    {"/model/vocab/!", "1", "/model/vocab", "names both"},
    {"/model/merges/3", "[\"!\",\"!\"]", NULL, "'!!' is not in the vocabulary"},
    {"/model/merges", "{}", NULL, "an object where an array"},
    {"/model/merges/3", "\"a b\"", NULL, "what the first merge is"},
    {"/model/merges/3", "[\"a\"]", NULL, "a merge is"},
    {"/model/merges/3", "[\"a\",\"b\",\"c\"]", NULL, "a merge is"},
    {"/model/merges/3", "[\"a\",\"\\u4f60\"]", NULL, "is not in the vocabulary"},
    {"/model/merges", "[\"t h e\"]", "/model/merges/0", "one space"},
    {"/model/merges", "[\"the\"]", "/model/merges/0", "one space"},
    {"/added_tokens", "{}", NULL, "an object where an array"},
    {"/added_tokens/1", "7", "/added_tokens/1/id", "nothing where an id"},
    {"/added_tokens/1/content", "\"\"", NULL, "0 bytes; 1 to 512"},
    {"/added_tokens/1/content", "\"<|endoftext|>\"", NULL, "listed twice"},
    {"/added_tokens/1/id", "1030", NULL, "has id 1030, but its place in the vocabulary is 1022"},
    {"/added_tokens/0", ADDED("1021", "!", "false"), "/added_tokens/0/id", "vocabulary is 0"},
    {"/added_tokens/0/lstrip", NULL, NULL, "nothing where true or false"},
    {"/added_tokens",
     "[" ADDED("1021", "q\\u0301\\u0323", "true") "," ADDED("1022", "q\\u0323\\u0301", "true") "]",
     NULL, "tokens 1021 and 1022 are the same text"},
    {"/normalizer", "{\"type\":\"Lowercase\"}", "/normalizer/type", "'Lowercase' is not supported"},
    {"/normalizer", "\"NFC\"", NULL, "a string where an object"},
    {"/normalizer",
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFKC\"}]}",
     "/normalizer/normalizers/1/type", "'NFKC'"},
    {"/pre_tokenizer", "null", NULL, "null where an object"},
    {"/pre_tokenizer", "{\"type\":\"Metaspace\"}", "/pre_tokenizer/type", "'Metaspace'"},
    {"/pre_tokenizer", SPLIT("a"), NULL, "without ByteLevel"},
    {"/pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", NULL, "without ByteLevel"},
    {"/pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," SPLIT("a") "]}",
     "/pre_tokenizer/pretokenizers/1", "after ByteLevel"},
    {PRE "/behavior", "\"Removed\"", NULL, "Isolated"},
    {PRE "/pattern", "{}", NULL, "a pattern is"},
    {PRE "/pattern", "{\"Regex\":\"a\",\"String\":\"b\"}", NULL, "a pattern is"},
    {REGEX, "\"\"", NULL, "0 bytes"},
    {REGEX, "\"a(\"", NULL, "malformed"},
    {REGEX, "\"[a\"", NULL, "malformed"},
    {REGEX, "\"a\\\\\"", NULL, "ends in a backslash"},
    {REGEX, "\"\\\\w+\"", NULL, "'\\w' at byte 0 of the pattern: this escape"},
    {REGEX, "\"a|\\\\bx\"", NULL, "'\\b' at byte 2"},
    {REGEX, "\"(a)\\\\1\"", NULL, "'\\1' at byte 3"},
    {REGEX, "\"\\\\p{Han}\"", NULL, "'\\p{Han}' at byte 0"},
    {REGEX, "\"\\\\p{Mn}\"", NULL, "this property"},
    {REGEX, "\"\\\\pL\"", NULL, "\\p{Name}"},
    {REGEX, "\"[^\\\\P{L}]\"", NULL, "negated property inside []"},
    {REGEX, "\"[\\\\s-z]\"", NULL, "range may not begin"},
    {REGEX, "\"[a-\\\\s]\"", NULL, "range may not end"},
    {REGEX, "\"[a[b]]\"", NULL, "sets of sets"},
    {REGEX, "\"[a&&b]\"", NULL, "sets of sets"},
    {REGEX, "\"[]a]\"", NULL, "start of a set"},
    {REGEX, "\"a{2}+\"", NULL, "repeat count"},
    {REGEX, "\"a{,2}\"", NULL, "repeat count"},
    {REGEX, "\"(?i)a\"", NULL, "this group"},
    {REGEX, "\"(?<n>a)\"", NULL, "this group"},
    {REGEX, "\"(*COMMIT)\"", NULL, "verbs"},
    {REGEX, "\"\\\\x{110000}\"", NULL, "no such character"},
    {REGEX, "\"\\\\xff\"", NULL, "above 7f"},
    {REGEX, "\"\\\\x{4g}\"", NULL, "hexadecimal"},
    {"/post_processor", "{\"type\":\"BertProcessing\"}", "/post_processor/type",
     "'BertProcessing'"},
    {"/post_processor", TEMPLATE(SPECIAL_B "," TEXT_A, ""), "/post_processor/single/0", "ids"},
    {"/post_processor", TEMPLATE(SPECIAL_B, "\"b\":{\"ids\":[1]}"), "/post_processor/single",
     "0 times"},
    {"/post_processor", TEMPLATE(TEXT_A "," TEXT_A, ""), "/post_processor/single", "2 times"},
    {"/post_processor", TEMPLATE("{\"Sequence\":{\"id\":\"B\"}}", ""), "/post_processor/single/0",
     "neither"},
    {"/post_processor", TEMPLATE(SPECIAL_B "," TEXT_A, "\"b\":{\"ids\":[1024]}"),
     "/post_processor/single/0", "id 1024"},
    {"/post_processor",
     "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(
         SPECIAL_B "," TEXT_A, "\"b\":{\"ids\":[1]}") "," TEMPLATE(TEXT_A, "") "]}",
     "/post_processor/processors/1", "more than one"},
    {"/decoder", "null", NULL, "null where an object"},
    {"/decoder", "{\"type\":\"Metaspace\"}", "/decoder/type", "'Metaspace'"},
};

static void check_refusal(const char *dir, const struct refusal *r)
{
    const char *field = r->field != NULL ? r->field : r->pointer;
    struct tokenizer *t = NULL;
    struct err e = {0};
    int rc = fixture_parse(&t, with_member_of(dir, r->pointer, r->value), &e);

    if (rc != -1 || e.code != ERR_BAD_REQUEST || strcmp(e.field, field) != 0 ||
        strstr(e.msg, r->msg) == NULL)
        fail_msg("%s = %s: rc %d, code %d, field %s, %s", r->pointer,
                 r->value != NULL ? r->value : "absent", rc, e.code, e.field, e.msg);
    assert_null(t);
}

static void test_parse_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        check_refusal(FIXTURE_DIR, &refusals[i]);
}

static void test_parse_refuses_deep_sequences(void **state)
{
    char text[1024] = BYTE_LEVEL, outer[1024];
    struct tokenizer *t = NULL;
    struct err e = {0};

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_true(strlen(text) < 900);
        (void)snprintf(outer, sizeof outer, "{\"type\":\"Sequence\",\"pretokenizers\":[%.900s]}",
                       text);
        strcpy(text, outer);
    }
    tokenizer_free(tokenizer_with("/pre_tokenizer", text));
    (void)snprintf(outer, sizeof outer, "{\"type\":\"Sequence\",\"pretokenizers\":[%.900s]}", text);
    assert_int_equal(fixture_parse(&t, with_member("/pre_tokenizer", outer), &e), -1);
    assert_non_null(strstr(e.msg, "more than 4 deep"));
    assert_int_equal(e.code, ERR_BAD_REQUEST);
}

static void test_parse_refuses_what_is_no_json(void **state)
{
    static const char *const texts[] = {
        "",     "{",       "nul", "[1,2", "\xff", "{\"version\":\"1.0\",\"version\":\"1.0\"}",
        "null", "\"1.0\"", "[]",  "{}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};

        assert_int_equal(tokenizer_parse(&t, texts[i], strlen(texts[i]), &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_true(e.msg[0] != '\0');
        assert_null(t);
    }
}

#define METASPACE(scheme)                                                                          \
    "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"" scheme             \
    "\",\"split\":false}"
#define FUSE              "{\"type\":\"Fuse\"}"
#define STRIP             "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define NORMALIZERS(list) "{\"type\":\"Sequence\",\"normalizers\":[" list "]}"
#define DECODERS(list)    "{\"type\":\"Sequence\",\"decoders\":[" list "]}"

/* Of the spelled fixture. */
static const struct refusal spelled_refusals[] = {
    {"/model/unk_token", "\"<none>\"", NULL, "not in the vocabulary"},
    {"/normalizer/normalizers/0/prepend", "\"\"", NULL, "0 bytes; 1 to 16"},
    {"/normalizer/normalizers/0/prepend", "7", NULL, "an integer where a string"},
    {"/normalizer/normalizers/1/pattern", "{\"Regex\":\" \"}", NULL, "only a pattern"},
    {"/normalizer/normalizers/1/pattern", "{\"Regex\":\"a\",\"String\":\"b\"}", NULL,
     "only a pattern"},
    {"/normalizer/normalizers/1/content", "\"12345\"", NULL, "5 bytes in place of 1; 4"},
    {"/normalizer", "{\"type\":\"Lowercase\"}", "/normalizer/type", "'Lowercase'"},
    {"/normalizer",
     NORMALIZERS("{\"type\":\"NFC\"},{\"type\":\"NFC\"},{\"type\":\"NFC\"},{\"type\":\"NFC\"},"
                 "{\"type\":\"NFC\"},{\"type\":\"NFC\"},{\"type\":\"NFC\"},{\"type\":\"NFC\"},"
                 "{\"type\":\"NFC\"}"),
     "/normalizer/normalizers/8", "more than 8"},
    {"/pre_tokenizer", BYTE_LEVEL, "/pre_tokenizer/type", "with this decoder"},
    {"/pre_tokenizer", METASPACE("often"), "/pre_tokenizer/prepend_scheme", "'often' is not one"},
    {"/pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}",
     "/pre_tokenizer/prepend_scheme", "nothing where a string"},
    {"/pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("a") "," METASPACE("first") "]}",
     "/pre_tokenizer/pretokenizers/1", "beside others"},
    {"/pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[" METASPACE("first") "," SPLIT("a") "]}",
     "/pre_tokenizer/pretokenizers/1", "after Metaspace"},
    {"/decoder", "{\"type\":\"Metaspace\"}", "/decoder/type", "'Metaspace'"},
    {"/decoder", "{\"type\":\"ByteLevel\"}", "/model/byte_fallback", "byte-level"},
    {"/decoder", DECODERS(STRIP), "/decoder/decoders/0", "the order is"},
    {"/decoder", DECODERS(FUSE "," FUSE), "/decoder/decoders/1", "the order is"},
    {"/decoder", DECODERS(FUSE ",{\"type\":\"ByteFallback\"}"), "/decoder/decoders/1",
     "the order is"},
    {"/decoder", DECODERS("{\"type\":\"WordPiece\"}"), "/decoder/decoders/0/type", "'WordPiece'"},
    {"/decoder/decoders/3/content", "\"x\"", NULL, "a space is"},
    {"/decoder/decoders/3/start", "17", NULL, "0..16"},
    {"/decoder/decoders/3/stop", "1", NULL, "only 0"},
    {"/decoder/decoders/0/content", "\"123456789abcdef\"", NULL, "15 bytes in place of 3"},
};

static void test_parse_refuses_spelled(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof spelled_refusals / sizeof spelled_refusals[0]; i++)
        check_refusal(SPELLED_DIR, &spelled_refusals[i]);
}

static void test_load_says_what_is_missing(void **state)
{
    char dir[] = "/tmp/test_tokenizer_XXXXXX", path[64];
    struct tokenizer *t = NULL;
    struct err e = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tokenizer_load(&t, dir, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    err_clear(&e);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(tokenizer_load(&t, dir, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_int_equal(rmdir(path), 0);
    err_clear(&e);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(tokenizer_load(&t, dir, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_int_equal(unlink(path), 0);
    err_clear(&e);
    assert_int_equal(close(creat(path, 0600)), 0);
    assert_int_equal(tokenizer_load(&t, dir, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_null(t);
}

/* What a decoded text shows of a token. */
static void check_shown(const struct tokenizer *t, uint32_t id, bool skip_special, const char *text)
{
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(tokenizer_decode(t, &id, 1, skip_special, &out, &e), 0);
    assert_int_equal(out.len, strlen(text));
    if (out.len > 0)
        assert_memory_equal(out.data, text, out.len);
    buf_fini(&out);
}

static void test_tokens_and_special_ones_are_the_files(void **state)
{
    struct tokenizer *t = fixture();

    (void)state;
    assert_int_equal(tokenizer_vocab_size(t), 1024);
    assert_string_equal(tokenizer_token(t, 0), "!");
    assert_string_equal(tokenizer_token(t, 1023), "<|im_end|>");
    assert_null(tokenizer_token(t, 1024));
    assert_null(tokenizer_token(t, UINT32_MAX));
    check_shown(t, 1023, false, "<|im_end|>");
    check_shown(t, 1023, true, "");
    check_shown(t, 0, true, "!");
    tokenizer_free(t);
    tokenizer_free(NULL);
}

static void test_encode_refuses_what_is_no_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t len;
        const char *at;
    } rows[] = {
        {"\xff", 1, "byte 0"},
        {"ab\x80", 3, "byte 2"},
        {"\xc3", 1, "byte 0"},
        {"a\xed\xa0\x80", 4, "byte 1"},
        {"a\xc0\x80", 3, "byte 1"},
        {"\xf4\x90\x80\x80", 4, "byte 0"},
        {"\xc3\xa9\xe2\x82", 4, "byte 2"},
    };
    struct tokenizer *t = fixture();

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t *ids = NULL;
        size_t n = 77;
        struct err e = {0};

        assert_int_equal(tokenizer_encode(t, rows[i].text, rows[i].len, false, &ids, &n, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_non_null(strstr(e.msg, rows[i].at));
        assert_null(ids);
        assert_int_equal(n, 77);
    }
    tokenizer_free(t);
}

static void test_encode_gives_an_array_for_no_text(void **state)
{
    struct tokenizer *t = fixture();
    uint32_t *ids = NULL;
    size_t n = 77;
    struct err e = {0};

    (void)state;
    assert_int_equal(tokenizer_encode(t, "", 0, true, &ids, &n, &e), 0);
    assert_non_null(ids);
    assert_int_equal(n, 0);
    free(ids);
    tokenizer_free(t);
}

/* `unit` again and again, about a megabyte of it, must come back from its ids, in linear time: what
 * is quadratic takes from minutes to hours here, and the suite's time-out ends it. */
static void check_long(const struct tokenizer *t, const char *unit, const char *last,
                       bool round_trip)
{
    struct buf text = {0}, back = {0};
    uint32_t *ids;
    size_t n;
    struct err e = {0};

    while (text.len < MB)
        buf_puts(&text, unit);
    buf_puts(&text, last);
    assert_int_equal(tokenizer_encode(t, text.data, text.len, false, &ids, &n, &e), 0);
    assert_int_equal(tokenizer_decode(t, ids, n, false, &back, &e), 0);
    if (round_trip) {
        assert_int_equal(back.len, text.len);
        assert_memory_equal(back.data, text.data, text.len);
    }
    free(ids);
    buf_fini(&text);
    buf_fini(&back);
}

static void test_encode_is_linear(void **state)
{
    struct tokenizer *t = fixture();

    (void)state;
    check_long(t, "thethand", "", true);
    check_long(t, "a", "", true);
    check_long(t, " ", "x", true);
    check_long(t, " \n", "", true);
    check_long(t, "\t", "\n", true);
    check_long(t, ".", "", true);
    check_long(t, "7", "", true);
    check_long(t, "\xe6\x97\xa5", "", true);
    check_long(t, "<|im_start|", "", true);
    check_long(t, "<|im_start|>", "", true);
    check_long(t, "\xcc\x81\xcc\x96", "", false); /* marks that change places */
    tokenizer_free(t);
    t = tokenizer_with("/added_tokens/0",
                       "{\"id\":1021,\"content\":\"  \",\"single_word\":false,\"lstrip\":true,"
                       "\"rstrip\":true,\"normalized\":false,\"special\":false}");
    check_long(t, " ", "x", false);
    check_long(t, " ", "", false);
    tokenizer_free(t);
}

static struct tokenizer *spelled(void)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    assert_int_equal(tokenizer_load(&t, SPELLED_DIR, &e), 0);
    return t;
}

/* All of a text is one word there. */
static void test_encode_spelled_is_linear(void **state)
{
    struct tokenizer *t = spelled();

    (void)state;
    check_long(t, "thethand", "", true);
    check_long(t, " ", "x", true);
    check_long(t, "\xe6\x97\xa5", "", true); /* bytes */
    check_long(t, "</s", "", true);
    tokenizer_free(t);
}

/* Moves in the heap, for each byte of a word of `len`. */
static double moves_per_byte(const struct tokenizer *t, const char *unit, size_t len)
{
    struct bpe_scratch scratch = {0};
    struct id_list ids = {0};
    struct buf text = {0};
    struct err e = {0};
    double moves;

    while (text.len < len)
        buf_puts(&text, unit);
    assert_int_equal(bpe_word(&t->bpe, t, text.data, text.len, &scratch, &ids, &e), 0);
    assert_true(ids.n > 0);
    moves = (double)scratch.n_moves / (double)text.len;
    free(ids.ids);
    buf_fini(&text);
    bpe_scratch_fini(&scratch);
    return moves;
}

/* Counted, not timed: a word 16 times as long costs each byte no more than the logarithm says. */
static void test_merging_costs_n_log_n(void **state)
{
    static const char *const units[] = {
        "thethand", "a", " the", "In the beginning God created ", "A", "lamb of the flock"};
    struct tokenizer *kinds[] = {fixture(), spelled()};
    double sum = 0;

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            double less = moves_per_byte(kinds[k], units[i], 16 << 10);
            double more = moves_per_byte(kinds[k], units[i], 256 << 10);

            if (!(more <= 2 * less) || !(more < 64)) /* log2 of 2^18 to 2^14 is 1.29 */
                fail_msg("'%s': %.2f moves a byte, then %.2f", units[i], less, more);
            sum += more;
        }
        tokenizer_free(kinds[k]);
    }
    assert_true(sum > 10); /* "A" does not merge, the others do */
}

static void test_encode_refuses_a_long_text(void **state)
{
    enum { TOO_LONG = (16 << 20) + 1 };
    struct tokenizer *t = fixture();
    char *text = calloc(TOO_LONG, 1);
    uint32_t *ids = NULL;
    size_t n;
    struct err e = {0};

    (void)state;
    assert_non_null(text);
    assert_int_equal(tokenizer_encode(t, text, TOO_LONG, false, &ids, &n, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_non_null(strstr(e.msg, "16777216 are allowed"));
    free(text);
    tokenizer_free(t);
}

/* A pattern that backtracks without end, one that needs a deep stack, and two that are slow, not
 * too slow, at each of many places: all matches fail, or the last alternative always matches. */
static void test_encode_survives_a_pathological_pattern(void **state)
{
    static const char *const patterns[] = {
        SPLIT_THEN_BYTES("(a+)+[bc]"), SPLIT_THEN_BYTES("(?:(?=a)(?:a|aa))*[bc]"),
        SPLIT_THEN_BYTES("(?:a|b)+?[CD]"), SPLIT_THEN_BYTES("(?:a|b)+?[CD]|a")};
    static char text[60000];

    (void)state;
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        struct tokenizer *t = tokenizer_with("/pre_tokenizer", patterns[i]);
        uint32_t *ids = NULL;
        size_t n = 77;
        struct err e = {0};

        assert_int_equal(tokenizer_encode(t, text, sizeof text, false, &ids, &n, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_non_null(strstr(e.msg, "limit"));
        assert_null(ids);
        assert_int_equal(n, 77);
        tokenizer_free(t);
    }
}

/* The machine code's stack is too small for this one; the interpreter's is not. */
static void test_encode_needs_no_deep_stack(void **state)
{
    struct tokenizer *t = tokenizer_with("/pre_tokenizer",
                                         SPLIT_THEN_BYTES("(?:(?:ab|c)(?=[a-c]))*c"));
    char text[60001];
    uint32_t *ids;
    size_t n;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i % 2 == 0 ? 'a' : 'b';
    text[sizeof text - 1] = 'c';
    assert_int_equal(tokenizer_encode(t, text, sizeof text, false, &ids, &n, &e), 0);
    assert_true(n > 0);
    free(ids);
    tokenizer_free(t);
}

static void test_decode_names_the_unknown_id(void **state)
{
    static const uint32_t ids[] = {1, 2, 1024};
    struct tokenizer *t = fixture();
    struct buf out = {0};
    struct err e = {0};

    (void)state;
    buf_puts(&out, "before");
    assert_int_equal(tokenizer_decode(t, ids, 3, false, &out, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/tokens/2");
    assert_string_equal(out.data, "before");
    err_clear(&e);
    assert_int_equal(tokenizer_decode(t, ids, 2, false, &out, &e), 0);
    assert_string_equal(out.data, "before\"#");
    buf_fini(&out);
    tokenizer_free(t);
}

/* A small file, so that failing each of its allocations takes no time. */
static const char small[] = "{\"version\":\"1.0\",\"added_tokens\":[" ADDED(
    "3", "<e>", "true") "],"
                        "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" SPLIT_THEN_BYTES(
                            "\\\\p{L}+|\\\\s") ","
                                               "\"post_processor\":null,\"decoder\":{\"type\":"
                                               "\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
                                               "\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,"
                                               "\"ab\":2},\"merges\":[\"a b\"]}}";

static const char small_spelled[] = "{\"version\":\"1.0\",\"added_tokens\":[" ADDED(
    "5", "<e>",
    "false") "],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"xy\"},"
             "\"content\":\"ab\"},\"pre_tokenizer\":" METASPACE(
                 "always") ",\"post_processor\":null,\"decoder\":" DECODERS(FUSE) ","
                                                                                  "\"model\":{"
                                                                                  "\"type\":"
                                                                                  "\"BPE\",\"unk_"
                                                                                  "token\":\"u\","
                                                                                  "\"vocab\":"
                                                                                  "{\"a\":0,\"b\":"
                                                                                  "1,\"ab\":2,"
                                                                                  "\"\\u2581\":3,"
                                                                                  "\"u\":4},"
                                                                                  "\"merges\":[\"a "
                                                                                  "b\"]}}";

static void parse_unwinds(const char *json)
{
    struct tokenizer *t = NULL;
    int rc = -1;
    long n;

    for (n = 0; rc != 0; n++) {
        struct err e = {0};

        alloc_left = n;
        rc = tokenizer_parse(&t, json, strlen(json), &e);
        alloc_left = -1;
        assert_true((rc == 0) == (t != NULL));
        assert_true(rc == 0 || e.code == ERR_NO_MEMORY);
    }
    assert_true(n > 6);
    tokenizer_free(t);
}

static void test_parse_unwinds_every_failure(void **state)
{
    (void)state;
    parse_unwinds(small);
    parse_unwinds(small_spelled);
}

static void encode_unwinds(const char *json)
{
    static const char text[] = "abba ba<e> a\xcc\x81 babxyq";
    struct tokenizer *t = NULL;
    uint32_t *ids = NULL;
    struct err first = {0};
    size_t n_ids = 77;
    int rc = -1;
    long n;

    assert_int_equal(tokenizer_parse(&t, json, strlen(json), &first), 0);
    for (n = 0; rc != 0; n++) {
        struct err e = {0};

        alloc_left = n;
        rc = tokenizer_encode(t, text, strlen(text), false, &ids, &n_ids, &e);
        alloc_left = -1;
        assert_true(rc == 0 || (e.code == ERR_NO_MEMORY && ids == NULL && n_ids == 77));
    }
    assert_true(n > 4);
    free(ids);
    tokenizer_free(t);
}

static void test_encode_unwinds_every_failure(void **state)
{
    (void)state;
    encode_unwinds(small);
    encode_unwinds(small_spelled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_parse_refuses_deep_sequences),
        cmocka_unit_test(test_parse_refuses_what_is_no_json),
        cmocka_unit_test(test_parse_refuses_spelled),
        cmocka_unit_test(test_load_says_what_is_missing),
        cmocka_unit_test(test_tokens_and_special_ones_are_the_files),
        cmocka_unit_test(test_encode_refuses_what_is_no_utf8),
        cmocka_unit_test(test_encode_gives_an_array_for_no_text),
        cmocka_unit_test(test_encode_is_linear),
        cmocka_unit_test(test_encode_spelled_is_linear),
        cmocka_unit_test(test_merging_costs_n_log_n),
        cmocka_unit_test(test_encode_refuses_a_long_text),
        cmocka_unit_test(test_encode_survives_a_pathological_pattern),
        cmocka_unit_test(test_encode_needs_no_deep_stack),
        cmocka_unit_test(test_decode_names_the_unknown_id),
        cmocka_unit_test(test_parse_unwinds_every_failure),
        cmocka_unit_test(test_encode_unwinds_every_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

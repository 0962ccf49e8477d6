/* Incremental decoding against a decoder of the test's own: same text however it is cut, and never
 * half a character. */
#include "tests/unit/text/tokenizer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { ROUNDS = 3000, IDS_MAX = 40, SPECIAL_FIRST = 1021, VOCAB = 1024 };

static uint64_t seed = 88172645463325252U;

static uint32_t random_below(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32) % n;
}

/* The bytes of a token, by the definition of the byte alphabet: bytes that print stand for
 * themselves, the others for U+0100 and up, in order. */
static size_t token_bytes(const char *text, unsigned char *out)
{
    size_t n = 0;

    for (const unsigned char *s = (const unsigned char *)text; *s != '\0'; n++) {
        unsigned cp = *s < 0x80 ? *s : (*s & 0x1fU) << 6 | (s[1] & 0x3fU), others = 0;

        s += *s < 0x80 ? 1 : 2;
        if (cp < 0x100) {
            out[n] = (unsigned char)cp;
            continue;
        }
        for (unsigned byte = 0; byte < 256; byte++) {
            bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);

            if (!prints && 0x100 + others++ == cp)
                out[n] = (unsigned char)byte;
        }
    }
    return n;
}

/* Length of the character at s by table 3-7 of the Unicode standard; 0 if there is none, and then
 * *bad is the length of the maximal part of one. */
static size_t whole_char(const unsigned char *s, size_t len, size_t *bad)
{
    static const unsigned char rows[][9] = {
        {0x00, 0x7f},
        {0xc2, 0xdf, 0x80, 0xbf},
        {0xe0, 0xe0, 0xa0, 0xbf, 0x80, 0xbf},
        {0xe1, 0xec, 0x80, 0xbf, 0x80, 0xbf},
        {0xed, 0xed, 0x80, 0x9f, 0x80, 0xbf},
        {0xee, 0xef, 0x80, 0xbf, 0x80, 0xbf},
        {0xf0, 0xf0, 0x90, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
        {0xf1, 0xf3, 0x80, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
        {0xf4, 0xf4, 0x80, 0x8f, 0x80, 0xbf, 0x80, 0xbf},
    };

    *bad = 1;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        size_t n = 1;

        if (s[0] < rows[r][0] || s[0] > rows[r][1])
            continue;
        while (rows[r][2 * n] != 0 && n < len && s[n] >= rows[r][2 * n] &&
               s[n] <= rows[r][2 * n + 1])
            n++;
        *bad = n;
        return rows[r][2 * n] == 0 ? n : 0;
    }
    return 0;
}

static void decode_slowly(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip,
                          struct buf *out)
{
    unsigned char bytes[IDS_MAX * 64];
    size_t len = 0, bad;

    for (size_t i = 0; i < n; i++)
        if (tokenizer_token(t, ids[i]) != NULL && !(skip && ids[i] >= SPECIAL_FIRST))
            len += token_bytes(tokenizer_token(t, ids[i]), bytes + len);
    for (size_t at = 0; at < len;) {
        size_t k = whole_char(bytes + at, len - at, &bad);

        if (k > 0)
            buf_append(out, bytes + at, k);
        else
            buf_puts(out, "\xef\xbf\xbd");
        at += k > 0 ? k : bad;
    }
}

static void assert_whole_chars(const struct buf *text)
{
    size_t bad;

    for (size_t at = 0; at < text->len;) {
        size_t k = whole_char((const unsigned char *)text->data + at, text->len - at, &bad);

        assert_true(k > 0);
        at += k;
    }
}

static void assert_same(const struct buf *a, const struct buf *b)
{
    assert_false(a->failed || b->failed);
    assert_int_equal(a->len, b->len);
    if (a->len > 0)
        assert_memory_equal(a->data, b->data, a->len);
}

/* Mostly bytes from the upper half, so that characters are cut and broken in every way. */
static uint32_t random_id(bool unknown)
{
    switch (random_below(8)) {
    case 0:
        return random_below(VOCAB);
    case 1:
        return SPECIAL_FIRST + random_below(3);
    case 2:
        return unknown ? VOCAB + random_below(9) : random_below(94);
    default:
        return 94 + random_below(162);
    }
}

static void check_round(const struct tokenizer *t, bool skip)
{
    uint32_t ids[IDS_MAX];
    size_t n = random_below(IDS_MAX);
    struct buf expected = {0}, joined = {0}, decoded = {0};
    struct detok d;
    struct err e = {0};
    bool unknown = random_below(4) == 0;

    for (size_t i = 0; i < n; i++)
        ids[i] = random_id(unknown);
    decode_slowly(t, ids, n, skip, &expected);
    detok_init(&d, t, skip);
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, ids[i], &joined);
        assert_true(d.n_held <= 3);
        assert_whole_chars(&joined);
    }
    detok_end(&d, &joined);
    assert_int_equal(d.n_held, 0);
    assert_same(&joined, &expected);
    if (!unknown) {
        assert_int_equal(tokenizer_decode(t, ids, n, skip, &decoded, &e), 0);
        assert_same(&decoded, &expected);
    }
    buf_fini(&expected);
    buf_fini(&joined);
    buf_fini(&decoded);
}

static struct tokenizer *fixture(void)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    assert_int_equal(tokenizer_load(&t, FIXTURE_DIR, &e), 0);
    assert_int_equal(tokenizer_vocab_size(t), VOCAB);
    return t;
}

static void test_pieces_joined_are_the_whole(void **state)
{
    struct tokenizer *t = fixture();

    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        check_round(t, i % 2 == 0);
    tokenizer_free(t);
}

static uint32_t id_of(const struct tokenizer *t, const char *text)
{
    for (uint32_t id = 0; id < tokenizer_vocab_size(t); id++)
        if (strcmp(tokenizer_token(t, id), text) == 0)
            return id;
    fail_msg("no token %s", text);
    return 0;
}

/* "é" is C3 A9: spelled Ã and ©. */
static void test_push_holds_half_a_character(void **state)
{
    struct tokenizer *t = fixture();
    uint32_t first = id_of(t, "Ã"), second = id_of(t, "©");
    struct buf out = {0};
    struct detok d;

    (void)state;
    detok_init(&d, t, true);
    detok_push(&d, first, &out);
    assert_int_equal(out.len, 0);
    detok_push(&d, SPECIAL_FIRST, &out); /* skipped, so the halves meet */
    detok_push(&d, VOCAB, &out);         /* unknown: adds nothing */
    assert_int_equal(out.len, 0);
    detok_push(&d, second, &out);
    assert_string_equal(out.data, "é");
    detok_push(&d, first, &out);
    detok_end(&d, &out);
    assert_string_equal(out.data, "é\xef\xbf\xbd");
    detok_end(&d, &out); /* nothing is held any more */
    assert_string_equal(out.data, "é\xef\xbf\xbd");

    out.len = 0;
    detok_init(&d, t, false);
    detok_push(&d, first, &out);
    detok_push(&d, SPECIAL_FIRST, &out); /* not skipped, so the first half is lost */
    assert_string_equal(out.data, "\xef\xbf\xbd<|endoftext|>");
    buf_fini(&out);
    tokenizer_free(t);
}

/* ---- the spelled family ---- */

/* The byte of a spelling like "<0x0A>"; -1 for others. */
static int spelled_byte(const char *text)
{
    unsigned byte;
    char end;

    if (strlen(text) != 6 || sscanf(text, "<0x%2X%c", &byte, &end) != 2 || end != '>')
        return -1;
    return (int)byte;
}

/* By the definition: spaces for marks, runs of bytes whole or one replacement for each, then the
 * space at the beginning goes. */
static void decode_spelled_slowly(const struct tokenizer *t, const uint32_t *ids, size_t n,
                                  bool skip, struct buf *out)
{
    unsigned char run[IDS_MAX];
    size_t len = 0, bad;

    for (size_t i = 0; i <= n; i++) {
        const char *text = i < n ? tokenizer_token(t, ids[i]) : "";
        size_t good = 0, k = 1;

        if (text == NULL || (i < n && skip && ids[i] < 3))
            continue;
        if (spelled_byte(text) >= 0) {
            run[len++] = (unsigned char)spelled_byte(text);
            continue;
        }
        while (good < len && (k = whole_char(run + good, len - good, &bad)) > 0)
            good += k;
        if (good == len && len > 0)
            buf_append(out, run, len);
        for (size_t j = 0; good < len && j < len; j++)
            buf_puts(out, "\xef\xbf\xbd");
        for (len = 0; *text != '\0'; text += k) {
            k = strncmp(text, "\xe2\x96\x81", 3) == 0 ? 3 : 1;
            buf_append(out, k == 3 ? " " : text, 1);
        }
    }
    if (out->len > 0 && out->data[0] == ' ') {
        memmove(out->data, out->data + 1, out->len - 1);
        out->len--;
    }
}

static uint32_t random_spelled_id(const struct tokenizer *t)
{
    static const unsigned char some[] = "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80\n A";
    uint32_t vocab = tokenizer_vocab_size(t);

    switch (random_below(8)) {
    case 0:
        return random_below(3); /* special */
    case 1:
        return vocab + random_below(4);
    case 2:
    case 3:
        return 3 + 256 + random_below(vocab - 259);
    case 4:
        return 3 + random_below(256);
    default: /* bytes that make characters, often in order */
        return 3U + some[(seed >> 20) % (sizeof some - 1)];
    }
}

/* What has come out so far, and what detok_peek shows, is text that the whole could begin with. */
static void check_spelled_round(const struct tokenizer *t, bool skip)
{
    uint32_t ids[IDS_MAX];
    size_t n = random_below(IDS_MAX);
    struct buf expected = {0}, joined = {0}, now = {0};
    struct detok d;

    detok_init(&d, t, skip);
    for (size_t i = 0; i < n; i++) {
        const char *held = NULL;
        size_t n_held, n_sure;

        ids[i] = random_spelled_id(t);
        detok_push(&d, ids[i], &joined);
        n_held = detok_peek(&d, &held);
        n_sure = joined.len;
        if (n_held > 0)
            buf_append(&joined, held, n_held);
        assert_whole_chars(&joined);
        if (n_held > 0 || d.n_held == 0) { /* nothing is cut: the text if this were the end */
            now.len = 0;
            decode_spelled_slowly(t, ids, i + 1, skip, &now);
            assert_same(&joined, &now);
        }
        joined.len = n_sure;
    }
    detok_end(&d, &joined);
    decode_spelled_slowly(t, ids, n, skip, &expected);
    assert_same(&joined, &expected);
    buf_fini(&expected);
    buf_fini(&joined);
    buf_fini(&now);
}

static struct tokenizer *spelled(void)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    assert_int_equal(tokenizer_load(&t, SPELLED_DIR, &e), 0);
    return t;
}

static void test_spelled_pieces_joined_are_the_whole(void **state)
{
    struct tokenizer *t = spelled();

    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        check_spelled_round(t, i % 2 == 0);
    tokenizer_free(t);
}

/* A prompt, then what continues it: the space between them stays. */
static void test_follow_keeps_the_space_within_a_text(void **state)
{
    struct tokenizer *t = spelled();
    uint32_t prompt[2] = {1, id_of(t, "\xe2\x96\x81"
                                      "A")},
             next = id_of(t, "\xe2\x96\x81the");
    struct buf out = {0};
    struct detok d;

    (void)state;
    detok_init(&d, t, true);
    detok_push(&d, next, &out);
    assert_string_equal(out.data, "the");
    out.len = 0;
    detok_init(&d, t, true);
    detok_follow(&d, prompt, 2);
    detok_push(&d, next, &out);
    assert_string_equal(out.data, " the");
    out.len = 0;
    detok_init(&d, t, true);
    detok_follow(&d, prompt, 1); /* <s> has no text */
    detok_push(&d, next, &out);
    assert_string_equal(out.data, "the");
    out.len = 0;
    tokenizer_token_text(t, next, &out);
    assert_string_equal(out.data, " the");
    buf_fini(&out);
    tokenizer_free(t);
}

/* Nothing is lost of a run that is longer than what is held, and nothing is split. */
static void test_a_long_run_is_told_in_time(void **state)
{
    static const unsigned char day[] = {0xe6, 0x97, 0xa5};
    struct tokenizer *t = spelled();
    struct buf out = {0};
    struct detok d;

    (void)state;
    detok_init(&d, t, true);
    for (size_t i = 0; i < 5000 * 3; i++) {
        detok_push(&d, 3U + day[i % 3], &out);
        assert_true(d.n_held <= DETOK_RUN_MAX);
        assert_whole_chars(&out);
        assert_true(out.len + DETOK_RUN_MAX > i);
    }
    detok_end(&d, &out);
    assert_int_equal(out.len, 5000 * 3);
    assert_whole_chars(&out);
    buf_fini(&out);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_joined_are_the_whole),
        cmocka_unit_test(test_push_holds_half_a_character),
        cmocka_unit_test(test_spelled_pieces_joined_are_the_whole),
        cmocka_unit_test(test_follow_keeps_the_space_within_a_text),
        cmocka_unit_test(test_a_long_run_is_told_in_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

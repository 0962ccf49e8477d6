/* Incremental decoding against a decoder of the test's own: same text however it is cut, and never
 * half a character. */
#include "tokenizer_fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_joined_are_the_whole),
        cmocka_unit_test(test_push_holds_half_a_character),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

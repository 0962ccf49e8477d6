/* Bodies in chunks: what comes out, and where they end, however they are cut. */
#include "engine/upstream/chunks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 128 << 10 };

static char out[TEXT_MAX];

/* In pieces of n bytes, each in a buffer of its own that ends with it. Returns how much came out.
 */
static size_t take(struct chunks *c, const char *text, size_t len, size_t n)
{
    size_t n_out = 0;

    *c = (struct chunks){0};
    for (size_t at = 0; at < len; at += n) {
        size_t piece = len - at < n ? len - at : n, got;
        char *own = malloc(piece);

        assert_non_null(own);
        memcpy(own, text + at, piece);
        got = chunks_take(c, own, piece, own); /* in place */
        assert_true(got <= piece && n_out + got <= sizeof out);
        memcpy(out + n_out, own, got);
        n_out += got;
        free(own);
    }
    return n_out;
}

struct row {
    const char *text, *body;
    enum chunks_at at;
};

static void test_bodies_come_out_however_they_are_cut(void **state)
{
    static const struct row rows[] = {
        {"5\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\n\r\n", "hello world", CHUNKS_OVER},
        {"0\r\n\r\n", "", CHUNKS_OVER},
        {"A\r\n0123456789\r\na\r\nabcdefghij\r\n000\r\n\r\n", "0123456789abcdefghij", CHUNKS_OVER},
        {"2;name=\"a\"\r\nhi\r\n0 ; x\r\nTrailer: yes\r\nX: \r\n\r\n", "hi", CHUNKS_OVER},
        {"2\nhi\n0\n\n", "hi", CHUNKS_OVER},
        {"2\r\nhi\r\n0\r\n\r\n7\r\nno body\r\n", "hi", CHUNKS_OVER},
        {"4\r\n0\r\n\r\n\n0\r\n\r\n", NULL, CHUNKS_BAD},
        {"5\r\n0\r\n\r\n\r\n0\r\n\r\n", "0\r\n\r\n", CHUNKS_OVER},
        /* the end has not come */
        {"", "", CHUNKS_SIZE},
        {"5\r\nhello\r\n", "hello", CHUNKS_SIZE},
        {"5\r\nhello", "hello", CHUNKS_DATA_END},
        {"5\r\nhel", "hel", CHUNKS_DATA},
        {"5\r\nhello\r\n0\r\n", "hello", CHUNKS_TRAILER},
        {"5\r\nhello\r\n0\r\nA: b\r\n", "hello", CHUNKS_TRAILER},
        /* no chunks */
        {"\r\n", "", CHUNKS_BAD},
        {"x\r\n", "", CHUNKS_BAD},
        {"-1\r\n", "", CHUNKS_BAD},
        {"5x\r\nhello\r\n", "", CHUNKS_BAD},
        {"5\r\nhello5\r\nworld\r\n", "hello", CHUNKS_BAD},
        {"5\r\nhello\r\r\n", "hello", CHUNKS_BAD},
        {"ffffffffffffffff\r\n", "", CHUNKS_BAD},
        {"10000000000000000\r\n", "", CHUNKS_BAD},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t len = strlen(rows[i].text);

        for (size_t n = 1; n <= len + 1; n++) {
            struct chunks c;
            size_t got = take(&c, rows[i].text, len, n);

            assert_int_equal(c.at, rows[i].at);
            if (rows[i].body == NULL)
                continue;
            assert_int_equal(got, strlen(rows[i].body));
            assert_memory_equal(out, rows[i].body, got);
        }
    }
}

/* A line of so many bytes behind `head`, and what follows. */
static enum chunks_at after_long(const char *head, size_t n, const char *tail)
{
    static char text[TEXT_MAX];
    size_t len = strlen(head);
    struct chunks c;

    assert_true(len + n + strlen(tail) < sizeof text);
    memcpy(text, head, len);
    memset(text + len, '0', n);
    strcpy(text + len + n, tail);
    (void)take(&c, text, strlen(text), 1000);
    return c.at;
}

static void test_what_frames_a_body_is_bounded(void **state)
{
    size_t line = CHUNKS_LINE_NBYTES_MAX, trailer = CHUNKS_TRAILER_NBYTES_MAX;

    (void)state;
    assert_int_equal(after_long("", line, "\n"), CHUNKS_TRAILER);
    assert_int_equal(after_long("", line + 1, "\n"), CHUNKS_BAD);
    assert_int_equal(after_long("5;", line - 2, "\n"), CHUNKS_DATA);
    assert_int_equal(after_long("5;", line - 1, "\n"), CHUNKS_BAD);
    assert_int_equal(after_long("0\n", trailer - 1, "\n\n"), CHUNKS_OVER);
    assert_int_equal(after_long("0\n", trailer, "\n\n"), CHUNKS_BAD);
}

static void test_a_long_chunk_is_moved_as_it_comes(void **state)
{
    static char text[TEXT_MAX];
    struct chunks c = {0};
    size_t n_out = 0, len = 70000;
    int head = snprintf(text, sizeof text, "%zx\r\n", len);

    (void)state;
    for (size_t i = 0; i < len; i++)
        text[(size_t)head + i] = (char)('a' + i % 26);
    memcpy(text + (size_t)head + len, "\r\n0\r\n\r\n", 7);
    n_out = chunks_take(&c, text, (size_t)head + len + 7, out);
    assert_int_equal(c.at, CHUNKS_OVER);
    assert_int_equal(n_out, len);
    assert_memory_equal(out, text + head, len);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_come_out_however_they_are_cut),
        cmocka_unit_test(test_what_frames_a_body_is_bounded),
        cmocka_unit_test(test_a_long_chunk_is_moved_as_it_comes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

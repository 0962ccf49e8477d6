/* Every character goes there and back; nothing else is one. */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_utf8_clean_table(void **state)
{
    static const struct {
        const char *in, *out;
        unsigned n;
    } rows[] = {
        {"", "", 0},
        {"plain \x7f", "plain \x7f", 0},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 0},
        {"\xc2\x80 \xdf\xbf", "\xc2\x80 \xdf\xbf", 0},
        {"\xe0\xa0\x80 \xed\x9f\xbf \xef\xbf\xbf", "\xe0\xa0\x80 \xed\x9f\xbf \xef\xbf\xbf", 0},
        {"\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf", 0},
        {"a\xff"
         "b",
         "a?b", 1},
        {"\x80", "?", 1},
        {"\xc0\xaf", "??", 2}, /* overlong */
        {"\xc1\xbf", "??", 2},
        {"\xe0\x9f\xbf", "???", 3},
        {"\xf0\x8f\xbf\xbf", "????", 4},
        {"\xed\xa0\x80", "???", 3},      /* a surrogate */
        {"\xf4\x90\x80\x80", "????", 4}, /* beyond the last character */
        {"\xf5\x80\x80\x80", "????", 4},
        {"cut \xe2\x82", "cut ??", 2}, /* by a bounded copy */
        {"cut \xf0\x9f\x98", "cut ???", 3},
        {"\xe2"
         "x\xe2\x82\xac",
         "?x\xe2\x82\xac", 1}, /* finds its feet again */
    };
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)snprintf(text, sizeof text, "%s", rows[i].in);
        assert_int_equal(utf8_clean(text), rows[i].n);
        assert_string_equal(text, rows[i].out);
        assert_int_equal(utf8_clean(text), 0);
    }
}

/* Each code point; each of its beginnings is cut off, not wrong; surrogates are refused. */
static void test_utf8_put_and_scan(void **state)
{
    char text[UTF8_MAX];
    uint32_t found;

    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        const unsigned char *s = (const unsigned char *)text;
        int n = (int)utf8_put(text, cp);

        if (cp >= 0xd800 && cp <= 0xdfff) {
            assert_int_equal(utf8_scan(s, (size_t)n, &found), -1);
            continue;
        }
        assert_int_equal(n, cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_scan(s, (size_t)n, &found), n);
        assert_int_equal(found, cp);
        for (int cut = 1; cut < n; cut++)
            assert_int_equal(utf8_scan(s, (size_t)cut, &found), 0);
    }
}

static void test_utf8_valid_prefix(void **state)
{
    (void)state;
    assert_int_equal(utf8_valid_prefix("", 0), 0);
    assert_int_equal(utf8_valid_prefix("a\xc3\xa9", 3), 3);
    assert_int_equal(utf8_valid_prefix("a\xc3\xa9", 2), 1);
    assert_int_equal(utf8_valid_prefix("a\0b\xff", 4), 3);
}

static void test_utf8_find_hidden(void **state)
{
    static const char *const hidden[] = {
        "\n",           "\x1b",         "\x7f",         "\xc2\x80",     "\xc2\x9b",
        "\xd8\x9c",     "\xe2\x80\x8e", "\xe2\x80\x8f", "\xe2\x80\xa8", "\xe2\x80\xae",
        "\xe2\x81\xa6", "\xe2\x81\xa9", "\xff"};
    static const char *const seen[] = {
        "", " ~", "\xc2\xa0", "\xe2\x80\x8d", "\xe2\x80\xaf", "\xd7\xa9 \xd9\x81 \xf0\x9f\x98\x80"};
    char text[16];

    (void)state;
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++)
        assert_int_equal(utf8_find_hidden(seen[i], strlen(seen[i])), strlen(seen[i]));
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        (void)snprintf(text, sizeof text, "\xc3\xa9%sb", hidden[i]);
        assert_int_equal(utf8_find_hidden(text, strlen(text)), 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_clean_table),
        cmocka_unit_test(test_utf8_put_and_scan),
        cmocka_unit_test(test_utf8_valid_prefix),
        cmocka_unit_test(test_utf8_find_hidden),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The checksum against its definition, at every length and address that could matter. */
#include "memory/checksum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* As docs/protocol.md defines it, byte by byte. */
static struct checksum by_definition(const uint8_t *data, uint64_t nbytes)
{
    struct checksum c = {0, 0};

    for (uint64_t i = 0; 4 * i < nbytes; i++) {
        uint64_t word = 0;
        for (uint64_t k = 0; k < 4 && 4 * i + k < nbytes; k++)
            word |= (uint64_t)data[4 * i + k] << (8 * k);
        c.a += word;
        c.b += (i + 1) * word;
    }
    return c;
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *data = malloc(n);
    uint32_t x = 12345;

    assert_non_null(data);
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (uint8_t)(x >> 24);
    }
    return data;
}

/* Parts that are shorter than a step of a vector: word by word. */
static struct checksum word_by_word(const uint8_t *data, uint64_t nbytes)
{
    enum { PART = 60 };
    struct checksum c = {0, 0};

    for (uint64_t at = 0; at < nbytes; at += PART)
        checksum_add(&c, data + at, nbytes - at < PART ? nbytes - at : PART, at);
    return c;
}

static void check(const uint8_t *data, uint64_t nbytes)
{
    struct checksum want = by_definition(data, nbytes);

    assert_true(checksum_equal(checksum_of(data, nbytes), want));
    assert_true(checksum_equal(word_by_word(data, nbytes), want));
}

static void test_checksum_of_every_small_length(void **state)
{
    uint8_t *data = random_bytes(1024);

    (void)state;
    for (size_t at = 0; at < 9; at++)
        for (size_t n = 0; n <= 300; n++)
            check(data + at, n);
    free(data);
}

static void test_checksum_of_large(void **state)
{
    const size_t n = (4 << 20) + 7;
    uint8_t *data = random_bytes(n);

    (void)state;
    check(data, n);
    check(data + 3, n - 3);
    memset(data, 0xff, n); /* the sums wrap as the definition's do */
    check(data, n);
    free(data);
}

/* Cut anywhere, and added from the end to the beginning. */
static void test_checksum_of_parts(void **state)
{
    uint8_t *data = random_bytes(512);
    uint64_t cuts[] = {1, 2, 3, 4, 5, 7, 8, 64, 66, 129};

    (void)state;
    for (size_t n = 0; n <= 300; n++) {
        struct checksum want = by_definition(data, n);

        for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
            struct checksum sum = {0, 0};
            uint64_t at = n;

            while (at > 0) {
                uint64_t part = at < cuts[k] ? at : cuts[k];

                at -= part;
                checksum_add(&sum, data + at, part, at);
            }
            assert_true(checksum_equal(sum, want));
        }
    }
    free(data);
}

static void test_checksum_of_known_values(void **state)
{
    static const uint8_t one[] = {1, 0, 0, 0, 2, 0, 0, 0, 3};
    char text[CHECKSUM_LEN + 1];
    struct checksum c = checksum_of(one, sizeof one);

    (void)state;
    assert_int_equal(c.a, 6);
    assert_int_equal(c.b, 1 + 4 + 9);
    checksum_text(&c, text);
    assert_string_equal(text, "0000000000000006000000000000000e");
    assert_true(checksum_equal(checksum_of("", 0), (struct checksum){0, 0}));
}

/* What it is for: a swap of two slices, an offset, another tensor's bytes. */
static void test_checksum_of_sees_misplaced_bytes(void **state)
{
    uint8_t *data = random_bytes(4096), *other = malloc(4096);
    struct checksum c = checksum_of(data, 2048);

    (void)state;
    memcpy(other, data + 1024, 1024);
    memcpy(other + 1024, data, 1024);
    assert_false(checksum_equal(c, checksum_of(other, 2048)));
    assert_false(checksum_equal(c, checksum_of(data + 4, 2048)));
    assert_false(checksum_equal(c, checksum_of(data + 2048, 2048)));
    free(data);
    free(other);
}

static void test_checksum_parse_takes_32_hex_digits(void **state)
{
    static const char *const bad[] = {"",
                                      "0",
                                      "0000000000000006000000000000000",
                                      "0000000000000006000000000000000e0",
                                      "000000000000000g000000000000000e",
                                      "0x00000000000006000000000000000e",
                                      "0000000000000006 00000000000000e",
                                      "-000000000000006000000000000000e"};
    struct checksum c = {1, 2};
    char text[CHECKSUM_LEN + 1];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(checksum_parse(&c, bad[i]));
        assert_true(c.a == 1 && c.b == 2);
    }
    assert_true(checksum_parse(&c, "0123456789abcdeFFEDCBA9876543210"));
    assert_true(c.a == 0x0123456789abcdef && c.b == 0xfedcba9876543210);
    checksum_text(&c, text);
    assert_string_equal(text, "0123456789abcdeffedcba9876543210");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksum_of_every_small_length),
        cmocka_unit_test(test_checksum_of_large),
        cmocka_unit_test(test_checksum_of_parts),
        cmocka_unit_test(test_checksum_of_known_values),
        cmocka_unit_test(test_checksum_of_sees_misplaced_bytes),
        cmocka_unit_test(test_checksum_parse_takes_32_hex_digits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

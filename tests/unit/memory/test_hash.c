/* The hashes of peers' files against published vectors, whole and in pieces. */
#include "memory/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { INPUT_MAX = 102400 };

struct vector {
    size_t nbytes;
    const char *text;
};

/* test_vectors.json of the BLAKE3 repository: byte i is i mod 251; the first 32 bytes of `hash`. */
static const struct vector blake3_vectors[] = {
    {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
    {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
    {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
    {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
    {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
    {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
    {2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"},
    {3072, "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2"},
    {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"},
    {4096, "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969"},
    {4097, "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995"},
    {5120, "9cadc15fed8b5d854562b26a9536d9707cadeda9b143978f319ab34230535833"},
    {5121, "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff"},
    {7169, "a003fc7a51754a9b3c7fae0367ab3d782dccf28855a03d435f8cfe74605e7817"},
    {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b"},
    {16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"},
    {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
    {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
};

static uint8_t *input(void)
{
    uint8_t *data = malloc(INPUT_MAX);

    assert_non_null(data);
    for (size_t i = 0; i < INPUT_MAX; i++)
        data[i] = (uint8_t)(i % 251);
    return data;
}

/* In pieces of each of several lengths; the text may be asked for in between. */
static void check_pieces(enum hash_kind kind, const uint8_t *data, size_t nbytes, const char *want)
{
    static const size_t pieces[] = {1, 63, 64, 65, 1000, 1024, 5552, 65536};
    char text[HASH_TEXT_MAX + 1];

    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        struct hash *h = hash_new(kind);

        assert_non_null(h);
        for (size_t at = 0, n; at < nbytes; at += n) {
            n = nbytes - at < pieces[p] ? nbytes - at : pieces[p];
            hash_add(h, data + at, n);
        }
        hash_text(h, text);
        hash_text(h, text);
        assert_string_equal(text, want);
        hash_free(h);
    }
}

static void test_blake3_has_its_published_vectors(void **state)
{
    uint8_t *data = input();
    char text[HASH_TEXT_MAX + 1];

    (void)state;
    for (size_t i = 0; i < sizeof blake3_vectors / sizeof blake3_vectors[0]; i++) {
        const struct vector *v = &blake3_vectors[i];

        hash_of(HASH_BLAKE3, data, v->nbytes, text);
        assert_string_equal(text, v->text);
        check_pieces(HASH_BLAKE3, data, v->nbytes, v->text);
    }
    free(data);
}

/* Of FIPS 180, RFC 1950's definition, and libxxhash's own tables of seed 0. */
static void test_others_have_known_values(void **state)
{
    static const struct {
        enum hash_kind kind;
        const char *data, *text;
    } known[] = {
        {HASH_ADLER32, "", "00000001"},
        {HASH_ADLER32, "Wikipedia", "11e60398"},
        {HASH_XXH3_128, "", "99aa06d3014798d86001c324468d497f"},
        {HASH_SHA256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    };
    char text[HASH_TEXT_MAX + 1];

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i].data);

        hash_of(known[i].kind, known[i].data, n, text);
        assert_string_equal(text, known[i].text);
        check_pieces(known[i].kind, (const uint8_t *)known[i].data, n, known[i].text);
    }
}

/* A run of the largest bytes, longer than the sums can grow without a remainder. */
static void test_adler_does_not_overflow(void **state)
{
    uint8_t *data = malloc(INPUT_MAX);
    uint64_t a = 1, b = 0;
    char text[HASH_TEXT_MAX + 1], want[9];

    (void)state;
    assert_non_null(data);
    memset(data, 255, INPUT_MAX);
    for (size_t i = 0; i < INPUT_MAX; i++) {
        a = (a + data[i]) % 65521;
        b = (b + a) % 65521;
    }
    (void)snprintf(want, sizeof want, "%08x", (unsigned)(b << 16 | a));
    hash_of(HASH_ADLER32, data, INPUT_MAX, text);
    assert_string_equal(text, want);
    check_pieces(HASH_ADLER32, data, INPUT_MAX, want);
    free(data);
}

static void test_pieces_of_any_length_are_the_whole(void **state)
{
    uint8_t *data = input();
    char text[HASH_TEXT_MAX + 1];

    (void)state;
    for (int kind = 0; kind < HASH_KIND_COUNT; kind++)
        for (size_t n = 0; n <= 1100; n += 17) {
            hash_of((enum hash_kind)kind, data + n % 7, n, text);
            check_pieces((enum hash_kind)kind, data + n % 7, n, text);
        }
    free(data);
}

static void test_names_and_texts_are_checked(void **state)
{
    (void)state;
    for (int kind = 0; kind < HASH_KIND_COUNT; kind++)
        assert_int_equal(hash_kind_parse(hash_kind_name((enum hash_kind)kind)), kind);
    assert_int_equal(hash_kind_parse("md5"), HASH_KIND_COUNT);
    assert_int_equal(hash_kind_parse(""), HASH_KIND_COUNT);
    assert_true(hash_text_valid(HASH_ADLER32, "0123abcf"));
    assert_false(hash_text_valid(HASH_ADLER32, "0123ABCF"));
    assert_false(hash_text_valid(HASH_ADLER32, "0123abc"));
    assert_false(hash_text_valid(HASH_XXH3_128, "0123abcf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blake3_has_its_published_vectors),
        cmocka_unit_test(test_others_have_known_values),
        cmocka_unit_test(test_adler_does_not_overflow),
        cmocka_unit_test(test_pieces_of_any_length_are_the_whole),
        cmocka_unit_test(test_names_and_texts_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

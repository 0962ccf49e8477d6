/* The unique id's three forms, from real pickles, and every way in which they can be wrong. */
#include "transport/nccl/nccl_id.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <nettle/base64.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PICKLE_CAP = 8192 };

struct pickle {
    uint8_t bytes[PICKLE_CAP];
    size_t nbytes;
    uint8_t id[NCCL_ID_NBYTES]; /* what must be found */
    int protocol;
};

static json_t *load(void)
{
    json_t *file = json_load_file(FIXTURES "/nccl/uniqueid_pickles.json", 0, NULL);

    assert_non_null(file);
    return file;
}

static const char *text_of(const json_t *c, const char *member)
{
    const char *text = json_string_value(json_object_get(c, member));

    assert_non_null(text);
    return text;
}

static void from_hex(uint8_t *out, size_t n, const char *hex)
{
    assert_int_equal(strlen(hex), 2 * n);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
}

static struct pickle pickle_of(const json_t *c)
{
    struct base64_decode_ctx ctx;
    struct pickle p = {0};
    const char *text = text_of(c, "pickle_b64");

    assert_true(BASE64_DECODE_LENGTH(strlen(text)) <= PICKLE_CAP);
    base64_decode_init(&ctx);
    assert_int_equal(base64_decode_update(&ctx, &p.nbytes, p.bytes, strlen(text), text), 1);
    assert_int_equal(base64_decode_final(&ctx), 1);
    assert_int_equal(p.nbytes, json_integer_value(json_object_get(c, "total_len")));
    from_hex(p.id, sizeof p.id, text_of(c, "id_hex"));
    p.protocol = (int)json_integer_value(json_object_get(c, "protocol"));
    return p;
}

static struct pickle pickle_named(const char *name)
{
    json_t *file = load(), *c;
    struct pickle p = {0};
    size_t i;

    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        if (strcmp(text_of(c, "name"), name) == 0)
            p = pickle_of(c);
    }
    json_decref(file);
    assert_true(p.nbytes > 0);
    return p;
}

/* From an allocation of exactly n bytes, so that a read beyond them is seen. */
static int read_pickle(uint8_t id[NCCL_ID_NBYTES], const uint8_t *bytes, size_t n, struct err *e)
{
    uint8_t *exact = malloc(n > 0 ? n : 1);
    int rc;

    assert_non_null(exact);
    memcpy(exact, bytes, n);
    rc = nccl_id_from_pickle(id, exact, n, e);
    free(exact);
    return rc;
}

static void assert_refused(const uint8_t *bytes, size_t n, const char *why)
{
    uint8_t id[NCCL_ID_NBYTES], before[NCCL_ID_NBYTES];
    struct err e = {0};

    memset(before, 0x5a, sizeof before);
    memcpy(id, before, sizeof id);
    assert_int_equal(read_pickle(id, bytes, n, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    if (strstr(e.msg, why) == NULL)
        fail_msg("wanted '%s': %s", why, e.msg);
    assert_memory_equal(id, before, sizeof id);
}

static void test_pickles_give_the_id_or_are_refused(void **state)
{
    json_t *file = load(), *c;
    unsigned n_read = 0, n_refused = 0;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        struct pickle p = pickle_of(c);
        uint8_t id[NCCL_ID_NBYTES];
        struct err e = {0};
        if (p.protocol < 4) {
            assert_refused(p.bytes, p.nbytes, p.protocol == 3 ? "protocol 3" : "protocol 2");
            n_refused++;
            continue;
        }
        if (read_pickle(id, p.bytes, p.nbytes, &e) != 0)
            fail_msg("%s: %s", text_of(c, "name"), e.msg);
        assert_memory_equal(id, p.id, sizeof id);
        n_read++;
    }
    assert_int_equal(n_read, 6);
    assert_int_equal(n_refused, 2);
    json_decref(file);
}

/* Also with the protocol byte of a newer pickle: what refuses then is the shape. */
static void test_older_pickles_are_refused_by_their_shape_too(void **state)
{
    static const char *const names[] = {"vllm_p3_pattern", "vllm_p2_pattern_no_raw_run"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct pickle p = pickle_named(names[i]);
        p.bytes[1] = 4;
        assert_refused(p.bytes, p.nbytes, "its end is not that of a pickle");
    }
}

static void test_other_pickles_are_refused(void **state)
{
    json_t *file = load(), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(file, "extra"), i, c)
    {
        const json_t *hex = json_object_get(c, "pickle_hex");
        uint8_t bytes[256];
        size_t n;
        if (hex == NULL)
            continue;
        n = json_string_length(hex) / 2;
        from_hex(bytes, n, json_string_value(hex));
        assert_refused(bytes, n, "bytes; a pickled ncclUniqueId has 140 to 4096");
    }
    json_decref(file);
}

static void test_every_cut_is_refused(void **state)
{
    struct pickle p = pickle_named("vllm_p4_ipv4");

    (void)state;
    for (size_t n = 0; n < p.nbytes; n++)
        assert_refused(p.bytes, n, "");
    for (size_t n = 1; n < p.nbytes; n++)
        assert_refused(p.bytes + n, p.nbytes - n, "");
    p.bytes[p.nbytes] = 0;
    assert_refused(p.bytes, p.nbytes + 1, "its end is not that of a pickle");
}

static void test_every_byte_of_the_shape_counts(void **state)
{
    struct pickle p = pickle_named("vllm_p4_ipv4");
    size_t at_id = p.nbytes - 8 - NCCL_ID_NBYTES;

    (void)state;
    for (size_t i = 0; i < p.nbytes; i++) {
        bool shape = i < 2 || i >= p.nbytes - 8 || (i >= at_id - 2 && i < at_id);
        uint8_t id[NCCL_ID_NBYTES];
        struct err e = {0};
        p.bytes[i] ^= 0x40;
        if (shape)
            assert_refused(p.bytes, p.nbytes, "");
        else
            assert_int_equal(read_pickle(id, p.bytes, p.nbytes, &e), 0);
        p.bytes[i] ^= 0x40;
    }
}

static void test_pickle_lengths_are_bounded(void **state)
{
    struct pickle p = pickle_named("vllm_p4_ipv4");
    uint8_t *big = calloc(1, NCCL_ID_PICKLE_NBYTES_MAX + 1), id[NCCL_ID_NBYTES];
    size_t n_tail = 8 + NCCL_ID_NBYTES + 2;
    struct err e = {0};

    (void)state;
    assert_non_null(big);
    memcpy(big, p.bytes, 2);
    memcpy(big + NCCL_ID_PICKLE_NBYTES_MAX - n_tail, p.bytes + p.nbytes - n_tail, n_tail);
    assert_int_equal(read_pickle(id, big, NCCL_ID_PICKLE_NBYTES_MAX, &e), 0);
    assert_memory_equal(id, p.id, sizeof id);
    memcpy(big + NCCL_ID_PICKLE_NBYTES_MAX + 1 - n_tail, p.bytes + p.nbytes - n_tail, n_tail);
    assert_refused(big, NCCL_ID_PICKLE_NBYTES_MAX + 1, "4097 bytes");
    memcpy(big + 2, p.bytes + p.nbytes - n_tail, n_tail);
    assert_int_equal(read_pickle(id, big, 2 + n_tail, &e), 0); /* 140: the shortest of that shape */
    free(big);
}

static void test_raw_is_128_bytes(void **state)
{
    struct pickle p = pickle_named("vllm_p4_pattern");
    uint8_t id[NCCL_ID_NBYTES] = {0}, value[NCCL_ID_NBYTES + 1] = {0};

    (void)state;
    memcpy(value, p.id, sizeof p.id);
    for (size_t n = 0; n <= sizeof value; n++) {
        struct err e = {0};
        int rc = nccl_id_from_raw(id, value, n, &e);
        assert_int_equal(rc, n == NCCL_ID_NBYTES ? 0 : -1);
        assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_UNREADABLE);
    }
    assert_memory_equal(id, p.id, sizeof id);
}

static void assert_base64_refused(const char *text, size_t len, const char *why)
{
    uint8_t id[NCCL_ID_NBYTES] = {7};
    char *exact = malloc(len > 0 ? len : 1);
    struct err e = {0};

    assert_non_null(exact);
    memcpy(exact, text, len);
    assert_int_equal(nccl_id_from_base64(id, exact, len, "/nccl_unique_id", &e), -1);
    free(exact);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/nccl_unique_id");
    if (strstr(e.msg, why) == NULL)
        fail_msg("wanted '%s': %s", why, e.msg);
    assert_int_equal(id[0], 7);
}

static void test_base64_is_strict(void **state)
{
    struct pickle p = pickle_named("vllm_p4_pattern");
    char text[NCCL_ID_BASE64_LEN + 8], bad[NCCL_ID_BASE64_LEN + 8];
    uint8_t id[NCCL_ID_NBYTES];
    struct err e = {0};

    (void)state;
    base64_encode_raw(text, NCCL_ID_NBYTES, p.id);
    assert_int_equal(nccl_id_from_base64(id, text, NCCL_ID_BASE64_LEN, "/x", &e), 0);
    assert_memory_equal(id, p.id, sizeof id);

    assert_base64_refused(text, 0, "172 characters");
    assert_base64_refused(text, NCCL_ID_BASE64_LEN - 1, "172 characters");
    memcpy(text + NCCL_ID_BASE64_LEN, "AAAA", 4);
    assert_base64_refused(text, NCCL_ID_BASE64_LEN + 4, "172 characters");
    memcpy(bad, text, sizeof bad);
    bad[5] = '-'; /* the URL-safe alphabet */
    assert_base64_refused(bad, NCCL_ID_BASE64_LEN, "not in the standard alphabet");
    bad[5] = '\n';
    assert_base64_refused(bad, NCCL_ID_BASE64_LEN, "not in the standard alphabet");
    bad[5] = '=';
    assert_base64_refused(bad, NCCL_ID_BASE64_LEN, "not in the standard alphabet");
    memcpy(bad, text, sizeof bad);
    bad[NCCL_ID_BASE64_LEN - 1] = 'A'; /* 129 bytes */
    assert_base64_refused(bad, NCCL_ID_BASE64_LEN, "");
    memcpy(bad, text, sizeof bad);
    bad[NCCL_ID_BASE64_LEN - 2] = '='; /* 127 bytes */
    assert_base64_refused(bad, NCCL_ID_BASE64_LEN, "");
}

static void test_address_for_the_log(void **state)
{
    static const struct {
        const char *name, *text;
    } rows[] = {
        {"real_libnccl_2.28.9_loopback", "127.0.0.1:39449"},
        {"vllm_p4_ipv4", "10.0.0.17:45123"},
        {"vllm_p4_ipv6_2.30layout", "[fd00::17]:50000"},
        {"vllm_p4_pattern", "no address"},
    };
    char text[CIDR_ADDR_TEXT_CAP];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pickle p = pickle_named(rows[i].name);
        assert_string_equal(nccl_id_addr_text(p.id, text), rows[i].text);
    }
}

static void test_no_port_is_no_address(void **state)
{
    struct pickle p = pickle_named("vllm_p4_ipv4");
    char text[CIDR_ADDR_TEXT_CAP];

    (void)state;
    assert_string_not_equal(nccl_id_addr_text(p.id, text), "no address");
    p.id[10] = p.id[11] = 0;
    assert_string_equal(nccl_id_addr_text(p.id, text), "no address");
    memset(p.id, 0, sizeof p.id);
    assert_string_equal(nccl_id_addr_text(p.id, text), "no address");
}

static void test_allow_list(void **state)
{
    struct pickle v4 = pickle_named("vllm_p4_ipv4"), none = pickle_named("vllm_p4_pattern");
    struct pickle v6 = pickle_named("vllm_p4_ipv6_2.30layout");
    struct cidr_list list = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(nccl_id_allow(none.id, NULL, NULL, "/x", &e), 0);
    assert_int_equal(nccl_id_allow(v4.id, cidr_list_match, &list, "/x", &e), -1);
    assert_int_equal(e.code, ERR_FORBIDDEN);
    assert_non_null(strstr(e.msg, "10.0.0.17:45123"));
    err_clear(&e);
    assert_int_equal(cidr_list_add(&list, "10.0.0.0/8", "", &e), 0);
    assert_int_equal(nccl_id_allow(v4.id, cidr_list_match, &list, "/x", &e), 0);
    assert_int_equal(nccl_id_allow(v6.id, cidr_list_match, &list, "/x", &e), -1);
    assert_string_equal(e.field, "/x");
    err_clear(&e);
    assert_int_equal(cidr_list_add(&list, "fd00::/8", "", &e), 0);
    assert_int_equal(nccl_id_allow(v6.id, cidr_list_match, &list, "/x", &e), 0);
    assert_int_equal(nccl_id_allow(none.id, cidr_list_match, &list, "/x", &e), -1);
    assert_int_equal(e.code, ERR_FORBIDDEN);
    assert_non_null(strstr(e.msg, "no address can be read"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pickles_give_the_id_or_are_refused),
        cmocka_unit_test(test_older_pickles_are_refused_by_their_shape_too),
        cmocka_unit_test(test_other_pickles_are_refused),
        cmocka_unit_test(test_every_cut_is_refused),
        cmocka_unit_test(test_every_byte_of_the_shape_counts),
        cmocka_unit_test(test_pickle_lengths_are_bounded),
        cmocka_unit_test(test_raw_is_128_bytes),
        cmocka_unit_test(test_base64_is_strict),
        cmocka_unit_test(test_address_for_the_log),
        cmocka_unit_test(test_no_port_is_no_address),
        cmocka_unit_test(test_allow_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

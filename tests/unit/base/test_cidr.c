/* Blocks of addresses: what is one, what lies in it, and the same peer by every way of writing it.
 */
#include "base/net/cidr.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

static struct sockaddr_storage addr_of(const char *text)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(29500)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(29500)};
    struct sockaddr_storage out = {0};

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        memcpy(&out, &v4, sizeof v4);
    else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1)
        memcpy(&out, &v6, sizeof v6);
    else
        fail_msg("'%s' is no address", text);
    return out;
}

static bool in_block(const char *block, const char *addr)
{
    struct sockaddr_storage a = addr_of(addr);
    struct err e = {0};
    struct cidr_list list = {0};

    if (cidr_list_add(&list, block, "/x", &e) != 0)
        fail_msg("'%s': %s", block, e.msg);
    return cidr_list_match(&list, (const struct sockaddr *)&a);
}

static void test_add_reads_every_way_of_writing_a_block(void **state)
{
    static const struct {
        const char *text, *again;
    } rows[] = {
        {"10.0.0.0/8", "10.0.0.0/8"},
        {"0.0.0.0/0", "0.0.0.0/0"},
        {"192.0.2.7", "192.0.2.7/32"},
        {"192.0.2.7/32", "192.0.2.7/32"},
        {"192.0.2.6/31", "192.0.2.6/31"},
        {"fd00::/8", "fd00::/8"},
        {"::/0", "::/0"},
        {"::1", "::1/128"},
        {"2001:DB8:0:0:0:0:0:0/29", "2001:db8::/29"},
        {"::ffff:10.0.0.0/104", "10.0.0.0/8"},
        {"::ffff:192.0.2.7", "192.0.2.7/32"},
        {"::ffff:0:0/96", "0.0.0.0/0"},
        {"::/96", "::/96"},
        {"ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128",
         "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct cidr_list list = {0};
        struct err e = {0};

        if (cidr_list_add(&list, rows[i].text, "/x", &e) != 0 ||
            cidr_list_add(&list, rows[i].again, "/x", &e) != 0)
            fail_msg("'%s': %s", rows[i].text, e.msg);
        if (memcmp(&list.items[0], &list.items[1], sizeof list.items[0]) != 0)
            fail_msg("'%s' is not '%s'", rows[i].text, rows[i].again);
    }
}

static void test_add_refuses(void **state)
{
    static const struct {
        const char *text, *why;
    } rows[] = {
        {"", "empty"},
        {"/8", "empty"},
        {"10.0.0.0/", "from 0 to 32"},
        {"10.0.0.0/33", "from 0 to 32"},
        {"10.0.0.0/08", "from 0 to 32"},
        {"10.0.0.0/+8", "from 0 to 32"},
        {"10.0.0.0/ 8", "from 0 to 32"},
        {"10.0.0.0/8/8", "from 0 to 32"},
        {"10.0.0.0/4294967304", "from 0 to 32"},
        {"10.0.0.0/255.0.0.0", "from 0 to 32"},
        {"fd00::/129", "from 0 to 128"},
        {"fd00::/1e1", "from 0 to 128"},
        {"10.0.0/8", "no numeric"},
        {"010.0.0.0/8", "no numeric"},
        {"0x0a000000", "no numeric"},
        {"10.0.0.256", "no numeric"},
        {"trainer.local", "no numeric"},
        {"[::1]", "no numeric"},
        {"fe80::1%lo", "no numeric"},
        {" 10.0.0.1", "no numeric"},
        {"10.0.0.1 ", "no numeric"},
        {":::/0", "no numeric"},
        {"10.1.2.3/8", "the block is 10.0.0.0/8"},
        {"10.0.0.1/31", "the block is 10.0.0.0/31"},
        {"0.0.0.1/0", "the block is 0.0.0.0/0"},
        {"fd00::1/127", "the block is fd00::/127"},
        {"fd00::80/120", "the block is fd00::/120"},
        {"1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb", "too long"},
    };
    struct cidr_list list = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        assert_int_equal(cidr_list_add(&list, rows[i].text, "--nccl-allow-cidr", &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, "--nccl-allow-cidr");
        if (strstr(e.msg, rows[i].why) == NULL)
            fail_msg("'%s': %s", rows[i].text, e.msg);
        assert_int_equal(list.n, 0);
    }
}

static void test_match_at_the_edges(void **state)
{
    static const struct {
        const char *block, *addr;
        bool in;
    } rows[] = {
        {"10.0.0.0/8", "10.0.0.0", true},
        {"10.0.0.0/8", "10.255.255.255", true},
        {"10.0.0.0/8", "11.0.0.0", false},
        {"10.0.0.0/8", "9.255.255.255", false},
        {"192.0.2.6/31", "192.0.2.7", true},
        {"192.0.2.6/31", "192.0.2.8", false},
        {"192.0.2.7", "192.0.2.7", true},
        {"192.0.2.7", "192.0.2.6", false},
        {"0.0.0.0/0", "255.255.255.255", true},
        {"172.16.0.0/12", "172.31.255.255", true},
        {"172.16.0.0/12", "172.32.0.0", false},
        {"fd00::/8", "fdff:ffff::1", true},
        {"fd00::/8", "fe00::", false},
        {"2001:db8::/29", "2001:dbf:ffff::", true},
        {"2001:db8::/29", "2001:dc0::", false},
        {"::1", "::1", true},
        {"::1", "::2", false},
        {"::/0", "fe80::1", true},
        {"0.0.0.0/0", "::1", false},
        {"::/0", "10.0.0.1", false},
        {"10.0.0.0/8", "::ffff:10.1.2.3", true},
        {"::/0", "::ffff:10.1.2.3", false},
        {"::ffff:10.0.0.0/104", "10.1.2.3", true},
        {"::ffff:10.0.0.0/104", "11.1.2.3", false},
        {"a00::/8", "10.0.0.1", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (in_block(rows[i].block, rows[i].addr) != rows[i].in)
            fail_msg("%s in %s: wanted %d", rows[i].addr, rows[i].block, rows[i].in);
}

static void test_match_only_ip(void **state)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "/x"};
    struct err e = {0};
    struct cidr_list list = {0};

    (void)state;
    assert_int_equal(cidr_list_add(&list, "0.0.0.0/0", "/x", &e), 0);
    assert_int_equal(cidr_list_add(&list, "::/0", "/x", &e), 0);
    assert_false(cidr_list_match(&list, (const struct sockaddr *)&un));
}

static void test_list_matches_any(void **state)
{
    struct sockaddr_storage inside = addr_of("fd00::17"), outside = addr_of("192.0.2.8");
    struct cidr_list list = {0};
    struct err e = {0};

    (void)state;
    assert_false(cidr_list_match(&list, (const struct sockaddr *)&inside));
    assert_int_equal(cidr_list_add(&list, "192.0.2.7", "/x", &e), 0);
    assert_int_equal(cidr_list_add(&list, "fd00::/8", "/x", &e), 0);
    assert_int_equal(list.n, 2);
    assert_true(cidr_list_match(&list, (const struct sockaddr *)&inside));
    assert_false(cidr_list_match(&list, (const struct sockaddr *)&outside));
}

static void test_list_is_bounded(void **state)
{
    struct cidr_list list = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(cidr_list_add(&list, "nonsense", "/x", &e), -1);
    assert_int_equal(list.n, 0);
    err_clear(&e);
    for (int i = 0; i < CIDR_LIST_MAX; i++)
        assert_int_equal(cidr_list_add(&list, "10.0.0.1", "/x", &e), 0);
    assert_int_equal(cidr_list_add(&list, "10.0.0.1", "/x", &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_int_equal(list.n, CIDR_LIST_MAX);
}

static void test_addr_text(void **state)
{
    struct sockaddr_storage v4 = addr_of("10.0.0.17"), v6 = addr_of("fd00::17");
    struct sockaddr_storage mapped = addr_of("::ffff:10.0.0.17");
    struct sockaddr_in6 scoped = {.sin6_family = AF_INET6, .sin6_scope_id = 4294967295U};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char text[CIDR_ADDR_TEXT_CAP];

    (void)state;
    assert_string_equal(cidr_addr_text((const struct sockaddr *)&v4, text), "10.0.0.17:29500");
    assert_string_equal(cidr_addr_text((const struct sockaddr *)&v6, text), "[fd00::17]:29500");
    assert_string_equal(cidr_addr_text((const struct sockaddr *)&mapped, text),
                        "[::ffff:10.0.0.17]:29500");
    memset(&scoped.sin6_addr, 0xff, 16);
    scoped.sin6_port = 0xffff;
    assert_string_equal(cidr_addr_text((const struct sockaddr *)&scoped, text),
                        "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535");
    assert_string_equal(cidr_addr_text((const struct sockaddr *)&un, text),
                        "an address of family 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_reads_every_way_of_writing_a_block),
        cmocka_unit_test(test_add_refuses),
        cmocka_unit_test(test_match_at_the_edges),
        cmocka_unit_test(test_match_only_ip),
        cmocka_unit_test(test_list_matches_any),
        cmocka_unit_test(test_list_is_bounded),
        cmocka_unit_test(test_addr_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* transport/fetch_rules: which URLs and addresses may be fetched from. */
#include "transport/fetch_priv.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_fetch_rules_new_refuses_what_is_no_prefix(void **state)
{
    static const struct {
        const char *prefix, *cidr, *field, *says;
    } cases[] = {
        {"", NULL, "--fetch-prefix", "is neither"},
        {"gs://bucket", NULL, "--fetch-prefix", "is neither"},
        {"/bucket=https://host", NULL, "--fetch-prefix", "is neither"},
        {"gs://bucket=host/bucket", NULL, "--fetch-prefix", "is neither"},
        {"gs://bucket=ftp://host", NULL, "--fetch-prefix", "is neither"},
        {"gs://bucket=https://", NULL, "--fetch-prefix", "https://"},
        {"https://user@host/x", NULL, "--fetch-prefix", "paths and users"},
        {"https://host:0/x", NULL, "--fetch-prefix", "port"},
        {"https://host/a/../b", NULL, "--fetch-prefix", "'..'"},
        {"https://host/a?b", NULL, "--fetch-prefix", "character"},
        {"https://host", "10.0.0.1/8", "--fetch-cidr", "10.0.0.1/8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fetch_cfg cfg = {.prefixes = &cases[i].prefix,
                                .n_prefixes = 1,
                                .cidrs = &cases[i].cidr,
                                .n_cidrs = cases[i].cidr != NULL};
        struct fetch_rules *r = NULL;
        struct err e = {0};

        assert_int_equal(fetch_rules_new(&r, &cfg, &e), -1);
        assert_null(r);
        assert_string_equal(e.field, cases[i].field);
        assert_non_null(strstr(e.msg, cases[i].says));
    }
}

static void test_fetch_prefix_of_finds_the_longest_by_whole_names(void **state)
{
    static const char *const prefixes[] = {"gs://b=https://host:1/all/", "gs://b/run=http://other",
                                           "https://host/x"};
    static const struct {
        const char *url, *server, *path, *rest; /* server NULL: none */
    } cases[] = {
        {"gs://b", "https://host:1", "/all", ""},
        {"gs://b/a/c", "https://host:1", "/all", "/a/c"},
        {"gs://b/runs", "https://host:1", "/all", "/runs"},
        {"gs://b/run/c", "http://other", "", "/c"},
        {"https://host/x/y", "https://host", "/x", "/y"},
        {"gs://bb/a", NULL, NULL, NULL},
        {"s3://b/a", NULL, NULL, NULL},
        {"https://host/xy", NULL, NULL, NULL},
        {"http://host/x", NULL, NULL, NULL},
        {"https://host", NULL, NULL, NULL},
    };
    struct fetch_cfg cfg = {.prefixes = prefixes, .n_prefixes = 3};
    struct fetch_rules *r = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(fetch_rules_new(&r, &cfg, &e), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *rest = NULL;
        const struct fetch_prefix *p = fetch_prefix_of(r, cases[i].url, &rest);

        assert_int_equal(p != NULL, cases[i].server != NULL);
        if (p == NULL)
            continue;
        assert_string_equal(p->url, cases[i].server);
        assert_string_equal(p->path, cases[i].path);
        assert_string_equal(rest, cases[i].rest);
    }
    assert_null(fetch_prefix_of(NULL, "gs://b", &(const char *){NULL}));
    fetch_rules_free(r);
}

static void test_fetch_path_is_plain(void **state)
{
    static const char *const good[] = {"", "/a", "/a/b-._~@:,=", "a/.b", "/a..b"};
    static const char *const bad[] = {"/",       "//a",  "/a//b", "/a/",      "/..",
                                      "/a/../b", "/./a", "/...",  "/a%2e",    "/a?b",
                                      "/a#b",    "/a b", "/a\\b", "/\xc3\xa9"};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(fetch_path_is_plain(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(fetch_path_is_plain(bad[i]));
    assert_true(fetch_is_url("gs://x") && fetch_is_url("https://x"));
    assert_false(fetch_is_url("/a://b") || fetch_is_url("a/b") || fetch_is_url("a:/b"));
}

static bool allowed(const struct fetch_rules *r, const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return fetch_address_allowed(r, (const struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return fetch_address_allowed(r, (const struct sockaddr *)&v6);
}

static void test_fetch_address_allowed(void **state)
{
    static const char *const public[] = {"8.8.8.8",   "100.128.0.1",    "172.32.0.1",
                                         "193.0.0.1", "::ffff:8.8.8.8", "2606:4700::1",
                                         "2a00::1"};
    static const char *const private[] = {
        "0.0.0.0",    "10.1.2.3",        "100.64.0.1",       "127.0.0.1",       "169.254.169.254",
        "172.16.0.1", "192.168.1.1",     "224.0.0.1",        "255.255.255.255", "::",
        "::1",        "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1",  "2002:7f00:1::",
        "2001::1",    "fd00::1",         "fe80::1",          "ff02::1"};
    static const char *const cidrs[] = {"10.0.0.0/8", "fd00::/16"}, *const prefix = "https://host";
    struct fetch_cfg cfg = {.prefixes = &prefix, .n_prefixes = 1, .cidrs = cidrs};
    struct fetch_rules *r = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(fetch_rules_new(&r, &cfg, &e), 0);
    for (size_t i = 0; i < sizeof public / sizeof public[0]; i++)
        assert_true(allowed(r, public[i]));
    for (size_t i = 0; i < sizeof private / sizeof private[0]; i++)
        assert_false(allowed(r, private[i]));
    fetch_rules_free(r);
    cfg.n_cidrs = 2;
    assert_int_equal(fetch_rules_new(&r, &cfg, &e), 0);
    assert_true(allowed(r, "10.1.2.3") && allowed(r, "::ffff:10.0.0.1") && allowed(r, "fd00::1"));
    assert_false(allowed(r, "127.0.0.1") || allowed(r, "fd01::1"));
    fetch_rules_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fetch_rules_new_refuses_what_is_no_prefix),
        cmocka_unit_test(test_fetch_prefix_of_finds_the_longest_by_whole_names),
        cmocka_unit_test(test_fetch_path_is_plain),
        cmocka_unit_test(test_fetch_address_allowed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

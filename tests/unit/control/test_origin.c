/* Which requests of web pages are served, and what lets a page read the answer: rules as tables. */
#include "http/server/origin.h"

#include "control/auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY  "watch-0123456789abcdef"
#define EVIL "http://evil.example"
#define APP  "https://app.example"

static const char *const hosts[] = {"baton", "Node-7.cluster.local", "*.svc"};
static const char *const origins[] = {APP, "http://[::1]:3000", "chrome-extension://abcdef"};
static const char *const any[] = {"*"};
static const struct origin_rules none,
    named = {.hosts = hosts, .n_hosts = 3}, anything = {.hosts = any, .n_hosts = 1},
    pages = {.origins = origins, .n_origins = 3}, all_pages = {.origins = any, .n_origins = 1};

static enum err_code check(const struct origin_rules *rules, const struct origin_request *asked,
                           struct err *e)
{
    struct origin_request q = *asked;
    int rc;

    if (q.target == NULL)
        q.target = "/v1/status";
    if (q.authorization == NULL)
        q.authorization = "";
    memset(e, 0, sizeof *e);
    rc = origin_check(rules, &q, e);
    assert_int_equal(rc == 0, e->code == ERR_NONE);
    return e->code;
}

static void test_host_names_this_server(void **state)
{
    static const struct {
        const char *host;
        bool by_none, by_named; /* is it allowed? */
    } rows[] = {
        {"127.0.0.1", true, true},
        {"127.0.0.1:8700", true, true},
        {"127.0.0.1.:8700", true, true},
        {"10.1.2.3:1", true, true},
        {"[::1]", true, true},
        {"[::1]:8700", true, true},
        {"[2001:db8::17]:8700", true, true},
        {"[fe80::1%eth0]:8700", true, true},
        {"[::ffff:127.0.0.1]", true, true},
        {"localhost", true, true},
        {"LocalHost:8700", true, true},
        {"localhost.:8700", true, true},
        {"localhost:", true, true},
        {"a.b.localhost", true, true},
        {NULL, true, true}, /* HTTP/1.0 */
        {"baton", false, true},
        {"BATON.:8700", false, true},
        {"node-7.cluster.local:8700", false, true},
        {"a.svc", false, true},
        {"a.b.SVC:80", false, true},
        {"svc", false, false},
        {".svc", false, false},
        {"a.svc.evil.example", false, false},
        {"xsvc", false, false},
        {"baton.evil.example", false, false},
        {"evil.example", false, false},
        {"evil.example:8700", false, false},
        {"localhost.evil.example", false, false},
        {"evillocalhost", false, false},
        {".localhost", false, false},
        {"127.0.0.1.evil.example", false, false},
        {"127.0.0.1.nip.io", false, false},
        {"0x7f.0.0.1", false, false},
        {"2130706433", false, false},
        {"127.1", false, false},
        {"", false, false},
        {":8700", false, false},
        {".", false, false},
        {"localhost:x", false, false},
        {"localhost:80:80", false, false},
        {"localhost:80@evil.example", false, false},
        {"localhost@evil.example", false, false},
        {"localhost evil.example", false, false},
        {"localhost, evil.example", false, false},
        {"::1", false, false},
        {"[::1", false, false},
        {"[]", false, false},
        {"[evil.example]", false, false},
        {"[localhost]", false, false},
        {"[::1]evil.example", false, false},
        {"[::1].localhost", false, false},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct origin_request q = {.host = rows[i].host};

        if (check(&none, &q, &e) != (rows[i].by_none ? ERR_NONE : ERR_MISDIRECTED) ||
            check(&named, &q, &e) != (rows[i].by_named ? ERR_NONE : ERR_MISDIRECTED))
            fail_msg("Host '%s': %s", rows[i].host, e.msg);
        q.unix_socket = true;
        assert_int_equal(check(&none, &q, &e), ERR_NONE);
    }
    assert_int_equal(check(&anything, &(struct origin_request){.host = "evil.example"}, &e), 0);
}

/* At the longest names that fit, and one byte more. */
static void test_host_of_any_length(void **state)
{
    static const size_t lens[] = {63, 64, 99, 100, 101, 254, 255, 256, 300, 20000};
    static char text[20032];
    struct origin_request q = {.host = text};
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        memset(text, 'a', lens[i]);
        (void)snprintf(text + lens[i], sizeof text - lens[i], ":8700");
        assert_int_equal(check(&named, &q, &e), ERR_MISDIRECTED);
        assert_int_equal(check(&anything, &q, &e),
                         lens[i] <= ORIGIN_HOST_LEN_MAX ? ERR_NONE : ERR_MISDIRECTED);
        text[0] = '[';
        text[lens[i] - 1] = ']';
        assert_int_equal(check(&named, &q, &e), ERR_MISDIRECTED);
    }
}

static void test_target_with_a_host_does_not_bypass_it(void **state)
{
    static const struct {
        const char *target, *host;
        enum err_code code;
    } rows[] = {
        {"/version", "localhost", ERR_NONE},
        {"/version?u=http://evil.example/", "localhost", ERR_NONE},
        {"*", "localhost", ERR_NONE},
        {"http://localhost/version", "localhost", ERR_NONE},
        {"http://127.0.0.1:8700", "localhost", ERR_NONE},
        {"http://evil.example/version", "localhost", ERR_MISDIRECTED},
        {"HTTPS://evil.example?localhost", "localhost", ERR_MISDIRECTED},
        {"http://localhost@evil.example/", "localhost", ERR_MISDIRECTED},
        {"http://localhost/version", "evil.example", ERR_MISDIRECTED},
        {"http:///version", "localhost", ERR_MISDIRECTED},
        {"http://evil.example/version", NULL, ERR_MISDIRECTED},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct origin_request q = {.host = rows[i].host, .target = rows[i].target};

        if (check(&none, &q, &e) != rows[i].code)
            fail_msg("%s with Host %s: %s", rows[i].target, rows[i].host, e.msg);
    }
}

static void test_message_names_the_host_and_the_option(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(check(&none, &(struct origin_request){.host = "baton.svc:8700"}, &e),
                     ERR_MISDIRECTED);
    assert_non_null(strstr(e.msg, "'baton.svc'"));
    assert_non_null(strstr(e.msg, "--allowed-host baton.svc"));
    assert_int_equal(
        check(&none, &(struct origin_request){.host = "localhost", .origin = EVIL}, &e),
        ERR_FORBIDDEN);
    assert_non_null(strstr(e.msg, "--allow-origin " EVIL));
}

static bool knows_key(void *arg, const char *authorization)
{
    return auth_knows(arg, authorization);
}

/* The program's own keys: one that it knows exempts from the rule of Host, and from no other. Of a
 * peer that needs a key the rule is not asked: without one it gets a 401, which the listener gives.
 */
static void test_keys_exempt_from_the_host(void **state)
{
    static const struct {
        const char *authorization;
        enum err_code code; /* of a peer of --no-auth-cidr */
    } rows[] = {
        {"Bearer " KEY, ERR_NONE},    {"bearer  " KEY " ", ERR_NONE},
        {"", ERR_MISDIRECTED},        {"Bearer " KEY "x", ERR_MISDIRECTED},
        {KEY, ERR_MISDIRECTED},       {"Basic " KEY, ERR_MISDIRECTED},
        {"Bearer ", ERR_MISDIRECTED},
    };
    char path[] = "/tmp/test_origin.XXXXXX";
    const char *const trust[] = {"0.0.0.0/0"};
    struct auth_cfg with_keys = {.key_file = path}, without = {.trust = trust, .n_trust = 1};
    struct origin_rules rules = none;
    int fd = mkstemp(path);
    struct auth *a;
    struct err e = {0};

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(dprintf(fd, "viewer " KEY "\n"), 8 + sizeof KEY - 1);
    assert_int_equal(close(fd), 0);
    assert_int_equal(auth_new(&a, &with_keys, &e), 0);
    rules.knows_key = auth_has_keys(a) ? knows_key : NULL;
    rules.knows_key_arg = a;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct origin_request q = {
            .host = "baton.svc", .authorization = rows[i].authorization, .trusted = true};

        if (check(&rules, &q, &e) != rows[i].code)
            fail_msg("'%s': %s", rows[i].authorization, e.msg);
        q.origin = EVIL;
        assert_int_equal(check(&rules, &q, &e),
                         rows[i].code == ERR_NONE ? ERR_FORBIDDEN : rows[i].code);
        q.trusted = false;
        assert_int_equal(check(&rules, &q, &e), ERR_FORBIDDEN);
        q.origin = NULL;
        assert_int_equal(check(&rules, &q, &e), ERR_NONE);
    }
    auth_free(a);
    /* An address of --no-auth-cidr is no key: a browser may run there. */
    assert_int_equal(auth_new(&a, &without, &e), 0);
    rules.knows_key = auth_has_keys(a) ? knows_key : NULL;
    rules.knows_key_arg = a;
    assert_int_equal(
        check(&rules, &(struct origin_request){.host = "baton.svc", .authorization = "Bearer " KEY},
              &e),
        ERR_MISDIRECTED);
    auth_free(a);
    (void)unlink(path);
}

static void test_origin_of_the_page(void **state)
{
    static const struct {
        const char *origin, *fetch_site, *host;
        bool tls;
        enum err_code by_none, by_pages, by_all;
    } rows[] = {
        /* no page */
        {NULL, NULL, "localhost", false, 0, 0, 0},
        {NULL, "none", "localhost", false, 0, 0, 0},
        /* a page of this server */
        {NULL, "same-origin", "localhost", false, 0, 0, 0},
        {"http://localhost:8700", "same-origin", "localhost:8700", false, 0, 0, 0},
        {"http://LOCALHOST:8700", NULL, "localhost:8700", false, 0, 0, 0},
        {"http://[::1]:8700", NULL, "[::1]:8700", false, 0, 0, 0},
        {"https://localhost", NULL, "localhost", true, 0, 0, 0},
        /* almost */
        {"http://localhost:8700", NULL, "localhost:8700", true, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"https://localhost:8700", NULL, "localhost:8700", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"http://localhost:3000", "same-site", "localhost:8700", false, ERR_FORBIDDEN,
         ERR_FORBIDDEN, 0},
        {"http://localhost", NULL, "localhost:8700", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"http://localhost:87001", NULL, "localhost:8700", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"http://127.0.0.1:8700", NULL, "localhost:8700", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"http://localhost:8700", "cross-site", "localhost:8700", false, ERR_FORBIDDEN,
         ERR_FORBIDDEN, 0},
        {"http://", NULL, NULL, false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"", NULL, "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        /* of others */
        {EVIL, "cross-site", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {EVIL, NULL, "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {EVIL, "same-origin", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"null", "cross-site", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"null", "same-origin", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {NULL, "cross-site", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, ERR_FORBIDDEN},
        {NULL, "same-site", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, ERR_FORBIDDEN},
        {NULL, "", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, ERR_FORBIDDEN},
        {NULL, "odd", "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, ERR_FORBIDDEN},
        /* of --allow-origin */
        {APP, "cross-site", "localhost", false, ERR_FORBIDDEN, 0, 0},
        {"https://APP.example", NULL, "localhost", false, ERR_FORBIDDEN, 0, 0},
        {"http://[::1]:3000", "same-site", "localhost", false, ERR_FORBIDDEN, 0, 0},
        {"chrome-extension://abcdef", "none", "localhost", false, ERR_FORBIDDEN, 0, 0},
        {APP ":444", NULL, "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {APP ".evil.example", NULL, "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"http://app.example", NULL, "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
        {"https://x.app.example", NULL, "localhost", false, ERR_FORBIDDEN, ERR_FORBIDDEN, 0},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct origin_request q = {.origin = rows[i].origin,
                                   .fetch_site = rows[i].fetch_site,
                                   .host = rows[i].host,
                                   .tls = rows[i].tls};

        if (check(&none, &q, &e) != rows[i].by_none || check(&pages, &q, &e) != rows[i].by_pages ||
            check(&all_pages, &q, &e) != rows[i].by_all)
            fail_msg("row %zu, Origin %s, Host %s: %s", i, rows[i].origin, rows[i].host, e.msg);
        q.unix_socket = true; /* a proxy may stand before it */
        assert_int_equal(check(&none, &q, &e), rows[i].by_none);
    }
}

/* Without a header that tells of the page, a browser's image and its address bar look the same. */
static void test_a_browser_says_what_page_lets_a_get_act(void **state)
{
#define CHROMIUM "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/156.0.0.0 Safari/537.36"
    static const struct {
        struct origin_request q;
        enum err_code code;
    } rows[] = {
        {{.user_agent = CHROMIUM}, ERR_FORBIDDEN},
        {{.user_agent = "Mozilla/5.0 (X11; rv:140.0) Gecko/20100101 Firefox/140.0"}, ERR_FORBIDDEN},
        {{.user_agent = "mozilla/4.0"}, ERR_FORBIDDEN},
        {{.user_agent = CHROMIUM, .tls = true}, ERR_FORBIDDEN},
        {{.user_agent = CHROMIUM, .unix_socket = true}, ERR_FORBIDDEN},
        {{.user_agent = CHROMIUM, .authorization = "Bearer " KEY}, ERR_FORBIDDEN},
        /* origin_check let these pass */
        {{.user_agent = CHROMIUM, .fetch_site = "none"}, ERR_NONE},
        {{.user_agent = CHROMIUM, .fetch_site = "same-origin"}, ERR_NONE},
        {{.user_agent = CHROMIUM, .origin = APP}, ERR_NONE},
        /* no browser */
        {{.user_agent = NULL}, ERR_NONE},
        {{.user_agent = ""}, ERR_NONE},
        {{.user_agent = "curl/8.5.0"}, ERR_NONE},
        {{.user_agent = "python-requests/2.32.3"}, ERR_NONE},
        {{.user_agent = "Python/3.12 aiohttp/3.11.11"}, ERR_NONE},
        {{.user_agent = "Mozilla"}, ERR_NONE},
        {{.user_agent = "trainer (like Mozilla/5.0)"}, ERR_NONE},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memset(&e, 0, sizeof e);
        if (origin_check_act(&rows[i].q, &e) != (rows[i].code == ERR_NONE ? 0 : -1) ||
            e.code != rows[i].code)
            fail_msg("row %zu, User-Agent %s: %s", i, rows[i].q.user_agent, e.msg);
    }
#undef CHROMIUM
}

static void test_name_and_page_are_asked_for_each(void **state)
{
    struct origin_rules both = {hosts, 3, origins, 3, NULL, NULL};
    struct origin_request q = {.host = "evil.example", .origin = APP};
    struct err e;

    (void)state;
    assert_int_equal(check(&both, &q, &e), ERR_MISDIRECTED);
    q.origin = EVIL; /* the page of a name that was rebound is of the same origin */
    assert_int_equal(check(&both, &q, &e), ERR_MISDIRECTED);
    q.host = "baton";
    assert_int_equal(check(&both, &q, &e), ERR_FORBIDDEN);
    q.origin = APP;
    assert_int_equal(check(&both, &q, &e), ERR_NONE);
}

/* "NAME=VALUE;" of each header of an answer. */
static void answer(char *text, size_t cap, const struct origin_rules *rules,
                   const struct origin_request *q)
{
    struct origin_answer_header out[ORIGIN_ANSWER_HEADERS_MAX];
    size_t n = origin_answer(rules, q, out), len = 0;

    assert_true(n <= ORIGIN_ANSWER_HEADERS_MAX);
    text[0] = '\0';
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, cap - len, "%s=%s;", out[i].name, out[i].value);
}

static void test_answer_lets_the_page_read(void **state)
{
#define ACA "Access-Control-Allow-"
    static const struct {
        const struct origin_rules *rules;
        struct origin_request q;
        bool preflight;
        const char *text;
    } rows[] = {
        {&none, {.origin = EVIL, .options = true, .asks_method = "POST"}, false, ""},
        {&none, {0}, false, ""},
        {&pages, {0}, false, "Vary=Origin;"},
        {&pages, {.origin = EVIL}, false, "Vary=Origin;"},
        {&pages, {.origin = EVIL, .options = true, .asks_method = "POST"}, false, "Vary=Origin;"},
        {&pages,
         {.origin = APP},
         false,
         "Vary=Origin;" ACA "Origin=" APP ";Access-Control-Expose-Headers=*;"},
        {&all_pages,
         {.origin = EVIL},
         false,
         "Vary=Origin;" ACA "Origin=*;Access-Control-Expose-Headers=*;"},
        {&pages, /* OPTIONS that asks nothing */
         {.origin = APP, .options = true},
         false,
         "Vary=Origin;" ACA "Origin=" APP ";Access-Control-Expose-Headers=*;"},
        {&pages, /* not by that method */
         {.origin = APP, .asks_method = "POST"},
         false,
         "Vary=Origin;" ACA "Origin=" APP ";Access-Control-Expose-Headers=*;"},
        {&pages,
         {.origin = APP, .options = true, .asks_method = "POST"},
         true,
         "Vary=Origin;" ACA "Origin=" APP ";" ACA "Methods=GET, HEAD, POST, PUT, DELETE;"
         "Access-Control-Max-Age=600;"},
        {&pages,
         {.origin = APP,
          .options = true,
          .asks_method = "POST",
          .asks_headers = "authorization,x-session-id",
          .asks_private_network = "true"},
         true,
         "Vary=Origin;" ACA "Origin=" APP ";" ACA "Methods=GET, HEAD, POST, PUT, DELETE;" ACA
         "Headers=authorization,x-session-id;Access-Control-Max-Age=600;" ACA
         "Private-Network=true;"},
    };
    char text[1024];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        answer(text, sizeof text, rows[i].rules, &rows[i].q);
        assert_string_equal(text, rows[i].text);
        assert_int_equal(origin_is_preflight(rows[i].rules, &rows[i].q), rows[i].preflight);
    }
#undef ACA
}

/* The head of an answer has its bounds. */
static void test_answer_allows_so_many_headers(void **state)
{
    static char asked[ORIGIN_ASKED_HEADERS_LEN_MAX + 2];
    struct origin_request q = {
        .origin = APP, .options = true, .asks_method = "POST", .asks_headers = asked};
    struct origin_answer_header out[ORIGIN_ANSWER_HEADERS_MAX];

    (void)state;
    memset(asked, 'x', ORIGIN_ASKED_HEADERS_LEN_MAX);
    assert_int_equal(origin_answer(&pages, &q, out), 5);
    asked[ORIGIN_ASKED_HEADERS_LEN_MAX] = 'x';
    assert_int_equal(origin_answer(&pages, &q, out), 4);
}

static void test_header_keeps_the_first(void **state)
{
    struct origin_request q = {0};

    (void)state;
    origin_header(&q, "ORIGIN", EVIL);
    origin_header(&q, "host", "a");
    origin_header(&q, "X-Forwarded-Host", "localhost");
    origin_header(&q, "Forwarded", "host=localhost");
    origin_header(&q, "Sec-Fetch-Site", "cross-site");
    origin_header(&q, "user-agent", "curl/8.5.0");
    origin_header(&q, "User-Agent", "Mozilla/5.0");
    origin_header(&q, "Access-Control-Request-Method", "POST");
    origin_header(&q, "Access-Control-Request-Headers", "x");
    origin_header(&q, "Access-Control-Request-Private-Network", "true");
    assert_string_equal(q.origin, EVIL);
    assert_string_equal(q.host, "a");
    assert_string_equal(q.fetch_site, "cross-site");
    assert_string_equal(q.user_agent, "curl/8.5.0");
    assert_string_equal(q.asks_method, "POST");
    assert_string_equal(q.asks_headers, "x");
    assert_string_equal(q.asks_private_network, "true");
    assert_null(q.repeated);
    origin_header(&q, "origin", APP);
    assert_string_equal(q.origin, EVIL);
    assert_string_equal(q.repeated, "Origin");
    origin_header(&q, "sec-fetch-site", "none");
    assert_string_equal(q.repeated, "Sec-Fetch-Site");
}

/* An entry that can never match is refused at the start. */
static void test_rules_check_entries(void **state)
{
    static const struct {
        const char *host, *origin; /* of each row one */
        bool good;
    } rows[] = {
        {"*", NULL, true},
        {"baton", NULL, true},
        {"a_b.c-1.example", NULL, true},
        {"*.svc.cluster.local", NULL, true},
        {"10.0.0.1", NULL, true},
        {"", NULL, false},
        {"*.", NULL, false},
        {"**", NULL, false},
        {"*svc", NULL, false},
        {"a.*", NULL, false},
        {".svc", NULL, false},
        {"baton.", NULL, false},
        {"baton:8700", NULL, false},
        {"http://baton", NULL, false},
        {"[::1]", NULL, false},
        {"a b", NULL, false},
        {"a,b", NULL, false},
        {NULL, "*", true},
        {NULL, "http://a", true},
        {NULL, "https://a.example:8443", true},
        {NULL, "https://a.example:80", true},
        {NULL, "http://[::1]:3000", true},
        {NULL, "vscode-webview://abc", true},
        {NULL, "null", false},
        {NULL, "a.example", false},
        {NULL, "://a", false},
        {NULL, "http://", false},
        {NULL, "http://a/", false},
        {NULL, "http://a:80", false},
        {NULL, "HTTPS://a:443", false},
        {NULL, "https://*.a.example", false},
        {NULL, "https://a,https://b", false},
        {NULL, "https://u@a", false},
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct origin_rules rules = {
            &rows[i].host, rows[i].host != NULL, &rows[i].origin, rows[i].origin != NULL, NULL,
            NULL};

        memset(&e, 0, sizeof e);
        if ((origin_rules_check(&rules, &e) == 0) != rows[i].good)
            fail_msg("row %zu: %s", i, e.msg);
        if (!rows[i].good)
            assert_string_equal(e.field,
                                rows[i].host != NULL ? "--allowed-host" : "--allow-origin");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_names_this_server),
        cmocka_unit_test(test_host_of_any_length),
        cmocka_unit_test(test_target_with_a_host_does_not_bypass_it),
        cmocka_unit_test(test_message_names_the_host_and_the_option),
        cmocka_unit_test(test_keys_exempt_from_the_host),
        cmocka_unit_test(test_origin_of_the_page),
        cmocka_unit_test(test_a_browser_says_what_page_lets_a_get_act),
        cmocka_unit_test(test_name_and_page_are_asked_for_each),
        cmocka_unit_test(test_answer_lets_the_page_read),
        cmocka_unit_test(test_answer_allows_so_many_headers),
        cmocka_unit_test(test_header_keeps_the_first),
        cmocka_unit_test(test_rules_check_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

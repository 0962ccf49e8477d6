/* Engines by name: they join and leave by the answers of a resolver that is made up here. */
#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"
#include "fleet/members/upstreams.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MS = 1000, LONG_MS = 30000, N_ADDRESSES = RESOLVE_ALL_MAX + 1, N_HOSTS = 2 };

static char path[] = "/tmp/test_upstream_names.XXXXXX";

/* What the resolver says of each host: "a" and "b". */
static struct {
    pthread_mutex_t lock;
    struct {
        char text[N_ADDRESSES][48];
        size_t n;
        int rc;    /* of both families */
        int rc_v4; /* of IPv4 */
    } hosts[N_HOSTS];
    atomic_uint n_asked[N_HOSTS], n_running;
    atomic_bool hangs;
} dns = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void say(size_t host, const char *addresses)
{
    char text[512], *rest = text;

    (void)snprintf(text, sizeof text, "%s", addresses);
    (void)pthread_mutex_lock(&dns.lock);
    dns.hosts[host].n = 0;
    dns.hosts[host].rc = dns.hosts[host].rc_v4 = 0;
    for (char *one = strtok_r(rest, " ", &rest); one != NULL; one = strtok_r(NULL, " ", &rest))
        (void)snprintf(dns.hosts[host].text[dns.hosts[host].n++], sizeof dns.hosts[0].text[0], "%s",
                       one);
    (void)pthread_mutex_unlock(&dns.lock);
}

static void fail_with(size_t host, int rc, int rc_v4)
{
    (void)pthread_mutex_lock(&dns.lock);
    dns.hosts[host].rc = rc;
    dns.hosts[host].rc_v4 = rc_v4;
    (void)pthread_mutex_unlock(&dns.lock);
}

static struct addrinfo *address_of(const char *text, uint16_t port, struct addrinfo *next)
{
    struct addrinfo *a = calloc(1, sizeof *a + sizeof(struct sockaddr_in6));
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

    assert_non_null(a);
    a->ai_addr = (struct sockaddr *)(a + 1);
    a->ai_next = next;
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
        a->ai_family = AF_INET;
        a->ai_addrlen = sizeof v4;
        memcpy(a->ai_addr, &v4, sizeof v4);
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
        a->ai_family = AF_INET6;
        a->ai_addrlen = sizeof v6;
        memcpy(a->ai_addr, &v6, sizeof v6);
    }
    return a;
}

static int answer(size_t host, uint16_t port, int family, struct addrinfo **out)
{
    struct addrinfo *all = NULL;
    int rc;

    (void)pthread_mutex_lock(&dns.lock);
    rc = family == AF_INET && dns.hosts[host].rc_v4 != 0 ? dns.hosts[host].rc_v4
                                                         : dns.hosts[host].rc;
    for (size_t i = 0; rc == 0 && i < dns.hosts[host].n; i++) {
        bool v6 = strchr(dns.hosts[host].text[i], ':') != NULL;

        if (!v6 && dns.hosts[host].rc_v4 != 0)
            continue; /* as glibc: what it has of the other family */
        if (family == AF_UNSPEC || (family == AF_INET6) == v6)
            all = address_of(dns.hosts[host].text[i], port, all);
    }
    (void)pthread_mutex_unlock(&dns.lock);
    *out = all;
    return rc != 0 ? rc : all != NULL ? 0 : EAI_NONAME;
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    int rc;

    if (strlen(host) != 1)
        return EAI_NONAME;
    (void)atomic_fetch_add(&dns.n_running, 1);
    while (atomic_load(&dns.hangs))
        (void)poll(NULL, 0, 1);
    rc = answer((size_t)(host[0] - 'a'), (uint16_t)strtoul(service, NULL, 10), hints->ai_family,
                out);
    if (hints->ai_family != AF_INET6) /* asked after the other */
        (void)atomic_fetch_add(&dns.n_asked[host[0] - 'a'], 1);
    (void)atomic_fetch_sub(&dns.n_running, 1);
    return rc;
}

void freeaddrinfo(struct addrinfo *a)
{
    struct addrinfo *next;

    for (; a != NULL; a = next) {
        next = a->ai_next;
        free(a);
    }
}

/* Its engines, in the order of their names: "10.0.0.1:80 …"; those by other means with their
 * origin. */
static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static const char *members(struct upstreams *u)
{
    static char text[4096], all[FLEET_MAX][96];
    upstream_list_auto *list = upstreams_list(u);
    size_t n = 0, len = 0;

    for (size_t i = 0; i < list->n; i++) {
        const struct upstream_config *s = upstream_config(list->items[i]);

        if (!upstream_is_removed(list->items[i]))
            (void)snprintf(all[n++], sizeof all[0], "%s%s%s", strstr(s->url, "://") + 3,
                           s->name_url != NULL ? "" : "=",
                           s->name_url != NULL ? "" : upstream_config_origin(s));
    }
    qsort(all, n, sizeof all[0], by_text);
    text[0] = '\0';
    for (size_t i = 0; i < n && len < sizeof text - 100; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", i > 0 ? " " : "", all[i]);
    return text;
}

static void await_members(struct upstreams *u, const char *wanted)
{
    for (int ms = 0; ms < LONG_MS; ms++) {
        if (strcmp(members(u), wanted) == 0)
            return;
        (void)poll(NULL, 0, 1);
    }
    fail_msg("'%s', not '%s'", members(u), wanted);
}

/* What is said now has been taken: two look-ups began after this. */
static void settle(size_t host)
{
    unsigned from = atomic_load(&dns.n_asked[host]);

    for (int ms = 0; ms < LONG_MS && atomic_load(&dns.n_asked[host]) < from + 3; ms++)
        (void)poll(NULL, 0, 1);
    assert_true(atomic_load(&dns.n_asked[host]) >= from + 3);
}

static void assert_stays(struct upstreams *u, const char *wanted)
{
    settle(0);
    assert_string_equal(members(u), wanted);
}

static struct upstream_name_info name_of(struct upstreams *u, size_t i)
{
    struct upstream_name_info info;

    assert_true(upstreams_name(u, i, &info));
    return info;
}

static void configure(const char *text)
{
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static struct upstreams *begin_with(const char *text, uint64_t interval_us)
{
    struct upstreams_cfg cfg = {.file = path,
                                .min_ready = 1,
                                .n_permits = {4, 4},
                                .n_queue_max = {4, 4},
                                .probe_interval_us = 5 * MS,
                                .probe_timeout_us = 1000 * MS,
                                .dns_interval_us = interval_us};
    struct upstreams *u = NULL;
    struct err e = {0};

    configure(text);
    if (upstreams_new(&u, &cfg, &e) != 0 || upstreams_start(u, &e) != 0 ||
        upstreams_look_up(u, &e) != 0)
        fail_msg("%s: %s", e.field, e.msg);
    return u;
}

static void reload(struct upstreams *u, const char *text)
{
    struct err e = {0};

    configure(text);
    if (upstreams_reload(u, &e) != 0 || upstreams_look_up(u, &e) != 0)
        fail_msg("%s: %s", e.field, e.msg);
}

static void add(struct upstreams *u, const char *entry)
{
    struct upstream *it;
    struct err e = {0};

    if (upstreams_add(u, entry, &it, &e) != 0)
        fail_msg("%s", e.msg);
    upstream_unref(it);
}

static void remove_by_request(struct upstreams *u, const char *url)
{
    struct upstream *it;
    struct err e = {0};

    if (upstreams_remove(u, url, &it, &e) != 0)
        fail_msg("%s", e.msg);
    upstream_unref(it);
}

static int end(void **state)
{
    (void)state;
    atomic_store(&dns.hangs, false);
    while (atomic_load(&dns.n_running) > 0)
        (void)poll(NULL, 0, 1);
    return 0;
}

static void test_addresses_join_and_leave(void **state)
{
    struct upstreams *u;

    (void)state;
    say(0, "127.9.0.1 127.9.0.2 127.9.0.1");
    u = begin_with("dns+http://a:1,vllm\n", 5 * MS);
    await_members(u, "127.9.0.1:1 127.9.0.2:1");
    settle(0); /* the answer is noted once its engines are here */
    assert_int_equal(name_of(u, 0).n_addresses, 2);
    assert_string_equal(name_of(u, 0).name, "dns+http://a:1");
    say(0, "127.9.0.2 127.9.0.3");
    await_members(u, "127.9.0.2:1 127.9.0.3:1");
    say(0, "127.9.0.1");
    await_members(u, "127.9.0.1:1");
    upstreams_free(u);
}

static void test_no_answer_changes_nothing(void **state)
{
    static const struct {
        int rc;
        const char *says;
    } rows[] = {{EAI_NONAME, "has no address"},
                {EAI_NODATA, "has no address"},
                {EAI_AGAIN, "cannot be looked up"},
                {EAI_FAIL, "cannot be looked up"},
                {EAI_SYSTEM, "cannot be looked up"}};
    struct upstreams *u;

    (void)state;
    say(0, "127.9.0.1 127.9.0.2");
    u = begin_with("dns+http://a:1\n", 5 * MS);
    await_members(u, "127.9.0.1:1 127.9.0.2:1");
    assert_int_equal(name_of(u, 0).n_failures, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fail_with(0, rows[i].rc, 0);
        assert_stays(u, "127.9.0.1:1 127.9.0.2:1");
        assert_non_null(strstr(name_of(u, 0).why.msg, rows[i].says));
    }
    assert_true(name_of(u, 0).n_failures >= sizeof rows / sizeof rows[0]);
    assert_int_equal(name_of(u, 0).n_addresses, 2);
    say(0, "127.9.0.2");
    await_members(u, "127.9.0.2:1");
    settle(0);
    assert_int_equal(name_of(u, 0).why.code, ERR_NONE);
    upstreams_free(u);
}

/* A name server that fails for one family does not make the engines those of the other. */
static void test_an_engine_has_one_address(void **state)
{
    struct upstreams *u;

    (void)state;
    say(0, "::1 127.9.0.1 ::2");
    u = begin_with("dns+http://a:1\n", 5 * MS);
    await_members(u, "127.9.0.1:1");
    assert_stays(u, "127.9.0.1:1");
    fail_with(0, 0, EAI_AGAIN);
    assert_stays(u, "127.9.0.1:1");
    assert_non_null(strstr(name_of(u, 0).why.msg, "cannot be looked up"));
    fail_with(0, 0, EAI_NODATA);
    await_members(u, "[::1]:1 [::2]:1");
    upstreams_free(u);
}

static void test_too_many_addresses_change_nothing(void **state)
{
    struct upstreams *u;

    (void)state;
    say(0, "127.9.0.1");
    u = begin_with("dns+http://a:1\n", 5 * MS);
    await_members(u, "127.9.0.1:1");
    (void)pthread_mutex_lock(&dns.lock);
    for (size_t i = 0; i < N_ADDRESSES; i++)
        (void)snprintf(dns.hosts[0].text[i], sizeof dns.hosts[0].text[0], "127.8.%zu.%zu", i / 200,
                       i % 200);
    dns.hosts[0].n = N_ADDRESSES;
    (void)pthread_mutex_unlock(&dns.lock);
    assert_stays(u, "127.9.0.1:1");
    assert_string_equal(name_of(u, 0).why.msg, "the name has more than 256 addresses");
    /* All of them are read, but there is no place for all beside the one of the file. */
    reload(u, "dns+http://a:1\nhttp://127.7.0.1:1\n");
    (void)pthread_mutex_lock(&dns.lock);
    dns.hosts[0].n = RESOLVE_ALL_MAX;
    (void)pthread_mutex_unlock(&dns.lock);
    settle(0);
    assert_string_equal(members(u), "127.7.0.1:1=configuration");
    assert_non_null(strstr(name_of(u, 0).why.msg, "no place is free"));
    say(0, "127.9.0.1 127.9.0.4");
    await_members(u, "127.7.0.1:1=configuration 127.9.0.1:1 127.9.0.4:1");
    upstreams_free(u);
}

/* Who is there by an entry or a request stays; what a request removed stays away until it was out
 * of the answer, or until the configuration is read again. */
static void test_requests_and_entries_beside_a_name(void **state)
{
    struct upstreams *u;
    struct upstream *it;
    struct err e = {0};

    (void)state;
    say(0, "127.9.0.1 127.9.0.2 127.9.0.3");
    u = begin_with("http://127.9.0.1:1\n# none\n", 5 * MS);
    add(u, "http://127.9.0.2:1");
    reload(u, "http://127.9.0.1:1\ndns+http://a:1\n");
    await_members(u, "127.9.0.1:1=configuration 127.9.0.2:1=request 127.9.0.3:1");
    add(u, "http://127.9.0.3:1"); /* it is here: nothing changes */
    assert_stays(u, "127.9.0.1:1=configuration 127.9.0.2:1=request 127.9.0.3:1");
    say(0, "127.9.0.4");
    await_members(u, "127.9.0.1:1=configuration 127.9.0.2:1=request 127.9.0.4:1");
    remove_by_request(u, "http://127.9.0.4:1");
    assert_stays(u, "127.9.0.1:1=configuration 127.9.0.2:1=request");
    reload(u, "http://127.9.0.1:1\ndns+http://a:1\n");
    assert_string_equal(members(u), "127.9.0.1:1=configuration 127.9.0.2:1=request 127.9.0.4:1");
    remove_by_request(u, "http://127.9.0.4:1");
    say(0, "127.9.0.5");
    await_members(u, "127.9.0.1:1=configuration 127.9.0.2:1=request 127.9.0.5:1");
    say(0, "127.9.0.4 127.9.0.5");
    await_members(u, "127.9.0.1:1=configuration 127.9.0.2:1=request 127.9.0.4:1 127.9.0.5:1");
    reload(u, "http://127.9.0.1:1\n");
    assert_string_equal(members(u), "127.9.0.1:1=configuration 127.9.0.2:1=request");
    assert_false(upstreams_name(u, 0, &(struct upstream_name_info){0}));
    assert_int_equal(upstreams_add(u, "dns+http://a:1", &it, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    upstreams_free(u);
}

static void test_two_names_share_an_address(void **state)
{
    struct upstreams *u;

    (void)state;
    say(0, "127.9.0.1 127.9.0.2");
    say(1, "127.9.0.2 127.9.0.3");
    u = begin_with("dns+http://a:1\ndns+http://b:1\n", 5 * MS);
    await_members(u, "127.9.0.1:1 127.9.0.2:1 127.9.0.3:1");
    settle(1);
    say(0, "127.9.0.1");
    assert_stays(u, "127.9.0.1:1 127.9.0.2:1 127.9.0.3:1");
    say(1, "127.9.0.3");
    await_members(u, "127.9.0.1:1 127.9.0.3:1");
    upstreams_free(u);
}

/* One look-up is under way, however long it takes, and neither a stop nor a reload waits for it. */
static void test_a_look_up_that_hangs(void **state)
{
    struct upstreams *u;

    (void)state;
    atomic_store(&dns.hangs, true);
    say(0, "127.9.0.1");
    u = begin_with("dns+http://a:1\n", 5 * MS);
    for (int ms = 0; ms < LONG_MS && name_of(u, 0).n_failures == 0; ms++)
        (void)poll(NULL, 0, 1);
    assert_string_equal(name_of(u, 0).why.msg, "no name server has answered for 5 s");
    assert_int_equal(atomic_load(&dns.n_running), 1);
    reload(u, "dns+http://a:1\ndns+http://b:1\n");
    upstreams_free(u);
    u = begin_with("dns+http://a:1\n", 5 * MS);
    atomic_store(&dns.hangs, false);
    await_members(u, "127.9.0.1:1"); /* a late answer counts */
    upstreams_free(u);
}

/* Its port refuses connections, so it is down as soon as it is probed three times. */
static void test_a_failure_asks_again(void **state)
{
    struct upstreams *u;

    (void)state;
    say(0, "127.9.0.1");
    atomic_store(&dns.n_asked[0], 0);
    u = begin_with("dns+http://a:1\n", UINT64_C(3600000000));
    await_members(u, "127.9.0.1:1");
    say(0, "127.9.0.2");
    await_members(u, "127.9.0.2:1");
    upstreams_free(u);
}

static void test_the_url_of_an_engine_with_tls(void **state)
{
    upstream_list_auto *list = NULL;
    struct upstreams *u;

    (void)state;
    say(0, "::1 ::2");
    u = begin_with("dns+https://a:8443,sglang\n", 5 * MS);
    await_members(u, "[::1]:8443 [::2]:8443");
    list = upstreams_list(u);
    for (size_t i = 0; i < 2; i++) {
        const struct upstream_config *s = upstream_config(list->items[i]);

        assert_int_equal(strncmp(s->url, "https://", 8), 0);
        assert_string_equal(s->target.url, "https://a:8443");
        assert_string_equal(s->target.connect_to, s->url + 8);
        assert_int_equal(s->kind, UPSTREAM_SGLANG);
    }
    upstreams_free(u);
}

static void test_malformed_names(void **state)
{
    static const struct {
        const char *entry, *says;
    } rows[] = {
        {"dns+http://a", "none of dns+http://NAME:PORT"},
        {"dns+unix:/a", "none of dns+http://NAME:PORT"},
        {"dns+http://[::1]:1", "none of dns+http://NAME:PORT"},
        {"dns+http://a:0", "port '0'"},
        {"dns+http://a:1,tgi", "tgi"},
        {"dns+http://a:1,ca-file=/x", "needs an https URL"},
        {"dns+", "none of http://host:port"},
        {"dns+dns+http://a:1", "none of http://host:port"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct upstream_config_list l = {.n = 0};
        struct err e = {0};

        assert_int_equal(upstream_config_list_read(&l, &rows[i].entry, 1, NULL, &e), -1);
        if (strstr(e.msg, rows[i].says) == NULL)
            fail_msg("'%s' is refused with '%s'", rows[i].entry, e.msg);
    }
    for (int n = 1; n <= UPSTREAM_NAMES_MAX + 1; n++) {
        struct upstream_config_list l = {.n = 0};
        char text[UPSTREAM_NAMES_MAX + 1][32];
        const char *entries[UPSTREAM_NAMES_MAX + 1];
        struct err e = {0};

        for (int i = 0; i < n; i++) {
            (void)snprintf(text[i], sizeof text[i], "dns+http://a:%d", i + 1);
            entries[i] = text[i];
        }
        assert_int_equal(upstream_config_list_read(&l, entries, (size_t)n, NULL, &e),
                         n <= UPSTREAM_NAMES_MAX ? 0 : -1);
        upstream_config_list_fini(&l);
    }
}

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_addresses_join_and_leave, end),
        cmocka_unit_test_teardown(test_no_answer_changes_nothing, end),
        cmocka_unit_test_teardown(test_an_engine_has_one_address, end),
        cmocka_unit_test_teardown(test_too_many_addresses_change_nothing, end),
        cmocka_unit_test_teardown(test_requests_and_entries_beside_a_name, end),
        cmocka_unit_test_teardown(test_two_names_share_an_address, end),
        cmocka_unit_test_teardown(test_a_look_up_that_hangs, end),
        cmocka_unit_test_teardown(test_a_failure_asks_again, end),
        cmocka_unit_test_teardown(test_the_url_of_an_engine_with_tls, end),
        cmocka_unit_test(test_malformed_names),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}

/* Names and connections: what blocks is left behind, who is not allowed is not called, who does not
 * listen yet is tried again. getaddrinfo and connect are wrapped by the linker. */
#include "base/net/resolve.h"
#include "base/net/tcp_dial.h"

#include "tests/unit/store_script.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <semaphore.h>
#include <sys/resource.h>

#define NOBODYS "127.0.0.77" /* no other program takes a port that is free there */

enum {
    LONG_US = 60 * 1000 * 1000,
    SHORT_US = 40 * 1000,
    SOON_US = 100 * 1000,
    TRIES = 50, /* for a machine that is busy: one of them must be in time */
    CANNED_MAX = 20
};

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **out);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **out);
void __real_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list);
int __real_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __real_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *arg),
                          void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *arg),
                          void *arg);

/* What the resolver says; set before a look-up begins. */
static struct {
    bool blocks; /* until `released` is posted */
    int rc, errnum;
    size_t n;
    struct sockaddr_storage addrs[CANNED_MAX];
    sem_t asked, released;
} names;

/* What becomes of a connection; the tests' own thread only. */
static struct {
    int errnum;   /* fail with it; 0 = go on */
    bool to_self; /* from the port that is called, so that it ends in itself */
    unsigned n_calls;
    struct sockaddr_storage last;
    unsigned n_listen; /* after so many calls `listen_fd` begins to listen */
    int listen_fd;
    uint64_t at_us[64]; /* when the calls were made */
} calls;

static unsigned n_files_before;

/* One block, as __wrap_freeaddrinfo frees it. */
static struct addrinfo *canned(void)
{
    struct addrinfo *list = calloc(names.n + 1, sizeof *list);

    assert_non_null(list);
    for (size_t i = 0; i < names.n; i++) {
        list[i].ai_family = names.addrs[i].ss_family;
        list[i].ai_addrlen = sizeof(struct sockaddr_in6);
        list[i].ai_addr = (struct sockaddr *)&names.addrs[i];
        list[i].ai_next = i + 1 < names.n ? &list[i + 1] : NULL;
    }
    return list;
}

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **out)
{
    if ((hints->ai_flags & AI_NUMERICHOST) != 0)
        return __real_getaddrinfo(host, port, hints, out);
    (void)sem_post(&names.asked);
    if (names.blocks)
        while (sem_wait(&names.released) != 0)
            continue;
    errno = names.errnum;
    if (names.rc == 0)
        *out = canned();
    return names.rc;
}

void __wrap_freeaddrinfo(struct addrinfo *list)
{
    if (list->ai_addr >= (struct sockaddr *)&names.addrs[0] &&
        list->ai_addr <= (struct sockaddr *)&names.addrs[CANNED_MAX - 1])
        free(list);
    else
        __real_freeaddrinfo(list);
}

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    int on = 1;

    memcpy(&calls.last, addr, len);
    if (calls.n_calls < sizeof calls.at_us / sizeof calls.at_us[0])
        calls.at_us[calls.n_calls] = clock_now_us();
    if (++calls.n_calls == calls.n_listen && listen(calls.listen_fd, 8) != 0)
        abort();
    if (calls.errnum != 0) {
        errno = calls.errnum;
        return -1;
    }
    if (calls.to_self) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, addr, len) != 0)
            abort();
    }
    return __real_connect(fd, addr, len);
}

/* Threads that have not returned: look-ups, each of which has one, and those of the test. */
static atomic_uint n_threads;

struct thread_start {
    void *(*run)(void *arg);
    void *arg;
};

static void *thread_run(void *arg)
{
    struct thread_start start = *(struct thread_start *)arg;

    free(arg);
    (void)start.run(start.arg);
    (void)atomic_fetch_sub(&n_threads, 1);
    return NULL;
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *arg),
                          void *arg)
{
    struct thread_start *start = malloc(sizeof *start);

    assert_non_null(start);
    *start = (struct thread_start){run, arg};
    (void)atomic_fetch_add(&n_threads, 1);
    assert_int_equal(__real_pthread_create(out, attr, thread_run, start), 0);
    return 0;
}

static void await_threads(void)
{
    while (atomic_load(&n_threads) > 0)
        (void)sched_yield();
}

static int begin(void **state)
{
    (void)state;
    memset(&names, 0, sizeof names);
    memset(&calls, 0, sizeof calls);
    (void)sem_init(&names.asked, 0, 0);
    (void)sem_init(&names.released, 0, 0);
    n_files_before = n_open_files();
    return 0;
}

static int end(void **state)
{
    (void)state;
    await_threads();
    assert_int_equal(n_open_files(), n_files_before);
    (void)sem_destroy(&names.asked);
    (void)sem_destroy(&names.released);
    return 0;
}

static struct progress until(uint64_t us)
{
    return (struct progress){.deadline_us = clock_after_us(us)};
}

static void name_is_at(const char *addr, uint16_t port)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};

    assert_true(names.n < CANNED_MAX);
    if (inet_pton(AF_INET, addr, &v4.sin_addr) == 1)
        memcpy(&names.addrs[names.n++], &v4, sizeof v4);
    else if (inet_pton(AF_INET6, addr, &v6.sin6_addr) == 1)
        memcpy(&names.addrs[names.n++], &v6, sizeof v6);
    else
        fail_msg("'%s' is no address", addr);
}

static unsigned n_asked(void)
{
    int n;

    (void)sem_getvalue(&names.asked, &n);
    return (unsigned)n;
}

static void assert_says(const struct err *e, const char *text)
{
    if (strstr(e->msg, text) == NULL)
        fail_msg("wanted '%s': %s", text, e->msg);
}

/* Names. */

static void test_numeric_addresses_need_no_resolver(void **state)
{
    static const struct {
        const char *host, *text;
    } rows[] = {
        {"127.0.0.1", "127.0.0.1:29500"},
        {"::1", "[::1]:29500"},
        {"fd00::17", "[fd00::17]:29500"},
        {"::ffff:10.0.0.1", "[::ffff:10.0.0.1]:29500"},
    };
    char text[CIDR_ADDR_TEXT_CAP];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct resolve_addrs addrs;
        struct progress p = until(LONG_US);
        struct err e = {0};
        assert_int_equal(resolve_host(&addrs, rows[i].host, 29500, "/x", &p, &e), 0);
        assert_int_equal(addrs.n, 1);
        assert_string_equal(cidr_addr_text((struct sockaddr *)&addrs.items[0].addr, text),
                            rows[i].text);
    }
    assert_int_equal(n_asked(), 0);
}

static void test_names_give_up_to_16_ip_addresses(void **state)
{
    struct resolve_addrs addrs;
    struct progress p = until(LONG_US);
    struct err e = {0};
    char text[CIDR_ADDR_TEXT_CAP];

    (void)state;
    name_is_at("10.0.0.1", 1);
    names.addrs[0].ss_family = AF_UNIX;
    for (int i = 1; i < CANNED_MAX; i++)
        name_is_at(i % 2 != 0 ? "10.0.0.2" : "fd00::2", (uint16_t)i);
    assert_int_equal(resolve_host(&addrs, "trainer", 1, "/x", &p, &e), 0);
    assert_int_equal(addrs.n, RESOLVE_ADDRS_MAX);
    assert_string_equal(cidr_addr_text((struct sockaddr *)&addrs.items[0].addr, text),
                        "10.0.0.2:1");
    assert_string_equal(cidr_addr_text((struct sockaddr *)&addrs.items[15].addr, text),
                        "[fd00::2]:16");
}

static void test_the_resolver_s_failures(void **state)
{
    static const struct {
        int rc, errnum;
        enum err_code code;
        const char *says;
    } rows[] = {
        {EAI_NONAME, 0, ERR_BAD_REQUEST, "host 'trainer' has no address"},
        {EAI_NODATA, 0, ERR_BAD_REQUEST, "host 'trainer' has no address"},
        {EAI_AGAIN, 0, ERR_UNREADABLE, "cannot be looked up: Temporary failure"},
        {EAI_FAIL, 0, ERR_UNREADABLE, "cannot be looked up"},
        {EAI_SYSTEM, EMFILE, ERR_NO_MEMORY, "(errno 24)"},
        {EAI_MEMORY, 0, ERR_NO_MEMORY, "no memory"},
        {0, 0, ERR_BAD_REQUEST, "host 'trainer' has no IP address"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct resolve_addrs addrs = {.n = 77};
        struct progress p = until(LONG_US);
        struct err e = {0};
        names.rc = rows[i].rc;
        names.errnum = rows[i].errnum;
        names.n = 0;
        name_is_at("10.0.0.1", 1);
        names.addrs[0].ss_family = AF_UNIX;
        assert_int_equal(resolve_host(&addrs, "trainer", 1, "/x", &p, &e), -1);
        assert_int_equal(e.code, rows[i].code);
        assert_says(&e, rows[i].says);
        assert_int_equal(addrs.n, 77);
    }
}

static void test_what_is_no_host_is_not_looked_up(void **state)
{
    char big[RESOLVE_NAME_LEN_MAX + 2];
    const char *const rows[] = {"", "a b", "a\n", "\x7f", "tr\xc3\xa4iner", big};

    (void)state;
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct resolve_addrs addrs;
        struct progress p = until(LONG_US);
        struct err e = {0};
        assert_int_equal(resolve_host(&addrs, rows[i], 1, "/master_address", &p, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, "/master_address");
    }
    assert_int_equal(n_asked(), 0);
}

static void test_a_resolver_that_hangs_is_left_behind(void **state)
{
    uint64_t best_us = UINT64_MAX;

    (void)state;
    names.blocks = true;
    name_is_at("10.0.0.1", 1);
    for (int i = 0; i < TRIES && best_us > SOON_US; i++) {
        struct resolve_addrs addrs;
        struct progress p = until(SHORT_US);
        struct err e = {0};
        uint64_t us;
        assert_int_equal(resolve_host(&addrs, "trainer", 1, "/x", &p, &e), -1);
        us = clock_now_us() - p.deadline_us;
        best_us = us < best_us ? us : best_us;
        assert_int_equal(e.code, ERR_TIMEOUT);
        assert_says(&e, "the deadline passed while host 'trainer' was looked up");
        assert_int_equal(atomic_load(&n_threads), 1);
        (void)sem_post(&names.released); /* and now it ends, long after */
        await_threads();
    }
    assert_in_range(best_us, 0, SOON_US);
}

struct stopper {
    struct progress *p;
    uint64_t at_us;
};

static void *stop_when_asked(void *arg)
{
    struct stopper *s = arg;

    while (sem_wait(&names.asked) != 0)
        continue;
    s->at_us = clock_now_us();
    atomic_store(&s->p->stop, true);
    return NULL;
}

static void test_a_stop_ends_a_look_up(void **state)
{
    struct resolve_addrs addrs;
    struct progress p = until(LONG_US);
    struct stopper stopper = {.p = &p};
    pthread_t thread;
    struct err e = {0};

    (void)state;
    names.blocks = true;
    assert_int_equal(pthread_create(&thread, NULL, stop_when_asked, &stopper), 0);
    assert_int_equal(resolve_host(&addrs, "trainer", 1, "/x", &p, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_says(&e, "stopped while host 'trainer' was looked up");
    (void)pthread_join(thread, NULL);
    (void)sem_post(&names.released);
}

static void test_look_ups_are_bounded(void **state)
{
    struct resolve_addrs addrs;
    struct progress p = until(0);
    struct err e = {0};

    (void)state;
    names.blocks = true;
    for (int i = 0; i < RESOLVE_RUNNING_MAX; i++) {
        assert_int_equal(resolve_host(&addrs, "trainer", 1, "/x", &p, &e), -1);
        assert_int_equal(e.code, ERR_TIMEOUT);
        err_clear(&e);
    }
    p = until(LONG_US);
    assert_int_equal(resolve_host(&addrs, "trainer", 1, "/x", &p, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    err_clear(&e);
    assert_int_equal(resolve_host(&addrs, "10.0.0.1", 1, "/x", &p, &e), 0); /* needs none */
    for (int i = 0; i < RESOLVE_RUNNING_MAX; i++)
        (void)sem_post(&names.released);
    await_threads();
    names.blocks = false;
    name_is_at("10.0.0.1", 1);
    assert_int_equal(resolve_host(&addrs, "trainer", 1, "/x", &p, &e), 0);
}

/* Connections. */

/* A port of ours at `addr`: taken, and listening or refusing. */
static int port_at(const char *addr, uint16_t *port, int backlog)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(*port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    socklen_t len = sizeof to;

    assert_true(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(inet_pton(AF_INET, addr, &to.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&to, &len), 0);
    if (backlog >= 0)
        assert_int_equal(listen(fd, backlog), 0);
    *port = ntohs(to.sin_port);
    return fd;
}

static int dial(const struct tcp_dial_cfg *cfg, const struct progress *p, struct err *e)
{
    char peer[CIDR_ADDR_TEXT_CAP] = "";
    int fd = -1, rc = tcp_dial(&fd, peer, cfg, p, e);

    assert_int_equal(rc, fd >= 0 ? 0 : -1);
    assert_int_equal(peer[0] != '\0', rc == 0);
    return fd;
}

static int option_of(int fd, int level, int name)
{
    socklen_t len = sizeof(int);
    int value = -1;

    assert_int_equal(getsockopt(fd, level, name, &value, &len), 0);
    return value;
}

static void test_connects_with_its_options(void **state)
{
    uint16_t port = 0;
    int listener = port_at("127.0.0.1", &port, 8), fd = -1;
    struct tcp_dial_cfg cfg = store_cfg(port);
    char peer[CIDR_ADDR_TEXT_CAP], wanted[CIDR_ADDR_TEXT_CAP];
    struct progress p = until(LONG_US);
    struct err e = {0};

    (void)state;
    assert_int_equal(tcp_dial(&fd, peer, &cfg, &p, &e), 0);
    (void)snprintf(wanted, sizeof wanted, "127.0.0.1:%u", port);
    assert_string_equal(peer, wanted);
    assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(option_of(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_in_range(option_of(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
                        option_of(fd, IPPROTO_TCP, TCP_KEEPINTVL) *
                            option_of(fd, IPPROTO_TCP, TCP_KEEPCNT),
                    1, 30);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    (void)close(fd);
    (void)close(listener);
}

static void test_port_0_is_refused(void **state)
{
    struct tcp_dial_cfg cfg = store_cfg(0);
    struct progress p = until(LONG_US);
    struct err e = {0};

    (void)state;
    assert_int_equal(dial(&cfg, &p, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/master_address");
}

static void test_who_is_not_allowed_is_not_called(void **state)
{
    struct tcp_dial_cfg cfg = store_cfg(29500);
    struct progress p = until(LONG_US);
    struct cidr_list list = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(cidr_list_add(&list, "10.0.0.0/8", "/x", &e), 0);
    cfg.allows = cidr_list_match;
    cfg.allows_arg = &list;
    assert_int_equal(dial(&cfg, &p, &e), -1);
    assert_int_equal(e.code, ERR_FORBIDDEN);
    assert_string_equal(e.field, "/master_address");
    assert_says(&e, "127.0.0.1:29500, which is not among the addresses");
    err_clear(&e);

    /* The same behind a name, and in the clothes of IPv6. */
    name_is_at("::ffff:127.0.0.1", 29500);
    name_is_at("192.0.2.1", 29500);
    cfg.host = "trainer";
    assert_int_equal(dial(&cfg, &p, &e), -1);
    assert_int_equal(e.code, ERR_FORBIDDEN);
    assert_int_equal(calls.n_calls, 0);
}

static void test_only_the_allowed_addresses_are_called(void **state)
{
    uint16_t port = 0;
    int listener = port_at("127.0.0.2", &port, 8), fd;
    struct tcp_dial_cfg cfg = store_cfg(port);
    struct progress p = until(LONG_US);
    struct cidr_list list = {0};
    struct sockaddr_in last;
    struct err e = {0};

    (void)state;
    assert_int_equal(cidr_list_add(&list, "127.0.0.2", "/x", &e), 0);
    name_is_at("127.0.0.1", port);
    name_is_at("::1", port);
    name_is_at("127.0.0.2", port);
    cfg.host = "trainer";
    cfg.allows = cidr_list_match;
    cfg.allows_arg = &list;
    fd = dial(&cfg, &p, &e);
    assert_true(fd >= 0);
    assert_int_equal(calls.n_calls, 1);
    memcpy(&last, &calls.last, sizeof last);
    assert_int_equal(ntohl(last.sin_addr.s_addr), 0x7f000002);
    (void)close(fd);
    (void)close(listener);
}

static void test_the_next_address_is_tried(void **state)
{
    uint16_t port = 0; /* chosen where other processes have theirs: there it may be taken */
    int closed = port_at("127.0.0.1", &port, -1), listener = port_at("127.0.0.2", &port, 8), fd;
    struct tcp_dial_cfg cfg = store_cfg(port);
    struct progress p = until(LONG_US);
    struct err e = {0};

    (void)state;
    name_is_at("127.0.0.1", port);
    name_is_at("127.0.0.2", port);
    cfg.host = "trainer";
    fd = dial(&cfg, &p, &e);
    assert_true(fd >= 0);
    assert_int_equal(calls.n_calls, 2);
    (void)close(fd);
    (void)close(closed);
    (void)close(listener);
}

/* The trainer posts its request before its store listens. */
static void test_refused_is_tried_until_somebody_listens(void **state)
{
    uint16_t port = 0;
    struct tcp_dial_cfg cfg;
    struct progress p = until(LONG_US);
    struct err e = {0};
    int fd;

    (void)state;
    calls.listen_fd = port_at("127.0.0.1", &port, -1);
    calls.n_listen = 4;
    cfg = store_cfg(port);
    fd = dial(&cfg, &p, &e);
    assert_true(fd >= 0);
    assert_int_equal(calls.n_calls, 4);
    for (unsigned i = 1; i < 4; i++) /* 10, 20, 40 ms */
        assert_true(calls.at_us[i] - calls.at_us[i - 1] >= 10000U << (i - 1));
    (void)close(fd);
    (void)close(calls.listen_fd);
}

static void test_refused_until_the_deadline(void **state)
{
    uint64_t best_us = UINT64_MAX;
    uint16_t port = 0;
    int closed = port_at("127.0.0.1", &port, -1);
    struct tcp_dial_cfg cfg = store_cfg(port);
    bool in_a_pause = false; /* the deadline may come within a try */

    (void)state;
    for (int i = 0; i < TRIES && (best_us > SOON_US || !in_a_pause); i++) {
        struct progress p = until(SHORT_US);
        struct err e = {0};
        uint64_t us;
        calls.n_calls = 0;
        assert_int_equal(dial(&cfg, &p, &e), -1);
        us = clock_now_us() - p.deadline_us;
        best_us = us < best_us ? us : best_us;
        assert_int_equal(e.code, ERR_TIMEOUT);
        assert_says(&e, "the trainer's store at '127.0.0.1'");
        in_a_pause = in_a_pause || strstr(e.msg, "nobody listened as ") != NULL;
        assert_in_range(calls.n_calls, 1, 3); /* at 0, 10 and 30 ms */
    }
    assert_in_range(best_us, 0, SOON_US);
    assert_true(in_a_pause);
    (void)close(closed);
}

static void test_a_stop_ends_the_retries(void **state)
{
    uint16_t port = 0;
    int closed = port_at("127.0.0.1", &port, -1);
    struct tcp_dial_cfg cfg = store_cfg(port);
    struct progress p = until(LONG_US);
    struct stopper stopper = {.p = &p};
    pthread_t thread;
    struct err e = {0};

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, stop_when_asked, &stopper), 0);
    name_is_at("127.0.0.1", port);
    cfg.host = "trainer"; /* whose look-up sets the stopper going */
    assert_int_equal(dial(&cfg, &p, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    (void)pthread_join(thread, NULL);
    (void)close(closed);
}

static void test_unreachable_is_told_at_once(void **state)
{
    static const int rows[] = {EHOSTUNREACH, ENETUNREACH, EACCES, EADDRNOTAVAIL};
    struct tcp_dial_cfg cfg = store_cfg(29500);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct progress p = until(LONG_US);
        struct err e = {0};
        calls.errnum = rows[i];
        assert_int_equal(dial(&cfg, &p, &e), -1);
        assert_int_equal(e.code, ERR_UNREADABLE);
        assert_says(&e, "the trainer's store at '127.0.0.1', port 29500, cannot be reached");
        assert_false(clock_passed(p.deadline_us));
    }
    assert_int_equal(calls.n_calls, 4);
}

/* A full queue: what comes further is neither taken nor refused. */
struct hole {
    int listener, fillers[3];
    uint16_t port;
};

static struct hole hole_new(const char *addr)
{
    struct hole h = {.port = 0};
    struct sockaddr_in to = {.sin_family = AF_INET};

    h.listener = port_at(addr, &h.port, 0);
    to.sin_port = htons(h.port);
    (void)inet_pton(AF_INET, addr, &to.sin_addr);
    for (size_t i = 0; i < 3; i++) {
        h.fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)__real_connect(h.fillers[i], (struct sockaddr *)&to, sizeof to);
    }
    return h;
}

static void hole_close(const struct hole *h)
{
    for (size_t i = 0; i < 3; i++)
        (void)close(h->fillers[i]);
    (void)close(h->listener);
}

static void test_no_answer_ends_at_the_deadline(void **state)
{
    struct hole h = hole_new("127.0.0.1");
    struct tcp_dial_cfg cfg = store_cfg(h.port);
    uint64_t best_us = UINT64_MAX;

    (void)state;
    for (int i = 0; i < TRIES && best_us > SOON_US; i++) {
        struct progress p = until(SHORT_US);
        struct err e = {0};
        uint64_t us;
        assert_int_equal(dial(&cfg, &p, &e), -1);
        us = clock_now_us() - p.deadline_us;
        best_us = us < best_us ? us : best_us;
        assert_int_equal(e.code, ERR_TIMEOUT);
        assert_says(&e, "connecting to the trainer's store at '127.0.0.1'");
    }
    assert_in_range(best_us, 0, SOON_US);
    hole_close(&h);
}

static void test_no_answer_leaves_time_for_the_next_address(void **state)
{
    struct hole h = hole_new("127.0.0.1");
    int listener = port_at("127.0.0.2", &h.port, 8), fd;
    struct tcp_dial_cfg cfg = store_cfg(h.port);
    struct progress p = until(4 * 1000 * 1000);
    struct err e = {0};

    (void)state;
    name_is_at("127.0.0.1", h.port);
    name_is_at("127.0.0.2", h.port);
    cfg.host = "trainer";
    fd = dial(&cfg, &p, &e);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)close(listener);
    hole_close(&h);
}

/* Slow is not unreachable: the deadline decides, not one address's share of it. */
static void test_no_answer_from_any_address_is_a_timeout(void **state)
{
    struct hole h = hole_new("127.0.0.1");
    struct tcp_dial_cfg cfg = store_cfg(h.port);
    struct progress p = until(4 * 1000 * 1000);
    struct err e = {0};

    (void)state;
    name_is_at("127.0.0.1", h.port);
    name_is_at("127.0.0.1", h.port);
    cfg.host = "trainer";
    assert_int_equal(dial(&cfg, &p, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_true(calls.n_calls >= 2);
    hole_close(&h);
}

/* Without a listener, and from the port that is called: TCP connects that to itself. */
static void test_a_connection_to_itself_is_none(void **state)
{
    uint16_t port = 0;
    struct tcp_dial_cfg cfg;
    bool in_a_pause = false; /* the deadline may come within a try */
    int fd;

    (void)state;
    (void)close(port_at(NOBODYS, &port, -1));
    cfg = store_cfg(port);
    cfg.host = NOBODYS;
    calls.to_self = true;
    for (int i = 0; i < TRIES && !in_a_pause; i++) {
        struct progress p = until(SHORT_US);
        struct err e = {0};

        assert_int_equal(dial(&cfg, &p, &e), -1);
        assert_int_equal(e.code, ERR_TIMEOUT);
        in_a_pause = strstr(e.msg, "nobody listened") != NULL;
    }
    assert_true(in_a_pause);

    /* And the port is free for its owner. */
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    calls.to_self = false;
    assert_int_equal(bind(fd, (struct sockaddr *)&calls.last, sizeof(struct sockaddr_in)), 0);
    (void)close(fd);
}

static void test_no_descriptor_left(void **state)
{
    struct tcp_dial_cfg cfg = store_cfg(29500);
    struct progress p = until(LONG_US);
    struct rlimit before, none;
    struct err numeric = {0}, named = {0};

    (void)state;
    name_is_at("127.0.0.1", 29500);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    (void)dial(&cfg, &p, &numeric);
    cfg.host = "trainer";
    (void)dial(&cfg, &p, &named);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(numeric.code, ERR_NO_MEMORY);
    assert_says(&numeric, "(errno 24)");
    assert_int_equal(named.code, ERR_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numeric_addresses_need_no_resolver),
        cmocka_unit_test(test_names_give_up_to_16_ip_addresses),
        cmocka_unit_test(test_the_resolver_s_failures),
        cmocka_unit_test(test_what_is_no_host_is_not_looked_up),
        cmocka_unit_test(test_a_resolver_that_hangs_is_left_behind),
        cmocka_unit_test(test_a_stop_ends_a_look_up),
        cmocka_unit_test(test_look_ups_are_bounded),
        cmocka_unit_test(test_connects_with_its_options),
        cmocka_unit_test(test_port_0_is_refused),
        cmocka_unit_test(test_who_is_not_allowed_is_not_called),
        cmocka_unit_test(test_only_the_allowed_addresses_are_called),
        cmocka_unit_test(test_the_next_address_is_tried),
        cmocka_unit_test(test_refused_is_tried_until_somebody_listens),
        cmocka_unit_test(test_refused_until_the_deadline),
        cmocka_unit_test(test_a_stop_ends_the_retries),
        cmocka_unit_test(test_unreachable_is_told_at_once),
        cmocka_unit_test(test_no_answer_ends_at_the_deadline),
        cmocka_unit_test(test_no_answer_leaves_time_for_the_next_address),
        cmocka_unit_test(test_no_answer_from_any_address_is_a_timeout),
        cmocka_unit_test(test_a_connection_to_itself_is_none),
        cmocka_unit_test(test_no_descriptor_left),
    };
    struct CMUnitTest all[sizeof tests / sizeof tests[0]];

    memcpy(all, tests, sizeof tests);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        all[i].setup_func = begin;
        all[i].teardown_func = end;
    }
    return cmocka_run_group_tests(all, NULL, NULL);
}

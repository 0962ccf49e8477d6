/* The store's client: recorded sessions byte for byte in both directions, and joining at both kinds
 * of server. What goes wrong is in test_tcpstore_faults.c. */
#include "transport/nccl/tcpstore.h"

#include "tests/fakes/tcpstore_server.h"
#include "tests/unit/store_script.h"
#include "transport/nccl/nccl_id.h"

#include <errno.h>
#include <jansson.h>

uint64_t __real_clock_after_us(uint64_t delay_us);
uint64_t __wrap_clock_after_us(uint64_t delay_us);

/* A WAIT is taken back in 50 ms, which a busy machine may not have: here it has all the time. */
uint64_t __wrap_clock_after_us(uint64_t delay_us)
{
    return delay_us == TCPSTORE_CANCEL_US ? CLOCK_NEVER : __real_clock_after_us(delay_us);
}

enum { LONG_US = 60 * 1000 * 1000, SHORT_US = 30 * 1000 };

ssize_t __real_send(int fd, const void *bytes, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags);

static pthread_t main_thread;
static bool trickles;           /* the client's sends take one byte, and every second time none */
static size_t sent[64], n_sent; /* what the client gave to send(), in order */

ssize_t __wrap_send(int fd, const void *bytes, size_t n, int flags)
{
    static bool full;

    if (!pthread_equal(pthread_self(), main_thread))
        return __real_send(fd, bytes, n, flags);
    if (n_sent < sizeof sent / sizeof sent[0])
        sent[n_sent++] = n;
    if (!trickles)
        return __real_send(fd, bytes, n, flags);
    full = !full;
    if (full) {
        errno = EAGAIN;
        return -1;
    }
    return __real_send(fd, bytes, 1, flags);
}

static unsigned n_files_before;

static int begin(void **state)
{
    (void)state;
    main_thread = pthread_self();
    trickles = false;
    n_sent = 0;
    n_files_before = n_open_files();
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_int_equal(n_open_files(), n_files_before);
    return 0;
}

static struct progress until(uint64_t us)
{
    return (struct progress){.deadline_us = clock_after_us(us)};
}

/* Sessions as recorded. */

static const char *member(const json_t *item, const char *name)
{
    const char *text = json_string_value(json_object_get(item, name));

    return text != NULL ? text : "";
}

static bool is_dir(const json_t *item, const char *dir)
{
    return strcmp(member(item, "dir"), dir) == 0;
}

static const char *op_of(const json_t *item)
{
    return is_dir(item, "C->S") ? member(item, "op") : "";
}

static size_t bytes_of(uint8_t *out, size_t cap, const json_t *item)
{
    const char *hex = member(item, "hex");
    size_t n = strlen(hex) / 2;

    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return n;
}

/* The keys that a request of the client's names, or n = 0. */
static size_t keys_of(char keys[4][256], const json_t *item)
{
    bool lists = strcmp(op_of(item), "WAIT") == 0 || strcmp(op_of(item), "CHECK") == 0;
    uint8_t b[1024];
    size_t n = bytes_of(b, sizeof b, item), at = 1 + (lists ? 8 : 0), n_keys = lists ? b[1] : 1;

    assert_true(n_keys <= 4);
    for (size_t i = 0; i < n_keys; i++) {
        size_t len = b[at];
        assert_true(at + 8 + len <= n && len < 256);
        memcpy(keys[i], b + at + 8, len);
        keys[i][len] = '\0';
        at += 8 + len;
    }
    return n_keys;
}

/* What the client of ours sends in the form that was recorded. */
static bool is_ours(const json_t *item)
{
    static const char *const ops[] = {"VALIDATE", "PING", "ADD", "WAIT", "GET", "CANCEL_WAIT"};
    char keys[4][256];

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strcmp(op_of(item), ops[i]) == 0)
            return strcmp(ops[i], "ADD") != 0 ||
                   (keys_of(keys, item) == 1 && strcmp(keys[0], "init/") == 0);
    return false;
}

static void script_item(struct script *s, const json_t *item)
{
    uint8_t ping[5];

    if (is_dir(item, "S->C"))
        script_hex(s, STEP_SEND, member(item, "hex"));
    else if (strcmp(op_of(item), "VALIDATE") == 0)
        script_hex(s, STEP_ONE, member(item, "hex"));
    else
        script_hex(s, STEP_EXPECT, member(item, "hex"));
    if (strcmp(op_of(item), "PING") != 0)
        return;
    script_ping(ping);
    s->n_pool -= sizeof ping;
    s->n_steps--;
    script_add(s, STEP_EXPECT, ping, sizeof ping);
    script_add(s, STEP_SEND, ping + 1, 4);
}

/* The parts of a session that our client can have: each of its requests with the answers to it. */
static void script_session(struct script *s, const json_t *session)
{
    const json_t *item;
    bool ours = false, pinged = false;
    size_t i;

    json_array_foreach(session, i, item)
    {
        if (is_dir(item, "C->S"))
            ours = is_ours(item);
        if (strcmp(op_of(item), "VALIDATE") == 0 || (ours && is_dir(item, "C->S")))
            script_item(s, item);
        else if (ours && is_dir(item, "S->C") && !pinged)
            script_item(s, item);
        pinged = strcmp(op_of(item), "PING") == 0; /* its answer is in already */
        if (strcmp(op_of(item), "VALIDATE") == 0 && i + 1 < json_array_size(session) &&
            strcmp(op_of(json_array_get(session, i + 1)), "PING") != 0) {
            uint8_t ping[5]; /* the recorded client did not ping; ours does */
            script_ping(ping);
            script_add(s, STEP_EXPECT, ping, sizeof ping);
            script_add(s, STEP_SEND, ping + 1, 4);
        }
    }
}

static void play_join(struct tcpstore *s, const json_t *request, const json_t *answer)
{
    struct progress p = until(LONG_US);
    uint8_t b[1024], wanted[8];
    size_t n = bytes_of(b, sizeof b, request);
    struct err e = {0};
    uint64_t n_joined, n_ranks;

    memcpy(&n_ranks, b + n - 8, 8);
    assert_int_equal(bytes_of(wanted, sizeof wanted, answer), 8);
    assert_int_equal(tcpstore_join(s, (uint32_t)n_ranks, &n_joined, &p, &e), 0);
    assert_memory_equal(&n_joined, wanted, 8);
}

static void play_get(struct tcpstore *s, const char *key, const json_t *answer)
{
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX], wanted[TCPSTORE_VALUE_NBYTES_MAX + 8];
    size_t n_wanted = bytes_of(wanted, sizeof wanted, answer), nbytes;
    struct progress p = until(LONG_US);
    struct err e = {0};

    assert_int_equal(tcpstore_get(s, key + 1, value, &nbytes, &p, &e), 0);
    assert_int_equal(nbytes + 8, n_wanted);
    assert_memory_equal(value, wanted + 8, nbytes);
}

static void play_wait(struct tcpstore *s, const char *key, bool is_canceled)
{
    struct progress p = until(is_canceled ? SHORT_US : LONG_US);
    struct err e = {0};
    int rc = tcpstore_wait(s, key + 1, &p, &e);

    assert_int_equal(rc, is_canceled ? -1 : 0);
    assert_int_equal(e.code, is_canceled ? ERR_TIMEOUT : ERR_NONE);
}

/* Returns how many of the recorded requests our client made. */
static unsigned play(const json_t *session)
{
    struct script *script = script_new(LONG_US);
    struct tcpstore *s = NULL;
    struct err e = {0};
    unsigned n = 0;
    const json_t *item;
    size_t i;

    script_session(script, session);
    script_start(script);
    if (script_open(&s, script, &e) != 0)
        fail_msg("open: %s", e.msg);
    json_array_foreach(session, i, item)
    {
        const json_t *next = json_array_get(session, i + 1);
        const char *op = op_of(item);
        char keys[4][256];
        if (!is_ours(item) || strcmp(op, "VALIDATE") == 0 || strcmp(op, "PING") == 0 ||
            strcmp(op, "CANCEL_WAIT") == 0)
            continue;
        assert_int_equal(keys_of(keys, item), 1);
        if (strcmp(op, "ADD") == 0)
            play_join(s, item, next);
        else if (strcmp(op, "GET") == 0)
            play_get(s, keys[0], next);
        else
            play_wait(s, keys[0], strcmp(op_of(next), "CANCEL_WAIT") == 0);
        n++;
    }
    tcpstore_close(s);
    script_end(script);
    free(script);
    return n;
}

static const struct {
    const char *file, *name;
    unsigned n_ours; /* of its requests, the handshake aside */
    bool queues;     /* which one kind of server has not */
} sessions[] = {
    {"tcpstore_sessions.json", "A_vllm_stateless_rank1", 3, false},
    {"tcpstore_sessions.json", "B_torch_process_group", 3, false},
    {"tcpstore_sessions.json", "C_misc_ops", 3, false},
    {"tcpstore_sessions.json", "D_queue_ops_libuv_only", 0, true},
    {"tcpstore_torch_2.11.json", "E_torch_2_11_capture", 3, false},
};
enum { N_SESSIONS = sizeof sessions / sizeof sessions[0] };

static json_t *session_of(size_t i)
{
    char path[512];
    json_t *file, *session;

    (void)snprintf(path, sizeof path, "%s/nccl/%s", FIXTURES, sessions[i].file);
    file = json_load_file(path, 0, NULL);
    assert_non_null(file);
    session = json_incref(json_object_get(file, sessions[i].name));
    assert_true(json_array_size(session) > 0);
    json_decref(file);
    return session;
}

static void test_recorded_sessions_are_what_the_client_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SESSIONS; i++) {
        json_t *session = session_of(i);
        assert_int_equal(play(session), sessions[i].n_ours);
        json_decref(session);
    }
}

static int raw_connect(uint16_t port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval limit = {.tv_sec = SCRIPT_WAIT_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

/* The trainer's part of a session: the value that the GET after this WAIT will find. */
static void set_as_recorded(struct store_server *server, const json_t *session, size_t i)
{
    uint8_t value[1024];
    char keys[4][256];
    size_t n;

    assert_int_equal(keys_of(keys, json_array_get(session, i - 1)), 1);
    n = bytes_of(value, sizeof value, json_array_get(session, i + 3));
    store_server_await_waiters(server, 1);
    store_server_set(server, keys[0], value + 8, n - 8);
}

/* The recorded client against the server of the tests, which the other tests trust. */
static void play_at_server(const json_t *session, enum store_kind kind)
{
    struct store_server *server = store_server_new(kind);
    int fd = raw_connect(store_server_port(server));
    uint8_t bytes[1024], got[1024];
    const json_t *item;
    size_t i, n;

    if (strstr(member(json_array_get(session, 3), "hex"), "696e69742f") != NULL)
        (void)store_server_add(server, "init/", 1); /* the trainer's own */
    json_array_foreach(session, i, item)
    {
        n = bytes_of(bytes, sizeof bytes, item);
        if (is_dir(item, "C->S"))
            assert_int_equal(write(fd, bytes, n), n);
        else if (is_dir(item, "S->C")) {
            assert_int_equal(recv(fd, got, n, MSG_WAITALL), n);
            assert_memory_equal(got, bytes, n);
        } else if (strstr(member(item, "desc"), "SET") != NULL) /* B also notes other things */
            set_as_recorded(server, session, i);
        else if (strstr(member(item, "desc"), "init HTTP") == NULL)
            assert_int_equal(i + 1, json_array_size(session));
    }
    (void)close(fd);
    store_server_free(server);
}

static void test_recorded_sessions_are_what_the_test_server_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SESSIONS; i++) {
        json_t *session = session_of(i);
        play_at_server(session, STORE_LIBUV);
        if (!sessions[i].queues)
            play_at_server(session, STORE_LEGACY);
        json_decref(session);
    }
}

/* The test server is as strict as torch's: else the tests below would prove nothing. */
static void test_the_test_server_refuses_what_torch_refuses(void **state)
{
    static const struct {
        enum store_kind kind;
        const char *first, *second; /* hex, as two writes */
    } rows[] = {
        {STORE_LIBUV, "00", "cef7853c0d01000000"},            /* VALIDATE in two pieces */
        {STORE_LIBUV, "00cef7853d", "0d01000000"},            /* the magic is wrong */
        {STORE_LEGACY, "00cef7853d", ""},                     /* the same, at once */
        {STORE_LEGACY, "0d01000000", ""},                     /* not validated */
        {STORE_LIBUV, "0d01000000", ""},                      /* not validated */
        {STORE_LEGACY, "00cef7853c", "63"},                   /* no such operation */
        {STORE_LIBUV, "00cef7853c", "63"},                    /* no such operation */
        {STORE_LEGACY, "00cef7853c", "0301000000000000002f"}, /* GET of an absent key */
        {STORE_LEGACY, "00cef7853c", "1001000000000000002f"}, /* queues */
        {STORE_LIBUV, "00cef7853c", "0300000000000000802f"},  /* a key of 2^63 bytes */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct store_server *server = store_server_new(rows[i].kind);
        int fd = raw_connect(store_server_port(server));
        struct script pool = {0};
        uint8_t byte;
        script_hex(&pool, STEP_SEND, rows[i].first);
        script_hex(&pool, STEP_SEND, rows[i].second);
        script_send(fd, &pool.steps[0]);
        /* The first piece has been read once a client that came later has an answer. */
        if (pool.steps[1].n > 0) {
            int later = raw_connect(store_server_port(server));
            assert_int_equal(write(later, "\x00\xce\xf7\x85\x3c\x0d\1\2\3\4", 10), 10);
            assert_int_equal(recv(later, &byte, 1, 0), 1);
            script_send(fd, &pool.steps[1]);
            (void)close(later);
        }
        assert_true(recv(fd, &byte, 1, 0) <= 0);
        (void)close(fd);
        store_server_free(server);
    }
}

/* Joining. */

static struct tcpstore *open_at(const struct store_server *server)
{
    struct tcp_dial_cfg cfg = store_cfg(store_server_port(server));
    struct progress p = until(LONG_US);
    struct tcpstore *s = NULL;
    struct err e = {0};

    if (tcpstore_open(&s, &cfg, &p, &e) != 0)
        fail_msg("%s", e.msg);
    return s;
}

static size_t pickled_id(uint8_t out[1024])
{
    json_t *session = session_of(0);
    size_t n = bytes_of(out, 1024, json_array_get(session, 9)) - 8;

    memmove(out, out + 8, n);
    json_decref(session);
    return n;
}

static void *set_when_awaited(void *arg)
{
    uint8_t value[1024];
    size_t n = pickled_id(value);

    store_server_await_waiters(arg, 1);
    store_server_set(arg, "/broadcast_from/0/0", value, n);
    return NULL;
}

static void join_at(enum store_kind kind)
{
    struct store_server *server = store_server_new(kind);
    struct progress p = until(LONG_US);
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX], id[NCCL_ID_NBYTES];
    char text[CIDR_ADDR_TEXT_CAP];
    struct err e = {0};
    struct tcpstore *s;
    uint64_t n_joined;
    pthread_t trainer;
    size_t n;

    (void)store_server_add(server, "init/", 1);
    s = open_at(server);
    assert_int_equal(store_server_add(server, "init/", 0), 1); /* opening counts nothing */
    assert_int_equal(tcpstore_join(s, 3, &n_joined, &p, &e), 0);
    assert_int_equal(n_joined, 4);
    assert_int_equal(store_server_add(server, "init/", 0), 4);
    assert_int_equal(pthread_create(&trainer, NULL, set_when_awaited, server), 0);
    assert_int_equal(tcpstore_wait(s, "broadcast_from/0/0", &p, &e), 0);
    assert_int_equal(tcpstore_get(s, "broadcast_from/0/0", value, &n, &p, &e), 0);
    assert_int_equal(nccl_id_from_pickle(id, value, n, &e), 0);
    assert_string_equal(nccl_id_addr_text(id, text), "10.0.0.17:45123");
    (void)pthread_join(trainer, NULL);
    tcpstore_close(s);
    store_server_free(server);
}

static void test_joins_at_both_kinds_of_server(void **state)
{
    (void)state;
    join_at(STORE_LEGACY);
    join_at(STORE_LIBUV);
}

static void test_each_request_is_one_send(void **state)
{
    static const size_t wanted[] = {5, 5, 1 + 8 + 5 + 8, 1 + 8 + 8 + 2, 1 + 8 + 2};
    struct store_server *server = store_server_new(STORE_LIBUV);
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX];
    struct progress p = until(LONG_US);
    struct err e = {0};
    struct tcpstore *s;
    uint64_t n_joined;
    size_t n;

    (void)state;
    store_server_set(server, "/k", "v", 1);
    n_sent = 0;
    s = open_at(server);
    assert_int_equal(tcpstore_join(s, 1, &n_joined, &p, &e), 0);
    assert_int_equal(tcpstore_wait(s, "k", &p, &e), 0);
    assert_int_equal(tcpstore_get(s, "k", value, &n, &p, &e), 0);
    assert_int_equal(n_sent, sizeof wanted / sizeof wanted[0]);
    assert_memory_equal(sent, wanted, sizeof wanted);
    tcpstore_close(s);
    store_server_free(server);
}

static void test_partial_sends_are_finished(void **state)
{
    struct store_server *server = store_server_new(STORE_LIBUV);
    struct tcpstore *s = open_at(server);
    char key[1 + TCPSTORE_KEY_LEN_MAX + 1] = "/";
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX];
    struct progress p = until(LONG_US);
    struct err e = {0};
    size_t n;

    (void)state;
    memset(key + 1, 'k', TCPSTORE_KEY_LEN_MAX);
    store_server_set(server, key, "v", 1);
    trickles = true;
    assert_int_equal(tcpstore_wait(s, key + 1, &p, &e), 0);
    assert_int_equal(tcpstore_get(s, key + 1, value, &n, &p, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(value[0], 'v');
    trickles = false;
    tcpstore_close(s);
    store_server_free(server);
}

static void test_absent_keys_by_the_kind_of_server(void **state)
{
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX];
    struct progress p = until(LONG_US);

    (void)state;
    for (int kind = STORE_LEGACY; kind <= STORE_LIBUV; kind++) {
        struct store_server *server = store_server_new((enum store_kind)kind);
        struct tcpstore *s = open_at(server);
        struct err e = {0};
        size_t n = 99;
        int rc = tcpstore_get(s, "absent", value, &n, &p, &e);
        if (kind == STORE_LIBUV) {
            assert_int_equal(rc, 0);
            assert_int_equal(n, 0);
        } else {
            assert_int_equal(rc, -1);
            assert_int_equal(e.code, ERR_UNREADABLE);
            assert_non_null(
                strstr(e.msg, "closed the connection while it was answering GET '/absent'"));
            assert_int_equal(n, 99);
        }
        tcpstore_close(s);
        store_server_free(server);
    }
}

static void test_a_wait_that_timed_out_can_be_made_again(void **state)
{
    (void)state;
    for (int kind = STORE_LEGACY; kind <= STORE_LIBUV; kind++) {
        struct store_server *server = store_server_new((enum store_kind)kind);
        struct tcpstore *s = open_at(server);
        struct progress p = until(SHORT_US);
        struct err e = {0};
        assert_int_equal(tcpstore_wait(s, "late", &p, &e), -1);
        assert_int_equal(e.code, ERR_TIMEOUT);
        assert_non_null(strstr(e.msg, "had no key '/late'"));
        err_clear(&e);
        p = until(LONG_US);
        store_server_set(server, "/late", "x", 1);
        assert_int_equal(tcpstore_wait(s, "late", &p, &e), 0);
        tcpstore_close(s);
        store_server_free(server);
    }
}

static void test_values_are_bounded(void **state)
{
    struct store_server *server = store_server_new(STORE_LIBUV);
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX], big[TCPSTORE_VALUE_NBYTES_MAX + 1];
    struct tcpstore *s = open_at(server);
    struct progress p = until(LONG_US);
    struct err e = {0};
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (uint8_t)(i * 37 + 11);
    store_server_set(server, "/most", big, sizeof big - 1);
    store_server_set(server, "/more", big, sizeof big);
    assert_int_equal(tcpstore_get(s, "most", value, &n, &p, &e), 0);
    assert_int_equal(n, sizeof value);
    assert_memory_equal(value, big, n);
    assert_int_equal(tcpstore_get(s, "more", value, &n, &p, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "4097 bytes; at most 4096"));
    assert_int_equal(n, sizeof value);
    tcpstore_close(s);
    store_server_free(server);
}

static void test_bad_keys_are_refused_before_they_are_sent(void **state)
{
    static char big[TCPSTORE_KEY_LEN_MAX + 2];
    static const char *const keys[] = {"", "a\nb", "\x01", "\x7f", big};
    struct store_server *server = store_server_new(STORE_LIBUV);
    struct tcpstore *s = open_at(server);
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX];
    struct progress p = until(LONG_US);
    size_t n;

    (void)state;
    memset(big, 'k', TCPSTORE_KEY_LEN_MAX + 1);
    n_sent = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct err e[2] = {0};
        assert_int_equal(tcpstore_wait(s, keys[i], &p, &e[0]), -1);
        assert_int_equal(tcpstore_get(s, keys[i], value, &n, &p, &e[1]), -1);
        for (size_t k = 0; k < 2; k++)
            assert_int_equal(e[k].code, ERR_BAD_REQUEST);
    }
    assert_int_equal(n_sent, 0);
    tcpstore_close(s);
    store_server_free(server);
}

static void test_a_waiting_client_holds_up_no_other(void **state)
{
    struct store_server *server = store_server_new(STORE_LEGACY);
    struct tcpstore *a = open_at(server), *b = open_at(server);
    struct progress p = until(LONG_US);
    pthread_t trainer;
    struct err e = {0};
    uint64_t n_joined;

    (void)state;
    (void)store_server_add(server, "init/", 1);
    assert_int_equal(pthread_create(&trainer, NULL, set_when_awaited, server), 0);
    assert_int_equal(tcpstore_wait(a, "broadcast_from/0/0", &p, &e), 0);
    assert_int_equal(tcpstore_join(b, 2, &n_joined, &p, &e), 0);
    assert_int_equal(n_joined, 3);
    (void)pthread_join(trainer, NULL);
    tcpstore_close(a);
    tcpstore_close(b);
    store_server_free(server);
}

static void await_closed(const struct tcpstore *s)
{
    uint64_t limit_us = clock_after_us(LONG_US);

    while (!tcpstore_closed(s) && !clock_passed(limit_us))
        (void)sched_yield();
    assert_true(tcpstore_closed(s));
}

static void test_closed_when_the_trainer_has_gone(void **state)
{
    struct store_server *server = store_server_new(STORE_LEGACY);
    struct tcpstore *s = open_at(server);
    struct progress p = until(LONG_US);
    struct err e = {0};
    uint64_t n_joined = 77;

    (void)state;
    assert_false(tcpstore_closed(s));
    store_server_drop(server);
    await_closed(s);
    assert_int_equal(tcpstore_join(s, 1, &n_joined, &p, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_non_null(strstr(e.msg, "closed the connection before ADD 'init/'"));
    assert_null(strstr(e.msg, "not known"));
    assert_int_equal(n_joined, 77);
    assert_true(tcpstore_closed(s));
    tcpstore_close(s);
    store_server_free(server);
}

/* Asking does not take away what is there to be read. */
static void test_closed_reads_nothing(void **state)
{
    struct script *script = script_new(LONG_US);
    struct tcpstore *s = NULL;
    struct err e = {0};
    uint64_t n_joined;

    (void)state;
    script_hands(script);
    script_hex(script, STEP_EXPECT, "040500000000000000696e69742f0100000000000000");
    script_hex(script, STEP_SEND, "0900000000000000");
    script_start(script);
    assert_int_equal(script_open(&s, script, &e), 0);
    for (int i = 0; i < 100; i++)
        assert_false(tcpstore_closed(s));
    assert_int_equal(tcpstore_join(s, 1, &n_joined, &script->p, &e), 0);
    assert_int_equal(n_joined, 9);
    assert_false(tcpstore_closed(s));
    tcpstore_close(s);
    script_end(script);
    free(script);
    tcpstore_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_sessions_are_what_the_client_says),
        cmocka_unit_test(test_recorded_sessions_are_what_the_test_server_says),
        cmocka_unit_test(test_the_test_server_refuses_what_torch_refuses),
        cmocka_unit_test(test_joins_at_both_kinds_of_server),
        cmocka_unit_test(test_each_request_is_one_send),
        cmocka_unit_test(test_partial_sends_are_finished),
        cmocka_unit_test(test_absent_keys_by_the_kind_of_server),
        cmocka_unit_test(test_a_wait_that_timed_out_can_be_made_again),
        cmocka_unit_test(test_values_are_bounded),
        cmocka_unit_test(test_bad_keys_are_refused_before_they_are_sent),
        cmocka_unit_test(test_a_waiting_client_holds_up_no_other),
        cmocka_unit_test(test_closed_when_the_trainer_has_gone),
        cmocka_unit_test(test_closed_reads_nothing),
    };
    struct CMUnitTest all[sizeof tests / sizeof tests[0]];

    memcpy(all, tests, sizeof tests);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        all[i].setup_func = begin;
        all[i].teardown_func = end;
    }
    return cmocka_run_group_tests(all, NULL, NULL);
}

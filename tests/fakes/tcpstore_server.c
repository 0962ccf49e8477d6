/* One thread, one poll; the table of keys is under a lock because the test sets keys too. */
#include "tests/fakes/tcpstore_server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    OP_VALIDATE,
    OP_SET,
    OP_COMPARE_SET,
    OP_GET,
    OP_ADD,
    OP_CHECK,
    OP_WAIT,
    OP_GETNUMKEYS,
    OP_DELETE_KEY,
    OP_APPEND,
    OP_MULTI_GET,
    OP_MULTI_SET,
    OP_CANCEL_WAIT,
    OP_PING,
    OP_QUEUE_PUSH,
    OP_QUEUE_POP,
    OP_QUEUE_LEN
};
enum {
    CONNS_MAX = 32,
    KEYS_MAX = 64,
    KEY_NBYTES_MAX = 8192,
    VALUE_NBYTES_MAX = 16384,
    IN_NBYTES_MAX = 65536,
    LIBUV_KEYS_MAX = 131072
};
#define MAGIC 0x3C85F7CEU

/* A key and its value, or one value of a queue. */
struct entry {
    bool used, queued;
    size_t n_key, n_value;
    uint8_t key[KEY_NBYTES_MAX + 1];
    uint8_t value[VALUE_NBYTES_MAX];
};

struct text {
    const uint8_t *bytes;
    size_t n;
};

struct conn {
    int fd; /* -1: free */
    bool validated, waiting;
    bool doomed; /* libuv, and the magic was wrong: closed at the next bytes */
    size_t n_in;
    size_t n_wait; /* bytes of the keys waited for, with count and lengths, in `wait` */
    uint8_t in[IN_NBYTES_MAX];
    uint8_t wait[IN_NBYTES_MAX];
};

struct store_server {
    pthread_mutex_t lock; /* guards entries, n_waiting, drop, stop */
    pthread_cond_t changed;
    struct entry entries[KEYS_MAX];
    unsigned n_waiting;
    bool drop, stop;

    enum store_kind kind; /* immutable */
    int listen_fd, event_fd;
    uint16_t port;
    pthread_t thread;

    struct conn conns[CONNS_MAX]; /* the server's thread */
};

/* A request being read: what is missing makes it wait for more, what is wrong closes. */
struct cursor {
    const uint8_t *at, *end;
    bool is_short, is_bad;
};

static const uint8_t *take(struct cursor *c, uint64_t n)
{
    const uint8_t *at = c->at;

    if (c->is_short || c->is_bad || n > (uint64_t)(c->end - c->at)) {
        c->is_short = true;
        return NULL;
    }
    c->at += n;
    return at;
}

static uint64_t take_int(struct cursor *c, size_t nbytes)
{
    const uint8_t *at = take(c, nbytes);
    uint64_t value = 0;

    for (size_t i = 0; at != NULL && i < nbytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static struct text take_text(struct cursor *c, uint64_t n_max)
{
    uint64_t n = take_int(c, 8);
    struct text t = {0};

    if (!c->is_short && n > n_max)
        c->is_bad = true;
    t.bytes = take(c, n);
    t.n = t.bytes != NULL ? (size_t)n : 0;
    return t;
}

static struct text take_key(struct cursor *c)
{
    return take_text(c, KEY_NBYTES_MAX);
}

static struct text take_value(struct cursor *c)
{
    return take_text(c, VALUE_NBYTES_MAX);
}

static struct entry *find(struct store_server *s, struct text key, bool queued)
{
    for (size_t i = 0; i < KEYS_MAX; i++) {
        struct entry *e = &s->entries[i];
        if (e->used && e->queued == queued && e->n_key == key.n &&
            memcmp(e->key, key.bytes, key.n) == 0)
            return e;
    }
    return NULL;
}

static struct entry *append_entry(struct store_server *s, struct text key, bool queued)
{
    for (size_t i = 0; i < KEYS_MAX; i++) {
        struct entry *e = &s->entries[i];
        if (e->used)
            continue;
        memset(e, 0, sizeof *e);
        e->used = true;
        e->queued = queued;
        e->n_key = key.n;
        memcpy(e->key, key.bytes, key.n);
        return e;
    }
    abort(); /* KEYS_MAX is too small for this test */
}

static void set(struct store_server *s, struct text key, struct text value)
{
    struct entry *e = find(s, key, false);

    if (e == NULL)
        e = append_entry(s, key, false);
    e->n_value = value.n;
    memcpy(e->value, value.bytes, value.n);
}

static int64_t add(struct store_server *s, struct text key, int64_t delta)
{
    const struct entry *e = find(s, key, false);
    char text[32] = "0";
    long long sum;
    int n;

    if (e != NULL) {
        assert(e->n_value < sizeof text);
        memcpy(text, e->value, e->n_value);
        text[e->n_value] = '\0';
    }
    sum = strtoll(text, NULL, 10) + delta;
    n = snprintf(text, sizeof text, "%lld", sum);
    set(s, key, (struct text){(const uint8_t *)text, (size_t)n});
    return sum;
}

/* Blocking, as the clients of a test read what they asked for. */
static void answer(int fd, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    while (n > 0) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* gone: the next poll says so */
        at += sent;
        n -= (size_t)sent;
    }
}

static void answer_int(int fd, uint64_t value, size_t nbytes)
{
    uint8_t bytes[8];

    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    answer(fd, bytes, nbytes);
}

static void answer_value(int fd, const void *bytes, size_t n)
{
    uint8_t all[8 + VALUE_NBYTES_MAX];

    for (size_t i = 0; i < 8; i++)
        all[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(all + 8, bytes, n);
    answer(fd, all, 8 + n);
}

static bool all_there(struct store_server *s, struct cursor c)
{
    uint64_t n = take_int(&c, 8);

    for (uint64_t i = 0; i < n; i++) {
        struct text key = take_key(&c);
        if (find(s, key, false) == NULL && (s->kind == STORE_LEGACY || find(s, key, true) == NULL))
            return false;
    }
    return true;
}

static void wake_waiters(struct store_server *s)
{
    for (size_t i = 0; i < CONNS_MAX; i++) {
        struct conn *w = &s->conns[i];
        struct cursor c = {.at = w->wait, .end = w->wait + w->n_wait};
        if (w->fd < 0 || !w->waiting || !all_there(s, c))
            continue;
        w->waiting = false;
        s->n_waiting--;
        answer_int(w->fd, 0, 1);
    }
}

static void take_keys(struct cursor *c)
{
    uint64_t n = take_int(c, 8);

    if (n > LIBUV_KEYS_MAX)
        c->is_bad = true;
    for (uint64_t i = 0; i < n && !c->is_short && !c->is_bad; i++)
        (void)take_key(c);
}

static bool whole(const struct cursor *c)
{
    return !c->is_short && !c->is_bad;
}

static void do_compare_set(struct store_server *s, int fd, struct cursor *c)
{
    struct text key = take_key(c), expected = take_value(c), desired = take_value(c);
    const struct entry *e;

    if (!whole(c))
        return;
    e = find(s, key, false);
    if (e == NULL ? expected.n == 0
                  : e->n_value == expected.n && memcmp(e->value, expected.bytes, expected.n) == 0)
        set(s, key, desired);
    e = find(s, key, false);
    if (e != NULL)
        answer_value(fd, e->value, e->n_value);
    else
        answer_value(fd, expected.bytes, expected.n);
}

static void do_get(struct store_server *s, int fd, struct cursor *c)
{
    struct text key = take_key(c);
    const struct entry *e = whole(c) ? find(s, key, false) : NULL;

    if (e != NULL)
        answer_value(fd, e->value, e->n_value);
    else if (whole(c) && s->kind == STORE_LEGACY)
        c->is_bad = true;
    else if (whole(c))
        answer_value(fd, "", 0);
}

static void do_wait(struct store_server *s, struct conn *w, struct cursor *c)
{
    const uint8_t *from = c->at;
    struct cursor again = *c;

    take_keys(c);
    if (!whole(c))
        return;
    if (all_there(s, again)) {
        answer_int(w->fd, 0, 1);
        return;
    }
    assert(!w->waiting);
    w->n_wait = (size_t)(c->at - from);
    memcpy(w->wait, from, w->n_wait);
    w->waiting = true;
    s->n_waiting++;
    (void)pthread_cond_broadcast(&s->changed);
}

static void do_multi(struct store_server *s, int fd, struct cursor *c, bool sets)
{
    struct cursor again = *c;
    uint64_t n = take_int(c, 8);

    for (uint64_t i = 0; i < n && whole(c); i++) {
        (void)take_key(c);
        if (sets)
            (void)take_value(c);
    }
    if (!whole(c))
        return;
    (void)take_int(&again, 8);
    for (uint64_t i = 0; i < n; i++) {
        struct text key = take_key(&again);
        const struct entry *e = find(s, key, false);
        if (sets)
            set(s, key, take_value(&again));
        else if (e != NULL)
            answer_value(fd, e->value, e->n_value);
        else
            answer_value(fd, "", 0);
    }
}

static void do_append(struct store_server *s, struct cursor *c)
{
    struct text key = take_key(c), value = take_value(c);
    struct entry *e = whole(c) ? find(s, key, false) : NULL;

    if (!whole(c))
        return;
    if (e == NULL) {
        set(s, key, value);
        return;
    }
    assert(e->n_value + value.n <= VALUE_NBYTES_MAX);
    memcpy(e->value + e->n_value, value.bytes, value.n);
    e->n_value += value.n;
}

static uint64_t queue_len(struct store_server *s, struct text key)
{
    uint64_t n = 0;

    for (size_t i = 0; i < KEYS_MAX; i++)
        if (s->entries[i].used && s->entries[i].queued && s->entries[i].n_key == key.n &&
            memcmp(s->entries[i].key, key.bytes, key.n) == 0)
            n++;
    return n;
}

static void do_queue(struct store_server *s, int fd, struct cursor *c, uint8_t op)
{
    struct text key = take_key(c), value = {0};
    struct entry *e;

    if (s->kind == STORE_LEGACY) {
        c->is_bad = true;
        return;
    }
    if (op == OP_QUEUE_PUSH)
        value = take_value(c);
    if (!whole(c))
        return;
    if (op == OP_QUEUE_PUSH) {
        e = append_entry(s, key, true);
        e->n_value = value.n;
        memcpy(e->value, value.bytes, value.n);
        return;
    }
    answer_int(fd, queue_len(s, key), 8);
    e = find(s, key, true);
    if (op != OP_QUEUE_POP || e == NULL)
        return;
    answer_value(fd, e->value, e->n_value);
    e->used = false;
}

static void do_key(struct store_server *s, int fd, struct cursor *c, uint8_t op)
{
    struct text key = take_key(c);
    struct entry *e;
    int64_t delta;

    if (op == OP_ADD) {
        delta = (int64_t)take_int(c, 8);
        if (whole(c))
            answer_int(fd, (uint64_t)add(s, key, delta), 8);
        return;
    }
    if (op == OP_SET) {
        struct text value = take_value(c);
        if (whole(c))
            set(s, key, value);
        return;
    }
    if (!whole(c))
        return;
    e = find(s, key, false);
    answer_int(fd, e != NULL, 8);
    if (e != NULL)
        e->used = false;
}

static void do_plain(struct store_server *s, struct conn *w, struct cursor *c, uint8_t op)
{
    struct cursor again = *c;
    uint64_t value = 0;

    switch (op) {
    case OP_CHECK:
        take_keys(c);
        if (whole(c))
            answer_int(w->fd, all_there(s, again) ? 0 : 1, 1);
        break;
    case OP_GETNUMKEYS:
        for (size_t i = 0; i < KEYS_MAX; i++)
            value += s->entries[i].used && !s->entries[i].queued;
        answer_int(w->fd, value, 8);
        break;
    case OP_CANCEL_WAIT:
        s->n_waiting -= w->waiting;
        w->waiting = false;
        answer_int(w->fd, 1, 1);
        break;
    case OP_PING:
        value = take_int(c, 4);
        if (whole(c))
            answer_int(w->fd, value, 4);
        break;
    default:
        c->is_bad = true;
    }
}

static void do_request(struct store_server *s, struct conn *w, struct cursor *c)
{
    uint8_t op = (uint8_t)take_int(c, 1);

    if (!w->validated) {
        bool right = op == OP_VALIDATE && take_int(c, 4) == MAGIC;
        w->doomed = !right && op == OP_VALIDATE && whole(c) && s->kind == STORE_LIBUV;
        c->is_bad = c->is_bad || (whole(c) && !right && !w->doomed);
        w->validated = whole(c);
        return;
    }
    if (w->doomed) {
        c->is_bad = true;
        return;
    }
    switch (op) {
    case OP_SET:
    case OP_ADD:
    case OP_DELETE_KEY:
        do_key(s, w->fd, c, op);
        break;
    case OP_COMPARE_SET:
        do_compare_set(s, w->fd, c);
        break;
    case OP_GET:
        do_get(s, w->fd, c);
        break;
    case OP_WAIT:
        do_wait(s, w, c);
        break;
    case OP_APPEND:
        do_append(s, c);
        break;
    case OP_MULTI_GET:
    case OP_MULTI_SET:
        do_multi(s, w->fd, c, op == OP_MULTI_SET);
        break;
    case OP_QUEUE_PUSH:
    case OP_QUEUE_POP:
    case OP_QUEUE_LEN:
        do_queue(s, w->fd, c, op);
        break;
    default:
        do_plain(s, w, c, op);
    }
}

static void drop_locked(struct store_server *s, struct conn *w)
{
    (void)close(w->fd);
    w->fd = -1;
    s->n_waiting -= w->waiting;
    w->waiting = false;
}

/* Handles every whole request in w->in. Returns whether a part of one is left, or -1 = close. */
static int handle(struct store_server *s, struct conn *w)
{
    while (w->n_in > 0) {
        struct cursor c = {.at = w->in, .end = w->in + w->n_in};
        bool first = !w->validated;
        do_request(s, w, &c);
        /* libuv's parser forgets, once it has seen a byte, that VALIDATE was still to come. */
        if (c.is_bad || (c.is_short && first && s->kind == STORE_LIBUV))
            return -1;
        if (c.is_short)
            return 1;
        w->n_in = (size_t)(w->in + w->n_in - c.at);
        memmove(w->in, c.at, w->n_in);
    }
    return 0;
}

static void serve(struct store_server *s, struct conn *w)
{
    int rc;

    do {
        ssize_t n = recv(w->fd, w->in + w->n_in, sizeof w->in - w->n_in, 0);
        (void)pthread_mutex_lock(&s->lock);
        w->n_in += n > 0 ? (size_t)n : 0;
        rc = n > 0 ? handle(s, w) : -1;
        if (rc < 0)
            drop_locked(s, w);
        wake_waiters(s);
        (void)pthread_mutex_unlock(&s->lock);
    } while (rc > 0 && s->kind == STORE_LEGACY);
}

static void accept_one(struct store_server *s)
{
    struct timeval limit = {.tv_sec = 20};
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC), on = 1;

    for (size_t i = 0; fd >= 0 && i < CONNS_MAX; i++) {
        struct conn *w = &s->conns[i];
        if (w->fd >= 0)
            continue;
        w->fd = fd;
        w->validated = w->waiting = w->doomed = false;
        w->n_in = 0;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        return;
    }
    if (fd >= 0)
        (void)close(fd);
}

/* What the test asked for meanwhile. Returns whether to go on. */
static bool obey(struct store_server *s)
{
    uint64_t n;
    bool go_on;

    (void)!read(s->event_fd, &n, sizeof n);
    (void)pthread_mutex_lock(&s->lock);
    wake_waiters(s);
    for (size_t i = 0; s->drop && i < CONNS_MAX; i++)
        if (s->conns[i].fd >= 0)
            drop_locked(s, &s->conns[i]);
    s->drop = false;
    go_on = !s->stop;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void *server_main(void *arg)
{
    struct store_server *s = arg;

    for (;;) {
        struct pollfd fds[CONNS_MAX + 2];
        for (size_t i = 0; i < CONNS_MAX; i++)
            fds[i] = (struct pollfd){.fd = s->conns[i].fd, .events = POLLIN};
        fds[CONNS_MAX] = (struct pollfd){.fd = s->listen_fd, .events = POLLIN};
        fds[CONNS_MAX + 1] = (struct pollfd){.fd = s->event_fd, .events = POLLIN};
        (void)poll(fds, CONNS_MAX + 2, -1);
        for (size_t i = 0; i < CONNS_MAX; i++)
            if (fds[i].fd >= 0 && fds[i].revents != 0)
                serve(s, &s->conns[i]);
        if (fds[CONNS_MAX].revents != 0)
            accept_one(s);
        if (fds[CONNS_MAX + 1].revents != 0 && !obey(s))
            return NULL;
    }
}

struct store_server *store_server_new(enum store_kind kind)
{
    struct store_server *s = calloc(1, sizeof *s);
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t len = sizeof addr;
    int rc;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert(s != NULL);
    s->kind = kind;
    for (size_t i = 0; i < CONNS_MAX; i++)
        s->conns[i].fd = -1;
    s->event_fd = eventfd(0, EFD_CLOEXEC);
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(s->event_fd >= 0 && s->listen_fd >= 0);
    rc = bind(s->listen_fd, (struct sockaddr *)&addr, sizeof addr);
    assert(rc == 0);
    rc = listen(s->listen_fd, CONNS_MAX);
    assert(rc == 0);
    rc = getsockname(s->listen_fd, (struct sockaddr *)&addr, &len);
    assert(rc == 0);
    s->port = ntohs(addr.sin_port);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    rc = pthread_create(&s->thread, NULL, server_main, s);
    assert(rc == 0);
    return s;
}

static void wake(struct store_server *s)
{
    uint64_t one = 1;

    (void)!write(s->event_fd, &one, sizeof one);
}

void store_server_free(struct store_server *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->drop = s->stop = true;
    (void)pthread_mutex_unlock(&s->lock);
    wake(s);
    (void)pthread_join(s->thread, NULL);
    (void)close(s->listen_fd);
    (void)close(s->event_fd);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

uint16_t store_server_port(const struct store_server *s)
{
    return s->port;
}

void store_server_set(struct store_server *s, const char *key, const void *value, size_t nbytes)
{
    assert(strlen(key) <= KEY_NBYTES_MAX && nbytes <= VALUE_NBYTES_MAX);
    (void)pthread_mutex_lock(&s->lock);
    set(s, (struct text){(const uint8_t *)key, strlen(key)}, (struct text){value, nbytes});
    (void)pthread_mutex_unlock(&s->lock);
    wake(s);
}

int64_t store_server_add(struct store_server *s, const char *key, int64_t delta)
{
    int64_t sum;

    (void)pthread_mutex_lock(&s->lock);
    sum = add(s, (struct text){(const uint8_t *)key, strlen(key)}, delta);
    (void)pthread_mutex_unlock(&s->lock);
    wake(s);
    return sum;
}

void store_server_await_waiters(struct store_server *s, unsigned n)
{
    (void)pthread_mutex_lock(&s->lock);
    while (s->n_waiting < n)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
}

void store_server_drop(struct store_server *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->drop = true;
    (void)pthread_mutex_unlock(&s->lock);
    wake(s);
    (void)pthread_mutex_lock(&s->lock);
    while (s->drop)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
}

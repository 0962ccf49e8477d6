/* A peer that follows a script: what must come, byte for byte, and what it says to that. It accepts
 * one connection on 127.0.0.1, on a thread, and notes the first thing that was not as written. */
#ifndef BATON_TESTS_UNIT_STORE_SCRIPT_H
#define BATON_TESTS_UNIT_STORE_SCRIPT_H

#include "base/clock.h"
#include "transport/nccl/tcpstore.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { SCRIPT_STEPS_MAX = 64, SCRIPT_NBYTES_MAX = 32768, SCRIPT_WAIT_MS = 60000 };

enum step_kind {
    STEP_EXPECT,  /* these bytes, in any pieces */
    STEP_ONE,     /* these bytes, by one read */
    STEP_SEND,    /* these bytes, at once */
    STEP_TRICKLE, /* these bytes, one at a time */
    STEP_CLOSE,   /* hang up */
    STEP_RESET,   /* hang up with RST */
    STEP_STOP,    /* set progress.stop and note the time */
    STEP_REST     /* whatever comes, until the client hangs up */
};

struct step {
    enum step_kind kind;
    const uint8_t *bytes; /* of the pool */
    size_t n;
};

struct script {
    struct step steps[SCRIPT_STEPS_MAX];
    size_t n_steps;
    uint8_t pool[SCRIPT_NBYTES_MAX];
    size_t n_pool;

    uint16_t port;
    int listen_fd;
    pthread_t thread;

    struct progress p;   /* the client's; the script may set its stop */
    uint64_t stopped_us; /* when it did; read after script_end */
    char wrong[256];     /* "" = as written; read after script_end */
};

static inline unsigned n_open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

static inline void script_add(struct script *s, enum step_kind kind, const void *bytes, size_t n)
{
    struct step *step = &s->steps[s->n_steps++];

    assert_true(s->n_steps <= SCRIPT_STEPS_MAX && n <= SCRIPT_NBYTES_MAX - s->n_pool);
    *step = (struct step){.kind = kind, .bytes = s->pool + s->n_pool, .n = n};
    if (n > 0)
        memcpy(s->pool + s->n_pool, bytes, n);
    s->n_pool += n;
}

static inline void script_hex(struct script *s, enum step_kind kind, const char *hex)
{
    uint8_t bytes[SCRIPT_NBYTES_MAX / 2];
    size_t n = strlen(hex) / 2;

    assert_true(n <= sizeof bytes);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        bytes[i] = (uint8_t)byte;
    }
    script_add(s, kind, bytes, n);
}

/* The client's nonce is its process id, which is this one. */
static inline void script_ping(uint8_t ping[5])
{
    uint32_t pid = (uint32_t)getpid();

    ping[0] = 0x0d;
    for (size_t i = 0; i < 4; i++)
        ping[1 + i] = (uint8_t)(pid >> (8 * i));
}

static inline void script_hands(struct script *s)
{
    uint8_t ping[5];

    script_ping(ping);
    script_hex(s, STEP_ONE, "00cef7853c");
    script_add(s, STEP_EXPECT, ping, sizeof ping);
    script_add(s, STEP_SEND, ping + 1, 4);
}

static inline void script_expect(struct script *s, int fd, const struct step *step, size_t i)
{
    size_t n = 0;

    while (n < step->n && s->wrong[0] == '\0') {
        uint8_t bytes[4096];
        size_t wanted = step->n - n < sizeof bytes ? step->n - n : sizeof bytes;
        ssize_t got = recv(fd, bytes, wanted, 0);
        if (got <= 0 || memcmp(bytes, step->bytes + n, (size_t)got) != 0 ||
            (step->kind == STEP_ONE && (size_t)got < step->n))
            (void)snprintf(s->wrong, sizeof s->wrong,
                           "step %zu: %zd bytes came, 0x%02x..., after %zu of %zu", i, got,
                           got > 0 ? bytes[0] : 0, n, step->n);
        n += got > 0 ? (size_t)got : 0;
    }
}

static inline void script_send(int fd, const struct step *step)
{
    size_t piece = step->kind == STEP_TRICKLE ? 1 : step->n;

    for (size_t n = 0; n < step->n; n += piece)
        if (write(fd, step->bytes + n, piece) != (ssize_t)piece)
            return; /* the client has gone: its own error says why */
}

static inline bool script_step(struct script *s, int fd, size_t i)
{
    static const struct linger at_once = {.l_onoff = 1};
    const struct step *step = &s->steps[i];
    uint8_t bytes[256];

    switch (step->kind) {
    case STEP_EXPECT:
    case STEP_ONE:
        script_expect(s, fd, step, i);
        return s->wrong[0] == '\0';
    case STEP_SEND:
    case STEP_TRICKLE:
        script_send(fd, step);
        return true;
    case STEP_STOP:
        s->stopped_us = clock_now_us();
        atomic_store(&s->p.stop, true);
        return true;
    case STEP_RESET:
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        return false;
    case STEP_REST:
        while (recv(fd, bytes, sizeof bytes, 0) > 0)
            continue;
        return false;
    case STEP_CLOSE:
        break;
    }
    return false;
}

static inline void *script_main(void *arg)
{
    struct script *s = arg;
    struct pollfd pfd = {.fd = s->listen_fd, .events = POLLIN};
    struct timeval limit = {.tv_sec = SCRIPT_WAIT_MS / 1000};
    int fd = poll(&pfd, 1, SCRIPT_WAIT_MS) > 0 ? accept(s->listen_fd, NULL, NULL) : -1, on = 1;
    bool goes_on = true;
    uint8_t byte;

    if (fd < 0) {
        (void)snprintf(s->wrong, sizeof s->wrong, "nobody came");
        return NULL;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (size_t i = 0; i < s->n_steps && goes_on; i++)
        goes_on = script_step(s, fd, i);
    if (goes_on && recv(fd, &byte, 1, 0) > 0)
        (void)snprintf(s->wrong, sizeof s->wrong, "0x%02x came after the last step", byte);
    (void)close(fd);
    return NULL;
}

/* A fresh script; `deadline_us` from now is the client's. */
static inline struct script *script_new(uint64_t deadline_us)
{
    struct script *s = calloc(1, sizeof *s);

    assert_non_null(s);
    s->p.deadline_us = clock_after_us(deadline_us);
    return s;
}

static inline void script_start(struct script *s)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t len = sizeof addr;

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->listen_fd >= 0);
    assert_int_equal(bind(s->listen_fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(s->listen_fd, 8), 0);
    assert_int_equal(getsockname(s->listen_fd, (struct sockaddr *)&addr, &len), 0);
    s->port = ntohs(addr.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, script_main, s), 0);
}

/* Waits for the script's end; it must have gone as written. Frees nothing: see script_free. */
static inline void script_end(struct script *s)
{
    (void)pthread_join(s->thread, NULL);
    (void)close(s->listen_fd);
    if (s->wrong[0] != '\0')
        fail_msg("the script: %s", s->wrong);
}

static inline struct tcp_dial_cfg store_cfg(uint16_t port)
{
    return (struct tcp_dial_cfg){.host = "127.0.0.1",
                                 .port = port,
                                 .field = "/master_address",
                                 .what = "the trainer's store"};
}

static inline int script_open(struct tcpstore **out, struct script *s, struct err *e)
{
    struct tcp_dial_cfg cfg = store_cfg(s->port);

    return tcpstore_open(out, &cfg, &s->p, e);
}

#endif

/* proxy_load: many clients of one server, as one thread and one epoll can drive them; for
 * bench_proxy.py. Prints one line of JSON.
 *
 * Usage: proxy_load PORT CONNECTIONS PATH BODY HOW [SECONDS [PAUSE_US]]
 *   HOW loop   each sends again when its answer is whole, for SECONDS after a warm-up of as long
 *              as a quarter of that; PAUSE_US between an answer and the next request
 *       once   one request each; ends with the last of them, or after SECONDS
 *       hold   one request each; prints a line when all have something of an answer, or when
 *              SECONDS are over, and then holds them, reading, until its standard input ends
 *       stuff  as hold, but once an answer begins, nothing more is read
 *       wait   as hold, but waits for no answer: prints the line when all were sent
 * An event that holds "t":<CLOCK_MONOTONIC in us>, of 16 digits, is timed by that. */
#include "base/clock.h"

#include "proxy_reply.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_NBYTES = 256 << 10, EVENTS_MAX = 512, CONNECT_AT_ONCE = 256 };
enum how { LOOP, ONCE, HOLD, STUFF, WAIT, HOWS };

static const char *const hows[HOWS] = {"loop", "once", "hold", "stuff", "wait"};

struct samples {
    uint32_t *at; /* owned [n] */
    size_t n, cap;
};

struct client {
    int fd; /* -1: none */
    bool fresh, begun, over;
    size_t sent;
    uint64_t began_us, due_us, hash;
    struct answer answer;
    struct client *next; /* of those that pause: the earliest first */
};

struct load {
    struct sockaddr_in server;
    enum how how;
    char *request; /* owned */
    size_t request_len, n_clients;
    struct client *clients; /* owned */
    uint64_t pause_us, from_us, until_us;
    int epoll_fd;
    struct client *pausing, **pausing_end;

    bool counting, told_to_end;
    uint64_t n_good, n_bad, n_reused_gone, n_bytes;
    size_t n_begun, n_over, n_connecting, n_opened, n_sent;
    struct samples whole, first, token;
    uint64_t bytes_min, bytes_max, hash;
    bool hashes_differ;
    int bad_status;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void sample(struct load *l, struct samples *s, uint64_t us)
{
    if (!l->counting)
        return;
    if (s->n == s->cap) {
        s->cap = s->cap == 0 ? 65536 : s->cap * 2;
        s->at = realloc(s->at, s->cap * sizeof *s->at);
        if (s->at == NULL)
            die("realloc");
    }
    s->at[s->n++] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

static void watch(struct load *l, struct client *c, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};

    if (epoll_ctl(l->epoll_fd, op, c->fd, &event) != 0)
        die("epoll_ctl");
}

static void over(struct load *l, struct client *c, bool good)
{
    if (c->over)
        return;
    c->over = true;
    l->n_over++;
    if (!good)
        l->n_bad++;
}

static void hang_up(struct load *l, struct client *c)
{
    if (c->fd < 0)
        return;
    if (c->sent == 0 && c->fresh)
        l->n_connecting--;
    (void)close(c->fd);
    c->fd = -1;
}

static void fail(struct load *l, struct client *c)
{
    if (l->bad_status == 0)
        l->bad_status = c->answer.status != 0 ? c->answer.status : -1;
    hang_up(l, c);
    over(l, c, false);
}

static void begin(struct load *l, struct client *c);

static void send_request(struct load *l, struct client *c)
{
    ssize_t n = send(c->fd, l->request + c->sent, l->request_len - c->sent, MSG_NOSIGNAL);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        if (c->fresh) {
            fail(l, c);
            return;
        }
        hang_up(l, c); /* a kept connection that the server closed meanwhile */
        l->n_reused_gone++;
        begin(l, c);
        return;
    }
    if (c->sent == 0 && c->fresh)
        l->n_connecting--;
    c->sent += (size_t)n;
    if (!c->fresh && c->sent < l->request_len)
        die("a request that does not fit a socket's buffer");
    if (c->sent == l->request_len) {
        l->n_sent++;
        if (c->fresh)
            watch(l, c, EPOLL_CTL_MOD, EPOLLIN);
    }
}

/* A request, on the connection that there is or a new one. */
static void begin(struct load *l, struct client *c)
{
    int one = 1;

    c->sent = 0;
    c->begun = false;
    c->answer = (struct answer){0};
    c->hash = 14695981039346656037U;
    c->began_us = clock_now_us();
    c->fresh = c->fd < 0;
    if (!c->fresh) {
        send_request(l, c);
        return;
    }
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die("socket");
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&l->server, sizeof l->server) != 0 &&
        errno != EINPROGRESS)
        die("connect");
    l->n_connecting++;
    watch(l, c, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void again(struct load *l, struct client *c)
{
    if (l->pause_us == 0) {
        begin(l, c);
        return;
    }
    c->due_us = clock_after_us(l->pause_us);
    c->next = NULL;
    *l->pausing_end = c;
    l->pausing_end = &c->next;
}

static void whole(struct load *l, struct client *c)
{
    bool good = c->answer.status == 200;

    if (!good && l->bad_status == 0)
        l->bad_status = c->answer.status;
    sample(l, &l->whole, clock_now_us() - c->began_us);
    if (l->counting) {
        l->n_good += good;
        l->n_bad += !good;
    }
    if (c->answer.closes)
        hang_up(l, c);
    if (l->how == LOOP) {
        again(l, c);
        return;
    }
    if (l->bytes_max == 0)
        l->hash = c->hash;
    l->hashes_differ |= l->hash != c->hash;
    if (l->bytes_min == 0 || c->answer.n_bytes < l->bytes_min)
        l->bytes_min = c->answer.n_bytes;
    if (c->answer.n_bytes > l->bytes_max)
        l->bytes_max = c->answer.n_bytes;
    over(l, c, true);
}

struct piece {
    struct load *load;
    struct client *client;
};

static void on_payload(void *arg, const char *data, size_t len)
{
    static const char stamp[] = "\"t\":";
    struct piece *p = arg;
    const char *at = memmem(data, len < 64 ? len : 64, stamp, sizeof stamp - 1);
    uint64_t now;

    if (p->load->counting)
        p->load->n_bytes += len;
    if (p->load->how == ONCE)
        for (size_t i = 0; i < len; i++)
            p->client->hash = (p->client->hash ^ (uint8_t)data[i]) * 1099511628211U;
    if (at == NULL || (size_t)(data + len - at) < sizeof stamp - 1 + 17)
        return;
    now = clock_now_us();
    sample(p->load, &p->load->token, now - strtoull(at + sizeof stamp - 1, NULL, 10));
}

static void gone(struct load *l, struct client *c)
{
    bool idle = c->over || c->due_us != 0;

    if (idle) {
        hang_up(l, c);
    } else if (c->begun && answer_gone(&c->answer)) {
        hang_up(l, c);
        whole(l, c);
    } else if (!c->fresh && !c->begun) {
        hang_up(l, c); /* kept, and closed by the server just when it was used */
        l->n_reused_gone++;
        begin(l, c);
    } else {
        fail(l, c);
    }
}

static void readable(struct load *l, struct client *c)
{
    static char scratch[READ_NBYTES];
    struct piece p = {.load = l, .client = c};
    size_t room = l->how == STUFF ? 1024 : sizeof scratch;
    ssize_t n = recv(c->fd, scratch, room, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        gone(l, c);
        return;
    }
    if (!c->begun) {
        c->begun = true;
        l->n_begun++;
        sample(l, &l->first, clock_now_us() - c->began_us);
    }
    if (answer_eat(&c->answer, scratch, (size_t)n, on_payload, &p) != (size_t)n ||
        c->answer.at == AT_NO_HTTP)
        fail(l, c);
    else if (c->answer.at == AT_WHOLE)
        whole(l, c);
    else if (l->how == STUFF)
        watch(l, c, EPOLL_CTL_MOD, 0);
}

static void wake_pausing(struct load *l, uint64_t now)
{
    while (l->pausing != NULL && l->pausing->due_us <= now) {
        struct client *c = l->pausing;

        l->pausing = c->next;
        if (l->pausing == NULL)
            l->pausing_end = &l->pausing;
        c->due_us = 0;
        begin(l, c);
    }
}

/* So many at once only that no backlog is ever full: a SYN that is dropped comes again in 1 s. */
static void open_more(struct load *l)
{
    while (l->n_opened < l->n_clients && l->n_connecting < CONNECT_AT_ONCE)
        begin(l, &l->clients[l->n_opened++]);
}

static void turn(struct load *l)
{
    struct epoll_event events[EVENTS_MAX];
    int n, ms = l->pausing != NULL || l->n_opened < l->n_clients ? 0 : 100;

    if (l->pausing != NULL && l->pausing->due_us > clock_now_us() + 1000)
        ms = 1;
    n = epoll_wait(l->epoll_fd, events, EVENTS_MAX, ms);
    for (int i = 0; i < n; i++) {
        struct client *c = events[i].data.ptr;

        if (c == NULL) {
            l->told_to_end = true;
            continue;
        }
        if ((events[i].events & EPOLLOUT) != 0 && c->sent < l->request_len)
            send_request(l, c);
        if (c->fd >= 0 && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
            readable(l, c);
    }
    wake_pausing(l, clock_now_us());
    open_more(l);
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void say(const char *name, struct samples *s)
{
    if (s->n == 0)
        return;
    qsort(s->at, s->n, sizeof *s->at, by_size);
    (void)printf(",\"%s_us\":{\"n\":%zu,\"p50\":%u,\"p99\":%u,\"max\":%u}", name, s->n,
                 s->at[s->n / 2], s->at[s->n - 1 - s->n / 100], s->at[s->n - 1]);
}

static void report(struct load *l, uint64_t took_us)
{
    struct rusage use;

    (void)getrusage(RUSAGE_SELF, &use);
    (void)printf("{\"seconds\":%.6f,\"good\":%llu,\"bad\":%llu,\"begun\":%zu,\"sent\":%zu,"
                 "\"bytes\":%llu,\"bytes_min\":%llu,\"bytes_max\":%llu,\"hash\":\"%016llx\","
                 "\"same\":%s,\"status\":%d,\"reused_gone\":%llu,\"cpu_s\":%.3f",
                 (double)took_us / 1e6, (unsigned long long)l->n_good, (unsigned long long)l->n_bad,
                 l->n_begun, l->n_sent, (unsigned long long)l->n_bytes,
                 (unsigned long long)l->bytes_min, (unsigned long long)l->bytes_max,
                 (unsigned long long)l->hash, l->hashes_differ ? "false" : "true", l->bad_status,
                 (unsigned long long)l->n_reused_gone,
                 (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                     (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
    say("whole", &l->whole);
    say("first", &l->first);
    say("token", &l->token);
    (void)printf("}\n");
    (void)fflush(stdout);
}

static void run_loop(struct load *l, uint64_t span_us)
{
    uint64_t from = clock_after_us(span_us / 4), until = from + span_us, now;

    while (clock_now_us() < from)
        turn(l);
    l->counting = true;
    (void)printf("counting\n");
    (void)fflush(stdout);
    from = clock_now_us();
    while ((now = clock_now_us()) < until)
        turn(l);
    report(l, now - from);
}

static void run_once(struct load *l, uint64_t span_us)
{
    uint64_t from = clock_now_us(), until = from + span_us;

    l->counting = true;
    while (l->n_over < l->n_clients && clock_now_us() < until)
        turn(l);
    report(l, clock_now_us() - from);
}

static void run_held(struct load *l, uint64_t span_us)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    uint64_t from = clock_now_us(), until = from + span_us;
    const size_t *n = l->how == WAIT ? &l->n_sent : &l->n_begun;

    while (*n + l->n_bad < l->n_clients && clock_now_us() < until)
        turn(l);
    report(l, clock_now_us() - from);
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event) != 0)
        die("standard input");
    while (!l->told_to_end)
        turn(l);
    report(l, clock_now_us() - from);
}

static char *make_request(const char *path, const char *body)
{
    char *text;
    int n;

    if (*body == '\0')
        n = asprintf(&text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    else
        n = asprintf(&text,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     path, strlen(body), body);
    if (n < 0)
        die("asprintf");
    return text;
}

static void init(struct load *l, char **argv)
{
    struct rlimit limit;

    l->server = (struct sockaddr_in){.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)atoi(argv[1])),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    l->n_clients = (size_t)atol(argv[2]);
    l->request = make_request(argv[3], argv[4]);
    l->request_len = strlen(l->request);
    while (l->how < HOWS && strcmp(argv[5], hows[l->how]) != 0)
        l->how++;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->clients = calloc(l->n_clients, sizeof *l->clients);
    if (l->epoll_fd < 0 || l->clients == NULL || l->n_clients == 0 || l->how == HOWS)
        die("arguments, epoll_create1 or calloc");
    for (size_t i = 0; i < l->n_clients; i++)
        l->clients[i].fd = -1;
    l->pausing_end = &l->pausing;
}

int main(int argc, char **argv)
{
    static struct load load;
    uint64_t span_us = 10000000;

    if (argc < 6 || argc > 8) {
        (void)fprintf(stderr, "proxy_load: see the head of tests/bench/proxy_load.c\n");
        return 2;
    }
    init(&load, argv);
    if (argc > 6)
        span_us = (uint64_t)(atof(argv[6]) * 1e6);
    if (argc > 7)
        load.pause_us = strtoull(argv[7], NULL, 10);
    open_more(&load);
    if (load.how == LOOP)
        run_loop(&load, span_us);
    else if (load.how == ONCE)
        run_once(&load, span_us);
    else
        run_held(&load, span_us);
    for (size_t i = 0; i < load.n_clients; i++)
        hang_up(&load, &load.clients[i]);
    free(load.whole.at);
    free(load.first.at);
    free(load.token.at);
    free(load.clients);
    free(load.request);
    return 0;
}

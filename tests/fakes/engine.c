/* fake_engine: options, the socket, the loop. Prints its URL on one line when it listens.
 *
 * Usage: fake_engine --dialect baton|vllm|sglang [--address A] [--port N | --unix PATH]
 *   [--world-size N] [--model NAME] [--weight-version LABEL] [--key KEY] [--tokens N]
 * [--interval-us U] [--pad N]
 *   [--vllm-version 0.24.0] [--vllm-config JSON] [--journal N] [--idle-ms N] [--plain-finish]
 *   [--enable-lora]
 *   [--sglang-version 0.5.N] [--sglang-config JSON] [--silent-reset] [--own-kv] [--hicache] */
#include "tests/fakes/engine.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 4096, BATCH = 256 };

void *must_have(void *p, const char *file, int line)
{
    if (p != NULL)
        return p;
    (void)fprintf(stderr, "fake_engine: no memory at %s:%d\n", file, line);
    abort();
}

static void die(const char *what)
{
    (void)fprintf(stderr, "fake_engine: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* timers: a heap, the earliest first */

static void heap_put(struct engine *e, size_t at, struct timer *t)
{
    e->heap[at - 1] = t;
    t->at = at;
}

static void heap_settle(struct engine *e, struct timer *t, size_t at)
{
    while (at > 1 && e->heap[at / 2 - 1]->due_us > t->due_us) {
        heap_put(e, at, e->heap[at / 2 - 1]);
        at /= 2;
    }
    for (size_t child; (child = at * 2) <= e->n_heap; at = child) {
        if (child < e->n_heap && e->heap[child]->due_us < e->heap[child - 1]->due_us)
            child++;
        if (e->heap[child - 1]->due_us >= t->due_us)
            break;
        heap_put(e, at, e->heap[child - 1]);
    }
    heap_put(e, at, t);
}

void timer_cancel(struct engine *e, struct timer *t)
{
    size_t at = t->at;
    struct timer *last;

    if (at == 0)
        return;
    t->at = 0;
    last = e->heap[--e->n_heap];
    if (last != t)
        heap_settle(e, last, at);
}

void timer_set(struct engine *e, struct timer *t, uint64_t due_us)
{
    timer_cancel(e, t);
    if (e->n_heap == e->heap_cap) {
        e->heap_cap = e->heap_cap == 0 ? 64 : e->heap_cap * 2;
        e->heap = must(realloc(e->heap, e->heap_cap * sizeof(struct timer *)));
    }
    t->due_us = due_us;
    heap_settle(e, t, ++e->n_heap);
}

/* Timers due now, not those that they arm: sockets are served in between. */
static void timers_fire(struct engine *e)
{
    uint64_t now = clock_now_us();

    for (size_t n = e->n_heap; n > 0 && e->n_heap > 0 && e->heap[0]->due_us <= now; n--) {
        struct timer *t = e->heap[0];

        timer_cancel(e, t);
        t->fire(t->arg);
    }
}

/* the socket */

static void watch(struct engine *e, int fd, void *mark)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = mark};

    if (epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        die("epoll_ctl");
}

static void bind_unix(struct engine *e)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    if (strlen(e->o.unix_path) >= sizeof at.sun_path) {
        errno = ENAMETOOLONG;
        die(e->o.unix_path);
    }
    memcpy(at.sun_path, e->o.unix_path, strlen(e->o.unix_path));
    (void)unlink(e->o.unix_path);
    if (bind(e->listen_fd, (struct sockaddr *)&at, sizeof at) != 0)
        die(e->o.unix_path);
}

static void bind_tcp(struct engine *e)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)e->o.port)};
    socklen_t len = sizeof at;
    int on = 1;

    if (inet_pton(AF_INET, e->o.address, &at.sin_addr) != 1)
        die(e->o.address);
    (void)setsockopt(e->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    (void)setsockopt(e->listen_fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(e->listen_fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        getsockname(e->listen_fd, (struct sockaddr *)&at, &len) != 0)
        die("bind");
    e->o.port = ntohs(at.sin_port);
}

static void open_socket(struct engine *e)
{
    e->listen_fd = socket(e->o.unix_path != NULL ? AF_UNIX : AF_INET,
                          SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (e->listen_fd < 0)
        die("socket");
    if (e->o.unix_path != NULL)
        bind_unix(e);
    else
        bind_tcp(e);
}

static void start_listening(void *arg)
{
    struct engine *e = arg;

    open_socket(e);
    if (listen(e->listen_fd, BACKLOG) != 0)
        die("listen");
    watch(e, e->listen_fd, &e->listen_fd);
}

static void accept_all(struct engine *e)
{
    int fd, on = 1;

    errno = 0;
    while (e->listen_fd >= 0 &&
           (fd = accept4(e->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        conn_accept(e, fd);
    }
    if (errno == EMFILE || errno == ENFILE)
        die("accept4");
}

void engine_restart(struct engine *e, uint64_t down_ms)
{
    if (down_ms > 0 && e->listen_fd >= 0) {
        (void)close(
            e->listen_fd); /* first: a client that sees its connection end then finds no listener */
        e->listen_fd = -1;
        timer_set(e, &e->listen_timer, clock_after_us(down_ms * 1000));
    }
    for (struct conn *c = e->conns; c != NULL; c = c->next)
        if (!c->own)
            conn_end(c, "restarted");
    state_reset(e);
}

/* the turn */

static void sweep(struct engine *e)
{
    struct conn *c;

    while ((c = e->dead) != NULL) {
        e->dead = c->next_dead;
        *c->prev_next = c->next;
        if (c->next != NULL)
            c->next->prev_next = c->prev_next;
        e->n_conns--;
        free(c);
    }
}

static void turn(struct engine *e)
{
    struct epoll_event events[BATCH];
    struct timespec wait = {0};
    int n;

    if (e->n_heap > 0) {
        uint64_t now = clock_now_us(), due = e->heap[0]->due_us;

        wait.tv_sec = due > now ? (time_t)((due - now) / 1000000) : 0;
        wait.tv_nsec = due > now ? (long)((due - now) % 1000000) * 1000 : 0;
    }
    n = epoll_pwait2(e->epoll_fd, events, BATCH, e->n_heap > 0 ? &wait : NULL, NULL);
    if (n < 0 && errno != EINTR)
        die("epoll_pwait2");
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &e->signal_fd)
            e->stop = true;
        else if (events[i].data.ptr == &e->listen_fd)
            accept_all(e);
        else
            conn_ready(events[i].data.ptr, events[i].events);
    }
    timers_fire(e);
    sweep(e);
}

/* options */

static void usage(void)
{
    (void)fprintf(stderr, "fake_engine: see the head of tests/fakes/engine.c for the options\n");
    exit(2);
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0')
        usage();
    return n;
}

static void parse_dialect(struct options *o, const char *name)
{
    o->dialect = strcmp(name, "baton") == 0    ? BATON
                 : strcmp(name, "vllm") == 0   ? VLLM
                 : strcmp(name, "sglang") == 0 ? SGLANG
                                               : 0;
    o->dialect_name = name;
    if (o->dialect == 0)
        usage();
}

/* The last number of 0.5.N. */
static unsigned sglang_version(const char *text)
{
    static const char release[] = "0.5.";

    if (strncmp(text, release, sizeof release - 1) != 0)
        usage();
    return (unsigned)number(text + sizeof release - 1);
}

static void parse_other(struct options *o, int which)
{
    if (which == 'R')
        o->vllm_version = optarg;
    else if (which == 'C')
        o->vllm_config = optarg;
    else if (which == 'G')
        o->sglang_config = optarg;
    else if (which == 'P')
        o->pad = number(optarg);
    else if (which == 'F')
        o->plain_finish = true;
    else if (which == 'L')
        o->lora = true;
    else if (which == 'I')
        o->idle_us = number(optarg) * 1000;
    else if (which == 'S')
        o->silent_reset = true;
    else if (which == 'K')
        o->own_kv = true;
    else if (which == 'H')
        o->hicache = true;
    else if (which == 'E')
        o->experts = optarg;
    else if (which == 'a')
        o->address = optarg;
    else
        usage();
}

static void parse_options(struct options *o, int argc, char **argv)
{
    static const struct option known[] = {{"dialect", 1, NULL, 'd'},
                                          {"address", 1, NULL, 'a'},
                                          {"port", 1, NULL, 'p'},
                                          {"unix", 1, NULL, 'u'},
                                          {"model", 1, NULL, 'm'},
                                          {"world-size", 1, NULL, 'w'},
                                          {"weight-version", 1, NULL, 'v'},
                                          {"vllm-version", 1, NULL, 'R'},
                                          {"vllm-config", 1, NULL, 'C'},
                                          {"key", 1, NULL, 'k'},
                                          {"tokens", 1, NULL, 't'},
                                          {"interval-us", 1, NULL, 'i'},
                                          {"pad", 1, NULL, 'P'},
                                          {"journal", 1, NULL, 'j'},
                                          {"idle-ms", 1, NULL, 'I'},
                                          {"plain-finish", 0, NULL, 'F'},
                                          {"enable-lora", 0, NULL, 'L'},
                                          {"sglang-version", 1, NULL, 'V'},
                                          {"sglang-config", 1, NULL, 'G'},
                                          {"experts", 1, NULL, 'E'},
                                          {"silent-reset", 0, NULL, 'S'},
                                          {"own-kv", 0, NULL, 'K'},
                                          {"hicache", 0, NULL, 'H'},
                                          {0}};
    int which;

    while ((which = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (which) {
        case 'd':
            parse_dialect(o, optarg);
            break;
        case 'p':
            o->port = (unsigned)number(optarg);
            break;
        case 'u':
            o->unix_path = optarg;
            break;
        case 'm':
            o->model = optarg;
            break;
        case 'w':
            o->world_size = (unsigned)number(optarg);
            break;
        case 'v':
            o->label = optarg;
            break;
        case 'k':
            o->key = optarg;
            break;
        case 't':
            o->n_tokens = number(optarg);
            break;
        case 'i':
            o->interval_us = number(optarg);
            break;
        case 'V':
            o->sglang = sglang_version(optarg);
            break;
        case 'j':
            o->n_journal = number(optarg);
            break;
        default:
            parse_other(o, which);
        }
    }
    if (o->dialect == 0 || optind != argc || o->port > 65535 || o->world_size == 0 ||
        o->n_tokens == 0 || o->n_tokens > TOKENS_MAX ||
        (o->label != NULL && strlen(o->label) > LABEL_MAX))
        usage();
}

static int open_signals(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* The members of a real one's (0.32) that a client of ours acts upon. */
static const char vllm_config[] =
    "{\"model_config\": {\"model\": \"double\", \"max_model_len\": 4096, \"dtype\": "
    "\"torch.bfloat16\", \"logprobs_mode\": \"raw_logprobs\", "
    "\"max_logprobs\": 20}, \"parallel_config\": {\"data_parallel_size\": 1}, "
    "\"lora_config\": null, \"weight_transfer_config\": {\"backend\": \"nccl\"}}";

int main(int argc, char **argv)
{
    static struct engine engine = {.o = {.address = "127.0.0.1",
                                         .model = "double",
                                         .vllm_version = "0.24.0",
                                         .vllm_config = vllm_config,
                                         .world_size = 1,
                                         .n_tokens = 16,
                                         .n_journal = 65536,
                                         .sglang = 23,
                                         .sglang_config = "{}"}};
    struct engine *e = &engine;
    struct rlimit limit;
    int guard = -1;

    parse_options(&e->o, argc, argv);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    e->signal_fd = open_signals();
    if (e->epoll_fd < 0 || e->signal_fd < 0)
        die("epoll_create1 or signalfd");
    watch(e, e->signal_fd, &e->signal_fd);
    e->listen_timer = (struct timer){.fire = start_listening, .arg = e};
    e->journal_end = &e->journal;
    e->cache.storage = e->o.hicache ? &e->storage : NULL;
    state_reset(e);
    if (e->o.unix_path == NULL) {
        open_socket(
            e); /* reserves the port while a restart does not listen; never listens itself */
        guard = e->listen_fd;
    }
    start_listening(e);
    if (e->o.unix_path != NULL)
        (void)printf("unix:%s\n", e->o.unix_path);
    else
        (void)printf("http://%s:%u\n", e->o.address, e->o.port);
    (void)fflush(stdout);
    while (!e->stop)
        turn(e);
    for (struct conn *c = e->conns; c != NULL; c = c->next)
        conn_end(c, "stopped");
    sweep(e);
    journal_free(e);
    cache_fini(&e->cache);
    cache_fini(&e->storage);
    json_decref(e->group);
    json_decref(e->groups);
    free(e->heap);
    (void)close(e->listen_fd);
    (void)close(guard);
    if (e->o.unix_path != NULL)
        (void)unlink(e->o.unix_path);
    return 0;
}

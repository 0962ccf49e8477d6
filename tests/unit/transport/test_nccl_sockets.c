/* transport/nccl_sockets: which connections are hung up on, that none is taken for another whose
 * number it got, and which listeners are closed when. Who connects is a process of its own:
 * connections within this one are left alone.
 */
#include "transport/nccl/nccl_sockets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

int __real_getpeername(int fd, struct sockaddr *at, socklen_t *len);
int __wrap_getpeername(int fd, struct sockaddr *at, socklen_t *len);
int __real_close(int fd);
int __wrap_close(int fd);
struct dirent *__real_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir);

/* The nth look at a number is its last before it becomes another connection's. */
static struct {
    int number, other, left;
} swap = {.number = -1};

static void (*at_each_look)(void); /* or NULL */

int __wrap_getpeername(int fd, struct sockaddr *at, socklen_t *len)
{
    int rc = __real_getpeername(fd, at, len);

    if (fd == swap.number && --swap.left == 0)
        assert_int_equal(dup2(swap.other, swap.number), swap.number);
    if (at_each_look != NULL)
        at_each_look();
    return rc;
}

/* As `number` is closed, `before` is closed already, or another's. */
static struct {
    int number, before;
} order = {-1, -1};

int __wrap_close(int fd)
{
    if (fd == order.number)
        assert_int_equal(send(order.before, "", 0, MSG_NOSIGNAL), -1);
    return __real_close(fd);
}

static int entries_left = -1; /* of /proc/self/fd until reading fails; -1: it does not */

struct dirent *__wrap_readdir(DIR *dir)
{
    if (entries_left >= 0 && entries_left-- == 0) {
        errno = EIO;
        return NULL;
    }
    return __real_readdir(dir);
}

/* @type  SOCK_STREAM, and it listens, or SOCK_DGRAM. @port  0: any; then it is set */
static int bound(int type, uint32_t host, in_port_t port, struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

    *at = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(host)};
    assert_int_equal(bind(fd, (struct sockaddr *)at, len), 0);
    if (type == SOCK_STREAM)
        assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
    return fd;
}

static int listener(struct sockaddr_in *at)
{
    return bound(SOCK_STREAM, INADDR_LOOPBACK, 0, at);
}

/* The process that connects to a client's listener and to the group's, and sends back whatever
 * comes by the client's until that ends. */
static void caller(const struct sockaddr_in *client, const struct sockaddr_in *group)
{
    int fds[2] = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET, SOCK_STREAM, 0)};
    char byte;

    if (connect(fds[0], (const struct sockaddr *)client, sizeof *client) != 0 ||
        connect(fds[1], (const struct sockaddr *)group, sizeof *group) != 0)
        _exit(1);
    while (recv(fds[0], &byte, 1, 0) == 1)
        if (send(fds[0], &byte, 1, MSG_NOSIGNAL) != 1)
            _exit(2);
    _exit(0);
}

struct world {
    struct nccl_sockets sockets; /* entered with the client's listener, without the group's */
    int listeners[2];            /* the client's, the group's */
    int client, group;           /* accepted there */
    pid_t pid;
};

static struct world world_new(void)
{
    struct sockaddr_in at[2];
    struct world w;

    w.listeners[0] = listener(&at[0]);
    nccl_sockets_enter(&w.sockets);
    w.listeners[1] = listener(&at[1]);
    w.pid = fork();
    assert_true(w.pid >= 0);
    if (w.pid == 0)
        caller(&at[0], &at[1]);
    w.client = accept4(w.listeners[0], NULL, NULL, SOCK_CLOEXEC);
    w.group = accept4(w.listeners[1], NULL, NULL, SOCK_CLOEXEC);
    assert_true(w.client >= 0 && w.group >= 0);
    return w;
}

static bool client_is_connected(const struct world *w)
{
    char byte = 'x';

    return send(w->client, &byte, 1, MSG_NOSIGNAL) == 1 && recv(w->client, &byte, 1, 0) == 1 &&
           byte == 'x';
}

static void world_gone(const struct world *w)
{
    int status = -1;

    (void)shutdown(w->client, SHUT_RDWR);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_int_equal(status, 0);
    (void)close(w->client);
    (void)close(w->listeners[0]);
}

static void world_end(const struct world *w)
{
    assert_int_equal(nccl_sockets_leave(&w->sockets, true), 0); /* none has joined: all stay */
    world_gone(w);
    (void)close(w->group);
    (void)close(w->listeners[1]);
}

static void test_only_the_groups_are_hung_up_on(void **state)
{
    struct world w = world_new();
    char byte;

    (void)state;
    assert_int_equal(nccl_sockets_hang_up(&w.sockets), 1);
    assert_int_equal(recv(w.group, &byte, 1, 0), 0);
    assert_true(client_is_connected(&w));
    world_end(&w);
}

/* NCCL closes its connection, and a client's that is accepted gets the number, between any two
 * looks at it: whatever becomes of the group's, the client's stays. */
static void test_a_number_that_became_a_clients_is_left_alone(void **state)
{
    bool swapped = true;

    (void)state;
    for (int look = 1; swapped; look++) {
        struct world w = world_new();

        swap.number = w.group;
        swap.other = w.client;
        swap.left = look;
        (void)nccl_sockets_hang_up(&w.sockets);
        swapped = swap.left <= 0;
        swap.number = -1;
        assert_true(client_is_connected(&w));
        world_end(&w);
        assert_true(swapped == (look <= 3)); /* listeners, callers, and then those to hang up on */
    }
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* A group's life with one listener of its own. Returns: is that one closed? It is in the end. */
static bool life_closes_its_listener(bool joined, bool freed)
{
    struct nccl_sockets s;
    struct sockaddr_in at;
    bool closed;
    int fd;

    nccl_sockets_enter(&s);
    fd = listener(&at);
    if (joined)
        nccl_sockets_joined();
    closed = nccl_sockets_leave(&s, freed) == 1;
    assert_true(is_open(fd) == !closed);
    if (!closed)
        (void)close(fd);
    return closed;
}

static void test_listeners_are_closed_once_a_group_had_joined_before(void **state)
{
    struct sockaddr_in at;
    int others = listener(&at);

    (void)state;
    assert_false(life_closes_its_listener(false, true));
    assert_false(life_closes_its_listener(true, true)); /* as long as the process */
    assert_true(life_closes_its_listener(false, true));
    assert_false(life_closes_its_listener(false, false)); /* libnccl may have it yet */
    assert_false(life_closes_its_listener(true, true));
    assert_true(is_open(others));
    (void)close(others);
}

/* A connection of this process with a listener; both ends. */
struct pair {
    int from, to;
};

static struct pair connect_pair(int listens, const struct sockaddr_in *at,
                                const struct sockaddr_in *from)
{
    struct pair p = {.from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

    if (from != NULL)
        assert_int_equal(bind(p.from, (const struct sockaddr *)from, sizeof *from), 0);
    assert_int_equal(connect(p.from, (const struct sockaddr *)at, sizeof *at), 0);
    p.to = accept4(listens, NULL, NULL, SOCK_CLOEXEC);
    assert_true(p.to >= 0);
    return p;
}

static void pair_close(const struct pair *p)
{
    assert_true(is_open(p->from) && is_open(p->to));
    (void)close(p->from);
    (void)close(p->to);
}

/* Connections with others from before and after, a listener's number at another address, and one of
 * another protocol. */
static void test_nothing_else_is_closed(void **state)
{
    struct sockaddr_in others_at, group_at, at;
    int others = listener(&others_at), group, udp;
    struct pair before, after, of_the_port;
    struct nccl_sockets s;

    (void)state;
    nccl_sockets_joined();
    before = connect_pair(others, &others_at, NULL);
    nccl_sockets_enter(&s);
    group = listener(&group_at);
    after = connect_pair(others, &others_at, NULL);
    at = group_at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    of_the_port = connect_pair(others, &others_at, &at);
    udp = bound(SOCK_DGRAM, INADDR_LOOPBACK, group_at.sin_port, &at);
    assert_int_equal(nccl_sockets_hang_up(&s), 0);
    assert_int_equal(nccl_sockets_leave(&s, true), 1);
    assert_true(!is_open(group) && is_open(others) && is_open(udp));
    pair_close(&before);
    pair_close(&after);
    pair_close(&of_the_port);
    (void)close(udp);
    (void)close(others);
}

/* Its two ends need it for their end. */
static void test_connections_within_the_process_are_not_hung_up_on(void **state)
{
    struct nccl_sockets s;
    struct sockaddr_in at;
    struct pair p;
    char byte = 'x';
    int fd;

    (void)state;
    nccl_sockets_enter(&s);
    fd = listener(&at);
    p = connect_pair(fd, &at, NULL);
    assert_int_equal(nccl_sockets_hang_up(&s), 0);
    assert_int_equal(send(p.from, &byte, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(p.to, &byte, 1, 0), 1);
    nccl_sockets_joined();
    assert_int_equal(nccl_sockets_leave(&s, true), 0);
    pair_close(&p);
    (void)close(fd);
}

static void test_a_forgotten_listener_of_ipv6_is_closed(void **state)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct nccl_sockets s;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    nccl_sockets_joined();
    nccl_sockets_enter(&s);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        (void)nccl_sockets_leave(&s, true);
        (void)close(fd);
        skip(); /* a machine without */
    }
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(nccl_sockets_leave(&s, true), 1);
    assert_false(is_open(fd));
}

/* What was not seen is taken for the group's by nobody: neither where the table of descriptors is
 * full, nor where reading it fails after any entry. */
static void test_nothing_is_closed_that_was_not_seen(void **state)
{
    struct rlimit was, none;
    struct nccl_sockets s;
    struct sockaddr_in at;
    int low = listener(&at), others = fcntl(low, F_DUPFD_CLOEXEC, 200); /* behind the directory */
    struct world w;
    bool failed = true;

    (void)state;
    nccl_sockets_joined();
    (void)close(low);
    w = world_new();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    nccl_sockets_enter(&s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(nccl_sockets_hang_up(&s), 0);
    assert_int_equal(nccl_sockets_leave(&s, true), 0);
    assert_true(client_is_connected(&w));
    assert_int_equal(nccl_sockets_leave(&w.sockets, true), 2);
    world_gone(&w);
    for (int n = 0; failed; n++) {
        entries_left = n;
        nccl_sockets_enter(&s);
        failed = entries_left < 0;
        entries_left = -1;
        assert_int_equal(nccl_sockets_leave(&s, true), 0);
        assert_true(is_open(others));
    }
    (void)close(others);
}

static void test_what_a_forgotten_listener_accepted_is_closed(void **state)
{
    struct world w;

    (void)state;
    nccl_sockets_joined();
    w = world_new();
    order.number = w.listeners[1]; /* while it is there nothing else gets its address */
    order.before = w.group;
    assert_int_equal(nccl_sockets_leave(&w.sockets, true), 2);
    order.number = -1;
    assert_false(is_open(w.listeners[1]) || is_open(w.group));
    assert_true(client_is_connected(&w));
    world_gone(&w);
}

/* As ncclIpcSocketInit names it. */
static int ipc_socket(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    (void)snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "%s-%d", name, (int)getpid());
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void test_a_forgotten_socket_of_the_host_is_closed(void **state)
{
    struct nccl_sockets s;
    int forgotten, old, other;

    (void)state;
    nccl_sockets_joined();
    nccl_sockets_enter(&s);
    other = ipc_socket("tmp/another-socket-1");
    forgotten = ipc_socket("tmp/nccl-socket-1-e15846998ae84725");
    assert_int_equal(nccl_sockets_leave(&s, true), 1);
    assert_true(is_open(other) && !is_open(forgotten));
    old = ipc_socket("tmp/nccl-socket-1-e15846998ae84725");
    nccl_sockets_enter(&s);
    forgotten = ipc_socket("tmp/nccl-socket-2-e15846998ae84725");
    assert_int_equal(nccl_sockets_leave(&s, true), 1);
    assert_true(is_open(old) && !is_open(forgotten)); /* it was there before */
    (void)close(old);
    (void)close(other);
}

static void test_listeners_stay_while_another_group_is_there(void **state)
{
    struct nccl_sockets first, second;
    struct sockaddr_in at;
    int fds[2];

    (void)state;
    nccl_sockets_joined();
    nccl_sockets_enter(&first);
    fds[0] = listener(&at);
    nccl_sockets_enter(&second);
    fds[1] = listener(&at);
    assert_int_equal(nccl_sockets_leave(&first, true), 0);
    assert_true(is_open(fds[0]) && is_open(fds[1]));
    assert_int_equal(nccl_sockets_leave(&second, true), 1);
    assert_true(is_open(fds[0]) && !is_open(fds[1]));
    (void)close(fds[0]);
}

/* Another one has joined meanwhile, and what came with it stays. */
static void test_listeners_stay_if_another_group_has_joined_meanwhile(void **state)
{
    struct nccl_sockets first, second;
    struct sockaddr_in at;
    int fd;

    (void)state;
    nccl_sockets_joined();
    nccl_sockets_enter(&first);
    nccl_sockets_enter(&second);
    fd = listener(&at);
    nccl_sockets_joined();
    assert_int_equal(nccl_sockets_leave(&second, true), 0);
    assert_int_equal(nccl_sockets_leave(&first, true), 0);
    assert_true(is_open(fd));
    (void)close(fd);
}

/* One that enters while another one's are looked for waits, and so has no listener yet. */
static struct {
    atomic_bool leaving, entered;
    bool started;
    pthread_t thread;
    struct nccl_sockets sockets;
} second;

static void *enter_second(void *arg)
{
    (void)arg;
    nccl_sockets_enter(&second.sockets);
    atomic_store(&second.entered, true);
    return NULL;
}

static void let_second_enter(void)
{
    if (!atomic_load(&second.leaving))
        return;
    if (!second.started)
        assert_int_equal(pthread_create(&second.thread, NULL, enter_second, NULL), 0);
    second.started = true;
    for (int i = 0; i < 1000; i++)
        (void)sched_yield();
    assert_false(atomic_load(&second.entered));
}

static void test_no_group_enters_while_another_one_leaves(void **state)
{
    struct nccl_sockets first;
    struct sockaddr_in at;
    int fd;

    (void)state;
    nccl_sockets_joined();
    nccl_sockets_enter(&first);
    fd = listener(&at);
    at_each_look = let_second_enter;
    atomic_store(&second.leaving, true);
    assert_int_equal(nccl_sockets_leave(&first, true), 1);
    atomic_store(&second.leaving, false);
    assert_false(is_open(fd));
    assert_true(second.started);
    assert_int_equal(pthread_join(second.thread, NULL), 0);
    at_each_look = NULL;
    assert_int_equal(nccl_sockets_leave(&second.sockets, true), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_groups_are_hung_up_on),
        cmocka_unit_test(test_a_number_that_became_a_clients_is_left_alone),
        cmocka_unit_test(test_listeners_are_closed_once_a_group_had_joined_before),
        cmocka_unit_test(test_what_a_forgotten_listener_accepted_is_closed),
        cmocka_unit_test(test_a_forgotten_socket_of_the_host_is_closed),
        cmocka_unit_test(test_nothing_is_closed_that_was_not_seen),
        cmocka_unit_test(test_listeners_stay_while_another_group_is_there),
        cmocka_unit_test(test_listeners_stay_if_another_group_has_joined_meanwhile),
        cmocka_unit_test(test_no_group_enters_while_another_one_leaves),
        cmocka_unit_test(test_nothing_else_is_closed),
        cmocka_unit_test(test_connections_within_the_process_are_not_hung_up_on),
        cmocka_unit_test(test_a_forgotten_listener_of_ipv6_is_closed),
    };

    return cmocka_run_group_tests_name("nccl_sockets", tests, NULL, NULL);
}

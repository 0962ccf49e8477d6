/* transport/nccl_sockets: which connections are hung up on, and that none is taken for another
 * whose number it got. Who connects is a process of its own:
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
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int __real_getpeername(int fd, struct sockaddr *at, socklen_t *len);
int __wrap_getpeername(int fd, struct sockaddr *at, socklen_t *len);
struct dirent *__real_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir);

/* The nth look at a number is its last before it becomes another connection's. */
static struct {
    int number, other, left;
} swap = {.number = -1};

int __wrap_getpeername(int fd, struct sockaddr *at, socklen_t *len)
{
    int rc = __real_getpeername(fd, at, len);

    if (fd == swap.number && --swap.left == 0)
        assert_int_equal(dup2(swap.other, swap.number), swap.number);
    return rc;
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
    world_gone(w);
    (void)close(w->group);
    (void)close(w->listeners[1]);
}

static void test_only_the_groups_are_hung_up_on(void **state)
{
    struct world w = world_new();
    char byte;

    (void)state;
    assert_int_equal(nccl_sockets_close_peers(&w.sockets), 1);
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
        (void)nccl_sockets_close_peers(&w.sockets);
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
static void test_nothing_else_is_hung_up_on(void **state)
{
    struct sockaddr_in others_at, group_at, at;
    int others = listener(&others_at), group, udp;
    struct pair before, after, of_the_port;
    struct nccl_sockets s;

    (void)state;
    before = connect_pair(others, &others_at, NULL);
    nccl_sockets_enter(&s);
    group = listener(&group_at);
    after = connect_pair(others, &others_at, NULL);
    at = group_at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    of_the_port = connect_pair(others, &others_at, &at);
    udp = bound(SOCK_DGRAM, INADDR_LOOPBACK, group_at.sin_port, &at);
    assert_int_equal(nccl_sockets_close_peers(&s), 0);
    assert_true(is_open(group) && is_open(others) && is_open(udp));
    (void)close(group);
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
    assert_int_equal(nccl_sockets_close_peers(&s), 0);
    assert_int_equal(send(p.from, &byte, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(p.to, &byte, 1, 0), 1);
    pair_close(&p);
    (void)close(fd);
}

/* What was not seen is taken for the group's by nobody: neither where the table of descriptors is
 * full, nor where reading it fails after any entry. */
static void test_nothing_is_hung_up_on_that_was_not_seen(void **state)
{
    struct rlimit was, none;
    struct nccl_sockets s;
    struct world w = world_new();
    bool failed = true;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    nccl_sockets_enter(&s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(nccl_sockets_close_peers(&s), 0);
    for (int n = 0; failed; n++) {
        entries_left = n;
        nccl_sockets_enter(&s);
        failed = entries_left < 0;
        entries_left = -1;
        assert_int_equal(nccl_sockets_close_peers(&s), 0);
        assert_true(client_is_connected(&w));
    }
    world_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_groups_are_hung_up_on),
        cmocka_unit_test(test_a_number_that_became_a_clients_is_left_alone),
        cmocka_unit_test(test_nothing_is_hung_up_on_that_was_not_seen),
        cmocka_unit_test(test_nothing_else_is_hung_up_on),
        cmocka_unit_test(test_connections_within_the_process_are_not_hung_up_on),
    };

    return cmocka_run_group_tests_name("nccl_sockets", tests, NULL, NULL);
}

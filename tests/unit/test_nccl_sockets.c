/* transport/nccl_sockets: which connections are hung up on, that none is taken for another whose
 * number it got, and which listeners are closed when. Who connects is a process of its own:
 * connections within this one are left alone.
 */
#include "transport/nccl_sockets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

int __real_getpeername(int fd, struct sockaddr *at, socklen_t *len);
int __wrap_getpeername(int fd, struct sockaddr *at, socklen_t *len);

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

static int listener(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)at, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
    return fd;
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

static void world_end(const struct world *w)
{
    int status = -1;

    assert_int_equal(nccl_sockets_leave(&w->sockets, false), 0); /* none has joined: all stay */
    (void)shutdown(w->client, SHUT_RDWR);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_int_equal(status, 0);
    (void)close(w->client);
    (void)close(w->group);
    (void)close(w->listeners[0]);
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
static bool life_closes_its_listener(bool joined)
{
    struct nccl_sockets s;
    struct sockaddr_in at;
    bool closed;
    int fd;

    nccl_sockets_enter(&s);
    fd = listener(&at);
    if (joined)
        nccl_sockets_joined();
    closed = nccl_sockets_leave(&s, joined) == 1;
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
    assert_false(life_closes_its_listener(false));
    assert_false(life_closes_its_listener(true)); /* as long as the process */
    assert_true(life_closes_its_listener(false));
    assert_false(life_closes_its_listener(true));
    assert_true(is_open(others));
    (void)close(others);
}

/* Of a table of descriptors that is full nobody can say whose a listener is. */
static void test_nothing_is_closed_that_was_not_seen(void **state)
{
    struct rlimit was, none;
    struct nccl_sockets s;
    struct sockaddr_in at;
    int others = listener(&at);

    (void)state;
    nccl_sockets_joined();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    nccl_sockets_enter(&s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(nccl_sockets_leave(&s, false), 0);
    assert_true(is_open(others));
    (void)close(others);
}

static void test_what_a_forgotten_listener_accepted_is_closed(void **state)
{
    struct world w;
    int status;

    (void)state;
    nccl_sockets_joined();
    w = world_new();
    assert_int_equal(nccl_sockets_leave(&w.sockets, false), 2);
    assert_false(is_open(w.listeners[1]) || is_open(w.group));
    assert_true(client_is_connected(&w));
    (void)shutdown(w.client, SHUT_RDWR);
    assert_int_equal(waitpid(w.pid, &status, 0), w.pid);
    assert_int_equal(status, 0);
    (void)close(w.client);
    (void)close(w.listeners[0]);
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
    int forgotten, other;

    (void)state;
    nccl_sockets_joined();
    nccl_sockets_enter(&s);
    other = ipc_socket("tmp/another-socket-1");
    forgotten = ipc_socket("tmp/nccl-socket-1-e15846998ae84725");
    assert_int_equal(nccl_sockets_leave(&s, false), 1);
    assert_true(is_open(other) && !is_open(forgotten));
    forgotten = ipc_socket("tmp/nccl-socket-1-e15846998ae84725");
    nccl_sockets_enter(&s);
    assert_int_equal(nccl_sockets_leave(&s, false), 0); /* it was there before */
    (void)close(forgotten);
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
    assert_int_equal(nccl_sockets_leave(&first, false), 0);
    assert_true(is_open(fds[0]) && is_open(fds[1]));
    assert_int_equal(nccl_sockets_leave(&second, false), 1);
    assert_true(is_open(fds[0]) && !is_open(fds[1]));
    (void)close(fds[0]);
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
    };

    return cmocka_run_group_tests_name("nccl_sockets", tests, NULL, NULL);
}

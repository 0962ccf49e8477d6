/* transport/nccl_group and what libnccl keeps open: connections of trainers that are stopped. */
#include "tests/unit/transport/group_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { NBYTES = 600000, SOON_US = 300 * 1000 };

/* A listener, and both ends of a connection with it. */
struct connection {
    int listener, caller, called;
};

static struct connection connect_to_self(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    struct connection c = {.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                           .caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

    assert_int_equal(bind(c.listener, (struct sockaddr *)&at, len), 0);
    assert_int_equal(listen(c.listener, 1), 0);
    assert_int_equal(getsockname(c.listener, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(connect(c.caller, (struct sockaddr *)&at, len), 0);
    c.called = accept4(c.listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(c.called >= 0);
    return c;
}

static void check_connected(const struct connection *c)
{
    char byte = 'x';

    assert_int_equal(send(c->caller, &byte, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(c->called, &byte, 1, 0), 1);
    assert_int_equal(send(c->called, &byte, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(c->caller, &byte, 1, 0), 1);
    (void)close(c->listener);
    (void)close(c->caller);
    (void)close(c->called);
}

/* libnccl serves whoever is connected until they hang up; one that is stopped never does. */
static void test_a_trainer_that_is_stopped_is_hung_up_on(void **state)
{
    uint64_t dst[GFX_DEVICES] = {gfx_buffer(0, NBYTES), gfx_buffer(1, NBYTES)};
    struct connection other = connect_to_self();
    struct nccl_group *g;
    struct nfx_peer peer;
    struct progress p;
    struct err e = {0};

    (void)state;
    (void)setenv("FAKENCCL_ABORT_AWAITS_PEERS", "1", 1);
    g = gfx_joined(&peer, NULL, 2, true);
    (void)unsetenv("FAKENCCL_ABORT_AWAITS_PEERS");
    assert_int_equal(kill(peer.pid, SIGSTOP), 0);
    p = gfx_within(SOON_US);
    assert_int_equal(gfx_receive(g, dst, NBYTES, &p, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_int_equal(gfx_info(g).state, NCCL_GROUP_FAILED);
    nccl_group_free(g);
    check_connected(&other);
    (void)nfx_end(&peer, true);
    for (int i = 0; i < GFX_DEVICES; i++)
        gfx_drop(dst[i]);
}

/* A group whose trainer never comes, until its deadline; `peer` mints the id. */
static void fail_to_join(struct nccl_group *g, struct nfx_peer *peer)
{
    ncclUniqueId id;
    struct progress p;
    struct err e = {0};

    *peer = nfx_spawn(NULL);
    id = nfx_mint(peer);
    p = gfx_within(SOON_US);
    assert_int_equal(nccl_group_join(g, gfx_id(&id), &p, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
}

/* The last of the tests: from here on no abort sticks any more. */
static void test_an_abort_that_comes_back_late_is_the_end(void **state)
{
    struct nccl_group *g;
    struct nfx_peer peer;

    (void)state;
    gfx.stuck = true;
    gfx_abort_timeout_us = SOON_US;
    (void)setenv("FAKENCCL_ABORT_STICKS", "1", 1);
    g = gfx_joined(&peer, NULL, 2, false);
    (void)unsetenv("FAKENCCL_ABORT_STICKS");
    gfx_abort_timeout_us = 0;
    nccl_group_free(g);
    (void)nfx_end(&peer, true);
    nfx.release_aborts();
    NFX_UNTIL(nfx_counts().n_comms == 0);
    NFX_UNTIL(gfx_entries("/proc/self/task") <= gfx.n_threads);
}

struct joining {
    struct nccl_group *g;
    ncclUniqueId id;
    struct err error;
};

static void *run_join(void *arg)
{
    struct joining *j = arg;
    struct progress p = gfx_patient();

    (void)nccl_group_join(j->g, gfx_id(&j->id), &p, &j->error);
    return NULL;
}

/* While one waits for its trainer, another one fails. */
static void test_a_group_that_fails_leaves_another_ones_alone(void **state)
{
    struct joining well = {.g = gfx_group(1, 1, false)};
    struct nccl_group *failed = gfx_group(1, 1, false);
    struct nfx_peer trainer = nfx_spawn(NULL), other;
    uint64_t n_sockets = nfx_counts().n_sockets;
    pthread_t thread;

    (void)state;
    well.id = nfx_mint(&trainer);
    assert_int_equal(pthread_create(&thread, NULL, run_join, &well), 0);
    NFX_UNTIL(nfx_counts().n_sockets > n_sockets);
    fail_to_join(failed, &other);
    nccl_group_free(failed);
    (void)nfx_end(&other, true);
    gfx_trainer_joins(&trainer, well.id, 2, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (well.error.code != ERR_NONE)
        fail_msg("%s", well.error.msg);
    nccl_group_free(well.g);
    (void)nfx_end(&trainer, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        GFX_TEST(test_a_group_that_fails_leaves_another_ones_alone),
        GFX_TEST(test_a_trainer_that_is_stopped_is_hung_up_on),
        cmocka_unit_test_setup(test_an_abort_that_comes_back_late_is_the_end, gfx_begin),
    };

    return gfx_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}

/* Ports over a libzmq that follows a script: events and messages in an order that the real one has
 * only seldom. */
#include "driver/zmq.h"
#include "transport/zmq/zmq_ports.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { EVENTS_MAX = 8 };

/* What libzmq has for the port, in order; `late` comes with the message. */
static struct {
    int rep, monitor;
    uint16_t events[EVENTS_MAX];
    uint32_t n_events, at;
    uint16_t late;
    const char *message; /* NULL: none */
    bool is_address;     /* the next part of the monitor's */
    int n_contexts, n_replies;
    int pair[2];
} fake;

struct fake_msg {
    char bytes[16];
    size_t len;
};

static void *fake_ctx_new(void)
{
    fake.n_contexts++;
    return &fake;
}

static int fake_ctx_term(void *ctx)
{
    assert_ptr_equal(ctx, &fake);
    fake.n_contexts--;
    return 0;
}

static void *fake_socket(void *ctx, int type)
{
    assert_ptr_equal(ctx, &fake);
    return type == ZMQ_PAIR ? &fake.monitor : &fake.rep;
}

static int fake_close(void *socket)
{
    (void)socket;
    return 0;
}

static int fake_setsockopt(void *socket, int option, const void *value, size_t nbytes)
{
    (void)socket, (void)option, (void)value, (void)nbytes;
    return 0;
}

static int fake_getsockopt(void *socket, int option, void *value, size_t *nbytes)
{
    (void)socket;
    assert_int_equal(option, ZMQ_RCVMORE);
    memset(value, 0, *nbytes);
    return 0;
}

static int fake_connect(void *socket, const char *endpoint)
{
    (void)socket, (void)endpoint;
    return 0;
}

static int fake_monitor(void *socket, const char *endpoint, int events)
{
    (void)socket, (void)endpoint, (void)events;
    return 0;
}

static int fake_poll(zmq_pollitem_t *items, int n, long ms)
{
    (void)items, (void)ms;
    return n;
}

static int fake_send(void *socket, const void *data, size_t nbytes, int flags)
{
    (void)socket, (void)data, (void)flags;
    fake.n_replies++;
    return (int)nbytes;
}

static int fake_msg_init(zmq_msg_t *msg)
{
    memset(msg, 0, sizeof *msg);
    return 0;
}

static int put(zmq_msg_t *msg, const void *bytes, size_t len)
{
    struct fake_msg m = {.len = len};

    assert_true(len <= sizeof m.bytes);
    memcpy(m.bytes, bytes, len);
    memcpy(msg, &m, sizeof m);
    return (int)len;
}

static int next_event(zmq_msg_t *msg)
{
    char head[6];

    if (fake.is_address) {
        fake.is_address = false;
        return put(msg, "ipc", 3);
    }
    if (fake.at == fake.n_events)
        return -1;
    memcpy(head, &fake.events[fake.at++], 2);
    memcpy(head + 2, &fake.pair[0], 4);
    fake.is_address = true;
    return put(msg, head, sizeof head);
}

static int fake_msg_recv(zmq_msg_t *msg, void *socket, int flags)
{
    const char *text = fake.message;

    assert_int_equal(flags, ZMQ_DONTWAIT);
    if (socket == &fake.monitor)
        return next_event(msg);
    if (fake.late != 0)
        fake.events[fake.n_events++] = fake.late;
    fake.late = 0;
    if (text == NULL)
        return -1;
    fake.message = NULL;
    return put(msg, text, strlen(text));
}

static void *fake_msg_data(zmq_msg_t *msg)
{
    return msg;
}

static size_t fake_msg_size(const zmq_msg_t *msg)
{
    struct fake_msg m;

    memcpy(&m, msg, sizeof m);
    return m.len;
}

static int fake_msg_close(zmq_msg_t *msg)
{
    (void)msg;
    return 0;
}

int __wrap_zmq_load(struct zmq_api *out, struct err *e);
int __wrap_zmq_load(struct zmq_api *out, struct err *e)
{
    (void)e;
    *out = (struct zmq_api){.ctx_new = fake_ctx_new,
                            .ctx_term = fake_ctx_term,
                            .socket = fake_socket,
                            .close = fake_close,
                            .setsockopt = fake_setsockopt,
                            .getsockopt = fake_getsockopt,
                            .connect = fake_connect,
                            .socket_monitor = fake_monitor,
                            .poll = fake_poll,
                            .send = fake_send,
                            .msg_init = fake_msg_init,
                            .msg_recv = fake_msg_recv,
                            .msg_data = fake_msg_data,
                            .msg_size = fake_msg_size,
                            .msg_close = fake_msg_close};
    return 0;
}

static const char *const addresses[] = {"ipc://@trainer"};

static int set_up(void **state)
{
    struct zmq_ports *p;
    struct err e = {0};

    memset(&fake, 0, sizeof fake);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fake.pair), 0);
    assert_int_equal(zmq_ports_open(&p, addresses, 1, NULL, 0, &e), 0);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    zmq_ports_close(*state);
    assert_int_equal(fake.n_contexts, 0);
    (void)close(fake.pair[0]);
    (void)close(fake.pair[1]);
    return 0;
}

static void come(uint16_t event)
{
    fake.events[fake.n_events++] = event;
}

static bool has_message(struct zmq_ports *p)
{
    size_t nbytes;
    const char *text = zmq_ports_message(p, 0, &nbytes);

    assert_true(text == NULL || (nbytes == 5 && memcmp(text, "hello", nbytes) == 0));
    return text != NULL;
}

static void is_gone(struct zmq_ports *p)
{
    struct err why = {0};

    assert_false(has_message(p));
    assert_true(zmq_ports_lost(p, 0, &why));
    assert_int_equal(why.code, ERR_GONE);
}

static void test_a_message_waits_for_its_connection(void **state)
{
    struct zmq_ports *p = *state;

    fake.message = "hello";
    zmq_ports_wait(p, 0);
    assert_false(has_message(p));
    assert_false(zmq_ports_connected(p, 0));
    come(ZMQ_EVENT_CONNECTED);
    zmq_ports_wait(p, 0);
    assert_true(has_message(p));
    assert_true(zmq_ports_connected(p, 0));
    zmq_ports_reply(p, 0, "", 0);
    assert_int_equal(fake.n_replies, 1);
    assert_false(zmq_ports_lost(p, 0, NULL));
}

static void test_what_came_before_the_end_is_read(void **state)
{
    struct zmq_ports *p = *state;

    fake.message = "hello";
    come(ZMQ_EVENT_CONNECTED);
    come(ZMQ_EVENT_DISCONNECTED);
    zmq_ports_wait(p, 0);
    assert_true(has_message(p));
    zmq_ports_reply(p, 0, "", 0);
    assert_int_equal(fake.n_replies, 0);
    is_gone(p);
}

static void test_a_second_connection_is_not_read(void **state)
{
    struct zmq_ports *p = *state;

    come(ZMQ_EVENT_CONNECTED);
    zmq_ports_wait(p, 0);
    come(ZMQ_EVENT_DISCONNECTED);
    come(ZMQ_EVENT_CONNECTED);
    fake.message = "hello";
    zmq_ports_wait(p, 0);
    is_gone(p);
    assert_non_null(fake.message);
}

/* Between the look at the events and the look at the messages. */
static void test_a_second_connection_in_between_is_not_believed(void **state)
{
    struct zmq_ports *p = *state;

    come(ZMQ_EVENT_CONNECTED);
    zmq_ports_wait(p, 0);
    come(ZMQ_EVENT_DISCONNECTED);
    fake.late = ZMQ_EVENT_CONNECTED;
    fake.message = "hello";
    zmq_ports_wait(p, 0);
    is_gone(p);
    assert_null(fake.message);
}

/* libzmq would end the process. */
static void test_too_few_descriptors(void **state)
{
    struct rlimit before, few;
    struct zmq_ports *p = NULL;
    struct err e = {0};
    int rc, next = dup(fake.pair[0]);

    (void)state;
    assert_true(next >= 0);
    (void)close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)next + 9, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    rc = zmq_ports_open(&p, addresses, 1, NULL, 0, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, -1);
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_non_null(strstr(e.msg, "too few file descriptors: the update's sockets need 10"));
    assert_int_equal(fake.n_contexts, 1); /* of set_up */
    assert_int_equal(dup(fake.pair[0]), next);
    (void)close(next);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_message_waits_for_its_connection),
        TEST(test_what_came_before_the_end_is_read),
        TEST(test_a_second_connection_is_not_read),
        TEST(test_a_second_connection_in_between_is_not_believed),
        TEST(test_too_few_descriptors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

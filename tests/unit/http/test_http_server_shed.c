/* Near the limit of connections: which give way, and which are left alone. */
#include "tests/unit/http/http_server_app.h"

/* A connection that gives way at its deadline does so after APP_WAIT_US; one that is left alone has
 * at least a second. */
enum { FEW = 16, FEW_BUSY = 12, CROWD = 300, LATE_US = APP_WAIT_US / 2, SOON_US = 900 * 1000 };

static void few_connections(struct http_server_cfg *cfg)
{
    cfg->n_connections_max = FEW; /* FEW_BUSY may be at work */
}

static void open_all(struct client c[], int n)
{
    for (int i = 0; i < n; i++)
        client_open(&c[i], app.port);
}

static void close_all(struct client c[], int n)
{
    for (int i = 0; i < n; i++)
        client_close(&c[i]);
}

static void ask_new(const char *path, int status)
{
    struct client c;
    struct response r;

    client_open(&c, app.port);
    client_send(&c, "GET ");
    client_send(&c, path);
    client_send(&c, " HTTP/1.1\r\n" HOST "\r\n");
    client_response(&c, &r, false);
    assert_int_equal(r.status, status);
    if (status == 503) {
        assert_string_equal(response_header(&r, "Connection"), "close");
        assert_string_equal(response_header(&r, "Retry-After"), "1");
        assert_true(client_closed(&c));
    }
    response_free(&r);
    client_close(&c);
}

/* FEW_BUSY at work. */
static void open_busy(struct client busy[])
{
    for (int i = 0; i < FEW_BUSY; i++) {
        client_open(&busy[i], app.port);
        client_send(&busy[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nx");
    }
}

static void test_shed_over_the_limit(void **state)
{
    struct client c[FEW_BUSY];
    struct http_server_stats stats;

    (void)state;
    app_start(&app, few_connections);
    open_busy(c);
    ask_new("/echo", 503);
    ask_new("/reserved", 200);
    http_server_stats(app.http_server, &stats);
    assert_int_equal(stats.n_accepted, FEW_BUSY + 2);
    assert_int_equal(stats.n_rejected, 1);
    close_all(c, FEW_BUSY);
    app_stop(&app);
}

static const char half_body[] = "POST /reserved HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nx";

/* Connections that say nothing, or nothing more, keep nobody out, whatever the others hold. */
static void test_idle_connections_give_way(void **state)
{
    struct client busy[FEW_BUSY], idle[CROWD];
    struct response r;
    uint64_t began_us;

    (void)state;
    app_start(&app, few_connections);
    open_busy(busy);
    began_us = clock_now_us();
    for (int i = 0; i < CROWD; i++) {
        client_open(&idle[i], app.port);
        if (i % 2 == 1)
            (void)client_try_send(&idle[i], "GET /reserved HTTP/1.1\r\nHost: x\r\n\r\n", 35);
    }
    ask_new("/reserved", 200);
    assert_true(clock_now_us() - began_us < LATE_US);
    for (int i = 0; i < FEW_BUSY; i++) { /* who is at work is left alone */
        client_send(&busy[i], "y");
        client_response(&busy[i], &r, false);
        assert_string_equal(r.body, "xy");
        response_free(&r);
    }
    ask_new("/echo", 200);
    close_all(busy, FEW_BUSY);
    close_all(idle, CROWD);
    app_stop(&app);
}

/* Who has been answered and asks again within a second finds its connection; when hardly a place is
 * left, an answer ends it instead. A round that took longer says nothing. */
static void test_answered_connections_are_kept(void **state)
{
    struct client kept[FEW_BUSY], more;
    struct response r;

    (void)state;
    app_start(&app, few_connections);
    open_all(kept, FEW_BUSY);
    for (int round = 0; round < 3;) {
        uint64_t began_us = clock_now_us();
        bool in_time;

        for (int i = 0; i < FEW_BUSY; i++)
            expect(&kept[i], "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
        client_open(&more, app.port);
        ask(&more, "GET /echo HTTP/1.1\r\n" HOST "\r\n", &r);
        in_time = clock_now_us() - began_us < SOON_US;
        if (in_time) {
            assert_int_equal(r.status, 200);
            assert_string_equal(response_header(&r, "Connection"), "close");
            assert_true(client_closed(&more));
            round++;
            (void)poll(NULL, 0, 200);
        } else {
            close_all(kept, FEW_BUSY);
            open_all(kept, FEW_BUSY);
        }
        response_free(&r);
        client_close(&more);
    }
    close_all(kept, FEW_BUSY);
    app_stop(&app);
}

/* A place that nobody else waits for is left to one that takes its time with the first byte; for a
 * second. */
static void test_late_first_bytes_are_waited_for(void **state)
{
    enum { N_LATE = FEW - FEW_BUSY };
    struct client busy[FEW_BUSY], late[N_LATE];
    struct response r;
    uint64_t began_us;

    (void)state;
    app_start(&app, few_connections);
    open_busy(busy);
    for (;;) {
        began_us = clock_now_us();
        open_all(late, N_LATE);
        (void)poll(NULL, 0, 50);
        for (int i = 0; i < N_LATE; i++)
            (void)client_try_send(&late[i], "GET /reserved HTTP/1.1\r\nHost: x\r\n\r\n", 35);
        if (clock_now_us() - began_us < SOON_US)
            break;
        close_all(late, N_LATE); /* too slow to tell */
    }
    for (int i = 0; i < N_LATE; i++) {
        client_response(&late[i], &r, false);
        assert_int_equal(r.status, 200);
        response_free(&r);
    }
    close_all(busy, FEW_BUSY);
    close_all(late, N_LATE);
    app_stop(&app);
}

/* A head of which some has come, also behind an answer, is waited for, whatever the crowd that says
 * nothing. */
static void test_half_heads_do_not_give_way(void **state)
{
    struct client half[FEW_BUSY], idle[CROWD];

    (void)state;
    app_start(&app, few_connections);
    for (int i = 0; i < FEW_BUSY; i++) {
        client_open(&half[i], app.port);
        if (i % 2 == 1)
            expect(&half[i], "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
        (void)poll(NULL, 0, 10);
        client_send(&half[i], i % 3 == 0 ? "GE" : "GET /echo HTTP/1.1\r\nHo");
    }
    for (int i = 0; i < CROWD; i++)
        client_open(&idle[i], app.port);
    ask_new("/reserved", 200);
    for (int i = 0; i < FEW_BUSY; i++)
        expect(&half[i], i % 3 == 0 ? "T /echo HTTP/1.1\r\n" HOST "\r\n" : "st: t\r\n\r\n", 200,
               "");
    close_all(half, FEW_BUSY);
    close_all(idle, CROWD);
    app_stop(&app);
}

/* One of c[0..n) that has an answer or an end, within `wait_ms`; -1: none has. */
static int told(const struct client c[], int n, int wait_ms)
{
    struct pollfd fds[2 * FEW];

    for (int i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = c[i].fd, .events = POLLIN};
    if (poll(fds, (nfds_t)n, wait_ms) <= 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (fds[i].revents != 0)
            return i;
    return -1;
}

static void expect_timeout(struct client *c)
{
    struct response r;

    client_response(c, &r, false);
    assert_int_equal(r.status, 408);
    assert_string_equal(response_header(&r, "Connection"), "close");
    response_free(&r);
    assert_true(client_closed(c));
    client_close(c);
}

/* n heads that do not go on keep nobody out: some are answered without the rest, and not before
 * they are least_us old. Which ones the loop saw first is the machine's choice. */
static void half_heads(int n, uint64_t least_us)
{
    struct client half[2 * FEW];
    struct response r;
    uint64_t began_us = clock_now_us();
    int n_given_up = 0, n_whole = 0;

    app_start(&app, few_connections);
    for (int i = 0; i < n; i++) {
        client_open(&half[i], app.port);
        client_send(&half[i], "GET /echo HTTP/1.1\r\nHo");
    }
    for (int i; n_given_up < 2 && (i = told(half, n, LATE_US / 1000)) >= 0; n_given_up++)
        expect_timeout(&half[i]);
    assert_int_equal(n_given_up, 2);
    assert_true(clock_now_us() - began_us >= least_us);
    ask_new("/reserved", 200);
    assert_true(clock_now_us() - began_us < LATE_US);
    for (int i = 0; i < n; i++) { /* the others may go on */
        if (half[i].fd < 0)
            continue;
        if (told(&half[i], 1, 0) >= 0) {
            expect_timeout(&half[i]);
            continue;
        }
        ask(&half[i], "st: t\r\n\r\n", &r);
        n_whole += r.status == 200; /* or it was given up just now */
        response_free(&r);
    }
    assert_true(n_whole >= FEW_BUSY - 2);
    close_all(half, n);
    app_stop(&app);
}

/* With room for those that come next. */
static void test_old_half_heads_give_way(void **state)
{
    (void)state;
    half_heads(FEW_BUSY + 2, 1000 * 1000);
}

/* And sooner where somebody waits to be accepted. */
static void test_half_heads_give_way_to_who_waits(void **state)
{
    (void)state;
    half_heads(2 * FEW, 200 * 1000);
}

/* Who is told that its body is not waited for may go on sending it: nothing breaks before it has
 * read that. */
static void test_a_given_up_body_may_come_yet(void **state)
{
    struct client busy[FEW_BUSY], c;
    struct pollfd told = {.events = POLLIN};
    struct response r;

    (void)state;
    app_start(&app, few_connections);
    open_busy(busy);
    (void)poll(NULL, 0, 20);
    client_open(&c, app.port);
    client_send(&c, half_body);
    told.fd = c.fd;
    assert_int_equal(poll(&told, 1, 5000), 1);
    for (int i = 0; i < 3; i++) {
        assert_true(client_try_send(&c, "y", 1));
        (void)poll(NULL, 0, 20);
    }
    client_response(&c, &r, false);
    assert_int_equal(r.status, 503);
    response_free(&r);
    close_all(busy, FEW_BUSY);
    client_close(&c);
    app_stop(&app);
}

/* Bodies that do not come, of what is served before others and of what is refused, keep nobody out:
 * the oldest are answered without. */
static void test_reserved_bodies_give_way(void **state)
{
    struct client c[3 * FEW];
    struct response r;
    uint64_t began_us = clock_now_us();

    (void)state;
    app_start(&app, few_connections);
    for (int i = 0; i < 3 * FEW; i++) {
        client_open(&c[i], app.port);
        client_send(&c[i], i % 2 == 0 ? half_body
                                      : "POST /deny HTTP/1.1\r\n" HOST
                                        "Content-Length: 2\r\n\r\nx");
    }
    ask_new("/reserved", 200);
    assert_true(clock_now_us() - began_us < LATE_US);
    for (int i = 0; i < 2; i++) {
        client_response(&c[i], &r, false);
        assert_int_equal(r.status, i == 0 ? 503 : 403);
        assert_string_equal(response_header(&r, "Connection"), "close");
        response_free(&r);
        assert_true(client_closed(&c[i]));
    }
    close_all(c, 3 * FEW);
    app_stop(&app);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shed_over_the_limit),
        cmocka_unit_test(test_idle_connections_give_way),
        cmocka_unit_test(test_answered_connections_are_kept),
        cmocka_unit_test(test_late_first_bytes_are_waited_for),
        cmocka_unit_test(test_half_heads_do_not_give_way),
        cmocka_unit_test(test_old_half_heads_give_way),
        cmocka_unit_test(test_half_heads_give_way_to_who_waits),
        cmocka_unit_test(test_a_given_up_body_may_come_yet),
        cmocka_unit_test(test_reserved_bodies_give_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

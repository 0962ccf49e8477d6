/* Request bodies at a real HTTP server: whole, streamed, refused early, late or half-way. */
#include "tests/unit/http/http_server_app.h"

static void test_chunked_upload(void **state)
{
    struct client c;

    (void)state;
    client_open(&c, app.port);
    expect(&c,
           "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
           "3;ext=1\r\nabc\r\n1\r\nd\r\n10\r\n0123456789abcdef\r\n0\r\nTrailer: x\r\n\r\n",
           200, "abcd0123456789abcdef");
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
}

static void send_repeat(struct client *c, const char *piece, size_t n)
{
    size_t len = strlen(piece);

    for (size_t i = 0; i < n; i++)
        if (!client_try_send(c, piece, len))
            return;
}

/* One chunk of 4096 bytes, as text. */
static char *big_chunk(void)
{
    char *chunk = malloc(6 + 4096 + 2 + 1);

    assert_non_null(chunk);
    memcpy(chunk, "1000\r\n", 6);
    memset(chunk + 6, 'x', 4096);
    memcpy(chunk + 6 + 4096, "\r\n", 3);
    return chunk;
}

static void test_chunked_overrun_is_413_after_the_body(void **state)
{
    struct client c;
    struct response r;
    char *chunk = big_chunk();

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    send_repeat(&c, chunk, 600);
    client_send(&c, "0\r\n\r\n");
    client_response(&c, &r, false);
    assert_int_equal(r.status, 413);
    response_free(&r);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
    free(chunk);
}

static void short_drop(struct http_server_cfg *cfg)
{
    cfg->drop_timeout_us = 50 * 1000;
}

/* The body never ends: once the drop time is over the answer comes in the middle of it. */
static void test_chunked_overrun_without_end_is_413_in_time(void **state)
{
    struct client c;
    struct response r;
    char *chunk = big_chunk();

    (void)state;
    app_start(&app, short_drop);
    client_open(&c, app.port);
    client_send(&c, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    for (struct pollfd p = {.fd = c.fd, .events = POLLIN}; poll(&p, 1, 0) == 0;)
        send_repeat(&c, chunk, 16);
    client_response(&c, &r, false);
    assert_int_equal(r.status, 413);
    assert_string_equal(response_header(&r, "Connection"), "close");
    assert_true(r.whole);
    response_free(&r);
    client_close(&c);
    assert_int_equal(app_outcome(&app, 1).status, 413);
    app_stop(&app);
    free(chunk);
}

/* A client that reads nothing before it has sent everything, as Python's http.client. */
static void send_big_and_expect(const char *head, int status, size_t nbytes)
{
    struct client c;
    struct response r;
    char *zeros = calloc(1, 1 << 20);

    assert_non_null(zeros);
    client_open(&c, app.port);
    client_send(&c, head);
    for (size_t i = 0; i < nbytes >> 20; i++)
        assert_true(client_try_send(&c, zeros, 1 << 20));
    client_response(&c, &r, false);
    assert_int_equal(r.status, status);
    assert_true(r.whole);
    response_free(&r);
    client_close(&c);
    free(zeros);
}

static void test_early_errors_reach_a_client_that_sends_all_first(void **state)
{
    (void)state;
    send_big_and_expect("POST /echo HTTP/1.1\r\n" HOST "Content-Length: 104857600\r\n\r\n", 413,
                        100 << 20);
    send_big_and_expect("POST /deny HTTP/1.1\r\n" HOST "Content-Length: 104857600\r\n\r\n", 403,
                        100 << 20);
    /* A streamed body whose head (8 zero bytes) is refused after dispatch. */
    send_big_and_expect("POST /refuse HTTP/1.1\r\n" HOST "Content-Length: 104857600\r\n\r\n", 422,
                        100 << 20);
    /* All of it was read within the drop time: the spin guard does not slow an upload down. */
    assert_int_equal(app_outcome(&app, 3).nbytes_in, 100 << 20);
}

static void curl_expect(const char *options, const char *path, const char *status)
{
    char command[512], out[64] = "";
    FILE *p;

    (void)snprintf(command, sizeof command,
                   "head -c 104857600 /dev/zero | curl --silent --max-time 60 --output /dev/null "
                   "--write-out '%%{http_code}' %s http://127.0.0.1:%u%s",
                   options, (unsigned)app.port, path);
    p = popen(command, "r");
    assert_non_null(p);
    assert_non_null(fgets(out, sizeof out, p));
    (void)pclose(p);
    assert_string_equal(out, status);
}

static void test_early_errors_reach_curl(void **state)
{
    (void)state;
    curl_expect("--header Expect: --data-binary @-", "/echo", "413");
    curl_expect("--header Expect: --request POST --upload-file -", "/deny", "403");
    curl_expect("--data-binary @-", "/refuse", "422");
    curl_expect("--header Expect: --data-binary @-", "/refuse", "422");
}

static void test_expect_continue(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    ask(&c, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", &r);
    assert_int_equal(r.status, 100);
    response_free(&r);
    expect(&c, "hi", 200, "hi");
    /* A refusal comes instead of the 100, before any body. */
    expect(&c, "POST /deny HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
           403, NULL);
    client_close(&c);
}

static void test_get_body_is_dropped(void **state)
{
    struct client c;

    (void)state;
    client_open(&c, app.port);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", 200, "");
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
}

static void test_half_body_and_hang_up_is_gone(void **state)
{
    struct client c;
    struct response r;
    struct http_server_outcome o;

    (void)state;
    client_open(&c, app.port);
    ask(&c, "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n",
        &r);
    assert_int_equal(r.status, 100); /* the server has seen the headers */
    response_free(&r);
    client_send(&c, "half");
    client_close(&c);
    o = app_outcome(&app, 1);
    assert_true(o.gone);
    assert_int_equal(o.status, 499);
    assert_string_equal(o.log_code, "client_gone");
}

static void put_head(char *out, uint64_t n)
{
    for (int i = 0; i < 8; i++)
        out[i] = (char)(n >> (8 * i));
}

static void send_pattern(struct client *c, uint64_t done, uint64_t end)
{
    char tensors[4096];

    while (done < end) {
        size_t piece = end - done < sizeof tensors ? (size_t)(end - done) : sizeof tensors;

        for (size_t i = 0; i < piece; i++)
            tensors[i] = (char)pattern(done + i);
        if (!client_try_send(c, tensors, piece))
            return;
        done += piece;
    }
}

/* Head of 1000 bytes, then n pattern bytes; stops early after `send_nbytes` of them. */
static void send_tensors(struct client *c, uint64_t n, uint64_t send_nbytes)
{
    char head[256], begin[1008];

    (void)snprintf(head, sizeof head, "POST /sink HTTP/1.1\r\n" HOST "Content-Length: %llu\r\n\r\n",
                   (unsigned long long)(n + sizeof begin));
    client_send(c, head);
    memset(begin, 'h', sizeof begin);
    put_head(begin, sizeof begin - 8);
    assert_true(client_try_send(c, begin, sizeof begin));
    send_pattern(c, 0, send_nbytes);
}

static void test_streamed_upload_is_byte_exact(void **state)
{
    static const uint64_t n = 64 << 20;
    struct client c;
    struct response r;
    struct http_server_outcome o;

    (void)state;
    client_open(&c, app.port);
    send_tensors(&c, n, n);
    client_response(&c, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "67108864");
    response_free(&r);
    o = app_outcome(&app, 1);
    assert_int_equal(o.nbytes_in, n + 1008);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
}

static void expect_sunk(struct client *c, uint64_t n)
{
    char text[32];
    struct response r;

    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    client_response(c, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, text);
    response_free(&r);
}

/* No byte that follows a body is taken for one of it. */
static void test_streamed_uploads_behind_each_other(void **state)
{
    static const uint64_t sizes[] = {5, 3 << 20, 1, 700001, 20000, 1 << 20};
    enum { N = sizeof sizes / sizeof sizes[0] };
    struct client c;

    (void)state;
    client_open(&c, app.port);
    for (size_t i = 0; i < N; i++)
        send_tensors(&c, sizes[i], sizes[i]);
    client_send(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    for (size_t i = 0; i < N; i++)
        expect_sunk(&c, sizes[i]);
    expect(&c, "", 200, "");
    client_close(&c);
}

static void test_streamed_uploads_beside_each_other(void **state)
{
    static const uint64_t n = 4 << 20;
    struct client first, second;

    (void)state;
    client_open(&first, app.port);
    client_open(&second, app.port);
    send_tensors(&first, n, n / 4);
    send_tensors(&second, n, n / 2);
    send_pattern(&first, n / 4, n);
    expect_sunk(&first, n);
    send_pattern(&second, n / 2, n);
    expect_sunk(&second, n);
    client_close(&first);
    client_close(&second);
}

static void test_streamed_body_that_ends_early(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    app.sink_more = 77;
    client_open(&c, app.port);
    for (int i = 0; i < 20; i++)
        send_tensors(&c, 100000, 100000);
    client_send(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; i < 20; i++) {
        client_response(&c, &r, false);
        assert_int_equal(r.status, 422);
        assert_string_equal(r.body, "the body ended early: 77 bytes are missing");
        response_free(&r);
    }
    expect(&c, "", 200, "");
    client_close(&c);
}

static void test_streamed_body_without_its_head(void **state)
{
    static const char request[] = "POST /sink HTTP/1.1\r\n" HOST
                                  "Content-Length: 9\r\n\r\n\x20\0\0\0\0\0\0\0\1";
    struct client c;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    assert_true(client_try_send(&c, request, sizeof request - 1));
    client_response(&c, &r, false);
    assert_int_equal(r.status, 422);
    assert_string_equal(r.body, "the body ended after 9 of the 40 bytes of its head");
    response_free(&r);
    expect(&c, "POST /sink HTTP/1.1\r\n" HOST "\r\n", 422,
           "the body ended after 0 bytes, within its head");
    client_close(&c);
}

static void test_streamed_body_peer_gone(void **state)
{
    struct client c;

    (void)state;
    client_open(&c, app.port);
    send_tensors(&c, 10 << 20, 5 << 20);
    client_close(&c);
    app_wait(&app, &app.n_released, 1); /* the handler answered all the same */
    assert_int_equal(app.last_read.code, ERR_GONE);
    assert_true(app_outcome(&app, 1).gone);
}

static void test_streamed_body_stalled(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    app_start(&app, short_drop);
    app.sink_stall_us = 100 * 1000;
    client_open(&c, app.port);
    send_tensors(&c, 10000, 4000);
    /* The answer waits for the rest of the body until the drop time is over. */
    client_response(&c, &r, false);
    assert_int_equal(r.status, 408);
    assert_true(r.whole);
    assert_non_null(strstr(r.body, "6000 are missing"));
    response_free(&r);
    client_close(&c);
    assert_int_equal(app_outcome(&app, 1).status, 408);
    app_stop(&app);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_chunked_upload),
        T(test_chunked_overrun_is_413_after_the_body),
        cmocka_unit_test(test_chunked_overrun_without_end_is_413_in_time),
        T(test_early_errors_reach_a_client_that_sends_all_first),
        T(test_early_errors_reach_curl),
        T(test_expect_continue),
        T(test_get_body_is_dropped),
        T(test_half_body_and_hang_up_is_gone),
        T(test_streamed_upload_is_byte_exact),
        T(test_streamed_uploads_behind_each_other),
        T(test_streamed_uploads_beside_each_other),
        T(test_streamed_body_that_ends_early),
        T(test_streamed_body_without_its_head),
        T(test_streamed_body_peer_gone),
        cmocka_unit_test(test_streamed_body_stalled),
    };

    return cmocka_run_group_tests_name("front_body", tests, NULL, NULL);
}

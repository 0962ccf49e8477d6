/* Replies of upstreams. The first byte chooses the reader:
 *   'h'  an HTTP reply, read by a client that connects to its server; the end is reported once, and
 *        the head of a complete reply is within its limits
 *   else the JSON (or metrics) of a reply to every operation and query of each kind of upstream;
 *        behind a NUL byte, the body of the request
 * Every error has a message; every text that is read is bounded, terminated, and in the reply. */
#include "tests/fuzz/fuzz.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "fleet/api/api_json.h"
#include "http/client/http.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- the JSON of answers ---- */

static void check_text(const char *text, size_t cap)
{
    CHECK(strnlen(text, cap) < cap);
}

static void check_unreadable(const struct err *e)
{
    static const enum err_code codes[] = {ERR_UNREADABLE, ERR_NONE};

    check_refusal(e, codes, "");
}

static void read_questions(enum upstream_kind d, const char *text, size_t len)
{
    struct upstream_report report;
    char name[API_VERSION_MAX + 1], id[API_UPDATE_ID_MAX + 1];
    struct err e = {0};
    uint64_t n_ranks = 0;

    memset(&report, 'x', sizeof report);
    CHECK(api_read_report(&report, d, API_GET_STATUS, 200, text, len, &e) == 0);
    check_text(report.process, sizeof report.process);
    check_text(report.label, sizeof report.label);
    check_text(report.not_ready, sizeof report.not_ready);
    for (int status = 0; status < 600; status += 200) {
        err_clear(&e);
        if (api_read_report(&report, d, API_GET_PROBE_VERSION, status, text, len, &e) != 0)
            check_unreadable(&e);
        check_text(report.label, sizeof report.label);
    }
    err_clear(&e);
    if (api_read_version(name, d, text, len, &e) != 0)
        check_unreadable(&e);
    else
        check_text(name, sizeof name);
    err_clear(&e);
    if (api_read_ranks(&n_ranks, d, text, len, &e) != 0)
        check_unreadable(&e);
    else
        CHECK(n_ranks > 0 || d == UPSTREAM_BATON);
    err_clear(&e);
    if (api_read_start(id, report.process, text, len, &e) != 0)
        check_unreadable(&e);
    else
        CHECK(id[0] != '\0' && strnlen(id, sizeof id) < sizeof id);
    if (api_read_open_update(id, text, len))
        CHECK(id[0] != '\0' && strnlen(id, sizeof id) < sizeof id);
}

static bool is_text(const json_t *o, const char *member, const char *wanted)
{
    const char *text = json_string_value(json_object_get(o, member));

    return text != NULL && strcmp(text, wanted) == 0;
}

/* Nothing but what a baton says counts: no word of it, no success. */
static void check_done(enum api_op op, const json_t *answer)
{
    if (op == API_VERIFY_UPDATE)
        CHECK(is_text(answer, "phase", "verified") && is_text(answer, "update_id", "u-1"));
    if (op == API_FINISH_UPDATE)
        CHECK(is_text(answer, "phase", "committed") && is_text(answer, "update_id", "u-1"));
    if (op == API_ABORT_UPDATE)
        CHECK(is_text(answer, "phase", "aborted") && is_text(answer, "update_id", "u-1"));
    if (op == API_UPDATE_WEIGHTS)
        CHECK(is_text(answer, "update_id", "u-1"));
    if (op == API_PAUSE)
        CHECK(json_is_true(json_object_get(answer, "paused")));
    if (op == API_RESUME)
        CHECK(json_is_false(json_object_get(answer, "paused")));
}

static void read_done(enum upstream_kind d, const struct api_args *args, const char *text,
                      size_t len)
{
    static const enum err_code codes[] = {ERR_UPSTREAM, ERR_NONE};
    const struct api_context ctx = {.update_id = "u-1"};
    json_t *answer = json_loadb(text, len, 0, NULL);

    for (int op = 0; op < API_OPS; op++) {
        struct err e = {0};

        if (api_check_done(d, (enum api_op)op, args, &ctx, text, len, &e) != 0)
            check_refusal(&e, codes, "");
        else if (d == UPSTREAM_BATON)
            check_done((enum api_op)op, answer);
        else
            CHECK(!json_is_false(json_object_get(answer, "success")));
    }
    json_decref(answer);
}

static void make_requests(enum upstream_kind d, const struct api_args *all)
{
    static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_NONE};
    const struct api_context ctx = {.update_id = "u-1", .has_rank_offset = true, .rank_offset = 3};

    for (int op = 0; op < API_OPS; op++) {
        struct api_args args = *all;
        struct api_request r;
        struct err e = {0};

        args.tensors = op == API_UPDATE_WEIGHTS ? all->tensors : NULL;
        if (api_make_request(&r, d, (enum api_op)op, &args, &ctx, &e) != 0) {
            check_refusal(&e, codes, "");
            CHECK(r.method == NULL && r.body == NULL);
            continue;
        }
        CHECK((r.method == NULL) == (r.path[0] == '\0') && (r.path[0] == '/' || r.method == NULL));
        CHECK(strpbrk(r.path, "\r\n ") == NULL);
        CHECK(r.body == NULL || r.body[r.body_len] == '\0');
        if (r.body != NULL) {
            json_t *o = json_loadb(r.body, r.body_len, JSON_REJECT_DUPLICATES, NULL);

            CHECK(json_is_object(o));
            json_decref(o);
        }
        api_request_fini(&r);
    }
}

static void read_error(const char *text, size_t len, size_t cap)
{
    char out[512];

    memset(out, 'x', sizeof out);
    api_read_error(out, cap, text, len);
    CHECK(strnlen(out, cap) < cap && out[cap] == 'x');
    CHECK(out[0] == '\0' || utf8_valid_prefix(out, strlen(out)) == strlen(out));
    CHECK(strpbrk(out, "\r\n\t") == NULL);
}

static void check_kinds(const json_t *native, const char *text, size_t len)
{
    static const char *const ids[] = {"a"};
    struct api_object own = {.json = native};
    const struct api_args args = {.native = &own,
                                  .tensors = &(struct api_tensors){.chunk_id = "c\"\n"},
                                  .join = &(struct api_join){.packed_given = true},
                                  .pause = &(struct api_pause){.mode = PAUSE_KEEP},
                                  .sleep = &(struct api_sleep){.level = 1},
                                  .label = "v",
                                  .convert = true,
                                  .lease_s = 9,
                                  .reason = "why",
                                  .name = "a",
                                  .dir = "/a",
                                  .running = true,
                                  .ids = ids,
                                  .n_ids = 1};

    for (int d = 0; d < UPSTREAM_KINDS; d++) {
        read_questions((enum upstream_kind)d, text, len);
        read_done((enum upstream_kind)d, &args, text, len);
        make_requests((enum upstream_kind)d, &args);
        (void)api_adapter_is_absent((enum upstream_kind)d, "a", 400, text, len);
        CHECK(api_adapter_is_absent((enum upstream_kind)d, "a", 404, text, len));
    }
    api_object_fini(&own);
}

static void check_answer(const char *data, size_t len)
{
    const char *nul = len > 0 ? memchr(data, '\0', len) : NULL;
    size_t n = nul != NULL ? (size_t)(nul - data) : len;
    char *text = malloc(n > 0 ? n : 1); /* exactly, so that a read beyond it is seen */
    json_t *native = nul != NULL ? json_loadb(nul + 1, len - n - 1, JSON_REJECT_DUPLICATES, NULL)
                                 : NULL;

    CHECK(text != NULL);
    if (!json_is_object(native)) {
        json_decref(native);
        native = json_pack("{s:s, s:s}", "weight_version", "v", "mode", "keep");
    }
    memcpy(text, data, n);
    check_kinds(native, text, n);
    read_error(text, n, 2);
    read_error(text, n, 256);
    json_decref(native);
    free(text);
}

/* ---- an HTTP answer ---- */

/* A peer that answers each connection with the input, and the client that asks it. */
static struct {
    int fd;
    char url[128];
    const char *says;
    size_t n_says;
    pthread_t thread;
    struct loop *loop;
    struct http_client *client;
    struct http_target target;

    struct loop_item begin;
    sem_t ended, served;
    size_t n_heads, n_ends, n_body;
    struct http_head head;
    struct http_end end;
} world;

static void wait_for(sem_t *s)
{
    while (sem_wait(s) != 0) /* a fuzzer's clock interrupts it */
        continue;
}

static void *peer_main(void *arg)
{
    char request[4096];
    int fd;

    (void)arg;
    while ((fd = accept(world.fd, NULL, NULL)) >= 0) {
        size_t at = 0;
        ssize_t n = recv(fd, request, sizeof request, 0);

        while (n > 0 && at < world.n_says) {
            n = send(fd, world.says + at, world.n_says - at, MSG_NOSIGNAL);
            at += n > 0 ? (size_t)n : 0;
        }
        (void)close(fd);
        CHECK(sem_post(&world.served) == 0);
    }
    return NULL;
}

static void on_head(void *arg, const struct http_head *head)
{
    (void)arg;
    world.n_heads++;
    world.head = *head;
}

static bool on_data(void *arg, const void *data, size_t len)
{
    (void)arg;
    CHECK(world.n_heads == 1 && world.n_ends == 0 && data != NULL && len > 0);
    world.n_body += len;
    return true;
}

static void on_done(void *arg, const struct http_end *end)
{
    (void)arg;
    world.n_ends++;
    world.end = *end;
    CHECK(sem_post(&world.ended) == 0);
}

static void begin(void *arg)
{
    const struct http_events events = {.head = on_head, .data = on_data, .done = on_done};
    const struct http_call_request request = {.target = &world.target,
                                              .method = "GET",
                                              .path = "/x",
                                              .connect_timeout_us = 10000000,
                                              .timeout_us = world.n_says % 2 == 0 ? 0 : 10000000,
                                              .fresh = true};
    struct http_call *call;
    struct err e = {0};

    (void)arg;
    CHECK(http_start(&call, world.client, &request, &events, &e) == 0);
}

static void open_world(void)
{
    const struct loop_cfg cfg = {.name = "fuzz"};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct err e = {0};

    (void)snprintf(a.sun_path, sizeof a.sun_path, "/tmp/fuzz-upstream-%d", (int)getpid());
    (void)unlink(a.sun_path);
    world.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(world.fd, (const struct sockaddr *)(const void *)&a, sizeof a) == 0);
    CHECK(listen(world.fd, 16) == 0);
    (void)snprintf(world.url, sizeof world.url, "unix:%s", a.sun_path);
    world.target.url = world.url;
    CHECK(sem_init(&world.ended, 0, 0) == 0 && sem_init(&world.served, 0, 0) == 0);
    CHECK(http_init(&e) == 0);
    CHECK(loop_new(&world.loop, &cfg, &e) == 0);
    CHECK(http_client_new(&world.client, world.loop, &e) == 0);
    CHECK(loop_start(world.loop, &e) == 0);
    CHECK(pthread_create(&world.thread, NULL, peer_main, NULL) == 0);
}

static void close_world(void)
{
    (void)shutdown(world.fd, SHUT_RDWR);
    (void)pthread_join(world.thread, NULL);
    loop_stop(world.loop);
    http_client_free(world.client);
    loop_free(world.loop);
    (void)close(world.fd);
    (void)unlink(world.url + strlen("unix:"));
}

static bool is_blank_free(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == '\x7f')
            return false;
    return true;
}

static void check_http(const char *data, size_t len)
{
    if (world.loop == NULL) {
        open_world();
        CHECK(atexit(close_world) == 0);
    }
    world.says = data;
    world.n_says = len;
    world.n_heads = world.n_ends = world.n_body = 0;
    world.begin = (struct loop_item){.run = begin};
    loop_post(world.loop, &world.begin);
    wait_for(&world.ended);
    wait_for(&world.served);
    CHECK(world.n_ends == 1 && world.n_heads <= 1 && world.n_body <= len);
    CHECK((world.end.outcome == HTTP_WHOLE) == (world.end.why[0] == '\0'));
    CHECK(world.end.outcome != HTTP_NO_MEMORY && world.end.outcome != HTTP_UNREACHABLE);
    check_text(world.end.why, sizeof world.end.why);
    if (world.end.outcome == HTTP_WHOLE)
        CHECK(world.n_heads == 1 && world.head.status >= 200 && world.head.status < 1000);
    if (world.n_heads == 0)
        return;
    CHECK(world.head.content_length >= -1 && is_blank_free(world.head.content_type));
    CHECK(is_blank_free(world.head.retry_after) && is_blank_free(world.head.boot_id));
    if (world.end.outcome == HTTP_WHOLE && world.head.content_length >= 0)
        CHECK(world.n_body == (uint64_t)world.head.content_length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const char *text = (const char *)data;

    if (len > 0 && text[0] == 'h')
        check_http(text + 1, len - 1);
    else
        check_answer(text, len);
    return 0;
}

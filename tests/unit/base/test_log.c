/* Every line is one valid JSON object, whatever a client put into it; what is lost is counted. */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The lines of `text` as parsed objects; new array. */
static json_t *parse_lines(char *text)
{
    json_t *lines = json_array();
    char *save = NULL;

    for (char *l = strtok_r(text, "\n", &save); l != NULL; l = strtok_r(NULL, "\n", &save)) {
        json_error_t je;
        json_t *o = json_loads(l, JSON_REJECT_DUPLICATES, &je);

        if (!json_is_object(o))
            fail_msg("not an object: %s at %d: %.200s", je.text, je.position, l);
        assert_int_equal(json_array_append_new(lines, o), 0);
    }
    return lines;
}

static int temp_file(void)
{
    char path[] = "/tmp/test_log.XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    return fd;
}

/* Closes the log, reads what it wrote to fd. */
static json_t *close_and_parse(int fd)
{
    char *text = calloc(1, 8 << 20);
    json_t *lines;

    assert_non_null(text);
    log_close();
    assert_true(pread(fd, text, (8 << 20) - 1, 0) >= 0);
    lines = parse_lines(text);
    free(text);
    (void)close(fd);
    return lines;
}

static const char *str(const json_t *lines, size_t i, const char *key)
{
    return json_string_value(json_object_get(json_array_get(lines, i), key));
}

static void test_hostile_bytes(void **state)
{
    char all[256];
    struct err e = {0};
    struct log_rec r;
    int fd = temp_file();
    json_t *lines;

    (void)state;
    for (int i = 0; i < 255; i++)
        all[i] = (char)(i + 1);
    all[255] = '\0';
    assert_int_equal(log_open(fd, LOG_INFO, &e), 0);
    log_begin(&r, LOG_INFO, "request");
    log_str(&r, "path", all);
    log_str(&r, "none", NULL);
    log_u64(&r, "nbytes", INT64_MAX);
    log_ms(&r, "ms", 1234567);
    log_end(&r);
    (void)err_set(&e, ERR_BAD_REQUEST, "/a\"b", "line\nbreak");
    log_begin(&r, LOG_WARN, "refused");
    log_err(&r, &e);
    log_end(&r);
    log_line(LOG_DEBUG, "unseen", "below the level");
    log_line(LOG_ERROR, "seen", "100%% \"quoted\"\r\n");
    lines = close_and_parse(fd);
    assert_int_equal(json_array_size(lines), 3);
    assert_string_equal(str(lines, 0, "event"), "request");
    assert_int_equal(strlen(str(lines, 0, "ts")), 24);
    assert_non_null(strstr(str(lines, 0, "path"), "0123456789"));
    assert_null(json_object_get(json_array_get(lines, 0), "none"));
    assert_string_equal(str(lines, 1, "param"), "/a\"b");
    assert_string_equal(str(lines, 1, "message"), "line break");
    assert_string_equal(str(lines, 2, "message"), "100% \"quoted\"\r\n");
    json_decref(lines);
}

/* Events have the members of lines: a client compares labels with its own. */
static void test_text_is_kept(void **state)
{
    static const char label[] = "pas-\xc3\xa9-\xe6\xad\xa5-\xf0\x9f\x99\x82 \xc2\x9b";
    char text[256] = "";
    struct err e = {0};
    struct log_rec r;
    int fd = temp_file();
    json_t *lines;

    (void)state;
    assert_int_equal(log_open(fd, LOG_INFO, &e), 0);
    log_begin(&r, LOG_INFO, "x");
    log_str(&r, "label", label);
    log_str(&r, "bad", "a\xff\xe2\x82");
    log_end(&r);
    log_close();
    assert_true(pread(fd, text, sizeof text - 1, 0) > 0);
    for (const char *p = text; *p != '\0'; p++)
        assert_true(*p == '\n' || (*p >= 0x20 && *p < 0x7f)); /* nothing that controls a terminal */
    lines = parse_lines(text);
    assert_string_equal(str(lines, 0, "label"), label);
    assert_string_equal(str(lines, 0, "bad"), "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(lines);
    (void)close(fd);
}

static void test_what_was_asked_for_is_written_at_any_level(void **state)
{
    struct err e = {0};
    struct log_rec r;
    int fd = temp_file();
    json_t *lines;

    (void)state;
    assert_int_equal(log_open(fd, LOG_ERROR, &e), 0);
    log_begin(&r, LOG_INFO, "left_out");
    log_end(&r);
    log_begin(&r, LOG_INFO, "asked");
    log_asked(&r);
    lines = close_and_parse(fd);
    assert_int_equal(json_array_size(lines), 1);
    assert_string_equal(str(lines, 0, "event"), "asked");
    json_decref(lines);
}

static void test_long_values_are_left_out(void **state)
{
    char *big = malloc(3 * LOG_LINE_MAX);
    struct err e = {0};
    struct log_rec r;
    int fd = temp_file();
    json_t *lines;

    (void)state;
    assert_non_null(big);
    assert_int_equal(log_open(fd, LOG_INFO, &e), 0);
    for (size_t len = LOG_LINE_MAX - 300; len < LOG_LINE_MAX + 20; len++) {
        memset(big, '"', len / 2); /* each takes two bytes */
        big[len / 2] = '\0';
        log_begin(&r, LOG_INFO, "request");
        log_str(&r, "first", "kept");
        log_str(&r, "big", big);
        log_u64(&r, "last", 1);
        log_end(&r);
    }
    lines = close_and_parse(fd);
    assert_int_equal(json_array_size(lines), 320);
    assert_string_equal(str(lines, 0, "first"), "kept");
    assert_non_null(json_object_get(json_array_get(lines, 0), "big"));
    assert_string_equal(str(lines, 319, "first"), "kept");
    assert_null(json_object_get(json_array_get(lines, 319), "big"));
    assert_true(json_is_true(json_object_get(json_array_get(lines, 319), "cut")));
    json_decref(lines);
    free(big);
}

/* Nobody reads the pipe: its buffer fills, then the ring, then lines are dropped and counted. */
static void test_drops_are_counted_and_told(void **state)
{
    enum { LINES = 3 * LOG_RING_LINES };
    char *text = calloc(1, 8 << 20);
    struct err e = {0};
    uint64_t before = log_dropped(), dropped;
    json_t *lines, *o;
    json_int_t told = 0;
    size_t len = 0, i;
    ssize_t n;
    int fds[2];

    (void)state;
    assert_non_null(text);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(log_open(fds[1], LOG_INFO, &e), 0);
    for (int k = 0; k < LINES; k++)
        log_line(LOG_INFO, "flood", "%d", k);
    dropped = log_dropped() - before;
    assert_true(dropped > 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 1 << 20) >= 0); /* what is queued fits: close ends */
    log_close();
    assert_int_equal(log_open(fds[1], LOG_INFO, &e), 0);
    log_line(LOG_INFO, "after", "it fits now");
    log_close();
    assert_int_equal(log_dropped() - before, dropped);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    while ((n = read(fds[0], text + len, 65536)) > 0)
        len += (size_t)n;
    lines = parse_lines(text);
    json_array_foreach(lines, i, o) told += json_integer_value(json_object_get(o, "dropped_lines"));
    assert_int_equal(told, dropped);
    json_decref(lines);
    (void)close(fds[0]);
    (void)close(fds[1]);
    free(text);
}

enum { LATE_THREADS = 3, LATE_ROUNDS = 30 };

/* Logs for as long as it is let. */
struct late {
    const atomic_bool *enough;
    atomic_uint_fast64_t n_lines;
    pthread_t thread;
};

static void *late_main(void *arg)
{
    struct late *l = arg;

    while (!atomic_load(l->enough)) {
        log_line(LOG_INFO, "late", "while the log opens and closes");
        atomic_fetch_add(&l->n_lines, 1);
    }
    return NULL;
}

static uint64_t count_lines(int fd)
{
    char piece[65536];
    uint64_t n_lines = 0;
    off_t at = 0;
    ssize_t n;

    while ((n = pread(fd, piece, sizeof piece, at)) > 0) {
        for (ssize_t i = 0; i < n; i++)
            n_lines += piece[i] == '\n';
        at += n;
    }
    return n_lines;
}

/* A thread that nobody waits for, as one that an abort is stuck in, may log while the process ends:
 * its line is written, or dropped and counted. */
static void test_close_while_others_log(void **state)
{
    struct late late[LATE_THREADS];
    uint64_t n_lines = 0, dropped = log_dropped();
    atomic_bool enough = false;
    struct err e = {0};
    int fd = temp_file();

    (void)state;
    assert_int_equal(log_open(fd, LOG_INFO, &e), 0); /* nobody writes elsewhere */
    for (int i = 0; i < LATE_THREADS; i++) {
        late[i] = (struct late){.enough = &enough};
        assert_int_equal(pthread_create(&late[i].thread, NULL, late_main, &late[i]), 0);
    }
    for (int i = 0; i < LATE_ROUNDS; i++) {
        uint64_t before = atomic_load(&late[i % LATE_THREADS].n_lines);

        while (atomic_load(&late[i % LATE_THREADS].n_lines) == before) /* it is among them */
            (void)sched_yield();
        log_close();
        assert_int_equal(log_open(fd, LOG_INFO, &e), 0);
    }
    atomic_store(&enough, true);
    for (int i = 0; i < LATE_THREADS; i++) {
        assert_int_equal(pthread_join(late[i].thread, NULL), 0);
        n_lines += atomic_load(&late[i].n_lines);
    }
    log_close();
    assert_int_equal(count_lines(fd) + (log_dropped() - dropped), n_lines);
    (void)close(fd);
}

static void test_log_text(void **state)
{
    static const char
        json[] = "{\"ts\":\"12:00Z\",\"level\":\"warn\",\"event\":\"x.y\",\"a\":\"one two\","
                 "\"b\":\"\\\"\\u001b\",\"n\":12,\"w\":\"/v1/x\",\"e\":\"\",\"t\":true}\n",
        text[] = "12:00Z WARN  x.y a=\"one two\" b=\"\\\"\\u001b\" n=12 w=/v1/x e=\"\" t=true\n";
    char out[256];
    size_t n;

    (void)state;
    n = log_text(out, sizeof out, json, sizeof json - 1, false);
    assert_int_equal(n, sizeof text - 1);
    assert_memory_equal(out, text, n);
    for (size_t cap = 1; cap < sizeof text; cap++) { /* cut, with a newline */
        n = log_text(out, cap, json, sizeof json - 1, false);
        assert_int_equal(n, cap);
        assert_int_equal(out[n - 1], '\n');
    }
    for (size_t len = 1; len < sizeof json - 1; len++) /* nothing outside of it is read */
        assert_true(log_text(out, sizeof out, json, len, true) < sizeof out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_text),
        cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_text_is_kept),
        cmocka_unit_test(test_what_was_asked_for_is_written_at_any_level),
        cmocka_unit_test(test_long_values_are_left_out),
        cmocka_unit_test(test_drops_are_counted_and_told),
        cmocka_unit_test(test_close_while_others_log),
    };

    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}

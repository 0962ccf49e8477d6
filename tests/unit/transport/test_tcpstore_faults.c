/* A store that hangs up, resets, falls silent or lies, at every byte: each call ends in time, in an
 * error that says what came, and nothing is sent twice. */
#include "transport/nccl/tcpstore.h"

#include "tests/fakes/tcpstore_server.h"
#include "tests/unit/store_script.h"

enum {
    LONG_US = 60 * 1000 * 1000,
    SHORT_US = 40 * 1000,
    SOON_US = 100 * 1000, /* after its deadline or a stop a call has ended */
    TRIES = 50,           /* for a machine that is busy: one of them must be in time */
    ID_NBYTES = 247
};

uint64_t __real_clock_after_us(uint64_t delay_us);
uint64_t __wrap_clock_after_us(uint64_t delay_us);

/* Has a WAIT that is taken back all the time that a busy machine needs, instead of 50 ms? */
static bool takes_back_at_leisure;

uint64_t __wrap_clock_after_us(uint64_t delay_us)
{
    return takes_back_at_leisure && delay_us == TCPSTORE_CANCEL_US
               ? CLOCK_NEVER
               : __real_clock_after_us(delay_us);
}

/* The session of a rank, in four calls, each with its request and its answer. */
enum call { CALL_OPEN, CALL_JOIN, CALL_WAIT, CALL_GET, N_CALLS };

static const char *const requests[N_CALLS] = {
    NULL,
    "040500000000000000696e69742f0100000000000000",
    "06010000000000000003000000000000002f6964",
    "0303000000000000002f6964",
};
static const char *const names[N_CALLS] = {"PING", "ADD 'init/'", "WAIT '/id'", "GET '/id'"};

static uint8_t answers[N_CALLS][8 + ID_NBYTES];
static size_t n_answers[N_CALLS] = {4, 8, 1, 8 + ID_NBYTES};
static unsigned n_files_before;

static int begin(void **state)
{
    uint8_t ping[5];

    (void)state;
    script_ping(ping);
    memcpy(answers[CALL_OPEN], ping + 1, 4);
    answers[CALL_JOIN][0] = 2;
    answers[CALL_GET][0] = ID_NBYTES;
    for (size_t i = 0; i < ID_NBYTES; i++)
        answers[CALL_GET][8 + i] = (uint8_t)(i * 37 + 11);
    n_files_before = n_open_files();
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_int_equal(n_open_files(), n_files_before);
    return 0;
}

static void script_request(struct script *s, enum call call)
{
    uint8_t ping[5];

    if (call != CALL_OPEN) {
        script_hex(s, STEP_EXPECT, requests[call]);
        return;
    }
    script_ping(ping);
    script_hex(s, STEP_ONE, "00cef7853c");
    script_add(s, STEP_EXPECT, ping, sizeof ping);
}

/* Everything up to the request of `call`, answered well; its answer is the test's. */
static void script_up_to(struct script *s, enum call call, enum step_kind how)
{
    for (int i = CALL_OPEN; i <= (int)call; i++) {
        script_request(s, (enum call)i);
        if (i < (int)call)
            script_add(s, how, answers[i], n_answers[i]);
    }
}

static int make_call(struct tcpstore *s, enum call call, const struct progress *p, struct err *e)
{
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX];
    uint64_t n_joined = 0;
    size_t n = 0;
    int rc;

    if (call == CALL_JOIN) {
        rc = tcpstore_join(s, 1, &n_joined, p, e);
        assert_int_equal(n_joined, rc == 0 ? 2 : 0);
    } else if (call == CALL_WAIT) {
        rc = tcpstore_wait(s, "id", p, e);
    } else {
        rc = tcpstore_get(s, "id", value, &n, p, e);
        assert_int_equal(n, rc == 0 ? ID_NBYTES : 0);
        if (rc == 0)
            assert_memory_equal(value, answers[CALL_GET] + 8, ID_NBYTES);
    }
    return rc;
}

/* The four calls until one fails: which did, or N_CALLS. *s is NULL if the first failed. */
static enum call run(struct tcpstore **s, struct script *script, struct err *e)
{
    int call = CALL_JOIN;

    if (script_open(s, script, e) != 0)
        return CALL_OPEN;
    while (call < N_CALLS && make_call(*s, (enum call)call, &script->p, e) == 0)
        call++;
    return (enum call)call;
}

static void assert_says(const struct err *e, const char *text)
{
    if (strstr(e->msg, text) == NULL)
        fail_msg("wanted '%s': %s", text, e->msg);
}

/* After a failure the connection is good for nothing, and says so. */
static void assert_broken(struct tcpstore *s)
{
    struct progress p = {.deadline_us = clock_after_us(LONG_US)};
    struct err e = {0};

    assert_int_equal(tcpstore_wait(s, "n", &p, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_says(&e, "failed before WAIT '/n'");
}

/* Runs the script that was made for the failure of `call`. */
static void run_to_failure(struct script *script, enum call call, struct err *e)
{
    struct tcpstore *s = NULL;
    enum call failed;
    char at[64];

    script_start(script);
    failed = run(&s, script, e);
    if (failed != call)
        fail_msg("wanted %s to fail, not call %d: %s", names[call], (int)failed, e->msg);
    assert_int_equal(s == NULL, call == CALL_OPEN);
    if (s != NULL)
        assert_broken(s);
    tcpstore_close(s);
    script_end(script);
    (void)snprintf(at, sizeof at, "the trainer's store at 127.0.0.1:%u", script->port);
    assert_says(e, at);
    assert_says(e, names[call]);
    assert_int_equal(strstr(e->msg, "whether it was counted is not known") != NULL,
                     call == CALL_JOIN && e->code != ERR_BAD_REQUEST);
}

/* Every answer, cut at every byte. */

static void cut(enum call call, size_t n, enum step_kind how)
{
    struct script *script = script_new(LONG_US);
    struct err e = {0};
    char text[64];

    script_up_to(script, call, STEP_SEND);
    script_add(script, STEP_SEND, answers[call], n);
    script_add(script, how, NULL, 0);
    run_to_failure(script, call, &e);
    assert_int_equal(e.code, ERR_UNREADABLE);
    /* With a reset, bytes that were there may be lost on the way. */
    if (how == STEP_CLOSE && call != CALL_GET) {
        (void)snprintf(text, sizeof text,
                       "closed the connection while it was answering %s (%zu of %zu bytes)",
                       names[call], n, n_answers[call]);
        assert_says(&e, text);
    } else {
        assert_says(&e, "closed the connection while it was answering");
    }
    free(script);
}

static void test_answers_cut_at_every_byte(void **state)
{
    (void)state;
    for (int call = CALL_OPEN; call < N_CALLS; call++) {
        for (size_t n = 0; n < n_answers[call]; n++) {
            cut((enum call)call, n, STEP_CLOSE);
            cut((enum call)call, n, STEP_RESET);
        }
    }
}

static void test_one_byte_at_a_time(void **state)
{
    struct script *script = script_new(LONG_US);
    struct tcpstore *s = NULL;
    struct err e = {0};

    (void)state;
    script_up_to(script, CALL_GET, STEP_TRICKLE);
    script_add(script, STEP_TRICKLE, answers[CALL_GET], n_answers[CALL_GET]);
    script_start(script);
    assert_int_equal(run(&s, script, &e), N_CALLS);
    tcpstore_close(s);
    script_end(script);
    free(script);
}

/* Silence: a stop and a deadline end it. */

/* Returns how long after the stop the call ended. */
static uint64_t stop_at(enum call call, size_t n)
{
    struct script *script = script_new(LONG_US);
    struct tcpstore *s = NULL;
    struct err e = {0};
    uint64_t ended_us;

    script_up_to(script, call, STEP_SEND);
    script_add(script, STEP_SEND, answers[call], n);
    script_add(script, STEP_STOP, NULL, 0);
    script_add(script, STEP_REST, NULL, 0);
    script_start(script);
    assert_int_equal(run(&s, script, &e), call);
    ended_us = clock_now_us();
    tcpstore_close(s);
    script_end(script);
    ended_us -= script->stopped_us;
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_says(&e, "stopped while the trainer's store at 127.0.0.1:");
    free(script);
    return ended_us;
}

static void test_a_stop_ends_every_wait(void **state)
{
    (void)state;
    for (int call = CALL_OPEN; call < N_CALLS; call++) {
        for (size_t n = 0; n < n_answers[call]; n += n < 9 ? 1 : 60) {
            uint64_t best_us = UINT64_MAX;
            for (int i = 0; i < TRIES && best_us > SOON_US; i++) {
                uint64_t us = stop_at((enum call)call, n);
                best_us = us < best_us ? us : best_us;
            }
            assert_in_range(best_us, 0, SOON_US);
        }
    }
}

/* A stop or a deadline that has come before the call ends it too, but not what is there already. */
static void test_a_deadline_ends_every_wait(void **state)
{
    (void)state;
    for (int call = CALL_JOIN; call < N_CALLS; call++) {
        uint64_t best_us = UINT64_MAX;
        for (int i = 0; i < TRIES && best_us > SOON_US; i++) {
            struct script *script = script_new(LONG_US);
            struct progress p;
            struct tcpstore *s = NULL;
            struct err e = {0};
            uint64_t us;
            script_hands(script);
            script_request(script, (enum call)call);
            script_add(script, STEP_REST, NULL, 0);
            script_start(script);
            assert_int_equal(script_open(&s, script, &e), 0);
            p = (struct progress){.deadline_us = clock_after_us(SHORT_US)};
            assert_int_equal(make_call(s, (enum call)call, &p, &e), -1);
            us = clock_now_us();
            assert_true(us >= p.deadline_us);
            us -= p.deadline_us;
            best_us = us < best_us ? us : best_us;
            assert_int_equal(e.code, ERR_TIMEOUT);
            assert_says(&e, "the deadline passed while the trainer's store at 127.0.0.1:");
            assert_says(&e, names[call]);
            assert_broken(s);
            tcpstore_close(s);
            script_end(script);
            free(script);
        }
        assert_in_range(best_us, 0, SOON_US);
    }
}

static void test_a_silent_peer_ends_open_at_the_deadline(void **state)
{
    struct script *script = script_new(SHORT_US);
    struct tcpstore *s = NULL;
    struct err e = {0};

    (void)state;
    script_add(script, STEP_REST, NULL, 0);
    script_start(script);
    assert_int_equal(script_open(&s, script, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_null(s);
    script_end(script);
    free(script);
}

/* Lies. */

static void test_who_is_no_store_is_shown(void **state)
{
    static const struct {
        const char *answer, *shown;
    } rows[] = {
        {"HTTP/1.1 400 Bad Request\r\n", "answered PING with 48 54 54 50; expected what was sent"},
        {"SSH-2.0-OpenSSH_9.2\r\n", "answered PING with 53 53 48 2d;"},
        {"\xff\xff\xff\xff", "answered PING with ff ff ff ff;"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct script *script = script_new(LONG_US);
        struct err e = {0};
        script_up_to(script, CALL_OPEN, STEP_SEND);
        script_add(script, STEP_SEND, rows[i].answer, strlen(rows[i].answer));
        script_add(script, STEP_REST, NULL, 0);
        run_to_failure(script, CALL_OPEN, &e);
        assert_int_equal(e.code, ERR_UNREADABLE);
        assert_says(&e, rows[i].shown);
        free(script);
    }
}

static void test_every_byte_of_the_echo_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct script *script = script_new(LONG_US);
        uint8_t wrong[4];
        struct err e = {0};
        memcpy(wrong, answers[CALL_OPEN], 4);
        wrong[i] ^= 0x80;
        script_up_to(script, CALL_OPEN, STEP_SEND);
        script_add(script, STEP_SEND, wrong, 4);
        script_add(script, STEP_REST, NULL, 0);
        run_to_failure(script, CALL_OPEN, &e);
        assert_says(&e, "it is not torch's TCPStore");
        free(script);
    }
}

/* A banner, as of a mail server: there before anything was asked. */
static void test_who_speaks_first_is_no_store(void **state)
{
    struct script *script = script_new(LONG_US);
    struct tcpstore *s = NULL;
    struct err e = {0};

    (void)state;
    script_add(script, STEP_SEND, "220 mail ESMTP\r\n", 16);
    script_add(script, STEP_REST, NULL, 0);
    script_start(script);
    assert_int_equal(script_open(&s, script, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    script_end(script);
    free(script);
}

static void test_announced_lengths_are_bounded(void **state)
{
    static const struct {
        const char *hex, *shown;
    } rows[] = {
        {"0110000000000000", "with 4097 bytes; at most 4096 are read"},
        {"0000004000000000", "with 1073741824 bytes"},
        {"8000000001000000", "with 4294967424 bytes"}, /* 128 in its lower half */
        {"0000000000000080", "with 9223372036854775808 bytes"},
        {"80ffffffffffffff", "with 18446744073709551488 bytes"},
        {"ffffffffffffffff", "with 18446744073709551615 bytes"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct script *script = script_new(LONG_US);
        struct err e = {0};
        script_up_to(script, CALL_GET, STEP_SEND);
        script_hex(script, STEP_SEND, rows[i].hex);
        script_add(script, STEP_REST, NULL, 0);
        run_to_failure(script, CALL_GET, &e);
        assert_int_equal(e.code, ERR_UNREADABLE);
        assert_says(&e, rows[i].shown);
        free(script);
    }
}

static void test_wait_takes_no_other_byte(void **state)
{
    static const char *const rows[] = {"01", "02", "ff"};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct script *script = script_new(LONG_US);
        struct err e = {0};
        script_up_to(script, CALL_WAIT, STEP_SEND);
        script_hex(script, STEP_SEND, rows[i]);
        script_add(script, STEP_REST, NULL, 0);
        run_to_failure(script, CALL_WAIT, &e);
        assert_int_equal(e.code, ERR_UNREADABLE);
        assert_says(&e, rows[i]);
        free(script);
    }
}

static void test_join_counts_at_least_what_it_added(void **state)
{
    static const struct {
        const char *hex, *shown; /* NULL: taken */
    } rows[] = {
        {"0000000000000000", "of 3 ranks with the sum 0"},
        {"0200000000000000", "of 3 ranks with the sum 2"},
        {"ffffffffffffffff", "of 3 ranks with the sum -1"},
        {"0000000000000080", "of 3 ranks with the sum -9223372036854775808"},
        {"0300000000000000", NULL},
        {"ffffffffffffff7f", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct script *script = script_new(LONG_US);
        struct tcpstore *s = NULL;
        struct err e = {0};
        uint64_t n_joined = 0;
        int rc;
        script_hands(script);
        script_hex(script, STEP_EXPECT, "040500000000000000696e69742f0300000000000000");
        script_hex(script, STEP_SEND, rows[i].hex);
        script_start(script);
        assert_int_equal(script_open(&s, script, &e), 0);
        rc = tcpstore_join(s, 3, &n_joined, &script->p, &e);
        assert_int_equal(rc, rows[i].shown != NULL ? -1 : 0);
        assert_int_equal(n_joined >= 3, rc == 0);
        if (rc != 0) {
            assert_int_equal(e.code, ERR_UNREADABLE);
            assert_says(&e, rows[i].shown);
            assert_broken(s);
        }
        tcpstore_close(s);
        script_end(script);
        free(script);
    }
}

/* Bytes beyond an answer would be taken for the next one. */
static void test_bytes_that_nobody_asked_for(void **state)
{
    struct script *script = script_new(LONG_US);
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX], answer[9] = {2, 0, 0, 0, 0, 0, 0, 0, 0x5a};
    struct tcpstore *s = NULL;
    struct err e = {0};
    uint64_t n_joined;
    size_t n = 77;

    (void)state;
    script_up_to(script, CALL_JOIN, STEP_SEND);
    script_add(script, STEP_SEND, answer, sizeof answer);
    script_start(script);
    assert_int_equal(script_open(&s, script, &e), 0);
    assert_int_equal(tcpstore_join(s, 1, &n_joined, &script->p, &e), 0);
    assert_int_equal(tcpstore_get(s, "id", value, &n, &script->p, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_says(&e, "sent unexpected bytes, the first is 0x5a, before GET '/id'");
    assert_int_equal(n, 77);
    assert_broken(s);
    tcpstore_close(s);
    script_end(script);
    free(script);
}

/* WAIT taken back. */

static void cancel(const char *answer, enum step_kind then, int rc, bool usable)
{
    struct script *script = script_new(LONG_US);
    struct tcpstore *s = NULL;
    struct progress p;
    struct err e = {0};
    uint64_t n_joined;

    script_hands(script);
    script_request(script, CALL_WAIT);
    script_hex(script, STEP_EXPECT, "0c");
    script_hex(script, STEP_SEND, answer);
    if (usable) {
        script_request(script, CALL_JOIN);
        script_hex(script, STEP_SEND, "0100000000000000");
    }
    script_add(script, then, NULL, 0);
    script_start(script);
    assert_int_equal(script_open(&s, script, &e), 0);
    p = (struct progress){.deadline_us = clock_after_us(SHORT_US)};
    takes_back_at_leisure = usable;
    assert_int_equal(tcpstore_wait(s, "id", &p, &e), rc);
    takes_back_at_leisure = false;
    assert_int_equal(e.code, rc == 0 ? ERR_NONE : ERR_TIMEOUT);
    err_clear(&e);
    if (usable)
        assert_int_equal(tcpstore_join(s, 1, &n_joined, &script->p, &e), 0);
    else
        assert_broken(s);
    tcpstore_close(s);
    script_end(script);
    free(script);
}

static void test_a_wait_is_taken_back(void **state)
{
    (void)state;
    cancel("01", STEP_REST, -1, true);
    cancel("0001", STEP_REST, 0, true); /* the key came at the last moment */
    cancel("0000", STEP_REST, -1, false);
    cancel("02", STEP_REST, -1, false);
    cancel("00", STEP_REST, -1, false);
    cancel("00", STEP_CLOSE, -1, false);
    cancel("", STEP_REST, -1, false);
    cancel("", STEP_CLOSE, -1, false);
    cancel("", STEP_RESET, -1, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_cut_at_every_byte),
        cmocka_unit_test(test_one_byte_at_a_time),
        cmocka_unit_test(test_a_stop_ends_every_wait),
        cmocka_unit_test(test_a_deadline_ends_every_wait),
        cmocka_unit_test(test_a_silent_peer_ends_open_at_the_deadline),
        cmocka_unit_test(test_who_is_no_store_is_shown),
        cmocka_unit_test(test_every_byte_of_the_echo_counts),
        cmocka_unit_test(test_who_speaks_first_is_no_store),
        cmocka_unit_test(test_announced_lengths_are_bounded),
        cmocka_unit_test(test_wait_takes_no_other_byte),
        cmocka_unit_test(test_join_counts_at_least_what_it_added),
        cmocka_unit_test(test_bytes_that_nobody_asked_for),
        cmocka_unit_test(test_a_wait_is_taken_back),
    };
    struct CMUnitTest all[sizeof tests / sizeof tests[0]];

    memcpy(all, tests, sizeof tests);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        all[i].setup_func = begin;
        all[i].teardown_func = end;
    }
    return cmocka_run_group_tests(all, NULL, NULL);
}

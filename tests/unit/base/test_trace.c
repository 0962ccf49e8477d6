/* Which traceparents and tracestates are valid, and what is sent to upstreams. */
#include "base/net/trace.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"
#define VALID  "00-" TRACE "-" PARENT "-01"

static void test_trace_parse_refuses_malformed_traceparents(void **state)
{
    static const char *const rows[] = {
        NULL,
        "",
        "00",
        "00-" TRACE "-" PARENT,                                    /* no flags */
        "00-" TRACE "-" PARENT "-0",                               /* one digit of them */
        VALID "-",                                                 /* longer than version 00 */
        VALID "0",                                                 /* the same */
        VALID " ",                                                 /* a blank behind */
        " " VALID,                                                 /* a blank before */
        "ff-" TRACE "-" PARENT "-01",                              /* no version */
        "0x-" TRACE "-" PARENT "-01",                              /* no hex digits */
        "0-" TRACE "-" PARENT "-001",                              /* a short version */
        "00-00000000000000000000000000000000-" PARENT "-01",       /* zeros */
        "00-" TRACE "-0000000000000000-01",                        /* zeros */
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",       /* upper case */
        "00-" TRACE "-00F067AA0BA902B7-01",                        /* upper case */
        "00-" TRACE "-" PARENT "-0A",                              /* upper case */
        "00-" TRACE "-" PARENT "-x1",                              /* no hex digits */
        "00-4bf92f3577b34da6a3ce929d0e0e473g-" PARENT "-01",       /* no hex digit */
        "00_" TRACE "-" PARENT "-01",                              /* other separators */
        "00-" TRACE "_" PARENT "-01",                              /* the same */
        "00-" TRACE "-" PARENT "_01",                              /* the same */
        "00-4bf92f3577b34da6a3ce929d0e0e47360-0f067aa0ba902b7-01", /* shifted by one */
        "01-" TRACE "-" PARENT "-01.more",                         /* of a later version: no "-" */
        "01-" TRACE "-" PARENT "-010",                             /* the same */
        "01-" TRACE "-" PARENT,                                    /* too short for any version */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static const struct trace_context none;
        struct trace_context t;

        memset(&t, 'x', sizeof t);
        trace_parse(&t, rows[i], "a=1");
        if (memcmp(&t, &none, sizeof t) != 0)
            fail_msg("'%s' was accepted", rows[i]);
    }
}

static void test_trace_parse_names_its_own_span(void **state)
{
    static const struct {
        const char *in, *flags;
    } rows[] = {
        {VALID, "01"},
        {"00-" TRACE "-" PARENT "-00", "00"},
        {"00-" TRACE "-" PARENT "-ff", "01"}, /* unknown flags are not passed on */
        {"00-" TRACE "-" PARENT "-f2", "00"},
        {"01-" TRACE "-" PARENT "-01", "01"}, /* later versions: in the form of version 00 */
        {"01-" TRACE "-" PARENT "-01-", "01"},
        {"fe-" TRACE "-" PARENT "-01-what the future brings", "01"},
    };
    char last[TRACE_SPAN_ID_LEN + 1] = PARENT;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct trace_context t;
        char want[TRACE_PARENT_LEN + 1];

        trace_parse(&t, rows[i].in, NULL);
        assert_string_equal(t.trace_id, TRACE);
        assert_int_equal(strlen(t.span_id), TRACE_SPAN_ID_LEN);
        assert_string_not_equal(t.span_id, last);
        (void)snprintf(want, sizeof want, "00-" TRACE "-%.16s-%.2s", t.span_id, rows[i].flags);
        assert_string_equal(t.traceparent, want);
        assert_string_equal(t.tracestate, "");
        memcpy(last, t.span_id, sizeof last);
    }
}

static void test_trace_parse_keeps_valid_tracestates_as_they_came(void **state)
{
    static const struct {
        const char *in;
        bool valid;
    } rows[] = {
        {"congo=t61rcWkgMzE", true},
        {"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", true},
        {"fw529a3039@dt=FfAxm, 0a/b-c_d*=!~ x", true},
        {" a=1 ,\t,b=2,", true},
        {"", false},
        {" , ", false},
        {"a", false},
        {"=1", false},
        {"a=", false},
        {"A=1", false},
        {"_a=1", false},
        {"a b=1", false},
        {"a =1", false},
        {"a=1=2", false},
        {"a=1,b", false},
        {"a=\xc3\xa9", false},
        {"a=1\t2", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct trace_context t;

        trace_parse(&t, VALID, rows[i].in);
        assert_string_equal(t.trace_id, TRACE); /* a malformed tracestate is ignored alone */
        assert_string_equal(t.tracestate, rows[i].valid ? rows[i].in : "");
    }
}

/* @n  members that are alike. Returns: are they kept? */
static bool keeps(int n, int key_len, int value_len)
{
    char text[2 * TRACE_STATE_MAX], *at = text;
    struct trace_context t;

    for (int i = 0; i < n; i++)
        at += snprintf(at, sizeof text - (size_t)(at - text), "%s%0*d=%0*d", i > 0 ? "," : "",
                       key_len, 1, value_len, 1);
    trace_parse(&t, VALID, text);
    assert_true(t.tracestate[0] == '\0' || strcmp(t.tracestate, text) == 0);
    return t.tracestate[0] != '\0';
}

static void test_trace_parse_limits_tracestates(void **state)
{
    (void)state;
    assert_true(keeps(TRACE_STATE_MEMBERS_MAX, 2, 2));
    assert_false(keeps(TRACE_STATE_MEMBERS_MAX + 1, 2, 2));
    assert_true(keeps(1, TRACE_STATE_KEY_MAX, TRACE_STATE_MAX - TRACE_STATE_KEY_MAX - 1));
    assert_false(keeps(1, TRACE_STATE_KEY_MAX, TRACE_STATE_MAX - TRACE_STATE_KEY_MAX));
    assert_false(keeps(1, TRACE_STATE_KEY_MAX + 1, 1));
    assert_true(keeps(1, 1, TRACE_STATE_VALUE_MAX));
    assert_false(keeps(1, 1, TRACE_STATE_VALUE_MAX + 1));
}

static void *read_current(void *arg)
{
    *(bool *)arg = trace_current()->trace_id[0] != '\0';
    return NULL;
}

static void test_trace_enter_is_of_one_thread(void **state)
{
    struct trace_context t;
    bool other = true;
    pthread_t thread;

    (void)state;
    assert_string_equal(trace_current()->traceparent, "");
    trace_parse(&t, VALID, "a=1");
    trace_enter(&t);
    assert_memory_equal(trace_current(), &t, sizeof t);
    assert_int_equal(pthread_create(&thread, NULL, read_current, &other), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(other);
    trace_leave();
    assert_string_equal(trace_current()->trace_id, "");
    assert_string_equal(trace_current()->tracestate, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_parse_refuses_malformed_traceparents),
        cmocka_unit_test(test_trace_parse_names_its_own_span),
        cmocka_unit_test(test_trace_parse_keeps_valid_tracestates_as_they_came),
        cmocka_unit_test(test_trace_parse_limits_tracestates),
        cmocka_unit_test(test_trace_enter_is_of_one_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

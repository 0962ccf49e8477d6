/* The ring of events: order, the bound, readers that fall behind, ids of another process. */
#include "base/events.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct event ev;

static void put(const char *text)
{
    events_put("test", text, strlen(text));
}

static void put_many(unsigned n)
{
    char text[32];

    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(text, sizeof text, "{\"n\":%u}", i);
        put(text);
    }
}

static void test_before_it_is_open_nothing_is_kept(void **state)
{
    (void)state;
    put("{}");
    events_open();
    assert_false(events_next(events_last() - 1, &ev));
}

static void test_in_order(void **state)
{
    uint64_t at;

    (void)state;
    events_open();
    at = events_last();
    assert_true(events_has(at));
    put("{\"a\":1}");
    put("{\"a\":2}");
    assert_int_equal(events_last(), at + 2);
    assert_true(events_next(at, &ev));
    assert_int_equal(ev.id, at + 1);
    assert_string_equal(ev.name, "test");
    assert_int_equal(ev.len, 7);
    assert_memory_equal(ev.data, "{\"a\":1}", 7);
    assert_true(events_next(ev.id, &ev));
    assert_memory_equal(ev.data, "{\"a\":2}", 7);
    assert_false(events_next(ev.id, &ev));
}

static void test_the_oldest_is_dropped(void **state)
{
    uint64_t at;

    (void)state;
    events_open();
    at = events_last();
    put_many(EVENTS_KEPT);
    assert_true(events_has(at));
    assert_true(events_next(at, &ev));
    assert_int_equal(ev.id, at + 1);
    put_many(1);
    assert_false(events_has(at)); /* its next event is lost */
    assert_true(events_has(at + 1));
    assert_true(events_next(at, &ev));
    assert_int_equal(ev.id, at + 2);
    put_many(3 * EVENTS_KEPT);
    for (unsigned i = 0; events_next(at, &ev); i++, at = ev.id)
        assert_true(i < EVENTS_KEPT);
    assert_int_equal(at, events_last());
}

static void test_ids_of_others(void **state)
{
    uint64_t now = (uint64_t)clock_wall_s() * EVENTS_IDS_EACH_S;

    (void)state;
    events_open();
    put("{}");
    assert_false(events_has(0));
    assert_false(events_has(1));
    assert_false(events_has(now - EVENTS_IDS_EACH_S)); /* a process that was started before */
    assert_false(events_has(events_last() + 1));       /* the future */
    assert_true(events_has(events_last()));
    assert_false(events_has(UINT64_MAX));
}

static void test_long_data_is_cut(void **state)
{
    static char text[LOG_LINE_MAX + 10];

    (void)state;
    events_open();
    memset(text, 'x', sizeof text);
    events_put("test", text, sizeof text);
    assert_true(events_next(events_last() - 1, &ev));
    assert_int_equal(ev.len, LOG_LINE_MAX);
}

static void *put_later(void *arg)
{
    (void)usleep(20000);
    if (arg != NULL)
        put("{}");
    else
        events_wake();
    return NULL;
}

static void test_wait(void **state)
{
    uint64_t began_us, at;
    pthread_t t;

    (void)state;
    events_open();
    at = events_last();
    for (int with = 0; with < 2; with++) {
        assert_int_equal(pthread_create(&t, NULL, put_later, with != 0 ? &t : NULL), 0);
        began_us = clock_now_us();
        events_wait(at, clock_after_us(60 * 1000000));
        assert_true(clock_now_us() - began_us < 50 * UINT64_C(1000000));
        assert_int_equal(pthread_join(t, NULL), 0);
    }
    events_wait(at, clock_after_us(60 * 1000000)); /* there is one already */
    events_wait(events_last(), clock_after_us(1000));
}

static void test_the_log_puts_events(void **state)
{
    struct log_rec r;

    (void)state;
    events_open();
    log_begin(&r, LOG_DEBUG, "update.proven"); /* not written: the level is info */
    log_str(&r, "update_id", "upd-\"1\"");
    log_event(&r);
    assert_true(events_next(events_last() - 1, &ev));
    assert_string_equal(ev.name, "update.proven");
    ev.data[ev.len] = '\0';
    assert_non_null(
        strstr(ev.data, "\"event\":\"update.proven\",\"update_id\":\"upd-\\\"1\\\"\"}"));
    assert_null(strchr(ev.data, '\n'));
    log_line(LOG_DEBUG, "other", "no event");
    log_event_line(LOG_DEBUG, "drain", "in %d s", 3);
    assert_true(events_next(ev.id, &ev));
    assert_string_equal(ev.name, "drain");
}

enum { WRITERS = 4, EACH = 2000 };

static void *write_main(void *arg)
{
    (void)arg;
    put_many(EACH);
    return NULL;
}

static void test_many_writers(void **state)
{
    pthread_t t[WRITERS];
    uint64_t at, first;

    (void)state;
    events_open();
    first = at = events_last();
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, write_main, NULL), 0);
    while (at < first + WRITERS * EACH) {
        events_wait(at, clock_after_us(1000000));
        while (events_next(at, &ev)) {
            assert_true(ev.id > at);
            assert_memory_equal(ev.data, "{\"n\":", 5);
            at = ev.id;
        }
    }
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    assert_int_equal(events_last(), first + WRITERS * EACH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_it_is_open_nothing_is_kept),
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_the_oldest_is_dropped),
        cmocka_unit_test(test_ids_of_others),
        cmocka_unit_test(test_long_data_is_cut),
        cmocka_unit_test(test_wait),
        cmocka_unit_test(test_the_log_puts_events),
        cmocka_unit_test(test_many_writers),
    };

    return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}

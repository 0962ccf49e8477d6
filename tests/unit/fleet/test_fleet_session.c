/* What the results of the engines mean for an update of several engines. */
#include "fleet/update/fleet_session.h"

#include "fleet/members/fleet_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 3 };

/* Two letters for each part: its kind (b: in two phases, l: overwrites live weights; B, L: its
 * engine was removed), and its result for the tensors (g good, 5 refused with 500, 4 rejected
 * before any work, r restarted, u not sent, x no reply). */
struct row {
    const char *parts;
    size_t min_ready;
    bool repeats;
    enum session_verdict verdict;
    const char *after; /* of each: '.' takes part, 't' too and is torn, 'o' out, 'f' out and torn */
};

static const struct row rows[] = {
    {"bg bg bg", 3, false, VERDICT_CONTINUE, "..."},
    {"lg lg lg", 3, false, VERDICT_CONTINUE, "ttt"},
    /* no engine took it: it may be sent again */
    {"b5 b5 b5", 3, false, VERDICT_RETRY, "..."},
    {"l4 l4 l4", 3, false, VERDICT_RETRY, "..."},
    {"lu lu bu", 3, false, VERDICT_RETRY, "..."},
    /* an engine in two phases is missing, whatever the quorum */
    {"bg b5 bg", 1, false, VERDICT_ABORT, ".o."},
    {"bg bx bg", 1, false, VERDICT_ABORT, ".o."},
    {"bg bu bg", 1, false, VERDICT_ABORT, ".o."},
    {"lg lg b5", 1, false, VERDICT_ABORT, "tto"},
    /* where a repeat is harmless, it may be sent again */
    {"bg b5 bg", 1, true, VERDICT_RETRY, "..."},
    {"bg b5 lg", 1, true, VERDICT_ABORT, ".ot"},
    /* but not to one that lost the tensors before */
    {"bg br bg", 1, true, VERDICT_ABORT, ".o."},
    {"br br br", 3, false, VERDICT_ABORT, "ooo"},
    /* the others continue if they are enough */
    {"lg l5 lg", 2, false, VERDICT_CONTINUE, "tft"},
    {"lg lx lg", 2, false, VERDICT_CONTINUE, "tft"},
    {"lg lu lg", 2, false, VERDICT_CONTINUE, "tot"},
    {"lg l4 lg", 2, false, VERDICT_CONTINUE, "tot"},
    {"bg lx bg", 2, false, VERDICT_CONTINUE, ".f."},
    {"lg l5 lg", 3, false, VERDICT_ABORT, "tft"},
    {"l5 l5 l5", 1, false, VERDICT_ABORT, "fff"},
    /* a removed engine that fails stops no others, and one that does not fail helps none */
    {"bg B5 bg", 2, false, VERDICT_CONTINUE, ".o."},
    {"bg Bx bg", 2, true, VERDICT_CONTINUE, ".o."},
    {"bg Br lg", 2, false, VERDICT_CONTINUE, ".ot"},
    {"lg L5 lg", 2, false, VERDICT_CONTINUE, "tft"},
    {"l5 Lg Lg", 1, false, VERDICT_ABORT, "ftt"},
    {"bx Lg lg", 1, false, VERDICT_ABORT, "ott"},
    {"bg b5 Bx", 1, true, VERDICT_RETRY, "..o"},
};

static struct fleet_result result_of(char letter)
{
    struct fleet_result result = {.outcome = FLEET_OK, .status = 200};

    if (letter == 'g')
        return result;
    result.outcome = letter == 'u'   ? FLEET_UNSENT
                     : letter == 'x' ? FLEET_UNKNOWN
                     : letter == 'r' ? FLEET_LOST
                                     : FLEET_REFUSED;
    result.status = letter == '5' ? 500 : letter == '4' ? 404 : 0;
    (void)err_set(&result.why, ERR_UPSTREAM, "", "%c", letter);
    return result;
}

static struct fleet_session *session_of(const char *parts)
{
    struct fleet_session *s;
    struct err e = {0};

    assert_int_equal(fleet_session_new(&s, N, &e), 0);
    for (size_t i = 0; i < N; i++) {
        s->parts[i].two_phase = parts[3 * i] == 'b' || parts[3 * i] == 'B';
        s->parts[i].removed = parts[3 * i] == 'B' || parts[3 * i] == 'L';
    }
    return s;
}

static char letter_of(const struct fleet_part *p)
{
    return (p->out ? "of?" : ".t+")[p->weights];
}

static void test_fleet_session_apply_results_by_the_rules(void **state)
{
    static const size_t all[N] = {0, 1, 2};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fleet_session *s = session_of(rows[i].parts);
        struct fleet_result results[N];
        char after[N + 1] = "";

        for (size_t k = 0; k < N; k++) {
            results[k] = result_of(rows[i].parts[3 * k + 1]);
            part_send(&s->parts[k]);
        }
        assert_int_equal(fleet_session_apply_results(s, &(struct fleet_results){results, N}, all,
                                                     rows[i].min_ready, rows[i].repeats),
                         rows[i].verdict);
        for (size_t k = 0; k < N; k++)
            after[k] = letter_of(&s->parts[k]);
        assert_string_equal(after, rows[i].after);
        fleet_session_unref(s);
    }
}

/* A part that had tensors before stays torn, also when the next request is not sent. */
static void test_fleet_session_apply_results_keeps_a_torn_part(void **state)
{
    static const size_t first[1] = {0};
    struct fleet_session *s = session_of("lu lu lu");
    struct fleet_result result = result_of('u');

    (void)state;
    s->parts[0].weights = PART_TORN;
    part_send(&s->parts[0]);
    assert_int_equal(
        fleet_session_apply_results(s, &(struct fleet_results){&result, 1}, first, 3, false),
        VERDICT_RETRY);
    assert_int_equal(s->parts[0].weights, PART_TORN);
    assert_false(s->parts[0].out);
    fleet_session_unref(s);
}

static void test_fleet_session_has_quorum(void **state)
{
    struct fleet_session *s = session_of("b. l. l.");
    struct err why = {0};

    (void)state;
    (void)err_set(&why, ERR_UPSTREAM, "", "gone");
    assert_true(fleet_session_has_quorum(s, 3));
    assert_true(fleet_session_overwrites(s));
    part_drop(&s->parts[1], FLEET_UNKNOWN, 0, &why);
    assert_false(fleet_session_has_quorum(s, 3));
    assert_true(fleet_session_has_quorum(s, 2));
    part_drop(&s->parts[0], FLEET_UNKNOWN, 0, &why);
    assert_false(fleet_session_has_quorum(s, 1));
    assert_false(fleet_session_has_part(s, true));
    assert_true(fleet_session_has_part(s, false));
    fleet_session_unref(s);
}

static void test_fleet_session_counts_no_removed_engine(void **state)
{
    struct fleet_session *s = session_of("B. L. l.");
    struct err why = {0}, e = {0};

    (void)state;
    (void)err_set(&why, ERR_CHECKSUM, "", "refused");
    assert_false(fleet_session_has_quorum(s, 2));
    part_drop(&s->parts[0], FLEET_REFUSED, 422, &why);
    assert_true(fleet_session_has_quorum(s, 1));
    part_drop(&s->parts[2], FLEET_UNKNOWN, 0, &e);
    assert_false(fleet_session_has_quorum(s, 1));
    fleet_session_cause_error(s, 1, &e);
    assert_int_equal(e.code, ERR_UNSYNCED); /* not what the removed one said */
    assert_non_null(strstr(e.msg, "take part: 0"));
    fleet_session_unref(s);
}

/* A refusal has a reason; a missing reply has none. */
static void test_fleet_session_cause_error_prefers_a_refusal(void **state)
{
    struct fleet_session *s = session_of("b. b. b.");
    struct err silent = {0}, refused = {0}, lost = {0}, e = {0};

    (void)state;
    fleet_session_cause_error(s, 4, &e);
    assert_int_equal(e.code, ERR_UNSYNCED);
    err_clear(&e);
    (void)err_set(&silent, ERR_UPSTREAM_TIMEOUT, "", "silent");
    (void)err_set(&refused, ERR_CHECKSUM, "/checksums/0", "refused");
    (void)err_set(&lost, ERR_NOT_FOUND, "", "there is no update");
    part_drop(&s->parts[0], FLEET_UNKNOWN, 0, &silent);
    fleet_session_cause_error(s, 3, &e);
    assert_int_equal(e.code, ERR_UPSTREAM_TIMEOUT);
    err_clear(&e);
    part_drop(&s->parts[1], FLEET_REFUSED, 422, &refused);
    fleet_session_cause_error(s, 3, &e);
    assert_int_equal(e.code, ERR_CHECKSUM);
    assert_string_equal(e.field, "/checksums/0");
    err_clear(&e);
    s->parts[1].why = lost; /* of the engine's own update, not of the client's */
    fleet_session_cause_error(s, 3, &e);
    assert_int_equal(e.code, ERR_UPSTREAM);
    fleet_session_unref(s);
}

/* What uses a session may send requests to its engines; what only shows it does not keep them. */
static void test_fleet_session_that_ended_lets_its_engines_go(void **state)
{
    struct fleet_session *s = session_of("l. l. l.");
    struct upstream *u = upstream_new(NULL);

    (void)state;
    assert_non_null(u);
    s->parts[0].upstream = u;
    upstream_loosen(upstream_ref(u)); /* as a list has it */
    s->n_refs = 3;
    fleet_session_unref(s);
    fleet_session_unref(s);
    assert_ptr_equal(s->parts[0].upstream, u);
    s->n_refs = 3;
    s->phase = UPDATE_ABORTED;
    s->listed = true;
    fleet_session_unref(s);
    assert_false(upstream_is_idle(u));
    s->n_refs = 3;
    s->listed = false; /* the list is full of others: those that use it still need its engines */
    fleet_session_unref(s);
    fleet_session_unref(s);
    assert_ptr_equal(s->parts[0].upstream, u);
    s->n_refs = 2;
    s->listed = true;
    fleet_session_unref(s);
    assert_null(s->parts[0].upstream);
    assert_true(upstream_is_idle(u));
    fleet_session_unref(s);
    upstream_unref_loose(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fleet_session_apply_results_by_the_rules),
        cmocka_unit_test(test_fleet_session_apply_results_keeps_a_torn_part),
        cmocka_unit_test(test_fleet_session_has_quorum),
        cmocka_unit_test(test_fleet_session_counts_no_removed_engine),
        cmocka_unit_test(test_fleet_session_cause_error_prefers_a_refusal),
        cmocka_unit_test(test_fleet_session_that_ended_lets_its_engines_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

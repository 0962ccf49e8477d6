/* The verdict on engines whose answers are numbers on a line: two agree if they are within 1. */
#include "fleet/members/fleet.h"
#include "fleet/proof/fleet_proof_priv.h"
#include "fleet/proof/proof_verdict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const double tolerance = 1.0;

/* Negative ones cannot be compared with the others. */
static double distance(const void *arg, size_t a, size_t b)
{
    const double *at = arg;

    assert_int_not_equal(a, b);
    return (at[a] < 0) != (at[b] < 0) ? -1 : fabs(at[a] - at[b]);
}

/* "v": the value at its place; "p" pending; "n" none; "b" not finite. */
static const enum api_answer answer_of[128] = {['v'] = API_ANSWER_VALUE,
                                               ['p'] = API_ANSWER_PENDING,
                                               ['n'] = API_ANSWER_NO_VALUE,
                                               ['b'] = API_ANSWER_NOT_FINITE};

/* "P" proven, "u" unproven, "?" unknown, "N" not finite; "d" differs, "D" and is faulty. */
static char letter_of(const struct proof_verdict *v)
{
    static const char letters[PROOF_STATES] = {[PROOF_UNPROVEN] = 'u',
                                               [PROOF_PROVEN] = 'P',
                                               [PROOF_NOT_FINITE] = 'N',
                                               [PROOF_DIFFERS] = 'd',
                                               [PROOF_UNKNOWN] = '?'};

    if (v->state == PROOF_NOT_FINITE)
        assert_true(v->faulty);
    return v->state == PROOF_DIFFERS && v->faulty ? 'D' : letters[v->state];
}

static const struct row {
    const char *answers;
    double at[6];
    const char *verdicts;
} rows[] = {
    {"", {0}, ""},
    {"v", {5}, "P"}, /* alone: it is finite */
    {"b", {5}, "N"},
    {"n", {5}, "?"},
    {"p", {5}, "u"},
    {"vp", {5}, "uu"}, /* the other may still differ */
    {"vn", {5}, "P?"},
    {"vb", {5}, "PN"}, /* what is not finite has no say */
    {"vv", {5, 5.9}, "PP"},
    {"vv", {5, 6.0}, "PP"},
    {"vv", {5, 6.1}, "dd"}, /* a tie: nobody knows which */
    {"vvv", {5, 5, 9}, "PPD"},
    {"vvv", {5, 7, 9}, "ddd"},
    {"vvv", {5, 6, 7}, "PPP"}, /* seen from the middle */
    {"vvvv", {5, 5, 9, 9}, "dddd"},
    {"vvvv", {5, 5, 5, 9}, "PPPD"},
    {"vvvvv", {5, 5, 9, 9, 9}, "DDPPP"},
    {"vvvvv", {5, 5, 7, 9, 9}, "ddddd"}, /* two of five */
    {"vvp", {5, 9}, "uuu"},
    {"vvp", {5, 5}, "PPu"},      /* whatever the third says */
    {"vvvp", {5, 5, 9}, "uuuu"}, /* the fourth may make it a tie */
    {"vvvpp", {5, 5, 5}, "PPPuu"},
    {"vvvvp", {5, 5, 5, 9}, "PPPDu"},
    {"vvvvpp", {5, 5, 5, 9}, "uuuuuu"},
    {"vvvn", {5, 5, 9}, "PPD?"},
    {"vvb", {5, 9}, "ddN"},
    {"vvv", {-5, -5, 5}, "PPP"}, /* other parameters: proven by nothing but itself */
    {"vvvv", {-5, -9, 5, 5}, "ddPP"},
    {"vvvvv", {-5, -5, -9, 5, 9}, "PPDdd"},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        enum api_answer answers[6];
        struct proof_verdict out[6];
        char found[7] = "";
        size_t n = strlen(rows[r].answers);

        for (size_t i = 0; i < n; i++)
            answers[i] = answer_of[(int)rows[r].answers[i]];
        proof_judge(answers, n, tolerance, distance, rows[r].at, out);
        for (size_t i = 0; i < n; i++)
            found[i] = letter_of(&out[i]);
        if (strcmp(found, rows[r].verdicts) != 0)
            print_message("row %zu: %s\n", r, rows[r].answers);
        assert_string_equal(found, rows[r].verdicts);
    }
}

/* However many engines: a faulty one has a majority of at least two against it, and the order of
 * the engines does not matter. */
static void test_random(void **state)
{
    unsigned seed = 1;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        enum api_answer answers[12], turned[12];
        struct proof_verdict out[12], back[12];
        double at[12], turned_at[12];
        size_t n, n_value = 0, n_pending = 0;

        seed = seed * 1103515245 + 12345;
        n = 1 + seed / 65536 % 12;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1103515245 + 12345;
            answers[i] = (seed / 65536 % 6) == 0 ? API_ANSWER_PENDING : API_ANSWER_VALUE;
            seed = seed * 1103515245 + 12345;
            at[i] = 10.0 * (seed / 65536 % 3);
            turned[n - 1 - i] = answers[i];
            turned_at[n - 1 - i] = at[i];
            n_value += answers[i] == API_ANSWER_VALUE;
            n_pending += answers[i] == API_ANSWER_PENDING;
        }
        proof_judge(answers, n, tolerance, distance, at, out);
        proof_judge(turned, n, tolerance, distance, turned_at, back);
        for (size_t i = 0; i < n; i++) {
            size_t n_others = 0;

            assert_int_equal(out[i].state, back[n - 1 - i].state);
            assert_int_equal(out[i].faulty, back[n - 1 - i].faulty);
            for (size_t k = 0; k < n && out[i].faulty; k++)
                n_others += answers[k] == API_ANSWER_VALUE && fabs(at[k] - at[i]) > tolerance &&
                            out[k].state == PROOF_PROVEN;
            assert_true(!out[i].faulty || (n_others >= 2 && 2 * n_others > n_value + n_pending));
        }
    }
}

static void test_many(void **state)
{
    static enum api_answer answers[FLEET_MAX];
    static struct proof_verdict out[FLEET_MAX];
    static double at[FLEET_MAX];

    (void)state;
    for (size_t i = 0; i < FLEET_MAX; i++) {
        answers[i] = API_ANSWER_VALUE;
        at[i] = i == 7 ? 50 : 5;
    }
    proof_judge(answers, FLEET_MAX, tolerance, distance, at, out);
    for (size_t i = 0; i < FLEET_MAX; i++)
        assert_int_equal(letter_of(&out[i]), i == 7 ? 'D' : 'P');
    assert_true(out[7].distance > 44 && out[7].n_others == FLEET_MAX - 1);
}

static void test_distances(void **state)
{
    double a[API_CANARY_VALUES] = {-1, -2, -3}, b[API_CANARY_VALUES] = {-1, -2.5, -2.75};

    (void)state;
    assert_true(proof_distance_of_values(a, a) == 0);
    assert_true(fabs(proof_distance_of_values(a, b) - 0.5) < 1e-12);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_distances),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

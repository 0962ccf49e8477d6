/* Whether an update brought the whole model, from the names in its requests. */
#include "fleet/calls/fleet_priv.h"

#include "fleet/members/fleet_priv.h"
#include "fleet/update/fleet_update_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct world {
    struct fleet_control *fc;
    struct fleet_session *s; /* the open one */
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    w->fc = calloc(1, sizeof *w->fc);
    assert_non_null(w->fc);
    mtx_init(&w->fc->lock, MTX_UPDATES);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    fleet_session_unref(w->s);
    fleet_spec_unref(w->fc->spec);
    mtx_fini(&w->fc->lock);
    free(w->fc);
    free(w);
    return 0;
}

/* A letter for each upstream: b(aton), v(LLM), s(GLang). */
static void begin(struct world *w, const char *kinds, bool partial)
{
    struct err e = {0};

    fleet_session_unref(w->s);
    assert_int_equal(fleet_session_new(&w->s, strlen(kinds), &e), 0);
    for (size_t i = 0; kinds[i] != '\0'; i++) {
        w->s->parts[i].two_phase = kinds[i] == 'b';
        w->s->parts[i].no_process_id = kinds[i] == 's';
    }
    w->s->partial = partial;
    assert_int_equal(fleet_coverage_start(w->fc, w->s, &e), 0);
}

/* Tensors of shape [4]; a letter for each name. */
static struct tensor_list *list_of(const char *names, uint64_t dim)
{
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (; *names != '\0'; names++) {
        const char name[] = {*names, '\0'};

        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_F32, &dim, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    return list;
}

/* Refused before it is sent: -1. */
static int send_tensors(struct world *w, const struct api_tensors *tensors, struct err *e)
{
    const struct fleet_tensors t = {.args = {.tensors = tensors}};
    struct fleet_names list;
    int rc = fleet_names_read(&list, w->fc, w->s, &t, e);

    if (rc == 0)
        rc = fleet_coverage_check(w->fc, w->s, &list, e);
    if (rc == 0)
        fleet_coverage_add(w->fc, w->s, &list);
    fleet_names_fini(&list);
    return rc;
}

/* Steals list. */
static int send_list(struct world *w, struct tensor_list *list, struct err *e)
{
    int rc = send_tensors(w, &(struct api_tensors){.list = list}, e);

    tensor_list_unref(list);
    return rc;
}

static int send_path(struct world *w, struct err *e)
{
    return send_tensors(w, &(struct api_tensors){.by_path = true}, e);
}

static void came(struct world *w, const char *names)
{
    struct err e = {0};

    assert_int_equal(send_list(w, list_of(names, 4), &e), 0);
}

static void ends(struct world *w, const char *word)
{
    struct err e = {0};

    assert_int_equal(fleet_coverage_verify(w->fc, w->s, &e), 0);
    fleet_coverage_commit(w->fc, w->s);
    assert_string_equal(fleet_coverage_name(w->s), word);
    assert_string_equal(fleet_last_coverage(w->fc), word);
}

static void is_refused(struct world *w, const char *names)
{
    struct err e = {0};

    assert_int_equal(fleet_coverage_verify(w->fc, w->s, &e), -1);
    assert_int_equal(e.code, ERR_INCOMPLETE);
    assert_non_null(strstr(e.msg, names));
}

static size_t spec_size(struct world *w)
{
    const char *from;
    uint32_t n = 0;

    (void)fleet_spec_get(w->fc, &from, &n);
    return n;
}

static void give(struct world *w, const char *names, uint64_t dim)
{
    struct tensor_list_builder *b;
    struct model_spec *m;
    struct tensor_list *tensor_list;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (; *names != '\0'; names++) {
        char name[2] = {*names, '\0'};

        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_BF16, &dim, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &tensor_list, &e), 0);
    assert_int_equal(model_spec_new(&m, tensor_list, NULL, 0, &e), 0);
    assert_int_equal(fleet_spec_set(w->fc, m, "--model", &e), 0);
}

static void test_fleet_coverage_learns_the_spec(void **state)
{
    struct world *w = *state;

    assert_null(fleet_last_coverage(w->fc));
    begin(w, "vs", false);
    came(w, "ab");
    came(w, "c");
    assert_string_equal(fleet_coverage_name(w->s), "unknown");
    ends(w, "unknown");
    assert_int_equal(spec_size(w), 3);
    begin(w, "vs", false);
    came(w, "ac");
    assert_string_equal(fleet_coverage_name(w->s), "incomplete");
    is_refused(w, "1 of the 3 tensors of the last whole update are missing: 'b'");
    begin(w, "vs", false);
    came(w, "cbad");
    ends(w, "as_before");
    assert_int_equal(spec_size(w), 4);
    begin(w, "vs", false);
    came(w, "z");
    is_refused(w, "'c', 'b', 'a' and 1 more");
}

static void test_fleet_coverage_of_a_given_spec(void **state)
{
    struct world *w = *state;
    struct err e = {0};

    give(w, "abcde", 4);
    begin(w, "v", false);
    came(w, "a");
    is_refused(w, "4 of the 5 tensors of --model are missing: 'b', 'c', 'd' and 1 more");
    begin(w, "v", false);
    came(w, "edcbaz");
    ends(w, "whole");
    assert_int_equal(spec_size(w), 5); /* given, and not learned */
    begin(w, "v", false);
    assert_int_equal(send_list(w, list_of("b", 5), &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
}

static void test_fleet_coverage_of_a_repeated_name(void **state)
{
    struct world *w = *state;
    struct err e = {0};

    begin(w, "s", false);
    came(w, "ab");
    came(w, "b");
    ends(w, "unknown");
    begin(w, "sv", false);
    came(w, "ab");
    assert_int_equal(send_list(w, list_of("cb", 4), &e), -1);
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_string_equal(e.field, "/names/1");
    w->s->parts[1].out = true;
    came(w, "cb");
    ends(w, "as_before");
}

static void test_fleet_coverage_of_a_partial_update(void **state)
{
    struct world *w = *state;
    struct err e = {0};

    begin(w, "s", true);
    assert_int_equal(fleet_coverage_verify(w->fc, w->s, &e), -1); /* no tensor */
    assert_int_equal(e.code, ERR_INCOMPLETE);
    came(w, "a");
    ends(w, "partial");
    assert_null(w->fc->spec); /* nothing to learn of */
}

static void test_fleet_coverage_without_names(void **state)
{
    static const char *const strings[] = {"not a pickle", NULL};
    struct world *w = *state;
    struct err e = {0};

    begin(w, "s", false);
    came(w, "ab");
    ends(w, "unknown");
    begin(w, "s", false);
    assert_int_equal(send_path(w, &e), 0);
    came(w, "a");
    ends(w, "unknown");
    assert_int_equal(spec_size(w), 2);
    begin(w, "s", false);
    assert_int_equal(
        send_tensors(
            w, &(struct api_tensors){.serialized = true, .entries = strings, .n_entries = 2}, &e),
        0);
    assert_int_equal(send_tensors(w, &(struct api_tensors){.serialized = true}, &e), 0);
    ends(w, "unknown");
}

/* A broadcast without names is nothing at a vLLM of 0.33, and success there. */
static void test_fleet_coverage_needs_names(void **state)
{
    struct fleet_tensors no_list = {.args = {.tensors = &(struct api_tensors){.group = "g"}}};
    struct fleet_names names;
    struct world *w = *state;
    struct err e = {0};

    begin(w, "v", false);
    assert_int_equal(send_tensors(w, &(struct api_tensors){.group = "g"}, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/names");
    err_clear(&e);
    assert_int_equal(send_tensors(w, &(struct api_tensors){.by_handles = true}, &e), -1);
    err_clear(&e);
    (void)err_set(&no_list.list_error, ERR_BAD_REQUEST, "/dtypes/1", "not a dtype");
    assert_int_equal(fleet_names_read(&names, w->fc, w->s, &no_list, &e), -1);
    assert_string_equal(e.field, "/dtypes/1");
    assert_int_equal(fleet_coverage_verify(w->fc, w->s, &(struct err){0}), -1); /* nothing came */
}

/* What a configured spec cannot be compared with is refused, before it is sent. */
static void test_fleet_coverage_unseen_beside_a_spec(void **state)
{
    struct world *w = *state;
    struct err e = {0};

    give(w, "ab", 4);
    for (int partial = 0; partial < 2; partial++) {
        err_clear(&e);
        begin(w, "s", partial != 0);
        assert_int_equal(send_path(w, &e), -1);
        assert_int_equal(e.code, ERR_INCOMPLETE);
        assert_non_null(strstr(e.msg, "--allow-unseen-tensors"));
    }
    err_clear(&e);
    w->fc->cfg.allow_unseen = true;
    begin(w, "s", false);
    assert_int_equal(send_path(w, &e), 0);
    ends(w, "unknown");
}

static void reports(struct world *w, const char *text)
{
    api_object_unref(w->s->report);
    w->s->report = api_object_parse(text, strlen(text));
    assert_non_null(w->s->report);
}

/* Batons verify on their own, and the coverage is what they report. */
static void test_fleet_coverage_beside_batons(void **state)
{
    struct world *w = *state;

    begin(w, "bb", false);
    came(w, "a");
    assert_null(w->s->report);
    ends(w, "unknown");                                       /* no report is not a whole one */
    reports(w, "{\"n_missing\":0,\"coverage\":\"unknown\"}"); /* a front's */
    ends(w, "unknown");
    reports(w, "{\"n_missing\":0}");
    ends(w, "whole");
    assert_null(w->fc->spec);
    begin(w, "bv", false);
    came(w, "ab");
    assert_null(w->s->report);
    reports(w, "{\"n_missing\":2}");
    assert_string_equal(fleet_coverage_name(w->s), "incomplete");
    reports(w, "{\"n_missing\":0}");
    ends(w, "whole");
    assert_int_equal(spec_size(w), 2); /* learned, for an update with the vLLM alone */
}

/* The replies of the parts to one request. */
static void reported(struct world *w, const char *const *texts, const char *word)
{
    struct fleet_result results[4] = {{0}};

    for (size_t i = 0; i < w->s->n_parts; i++) {
        if (w->s->parts[i].upstream == NULL)
            assert_non_null(w->s->parts[i].upstream = upstream_new(NULL));
        results[i] = (struct fleet_result){.upstream = w->s->parts[i].upstream,
                                           .outcome = FLEET_OK,
                                           .text = (char *)(uintptr_t)texts[i],
                                           .text_len = strlen(texts[i])};
    }
    fleet_session_set_report(w->s, &(struct fleet_results){results, w->s->n_parts});
    assert_string_equal(fleet_coverage_name(w->s), word);
}

/* Of fronts too, which may know less than an engine: the weakest word is the fleet's. */
static void test_fleet_coverage_of_several_reports(void **state)
{
    static const char whole[] = "{\"coverage\": \"whole\", \"n_missing\": 0}",
                      as_before[] = "{\"coverage\": \"as_before\", \"n_missing\": 0}",
                      unknown[] = "{\"coverage\": \"unknown\", \"n_missing\": 0}",
                      incomplete[] = "{\"coverage\": \"incomplete\", \"n_missing\": 1}",
                      partial[] = "{\"coverage\": \"partial\", \"n_missing\": 1}",
                      other[] = "{\"message\": \"Weights updated\"}";
    struct world *w = *state;
    int64_t n_missing;

    begin(w, "bbb", false);
    reported(w, (const char *[]){whole, whole, whole}, "whole");
    reported(w, (const char *[]){whole, as_before, whole}, "as_before");
    ends(w, "as_before");
    reported(w, (const char *[]){whole, as_before, unknown}, "unknown");
    reported(w, (const char *[]){unknown, incomplete, whole}, "incomplete");
    assert_true(api_report_missing(w->s->report, &n_missing));
    assert_int_equal(n_missing, 1);
    reported(w, (const char *[]){whole, as_before, partial}, "partial");
    begin(w, "vbb", false);
    reported(w, (const char *[]){other, whole, as_before}, "as_before");
}

static void test_fleet_coverage_of_refused_tensors(void **state)
{
    struct world *w = *state;
    struct err why = {0}, e = {0};
    struct fleet_names l = {.seen = true, .tensor_list = list_of("bc", 4)};

    (void)err_set(&why, ERR_CONFLICT, "", "not now");
    begin(w, "s", false);
    came(w, "a");
    fleet_coverage_refuse(w->fc, w->s, &l, &why);
    came(w, "b");
    is_refused(w, "'c'; the last error: not now");
    assert_true(fleet_update_was_refused(w->fc, w->s, &e)); /* an abort names it */
    err_clear(&e);
    came(w, "c");
    assert_false(fleet_update_was_refused(w->fc, w->s, &e));
    ends(w, "unknown");
    begin(w, "s", false); /* in another one, of which abc is known now */
    came(w, "abc");
    fleet_coverage_refuse(w->fc, w->s, &(struct fleet_names){0}, &why);
    ends(w, "as_before");
    begin(w, "s", true);
    came(w, "a");
    fleet_coverage_refuse(w->fc, w->s, &(struct fleet_names){0}, &why);
    is_refused(w, "(not now)");
    came(w, "b");
    ends(w, "partial");
    fleet_names_fini(&l);
}

/* Those in front of engines know no names, and never heard of what was refused here. */
static void test_fleet_coverage_of_refused_tensors_for_batons(void **state)
{
    static const char *const known[] = {"{\"n_missing\": 0}", "{\"coverage\": \"unknown\"}"};
    struct world *w = *state;
    struct err why = {0}, e = {0};
    struct fleet_names l = {0}, late = {0};
    const struct fleet_tensors path = {.args = {.tensors = &(struct api_tensors){.by_path = true}}};

    (void)err_set(&why, ERR_BAD_REQUEST, "/zz", "no such member");
    begin(w, "b", false);
    fleet_names_of_refused(&l, (const char *[]){"b", "c", "b"}, 3);
    assert_int_equal(l.tensor_list->n_tensors, 2);
    fleet_coverage_refuse(w->fc, w->s, &l, &why);
    came(w, "ab");
    reported(w, &known[1], "unknown");
    is_refused(w, "'c'; the last error: no such member");
    reported(w, &known[0], "whole"); /* its engine is its own */
    ends(w, "whole");
    reported(w, &known[1], "unknown");
    came(w, "c");
    ends(w, "unknown");
    begin(w, "b", false); /* of unknown names: what had begun before is not that one again */
    assert_int_equal(fleet_names_read(&late, w->fc, w->s, &path, &e), 0);
    fleet_coverage_refuse(w->fc, w->s, &(struct fleet_names){0}, &why);
    fleet_coverage_add(w->fc, w->s, &late);
    is_refused(w, "(no such member)");
    assert_int_equal(send_path(w, &e), 0);
    ends(w, "unknown");
    fleet_names_fini(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fleet_coverage_learns_the_spec, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_of_a_given_spec, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_of_a_repeated_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_of_a_partial_update, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_without_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_needs_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_unseen_beside_a_spec, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_beside_batons, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_of_several_reports, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_of_refused_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_coverage_of_refused_tensors_for_batons, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How a tensor list lands: where each tensor comes to lie, and what of it lies in one piece. */
#include "weights/update/update_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A model of odd lengths in dtypes of one to four bytes, one tensor without any, and what comes
 * under other names. */
enum { N_OWN = 12, N_NAMES = N_OWN + 3, N_ROUNDS = 2000, FUSED = N_OWN, TIED, IGNORED };
static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_BF16, DTYPE_F32};

struct sent {
    char name[24];
    enum dtype dtype;
    uint64_t numel;
};

static struct sent names[N_NAMES];

static struct tensor_list *tensor_list_of(const struct sent *sent, size_t n)
{
    struct tensor_list_builder *b;
    struct tensor_list *p;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tensor_list_builder_add(b, sent[i].name, sent[i].dtype, &sent[i].numel, 1,
                                                 UINT64_MAX, &e),
                         0);
    assert_int_equal(tensor_list_builder_finish(b, &p, &e), 0);
    return p;
}

/* What `own` tensors are called and hold, and the three other names. */
static void name_all(void)
{
    for (size_t i = 0; i < N_OWN; i++) {
        (void)snprintf(names[i].name, sizeof names[i].name, "own.%zu", i);
        names[i].dtype = dtypes[(size_t)rand() % 3];
        names[i].numel = i == 5 ? 0 : (uint64_t)rand() % 9 + 1;
    }
    names[1].dtype = names[0].dtype; /* halves of one */
    names[FUSED] = (struct sent){"fused", names[0].dtype, names[0].numel + names[1].numel};
    names[TIED] = (struct sent){"tied", names[2].dtype, names[2].numel};
    names[IGNORED] = (struct sent){"ignored", names[3].dtype, names[3].numel};
}

static struct model_spec *model_spec_of_model(void)
{
    static const char *const halves[] = {"own.0", "own.1", NULL}, *const two[] = {"own.2", NULL},
                             *const none[] = {NULL};
    const struct alias_spec aliases[] = {
        {.name = "fused",
         .kind = ALIAS_FUSED,
         .targets = halves,
         .ndim = 1,
         .shape = {names[FUSED].numel}},
        {.name = "tied", .kind = ALIAS_TIED, .targets = two},
        {.name = "ignored", .kind = ALIAS_IGNORED, .targets = none},
    };
    struct model_spec *m;
    struct err e = {0};

    assert_int_equal(model_spec_new(&m, tensor_list_of(names, N_OWN), aliases, 3, &e), 0);
    return m;
}

/* Some of the names, in any order, some in another dtype. */
static struct tensor_list *any_tensor_list(void)
{
    struct sent sent[N_NAMES];
    size_t n = 0;

    for (size_t i = 0; i < N_NAMES; i++) {
        size_t at = (size_t)rand() % (n + 1);

        if (rand() % 4 == 0)
            continue;
        sent[n++] = sent[at];
        sent[at] = names[i];
        if (rand() % 8 == 0 && names[i].dtype == DTYPE_BF16 && i < N_OWN)
            sent[at].dtype = DTYPE_F32;
    }
    return n > 0 ? tensor_list_of(sent, n) : tensor_list_of(names, 1);
}

static uint64_t kept_of(const struct layout *l, const struct model_spec *m, uint32_t i)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&l->parts[i].match, &n);
    uint64_t nbytes = 0;

    for (uint32_t k = 0; k < n; k++)
        nbytes += m->tensor_list->tensors[targets[k]].nbytes;
    return nbytes;
}

/* One after the other, aligned, none over another; and every target of every part. */
static void check_dst_slots(const struct layout *l, const struct model_spec *m,
                            const struct tensor_list *p)
{
    uint64_t end = 0;
    size_t at = 0;

    for (uint32_t i = 0; i < p->n_tensors; i++) {
        uint64_t offset = l->parts[i].offset;
        uint32_t n;
        const uint32_t *targets = match_targets(&l->parts[i].match, &n);

        for (uint32_t k = 0; k < n; k++, at++) {
            const struct tensor_spec *t = &m->tensor_list->tensors[targets[k]];

            assert_in_range(at, 0, l->n_dst_slots - 1);
            assert_int_equal(l->dst_slots[at].index, targets[k]);
            assert_int_equal(l->dst_slots[at].part, i);
            assert_int_equal(l->dst_slots[at].offset, offset);
            assert_int_equal(offset % dtype_nbytes(t->dtype), 0);
            assert_true(offset >= end);
            end = offset += t->nbytes;
        }
    }
    assert_int_equal(at, l->n_dst_slots);
    assert_true(end <= l->nbytes_kept);
}

/* As they come means: no part is converted, and each begins where the one before it ends. */
static bool is_in_one(const struct layout *l, const struct model_spec *m, uint32_t first,
                      uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        if (l->parts[i].how != PART_DIRECT)
            return false;
        if (i > first && l->parts[i].offset != l->parts[i - 1].offset + kept_of(l, m, i - 1))
            return false;
    }
    return true;
}

static void test_layout_of_any_tensor_list(void **state)
{
    unsigned n_in_one = 0, n_not = 0;

    (void)state;
    srand(7);
    for (int round = 0; round < N_ROUNDS; round++) {
        struct model_spec *m;
        struct layout *l;
        struct tensor_list *p;
        struct err e = {0};

        name_all();
        m = model_spec_of_model();
        p = any_tensor_list();
        assert_int_equal(layout_make(&l, m, p, true, &e), 0);
        check_dst_slots(l, m, p);
        for (uint32_t first = 0; first < p->n_tensors; first++)
            for (uint32_t n = 1; n <= p->n_tensors - first; n++) {
                bool is = is_in_one(l, m, first, n);

                assert_int_equal(layout_in_one(l, first, n), is);
                n_in_one += is;
                n_not += !is;
            }
        layout_unref(l);
        tensor_list_unref(p);
        model_spec_free(m);
    }
    assert_true(n_in_one > N_ROUNDS && n_not > N_ROUNDS);
}

static void test_layout_of_nothing_kept(void **state)
{
    struct model_spec *m;
    struct layout *l;
    struct tensor_list *p;
    struct err e = {0};

    (void)state;
    name_all();
    m = model_spec_of_model();
    p = tensor_list_of(&names[TIED], 2);
    assert_int_equal(layout_make(&l, m, p, false, &e), 0);
    assert_int_equal(l->n_dst_slots, 0);
    assert_true(l->ties);
    assert_false(layout_in_one(l, 0, 1));
    assert_false(layout_in_one(l, 0, 2));
    layout_unref(l);
    tensor_list_unref(p);
    model_spec_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_of_any_tensor_list),
        cmocka_unit_test(test_layout_of_nothing_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Plans of shards: tensors are cut at random into boxes or flat ranges, and read in windows of any
 * size; what is left out, or given twice, is refused by name. */
#include "transport/nixl/nixl_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TENSORS = 4, SHARDS_MAX = 64, MEMORY_NBYTES = 1 << 20, N_ROUNDS = 300 };

static uint32_t seed;

static uint32_t draw(uint32_t below)
{
    seed = seed * 1664525 + 1013904223;
    return (uint32_t)(((uint64_t)seed * below) >> 32);
}

/* Tensors at random, and the memory of two agents in which their shards are. */
struct world {
    struct tensor_list *list;
    uint8_t *packed; /* the bytes of all tensors */
    uint8_t memory[2][MEMORY_NBYTES];
    uint64_t used[2];
    struct nixl_shard shards[N_TENSORS * SHARDS_MAX];
    uint32_t n;
    uint64_t came;
    uint8_t *dst;
    uint8_t *seen; /* how often each byte has come */
};

static struct tensor_list *random_list(void)
{
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_BF16, DTYPE_F32};
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        uint64_t shape[4];
        uint32_t ndim = draw(5);
        char name[8];

        for (uint32_t d = 0; d < ndim; d++)
            shape[d] = draw(20) == 0 ? 0 : 1 + draw(7);
        (void)snprintf(name, sizeof name, "t%u", (unsigned)i);
        assert_int_equal(
            tensor_list_builder_add(b, name, dtypes[draw(3)], shape, ndim, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    return list;
}

/* The byte of a tensor at which element `i` of a box is, the slow way. */
static uint64_t slow_at(const struct tensor_spec *t, const struct nixl_box *box, uint64_t i)
{
    uint64_t index[TENSOR_LIST_NDIM_MAX], at = 0;

    for (uint32_t d = box->ndim; d-- > 0; i /= box->size[d])
        index[d] = box->start[d] + i % box->size[d];
    if (box->ndim != t->ndim)
        return index[0] * dtype_nbytes(t->dtype);
    for (uint32_t d = 0; d < t->ndim; d++)
        at = at * t->shape[d] + index[d];
    return at * dtype_nbytes(t->dtype);
}

/* Puts a shard into the memory of an agent, sometimes beside the one before it. */
static void put_shard(struct world *w, uint32_t tensor, uint32_t index, const struct nixl_box *box)
{
    const struct tensor_spec *t = &w->list->tensors[tensor];
    uint32_t agent = draw(2);
    uint64_t nbytes = dtype_nbytes(t->dtype), numel = 1;
    uint8_t *at = w->memory[agent] + w->used[agent];

    for (uint32_t d = 0; d < box->ndim; d++)
        numel *= box->size[d];
    for (uint64_t i = 0; i < numel; i++)
        memcpy(at + i * nbytes, w->packed + t->offset + slow_at(t, box, i), nbytes);
    w->used[agent] += numel * nbytes + draw(2) * 8;
    assert_true(w->used[agent] < MEMORY_NBYTES);
    w->shards[w->n++] = (struct nixl_shard){.tensor = tensor,
                                            .index = index,
                                            .agent = agent,
                                            .vram = agent == 1,
                                            .device = agent,
                                            .addr = (uint64_t)(uintptr_t)at,
                                            .box = *box};
}

/* Cuts boxes in two, at random, until there are enough. */
static void cut_tensor(struct world *w, uint32_t tensor)
{
    const struct tensor_spec *t = &w->list->tensors[tensor];
    struct nixl_box boxes[SHARDS_MAX] = {{.ndim = 1, .size = {t->numel}}};
    uint32_t n = 1, wanted = 1 + draw(12);

    if (t->numel == 0)
        return;
    if (t->ndim > 0 && draw(3) > 0) {
        boxes[0].ndim = t->ndim;
        memcpy(boxes[0].size, t->shape, t->ndim * sizeof t->shape[0]);
    }
    for (uint32_t tries = 0; tries < 50 && n < wanted; tries++) {
        struct nixl_box *box = &boxes[draw(n)];
        uint32_t d = draw(box->ndim);
        uint64_t cut;

        if (box->size[d] < 2)
            continue;
        cut = 1 + draw((uint32_t)box->size[d] - 1);
        boxes[n] = *box;
        boxes[n].start[d] += cut;
        boxes[n++].size[d] -= cut;
        box->size[d] = cut;
    }
    for (uint32_t i = 0; i < n; i++)
        put_shard(w, tensor, i, &boxes[i]);
}

static struct world *world_new(uint32_t of)
{
    struct world *w = calloc(1, sizeof *w);

    seed = of * 2654435761u + 1;
    w->list = random_list();
    w->packed = malloc(w->list->nbytes + 1);
    w->dst = calloc(1, w->list->nbytes + 1);
    w->seen = calloc(1, w->list->nbytes + 1);
    for (uint64_t i = 0; i < w->list->nbytes; i++)
        w->packed[i] = (uint8_t)draw(256);
    for (uint32_t i = 0; i < N_TENSORS; i++)
        cut_tensor(w, i);
    for (uint32_t i = w->n; i > 1; i--) { /* in any order */
        uint32_t k = draw(i);
        struct nixl_shard s = w->shards[k];

        w->shards[k] = w->shards[i - 1];
        w->shards[i - 1] = s;
    }
    return w;
}

static void world_free(struct world *w)
{
    tensor_list_unref(w->list);
    free(w->packed);
    free(w->dst);
    free(w->seen);
    free(w);
}

/* The plan of all shards but one, or with one twice. Returns what nixl_plan_finish returns.
 * @left_out, @twice  UINT32_MAX: none */
static int plan_of(const struct world *w, struct nixl_plan **plan, uint32_t left_out,
                   uint32_t twice, struct err *e)
{
    assert_int_equal(nixl_plan_new(plan, w->list, e), 0);
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t k = 0; k < (i == twice ? 2 : 1) && i != left_out; k++)
            assert_int_equal(nixl_plan_add(*plan, &w->shards[i], "/x", e), 0);
    return nixl_plan_finish(*plan, e);
}

static void came(void *arg, const void *at, uint64_t nbytes)
{
    struct world *w = arg;

    for (uint64_t i = 0; i < nbytes; i++)
        w->seen[(const uint8_t *)at - w->dst + i]++;
}

/* Reads bytes [from, to) of the stream as the child would. */
static void read_window(const struct world *w, const struct nixl_plan *plan, uint64_t from,
                        uint64_t to, uint8_t *window)
{
    struct nixl_slice *s;
    struct err e = {0};
    uint64_t total = 0;
    uint32_t n;

    assert_int_equal(nixl_plan_slices(plan, from, to, &s, &n, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *at = (const uint8_t *)(uintptr_t)s[i].addr;

        assert_int_equal(s[i].at, total);
        assert_int_equal(s[i].mem, s[i].agent);
        assert_int_equal(s[i].device, s[i].agent);
        assert_true(at >= w->memory[s[i].agent] &&
                    at + s[i].nbytes <= w->memory[s[i].agent] + w->used[s[i].agent]);
        memcpy(window + s[i].at, at, s[i].nbytes);
        total += s[i].nbytes;
    }
    assert_int_equal(total, to - from);
    free(s);
}

static void test_plan_brings_each_byte_once(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        struct world *w = world_new(round);
        struct progress p = {.came = came, .came_arg = w};
        struct nixl_plan *plan;
        struct err e = {0};
        uint64_t nbytes = w->list->nbytes, most = 1 + draw(200);
        uint8_t window[256];

        assert_int_equal(plan_of(w, &plan, UINT32_MAX, UINT32_MAX, &e), 0);
        assert_int_equal(nixl_plan_nbytes(plan), nbytes);
        for (uint64_t at = 0, to; at < nbytes; at = to) {
            to = at + most < nbytes ? at + most : nbytes;
            read_window(w, plan, at, to, window);
            nixl_plan_copy(plan, at, to, window, w->dst, 0, &p);
        }
        assert_memory_equal(w->dst, w->packed, nbytes);
        for (uint64_t i = 0; i < nbytes; i++)
            assert_int_equal(w->seen[i], 1);
        assert_int_equal(atomic_load(&p.nbytes_done), nbytes);
        nixl_plan_free(plan);
        world_free(w);
    }
}

static void test_plan_refuses_a_hole_and_an_overlap(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        struct world *w = world_new(round);
        uint32_t victim = w->n > 0 ? draw(w->n) : 0;
        char wanted[32];

        for (int twice = 0; twice < 2 && w->n > 0; twice++) {
            struct nixl_plan *plan;
            struct err e = {0};

            (void)snprintf(wanted, sizeof wanted, "tensor 't%u'",
                           (unsigned)w->shards[victim].tensor);
            assert_int_equal(
                plan_of(w, &plan, twice ? UINT32_MAX : victim, twice ? victim : UINT32_MAX, &e),
                -1);
            assert_int_equal(e.code, ERR_MISMATCH);
            assert_non_null(strstr(e.msg, wanted));
            assert_non_null(strstr(e.msg, twice ? "overlap" : "the first missing is ["));
            nixl_plan_free(plan);
        }
        world_free(w);
    }
}

static void test_plan_names_the_first_missing_element(void **state)
{
    static const uint64_t shape[2] = {4, 6};
    struct nixl_shard s = {.addr = 4096, .box = {.ndim = 2, .start = {0, 0}, .size = {3, 6}}};
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct nixl_plan *plan;
    struct err e = {0};

    (void)state;
    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    assert_int_equal(tensor_list_builder_add(b, "w", DTYPE_F32, shape, 2, UINT64_MAX, &e), 0);
    assert_int_equal(tensor_list_builder_finish(b, &list, &e), 0);
    assert_int_equal(nixl_plan_new(&plan, list, &e), 0);
    assert_int_equal(nixl_plan_add(plan, &s, "", &e), 0);
    s.index = 1;
    s.box = (struct nixl_box){.ndim = 2, .start = {3, 0}, .size = {1, 2}};
    assert_int_equal(nixl_plan_add(plan, &s, "", &e), 0);
    assert_int_equal(nixl_plan_finish(plan, &e), -1);
    assert_non_null(strstr(e.msg, "20 of 24 elements; the first missing is [3, 2]"));
    err_clear(&e);
    s.box.start[1] = 5;
    assert_int_equal(nixl_plan_add(plan, &s, "/shards/0/1", &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    assert_string_equal(e.field, "/shards/0/1");
    nixl_plan_free(plan);
    tensor_list_unref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_brings_each_byte_once),
        cmocka_unit_test(test_plan_refuses_a_hole_and_an_overlap),
        cmocka_unit_test(test_plan_names_the_first_missing_element),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* weights/device_copy: tensors of sources whose bytes are on GPUs, into memory of each rank. */
#include "tests/unit/weights/recv_fixture.h"
#include "weights/update/device_copy.h"

#include <stdio.h>

enum { N_MADE = 61 };

static struct mfx_lib lib;

/* Tensors of odd lengths, some of them empty. */
static struct tensor_list *made_tensor_list(void)
{
    struct tensor_list_builder *b = NULL;
    struct tensor_list *tensor_list = NULL;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (unsigned i = 0; i < N_MADE; i++) {
        uint64_t shape = i * 7 % 90;
        char name[32];

        (void)snprintf(name, sizeof name, "made.%u", i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, &shape, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &tensor_list, &e), 0);
    return tensor_list;
}

static void assert_bytes(struct device *d, const struct slab *slab, const uint64_t *at,
                         const struct tensor_list *list, unsigned step)
{
    for (uint32_t i = 0; i < list->n_tensors; i++) {
        const struct tensor_spec *t = &list->tensors[i];
        unsigned char sent[FX_NBYTES_MAX], found[FX_NBYTES_MAX];
        struct err e = {0};

        assert_true(at[i] + t->nbytes <= slab->nbytes);
        mfx_sent(t, step, sent);
        assert_int_equal(device_read(d, found, slab->addr + at[i], t->nbytes, &e), 0);
        assert_memory_equal(found, sent, t->nbytes);
    }
}

/* Copies a chunk's tensors, which must then be on each rank; the chunk is freed.
 * @fail_nth  the driver's call that fails once all is prepared; 0: none */
static enum err_code run(struct gpus *g, struct update_chunk *c, unsigned step, uint64_t fail_nth,
                         struct progress *p)
{
    struct progress forever = {.deadline_us = CLOCK_NEVER};
    struct tensor_list *list = tensor_list_ref(c->tensor_list);
    struct slab *slabs[MFX_RANKS_MAX] = {0};
    struct slab_pool *pools[MFX_RANKS_MAX];
    uint64_t at[N_MADE + FX_N], nbytes = device_copy_places(c->source, list, at);
    struct device_copy copy = {.source = c->source,
                               .tensor_list = list,
                               .devices = g->devices,
                               .n_devices = g->n_devices,
                               .slabs = slabs,
                               .at = at,
                               .progress = p != NULL ? p : &forever};
    struct err e = {0};
    int rc;

    for (uint32_t r = 0; r < g->n_devices; r++) {
        struct slab_memory memory = device_memory(g->devices[r]);

        assert_int_equal(slab_pool_new(&pools[r], &memory, UINT64_MAX, 0, &e), 0);
        assert_int_equal(slab_new(&slabs[r], pools[r], nbytes, &e), 0);
    }
    lib.fail_nth(fail_nth);
    rc = device_copy_run(&copy, &e);
    lib.fail_nth(0);
    assert_int_equal(rc, e.code == ERR_NONE ? 0 : -1);
    assert_true(rc == 0 || e.msg[0] != '\0');
    for (uint32_t r = 0; r < g->n_devices; r++) {
        if (rc == 0)
            assert_bytes(g->devices[r], slabs[r], at, list, step);
        slab_unref(slabs[r]);
        slab_pool_free(pools[r]);
    }
    tensor_list_unref(list);
    update_chunk_free(c);
    return e.code;
}

static void test_tensors_arrive_on_each_rank(void **state)
{
    (void)state;
    for (unsigned k = 0; k < MFX_WORLDS; k++) {
        for (unsigned turn = 0; turn < 10; turn++) {
            struct mfx_cfg mapped = MFX_STEP(turn);
            struct rfx_cfg received = RFX_STEP(turn);
            struct rfx_group group = {0};
            struct gpus g;

            gpus_open(&g, &lib, mfx_worlds[k]);
            mapped.n_each = turn * 3;
            mapped.scattered = turn % 2 != 0;
            assert_int_equal(run(&g, mfx_chunk(&g, "", made_tensor_list(), mapped), turn, 0, NULL),
                             ERR_NONE);
            received.n_each = turn;
            received.group = &group;
            assert_int_equal(
                run(&g, rfx_chunk(&g, "", made_tensor_list(), received), turn, 0, NULL), ERR_NONE);
            assert_int_equal(group.n_whole, 1);
            if (turn == 1) /* nothing idles between two small ones */
                assert_int_equal(group.n_ahead, SOURCE_POSTED_MAX);
            gpus_close(&g);
        }
    }
}

/* Whatever goes wrong with a mapping, it is released, and its scope closed (gpus_close). */
static void test_mapped_failures_release(void **state)
{
    static const struct {
        struct mfx_cfg cfg;
        enum err_code code;
    } rows[] = {
        {{.step = 1, .corrupt_at = -1, .fail_map = -1, .fail_join = true}, ERR_NO_MEMORY},
        {{.step = 1, .corrupt_at = -1, .fail_map = 0, .n_each = 9}, ERR_GONE},
        {{.step = 1, .corrupt_at = -1, .fail_map = 4, .n_each = 9}, ERR_GONE},
        {{.step = 1, .corrupt_at = -1, .fail_map = 9, .n_each = 9}, ERR_GONE},
        {{.step = 1, .corrupt_at = -1, .fail_map = -1, .fail_release = 1}, ERR_GONE},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
        assert_int_equal(run(&g, mfx_chunk(&g, "", made_tensor_list(), rows[i].cfg), 1, 0, NULL),
                         rows[i].code);
        gpus_close(&g);
    }
}

static void test_received_failures(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 4; turn++) {
        struct rfx_cfg cfg = RFX_STEP(1);
        struct rfx_group group = {0};
        bool stuck = turn % 2 != 0;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
        cfg.n_each = 1;
        cfg.group = &group;
        cfg.fail_code = ERR_NCCL;
        cfg.stuck = stuck;
        *(turn > 1 ? &cfg.fail_post_at : &cfg.fail_at) = 5;
        assert_int_equal(run(&g, rfx_chunk(&g, "", made_tensor_list(), cfg), 1, 0, NULL), ERR_NCCL);
        assert_int_equal(group.n_torn, 1);
        if (stuck)
            g.before.n_allocations += g.n_devices; /* written to for ever: gone for good */
        gpus_close(&g);
    }
}

static void test_a_driver_that_fails(void **state)
{
    enum err_code code = ERR_CUDA;

    (void)state;
    for (unsigned nth = 1; code != ERR_NONE; nth++) {
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
        code = run(&g, mfx_chunk(&g, "", made_tensor_list(), MFX_STEP(1)), 1, nth, NULL);
        assert_true(code == ERR_NONE || code == ERR_CUDA);
        gpus_close(&g);
        assert_true(nth < 1000);
    }
}

static bool always(void *arg)
{
    (void)arg;
    return true;
}

static void test_who_gives_up_is_heard(void **state)
{
    static const enum err_code codes[] = {ERR_CONFLICT, ERR_TIMEOUT, ERR_GONE};

    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        struct progress p = {.deadline_us = how == 1 ? clock_now_us() : CLOCK_NEVER,
                             .gone = how == 2 ? always : NULL};
        struct gpus g;

        atomic_init(&p.stop, how == 0);
        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
        assert_int_equal(run(&g, rfx_chunk(&g, "", made_tensor_list(), RFX_STEP(1)), 1, 0, &p),
                         codes[how]);
        gpus_close(&g);
    }
}

static int open_lib(void **state)
{
    (void)state;
    mfx_lib_open(&lib, FAKECUDA);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_arrive_on_each_rank),
        cmocka_unit_test(test_mapped_failures_release),
        cmocka_unit_test(test_received_failures),
        cmocka_unit_test(test_a_driver_that_fails),
        cmocka_unit_test(test_who_gives_up_is_heard),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}

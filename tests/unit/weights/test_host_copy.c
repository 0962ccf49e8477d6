/* weights/host_copy: tensors of every kind of source into host memory. */
#include "tests/unit/weights/recv_fixture.h"
#include "weights/update/host_copy.h"

#include <stdio.h>

enum { N_MADE = 61, N_LARGE = 3, LARGE_NBYTES = 40 << 20 };

static struct mfx_lib lib;

/* What the callbacks saw. */
struct taken {
    const struct tensor_list *tensor_list;
    unsigned char *bytes; /* owned; [tensor_list->nbytes] */
    unsigned n_placed, n_came;
    int refuse_at; /* came says no there; -1: nowhere */
};

static void *taken_place(void *arg, uint32_t i)
{
    struct taken *t = arg;

    assert_int_equal(t->n_placed++, i);
    return t->bytes + t->tensor_list->tensors[i].offset;
}

static int taken_came(void *arg, uint32_t i, const void *bytes, struct err *e)
{
    struct taken *t = arg;

    mtx_assert_none();
    assert_int_equal(t->n_came, i);
    assert_ptr_equal(bytes, t->bytes + t->tensor_list->tensors[i].offset);
    if (t->refuse_at == (int)i)
        return err_set(e, ERR_CHECKSUM, "", "not these");
    t->n_came++;
    return 0;
}

static void taken_init(struct taken *t, const struct tensor_list *tensor_list)
{
    *t = (struct taken){.tensor_list = tensor_list,
                        .bytes = calloc(1, tensor_list->nbytes > 0 ? tensor_list->nbytes : 1),
                        .refuse_at = -1};
    assert_non_null(t->bytes);
}

/* Runs a chunk's source, which is closed; the chunk is freed. */
static enum err_code run(struct gpus *g, struct update_chunk *c, struct taken *t,
                         struct progress *p)
{
    struct progress forever = {.deadline_us = CLOCK_NEVER};
    struct host_copy copy = {.source = c->source,
                             .tensor_list = t->tensor_list,
                             .devices = g->devices,
                             .n_devices = g->n_devices,
                             .progress = p != NULL ? p : &forever,
                             .place = taken_place,
                             .arrived = taken_came,
                             .arg = t};
    struct err e = {0};
    int rc = host_copy_run(&copy, &e);

    assert_int_equal(rc, e.code == ERR_NONE ? 0 : -1);
    assert_true(rc == 0 || e.msg[0] != '\0');
    update_chunk_free(c);
    return e.code;
}

static void assert_bytes(const struct taken *t, unsigned step)
{
    assert_int_equal(t->n_came, t->tensor_list->n_tensors);
    for (uint32_t i = 0; i < t->tensor_list->n_tensors; i++) {
        const struct tensor_spec *s = &t->tensor_list->tensors[i];
        unsigned char *sent = malloc(s->nbytes + 1);

        assert_non_null(sent);
        rfx_sent(s, step, sent);
        assert_memory_equal(t->bytes + s->offset, sent, s->nbytes);
        free(sent);
    }
}

/* Tensors of odd lengths, some of them empty. */
static struct tensor_list *made_tensor_list(unsigned n, uint64_t nbytes)
{
    struct tensor_list_builder *b = NULL;
    struct tensor_list *tensor_list = NULL;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (unsigned i = 0; i < n; i++) {
        uint64_t shape = nbytes > 0 ? nbytes : i * 7 % 90;
        char name[32];

        (void)snprintf(name, sizeof name, nbytes > 0 ? "large.%u" : "made.%u", i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, &shape, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &tensor_list, &e), 0);
    return tensor_list;
}

static void test_mapped_tensors_arrive(void **state)
{
    (void)state;
    for (unsigned k = 0; k < MFX_WORLDS; k++) {
        for (unsigned turn = 0; turn < 10; turn++) {
            struct tensor_list *tensor_list = made_tensor_list(N_MADE, 0);
            struct mfx_cfg cfg = MFX_STEP(turn);
            struct taken t;
            struct gpus g;

            gpus_open(&g, &lib, mfx_worlds[k]);
            cfg.n_each = turn * 3;
            cfg.scattered = turn % 2 != 0;
            taken_init(&t, tensor_list);
            assert_int_equal(
                run(&g, mfx_chunk(&g, "", tensor_list_ref(tensor_list), cfg), &t, NULL), ERR_NONE);
            assert_bytes(&t, turn);
            free(t.bytes);
            tensor_list_unref(tensor_list);
            gpus_close(&g);
        }
    }
}

static void test_received_tensors_arrive(void **state)
{
    (void)state;
    for (unsigned k = 0; k < MFX_WORLDS; k++) {
        for (unsigned n_each = 0; n_each < 10; n_each++) {
            struct tensor_list *tensor_list = made_tensor_list(N_MADE, 0);
            struct rfx_cfg cfg = RFX_STEP(n_each);
            struct rfx_group group = {0};
            struct taken t;
            struct gpus g;

            gpus_open(&g, &lib, mfx_worlds[k]);
            cfg.n_each = n_each;
            cfg.group = &group;
            taken_init(&t, tensor_list);
            assert_int_equal(
                run(&g, rfx_chunk(&g, "", tensor_list_ref(tensor_list), cfg), &t, NULL), ERR_NONE);
            assert_bytes(&t, n_each);
            assert_int_equal(group.n_whole, 1);
            if (n_each == 1) /* nothing idles between two small ones */
                assert_int_equal(group.n_ahead, SOURCE_POSTED_MAX);
            free(t.bytes);
            tensor_list_unref(tensor_list);
            gpus_close(&g);
        }
    }
}

/* What passes through is bounded by the largest bucket, not by the whole. */
static void test_large_buckets_come_one_at_a_time(void **state)
{
    struct tensor_list *tensor_list = made_tensor_list(N_LARGE, LARGE_NBYTES);
    struct fakecuda_counts before, after;
    struct rfx_group group = {0};
    struct rfx_cfg cfg = RFX_STEP(3);
    struct taken t;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
    cfg.n_each = 1;
    cfg.group = &group;
    lib.counts(&before);
    taken_init(&t, tensor_list);
    assert_int_equal(run(&g, rfx_chunk(&g, "", tensor_list_ref(tensor_list), cfg), &t, NULL),
                     ERR_NONE);
    lib.counts(&after);
    assert_bytes(&t, 3);
    assert_int_equal(group.n_ahead, 1);
    assert_int_equal(after.n_allocations_made, before.n_allocations_made + 1);
    for (unsigned i = 1; i < group.n_buckets; i++)
        assert_int_equal(group.dst[i][0], group.dst[0][0]);
    free(t.bytes);
    tensor_list_unref(tensor_list);
    gpus_close(&g);
}

static void test_tensors_that_fill_arrive(void **state)
{
    struct tensor_list *tensor_list = fx_tensor_list_of(FX_ALL);
    struct taken t;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
    taken_init(&t, tensor_list);
    assert_int_equal(
        run(&g, chunk_of(&g.b, "", tensor_list_ref(tensor_list), FX_STEP(5)), &t, NULL), ERR_NONE);
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        unsigned char sent[FX_NBYTES_MAX];

        fx_sent(&tensor_list->tensors[i], 5, sent);
        assert_memory_equal(t.bytes + tensor_list->tensors[i].offset, sent,
                            tensor_list->tensors[i].nbytes);
    }
    free(t.bytes);
    tensor_list_unref(tensor_list);
    gpus_close(&g);
}

/* Whatever goes wrong with a mapping, it is released, and its scope closed (gpus_close). */
static void test_mapped_failures_release(void **state)
{
    static const struct {
        struct mfx_cfg cfg;
        int refuse_at;
        enum err_code code;
    } rows[] = {
        {{.step = 1, .corrupt_at = -1, .fail_map = -1, .fail_join = true}, -1, ERR_NO_MEMORY},
        {{.step = 1, .corrupt_at = -1, .fail_map = 0, .n_each = 9}, -1, ERR_GONE},
        {{.step = 1, .corrupt_at = -1, .fail_map = 4, .n_each = 9}, -1, ERR_GONE},
        {{.step = 1, .corrupt_at = -1, .fail_map = -1, .fail_release = 1}, -1, ERR_GONE},
        {{.step = 1, .corrupt_at = -1, .fail_map = -1}, 0, ERR_CHECKSUM},
        {{.step = 1, .corrupt_at = -1, .fail_map = -1, .fail_release = 1}, 40, ERR_CHECKSUM},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tensor_list *tensor_list = made_tensor_list(N_MADE, 0);
        struct taken t;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
        taken_init(&t, tensor_list);
        t.refuse_at = rows[i].refuse_at;
        assert_int_equal(
            run(&g, mfx_chunk(&g, "", tensor_list_ref(tensor_list), rows[i].cfg), &t, NULL),
            rows[i].code);
        assert_true(rows[i].refuse_at < 0 || t.n_came == (unsigned)rows[i].refuse_at);
        free(t.bytes);
        tensor_list_unref(tensor_list);
        gpus_close(&g);
    }
}

/* Once one bucket was asked for, all are received: the group is worth more than the time. */
static void test_what_is_refused_is_received_to_the_end(void **state)
{
    (void)state;
    for (int at = 0; at < N_MADE; at += 5) {
        struct tensor_list *tensor_list = made_tensor_list(N_MADE, 0);
        struct rfx_cfg cfg = RFX_STEP(1);
        struct rfx_group group = {0};
        struct taken t;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
        cfg.n_each = 1 + (unsigned)at % 3;
        cfg.group = &group;
        taken_init(&t, tensor_list);
        t.refuse_at = at;
        assert_int_equal(run(&g, rfx_chunk(&g, "", tensor_list_ref(tensor_list), cfg), &t, NULL),
                         ERR_CHECKSUM);
        assert_int_equal(t.n_came, at);
        assert_int_equal(group.n_whole, 1);
        assert_int_equal(group.n_torn, 0);
        free(t.bytes);
        tensor_list_unref(tensor_list);
        gpus_close(&g);
    }
}

static void test_received_failures(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 8; turn++) {
        struct tensor_list *tensor_list = made_tensor_list(N_MADE, 0);
        struct rfx_cfg cfg = RFX_STEP(1);
        struct rfx_group group = {0};
        bool stuck = turn % 2 != 0, post = turn % 4 > 1, refused = turn > 3;
        struct taken t;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
        cfg.n_each = 1;
        cfg.group = &group;
        cfg.fail_code = ERR_NCCL;
        cfg.stuck = stuck;
        *(post ? &cfg.fail_post_at : &cfg.fail_at) = 5;
        taken_init(&t, tensor_list);
        t.refuse_at = refused ? 2 : -1;
        /* what was posted together has not been looked at when the next post fails */
        assert_int_equal(run(&g, rfx_chunk(&g, "", tensor_list_ref(tensor_list), cfg), &t, NULL),
                         refused && !post ? ERR_CHECKSUM : ERR_NCCL);
        assert_int_equal(group.n_torn, 1);
        if (stuck)
            g.before.n_allocations += g.n_devices; /* written to for ever: gone for good */
        free(t.bytes);
        tensor_list_unref(tensor_list);
        gpus_close(&g);
    }
}

static void test_without_room_nothing_is_asked_for(void **state)
{
    (void)state;
    for (unsigned nth = 1;; nth++) {
        struct tensor_list *tensor_list = made_tensor_list(N_MADE, 0);
        struct rfx_cfg cfg = RFX_STEP(1);
        struct rfx_group group = {0};
        enum err_code code;
        struct taken t;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 3});
        cfg.group = &group;
        cfg.n_each = 2;
        taken_init(&t, tensor_list);
        lib.fail_nth(nth);
        code = run(&g, rfx_chunk(&g, "", tensor_list_ref(tensor_list), cfg), &t, NULL);
        lib.fail_nth(0);
        if (code == ERR_NONE)
            assert_bytes(&t, 1);
        assert_true(group.n_torn == 0);
        assert_true(group.n_whole == 1 || (code != ERR_NONE && group.n_buckets == 0));
        free(t.bytes);
        tensor_list_unref(tensor_list);
        gpus_close(&g);
        if (code == ERR_NONE)
            break;
        assert_true(nth < 1000);
    }
}

static void test_a_driver_that_fails_while_it_is_read(void **state)
{
    enum err_code code = ERR_CUDA;

    (void)state;
    for (unsigned nth = 1; code != ERR_NONE; nth++) {
        struct tensor_list *tensor_list = fx_tensor_list_of(FX_ALL);
        struct update_chunk *c;
        struct taken t;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
        c = mfx_chunk(&g, "", tensor_list_ref(tensor_list), MFX_STEP(1));
        taken_init(&t, tensor_list);
        lib.fail_nth(nth);
        code = run(&g, c, &t, NULL);
        lib.fail_nth(0);
        assert_true(code == ERR_NONE || code == ERR_CUDA);
        free(t.bytes);
        tensor_list_unref(tensor_list);
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
    for (unsigned how = 0; how < 6; how++) {
        struct progress p = {.deadline_us = how % 3 == 1 ? clock_now_us() : CLOCK_NEVER,
                             .gone = how % 3 == 2 ? always : NULL};
        struct tensor_list *tensor_list = fx_tensor_list_of(FX_ALL);
        struct taken t;
        struct gpus g;

        atomic_init(&p.stop, how % 3 == 0);
        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
        taken_init(&t, tensor_list);
        assert_int_equal(run(&g,
                             how < 3 ? mfx_chunk(&g, "", tensor_list_ref(tensor_list), MFX_STEP(1))
                                     : rfx_chunk(&g, "", tensor_list_ref(tensor_list), RFX_STEP(1)),
                             &t, &p),
                         codes[how % 3]);
        assert_int_equal(t.n_came, 0);
        free(t.bytes);
        tensor_list_unref(tensor_list);
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
        cmocka_unit_test(test_mapped_tensors_arrive),
        cmocka_unit_test(test_received_tensors_arrive),
        cmocka_unit_test(test_large_buckets_come_one_at_a_time),
        cmocka_unit_test(test_tensors_that_fill_arrive),
        cmocka_unit_test(test_mapped_failures_release),
        cmocka_unit_test(test_what_is_refused_is_received_to_the_end),
        cmocka_unit_test(test_received_failures),
        cmocka_unit_test(test_without_room_nothing_is_asked_for),
        cmocka_unit_test(test_a_driver_that_fails_while_it_is_read),
        cmocka_unit_test(test_who_gives_up_is_heard),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}

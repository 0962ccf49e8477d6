/* CUDA IPC handles as a source, between two processes over libfakecuda.so: what is mapped, waited
 * for, read and let go of, also when the trainer dies in between. */
#include "tests/unit/transport/ipc_fixture.h"
#include "transport/ipc/ipc_scope.h"

enum { DEADLINE_US = 20000 };

static void test_packed_buckets_on_two_gpus(void **state)
{
    enum { STORAGE_AT = 512, TENSOR_AT = 16 };
    static const uint64_t others[] = {7, 40, 1, 900};
    struct tensor_list *tensor_lists[] = {ifx.tensor_list, ifx_tensor_list(others, 4)};
    struct ifx_answer mem[] = {ifx_block(0, IFX_BLOCK, 1), ifx_block(1, IFX_BLOCK, 2)};
    struct ipc_handle h[IFX_RANKS];
    struct ifx_bucket b = {.packed = true, .handles = {&h[0], &h[1]}, .n = {IFX_N_SMALL, 4}};
    struct source_scope *scope = NULL;
    struct source *s;

    (void)state;
    ifx_counter_make(&ifx.counters[0], ifx.peer.pid, 0);
    for (int i = 0; i < IFX_RANKS; i++) {
        h[i] = ifx_handle(&mem[i], tensor_lists[i]->nbytes);
        h[i].storage_offset = STORAGE_AT;
        h[i].storage_nbytes = IFX_BLOCK - STORAGE_AT;
        h[i].tensor_offset = TENSOR_AT;
        ifx_export_as(&h[i], &ifx.counters[0], (uint32_t)i);
    }
    s = ifx_source(&b, 1, tensor_lists[0], tensor_lists[1]);
    ifx_join(s, &scope);
    for (uint32_t r = 0; r < IFX_RANKS; r++) {
        assert_int_equal(ifx_map(s, r, 0), tensor_lists[r]->n_tensors);
        for (uint32_t i = 0; i < tensor_lists[r]->n_tensors; i++)
            ifx_check(s, r, i, tensor_lists[r]->tensors[i].nbytes, r + 1,
                      STORAGE_AT + TENSOR_AT + tensor_lists[r]->tensors[i].offset);
        assert_int_equal(*ifx_slot(&ifx.counters[0], r), 1); /* not before release */
    }
    assert_int_equal(ifx_counts(scope).n_mapped, 2);
    ifx_release(s);
    assert_int_equal(*ifx_slot(&ifx.counters[0], 0), 0);
    assert_int_equal(*ifx_slot(&ifx.counters[0], 1), 0);
    assert_int_equal(atomic_load(&ifx.stats.n_exports_released), 2);
    assert_int_equal(ifx_counts(scope).n_mapped, 2); /* for a next bucket */
    source_scope_close(scope);
    tensor_list_unref(tensor_lists[1]);
}

/* Handles of one segment, of another one, and one without memory. */
static void test_unpacked_handles_share_mappings(void **state)
{
    enum { N = 5 };
    static const uint64_t nbytes[N] = {100, 200, 0, 300, 50};
    static const uint64_t at[N] = {0, 128, 0, 1024, 4096};
    static const uint32_t seed[N] = {1, 1, 0, 2, 1};
    struct ifx_answer mem[] = {ifx_block(0, IFX_BLOCK, 1), ifx_block(0, IFX_BLOCK, 2)};
    struct tensor_list *p = ifx_tensor_list(nbytes, N);
    struct ipc_handle h[N] = {{0}};
    struct ifx_bucket b = {.handles = {h}, .n = {N}};
    struct source_scope *scope = NULL;
    struct source *s;

    (void)state;
    ifx_counter_make(&ifx.counters[0], ifx.peer.pid, 0);
    for (uint32_t i = 0; i < N; i++) {
        if (seed[i] == 0)
            continue;
        h[i] = ifx_handle(&mem[seed[i] - 1], nbytes[i]);
        h[i].storage_offset = at[i];
        ifx_export_as(&h[i], &ifx.counters[0], i);
    }
    s = ifx_source(&b, 1, p, NULL);
    ifx_join(s, &scope);
    assert_int_equal(ifx_map(s, 0, 0), N);
    for (uint32_t i = 0; i < N; i++)
        ifx_check(s, 0, i, nbytes[i], seed[i], at[i]);
    assert_int_equal(ifx_counts(scope).n_opened, 2);
    /* the allocations are told apart, whatever lies next to what */
    assert_true(s->ops->block(s, 0, 0) == s->ops->block(s, 0, 1));
    assert_true(s->ops->block(s, 0, 0) == s->ops->block(s, 0, 4));
    assert_true(s->ops->block(s, 0, 0) != s->ops->block(s, 0, 3));
    ifx_release(s);
    assert_int_equal(atomic_load(&ifx.stats.n_exports_released), 4);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(*ifx_slot(&ifx.counters[0], i), 0);
    source_scope_close(scope);
    tensor_list_unref(p);
}

/* One rank gets two runs, the other one gets the second bucket alone; both of them that handle. */
static void test_several_buckets_of_one_request(void **state)
{
    static const uint64_t nbytes[] = {10, 20, 30, 40, 50};
    struct tensor_list *p = ifx_tensor_list(nbytes, 5), *q = ifx_tensor_list(nbytes, 2);
    struct ipc_handle h[] = {ifx_export(1, 0), ifx_export(2, 1)};
    struct ifx_bucket b[] = {
        {.packed = true, .handles = {&h[0]}, .n = {2}},
        {.packed = true, .handles = {&h[1], &h[1]}, .first = {2, 0}, .n = {3, 2}},
    };
    struct source_scope *scope = NULL;
    struct source *s = ifx_source(b, 2, p, q);

    (void)state;
    ifx_join(s, &scope);
    assert_int_equal(ifx_map(s, 0, 0), 2);
    assert_int_equal(ifx_map(s, 0, 2), 3);
    assert_int_equal(ifx_map(s, 1, 0), 2);
    assert_int_equal(ifx_map(s, 1, 0), 2); /* asked again: the same */
    for (uint32_t i = 0; i < 5; i++)
        ifx_check(s, 0, i, nbytes[i], i < 2 ? 1 : 2, p->tensors[i].offset - (i < 2 ? 0 : 30));
    for (uint32_t i = 0; i < 2; i++)
        ifx_check(s, 1, i, nbytes[i], 2, q->tensors[i].offset);
    assert_int_equal(ifx_counts(scope).n_opened, 3); /* one handle is open on both GPUs */
    ifx_release(s);
    assert_int_equal(atomic_load(&ifx.stats.n_exports_released), 2);
    source_scope_close(scope);
    tensor_list_unref(p);
    tensor_list_unref(q);
}

/* A trainer that refills its buffer: mapped once, and counted down once, for the whole update. */
static void test_one_export_in_many_buckets(void **state)
{
    struct ipc_handle h = ifx_export(3, 9);
    struct source_scope *scope = NULL;

    (void)state;
    *ifx_slot(&ifx.counters[0], 9) = 2; /* somebody else has it too */
    for (int i = 0; i < 6; i++) {
        ifx_pass(&h, &scope, 3);
        assert_int_equal(*ifx_slot(&ifx.counters[0], 9), 1);
        assert_int_equal(ifx_counts(scope).n_opened, 1);
    }
    source_scope_close(scope);
    scope = NULL;
    ifx_pass(&h, &scope, 3); /* of another update: nothing of the last one is left */
    assert_int_equal(*ifx_slot(&ifx.counters[0], 9), 0);
    assert_int_equal(ifx_counts(scope).n_opened, 1);
    assert_int_equal(atomic_load(&ifx.stats.n_opened), 2);
    source_scope_close(scope);
}

static void test_idle_mappings_are_few_and_the_oldest_goes(void **state)
{
    enum { N = IPC_MAPPINGS_KEPT + 3 };
    struct ipc_handle h[N];
    struct source_scope *scope = NULL;
    uint64_t n_opened = N;

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        h[i] = ifx_export(i, i);
        ifx_pass(&h[i], &scope, i);
        assert_int_equal(ifx_counts(scope).n_mapped,
                         i < IPC_MAPPINGS_KEPT ? i + 1 : IPC_MAPPINGS_KEPT);
    }
    /* The last ones are there; used again, the others of them have been idle longer. */
    for (uint32_t i = N - 1; i >= N - IPC_MAPPINGS_KEPT; i--)
        ifx_pass(&h[i], &scope, i);
    assert_int_equal(ifx_counts(scope).n_opened, n_opened);
    ifx_pass(&h[0], &scope, 0);
    assert_int_equal(ifx_counts(scope).n_opened, ++n_opened);
    ifx_pass(&h[N - 2], &scope, N - 2);
    assert_int_equal(ifx_counts(scope).n_opened, n_opened);
    ifx_pass(&h[N - 1], &scope, N - 1); /* which was idle longest, and so was closed for 0 */
    assert_int_equal(ifx_counts(scope).n_opened, ++n_opened);
    assert_int_equal(ifx_counts(scope).n_mapped, IPC_MAPPINGS_KEPT);
    source_scope_close(scope);
}

/* Many mappings in use at once are all kept; idle, all but a few go. */
static void test_mappings_in_use_are_not_closed(void **state)
{
    enum { N = IPC_MAPPINGS_KEPT + 5 };
    struct ipc_handle h[N];
    uint64_t nbytes[N];
    struct ifx_bucket b = {.handles = {h}, .n = {N}};
    struct source_scope *scope = NULL;
    struct tensor_list *p;
    struct source *s;

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        nbytes[i] = 10 + i;
        h[i] = ifx_export(i, i);
        h[i].nbytes = nbytes[i];
    }
    p = ifx_tensor_list(nbytes, N);
    s = ifx_source(&b, 1, p, NULL);
    ifx_join(s, &scope);
    assert_int_equal(ifx_map(s, 0, 0), N);
    assert_int_equal(ifx_counts(scope).n_mapped, N);
    for (uint32_t i = 0; i < N; i++)
        ifx_check(s, 0, i, nbytes[i], i, 0);
    ifx_release(s);
    assert_int_equal(ifx_counts(scope).n_mapped, IPC_MAPPINGS_KEPT);
    source_scope_close(scope);
    tensor_list_unref(p);
}

/* The constant that updates go by, and the other one that they could. */
static void test_idle_mappings_serve_as_the_policy_says(void **state)
{
    struct ipc_handle h[] = {ifx_export(1, 0), ifx_export(1, 1), ifx_export(1, 2)};
    static const uint64_t opened[][5] = {
        [IPC_REUSE_HANDLE] = {1, 1, 1, 1, 1}, [IPC_REUSE_EXPORT] = {1, 1, 2, 3, 4}};
    /* one export twice, another one, then twice without any */
    static const int slots[] = {0, 0, 1, -1, -1};

    (void)state;
    for (int reuse = IPC_REUSE_HANDLE; reuse <= IPC_REUSE_EXPORT; reuse++) {
        struct ipc_scope *c = NULL;
        struct err e = {0};
        assert_int_equal(ipc_scope_new(&c, (enum ipc_reuse)reuse, &ifx.stats, &e), 0);
        for (int i = 0; i < 5; i++) {
            uint32_t export = IPC_NOTHING, mapping, again;
            if (slots[i] >= 0)
                assert_int_equal(ipc_scope_take_export(c, &h[slots[i]], &export, &e), 0);
            assert_int_equal(ipc_scope_map(c, ifx.devices[0], &h[0], export, &mapping, &e), 0);
            /* in use, it serves any */
            assert_int_equal(ipc_scope_map(c, ifx.devices[0], &h[0], IPC_NOTHING, &again, &e), 0);
            assert_int_equal(mapping, again);
            ipc_scope_unmap(c, mapping);
            ipc_scope_unmap(c, again);
            ipc_scope_drop_export(c, export, false);
            assert_int_equal(ifx_counts(ipc_scope_source(c)).n_opened, opened[reuse][i]);
            assert_int_equal(ifx_counts(ipc_scope_source(c)).n_mapped, 1);
        }
        source_scope_close(ipc_scope_source(c));
    }
}

/* The same 64 bytes from another process are another handle. */
static void test_mappings_are_by_process_too(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct source_scope *scope = NULL;

    (void)state;
    ifx_counter_make(&ifx.counters[1], getppid(), 1);
    ifx_pass(&h, &scope, 1);
    ifx_export_as(&h, &ifx.counters[1], 0);
    ifx_pass(&h, &scope, 1);
    assert_int_equal(ifx_counts(scope).n_opened, 2);
    source_scope_close(scope);
}

static void test_an_event_is_waited_for(void **state)
{
    enum { N = 3 };
    static const uint64_t nbytes[N] = {5, 6, 7};
    struct ifx_answer mem = ifx_block(0, IFX_BLOCK, 1);
    struct ifx_answer event = ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_EVENT});
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct ipc_handle h[N];
    struct ifx_bucket b = {.handles = {h}, .n = {N}};
    struct tensor_list *three = ifx_tensor_list(nbytes, N);
    struct source_scope *scope = NULL;
    struct err e = {0};
    struct source *s;
    uint32_t n = 77;

    (void)state;
    for (int i = 0; i < N; i++) {
        h[i] = ifx_handle(&mem, nbytes[i]);
        ifx_wait_for(&h[i], &event);
    }
    s = ifx_source(&b, 1, three, NULL);
    ifx_join(s, &scope);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s->ops->map(s, 0, 0, SOURCE_TRY, &p, &n, &e), 1);
        assert_int_equal(ifx_counted().n_events,
                         ifx.n_events_before + 1); /* opened once, and kept */
    }
    assert_int_equal(n, 77);
    (void)ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_FIRE});
    assert_int_equal(s->ops->map(s, 0, 0, SOURCE_TRY, &p, &n, &e), 0);
    assert_int_equal(n, N);
    assert_int_equal(ifx_counted().n_events, ifx.n_events_before); /* closed once passed */
    ifx_release(s);

    event = ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_EVENT});
    for (int i = 0; i < N; i++)
        ifx_wait_for(&h[i], &event);
    s = ifx_source(&b, 1, three, NULL);
    ifx_join(s, &scope);
    /* It fires while map waits, or a moment before. */
    assert_int_equal(
        write(ifx.peer.to, &(struct ifx_command){.what = IFX_FIRE}, sizeof(struct ifx_command)),
        sizeof(struct ifx_command));
    assert_int_equal(ifx_map(s, 0, 0), N);
    assert_int_equal(read(ifx.peer.from, &event, sizeof event), sizeof event);
    ifx_release(s);
    source_scope_close(scope);
    tensor_list_unref(three);
}

static void test_an_event_that_never_passes_ends_in_time(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct ifx_answer event = ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_EVENT});
    struct progress late = {.deadline_us = 1};
    struct source_scope *scope = NULL;
    struct source *s;
    struct err e;
    uint32_t n;

    (void)state;
    ifx_wait_for(&h, &event);
    s = ifx_source_small(&h);
    ifx_join(s, &scope);
    e = ifx_map_fails(s, clock_after_us(DEADLINE_US), false);
    ifx_says(&e, ERR_TIMEOUT, "before the deadline");
    err_clear(&e);
    assert_int_equal(s->ops->map(s, 0, 0, SOURCE_TRY, &late, &n, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    e = ifx_map_fails(s, CLOCK_NEVER, true);
    assert_int_equal(e.code, ERR_CONFLICT);
    ifx_release(s);
    assert_int_equal(*ifx_slot(&ifx.counters[0], 0), 0); /* what was not read is given back too */
    assert_int_equal(ifx_counted().n_events, ifx.n_events_before);
    source_scope_close(scope);
}

static void test_a_trainer_that_died_before(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct source_scope *scope = NULL;
    struct source *s = ifx_source_small(&h);
    struct err e;

    (void)state;
    ifx_peer_kill(&ifx.peer);
    ifx_join(s, &scope);
    e = ifx_map_fails(s, CLOCK_NEVER, false);
    ifx_says(&e, ERR_UNREADABLE, "bucket 0, GPU fa6ec0da-0000-4000-8000-000000000000: ");
    ifx_says(&e, ERR_UNREADABLE, "exporter has exited");
    ifx_release(s); /* nothing was copied: no more to say */
    assert_int_equal(*ifx_slot(&ifx.counters[0], 0), 0);
    source_scope_close(scope);
}

static void test_a_trainer_that_dies_before_map(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct source_scope *scope = NULL;
    struct source *s = ifx_source_small(&h);
    char pid[32];
    struct err e;

    (void)state;
    (void)snprintf(pid, sizeof pid, "process %ld", (long)ifx.peer.pid);
    ifx_join(s, &scope);
    ifx_peer_kill(&ifx.peer);
    e = ifx_map_fails(s, CLOCK_NEVER, false);
    ifx_says(&e, ERR_GONE, pid);
    ifx_release_gone(s);
    source_scope_close(scope);
}

static void test_a_trainer_that_dies_while_its_memory_is_read(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct source_scope *scope = NULL;
    struct source *s = ifx_source_small(&h);
    struct err e;

    (void)state;
    ifx_join(s, &scope);
    assert_int_equal(ifx_map(s, 0, 0), IFX_N_SMALL);
    ifx_peer_kill(&ifx.peer);
    ifx_release_gone(s);
    assert_int_equal(*ifx_slot(&ifx.counters[0], 0), 0);
    assert_int_equal(ifx_counts(scope).n_mapped, 1);
    s = ifx_source_small(&h); /* what is still mapped serves no other bucket */
    ifx_join(s, &scope);
    e = ifx_map_fails(s, CLOCK_NEVER, false);
    ifx_says(&e, ERR_GONE, "process ");
    ifx_release_gone(s);
    source_scope_close(scope);
}

static void test_a_trainer_that_dies_while_its_event_is_waited_for(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct ifx_answer event = ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_EVENT});
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct source_scope *scope = NULL;
    struct err e = {0};
    struct source *s;
    uint32_t n;

    (void)state;
    ifx_wait_for(&h, &event);
    s = ifx_source_small(&h);
    ifx_join(s, &scope);
    assert_int_equal(s->ops->map(s, 0, 0, SOURCE_TRY, &p, &n, &e), 1);
    ifx_peer_kill(&ifx.peer);
    e = ifx_map_fails(s, CLOCK_NEVER, false);
    ifx_says(&e, ERR_GONE, "process ");
    ifx_release_gone(s);
    source_scope_close(scope);
}

/* A process whose first thread has left stands for one that is being torn down: what the kernel
 * says of both is the same, and its pidfd says nothing yet. */
static void test_a_trainer_that_has_begun_to_exit_is_gone(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct source_scope *scope = NULL;
    struct source *s = ifx_source_small(&h);

    (void)state;
    ifx_join(s, &scope);
    assert_int_equal(ifx_map(s, 0, 0), IFX_N_SMALL);
    (void)ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_LEAVE});
    ifx_release_gone(s);
    source_scope_close(scope);
}

static void test_our_own_handle_is_refused(void **state)
{
    CUcontext ctx;
    CUdeviceptr p;
    CUipcMemHandle mem;
    struct ifx_answer a;
    struct ipc_handle h;
    struct source_scope *scope = NULL;
    struct source *s;
    struct err e;

    (void)state;
    assert_int_equal(ifx.lib.cu.primary_ctx_retain(&ctx, 0), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.ctx_push_current(ctx), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.mem_alloc(&p, IFX_BLOCK), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.ipc_get_mem_handle(&mem, p), CUDA_SUCCESS);
    memcpy(a.handle, &mem, sizeof a.handle);
    h = ifx_handle(&a, IFX_BLOCK);
    s = ifx_source_small(&h);
    ifx_join(s, &scope);
    e = ifx_map_fails(s, CLOCK_NEVER, false);
    ifx_says(&e, ERR_UNREADABLE, "bucket 0, GPU ");
    ifx_says(&e, ERR_UNREADABLE, "this server exported itself");
    ifx_release(s);
    source_scope_close(scope);
    assert_int_equal(ifx.lib.cu.mem_free(p), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.ctx_pop_current(&ctx), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.primary_ctx_release(0), CUDA_SUCCESS);
}

/* What a handle says of its memory, against the memory; what it holds, against the tensor list. */
static void test_short_memory_is_refused(void **state)
{
    static const struct {
        uint64_t storage_offset, storage_nbytes, nbytes;
        const char *says[2];
    } rows[] = {
        {0, IFX_BLOCK + 1, IFX_BLOCK, {"memory has 5000 bytes", "expected 5001 from byte 0"}},
        {1, IFX_BLOCK, IFX_BLOCK, {"memory has 5000 bytes", "expected 5000 from byte 1"}},
        {INT64_MAX - IFX_BLOCK,
         IFX_BLOCK,
         IFX_BLOCK,
         {"memory has 5000 bytes", "9223372036854770807"}},
        {0, IFX_BLOCK, 3002, {"the handle has 3002 bytes", "shapes make 3003"}},
        {IFX_BLOCK - 3003, 3003, 3003, {NULL}},
        {0, IFX_BLOCK, IFX_BLOCK, {NULL}},
    };
    struct ipc_handle h = ifx_export(1, 0);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct source_scope *scope = NULL;
        struct source *s;
        h.storage_offset = rows[i].storage_offset;
        h.storage_nbytes = rows[i].storage_nbytes;
        h.nbytes = rows[i].nbytes;
        *ifx_slot(&ifx.counters[0], 0) = 1;
        s = ifx_source_small(&h);
        ifx_join(s, &scope);
        if (rows[i].says[0] == NULL) {
            assert_int_equal(ifx_map(s, 0, 0), IFX_N_SMALL);
        } else {
            struct err e = ifx_map_fails(s, CLOCK_NEVER, false);
            ifx_says(&e, ERR_BAD_REQUEST, "bucket 0, GPU fa6ec0da-");
            ifx_says(&e, ERR_BAD_REQUEST, rows[i].says[0]);
            ifx_says(&e, ERR_BAD_REQUEST, rows[i].says[1]);
            /* asked again: the same, and nothing is held twice */
            assert_int_equal(ifx_map_fails(s, CLOCK_NEVER, false).code, ERR_BAD_REQUEST);
        }
        ifx_release(s);
        assert_int_equal(*ifx_slot(&ifx.counters[0], 0), 0);
        source_scope_close(scope);
    }
}

int main(int argc, char **argv)
{
#define T(name) cmocka_unit_test_setup_teardown(name, ifx_begin, ifx_end)
    const struct CMUnitTest tests[] = {
        T(test_packed_buckets_on_two_gpus),
        T(test_unpacked_handles_share_mappings),
        T(test_several_buckets_of_one_request),
        T(test_one_export_in_many_buckets),
        T(test_idle_mappings_are_few_and_the_oldest_goes),
        T(test_mappings_in_use_are_not_closed),
        T(test_idle_mappings_serve_as_the_policy_says),
        T(test_mappings_are_by_process_too),
        T(test_an_event_is_waited_for),
        T(test_an_event_that_never_passes_ends_in_time),
        T(test_a_trainer_that_died_before),
        T(test_a_trainer_that_dies_before_map),
        T(test_a_trainer_that_dies_while_its_memory_is_read),
        T(test_a_trainer_that_dies_while_its_event_is_waited_for),
        T(test_a_trainer_that_has_begun_to_exit_is_gone),
        T(test_our_own_handle_is_refused),
        T(test_short_memory_is_refused),
    };
#undef T

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    if (argc == 2 && strcmp(argv[1], "exporter") == 0)
        return ifx_exporter();
    return cmocka_run_group_tests(tests, ifx_open_devices, ifx_close_devices);
}

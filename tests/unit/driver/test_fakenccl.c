/* libfakenccl.so, in groups of processes: what works, and the rules that the real library has. */
#include "tests/unit/nccl_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

static int open_all(void **state)
{
    (void)state;
    return nfx_open() ? 0 : -1;
}

static int close_all(void **state)
{
    struct fakenccl_counts c = nfx_counts();

    (void)state;
    assert_int_equal(c.n_comms, 0);
    assert_int_equal(c.n_jobs, 0);
    nfx_close();
    return 0;
}

static void test_a_unique_id_begins_as_nccls(void **state)
{
    static const char zero[128 - 24];
    struct sockaddr_in at;
    ncclUniqueId a, b;
    ncclComm_t comm;

    (void)state;
    assert_int_equal(nfx.nccl.get_unique_id(&a), ncclSuccess);
    assert_int_equal(nfx.nccl.get_unique_id(&b), ncclSuccess);
    assert_memory_not_equal(&a, &b, 8);
    memcpy(&at, a.internal + 8, sizeof at);
    assert_int_equal(at.sin_family, AF_INET);
    assert_int_equal(ntohl(at.sin_addr.s_addr), INADDR_LOOPBACK);
    assert_true(at.sin_port != 0);
    assert_memory_equal(a.internal + 24, zero, sizeof zero);
    /* both are used up, so that their threads end */
    for (int i = 0; i < 2; i++) {
        comm = nfx_begin(1, 0, i == 0 ? &a : &b);
        assert_int_equal(nfx_outcome(comm), ncclSuccess);
        assert_int_equal(nfx.nccl.comm_destroy(comm), ncclSuccess);
    }
    NFX_UNTIL(nfx_counts().n_roots == 0);
    assert_int_equal(nfx_counts().n_sockets, 0);
}

static void test_two_ranks_meet_warm_up_and_broadcast(void **state)
{
    static const struct {
        uint64_t n_elements, nbytes;
        ncclDataType_t dtype;
    } sent[] = {
        {1, 1, ncclUint8},           {3, 3, ncclInt8},
        {4096, 8192, ncclBfloat16},  {25001, 100004, ncclFloat32},
        {131072, 131072, ncclUint8}, {2621441, 5242882, ncclFloat16},
    };
    struct nfx_peer p;
    ncclComm_t comm = nfx_pair(&p, NULL);
    float mine = 2, sum = 0;
    CUdeviceptr dev, one;
    int n = 0;

    (void)state;
    assert_int_equal(nfx.nccl.comm_count(comm, &n), ncclSuccess);
    assert_int_equal(n, 2);
    assert_int_equal(nfx.nccl.comm_user_rank(comm, &n), ncclSuccess);
    assert_int_equal(n, 1);

    nfx_tell(&p, (struct nfx_command){.what = NFX_WARM});
    assert_int_equal(nfx.cu.mem_alloc(&one, 4), CUDA_SUCCESS);
    assert_int_equal(nfx.cu.memcpy_htod(one, &mine, 4), CUDA_SUCCESS);
    assert_int_equal(
        nfx.nccl.all_reduce((void *)one, (void *)one, 1, ncclFloat32, ncclSum, comm, nfx.stream),
        ncclInProgress);
    assert_int_equal(nfx_outcome(comm), ncclSuccess);
    assert_int_equal(nfx.cu.stream_synchronize(nfx.stream), CUDA_SUCCESS);
    assert_int_equal(nfx.cu.memcpy_dtoh(&sum, one, 4), CUDA_SUCCESS);
    assert_true(sum == 3 && nfx_hear(&p).sum == 3);
    assert_int_equal(nfx.cu.mem_free(one), CUDA_SUCCESS);

    for (uint32_t i = 0; i < sizeof sent / sizeof sent[0]; i++) {
        assert_true(nfx_fill(&dev, sent[i].nbytes, 1000));
        nfx_tell(&p, (struct nfx_command){.what = NFX_BROADCAST,
                                          .n_elements = sent[i].n_elements,
                                          .nbytes = sent[i].nbytes,
                                          .dtype = sent[i].dtype,
                                          .seed = i});
        nfx_receive(comm, dev, sent[i].nbytes);
        nfx_landed();
        assert_int_equal(nfx_n_wrong(dev, sent[i].nbytes, i, 0), 0);
        assert_int_equal(nfx_hear(&p).result, ncclSuccess);
        assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
    }
    assert_int_equal(nfx_ask(&p, (struct nfx_command){.what = NFX_DESTROY}).result, ncclSuccess);
    assert_int_equal(nfx.nccl.comm_abort(comm), ncclSuccess);
    assert_int_equal(nfx_end(&p, false), 0);
}

/* Each of three is root once; what one receives it passes on. */
static void test_three_ranks(void **state)
{
    enum { NBYTES = 300007 };
    struct nfx_peer p[] = {nfx_spawn(NULL), nfx_spawn(NULL)};
    ncclUniqueId id = nfx_mint(&p[1]); /* whoever mints it */
    CUdeviceptr dev;
    ncclComm_t comm;
    float sum = 0;

    (void)state;
    nfx_join(&p[0], 3, 0, id);
    nfx_join(&p[1], 3, 2, id);
    comm = nfx_begin(3, 1, &id);
    assert_int_equal(nfx_outcome(comm), ncclSuccess);
    for (int i = 0; i < 2; i++)
        assert_int_equal(nfx_hear(&p[i]).result, ncclSuccess);

    for (int i = 0; i < 2; i++)
        nfx_tell(&p[i], (struct nfx_command){.what = NFX_WARM});
    /* not in place, on the stream; enqueued only when all are there */
    assert_true(nfx_fill(&dev, 8, 0));
    assert_int_equal(nfx.cu.memcpy_htod(dev, &(float){2}, 4), CUDA_SUCCESS);
    assert_int_equal(nfx.nccl.all_reduce((void *)dev, (void *)(dev + 4), 1, ncclFloat32, ncclSum,
                                         comm, nfx.stream),
                     ncclInProgress);
    assert_int_equal(nfx_outcome(comm), ncclSuccess);
    assert_int_equal(nfx.cu.stream_synchronize(nfx.stream), CUDA_SUCCESS);
    assert_int_equal(nfx.cu.memcpy_dtoh(&sum, dev + 4, 4), CUDA_SUCCESS);
    assert_true(sum == 6 && nfx_hear(&p[0]).sum == 6 && nfx_hear(&p[1]).sum == 6);
    assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);

    for (int root = 0; root < 3; root++) {
        struct nfx_command c = {.what = NFX_BROADCAST,
                                .root = root,
                                .n_elements = NBYTES,
                                .nbytes = NBYTES,
                                .dtype = ncclUint8,
                                .seed = (uint32_t)root + 5};

        assert_true(nfx_fill(&dev, NBYTES, root == 1 ? c.seed : 99));
        nfx_tell(&p[0], c);
        nfx_tell(&p[1], c);
        assert_int_equal(
            nfx.nccl.broadcast((void *)dev, (void *)dev, NBYTES, ncclUint8, root, comm, nfx.stream),
            ncclInProgress);
        assert_int_equal(nfx_outcome(comm), ncclSuccess);
        assert_int_equal(nfx.cu.stream_synchronize(nfx.stream), CUDA_SUCCESS);
        assert_int_equal(nfx_n_wrong(dev, NBYTES, c.seed, 0), 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(nfx_hear(&p[i]).n_wrong, 0);
        assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
    }
    assert_int_equal(nfx.nccl.comm_destroy(comm), ncclSuccess);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(nfx_ask(&p[i], (struct nfx_command){.what = NFX_DESTROY}).result, 0);
        assert_int_equal(nfx_end(&p[i], false), 0);
    }
}

struct local_rank {
    pthread_t thread;
    ncclUniqueId id;
    int rank, device;
    ncclResult_t result;
    char text[NFX_TEXT_MAX];
};

/* Two devices of one process, each with a thread of its own that does all on its communicator. */
static void *run_local_rank(void *arg)
{
    struct local_rank *r = arg;
    ncclComm_t comm;

    if (r->device >= 0)
        nfx_need(nfx.cu.ctx_set_current(nfx.ctx[r->device]) == CUDA_SUCCESS);
    comm = nfx_begin(2, r->rank, &r->id);
    r->result = nfx_outcome(comm);
    (void)snprintf(r->text, sizeof r->text, "%s", nfx.nccl.get_last_error(comm));
    if (r->result == ncclSuccess) {
        CUdeviceptr dev;
        nfx_need(nfx_fill(&dev, 5000, r->rank == 0 ? 7 : 8));
        nfx_need(nfx.nccl.broadcast((void *)dev, (void *)dev, 5000, ncclUint8, 0, comm, NULL) ==
                 ncclInProgress);
        r->result = nfx_outcome(comm); /* the default stream: done when it is enqueued */
        nfx_need(nfx_n_wrong(dev, 5000, 7, 0) == 0 && nfx.cu.mem_free(dev) == CUDA_SUCCESS);
    }
    nfx_need(nfx.nccl.comm_abort(comm) == ncclSuccess);
    return NULL;
}

static void test_ranks_of_one_process(void **state)
{
    static const struct {
        int device[2]; /* -1: the thread has no context */
        ncclResult_t result;
    } rows[] = {{{0, 1}, ncclSuccess}, {{1, 1}, ncclInvalidUsage}, {{-1, 0}, ncclInvalidUsage}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct local_rank r[2];
        ncclUniqueId id;
        assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
        for (int k = 0; k < 2; k++) {
            r[k] = (struct local_rank){.id = id, .rank = k, .device = rows[i].device[k]};
            assert_int_equal(pthread_create(&r[k].thread, NULL, run_local_rank, &r[k]), 0);
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(pthread_join(r[k].thread, NULL), 0);
            assert_int_equal(r[k].result, rows[i].result);
            assert_true((r[k].result != ncclSuccess) ==
                        (strstr(r[k].text, "Duplicate GPU detected : rank ") != NULL));
        }
    }
}

static void wait_for_semaphore(void *arg)
{
    (void)sem_wait(arg);
}

/* Work goes in the order of the calls, also of those on other streams. */
static void test_two_streams(void **state)
{
    enum { NBYTES = 1000 };
    struct nfx_peer p;
    ncclComm_t comm = nfx_pair(&p, NULL);
    fakecuda_enqueue_fn *enqueue = NULL;
    CUstream other;
    CUdeviceptr a = 0, b = 0;
    sem_t go;

    (void)state;
    assert_true(nfx_bind(nfx.cu.lib, &enqueue, "fakecuda_enqueue"));
    assert_int_equal(sem_init(&go, 0, 0), 0);
    assert_int_equal(nfx.cu.stream_create(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    assert_true(nfx_fill(&a, NBYTES, 90) && nfx_fill(&b, NBYTES, 91));
    nfx_send(&p, NBYTES, 1);
    nfx_receive(comm, a, NBYTES);
    nfx_landed(); /* and the ring is there */
    assert_int_equal(nfx_hear(&p).result, ncclSuccess);

    assert_int_equal(enqueue(nfx.stream, wait_for_semaphore, &go), CUDA_SUCCESS);
    nfx_receive(comm, a, NBYTES);
    assert_int_equal(nfx.nccl.broadcast(NULL, (void *)b, NBYTES, ncclUint8, 0, comm, other),
                     ncclInProgress);
    assert_int_equal(nfx_outcome(comm), ncclSuccess);
    for (uint32_t seed = 2; seed <= 3; seed++) {
        nfx_send(&p, NBYTES, seed);
        assert_int_equal(nfx_hear(&p).result, ncclSuccess);
    }
    assert_int_equal(nfx.cu.event_query(nfx.event), CUDA_ERROR_NOT_READY);
    assert_int_equal(nfx.cu.stream_query(other), CUDA_ERROR_NOT_READY); /* though it has come */
    assert_int_equal(sem_post(&go), 0);
    assert_int_equal(nfx.cu.stream_synchronize(other), CUDA_SUCCESS);
    nfx_landed();
    assert_int_equal(nfx_n_wrong(a, NBYTES, 2, 0), 0);
    assert_int_equal(nfx_n_wrong(b, NBYTES, 3, 0), 0);
    assert_int_equal(nfx.nccl.comm_destroy(comm), ncclSuccess);
    assert_int_equal(nfx.cu.stream_destroy(other), CUDA_SUCCESS);
    assert_int_equal(nfx.cu.mem_free(a), CUDA_SUCCESS);
    assert_int_equal(nfx.cu.mem_free(b), CUDA_SUCCESS);
    assert_int_equal(sem_destroy(&go), 0);
    (void)nfx_end(&p, true);
}

/* Until every rank has made the first broadcast, nobody's is enqueued. */
static void test_the_first_collective_connects(void **state)
{
    struct nfx_peer p;
    ncclComm_t comm = nfx_pair(&p, NULL);
    CUdeviceptr dev;
    int n;

    (void)state;
    assert_true(nfx_fill(&dev, 64, 1));
    assert_int_equal(nfx.nccl.broadcast(NULL, (void *)dev, 64, ncclUint8, 0, comm, nfx.stream),
                     ncclInProgress);
    assert_int_equal(nfx_state(comm), ncclInProgress);
    assert_int_equal(nfx.cu.stream_query(nfx.stream), CUDA_SUCCESS); /* nothing there: too early */
    nfx_send(&p, 64, 4);
    assert_int_equal(nfx_outcome(comm), ncclSuccess);
    assert_int_equal(nfx.cu.stream_synchronize(nfx.stream), CUDA_SUCCESS);
    assert_int_equal(nfx_n_wrong(dev, 64, 4, 0), 0);
    assert_int_equal(nfx_hear(&p).result, ncclSuccess);
    /* nothing to do is done at once, and an empty one is not sent */
    assert_int_equal(nfx.nccl.broadcast(NULL, NULL, 0, ncclUint8, 0, comm, nfx.stream),
                     ncclSuccess);
    assert_int_equal(nfx.nccl.comm_count(comm, &n), ncclSuccess);
    assert_int_equal(nfx.nccl.comm_abort(comm), ncclSuccess);
    assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
    (void)nfx_end(&p, true);
}

/* For good: what was refused cannot be asked for again. */
static void test_a_call_too_early_spoils_the_communicator(void **state)
{
    ncclUniqueId id;
    CUdeviceptr dev;
    ncclComm_t comm;
    int n = 77;

    (void)state;
    assert_true(nfx_fill(&dev, 64, 1));
    assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
    for (int i = 0; i < 3; i++) {
        comm = nfx_begin(2, 0, &id); /* nobody else comes */
        if (i == 0)
            assert_int_equal(nfx.nccl.comm_count(comm, &n), ncclInvalidArgument);
        if (i == 1)
            assert_int_equal(nfx.nccl.comm_user_rank(comm, &n), ncclInvalidArgument);
        if (i == 2)
            assert_int_equal(
                nfx.nccl.broadcast(NULL, (void *)dev, 64, ncclUint8, 1, comm, nfx.stream),
                ncclInvalidArgument);
        assert_string_equal(nfx.nccl.get_last_error(NULL),
                            "Attempt to use communicator before the previous operation returned "
                            "ncclSuccess");
        assert_int_equal(nfx_state(comm), ncclInvalidArgument);
        assert_int_equal(nfx.nccl.comm_abort(comm), ncclSuccess);
        /* a second "rank 0" would end the root's wait; another id then */
        assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
    }
    assert_int_equal(n, 77);
    assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
}

static void test_arguments_are_checked(void **state)
{
    ncclUniqueId id = {{0}};
    ncclComm_t comm = (ncclComm_t)(uintptr_t)8, made;
    ncclConfig_t config;
    CUdeviceptr dev;

    (void)state;
    nccl_config_init(&config);
    for (int i = 0; i < 4; i++) {
        static const int ranks[][2] = {{0, 0}, {2, 2}, {2, -1}, {100000, 0}};
        assert_int_equal(
            nfx.nccl.comm_init_rank_config(&comm, ranks[i][0], id, ranks[i][1], &config),
            ncclInvalidArgument);
        assert_ptr_equal(comm, (void *)8); /* as the real one leaves it */
    }
    config.blocking = 5;
    assert_int_equal(nfx.nccl.comm_init_rank_config(&comm, 1, id, 0, &config), ncclInvalidArgument);
    config.magic = 0;
    assert_int_equal(nfx.nccl.comm_init_rank_config(&comm, 1, id, 0, &config), ncclInvalidArgument);
    assert_non_null(strstr(nfx.nccl.get_last_error(NULL), "NCCL_CONFIG_INITIALIZER"));
    assert_int_equal(nfx.nccl.comm_init_rank_config(NULL, 1, id, 0, NULL), ncclInvalidArgument);
    assert_int_equal(nfx.nccl.get_unique_id(NULL), ncclInvalidArgument);
    assert_int_equal(nfx.nccl.comm_abort(NULL), ncclSuccess);
    assert_int_equal(nfx.nccl.comm_destroy(NULL), ncclSuccess);

    comm = nfx_begin(1, 0, &id); /* an id of zeros */
    assert_int_equal(nfx_outcome(comm), ncclInternalError);
    assert_int_equal(nfx.nccl.comm_abort(comm), ncclSuccess);
    assert_int_equal(nfx.nccl.comm_abort(comm), ncclInvalidArgument); /* it is no more */

    assert_true(nfx_fill(&dev, 64, 1));
    for (int i = 0; i < 6; i++) {
        const struct {
            uint64_t at, n_elements;
            ncclDataType_t dtype;
            int root;
        } rows[] = {{dev, 64, 12, 0},
                    {dev, 64, -1, 0},
                    {dev, 64, ncclUint8, 1},
                    {dev, 64, ncclUint8, -1},
                    {dev + 1, 64, ncclUint8, 0},
                    {dev, SIZE_MAX / 2, ncclFloat64, 0}};
        assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
        made = nfx_begin(1, 0, &id);
        assert_int_equal(nfx_outcome(made), ncclSuccess);
        assert_int_equal(nfx.nccl.broadcast((void *)rows[i].at, (void *)rows[i].at,
                                            rows[i].n_elements, rows[i].dtype, rows[i].root, made,
                                            nfx.stream),
                         ncclInvalidArgument);
        assert_int_equal(nfx_state(made), ncclInvalidArgument);
        assert_int_equal(nfx.nccl.comm_abort(made), ncclSuccess);
    }
    assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
}

/* The environment has the last word, also over our configuration. */
static void test_the_environment_decides_about_blocking(void **state)
{
    struct nfx_peer p = nfx_spawn(NULL);
    ncclUniqueId id = nfx_mint(&p);
    ncclConfig_t config;
    ncclComm_t comm;

    (void)state;
    nccl_config_init(&config);
    (void)setenv("NCCL_COMM_BLOCKING", "1", 1);
    nfx_join(&p, 2, 0, id);
    assert_int_equal(nfx.nccl.comm_init_rank_config(&comm, 2, id, 1, &config), ncclSuccess);
    assert_int_equal(nfx_hear(&p).result, ncclSuccess);
    assert_int_equal(nfx.nccl.comm_abort(comm), ncclSuccess);
    nccl_environment();
    config.blocking = 1;
    assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
    assert_int_equal(nfx.nccl.comm_init_rank_config(&comm, 2, id, 1, &config), ncclInProgress);
    assert_int_equal(nfx.nccl.comm_abort(comm), ncclSuccess);
    (void)unsetenv("NCCL_COMM_BLOCKING");
    (void)nfx_end(&p, true);
}

struct finalizer {
    ncclComm_t comm;
    atomic_bool told; /* the peer, to leave */
    bool told_before; /* it returned */
};

static void *run_finalize(void *arg)
{
    struct finalizer *f = arg;

    nfx_need(nfx.finalize(f->comm) == ncclSuccess);
    f->told_before = atomic_load(&f->told);
    return NULL;
}

/* And meanwhile nobody else gets into the communicator. */
static void test_finalize_waits_for_the_peer(void **state)
{
    struct nfx_peer p;
    struct finalizer f = {.comm = nfx_pair(&p, NULL)};
    uint64_t n_races = nfx_counts().n_races;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, run_finalize, &f), 0);
    NFX_UNTIL(nfx_counts().n_hung == 1);
    assert_int_equal(nfx.nccl.comm_abort(f.comm), ncclInternalError);
    assert_non_null(strstr(nfx.nccl.get_last_error(NULL), "another thread"));
    assert_int_equal(nfx_counts().n_races, n_races + 1);
    atomic_store(&f.told, true);
    assert_int_equal(nfx_ask(&p, (struct nfx_command){.what = NFX_DESTROY}).result, ncclSuccess);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(f.told_before);
    assert_int_equal(nfx.finalize(f.comm), ncclInvalidArgument); /* once */
    assert_int_equal(nfx.nccl.comm_destroy(f.comm), ncclSuccess);
    assert_int_equal(nfx_end(&p, false), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_unique_id_begins_as_nccls),
        cmocka_unit_test(test_two_ranks_meet_warm_up_and_broadcast),
        cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_ranks_of_one_process),
        cmocka_unit_test(test_two_streams),
        cmocka_unit_test(test_the_first_collective_connects),
        cmocka_unit_test(test_a_call_too_early_spoils_the_communicator),
        cmocka_unit_test(test_arguments_are_checked),
        cmocka_unit_test(test_the_environment_decides_about_blocking),
        cmocka_unit_test(test_finalize_waits_for_the_peer),
    };

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    if (argc == 2 && strcmp(argv[1], "peer") == 0)
        return nfx_peer_main();
    return cmocka_run_group_tests(tests, open_all, close_all);
}

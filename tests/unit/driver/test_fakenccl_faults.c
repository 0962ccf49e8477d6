/* libfakenccl.so, when something is wrong: what is told, what only hangs, and what abort ends. */
#include "tests/unit/nccl_fixture.h"

#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

enum { NBYTES = 300000 };

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
    assert_int_equal(c.n_hung, 0);
    assert_int_equal(c.n_races, 0);
    nfx_close();
    return 0;
}

static void abort_one(ncclComm_t comm)
{
    assert_int_equal(nfx.nccl.comm_abort(comm), ncclSuccess);
}

/* A pair whose ring for broadcasts is made, so that a receive is enqueued without the peer. */
static ncclComm_t pair_in_use(struct nfx_peer *p, CUdeviceptr *dev)
{
    ncclComm_t comm = nfx_pair(p, NULL);

    assert_true(nfx_fill(dev, NBYTES, 77));
    nfx_send(p, 10, 1);
    nfx_receive(comm, *dev, 10);
    nfx_landed();
    assert_int_equal(nfx_hear(p).result, ncclSuccess);
    return comm;
}

/* After an abort the stream goes on, and the memory can go. */
static void check_the_stream_lives(CUdeviceptr dev)
{
    nfx_landed();
    assert_int_equal(nfx.cu.stream_synchronize(nfx.stream), CUDA_SUCCESS);
    assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
}

static void test_other_versions_are_told_of(void **state)
{
    struct nfx_peer p = nfx_spawn("FAKENCCL_VERSION=22803");
    ncclUniqueId id = nfx_mint(&p);
    struct err e = {0};
    ncclComm_t comm;
    bool done = false;
    struct nfx_answer a;

    (void)state;
    nfx_join(&p, 2, 1, id);
    comm = nfx_begin(2, 0, &id);
    assert_int_equal(nfx_outcome(comm), ncclInvalidUsage);
    assert_int_equal(nccl_poll(&nfx.nccl, comm, "ncclCommInitRankConfig", &done, &e), -1);
    assert_string_equal(e.msg, "ncclCommInitRankConfig: ncclInvalidUsage (5): invalid usage (run "
                               "with NCCL_DEBUG=WARN for details): Mismatched NCCL version "
                               "detected : rank 1 version 22803 rank 0 version 22809");
    a = nfx_hear(&p);
    assert_int_equal(a.result, ncclInvalidUsage);
    assert_string_equal(
        a.text, "Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 22803");
    abort_one(comm);
    assert_int_equal(nfx_ask(&p, (struct nfx_command){.what = NFX_ABORT}).result, ncclSuccess);
    assert_int_equal(nfx_end(&p, false), 0);
}

/* No word of it on either side. */
static void test_init_hangs(void **state)
{
    static const struct {
        const char *env;
        int n_ranks; /* as the peer has it */
        bool both_hang;
    } rows[] = {
        {NULL, 3, false},
        {"NCCL_CUMEM_ENABLE=0", 2, true},
        {"FAKENCCL_HANG_INIT=1", 2, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct nfx_peer p = nfx_spawn(rows[i].env);
        uint64_t n_roots = nfx_counts().n_roots;
        ncclUniqueId id;
        ncclComm_t comm;

        assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
        nfx_join(&p, rows[i].n_ranks, 0, id);
        comm = nfx_begin(2, 1, &id);
        NFX_UNTIL(nfx_counts().n_roots == n_roots); /* both have come */
        if (rows[i].both_hang)
            NFX_UNTIL(nfx_counts().n_hung == 1);
        assert_int_equal(nfx_state(comm), ncclInProgress);
        abort_one(comm);
        assert_true(WIFSIGNALED(nfx_end(&p, true))); /* it had not come back */
    }
}

static void test_a_peer_that_does_not_join(void **state)
{
    struct nfx_peer p = nfx_spawn("FAKENCCL_REFUSE_JOIN=1");
    ncclUniqueId id = nfx_mint(&p);
    ncclComm_t comm = nfx_begin(2, 1, &id);

    (void)state;
    nfx_join(&p, 2, 0, id);
    assert_int_equal(nfx_hear(&p).result, ncclSystemError);
    assert_int_equal(nfx_state(comm), ncclInProgress);
    abort_one(comm);
    /* nor is the one behind an id there any more */
    id = nfx_mint(&p);
    (void)nfx_end(&p, true);
    comm = nfx_begin(2, 1, &id);
    assert_int_equal(nfx_state(comm), ncclInProgress);
    abort_one(comm);
}

/* Connections that are nobody's do no harm, and one that stays silent only some. */
static void test_strangers_are_hung_up_on(void **state)
{
    struct sockaddr_in at;
    ncclUniqueId id;
    ncclComm_t comm;
    char junk[4096];

    (void)state;
    memset(junk, 0xaa, sizeof junk);
    assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
    memcpy(&at, id.internal + 8, sizeof at);
    for (int i = 0; i < 3; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (i == 2)
            memcpy(junk, id.internal, 8); /* knows the number, and says nonsense */
        assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
        if (i > 0)
            (void)send(fd, junk, sizeof junk, MSG_NOSIGNAL);
        assert_int_equal(close(fd), 0);
    }
    comm = nfx_begin(1, 0, &id);
    assert_int_equal(nfx_outcome(comm), ncclSuccess);
    abort_one(comm);
}

/* Over a GPU's own links a receiver is not told; over sockets it is, and waits all the same. */
static void test_a_peer_that_dies_in_a_broadcast(void **state)
{
    (void)state;
    for (int sockets = 0; sockets <= 1; sockets++) {
        uint64_t n_gone = nfx_counts().n_gone;
        struct nfx_peer p;
        ncclComm_t comm;
        ncclResult_t posted;
        CUdeviceptr dev;
        int status;

        (void)setenv("FAKENCCL_TRANSPORT", sockets ? "socket" : "p2p", 1);
        comm = nfx_pair(&p, "FAKENCCL_DIE_AFTER_BYTES=100000");
        assert_true(nfx_fill(&dev, NBYTES, 77));
        nfx_send(&p, NBYTES, 6);
        posted = nfx_post(comm, dev, NBYTES); /* it may be dead by then */
        assert_true(posted == ncclSuccess || (sockets && posted == ncclRemoteError));
        status = nfx_end(&p, false);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        NFX_UNTIL(nfx_counts().n_gone == n_gone + 1);
        assert_int_equal(nfx_state(comm), sockets ? ncclRemoteError : ncclSuccess);
        assert_int_equal(nfx.cu.event_query(nfx.event), CUDA_ERROR_NOT_READY);
        assert_int_equal(nfx_n_wrong(dev, 100000, 6, 0), 0); /* what came, came */
        if (sockets)
            assert_non_null(strstr(nfx.nccl.get_last_error(NULL), "closed by remote peer"));
        abort_one(comm);
        check_the_stream_lives(dev);
    }
    (void)unsetenv("FAKENCCL_TRANSPORT");
}

static void test_a_peer_that_stalls(void **state)
{
    uint64_t before = nfx_counts().nbytes;
    struct nfx_peer p;
    ncclComm_t comm = nfx_pair(&p, "FAKENCCL_STALL_AFTER_BYTES=131073");
    CUdeviceptr dev;

    (void)state;
    assert_true(nfx_fill(&dev, NBYTES, 77));
    nfx_send(&p, NBYTES, 6);
    nfx_receive(comm, dev, NBYTES);
    NFX_UNTIL(nfx_counts().nbytes == before + 131072); /* the last byte is of a piece begun */
    assert_int_equal(nfx_state(comm), ncclSuccess);
    assert_int_equal(nfx.cu.event_query(nfx.event), CUDA_ERROR_NOT_READY);
    abort_one(comm);
    check_the_stream_lives(dev);
    (void)nfx_end(&p, true);
}

/* The receiver's own. */
static void test_a_receiver_that_stalls(void **state)
{
    struct nfx_peer p;
    ncclComm_t comm;
    CUdeviceptr dev;

    (void)state;
    (void)setenv("FAKENCCL_STALL_AFTER_BYTES", "0", 1);
    comm = nfx_pair(&p, NULL);
    (void)unsetenv("FAKENCCL_STALL_AFTER_BYTES");
    assert_true(nfx_fill(&dev, NBYTES, 77));
    nfx_send(&p, NBYTES, 6);
    nfx_receive(comm, dev, NBYTES);
    NFX_UNTIL(nfx_counts().n_hung == 1);
    assert_int_equal(nfx_n_wrong(dev, NBYTES, 77, 0), 0);
    abort_one(comm);
    check_the_stream_lives(dev);
    (void)nfx_end(&p, true);
}

/* Nobody notices: the missing bytes are taken from the next one, and the last one waits. */
static void test_a_peer_that_sends_less(void **state)
{
    enum { N = 1000, MISSING = 10 };
    uint64_t before = nfx_counts().nbytes;
    struct nfx_peer p;
    ncclComm_t comm = nfx_pair(&p, "FAKENCCL_SHORT=10");
    CUdeviceptr dev;

    (void)state;
    assert_true(nfx_fill(&dev, N, 77));
    nfx_send(&p, N, 1);
    nfx_receive(comm, dev, N);
    assert_int_equal(nfx_hear(&p).result, ncclSuccess); /* it went on */
    assert_int_equal(nfx_state(comm), ncclSuccess);
    assert_int_equal(nfx.cu.event_query(nfx.event), CUDA_ERROR_NOT_READY);
    nfx_send(&p, N, 2);
    nfx_landed();
    assert_int_equal(nfx_hear(&p).result, ncclSuccess);
    assert_int_equal(nfx_n_wrong(dev, N - MISSING, 1, 0), 0);
    assert_int_equal(nfx_n_wrong(dev + N - MISSING, MISSING, 2, 0), 0);
    assert_int_equal(nfx_counts().nbytes, before + N);
    nfx_receive(comm, dev, N);
    assert_int_equal(nfx.cu.event_query(nfx.event), CUDA_ERROR_NOT_READY); /* 20 are missing */
    abort_one(comm);
    check_the_stream_lives(dev);
    (void)nfx_end(&p, true);
}

/* A peer that leaves properly in the middle looks the same. */
static void test_a_peer_that_leaves(void **state)
{
    uint64_t n_gone = nfx_counts().n_gone;
    struct nfx_peer p;
    CUdeviceptr dev;
    ncclComm_t comm = pair_in_use(&p, &dev);

    (void)state;
    nfx_receive(comm, dev, NBYTES);
    assert_int_equal(nfx_ask(&p, (struct nfx_command){.what = NFX_ABORT}).result, ncclSuccess);
    NFX_UNTIL(nfx_counts().n_gone == n_gone + 1);
    assert_int_equal(nfx_state(comm), ncclSuccess);
    abort_one(comm);
    check_the_stream_lives(dev);
    assert_int_equal(nfx_end(&p, false), 0);
}

static size_t n_entries(const char *path)
{
    DIR *dir = opendir(path);
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    assert_int_equal(closedir(dir), 0);
    return n;
}

/* In each state that a communicator can be in: its threads, descriptors and memory go (the last as
 * the sanitizer says). */
static void test_abort_frees_everything(void **state)
{
    enum stage { IN_INIT, IDLE, IN_ENQUEUE, IN_WORK, BEHIND_OTHERS, FAILED, STAGES };
    size_t n_fds = n_entries("/proc/self/fd"), n_threads = n_entries("/proc/self/task");
    struct fakenccl_counts before = nfx_counts(), after;

    (void)state;
    for (int i = 0; i < 2 * STAGES; i++) {
        enum stage stage = (enum stage)(i % STAGES);
        struct nfx_peer p = {.pid = -1};
        CUdeviceptr dev = 0;
        ncclUniqueId id;
        ncclComm_t comm;

        if (stage == IN_INIT) {
            p = nfx_spawn(NULL);
            id = nfx_mint(&p);
            comm = nfx_begin(2, 1, &id);
        } else {
            comm = pair_in_use(&p, &dev);
        }
        if (stage == IN_ENQUEUE) /* the peer comes to no all-reduce */
            assert_int_equal(nfx.nccl.all_reduce((void *)dev, (void *)dev, 1, ncclFloat32, ncclSum,
                                                 comm, nfx.stream),
                             ncclInProgress);
        if (stage == BEHIND_OTHERS)
            nfx.hold(true);
        if (stage == IN_WORK || stage == BEHIND_OTHERS)
            nfx_receive(comm, dev, NBYTES);
        if (stage == FAILED)
            assert_int_equal(nfx.nccl.broadcast(NULL, NULL, 1, ncclUint8, 0, comm, nfx.stream),
                             ncclInvalidArgument);
        abort_one(comm);
        if (stage == BEHIND_OTHERS)
            nfx.hold(false);
        if (dev != 0)
            check_the_stream_lives(dev);
        (void)nfx_end(&p, true);
    }
    after = nfx_counts();
    assert_int_equal(after.n_comms, before.n_comms);
    assert_int_equal(after.n_jobs, before.n_jobs);
    assert_int_equal(after.n_sockets, before.n_sockets);
    assert_int_equal(after.n_hung, 0);
    assert_int_equal(n_entries("/proc/self/fd"), n_fds);
    NFX_UNTIL(n_entries("/proc/self/task") == n_threads); /* the kernel may be a little later */
}

static void *run_abort(void *arg)
{
    nfx_need(nfx.nccl.comm_abort(arg) == ncclSuccess);
    return NULL;
}

/* The last of the tests: from here on no abort sticks any more. */
static void test_an_abort_that_sticks(void **state)
{
    uint64_t n_aborts = nfx_counts().n_aborts;
    pthread_t thread;
    ncclUniqueId id;
    ncclComm_t comm;

    (void)state;
    assert_int_equal(nfx.nccl.get_unique_id(&id), ncclSuccess);
    (void)setenv("FAKENCCL_ABORT_STICKS", "1", 1);
    comm = nfx_begin(2, 1, &id);
    (void)unsetenv("FAKENCCL_ABORT_STICKS");
    assert_int_equal(pthread_create(&thread, NULL, run_abort, comm), 0);
    NFX_UNTIL(nfx_counts().n_aborts == n_aborts + 1);
    assert_int_equal(nfx_counts().n_comms, 1);
    nfx.release_aborts();
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(nfx_counts().n_comms, 0);
}

static ncclResult_t outcome(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress, result = ncclSuccess;

    NFX_UNTIL((result = nfx.nccl.comm_get_async_error(comm, &state)) != ncclSuccess ||
              state != ncclInProgress);
    return result != ncclSuccess ? result : state;
}

/* Joins alone, sums, broadcasts, leaves. The first result that is not as it should be. */
static ncclResult_t go_through(CUdeviceptr dev, bool destroy)
{
    const void *from = (void *)dev;
    ncclResult_t result, left;
    ncclComm_t comm = NULL;
    ncclConfig_t config;
    ncclUniqueId id;
    int n;

    nccl_config_init(&config);
    result = nfx.nccl.get_unique_id(&id);
    if (result == ncclSuccess)
        result = nfx.nccl.comm_init_rank_config(&comm, 1, id, 0, &config);
    if (result == ncclInProgress)
        result = outcome(comm);
    if (result == ncclSuccess)
        result = nfx.nccl.comm_count(comm, &n);
    if (result == ncclSuccess)
        result = nfx.nccl.comm_user_rank(comm, &n);
    if (result == ncclSuccess)
        result = nfx.nccl.all_reduce(from, (void *)dev, 1, ncclFloat32, ncclSum, comm, nfx.stream);
    if (result == ncclInProgress)
        result = outcome(comm);
    if (result == ncclSuccess)
        result = nfx.nccl.broadcast(from, (void *)dev, 4, ncclUint8, 0, comm, nfx.stream);
    if (result == ncclInProgress)
        result = outcome(comm);
    left = destroy ? nfx.nccl.comm_destroy(comm) : nfx.nccl.comm_abort(comm);
    return result != ncclSuccess ? result : left;
}

/* And what is to be given back is given back all the same. */
static void test_each_call_fails_when_told(void **state)
{
    static const struct {
        const char *call;
        bool can_be_async;
    } rows[] = {
        {"ncclGetUniqueId", false},       {"ncclCommInitRankConfig", true},
        {"ncclCommGetAsyncError", false}, {"ncclCommCount", false},
        {"ncclCommUserRank", false},      {"ncclAllReduce", true},
        {"ncclBroadcast", true},          {"ncclCommDestroy", false},
        {"ncclCommAbort", false},
    };
    CUdeviceptr dev;

    (void)state;
    assert_true(nfx_fill(&dev, 8, 0));
    for (int async = 0; async <= 1; async++) {
        (void)setenv("FAKENCCL_FAIL_ASYNC", async ? "1" : "0", 1);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            struct fakenccl_counts before = nfx_counts(), after;
            if (async && !rows[i].can_be_async)
                continue;
            nfx.let_fail(rows[i].call, 1);
            assert_int_equal(go_through(dev, i % 2 == 1), ncclInternalError);
            after = nfx_counts();
            assert_int_equal(after.n_comms, 0);
            assert_int_equal(after.n_comms_made - before.n_comms_made, i > 1 || async);
            assert_int_equal(go_through(dev, i % 2 == 0), ncclSuccess); /* once */
        }
    }
    nfx.let_fail(NULL, 3);
    assert_int_equal(go_through(dev, true), ncclInternalError);
    (void)unsetenv("FAKENCCL_FAIL_ASYNC");
    assert_int_equal(nfx.cu.mem_free(dev), CUDA_SUCCESS);
}

/* The environment says it too, and how it all ended is in a file. */
static void test_a_process_is_told_and_reports(void **state)
{
    char path[] = "/tmp/fakenccl-XXXXXX", env[256], line[512];
    struct nfx_peer p;
    ncclUniqueId id;
    FILE *report;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    (void)snprintf(env, sizeof env,
                   "FAKENCCL_REPORT=%s FAKENCCL_FAIL_NTH=2 FAKENCCL_FAIL_RESULT=2 "
                   "FAKENCCL_FAIL_CALL=ncclCommInitRank",
                   path);
    p = nfx_spawn(env);
    for (int i = 0; i < 3; i++) {
        id = nfx_mint(&p);
        nfx_join(&p, 1, 0, id);
        assert_int_equal(nfx_hear(&p).result, i == 1 ? ncclSystemError : ncclSuccess);
        if (i != 1)
            assert_int_equal(nfx_ask(&p, (struct nfx_command){.what = NFX_ABORT}).result, 0);
    }
    assert_int_equal(nfx_end(&p, false), 0);
    report = fdopen(fd, "r");
    assert_non_null(report);
    assert_non_null(fgets(line, sizeof line, report));
    assert_non_null(strstr(line, "{\"comms\": 0, \"jobs\": 0, "));
    assert_non_null(strstr(line, "\"comms_made\": 2, \"aborts\": 2, "));
    assert_int_equal(fclose(report), 0);
    assert_int_equal(unlink(path), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abort_frees_everything), /* before any id that is left open */
        cmocka_unit_test(test_other_versions_are_told_of),
        cmocka_unit_test(test_init_hangs),
        cmocka_unit_test(test_a_peer_that_does_not_join),
        cmocka_unit_test(test_strangers_are_hung_up_on),
        cmocka_unit_test(test_a_peer_that_dies_in_a_broadcast),
        cmocka_unit_test(test_a_peer_that_stalls),
        cmocka_unit_test(test_a_receiver_that_stalls),
        cmocka_unit_test(test_a_peer_that_sends_less),
        cmocka_unit_test(test_a_peer_that_leaves),
        cmocka_unit_test(test_each_call_fails_when_told),
        cmocka_unit_test(test_a_process_is_told_and_reports),
        cmocka_unit_test(test_an_abort_that_sticks),
    };

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    if (argc == 2 && strcmp(argv[1], "peer") == 0)
        return nfx_peer_main();
    return cmocka_run_group_tests(tests, open_all, close_all);
}

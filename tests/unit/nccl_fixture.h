/* NCCL groups over libfakenccl.so and libfakecuda.so: the test is one rank, without blocking; the
 * others are this program run again with the argument "peer", spoken to through pipes, and block,
 * as trainers do. */
#ifndef BATON_TESTS_NCCL_FIXTURE_H
#define BATON_TESTS_NCCL_FIXTURE_H

#include "driver/cuda.h"
#include "driver/nccl.h"
#include "tests/fakes/libcuda/fakecuda.h"
#include "tests/fakes/libnccl/fakenccl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { NFX_PATIENCE_S = 60, NFX_TEXT_MAX = 160, NFX_ENV_MAX = 8, NFX_EXIT_BROKEN = 3 };

/* Byte i of what was made from `seed`. */
static inline uint8_t nfx_byte(uint32_t seed, uint64_t i)
{
    return (uint8_t)(seed * 31 + i * 7 + (i >> 8) + 1);
}

struct nfx {
    struct cu_api cu;
    struct nccl_api nccl;
    ncclResult_t (*init_rank)(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank);
    ncclResult_t (*finalize)(ncclComm_t comm);
    fakenccl_counts_fn *read_counts;
    fakenccl_queued_fn *n_queued;
    fakenccl_fail_fn *let_fail;
    fakenccl_release_aborts_fn *release_aborts;
    fakecuda_hold_fn *hold;
    CUcontext ctx[2];
    CUstream stream;
    CUevent event;
};

static struct nfx nfx;

static inline bool nfx_bind(void *lib, void *to, const char *name)
{
    void *at = dlsym(lib, name);

    if (at != NULL)
        memcpy(to, &at, sizeof at);
    return at != NULL;
}

static inline bool nfx_open(void)
{
    struct err e = {0};

    return cu_load(&nfx.cu, FAKECUDA, &e) == 0 && nccl_load(&nfx.nccl, FAKENCCL, &e) == 0 &&
           nfx_bind(nfx.nccl.lib, &nfx.init_rank, "ncclCommInitRank") &&
           nfx_bind(nfx.nccl.lib, &nfx.finalize, "ncclCommFinalize") &&
           nfx_bind(nfx.nccl.lib, &nfx.read_counts, "fakenccl_counts") &&
           nfx_bind(nfx.nccl.lib, &nfx.n_queued, "fakenccl_queued") &&
           nfx_bind(nfx.nccl.lib, &nfx.let_fail, "fakenccl_fail") &&
           nfx_bind(nfx.nccl.lib, &nfx.release_aborts, "fakenccl_release_aborts") &&
           nfx_bind(nfx.cu.lib, &nfx.hold, "fakecuda_hold") && nfx.cu.init(0) == CUDA_SUCCESS &&
           nfx.cu.primary_ctx_retain(&nfx.ctx[0], 0) == CUDA_SUCCESS &&
           nfx.cu.primary_ctx_retain(&nfx.ctx[1], 1) == CUDA_SUCCESS &&
           nfx.cu.ctx_set_current(nfx.ctx[0]) == CUDA_SUCCESS &&
           nfx.cu.stream_create(&nfx.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           nfx.cu.event_create(&nfx.event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
}

static inline void nfx_close(void)
{
    (void)nfx.cu.event_destroy(nfx.event);
    (void)nfx.cu.stream_destroy(nfx.stream);
    (void)nfx.cu.primary_ctx_release(1);
    (void)nfx.cu.primary_ctx_release(0);
    nccl_unload(&nfx.nccl);
    cu_unload(&nfx.cu);
}

/* A device block with the bytes of `seed`; of another seed than any, where they must change. */
static inline bool nfx_fill(CUdeviceptr *dev, uint64_t nbytes, uint32_t seed)
{
    uint8_t *bytes = malloc(nbytes);
    bool good = bytes != NULL && nfx.cu.mem_alloc(dev, nbytes) == CUDA_SUCCESS;

    for (uint64_t i = 0; good && i < nbytes; i++)
        bytes[i] = nfx_byte(seed, i);
    good = good && nfx.cu.memcpy_htod(*dev, bytes, nbytes) == CUDA_SUCCESS;
    free(bytes);
    return good;
}

/* How many of [0, nbytes) are not byte `from` and on of `seed`. */
static inline uint64_t nfx_n_wrong(CUdeviceptr dev, uint64_t nbytes, uint32_t seed, uint64_t from)
{
    uint8_t *bytes = malloc(nbytes);
    uint64_t n = 0;

    if (bytes == NULL || nfx.cu.memcpy_dtoh(bytes, dev, nbytes) != CUDA_SUCCESS) {
        free(bytes);
        return nbytes;
    }
    for (uint64_t i = 0; i < nbytes; i++)
        n += bytes[i] != nfx_byte(seed, from + i);
    free(bytes);
    return n;
}

/* The other process. */

enum nfx_what { NFX_MINT, NFX_JOIN, NFX_WARM, NFX_BROADCAST, NFX_ABORT, NFX_DESTROY, NFX_FINALIZE };

struct nfx_command {
    enum nfx_what what;
    int32_t rank, n_ranks, root, dtype;
    uint32_t seed;
    uint64_t n_elements, nbytes;
    ncclUniqueId id;
};

struct nfx_answer {
    int32_t result;
    float sum;
    uint64_t n_wrong;
    ncclUniqueId id;
    char text[NFX_TEXT_MAX];
};

struct nfx_peer {
    pid_t pid;
    int in, out;
};

static inline void nfx_need(bool good)
{
    if (!good)
        _exit(NFX_EXIT_BROKEN);
}

static inline int32_t nfx_do_broadcast(const struct nfx_command *c, ncclComm_t comm, int rank,
                                       struct nfx_answer *a)
{
    bool root = c->root == rank;
    CUdeviceptr dev;
    int32_t result;

    nfx_need(nfx_fill(&dev, c->nbytes, root ? c->seed : c->seed + 1));
    result = nfx.nccl.broadcast(root ? (const void *)dev : NULL, (void *)dev, c->n_elements,
                                c->dtype, c->root, comm, nfx.stream);
    nfx_need(nfx.cu.stream_synchronize(nfx.stream) == CUDA_SUCCESS);
    a->n_wrong = nfx_n_wrong(dev, c->nbytes, c->seed, 0);
    nfx_need(nfx.cu.mem_free(dev) == CUDA_SUCCESS);
    return result;
}

/* vLLM's: one float of every rank, not in place; here of value rank + 1. */
static inline int32_t nfx_warm(ncclComm_t comm, int rank, float *sum)
{
    float mine = (float)(rank + 1);
    CUdeviceptr from, to;
    int32_t result;

    nfx_need(nfx.cu.mem_alloc(&from, 4) == CUDA_SUCCESS);
    nfx_need(nfx.cu.mem_alloc(&to, 4) == CUDA_SUCCESS);
    nfx_need(nfx.cu.memcpy_htod(from, &mine, 4) == CUDA_SUCCESS);
    result = nfx.nccl.all_reduce((const void *)from, (void *)to, 1, ncclFloat32, ncclSum, comm,
                                 nfx.stream);
    nfx_need(nfx.cu.stream_synchronize(nfx.stream) == CUDA_SUCCESS);
    nfx_need(nfx.cu.memcpy_dtoh(sum, to, 4) == CUDA_SUCCESS);
    nfx_need(nfx.cu.mem_free(from) == CUDA_SUCCESS && nfx.cu.mem_free(to) == CUDA_SUCCESS);
    return result;
}

static inline void nfx_do(const struct nfx_command *c, ncclComm_t *comm, int *rank,
                          struct nfx_answer *a)
{
    switch (c->what) {
    case NFX_MINT:
        a->result = nfx.nccl.get_unique_id(&a->id);
        break;
    case NFX_JOIN:
        *rank = c->rank;
        a->result = nfx.init_rank(comm, c->n_ranks, c->id, c->rank);
        break;
    case NFX_WARM:
        a->result = nfx_warm(*comm, *rank, &a->sum);
        break;
    case NFX_BROADCAST:
        a->result = nfx_do_broadcast(c, *comm, *rank, a);
        break;
    case NFX_ABORT:
        a->result = nfx.nccl.comm_abort(*comm);
        break;
    case NFX_DESTROY:
        a->result = nfx.nccl.comm_destroy(*comm);
        break;
    case NFX_FINALIZE:
        a->result = nfx.finalize(*comm);
        break;
    }
    (void)snprintf(a->text, sizeof a->text, "%s", nfx.nccl.get_last_error(NULL));
}

/* main of the other process: until its input ends. */
static inline int nfx_peer_main(void)
{
    ncclComm_t comm = NULL;
    struct nfx_command c;
    int rank = 0;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it may wait for ever */
    nfx_need(nfx_open());
    while (read(STDIN_FILENO, &c, sizeof c) == (ssize_t)sizeof c) {
        struct nfx_answer a = {0};
        nfx_do(&c, &comm, &rank, &a);
        nfx_need(write(STDOUT_FILENO, &a, sizeof a) == (ssize_t)sizeof a);
    }
    nfx_close();
    return 0;
}

/* ... and seen from here. */

/* This process's environment, behind what `env` says ("NAME=VALUE NAME=VALUE", or NULL): the first
 * of a name counts. @text  a copy of env, cut into pieces; the caller's, as the array is */
static inline char **nfx_environment(char *text)
{
    char **out, *rest = NULL;
    size_t n = 0, n_new = 0;

    while (environ[n] != NULL)
        n++;
    out = malloc((n + NFX_ENV_MAX + 1) * sizeof(char *));
    assert_non_null(out);
    for (char *one = text != NULL ? strtok_r(text, " ", &rest) : NULL; one != NULL;
         one = strtok_r(NULL, " ", &rest)) {
        assert_true(n_new < NFX_ENV_MAX);
        out[n_new++] = one;
    }
    memcpy(out + n_new, environ, (n + 1) * sizeof(char *));
    return out;
}

/* Not by fork: its child, of a process with threads, could wait for a lock of the allocator's for
 * ever. @env  as above */
static inline struct nfx_peer nfx_spawn(const char *env)
{
    char *const args[] = {(char[]){"nccl"}, (char[]){"peer"}, NULL};
    char *text = env != NULL ? strdup(env) : NULL;
    char **environment = nfx_environment(text);
    posix_spawn_file_actions_t actions;
    struct nfx_peer p;
    int in[2], out[2];

    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO), 0);
    assert_int_equal(posix_spawn(&p.pid, "/proc/self/exe", &actions, NULL, args, environment), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    free(environment);
    free(text);
    (void)close(in[0]);
    (void)close(out[1]);
    p.in = in[1];
    p.out = out[0];
    return p;
}

static inline void nfx_tell(const struct nfx_peer *p, struct nfx_command c)
{
    assert_int_equal(write(p->in, &c, sizeof c), sizeof c);
}

static inline struct nfx_answer nfx_hear(const struct nfx_peer *p)
{
    struct pollfd answered = {.fd = p->out, .events = POLLIN};
    struct nfx_answer a;

    assert_int_equal(poll(&answered, 1, NFX_PATIENCE_S * 1000), 1);
    assert_int_equal(read(p->out, &a, sizeof a), sizeof a);
    return a;
}

static inline struct nfx_answer nfx_ask(const struct nfx_peer *p, struct nfx_command c)
{
    nfx_tell(p, c);
    return nfx_hear(p);
}

/* Its wait status. @kill_it  or let it end by itself */
static inline int nfx_end(struct nfx_peer *p, bool kill_it)
{
    int status;

    if (kill_it)
        (void)kill(p->pid, SIGKILL);
    (void)close(p->in);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    (void)close(p->out);
    return status;
}

static inline struct fakenccl_counts nfx_counts(void)
{
    struct fakenccl_counts c;

    nfx.read_counts(&c);
    return c;
}

/* What has no event to wait on is asked for again and again, and not for ever. */
#define NFX_UNTIL(condition)                                                                       \
    do {                                                                                           \
        time_t nfx_end_s = time(NULL) + NFX_PATIENCE_S;                                            \
        while (!(condition)) {                                                                     \
            const struct timespec pause = {0, 200000};                                             \
            (void)nanosleep(&pause, NULL);                                                         \
            if (time(NULL) > nfx_end_s)                                                            \
                fail_msg("waited in vain for %s", #condition);                                     \
        }                                                                                          \
    } while (0)

static inline ncclResult_t nfx_state(ncclComm_t comm)
{
    ncclResult_t state = ncclSuccess;

    assert_int_equal(nfx.nccl.comm_get_async_error(comm, &state), ncclSuccess);
    return state;
}

/* What the last call came to. */
static inline ncclResult_t nfx_outcome(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;

    NFX_UNTIL((state = nfx_state(comm)) != ncclInProgress);
    return state;
}

static inline ncclComm_t nfx_begin(int n_ranks, int rank, const ncclUniqueId *id)
{
    ncclComm_t comm = NULL;
    ncclConfig_t config;

    nccl_config_init(&config);
    assert_int_equal(nfx.nccl.comm_init_rank_config(&comm, n_ranks, *id, rank, &config),
                     ncclInProgress);
    assert_non_null(comm);
    return comm;
}

static inline ncclUniqueId nfx_mint(const struct nfx_peer *p)
{
    struct nfx_answer a = nfx_ask(p, (struct nfx_command){.what = NFX_MINT});

    assert_int_equal(a.result, ncclSuccess);
    return a.id;
}

static inline void nfx_join(const struct nfx_peer *p, int n_ranks, int rank, ncclUniqueId id)
{
    nfx_tell(p, (struct nfx_command){.what = NFX_JOIN, .n_ranks = n_ranks, .rank = rank, .id = id});
}

/* A peer that is rank 0 and the test that is rank 1, joined. */
static inline ncclComm_t nfx_pair(struct nfx_peer *p, const char *env)
{
    ncclUniqueId id;
    ncclComm_t comm;

    *p = nfx_spawn(env);
    id = nfx_mint(p);
    nfx_join(p, 2, 0, id);
    comm = nfx_begin(2, 1, &id);
    assert_int_equal(nfx_outcome(comm), ncclSuccess);
    assert_int_equal(nfx_hear(p).result, ncclSuccess);
    return comm;
}

/* The peer's broadcast of nbytes, which it has not begun to answer for. */
static inline void nfx_send(const struct nfx_peer *p, uint64_t nbytes, uint32_t seed)
{
    nfx_tell(p, (struct nfx_command){.what = NFX_BROADCAST,
                                     .n_elements = nbytes,
                                     .nbytes = nbytes,
                                     .dtype = ncclUint8,
                                     .seed = seed});
}

/* Posts a receive of nbytes from rank 0, and once that is enqueued an event behind it. */
static inline ncclResult_t nfx_post(ncclComm_t comm, CUdeviceptr dev, uint64_t nbytes)
{
    ncclResult_t result;

    assert_int_equal(nfx.nccl.broadcast(NULL, (void *)dev, nbytes, ncclUint8, 0, comm, nfx.stream),
                     ncclInProgress);
    result = nfx_outcome(comm);
    assert_int_equal(nfx.cu.event_record(nfx.event, nfx.stream), CUDA_SUCCESS);
    return result;
}

static inline void nfx_receive(ncclComm_t comm, CUdeviceptr dev, uint64_t nbytes)
{
    assert_int_equal(nfx_post(comm, dev, nbytes), ncclSuccess);
}

static inline void nfx_landed(void)
{
    NFX_UNTIL(nfx.cu.event_query(nfx.event) == CUDA_SUCCESS);
}

#endif

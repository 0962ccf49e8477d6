/* The life of a communicator: its configuration, its faults, its job, its end. */
#include "tests/fakes/libnccl/fakenccl_priv.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

static int is_fakecuda(struct dl_phdr_info *info, size_t nbytes, void *out)
{
    const char *slash = strrchr(info->dlpi_name, '/');

    (void)nbytes;
    if (strncmp(slash != NULL ? slash + 1 : info->dlpi_name, "libfakecuda", 11) != 0)
        return 0;
    (void)snprintf(out, PATH_MAX, "%s", info->dlpi_name);
    return 1;
}

static bool take_symbol(void *lib, const char *name, void *to)
{
    void *at = dlsym(lib, name);

    memcpy(to, &at, sizeof at);
    return at != NULL;
}

/* The driver is whichever fake the process has loaded, by whatever path and privately. */
static bool have_driver(void)
{
    const char *told = getenv("FAKENCCL_CUDA");
    char path[PATH_MAX] = "";
    void *lib = NULL;
    bool have;

    if (told != NULL)
        (void)snprintf(path, sizeof path, "%s", told);
    else
        (void)dl_iterate_phdr(is_fakecuda, path);
    (void)pthread_mutex_lock(&fake_nccl.lock);
    if (fake_nccl.enqueue == NULL && path[0] != '\0')
        lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (lib != NULL && take_symbol(lib, "fakecuda_view", &fake_nccl.view) &&
        take_symbol(lib, "fakecuda_device", &fake_nccl.device))
        (void)take_symbol(lib, "fakecuda_enqueue", &fake_nccl.enqueue);
    have = fake_nccl.enqueue != NULL;
    (void)pthread_mutex_unlock(&fake_nccl.lock);
    if (!have)
        fake_warn("Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'");
    return have;
}

/* Reads as much of the configuration as its size and version say there is. */
static ncclResult_t read_config(const ncclConfig_t *config, bool *blocking)
{
    uint64_t env = fake_number("NCCL_COMM_BLOCKING", 2);
    ncclConfig_t c;

    memset(&c, 0, sizeof c);
    c.blocking = NCCL_CONFIG_UNDEF_INT;
    if (config != NULL) {
        memcpy(&c, config, config->size < sizeof c ? config->size : sizeof c);
        if (c.magic != NCCL_CONFIG_MAGIC) {
            fake_warn("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
            return ncclInvalidArgument;
        }
        if (c.version < 21400)
            c.blocking = NCCL_CONFIG_UNDEF_INT;
    }
    if (c.blocking != NCCL_CONFIG_UNDEF_INT && c.blocking != 0 && c.blocking != 1) {
        fake_warn("Invalid config blocking attribute value %d", c.blocking);
        return ncclInvalidArgument;
    }
    *blocking = env <= 1 ? env == 1 : c.blocking != 0;
    return ncclSuccess;
}

static void read_faults(struct fake_faults *f)
{
    const char *transport = getenv("FAKENCCL_TRANSPORT"), *seen = getenv("FAKENCCL_MISMATCH");

    f->die_after = fake_number("FAKENCCL_DIE_AFTER_BYTES", FAKE_NO_FAULT);
    f->stall_after = fake_number("FAKENCCL_STALL_AFTER_BYTES", FAKE_NO_FAULT);
    f->nbytes_short = fake_number("FAKENCCL_SHORT", 0);
    f->refuse_join = fake_number("FAKENCCL_REFUSE_JOIN", 0) != 0;
    f->hang_init = fake_number("FAKENCCL_HANG_INIT", 0) != 0;
    f->abort_sticks = fake_number("FAKENCCL_ABORT_STICKS", 0) != 0;
    f->abort_awaits_peers = fake_number("FAKENCCL_ABORT_AWAITS_PEERS", 0) != 0;
    f->fail_async = fake_number("FAKENCCL_FAIL_ASYNC", 0) != 0;
    f->handshakes = seen != NULL && strcmp(seen, "handshake") == 0;
    f->sockets = transport != NULL && strcmp(transport, "socket") == 0;
}

/* A communicator that nobody knows yet; NULL when there is no memory or descriptor for it. */
static struct ncclComm *comm_new(int n_ranks, const ncclUniqueId *id, int rank)
{
    struct ncclComm *c = calloc(1, sizeof *c);
    int quit = eventfd(0, EFD_CLOEXEC);

    if (c == NULL || quit < 0) {
        if (quit >= 0)
            (void)close(quit);
        free(c);
        return NULL;
    }
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    c->rank = rank;
    c->n_ranks = n_ranks;
    c->device = fake_nccl.device();
    c->device = c->device < 0 ? 0 : c->device;
    c->version = fake_version();
    c->cumem = (int)fake_number("NCCL_CUMEM_ENABLE", 1);
    c->id = *id;
    c->quit = quit;
    c->listener = -1;
    for (int i = 0; i < FAKE_RINGS; i++) {
        c->early[i] = -1;
        c->rings[i] = (struct fake_ring){-1, -1};
    }
    read_faults(&c->faults);
    atomic_init(&c->n_refs, 1);
    atomic_init(&c->state, ncclSuccess);
    return c;
}

void fake_unref(ncclComm_t comm)
{
    if (atomic_fetch_sub(&comm->n_refs, 1) > 1)
        return;
    (void)close(comm->quit);
    (void)pthread_cond_destroy(&comm->changed);
    (void)pthread_mutex_destroy(&comm->lock);
    free(comm);
}

void fake_settle(ncclComm_t comm, ncclResult_t result)
{
    int was = ncclInProgress;

    if (!atomic_compare_exchange_strong(&comm->state, &was, result) && was == ncclSuccess)
        (void)atomic_compare_exchange_strong(&comm->state, &was, result);
}

static void *run_job(void *arg)
{
    struct ncclComm *c = arg;
    ncclResult_t result = c->forced;
    int in_progress = ncclInProgress;

    if (result != ncclSuccess)
        free(c->work);
    else
        result = c->work != NULL ? fake_launch(c, c->work) : fake_join(c);
    /* Not over an error that came meanwhile. */
    (void)atomic_compare_exchange_strong(&c->state, &in_progress, result);
    atomic_store(&c->job_done, true);
    return NULL;
}

static void reap(struct ncclComm *c)
{
    if (!c->job_started)
        return;
    (void)pthread_join(c->job, NULL);
    c->job_started = false;
    (void)atomic_fetch_sub(&fake_nccl.n_jobs, 1);
}

ncclResult_t fake_start(ncclComm_t comm, struct fake_work *work, ncclResult_t forced)
{
    int was = ncclSuccess;

    reap(comm);
    if (!atomic_compare_exchange_strong(&comm->state, &was, ncclInProgress)) {
        free(work);
        return was; /* work under way has met an error since the call was let in: it stays */
    }
    comm->work = work;
    comm->forced = forced;
    atomic_store(&comm->job_done, false);
    if (comm->blocking) {
        (void)run_job(comm);
        return atomic_load(&comm->state);
    }
    if (pthread_create(&comm->job, NULL, run_job, comm) != 0) {
        free(work);
        fake_settle(comm, ncclSystemError);
        return ncclSystemError;
    }
    comm->job_started = true;
    (void)atomic_fetch_add(&fake_nccl.n_jobs, 1);
    return ncclInProgress;
}

ncclResult_t fake_ready(ncclComm_t comm)
{
    ncclResult_t state = atomic_load(&comm->state);

    if (state != ncclInProgress)
        return state;
    fake_warn("Attempt to use communicator before the previous operation returned ncclSuccess");
    atomic_store(&comm->state, ncclInvalidArgument);
    return ncclInvalidArgument;
}

static ncclResult_t comm_init(const char *call, ncclComm_t *out, int n_ranks, ncclUniqueId *id,
                              int rank, const ncclConfig_t *config)
{
    ncclResult_t forced = fake_enter(call), result;
    struct ncclComm *c;
    bool blocking;

    if (out == NULL) {
        fake_warn("CommInitRank : newcomm argument is NULL");
        return ncclInvalidArgument;
    }
    if (forced != ncclSuccess && fake_number("FAKENCCL_FAIL_ASYNC", 0) == 0)
        return forced;
    if (!have_driver())
        return ncclUnhandledCudaError;
    result = read_config(config, &blocking);
    if (result != ncclSuccess)
        return result;
    if (n_ranks < 1 || n_ranks > FAKE_RANKS_MAX || rank < 0 || rank >= n_ranks) {
        fake_warn("Invalid rank requested : %d/%d", rank, n_ranks);
        return ncclInvalidArgument;
    }
    c = comm_new(n_ranks, id, rank);
    if (c == NULL)
        return ncclSystemError;
    if (c->faults.refuse_join) {
        fake_unref(c);
        fake_warn("told to refuse");
        return ncclSystemError;
    }
    c->blocking = blocking;
    (void)atomic_fetch_add(&fake_nccl.n_comms, 1);
    (void)atomic_fetch_add(&fake_nccl.n_comms_made, 1);
    (void)pthread_mutex_lock(&fake_nccl.lock);
    c->next = fake_nccl.comms;
    fake_nccl.comms = c;
    (void)pthread_mutex_unlock(&fake_nccl.lock);
    *out = c;
    return fake_start(c, NULL, forced);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return comm_init("ncclCommInitRankConfig", comm, n_ranks, &id, rank, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank)
{
    return comm_init("ncclCommInitRank", comm, n_ranks, &id, rank, NULL);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    bool entered;
    ncclResult_t rc = fake_enter_comm("ncclCommGetAsyncError", comm, &entered);

    if (!entered)
        return rc;
    if (rc == ncclSuccess && result == NULL)
        rc = ncclInvalidArgument;
    if (rc == ncclSuccess) {
        *result = atomic_load(&comm->state);
        if (atomic_load(&comm->job_done))
            reap(comm);
    }
    fake_leave_comm(comm);
    return rc;
}

static ncclResult_t tell(const char *call, ncclComm_t comm, int *out, bool rank)
{
    bool entered;
    ncclResult_t result = fake_enter_comm(call, comm, &entered);

    if (!entered)
        return result;
    if (result == ncclSuccess)
        result = out != NULL ? fake_ready(comm) : ncclInvalidArgument;
    if (result == ncclSuccess)
        *out = rank ? comm->rank : comm->n_ranks;
    fake_leave_comm(comm);
    return result;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *n_ranks)
{
    return tell("ncclCommCount", comm, n_ranks, false);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return tell("ncclCommUserRank", comm, rank, true);
}

static void wait_for_work(struct ncclComm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    while (c->n_done != c->n_enqueued)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    (void)pthread_mutex_unlock(&c->lock);
}

static void take_out(struct ncclComm *c)
{
    struct ncclComm **at = &fake_nccl.comms;

    (void)pthread_mutex_lock(&fake_nccl.lock);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    (void)pthread_mutex_unlock(&fake_nccl.lock);
}

/* As libnccl's proxy thread does: until whoever connected to this rank has gone. */
static void wait_for_peers(const struct ncclComm *c)
{
    char bytes[4096];

    for (int i = 0; i < FAKE_RINGS; i++)
        while (c->rings[i].prev >= 0 && recv(c->rings[i].prev, bytes, sizeof bytes, 0) > 0)
            ;
}

/* What is queued behind somebody else's work on a stream comes to nothing when its turn comes. */
static void tear_down(struct ncclComm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    atomic_store(&c->aborted, true);
    (void)eventfd_write(c->quit, 1);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    reap(c);
    (void)pthread_mutex_lock(&c->lock);
    while (c->working)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    (void)pthread_mutex_unlock(&c->lock);
    if (c->faults.abort_awaits_peers)
        wait_for_peers(c);
    fake_close(&c->listener);
    for (int i = 0; i < FAKE_RINGS; i++) {
        fake_close(&c->early[i]);
        fake_close(&c->rings[i].prev);
        fake_close(&c->rings[i].next);
    }
    take_out(c);
    (void)atomic_fetch_sub(&fake_nccl.n_comms, 1);
    fake_unref(c);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    bool entered;
    ncclResult_t result;

    if (comm == NULL)
        return ncclSuccess;
    result = fake_enter_comm("ncclCommAbort", comm, &entered);
    if (!entered)
        return result;
    (void)atomic_fetch_add(&fake_nccl.n_aborts, 1);
    (void)pthread_mutex_lock(&fake_nccl.lock);
    while (comm->faults.abort_sticks && !fake_nccl.aborts_released)
        (void)pthread_cond_wait(&fake_nccl.changed, &fake_nccl.lock);
    (void)pthread_mutex_unlock(&fake_nccl.lock);
    tear_down(comm);
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    bool entered;
    ncclResult_t result;

    if (comm == NULL)
        return ncclSuccess;
    result = fake_enter_comm("ncclCommDestroy", comm, &entered);
    if (!entered)
        return result;
    reap(comm);
    if (atomic_load(&comm->state) == ncclSuccess)
        wait_for_work(comm);
    tear_down(comm);
    return result;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    bool entered;
    ncclResult_t result;
    char byte;

    if (comm == NULL)
        return ncclSuccess;
    result = fake_enter_comm("ncclCommFinalize", comm, &entered);
    if (!entered)
        return result;
    if (result == ncclSuccess)
        result = fake_ready(comm);
    if (result == ncclSuccess && comm->finalized)
        result = ncclInvalidArgument;
    if (result == ncclSuccess) {
        comm->finalized = true;
        wait_for_work(comm);
        if (comm->n_ranks > 1) {
            (void)shutdown(comm->rings[FAKE_LIFE].next, SHUT_WR);
            (void)atomic_fetch_add(&fake_nccl.n_hung, 1);
            while (recv(comm->rings[FAKE_LIFE].prev, &byte, 1, 0) > 0)
                ;
            (void)atomic_fetch_sub(&fake_nccl.n_hung, 1);
        }
    }
    fake_leave_comm(comm);
    return result;
}

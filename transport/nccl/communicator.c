/* A communicator without blocking calls: every call is polled until it has completed. */
#include "transport/nccl/communicator.h"

#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum {
    SPIN_US = 200,   /* the time of a small broadcast; a sleep would take as long */
    STEP_SHARE = 64, /* a sleep is at most this part of the time waited so far */
    STEP_US_MIN = 20,
    STEP_US_MAX = 1000,
    IDLE_AFTER_US = 1000 * 1000, /* no peer sends; from here on waiting must not use CPU time */
    IDLE_STEP_US = 10 * 1000
};

static const char broadcast_call[] = "ncclBroadcast";

void communicator_pause(uint64_t since_us)
{
    uint64_t waited = clock_now_us() - since_us, step = waited / STEP_SHARE;
    struct timespec t = {0};

    if (waited < SPIN_US) {
        (void)sched_yield();
        return;
    }
    if (step < STEP_US_MIN)
        step = STEP_US_MIN;
    if (step > STEP_US_MAX)
        step = waited < IDLE_AFTER_US ? STEP_US_MAX : IDLE_STEP_US;
    t.tv_nsec = (long)step * 1000;
    (void)nanosleep(&t, NULL); /* interrupted by a signal: polls once more */
}

static const struct cu_api *cu_of(const struct communicator *r)
{
    return device_api(r->device);
}

static void log_release(const struct communicator *r, const struct err *e)
{
    struct log_rec rec;

    log_begin(&rec, LOG_WARN, "nccl.release");
    log_str(&rec, "device", device_name(r->device));
    log_err(&rec, e);
    log_end(&rec);
}

static void released(const struct communicator *r, CUresult result, const char *call)
{
    struct err e = {0};

    if (cu_try(cu_of(r), result, call, &e) != 0)
        log_release(r, &e);
}

/* A free waits for everything that runs on the GPU: only called when nothing of this rank does. */
static void free_one(struct communicator *r)
{
    if (r->one != 0)
        released(r, cu_of(r)->mem_free(r->one), "cuMemFree");
    r->one = 0;
}

static void events_destroy(struct communicator *r)
{
    for (int i = SOURCE_POSTED_MAX; i > 0; i--) {
        if (r->landed[i - 1] != NULL)
            released(r, cu_of(r)->event_destroy(r->landed[i - 1]), "cuEventDestroy");
        r->landed[i - 1] = NULL;
    }
}

static int events_create(struct communicator *r, struct err *e)
{
    const struct cu_api *cu = cu_of(r);

    for (int i = 0; i < SOURCE_POSTED_MAX; i++) {
        CUevent event;

        if (cu_try(cu, cu->event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", e) !=
            0) {
            events_destroy(r);
            return -1;
        }
        r->landed[i] = event;
    }
    return 0;
}

int communicator_open(struct communicator *r, bool warm_up, struct err *e)
{
    const struct cu_api *cu = cu_of(r);
    CUdeviceptr one = 0;
    CUstream stream;

    if (device_enter(r->device, e) != 0)
        return -1;
    if (device_stream_new(r->device, &stream, e) != 0)
        goto err_leave;
    if (events_create(r, e) != 0)
        goto err_stream_free;
    if (warm_up && cu_try(cu, cu->mem_alloc(&one, sizeof(float)), "cuMemAlloc", e) != 0)
        goto err_events_destroy;
    r->stream = stream;
    r->one = one;
    return 0;

err_events_destroy:
    events_destroy(r);
err_stream_free:
    device_stream_free(r->device, stream);
err_leave:
    device_leave(r->device);
    return -1;
}

void communicator_close(struct communicator *r)
{
    if (r->stream == NULL)
        return;
    assert(r->comm == NULL);
    free_one(r);
    events_destroy(r);
    device_stream_free(r->device, r->stream);
    device_leave(r->device);
    r->stream = NULL;
}

/* Waits until the communicator's last call has completed. */
static int await_call(const struct communicator *r, const char *call, struct err *e)
{
    uint64_t since_us = clock_now_us();
    bool done = false;

    for (;;) {
        if (nccl_poll(r->nccl, r->comm, call, &done, e) != 0)
            return -1;
        if (done)
            return 0;
        if (atomic_load_explicit(r->give_up, memory_order_relaxed))
            return 1;
        communicator_pause(since_us);
    }
}

/* Waits until a collective that was called is on the stream, and records an event after it. */
static int communicator_enter_call(struct communicator *r, ncclResult_t called, const char *call,
                                   struct err *e)
{
    const struct cu_api *cu = cu_of(r);
    int rc;

    if (nccl_try(r->nccl, called, call, e) != 0)
        return -1;
    rc = await_call(r, call, e);
    if (rc != 0)
        return rc;
    if (cu_try(cu, cu->event_record(r->landed[r->n_entered % SOURCE_POSTED_MAX], r->stream),
               "cuEventRecord", e) != 0)
        return -1;
    r->n_entered++;
    return 0;
}

/* Counts the collectives that have finished. NCCL is asked each time, and after the events: a
 * failed transfer is reported only there, and the stream may then wait for it without end. */
static int communicator_poll(struct communicator *r, const char *call, struct err *e)
{
    const struct cu_api *cu = cu_of(r);
    uint64_t n = r->n_landed;
    bool done = false;

    while (n < r->n_entered) {
        CUresult result = cu->event_query(r->landed[n % SOURCE_POSTED_MAX]);

        if (result == CUDA_ERROR_NOT_READY)
            break;
        if (cu_try(cu, result, "cuEventQuery", e) != 0)
            return -1;
        n++;
    }
    if (nccl_poll(r->nccl, r->comm, call, &done, e) != 0)
        return -1;
    if (done)
        r->n_landed = n;
    return 0;
}

int communicator_join(struct communicator *r, const uint8_t id[NCCL_ID_NBYTES], struct err *e)
{
    const char *call = "ncclCommInitRankConfig";
    ncclConfig_t config;
    ncclUniqueId unique;

    assert(r->comm == NULL && r->stream != NULL);
    _Static_assert(sizeof unique.internal == NCCL_ID_NBYTES, "an id is an id");
    memcpy(unique.internal, id, sizeof unique.internal);
    nccl_config_init(&config);
    if (nccl_try(r->nccl,
                 r->nccl->comm_init_rank_config(&r->comm, r->world_size, unique, r->rank, &config),
                 call, e) != 0)
        return -1;
    return await_call(r, call, e);
}

/* Waits until all entered collectives have finished. */
static int await_landed(struct communicator *r, const char *call, struct err *e)
{
    uint64_t since_us = clock_now_us();

    for (;;) {
        if (communicator_poll(r, call, e) != 0)
            return -1;
        if (r->n_landed == r->n_entered)
            return 0;
        if (atomic_load_explicit(r->give_up, memory_order_relaxed))
            return 1;
        communicator_pause(since_us);
    }
}

int communicator_warm_up(struct communicator *r, struct err *e)
{
    static const char call[] = "ncclAllReduce";
    static const float mine = 0;
    const struct cu_api *cu = cu_of(r);
    void *one = (void *)(uintptr_t)r->one;
    int rc;

    assert(r->one != 0);
    /* On the rank's own stream: a plain copy could wait for other work on the GPU. */
    if (cu_try(cu, cu->memcpy_htod_async(r->one, &mine, sizeof mine, r->stream),
               "cuMemcpyHtoDAsync", e) != 0)
        return -1;
    rc = communicator_enter_call(
        r, r->nccl->all_reduce(one, one, 1, ncclFloat32, ncclSum, r->comm, r->stream), call, e);
    if (rc == 0)
        rc = await_landed(r, call, e);
    if (rc == 0)
        free_one(r); /* otherwise the sum is still awaited, and freeing would wait too */
    return rc;
}

int communicator_enter(struct communicator *r, uint64_t dst, uint64_t nbytes, struct err *e)
{
    void *to = (void *)(uintptr_t)dst;

    assert(r->n_entered - r->n_landed < SOURCE_POSTED_MAX);
    if (nbytes == 0)
        return communicator_enter_call(r, ncclSuccess, broadcast_call, e);
    /* NCCL counts bytes before it decides anything: the sender's dtype need not be known. */
    return communicator_enter_call(
        r, r->nccl->broadcast(NULL, to, nbytes, ncclUint8, 0, r->comm, r->stream), broadcast_call,
        e);
}

int communicator_update(struct communicator *r, struct err *e)
{
    return communicator_poll(r, broadcast_call, e);
}

void communicator_abort(struct communicator *r)
{
    ncclComm_t comm = r->comm;
    struct err e = {0};

    if (comm == NULL)
        return;
    r->comm = NULL;
    if (nccl_try(r->nccl, r->nccl->comm_abort(comm), "ncclCommAbort", &e) != 0)
        log_release(r, &e);
}

bool communicator_is_quiet(const struct communicator *r)
{
    CUresult result;

    if (r->stream == NULL)
        return true;
    result = cu_of(r)->stream_query(r->stream);
    if (result != CUDA_ERROR_NOT_READY)
        released(r, result, "cuStreamQuery");
    return result != CUDA_ERROR_NOT_READY;
}

/* A communicator without blocking calls: what begins is looked at until it has ended. */
#include "transport/nccl_rank.h"

#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum {
    SPIN_US = 200,   /* as long as small broadcasts take; a sleep would cost as much */
    STEP_SHARE = 64, /* no look comes later than by this part of the wait */
    STEP_US_MIN = 20,
    STEP_US_MAX = 1000,
    IDLE_AFTER_US = 1000 * 1000, /* nobody sends: from here on waiting must cost nothing */
    IDLE_STEP_US = 10 * 1000
};

void nrank_pause(uint64_t since_us)
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
    (void)nanosleep(&t, NULL); /* cut short by a signal: one look more */
}

static const struct cu_api *cu_of(const struct nrank *r)
{
    return device_api(r->device);
}

static void log_release(const struct nrank *r, const struct err *e)
{
    struct log_rec rec;

    log_begin(&rec, LOG_WARN, "nccl.release");
    log_str(&rec, "device", device_name(r->device));
    log_err(&rec, e);
    log_end(&rec);
}

static void released(const struct nrank *r, CUresult result, const char *call)
{
    struct err e = {0};

    if (cu_try(cu_of(r), result, call, &e) != 0)
        log_release(r, &e);
}

/* What is freed waits for all that runs on the GPU: only when nothing of ours does. */
static void free_one(struct nrank *r)
{
    if (r->one != 0)
        released(r, cu_of(r)->mem_free(r->one), "cuMemFree");
    r->one = 0;
}

int nrank_open(struct nrank *r, bool warm_up, struct err *e)
{
    const struct cu_api *cu = cu_of(r);
    CUdeviceptr one = 0;
    CUstream stream;
    CUevent landed;

    if (device_enter(r->device, e) != 0)
        return -1;
    if (device_stream_new(r->device, &stream, e) != 0)
        goto err_leave;
    if (cu_try(cu, cu->event_create(&landed, CU_EVENT_DISABLE_TIMING), "cuEventCreate", e) != 0)
        goto err_stream_free;
    if (warm_up && cu_try(cu, cu->mem_alloc(&one, sizeof(float)), "cuMemAlloc", e) != 0)
        goto err_event_destroy;
    r->stream = stream;
    r->landed = landed;
    r->one = one;
    return 0;

err_event_destroy:
    released(r, cu->event_destroy(landed), "cuEventDestroy");
err_stream_free:
    device_stream_free(r->device, stream);
err_leave:
    device_leave(r->device);
    return -1;
}

void nrank_close(struct nrank *r)
{
    if (r->stream == NULL)
        return;
    assert(r->comm == NULL);
    free_one(r);
    released(r, cu_of(r)->event_destroy(r->landed), "cuEventDestroy");
    device_stream_free(r->device, r->stream);
    device_leave(r->device);
    r->stream = NULL;
    r->landed = NULL;
}

/* Until the communicator's last call has ended. */
static int await_call(const struct nrank *r, const char *call, struct err *e)
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
        nrank_pause(since_us);
    }
}

/* Until the stream has come to the event. NCCL is asked each time, and after the event: a transfer
 * that failed is told of there, and the stream may wait for it for ever. */
static int await_event(const struct nrank *r, const char *call, struct err *e)
{
    const struct cu_api *cu = cu_of(r);
    uint64_t since_us = clock_now_us();
    bool done = false;

    for (;;) {
        CUresult result = cu->event_query(r->landed);
        if (nccl_poll(r->nccl, r->comm, call, &done, e) != 0)
            return -1;
        if (result != CUDA_ERROR_NOT_READY && cu_try(cu, result, "cuEventQuery", e) != 0)
            return -1;
        if (result == CUDA_SUCCESS && done)
            return 0;
        if (atomic_load_explicit(r->give_up, memory_order_relaxed))
            return 1;
        nrank_pause(since_us);
    }
}

/* A collective that was called: until it is on the stream, which may take as long as the slowest
 * peer, and then until it is done. */
static int finish(const struct nrank *r, ncclResult_t called, const char *call, struct err *e)
{
    const struct cu_api *cu = cu_of(r);
    int rc;

    if (nccl_try(r->nccl, called, call, e) != 0)
        return -1;
    rc = await_call(r, call, e);
    if (rc != 0)
        return rc;
    if (cu_try(cu, cu->event_record(r->landed, r->stream), "cuEventRecord", e) != 0)
        return -1;
    return await_event(r, call, e);
}

int nrank_join(struct nrank *r, const uint8_t id[NCCL_ID_NBYTES], struct err *e)
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

int nrank_warm_up(struct nrank *r, struct err *e)
{
    static const float mine = 0;
    const struct cu_api *cu = cu_of(r);
    void *one = (void *)(uintptr_t)r->one;
    int rc;

    assert(r->one != 0);
    /* By the rank's own stream: a plain copy could wait for what others do on the GPU. */
    if (cu_try(cu, cu->memcpy_htod_async(r->one, &mine, sizeof mine, r->stream),
               "cuMemcpyHtoDAsync", e) != 0)
        return -1;
    rc = finish(r, r->nccl->all_reduce(one, one, 1, ncclFloat32, ncclSum, r->comm, r->stream),
                "ncclAllReduce", e);
    if (rc == 0)
        free_one(r); /* otherwise the sum is still waited for, and freeing would wait too */
    return rc;
}

int nrank_receive(struct nrank *r, uint64_t dst, uint64_t nbytes, struct err *e)
{
    /* NCCL counts in bytes before it decides anything: the sender's dtype need not be known. */
    return finish(
        r,
        r->nccl->broadcast(NULL, (void *)(uintptr_t)dst, nbytes, ncclUint8, 0, r->comm, r->stream),
        "ncclBroadcast", e);
}

void nrank_abort(struct nrank *r)
{
    ncclComm_t comm = r->comm;
    struct err e = {0};

    if (comm == NULL)
        return;
    r->comm = NULL;
    if (nccl_try(r->nccl, r->nccl->comm_abort(comm), "ncclCommAbort", &e) != 0)
        log_release(r, &e);
}

bool nrank_is_quiet(const struct nrank *r)
{
    CUresult result;

    if (r->stream == NULL)
        return true;
    result = cu_of(r)->stream_query(r->stream);
    if (result != CUDA_ERROR_NOT_READY)
        released(r, result, "cuStreamQuery");
    return result != CUDA_ERROR_NOT_READY;
}

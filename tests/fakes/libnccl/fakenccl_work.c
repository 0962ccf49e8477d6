/* Collectives: what is checked at the call, what waits for the peers, what the stream does. */
#include "tests/fakes/libnccl/fakenccl_priv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 17 };

static const size_t dtype_nbytes[] = {
    [ncclInt8] = 1,    [ncclUint8] = 1,    [ncclInt32] = 4,      [ncclUint32] = 4,
    [ncclInt64] = 8,   [ncclUint64] = 8,   [ncclFloat16] = 2,    [ncclFloat32] = 4,
    [ncclFloat64] = 8, [ncclBfloat16] = 2, [ncclFloat8e4m3] = 1, [ncclFloat8e5m2] = 1,
};

/* How many of *n may move before a fault: it strikes when that is none. */
static int allowance(ncclComm_t c, size_t *n)
{
    const struct fake_faults *f = &c->faults;

    if (f->die_after != FAKE_NO_FAULT && *n > f->die_after - c->nbytes)
        *n = f->die_after - c->nbytes;
    if (f->stall_after != FAKE_NO_FAULT && *n > f->stall_after - c->nbytes)
        *n = f->stall_after - c->nbytes;
    if (*n > 0)
        return 0;
    if (c->nbytes == f->die_after)
        (void)kill(getpid(), SIGKILL);
    return fake_hang(c);
}

/* A chain along the ring, from the root. */
static int run_broadcast(ncclComm_t c, const struct fake_work *w)
{
    const struct fake_ring *ring = &c->rings[FAKE_BROADCAST];
    bool root = w->root == c->rank, last = (c->rank + 1) % c->n_ranks == w->root;
    const struct fake_faults *f = &c->faults;
    size_t end = w->nbytes, n;

    if (root && w->recv != NULL && w->recv != w->send)
        memmove(w->recv, w->send, w->nbytes);
    if (root)
        end -= f->nbytes_short < end ? f->nbytes_short : end;
    for (size_t at = 0; c->n_ranks > 1 && at < end; at += n) {
        n = end - at < CHUNK ? end - at : CHUNK;
        if (allowance(c, &n) != 0)
            return -1;
        if (!root && fake_take(c, ring->prev, w->recv + at, n) != 0)
            return -1;
        if (!last && fake_put(c, ring->next, (root ? w->send : w->recv) + at, n) != 0)
            return -1;
        c->nbytes += n;
        (void)atomic_fetch_add(&fake_nccl.nbytes, n);
    }
    return 0;
}

#define ADD(type)                                                                                  \
    for (size_t i = 0; i < nbytes / sizeof(type); i++)                                             \
        ((type *)sum)[i] = (type)(((type *)sum)[i] + ((const type *)more)[i]);                     \
    return

static void add(ncclDataType_t dtype, void *sum, const void *more, size_t nbytes)
{
    switch (dtype) {
    case ncclInt8:
    case ncclUint8:
        ADD(uint8_t);
    case ncclInt32:
    case ncclUint32:
        ADD(uint32_t);
    case ncclInt64:
    case ncclUint64:
        ADD(uint64_t);
    case ncclFloat32:
        ADD(float);
    case ncclFloat64:
        ADD(double);
    default:
        abort(); /* the call refused it */
    }
}

/* The sum grows along the ring from rank 0, and goes round once more. */
static int run_all_reduce(ncclComm_t c, const struct fake_work *w)
{
    const struct fake_ring *ring = &c->rings[FAKE_ALL_REDUCE];
    _Alignas(16) char sum[CHUNK / 8];
    size_t n;

    for (size_t at = 0; at < w->nbytes; at += n) {
        n = w->nbytes - at < sizeof sum ? w->nbytes - at : sizeof sum;
        if (c->rank > 0) {
            if (fake_take(c, ring->prev, sum, n) != 0)
                return -1;
            add(w->dtype, sum, w->send + at, n);
        } else {
            memcpy(sum, w->send + at, n);
        }
        if (c->n_ranks > 1 && fake_put(c, ring->next, sum, n) != 0)
            return -1;
        if (c->rank < c->n_ranks - 1) {
            if (fake_take(c, ring->prev, sum, n) != 0)
                return -1;
            if (c->rank < c->n_ranks - 2 && fake_put(c, ring->next, sum, n) != 0)
                return -1;
        }
        memcpy(w->recv + at, sum, n);
    }
    return 0;
}

/* On the stream's worker. In the order of the calls, also of those on other streams. */
static void run(void *arg)
{
    struct fake_work *w = arg;
    struct ncclComm *c = w->comm;
    bool go;

    (void)pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->aborted) && c->n_done != w->seq)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    go = !atomic_load(&c->aborted);
    c->working = go;
    (void)pthread_mutex_unlock(&c->lock);
    if (go) {
        (void)(w->what == FAKE_BROADCAST ? run_broadcast(c, w) : run_all_reduce(c, w));
        (void)pthread_mutex_lock(&c->lock);
        c->working = false;
        c->n_done++;
        (void)pthread_cond_broadcast(&c->changed);
        (void)pthread_mutex_unlock(&c->lock);
    }
    (void)atomic_fetch_sub(&fake_nccl.n_queued, 1);
    free(w);
    fake_unref(c);
}

ncclResult_t fake_launch(ncclComm_t comm, struct fake_work *work)
{
    if (fake_ring_join(comm, work->what) != 0) {
        free(work);
        return ncclInternalError;
    }
    (void)atomic_fetch_add(&comm->n_refs, 1);
    (void)pthread_mutex_lock(&comm->lock);
    work->seq = comm->n_enqueued++;
    (void)pthread_mutex_unlock(&comm->lock);
    (void)atomic_fetch_add(&fake_nccl.n_queued, 1);
    if (fake_nccl.enqueue(work->stream, run, work) == 0)
        return ncclSuccess;
    (void)atomic_fetch_sub(&fake_nccl.n_queued, 1);
    (void)pthread_mutex_lock(&comm->lock);
    comm->n_enqueued--;
    (void)pthread_mutex_unlock(&comm->lock);
    free(work);
    fake_unref(comm);
    return ncclUnhandledCudaError;
}

/* The bytes behind a device address, in *view; false, with the text, when there are none. */
static bool see(const char *what, const void *at, size_t nbytes, char **view)
{
    *view = fake_nccl.view((uintptr_t)at, nbytes);
    if (*view == NULL)
        fake_warn("%s is not a valid pointer", what);
    return *view != NULL;
}

/* NULL, with *result, when there is nothing to do: an empty collective is none. */
static struct fake_work *prepare(ncclComm_t c, struct fake_work w, const void *send,
                                 const void *recv, ncclResult_t *result)
{
    bool root = w.what == FAKE_BROADCAST && w.root == c->rank;
    bool reads = root || w.what == FAKE_ALL_REDUCE, writes = !root || recv != NULL;
    struct fake_work *out;
    char *view = NULL;

    *result = ncclInvalidArgument;
    if (w.dtype < 0 || (size_t)w.dtype >= sizeof dtype_nbytes / sizeof dtype_nbytes[0] ||
        w.n_elements > SIZE_MAX / dtype_nbytes[w.dtype]) {
        fake_warn("invalid type %d", w.dtype);
        return NULL;
    }
    if (w.root < 0 || w.root >= c->n_ranks) {
        fake_warn("invalid root %d (root should be in the 0..%d range)", w.root, c->n_ranks);
        return NULL;
    }
    *result = ncclSuccess;
    w.nbytes = w.n_elements * dtype_nbytes[w.dtype];
    if (w.nbytes == 0)
        return NULL;
    *result = ncclInvalidArgument;
    if ((reads && !see("sendbuff", send, w.nbytes, &view)))
        return NULL;
    w.send = view;
    if (writes && !see("recvbuff", recv, w.nbytes, &w.recv))
        return NULL;
    out = malloc(sizeof *out);
    *result = out != NULL ? ncclSuccess : ncclSystemError;
    w.comm = c;
    if (out != NULL)
        *out = w;
    return out;
}

/* A refusal spoils the communicator, as there. */
static ncclResult_t collective(const char *call, ncclComm_t c, struct fake_work w, const void *send,
                               const void *recv)
{
    bool entered;
    ncclResult_t result = fake_enter_comm(call, c, &entered), forced;
    struct fake_work *work = NULL;

    if (!entered)
        return result;
    forced = c->faults.fail_async ? result : ncclSuccess;
    if (forced == result)
        result = fake_ready(c);
    if (result == ncclSuccess)
        work = prepare(c, w, send, recv, &result);
    if (result != ncclSuccess)
        fake_settle(c, result);
    if (work != NULL)
        result = fake_start(c, work, forced);
    fake_leave_comm(c);
    return result;
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t n_elements, ncclDataType_t dtype,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    struct fake_work w = {.what = FAKE_BROADCAST,
                          .n_elements = n_elements,
                          .dtype = dtype,
                          .root = root,
                          .stream = stream};

    (void)atomic_fetch_add(&fake_nccl.n_broadcasts, 1);
    return collective("ncclBroadcast", comm, w, send, recv);
}

static bool can_add(ncclDataType_t dtype)
{
    return dtype != ncclFloat16 && dtype != ncclBfloat16 && dtype < ncclFloat8e4m3;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t n_elements, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct fake_work w = {.what = FAKE_ALL_REDUCE,
                          .n_elements = n_elements,
                          .dtype = op == ncclSum && can_add(dtype) ? dtype
                                                                   : -1, /* no others here */
                          .stream = stream};

    (void)atomic_fetch_add(&fake_nccl.n_all_reduces, 1);
    return collective("ncclAllReduce", comm, w, send, recv);
}

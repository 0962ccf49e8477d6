/* Streams (a queue and a thread each), events (also between processes), launches. */
#include "tests/fakes/libcuda/fakecuda_priv.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EVENT_MAGIC "FAKEEVT"
enum { ALIVE_POLL_NS = 20000000 };

/* In a page that processes share when the event is interprocess. Sequentially consistent: what was
 * copied before `done` rose is seen by whoever saw it rise. */
struct event_page {
    _Atomic uint32_t recorded, done; /* done is a futex */
    _Atomic int64_t at_ns;
};

struct CUevent_st {
    unsigned flags;
    int n_refs; /* under the lock: the caller's, and one for each queued operation */
    bool imported;
    pid_t owner;
    int fd; /* -1 unless interprocess and ours */
    struct event_page *page;
};

struct event_handle {
    char magic[8];
    pid_t pid;
    int fd;
    uint64_t ino;
};

_Static_assert(sizeof(struct event_handle) <= sizeof(CUipcEventHandle), "it travels in a handle");

enum op_kind { OP_COPY, OP_RECORD, OP_WAIT, OP_KERNEL };

struct op {
    struct op *next;
    enum op_kind kind;
    void *dst;
    const void *src;
    size_t nbytes;
    CUevent event;
    uint32_t target;
    const struct CUfunc_st *kernel;
    uint64_t params[FAKE_KERNEL_PARAMS_MAX];
    unsigned n_blocks;
};

struct CUstream_st {
    struct CUstream_st *next;
    unsigned flags;
    bool busy, stop;
    struct op *head, **tail;
    pthread_t thread;
};

static bool reached(const struct event_page *page, uint32_t target)
{
    return (int32_t)(atomic_load(&page->done) - target) >= 0;
}

/* An event of a process that has died is over: the driver ends that process's work. */
static void event_wait(CUevent event, uint32_t target)
{
    struct timespec poll = {0, ALIVE_POLL_NS};
    uint32_t seen;

    for (;;) {
        seen = atomic_load(&event->page->done);
        if ((int32_t)(seen - target) >= 0 ||
            (event->imported && kill(event->owner, 0) != 0 && errno == ESRCH))
            return;
        (void)syscall(SYS_futex, &event->page->done, FUTEX_WAIT, seen, &poll, NULL, 0);
    }
}

static void event_done(CUevent event, uint32_t target)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store(&event->page->at_ns, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
    atomic_store(&event->page->done, target);
    (void)syscall(SYS_futex, &event->page->done, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void event_unref(CUevent event)
{
    bool last;

    (void)pthread_mutex_lock(&fake.lock);
    last = --event->n_refs == 0;
    (void)pthread_mutex_unlock(&fake.lock);
    if (!last)
        return;
    (void)munmap(event->page, sizeof *event->page);
    if (event->fd >= 0)
        (void)close(event->fd);
    free(event);
}

static void op_run(struct op *op)
{
    switch (op->kind) {
    case OP_COPY:
        memmove(op->dst, op->src, op->nbytes);
        (void)pthread_mutex_lock(&fake.lock);
        fake.counts.nbytes_copied += op->nbytes;
        (void)pthread_mutex_unlock(&fake.lock);
        break;
    case OP_RECORD:
        event_done(op->event, op->target);
        break;
    case OP_WAIT:
        event_wait(op->event, op->target);
        break;
    case OP_KERNEL:
        op->kernel->run(op->params, op->n_blocks);
        break;
    }
    if (op->event != NULL)
        event_unref(op->event);
    free(op);
}

static void *work(void *arg)
{
    struct CUstream_st *s = arg;
    struct op *op;

    (void)pthread_mutex_lock(&fake.lock);
    for (;;) {
        while (!s->stop && (s->head == NULL || fake.hold))
            (void)pthread_cond_wait(&fake.changed, &fake.lock);
        if (s->head == NULL)
            break;
        op = s->head;
        s->head = op->next;
        if (s->head == NULL)
            s->tail = &s->head;
        s->busy = true;
        (void)pthread_mutex_unlock(&fake.lock);
        op_run(op);
        (void)pthread_mutex_lock(&fake.lock);
        s->busy = false;
        (void)pthread_cond_broadcast(&fake.changed);
    }
    (void)pthread_mutex_unlock(&fake.lock);
    return NULL;
}

static bool at_work(const struct CUstream_st *s)
{
    return s->busy || s->head != NULL;
}

static void wait_stream(struct CUstream_st *s)
{
    (void)pthread_mutex_lock(&fake.lock);
    while (at_work(s))
        (void)pthread_cond_wait(&fake.changed, &fake.lock);
    (void)pthread_mutex_unlock(&fake.lock);
}

void fake_drain(bool null)
{
    struct CUstream_st *s;

    (void)pthread_mutex_lock(&fake.lock);
    do {
        for (s = fake.streams; s != NULL; s = s->next) {
            if (at_work(s) && !(null && (s->flags & CU_STREAM_NON_BLOCKING) != 0))
                break;
        }
        if (s != NULL)
            (void)pthread_cond_wait(&fake.changed, &fake.lock);
    } while (s != NULL);
    (void)pthread_mutex_unlock(&fake.lock);
}

/* The default stream's work is done by the caller, behind that of the streams that wait for it. */
static CUresult enqueue(struct CUstream_st *s, const struct op *what)
{
    struct op *op = malloc(sizeof *op);

    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = *what;
    op->next = NULL;
    (void)pthread_mutex_lock(&fake.lock);
    if (op->event != NULL)
        op->event->n_refs++;
    if (s != NULL && !fake.at_once) {
        *s->tail = op;
        s->tail = &op->next;
        op = NULL;
        (void)pthread_cond_broadcast(&fake.changed);
    }
    (void)pthread_mutex_unlock(&fake.lock);
    if (op == NULL)
        return CUDA_SUCCESS;
    if (s == NULL)
        fake_drain(true);
    op_run(op);
    return CUDA_SUCCESS;
}

CUresult fake_copy(CUstream stream, void *dst, const void *src, size_t nbytes, bool wait)
{
    struct op op = {.kind = OP_COPY, .dst = dst, .src = src, .nbytes = nbytes};
    CUresult result = enqueue(stream, &op);

    if (result == CUDA_SUCCESS && wait && stream != NULL)
        wait_stream(stream);
    return result;
}

void fakecuda_hold(bool hold)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.hold = hold;
    (void)pthread_cond_broadcast(&fake.changed);
    (void)pthread_mutex_unlock(&fake.lock);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUresult result = fake_enter_context("cuStreamCreate");
    struct CUstream_st *s;

    if (result != CUDA_SUCCESS)
        return result;
    if (flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->flags = flags;
    s->tail = &s->head;
    if (!fake.at_once && pthread_create(&s->thread, NULL, work, s) != 0) {
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)pthread_mutex_lock(&fake.lock);
    s->next = fake.streams;
    fake.streams = s;
    fake.counts.n_streams++;
    (void)pthread_mutex_unlock(&fake.lock);
    *stream = s;
    return CUDA_SUCCESS;
}

/* What is queued is still done, as by the driver; here the caller waits for it. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUresult result = fake_enter_context("cuStreamDestroy_v2");
    struct CUstream_st **at = &fake.streams;

    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
        return result;
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    wait_stream(stream);
    (void)pthread_mutex_lock(&fake.lock);
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    stream->stop = true;
    fake.counts.n_streams--;
    (void)pthread_cond_broadcast(&fake.changed);
    (void)pthread_mutex_unlock(&fake.lock);
    if (!fake.at_once)
        (void)pthread_join(stream->thread, NULL);
    free(stream);
    return result;
}

CUresult cuStreamQuery(CUstream stream)
{
    CUresult result = fake_enter_context("cuStreamQuery");

    if (result != CUDA_SUCCESS || stream == NULL)
        return result;
    (void)pthread_mutex_lock(&fake.lock);
    result = at_work(stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    (void)pthread_mutex_unlock(&fake.lock);
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CUresult result = fake_enter_context("cuStreamSynchronize");

    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL)
        fake_drain(true);
    else
        wait_stream(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CUresult result = fake_enter_context("cuStreamWaitEvent");
    struct op op = {.kind = OP_WAIT, .event = event};

    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL || flags != 0)
        return event == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    op.target = atomic_load(&event->page->recorded);
    return enqueue(stream, &op);
}

/* @fd  of the shared page, or -1 for one of this process alone */
static CUresult event_new(CUevent *out, unsigned flags, int fd)
{
    struct CUevent_st *event = calloc(1, sizeof *event);
    void *page = MAP_FAILED;

    if (event != NULL)
        page = mmap(NULL, sizeof *event->page, PROT_READ | PROT_WRITE,
                    fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (page == MAP_FAILED) {
        free(event);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *event = (struct CUevent_st){.flags = flags, .n_refs = 1, .fd = fd, .page = page};
    (void)pthread_mutex_lock(&fake.lock);
    fake.counts.n_events++;
    fake.counts.n_events_made++;
    (void)pthread_mutex_unlock(&fake.lock);
    *out = event;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CUresult result = fake_enter_context("cuEventCreate");
    bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    int fd = -1;

    if (result != CUDA_SUCCESS)
        return result;
    if ((flags & ~7U) != 0 || (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (shared) {
        fd = memfd_create("fakecuda-event", MFD_CLOEXEC);
        if (fd < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (ftruncate(fd, sizeof(struct event_page)) != 0)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        result = event_new(event, flags, fd);
    if (result != CUDA_SUCCESS && fd >= 0)
        (void)close(fd);
    return result;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = fake_enter_context("cuEventDestroy_v2");

    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    (void)pthread_mutex_lock(&fake.lock);
    fake.counts.n_events--;
    (void)pthread_mutex_unlock(&fake.lock);
    event_unref(event);
    return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CUresult result = fake_enter_context("cuEventRecord");
    struct op op = {.kind = OP_RECORD, .event = event};

    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    op.target = atomic_fetch_add(&event->page->recorded, 1) + 1;
    return enqueue(stream, &op);
}

CUresult cuEventQuery(CUevent event)
{
    CUresult result = fake_enter_context("cuEventQuery");

    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return reached(event->page, atomic_load(&event->page->recorded)) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = fake_enter_context("cuEventSynchronize");

    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    event_wait(event, atomic_load(&event->page->recorded));
    return CUDA_SUCCESS;
}

static CUresult timed(CUevent event)
{
    if (event == NULL || (event->flags & CU_EVENT_DISABLE_TIMING) != 0 ||
        atomic_load(&event->page->recorded) == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    return reached(event->page, atomic_load(&event->page->recorded)) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    CUresult result = fake_enter_context("cuEventElapsedTime");

    if (result == CUDA_SUCCESS)
        result = timed(start);
    if (result == CUDA_SUCCESS)
        result = timed(end);
    if (result == CUDA_SUCCESS)
        *ms = (float)((double)(atomic_load(&end->page->at_ns) - atomic_load(&start->page->at_ns)) /
                      1e6);
    return result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    CUresult result = fake_enter_context("cuIpcGetEventHandle");
    struct event_handle h = {.magic = EVENT_MAGIC, .pid = getpid()};

    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL || event->fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    h.fd = event->fd;
    h.ino = fake_inode(event->fd);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    CUresult result = fake_enter_context("cuIpcOpenEventHandle");
    struct event_handle h;
    int fd;

    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&h, &handle, sizeof h);
    if (memcmp(h.magic, EVENT_MAGIC, 8) != 0)
        return CUDA_ERROR_MAP_FAILED;
    if (h.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    /* One whose exporter destroyed it or died still opens, and is over: so does an H200's. */
    fd = fake_open_peer(h.pid, h.fd, h.ino);
    result = event_new(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, fd);
    if (fd >= 0)
        (void)close(fd);
    if (result != CUDA_SUCCESS)
        return result;
    (*event)->fd = -1; /* not ours to export */
    (*event)->imported = true;
    (*event)->owner = h.pid;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned shared_nbytes, CUstream stream, void **params, void **extra)
{
    CUresult result = fake_enter_context("cuLaunchKernel");
    struct op op = {.kind = OP_KERNEL, .kernel = function, .n_blocks = grid_x};

    (void)shared_nbytes;
    if (result != CUDA_SUCCESS)
        return result;
    if (function == NULL || params == NULL || extra != NULL || grid_x == 0 || grid_y == 0 ||
        grid_z == 0 || block_x == 0 || block_y == 0 || block_z == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (function->n_threads > 0 && (block_x != function->n_threads || block_y != 1 ||
                                    block_z != 1 || grid_y != 1 || grid_z != 1))
        return CUDA_ERROR_INVALID_VALUE; /* a GPU would run it, and leave bytes out */
    (void)pthread_mutex_lock(&fake.lock);
    fake.counts.n_launches++;
    (void)pthread_mutex_unlock(&fake.lock);
    for (int i = 0; i < function->n_params; i++)
        memcpy(&op.params[i], params[i], function->nbytes[i]);
    return enqueue(stream, &op);
}

/* A kernel of somebody else's. */
static void run_call(const uint64_t *params, unsigned n_blocks)
{
    void (*fn)(void *arg);

    (void)n_blocks;
    memcpy(&fn, &params[0], sizeof fn);
    fn((void *)(uintptr_t)params[1]);
}

int fakecuda_enqueue(void *stream, void (*fn)(void *arg), void *arg)
{
    static const struct CUfunc_st call = {.name = "fakecuda_enqueue", .run = run_call};
    struct op op = {.kind = OP_KERNEL, .kernel = &call, .params = {0, (uintptr_t)arg}};

    memcpy(&op.params[0], &fn, sizeof fn);
    return enqueue(stream, &op);
}

void *fakecuda_view(uint64_t at, size_t nbytes)
{
    return fake_view(at, nbytes);
}

int fakecuda_device(void)
{
    struct CUctx_st *ctx = fake_current();

    return ctx != NULL ? ctx->dev : -1;
}

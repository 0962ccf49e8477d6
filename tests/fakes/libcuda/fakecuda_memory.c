/* Memory of devices, page-locked memory, and handles to either between processes. */
#include "tests/fakes/libcuda/fakecuda_priv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HANDLE_MAGIC "FAKEMEM"

struct mem_handle {
    char magic[8];
    pid_t pid;
    int fd;
    uint64_t ino, nbytes;
    CUdevice dev;
};

_Static_assert(sizeof(struct mem_handle) <= sizeof(CUipcMemHandle), "it travels in a handle");

struct region *fake_region_locked(uintptr_t at, size_t nbytes, enum region_kind from,
                                  enum region_kind to)
{
    for (struct region *r = fake.regions; r != NULL; r = r->next) {
        if (r->kind >= from && r->kind <= to && at >= r->base && at - r->base < r->nbytes &&
            nbytes <= r->nbytes - (at - r->base))
            return r;
    }
    return NULL;
}

char *fake_view(CUdeviceptr at, size_t nbytes)
{
    struct region *r;
    char *view = NULL;

    (void)pthread_mutex_lock(&fake.lock);
    r = fake_region_locked((uintptr_t)at, nbytes, REGION_ALLOCATED, REGION_REGISTERED);
    if (r != NULL)
        view = r->view + ((uintptr_t)at - r->base);
    (void)pthread_mutex_unlock(&fake.lock);
    return view;
}

bool fake_pinned(const void *host, size_t nbytes)
{
    bool pinned;

    (void)pthread_mutex_lock(&fake.lock);
    pinned = fake_region_locked((uintptr_t)host, nbytes, REGION_HOST, REGION_REGISTERED) != NULL;
    (void)pthread_mutex_unlock(&fake.lock);
    return pinned;
}

/* A region over `fd`: the caller's addresses without access, and the fake's view. NULL: no room. */
static struct region *region_new(enum region_kind kind, int fd, size_t nbytes, CUdevice dev)
{
    struct region *r = calloc(1, sizeof *r);
    void *base, *view;

    if (r == NULL)
        return NULL;
    base = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    view = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED || view == MAP_FAILED) {
        if (base != MAP_FAILED)
            (void)munmap(base, nbytes);
        if (view != MAP_FAILED)
            (void)munmap(view, nbytes);
        free(r);
        return NULL;
    }
    *r = (struct region){.kind = kind,
                         .base = (uintptr_t)base,
                         .nbytes = nbytes,
                         .view = view,
                         .fd = -1,
                         .dev = dev,
                         .n_opened = 1};
    return r;
}

static void add_locked(struct region *r)
{
    r->next = fake.regions;
    fake.regions = r;
}

static void take_out_locked(struct region *r)
{
    struct region **at = &fake.regions;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
}

/* Device regions only: their two mappings and descriptor. */
static void region_free(struct region *r)
{
    (void)munmap((void *)r->base, r->nbytes);
    (void)munmap(r->view, r->nbytes);
    if (r->fd >= 0)
        (void)close(r->fd);
    free(r);
}

static bool reserve(CUdevice dev, size_t nbytes)
{
    bool fits;

    (void)pthread_mutex_lock(&fake.lock);
    fits = nbytes <= fake.nbytes_device - fake.nbytes_used[dev];
    if (fits) {
        fake.nbytes_used[dev] += nbytes;
        fake.counts.nbytes += nbytes;
        fake.counts.n_allocations++;
        fake.counts.n_allocations_made++;
    }
    (void)pthread_mutex_unlock(&fake.lock);
    return fits;
}

static void unreserve(CUdevice dev, size_t nbytes)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.nbytes_used[dev] -= nbytes;
    fake.counts.nbytes -= nbytes;
    fake.counts.n_allocations--;
    (void)pthread_mutex_unlock(&fake.lock);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dev, size_t nbytes)
{
    CUresult result = fake_enter_context("cuMemAlloc_v2");
    struct region *r = NULL;
    CUdevice at;
    int fd;

    if (result != CUDA_SUCCESS)
        return result;
    at = fake_current()->dev;
    if (nbytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!reserve(at, nbytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    fd = memfd_create("fakecuda", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0)
        r = region_new(REGION_ALLOCATED, fd, nbytes, at);
    if (r == NULL) {
        if (fd >= 0)
            (void)close(fd);
        unreserve(at, nbytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r->fd = fd;
    (void)pthread_mutex_lock(&fake.lock);
    add_locked(r);
    (void)pthread_mutex_unlock(&fake.lock);
    *dev = r->base;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dev)
{
    CUresult result = fake_enter_context("cuMemFree_v2");
    struct region *r;

    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED || dev == 0)
        return result;
    fake_drain(false);
    (void)pthread_mutex_lock(&fake.lock);
    r = fake_region_locked((uintptr_t)dev, 1, REGION_ALLOCATED, REGION_ALLOCATED);
    if (r != NULL && r->base == dev)
        take_out_locked(r);
    else
        r = NULL;
    (void)pthread_mutex_unlock(&fake.lock);
    if (r == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    unreserve(r->dev, r->nbytes);
    region_free(r);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *nbytes_free, size_t *nbytes_total)
{
    CUresult result = fake_enter_context("cuMemGetInfo_v2");

    if (result != CUDA_SUCCESS)
        return result;
    (void)pthread_mutex_lock(&fake.lock);
    *nbytes_free = fake.nbytes_device - fake.nbytes_used[fake_current()->dev];
    *nbytes_total = fake.nbytes_device;
    (void)pthread_mutex_unlock(&fake.lock);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *nbytes, CUdeviceptr dev)
{
    CUresult result = fake_enter_context("cuMemGetAddressRange_v2");
    struct region *r;

    if (result != CUDA_SUCCESS)
        return result;
    (void)pthread_mutex_lock(&fake.lock);
    r = fake_region_locked((uintptr_t)dev, 1, REGION_ALLOCATED, REGION_REGISTERED);
    if (r == NULL)
        result = CUDA_ERROR_NOT_FOUND;
    if (r != NULL && base != NULL)
        *base = r->base;
    if (r != NULL && nbytes != NULL)
        *nbytes = r->nbytes;
    (void)pthread_mutex_unlock(&fake.lock);
    return result;
}

static CUresult add_host(void *host, size_t nbytes, enum region_kind kind)
{
    struct region *r = calloc(1, sizeof *r);

    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *r = (struct region){
        .kind = kind, .base = (uintptr_t)host, .nbytes = nbytes, .view = host, .fd = -1};
    (void)pthread_mutex_lock(&fake.lock);
    add_locked(r);
    fake.counts.n_host_blocks++;
    fake.counts.n_host_blocks_made++;
    (void)pthread_mutex_unlock(&fake.lock);
    return CUDA_SUCCESS;
}

static bool remove_host(void *host, enum region_kind kind)
{
    struct region *r;

    fake_drain(false);
    (void)pthread_mutex_lock(&fake.lock);
    r = fake_region_locked((uintptr_t)host, 1, kind, kind);
    if (r != NULL && r->base == (uintptr_t)host) {
        take_out_locked(r);
        fake.counts.n_host_blocks--;
    } else {
        r = NULL;
    }
    (void)pthread_mutex_unlock(&fake.lock);
    free(r);
    return r != NULL;
}

CUresult cuMemHostAlloc(void **host, size_t nbytes, unsigned flags)
{
    CUresult result = fake_enter_context("cuMemHostAlloc");
    void *block;

    if (result != CUDA_SUCCESS)
        return result;
    if (nbytes == 0 || (flags & ~7U) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (posix_memalign(&block, 4096, nbytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = add_host(block, nbytes, REGION_HOST);
    if (result != CUDA_SUCCESS)
        free(block);
    else
        *host = block;
    return result;
}

CUresult cuMemFreeHost(void *host)
{
    CUresult result = fake_enter_context("cuMemFreeHost");

    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
        return result;
    if (!remove_host(host, REGION_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    free(host);
    return result;
}

CUresult cuMemHostRegister_v2(void *host, size_t nbytes, unsigned flags)
{
    CUresult result = fake_enter_context("cuMemHostRegister_v2");

    if (result != CUDA_SUCCESS)
        return result;
    if (host == NULL || nbytes == 0 || (flags & ~15U) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_pinned(host, 1))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return add_host(host, nbytes, REGION_REGISTERED);
}

CUresult cuMemHostUnregister(void *host)
{
    CUresult result = fake_enter_context("cuMemHostUnregister");

    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
        return result;
    return remove_host(host, REGION_REGISTERED) ? result : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dev)
{
    CUresult result = fake_enter_context("cuIpcGetMemHandle");
    struct mem_handle h = {.magic = HANDLE_MAGIC, .pid = getpid()};
    struct region *r;

    if (result != CUDA_SUCCESS)
        return result;
    (void)pthread_mutex_lock(&fake.lock);
    r = fake_region_locked((uintptr_t)dev, 1, REGION_ALLOCATED, REGION_ALLOCATED);
    if (r != NULL) {
        h.fd = r->fd;
        h.ino = fake_inode(r->fd);
        h.nbytes = r->nbytes;
        h.dev = r->dev;
    }
    (void)pthread_mutex_unlock(&fake.lock);
    if (r == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return CUDA_SUCCESS;
}

/* Opened before by this process: the same pointer again, counted. */
static bool opened_again(CUdeviceptr *dev, const CUipcMemHandle *handle)
{
    bool found = false;

    (void)pthread_mutex_lock(&fake.lock);
    for (struct region *r = fake.regions; r != NULL && !found; r = r->next) {
        if (r->kind == REGION_MAPPED && memcmp(&r->handle, handle, sizeof *handle) == 0) {
            r->n_opened++;
            *dev = r->base;
            found = true;
        }
    }
    (void)pthread_mutex_unlock(&fake.lock);
    return found;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dev, CUipcMemHandle handle, unsigned flags)
{
    CUresult result = fake_enter_context("cuIpcOpenMemHandle_v2");
    struct mem_handle h;
    struct region *r;
    int fd;

    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&h, &handle, sizeof h);
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memcmp(h.magic, HANDLE_MAGIC, 8) != 0 ||
        h.nbytes == 0 || h.dev < 0 || h.dev >= fake.n_devices)
        return CUDA_ERROR_INVALID_VALUE;
    if (h.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (opened_again(dev, &handle))
        return CUDA_SUCCESS;
    fd = fake_open_peer(h.pid, h.fd, h.ino);
    if (fd < 0) /* as CUDA 13.0 on an H200: freed by an exporter that lives, or the exporter died */
        return kill(h.pid, 0) == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    r = region_new(REGION_MAPPED, fd, h.nbytes, h.dev);
    (void)close(fd);
    if (r == NULL)
        return CUDA_ERROR_MAP_FAILED;
    r->handle = handle;
    (void)pthread_mutex_lock(&fake.lock);
    add_locked(r);
    fake.counts.n_mappings++;
    fake.counts.n_mappings_made++;
    (void)pthread_mutex_unlock(&fake.lock);
    *dev = r->base;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dev)
{
    CUresult result = fake_enter_context("cuIpcCloseMemHandle");
    struct region *r;
    bool last = false;

    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
        return result;
    fake_drain(false);
    (void)pthread_mutex_lock(&fake.lock);
    r = fake_region_locked((uintptr_t)dev, 1, REGION_MAPPED, REGION_MAPPED);
    if (r != NULL && r->base != dev)
        r = NULL;
    if (r != NULL && --r->n_opened == 0) {
        take_out_locked(r);
        fake.counts.n_mappings--;
        last = true;
    }
    (void)pthread_mutex_unlock(&fake.lock);
    if (r == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (last)
        region_free(r);
    return result;
}

/* One row of the six copies: views of both sides, or what is wrong with them. */
static CUresult copy(const char *call, CUstream stream, void *dst, const void *src, size_t nbytes,
                     bool wait)
{
    CUresult result = fake_enter_context(call);

    if (result != CUDA_SUCCESS || nbytes == 0)
        return result;
    if (dst == NULL || src == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return fake_copy(stream, dst, src, nbytes, wait);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t nbytes)
{
    return copy("cuMemcpyDtoD_v2", NULL, fake_view(dst, nbytes), fake_view(src, nbytes), nbytes,
                true);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t nbytes)
{
    return copy("cuMemcpyHtoD_v2", NULL, fake_view(dst, nbytes), src, nbytes, true);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t nbytes)
{
    return copy("cuMemcpyDtoH_v2", NULL, dst, fake_view(src, nbytes), nbytes, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t nbytes, CUstream stream)
{
    return copy("cuMemcpyDtoDAsync_v2", stream, fake_view(dst, nbytes), fake_view(src, nbytes),
                nbytes, false);
}

/* Pageable memory: the call returns when the copy is done, as the driver's staging makes it. */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t nbytes, CUstream stream)
{
    return copy("cuMemcpyHtoDAsync_v2", stream, fake_view(dst, nbytes), src, nbytes,
                !fake_pinned(src, nbytes));
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t nbytes, CUstream stream)
{
    return copy("cuMemcpyDtoHAsync_v2", stream, dst, fake_view(src, nbytes), nbytes,
                !fake_pinned(dst, nbytes));
}

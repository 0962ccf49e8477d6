/* State, failing on demand, devices and contexts. */
#include "tests/fakes/libcuda/fakecuda_priv.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_uint_fast64_t n_calls; /* relaxed: a counter */
static _Thread_local struct CUctx_st *stack[FAKE_CTX_DEPTH_MAX];
static _Thread_local int depth;

static uint64_t number(const char *name, uint64_t def)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 10) : def;
}

static void configure(void)
{
    const char *streams = getenv("FAKECUDA_STREAMS");
    uint64_t n = number("FAKECUDA_DEVICES", 1);

    fake.n_devices = n < FAKE_DEVICES_MAX ? (int)n : FAKE_DEVICES_MAX;
    fake.nbytes_device = number("FAKECUDA_MEMORY", 256U << 20);
    fake.mig = number("FAKECUDA_MIG", 0) != 0;
    fake.no_peer = number("FAKECUDA_NO_PEER", 0) != 0;
    fake.at_once = streams != NULL && strcmp(streams, "at_once") == 0;
    fake.fail_nth = number("FAKECUDA_FAIL_NTH", 0);
    fake.fail_call = getenv("FAKECUDA_FAIL_CALL");
    fake.fail_result = (CUresult)number("FAKECUDA_FAIL_RESULT", CUDA_ERROR_UNKNOWN);
    for (int i = 0; i < FAKE_DEVICES_MAX; i++)
        fake.ctx[i].dev = i;
}

CUresult fake_enter(const char *call)
{
    CUresult result = CUDA_SUCCESS;

    (void)pthread_once(&once, configure);
    (void)atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    (void)pthread_mutex_lock(&fake.lock);
    if (fake.fail_nth > 0 && (fake.fail_call == NULL || strcmp(fake.fail_call, call) == 0) &&
        --fake.fail_nth == 0)
        result = fake.fail_result;
    (void)pthread_mutex_unlock(&fake.lock);
    return result;
}

CUresult fake_enter_initialized(const char *call)
{
    CUresult result = fake_enter(call);

    (void)pthread_mutex_lock(&fake.lock);
    if (result == CUDA_SUCCESS && !fake.ready)
        result = CUDA_ERROR_NOT_INITIALIZED;
    (void)pthread_mutex_unlock(&fake.lock);
    return result;
}

struct CUctx_st *fake_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult fake_enter_context(const char *call)
{
    CUresult result = fake_enter_initialized(call);
    struct CUctx_st *ctx = fake_current();

    (void)pthread_mutex_lock(&fake.lock);
    if (result == CUDA_SUCCESS && (ctx == NULL || ctx->n_retained == 0))
        result = CUDA_ERROR_INVALID_CONTEXT;
    (void)pthread_mutex_unlock(&fake.lock);
    return result;
}

void fakecuda_counts(struct fakecuda_counts *out)
{
    (void)pthread_mutex_lock(&fake.lock);
    *out = fake.counts;
    (void)pthread_mutex_unlock(&fake.lock);
    out->n_calls = atomic_load_explicit(&n_calls, memory_order_relaxed);
}

void fakecuda_fail_nth(uint64_t nth)
{
    (void)pthread_once(&once, configure);
    (void)pthread_mutex_lock(&fake.lock);
    fake.fail_nth = nth;
    (void)pthread_mutex_unlock(&fake.lock);
}

__attribute__((destructor)) static void write_report(void)
{
    const char *path = getenv("FAKECUDA_REPORT");
    struct fakecuda_counts c;
    FILE *to = path != NULL ? fopen(path, "we") : NULL;

    if (to == NULL)
        return;
    fakecuda_counts(&c);
    (void)fprintf(to,
                  "{\"allocations\": %zu, \"mappings\": %zu, \"host_blocks\": %zu, "
                  "\"streams\": %zu, \"events\": %zu, \"contexts\": %zu, \"modules\": %zu, "
                  "\"calls\": %llu, \"contexts_made\": %llu, \"mappings_made\": %llu}\n",
                  c.n_allocations, c.n_mappings, c.n_host_blocks, c.n_streams, c.n_events,
                  c.n_contexts, c.n_modules, (unsigned long long)c.n_calls,
                  (unsigned long long)c.n_contexts_made, (unsigned long long)c.n_mappings_made);
    (void)fclose(to);
}

uint64_t fake_inode(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

int fake_open_peer(pid_t pid, int fd, uint64_t ino)
{
    char path[64];
    int mine;

    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)pid, fd);
    mine = open(path, O_RDWR | O_CLOEXEC);
    if (mine >= 0 && fake_inode(mine) != ino) {
        (void)close(mine);
        return -1;
    }
    return mine;
}

static const struct {
    CUresult value;
    const char *name;
} results[] = {
#define X(name, value) {name, #name},
    CU_RESULTS(X)
#undef X
};

CUresult cuGetErrorName(CUresult result, const char **text)
{
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        if (results[i].value == result) {
            *text = results[i].name;
            return CUDA_SUCCESS;
        }
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    const char *name;

    if (cuGetErrorName(result, &name) != CUDA_SUCCESS) {
        *text = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
    *text = "as the fake was told, or asked for";
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
    CUresult result = fake_enter("cuInit");

    if (result != CUDA_SUCCESS)
        return result;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake.n_devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    (void)pthread_mutex_lock(&fake.lock);
    fake.ready = true;
    (void)pthread_mutex_unlock(&fake.lock);
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    CUresult result = fake_enter("cuDriverGetVersion");

    if (result == CUDA_SUCCESS)
        *version = 13000;
    return result;
}

CUresult cuDeviceGetCount(int *n)
{
    CUresult result = fake_enter_initialized("cuDeviceGetCount");

    if (result == CUDA_SUCCESS)
        *n = fake.n_devices;
    return result;
}

static CUresult enter_device(const char *call, CUdevice dev)
{
    CUresult result = fake_enter_initialized(call);

    if (result == CUDA_SUCCESS && (dev < 0 || dev >= fake.n_devices))
        result = CUDA_ERROR_INVALID_DEVICE;
    return result;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
    CUresult result = enter_device("cuDeviceGet", ordinal);

    if (result == CUDA_SUCCESS)
        *dev = ordinal;
    return result;
}

CUresult cuDeviceGetName(char *name, int cap, CUdevice dev)
{
    CUresult result = enter_device("cuDeviceGetName", dev);

    if (result == CUDA_SUCCESS)
        (void)snprintf(name, (size_t)cap, "Fake GPU");
    return result;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    CUresult result = enter_device("cuDeviceGetUuid_v2", dev);

    if (result != CUDA_SUCCESS)
        return result;
    memcpy(uuid->bytes, "\xfa\x6e\xc0\xda\x00\x00\x40\x00\x80\x00\x00\x00\x00\x00\x00", 15);
    uuid->bytes[15] = (char)dev;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    CUresult result = cuDeviceGetUuid_v2(uuid, dev);

    if (result == CUDA_SUCCESS && fake.mig)
        uuid->bytes[14] = 1;
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *nbytes, CUdevice dev)
{
    CUresult result = enter_device("cuDeviceTotalMem_v2", dev);

    if (result == CUDA_SUCCESS)
        *nbytes = fake.nbytes_device;
    return result;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
    static const struct {
        CUdevice_attribute attribute;
        int value;
    } known[] = {
        {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    };
    CUresult result = enter_device("cuDeviceGetAttribute", dev);

    if (result != CUDA_SUCCESS)
        return result;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].attribute == attribute) {
            *value = known[i].value;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    CUresult result = enter_device("cuDeviceCanAccessPeer", dev);

    if (result == CUDA_SUCCESS && (peer < 0 || peer >= fake.n_devices))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *can = dev != peer && !fake.no_peer;
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    CUresult result = enter_device("cuDevicePrimaryCtxRetain", dev);

    if (result != CUDA_SUCCESS)
        return result;
    (void)pthread_mutex_lock(&fake.lock);
    if (fake.ctx[dev].n_retained++ == 0) {
        fake.counts.n_contexts++;
        fake.counts.n_contexts_made++;
    }
    (void)pthread_mutex_unlock(&fake.lock);
    *ctx = &fake.ctx[dev];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    CUresult result = fake_enter("cuDevicePrimaryCtxRelease_v2");

    if (dev < 0 || dev >= fake.n_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    (void)pthread_mutex_lock(&fake.lock);
    if (fake.ctx[dev].n_retained == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--fake.ctx[dev].n_retained == 0) {
        fake.counts.n_contexts--;
        memset(fake.ctx[dev].peer, 0, sizeof fake.ctx[dev].peer);
    }
    (void)pthread_mutex_unlock(&fake.lock);
    return result;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    CUresult result = fake_enter_initialized("cuCtxSetCurrent");

    if (result != CUDA_SUCCESS)
        return result;
    if (ctx == NULL)
        depth -= depth > 0 ? 1 : 0;
    else
        stack[depth > 0 ? depth - 1 : depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    CUresult result = fake_enter_initialized("cuCtxPushCurrent_v2");

    if (result == CUDA_SUCCESS && (ctx == NULL || depth == FAKE_CTX_DEPTH_MAX))
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        stack[depth++] = ctx;
    return result;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
    CUresult result = fake_enter_initialized("cuCtxPopCurrent_v2");

    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (ctx != NULL)
        *ctx = stack[depth];
    return result;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUresult result = fake_enter_context("cuCtxEnablePeerAccess");
    struct CUctx_st *ctx = fake_current();

    if (result != CUDA_SUCCESS)
        return result;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer == NULL || peer == ctx)
        return CUDA_ERROR_INVALID_DEVICE;
    (void)pthread_mutex_lock(&fake.lock);
    if (ctx->peer[peer->dev])
        result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    ctx->peer[peer->dev] = true;
    (void)pthread_mutex_unlock(&fake.lock);
    return result;
}

/* What the fake's files share: one state, one lock, and the entry of every call. */
#ifndef BATON_TESTS_FAKES_LIBCUDA_FAKECUDA_PRIV_H
#define BATON_TESTS_FAKES_LIBCUDA_FAKECUDA_PRIV_H

#include "driver/cuda.h"
#include "tests/fakes/libcuda/fakecuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { FAKE_DEVICES_MAX = 16, FAKE_CTX_DEPTH_MAX = 16, FAKE_KERNEL_PARAMS_MAX = 5 };

/* A fake that drifts from the rows does not build. */
#define X(field, symbol, required, args) CUresult symbol args;
CU_SYMBOLS(X)
#undef X

struct CUctx_st {
    CUdevice dev;
    int n_retained;
    bool peer[FAKE_DEVICES_MAX];
};

struct CUfunc_st {
    const char *name;
    int n_params;
    size_t nbytes[FAKE_KERNEL_PARAMS_MAX];
    unsigned n_threads; /* of a block; 0: any */
    void (*run)(const uint64_t *params, unsigned n_blocks);
};

enum region_kind { REGION_ALLOCATED, REGION_MAPPED, REGION_HOST, REGION_REGISTERED };

struct region {
    struct region *next;
    enum region_kind kind;
    uintptr_t base; /* what the caller sees */
    size_t nbytes;
    char *view; /* where the bytes are */
    int fd;     /* REGION_ALLOCATED: the memfd, which importers open; else -1 */
    CUdevice dev;
    int n_opened; /* REGION_MAPPED */
    CUipcMemHandle handle;
};

struct fake {
    pthread_mutex_t lock; /* guards all but `counts.n_calls` and the atomics */
    pthread_cond_t changed;
    bool ready, at_once, hold;
    bool mig, no_peer; /* as the environment says */
    int n_devices;
    uint64_t nbytes_device, nbytes_used[FAKE_DEVICES_MAX];
    struct CUctx_st ctx[FAKE_DEVICES_MAX];
    struct region *regions;
    struct CUstream_st *streams;
    uint64_t fail_nth;
    CUresult fail_result;
    const char *fail_call;
    struct fakecuda_counts counts;
};
extern struct fake fake;

/* Counts the call; what it must return if it is the one to fail, else CUDA_SUCCESS. */
CUresult fake_enter(const char *call);
/* The same, and then refuses without cuInit (3) or without a current context (201). */
CUresult fake_enter_initialized(const char *call);
CUresult fake_enter_context(const char *call);
/* The thread's current context, NULL for none. */
struct CUctx_st *fake_current(void);

/* The region that holds [at, at + nbytes), of one of the kinds from..to; under the lock. */
struct region *fake_region_locked(uintptr_t at, size_t nbytes, enum region_kind from,
                                  enum region_kind to);
/* Device address -> the bytes; NULL when they are not all in one region. Takes the lock. */
char *fake_view(CUdeviceptr at, size_t nbytes);
/* Is the host range page-locked? */
bool fake_pinned(const void *host, size_t nbytes);

/* Queues or makes a copy. `wait`: return when it is done. */
CUresult fake_copy(CUstream stream, void *dst, const void *src, size_t nbytes, bool wait);
/* Until every stream's work is done; `null`: only of streams that wait for the default one. */
void fake_drain(bool null);
/* Opens descriptor `fd` of process `pid`, if it still is the file `ino`. -1 when not. */
int fake_open_peer(pid_t pid, int fd, uint64_t ino);
uint64_t fake_inode(int fd);

#endif

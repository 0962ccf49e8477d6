/* libcuda, opened at run time: the same binary runs on a machine without it.
 *
 * Every call goes through `struct cu_api`, also those for error texts; nothing links -lcuda. The
 * types are copied by hand (cuda.h of CUDA 13.0): only the few that the functions need. */
#ifndef BATON_DRIVER_CUDA_H
#define BATON_DRIVER_CUDA_H

#include "base/err.h"
#include "driver/cuda_symbols.h"

#include <stdbool.h>
#include <stddef.h>

typedef int CUresult; /* an enum there; its values are below */
typedef int CUdevice;
typedef int CUdevice_attribute; /* an enum there */
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;
typedef struct CUipcMemHandle_st {
    char reserved[64];
} CUipcMemHandle;
typedef struct CUipcEventHandle_st {
    char reserved[64];
} CUipcEventHandle;

enum cu_constant {
#define X(name, value) name = (value),
    CU_RESULTS(X) CU_CONSTANTS(X)
#undef X
};

#define X(type, nbytes) _Static_assert(sizeof(type) == (nbytes), #type " has another size");
CU_SIZES(X)
#undef X

struct cu_api {
    void *lib; /* dlopen handle; owned, closed by cu_unload */
#define X(field, symbol, required, args) CUresult(*field) args;
    CU_SYMBOLS(X)
#undef X
};

/* cu_load - open libcuda and fill the table. Calls nothing in it.
 * @path  NULL or "" for the SONAME, libcuda.so.1
 *
 * Threads: any, once for each table; afterwards the table is immutable and any thread's.
 * Blocks:  for as long as the loader reads the library.
 * Errors:  ERR_CUDA  it cannot be opened, or lacks a required symbol, which the message names;
 *          *out is untouched and the library closed. */
int cu_load(struct cu_api *out, const char *path, struct err *e);

/* cu_unload - close the library and zero the table; accepts a zeroed one. For tests, which
 * load doubles of the library: a driver that has run must stay mapped until the process ends. */
void cu_unload(struct cu_api *cu);

/* cu_try - translate the result of a driver's call, on the line of the call:
 * `if (cu_try(cu, cu->mem_alloc(&dev, nbytes), "cuMemAlloc", e) != 0)`.
 * @call  the function's name, for the message
 *
 * Threads: any; asserts that the caller holds no lock, since a driver's call may wait for the GPU.
 * Errors:  ERR_CUDA  any result but CUDA_SUCCESS; the message has its name, number and text. */
int cu_try(const struct cu_api *cu, CUresult result, const char *call, struct err *e);

/* cu_can_launch - does the library have all optional functions for modules and kernels? Without
 * them checksums are computed on the host. */
bool cu_can_launch(const struct cu_api *cu);

#endif

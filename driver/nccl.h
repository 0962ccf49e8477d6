/* libnccl, opened at run time; often the trainer's own copy. Every rank of a group must run the
 * same NCCL version down to the patch number, so the path of the library is configurable.
 *
 * NCCL also reads its configuration from the environment. NCCL_COMM_BLOCKING overrides
 * ncclConfig_t, also when it is set in ~/.nccl.conf or /etc/nccl.conf, and a blocking communicator
 * has no deadline. Therefore server/main.c calls nccl_environment before it starts a thread. The
 * operator sets the variables that must agree with a trainer on the same host (NCCL_CUMEM_ENABLE
 * first of all). */
#ifndef BATON_DRIVER_NCCL_H
#define BATON_DRIVER_NCCL_H

#include "base/err.h"
#include "driver/nccl_symbols.h"

#include <stdbool.h>
#include <stddef.h>

typedef int ncclResult_t;   /* an enum there; its values are below */
typedef int ncclDataType_t; /* an enum there */
typedef int ncclRedOp_t;    /* an enum there */
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t; /* the driver's CUstream */

enum nccl_constant {
#define X(name, value) name = (value),
    NCCL_RESULTS(X) NCCL_CONSTANTS(X)
#undef X
};

typedef struct ncclUniqueId {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef struct ncclConfig {
#define X(type, name, initial) type name;
    NCCL_CONFIG_MEMBERS(X)
#undef X
} ncclConfig_t;

#define X(type, nbytes) _Static_assert(sizeof(type) == (nbytes), #type " has another size");
NCCL_SIZES(X)
#undef X

struct nccl_api {
    void *lib; /* dlopen handle; owned, closed by nccl_unload */
#define X(field, symbol, required, returns, args) returns(*field) args;
    NCCL_SYMBOLS(X)
#undef X
};

/* nccl_environment - make every communicator of this process non-blocking, whatever the environment
 * or NCCL's configuration files contain (a file does not override a variable that is set).
 *
 * Threads: the only one of the process, because the environment has no lock. Before nccl_load. */
void nccl_environment(void);

/* nccl_load - open libnccl and fill the table. Calls nothing in it.
 * @path  NULL or "" for the SONAME, libnccl.so.2
 *
 * Threads: any, once for each table; afterwards the table is immutable and any thread's.
 * Blocks:  for as long as the loader reads the library, some 200 MB.
 * Errors:  ERR_NCCL  it cannot be opened, or lacks a required symbol, which the message names;
 *          *out is untouched and the library closed. */
int nccl_load(struct nccl_api *out, const char *path, struct err *e);

/* nccl_unload - close the library and zero the table; accepts a zeroed one. Only for fakes and for
 * a library that has made no communicator: NCCL's own threads would run on in unmapped code. */
void nccl_unload(struct nccl_api *nccl);

/* nccl_config_init - what NCCL_CONFIG_INITIALIZER writes, and blocking = 0. */
void nccl_config_init(ncclConfig_t *out);

/* nccl_try - translate the result of a call, on the line of the call:
 * `if (nccl_try(nccl, nccl->broadcast(...), "ncclBroadcast", e) != 0)`.
 * ncclInProgress is not a failure: for a non-blocking communicator, nccl_poll reports the outcome.
 * @call  the function's name, for the message
 *
 * Threads: any; asserts that the caller holds no lock, since a call may wait for a peer.
 * Errors:  ERR_NCCL  with the result's name, number and text, and NCCL's last message. That message
 *          is one for the whole process, so it may concern another communicator. */
int nccl_try(const struct nccl_api *nccl, ncclResult_t result, const char *call, struct err *e);

/* nccl_poll - has the communicator's last call finished? Until it has, only this function and
 * ncclCommAbort may be called on the communicator, and no event recorded behind the call: NCCL
 * refuses any other call for good, and the event would fire too early.
 * @call  the function that was started, for the message
 * @done  written on success only
 *
 * Threads: the communicator's own and no other: the call joins a thread of NCCL's.
 * Errors:  ERR_NCCL  as nccl_try; leave by ncclCommAbort. */
int nccl_poll(const struct nccl_api *nccl, ncclComm_t comm, const char *call, bool *done,
              struct err *e);

#endif

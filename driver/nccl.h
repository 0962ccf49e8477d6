/* libnccl, opened at run time, and often the trainer's own: every rank of a group must run the
 * same NCCL down to the patch number, so which file this is belongs to the configuration.
 *
 * The environment is NCCL's second configuration and belongs to the process. NCCL_COMM_BLOCKING
 * overrides ncclConfig_t, also from ~/.nccl.conf and /etc/nccl.conf, and a blocking communicator
 * has no deadline: server/main.c calls nccl_environment before it starts a thread. What must agree
 * with the trainer on one host (NCCL_CUMEM_ENABLE first of all) is the operator's to set. */
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
 * or NCCL's configuration files say (a file does not override what is set).
 *
 * Threads: the only one; the environment has no lock. Before nccl_load. */
void nccl_environment(void);

/* nccl_load - open libnccl and fill the table. Calls nothing in it.
 * @path  NULL or "" for the SONAME, libnccl.so.2
 *
 * Threads: any, once for each table; afterwards the table is immutable and any thread's.
 * Blocks:  for as long as the loader reads the library, some 200 MB.
 * Errors:  ERR_NCCL  it cannot be opened, or lacks a required symbol, which the message names;
 *          *out is untouched and the library closed. */
int nccl_load(struct nccl_api *out, const char *path, struct err *e);

/* nccl_unload - close the library and zero the table; accepts a zeroed one. For fakes and for a
 * library that has made no communicator: NCCL's own threads would run on in unmapped code. */
void nccl_unload(struct nccl_api *nccl);

/* nccl_config_init - what NCCL_CONFIG_INITIALIZER writes, and blocking = 0. */
void nccl_config_init(ncclConfig_t *out);

/* nccl_try - translate what a call returned, on the line of the call:
 * `if (nccl_try(nccl, nccl->broadcast(...), "ncclBroadcast", e) != 0)`.
 * ncclInProgress is no failure: of a non-blocking communicator nccl_poll tells how it went on.
 * @call  the function's name, for the message
 *
 * Threads: any; asserts that the caller holds no lock, since a call may wait for a peer.
 * Errors:  ERR_NCCL  the result's name, number and text, and NCCL's last message, which is of the
 *          whole process and so may be about another communicator. */
int nccl_try(const struct nccl_api *nccl, ncclResult_t result, const char *call, struct err *e);

/* nccl_poll - has the communicator's last call come to its end? Until it has, nothing but this and
 * ncclCommAbort may be called on it, and no event recorded behind it: NCCL refuses the first for
 * good, and the second would be early.
 * @call  the function that began, for the message
 * @done  written on success only
 *
 * Threads: the communicator's own and no other: the call joins a thread of NCCL's.
 * Errors:  ERR_NCCL  as nccl_try; leave by ncclCommAbort. */
int nccl_poll(const struct nccl_api *nccl, ncclComm_t comm, const char *call, bool *done,
              struct err *e);

#endif

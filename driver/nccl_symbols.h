/* The part of NCCL's API that baton uses, as macros: functions, constants, configuration, sizes.
 *
 * As in driver/cuda_symbols.h, the same rows generate the loader's table (driver/nccl.h), the
 * prototypes of the fake (tests/fakes/libnccl) and the comparison with an installed header
 * (tests/unit/driver/test_nccl_header.c). Left out on purpose: ncclCommFinalize, which does not end
 * while a peer keeps its communicator (baton leaves by abort); groups, which a non-blocking
 * communicator with a thread of its own does not need; buffer registration, which a stock trainer
 * does not use.
 *
 * Source: nccl.h of NCCL 2.28.9 (NCCL_VERSION_CODE 22809); the functions are unchanged since 2.14,
 * the first with non-blocking communicators. */
#ifndef BATON_DRIVER_NCCL_SYMBOLS_H
#define BATON_DRIVER_NCCL_SYMBOLS_H

/* Row: field, exported symbol, required, what it returns, arguments. */
#define NCCL_SYMBOLS(X)                                                                            \
    X(get_version, ncclGetVersion, true, ncclResult_t, (int *version))                             \
    X(get_error_string, ncclGetErrorString, true, const char *, (ncclResult_t result))             \
    X(get_last_error, ncclGetLastError, true, const char *, (ncclComm_t comm))                     \
    X(get_unique_id, ncclGetUniqueId, true, ncclResult_t, (ncclUniqueId * id))                     \
    X(comm_init_rank_config, ncclCommInitRankConfig, true, ncclResult_t,                           \
      (ncclComm_t * comm, int n_ranks, ncclUniqueId id, int rank, ncclConfig_t *config))           \
    X(comm_get_async_error, ncclCommGetAsyncError, true, ncclResult_t,                             \
      (ncclComm_t comm, ncclResult_t * result))                                                    \
    X(comm_abort, ncclCommAbort, true, ncclResult_t, (ncclComm_t comm))                            \
    X(comm_destroy, ncclCommDestroy, true, ncclResult_t, (ncclComm_t comm))                        \
    X(comm_count, ncclCommCount, true, ncclResult_t, (const ncclComm_t comm, int *n_ranks))        \
    X(comm_user_rank, ncclCommUserRank, true, ncclResult_t, (const ncclComm_t comm, int *rank))    \
    X(broadcast, ncclBroadcast, true, ncclResult_t,                                                \
      (const void *send, void *recv, size_t n_elements, ncclDataType_t dtype, int root,            \
       ncclComm_t comm, cudaStream_t stream))                                                      \
    X(all_reduce, ncclAllReduce, true, ncclResult_t,                                               \
      (const void *send, void *recv, size_t n_elements, ncclDataType_t dtype, ncclRedOp_t op,      \
       ncclComm_t comm, cudaStream_t stream))

/* Row: enumerator or macro of nccl.h, value. Results first. */
#define NCCL_RESULTS(X)                                                                            \
    X(ncclSuccess, 0)                                                                              \
    X(ncclUnhandledCudaError, 1)                                                                   \
    X(ncclSystemError, 2)                                                                          \
    X(ncclInternalError, 3)                                                                        \
    X(ncclInvalidArgument, 4)                                                                      \
    X(ncclInvalidUsage, 5)                                                                         \
    X(ncclRemoteError, 6)                                                                          \
    X(ncclInProgress, 7)

#define NCCL_CONSTANTS(X)                                                                          \
    X(ncclInt8, 0)                                                                                 \
    X(ncclUint8, 1)                                                                                \
    X(ncclInt32, 2)                                                                                \
    X(ncclUint32, 3)                                                                               \
    X(ncclInt64, 4)                                                                                \
    X(ncclUint64, 5)                                                                               \
    X(ncclFloat16, 6)                                                                              \
    X(ncclFloat32, 7)                                                                              \
    X(ncclFloat64, 8)                                                                              \
    X(ncclBfloat16, 9)                                                                             \
    X(ncclFloat8e4m3, 10)                                                                          \
    X(ncclFloat8e5m2, 11)                                                                          \
    X(ncclSum, 0)                                                                                  \
    X(NCCL_UNIQUE_ID_BYTES, 128)                                                                   \
    X(NCCL_CONFIG_UNDEF_INT, (-2147483647 - 1))

/* Row: type, member of ncclConfig_t, what NCCL_CONFIG_INITIALIZER puts there. The library takes the
 * first `size` bytes and, by `version`, its own defaults for what came later: older and newer ones
 * than this struct's read it alike. */
#define NCCL_CONFIG_MAGIC   0xcafebeefU
#define NCCL_CONFIG_VERSION 22800U
#define NCCL_CONFIG_MEMBERS(X)                                                                     \
    X(size_t, size, sizeof(ncclConfig_t))                                                          \
    X(unsigned, magic, NCCL_CONFIG_MAGIC)                                                          \
    X(unsigned, version, NCCL_CONFIG_VERSION)                                                      \
    X(int, blocking, NCCL_CONFIG_UNDEF_INT)                                                        \
    X(int, cgaClusterSize, NCCL_CONFIG_UNDEF_INT)                                                  \
    X(int, minCTAs, NCCL_CONFIG_UNDEF_INT)                                                         \
    X(int, maxCTAs, NCCL_CONFIG_UNDEF_INT)                                                         \
    X(const char *, netName, NULL)                                                                 \
    X(int, splitShare, NCCL_CONFIG_UNDEF_INT)                                                      \
    X(int, trafficClass, NCCL_CONFIG_UNDEF_INT)                                                    \
    X(const char *, commName, NULL)                                                                \
    X(int, collnetEnable, NCCL_CONFIG_UNDEF_INT)                                                   \
    X(int, CTAPolicy, NCCL_CONFIG_UNDEF_INT)                                                       \
    X(int, shrinkShare, NCCL_CONFIG_UNDEF_INT)                                                     \
    X(int, nvlsCTAs, NCCL_CONFIG_UNDEF_INT)                                                        \
    X(int, nChannelsPerNetPeer, NCCL_CONFIG_UNDEF_INT)                                             \
    X(int, nvlinkCentricSched, NCCL_CONFIG_UNDEF_INT)

/* Row: type, bytes. */
#define NCCL_SIZES(X)                                                                              \
    X(ncclResult_t, 4)                                                                             \
    X(ncclDataType_t, 4)                                                                           \
    X(ncclRedOp_t, 4)                                                                              \
    X(ncclComm_t, 8)                                                                               \
    X(cudaStream_t, 8)                                                                             \
    X(ncclUniqueId, 128)

#endif

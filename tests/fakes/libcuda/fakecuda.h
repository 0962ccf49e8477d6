/* libfakecuda.so: libcuda's calls (driver/cuda_symbols.h) on a CPU, also between processes.
 *
 * Device memory is a memfd: a device pointer is an address range without access (whoever reads it
 * on the CPU dies, as with a GPU's), the bytes lie in a second mapping that only the fake knows.
 * Page-locked host memory has the same address on a device, and other host memory has none.
 * An importer opens the exporter's descriptor through /proc, so that a handle dies with its
 * exporter and a killed process leaves nothing behind; named shared memory would stay. Refused as
 * the driver refuses: calls before cuInit or without a context, a handle that this process
 * exported, flags, ranges beyond an allocation, an event that is not interprocess.
 * Results are those that CUDA 13.0 (driver 580.159) gave on an H200 for the same calls.
 *
 * Environment, read by cuInit or at the first call:
 *   FAKECUDA_DEVICES   how many; default 1; 0: cuInit says CUDA_ERROR_NO_DEVICE
 *   FAKECUDA_MEMORY    bytes on each device, per process; default 256 MiB
 *   FAKECUDA_MIG       1: each device is a slice of a GPU whose UUID is another
 *   FAKECUDA_NO_PEER   1: no device reaches another one's memory
 *   FAKECUDA_STREAMS   worker (default): each stream has a thread; or at_once
 *   FAKECUDA_FAIL_NTH  the n-th call (from 1) fails; a release is done all the same
 *   FAKECUDA_FAIL_CALL count only calls of this exported name
 *   FAKECUDA_FAIL_RESULT  with this result; default 999, CUDA_ERROR_UNKNOWN
 *   FAKECUDA_REPORT    FILE: at the process's end, the counts as one line of JSON */
#ifndef BATON_TESTS_FAKES_LIBCUDA_FAKECUDA_H
#define BATON_TESTS_FAKES_LIBCUDA_FAKECUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Alive now in this process; and what was ever done. */
struct fakecuda_counts {
    size_t n_allocations, n_mappings, n_host_blocks, n_streams, n_events, n_contexts, n_modules;
    uint64_t nbytes; /* of device memory allocated */
    uint64_t n_calls, n_contexts_made, n_mappings_made, nbytes_copied;
    uint64_t n_allocations_made, n_host_blocks_made, n_events_made, n_launches;
};

/* Looked up with dlsym; the names are their types' with "_fn". Threads: any. */
typedef void fakecuda_counts_fn(struct fakecuda_counts *out);
/* Counts from now; 0: nothing fails. */
typedef void fakecuda_fail_nth_fn(uint64_t nth);
/* While true, streams with a worker begin no further operation. */
typedef void fakecuda_hold_fn(bool hold);

fakecuda_counts_fn fakecuda_counts;
fakecuda_fail_nth_fn fakecuda_fail_nth;
fakecuda_hold_fn fakecuda_hold;

/* For a library that works on the fake's streams and memory as NCCL does on a GPU's. */

/* Runs fn(arg) as an operation of the stream, in its order, on its worker; NULL: the default one.
 * Returns a CUresult. */
typedef int fakecuda_enqueue_fn(void *stream, void (*fn)(void *arg), void *arg);
/* Where the bytes of a device address are; NULL when they are not all in one allocation. */
typedef void *fakecuda_view_fn(uint64_t at, size_t nbytes);
/* The device of the thread's current context, -1 for none. */
typedef int fakecuda_device_fn(void);

fakecuda_enqueue_fn fakecuda_enqueue;
fakecuda_view_fn fakecuda_view;
fakecuda_device_fn fakecuda_device;

#endif

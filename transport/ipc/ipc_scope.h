/* What the CUDA IPC sources of one update keep for each other: mappings of trainers' memory,
 * exports with their counters, and an eye on the processes that exported them.
 *
 * Everything is counted by the handle: each handle of a source that has joined is one use of its
 * export and, once mapped, of its mapping, so that sources in flight at the same time, and ranks
 * that read the same handle, need not know of each other. */
#ifndef BATON_TRANSPORT_IPC_IPC_SCOPE_H
#define BATON_TRANSPORT_IPC_IPC_SCOPE_H

#include "base/err.h"
#include "memory/device.h"
#include "transport/ipc/cuda_ipc.h"
#include "transport/ipc/ipc_handle.h"
#include "weights/source.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    IPC_COUNTERS_MAX = 1024, /* counter objects of an update, each of IPC_REF_SLOTS exports */
    IPC_EXPORTERS_MAX = 64,  /* processes of an update that are watched; more are not */
    IPC_NOTHING = UINT32_MAX /* the handle has none of it */
};

/* Whether a mapping that is in no use may serve a later bucket. What is in use may in any case: an
 * export that is not counted down keeps its memory. */
enum ipc_reuse {
    IPC_REUSE_HANDLE, /* by the same GPU, process and 64 bytes: trusts that a trainer which frees
                         memory and exports other memory gets other bytes */
    IPC_REUSE_EXPORT  /* and only by the very export that it was opened for: trusts nothing */
};

#define IPC_REUSE IPC_REUSE_HANDLE /* what updates do */

enum { IPC_HEX_LEN = 2 * IPC_MEM_NBYTES };
_Static_assert((int)IPC_MEM_NBYTES == (int)IPC_EVENT_NBYTES, "either makes a key");

/* ipc_hex - the bytes of a handle as text, for sets of names. */
void ipc_hex(char out[IPC_HEX_LEN + 1], const uint8_t bytes[IPC_MEM_NBYTES]);

struct ipc_scope;

/* ipc_scope_new - an empty one; the update closes it, by source_scope_close.
 * @stats  borrowed; outlives the scope
 * Errors: ERR_NO_MEMORY. */
int ipc_scope_new(struct ipc_scope **out, enum ipc_reuse reuse, struct cuda_ipc_stats *stats,
                  struct err *e);
struct source_scope *ipc_scope_source(struct ipc_scope *c);
struct ipc_scope *ipc_scope_of(struct source_scope *scope); /* asserts that it is one */

/* ipc_scope_take_export - one more use of a handle's export. The first that names a counter object
 * begins to watch its process, if that is visible from here and alive.
 * @export  its number, or IPC_NOTHING: there is nothing to count down
 * Errors: ERR_TOO_LARGE (IPC_COUNTERS_MAX), ERR_NO_MEMORY; nothing was taken. */
int ipc_scope_take_export(struct ipc_scope *c, const struct ipc_handle *h, uint32_t *export,
                          struct err *e);

/* ipc_scope_drop_export - one use less. At the last, with @count, torch's counter goes down, once
 * in the life of the scope; a counter that cannot be reached is logged once, counted, and let be.
 * ipc_scope_drop_end - after a row of drops: closes the counter objects. */
void ipc_scope_drop_export(struct ipc_scope *c, uint32_t export, bool count);
void ipc_scope_drop_end(struct ipc_scope *c);

/* ipc_scope_exporter - a bit for the process of an export; 0: it is not watched. */
uint64_t ipc_scope_exporter(const struct ipc_scope *c, uint32_t export);

/* ipc_scope_check_exporters - do the processes of these bits all live?
 * Errors: ERR_GONE (names the process): it has ended, or begun to, since it has been watched. That
 * none has says little: a process of another pid namespace is not visible from here. */
int ipc_scope_check_exporters(const struct ipc_scope *c, uint64_t exporters, struct err *e);

/* ipc_scope_map - one more use of the mapping of a handle that has memory, on a GPU.
 * @export   of the handle, from ipc_scope_take_export
 * @mapping  its number; the mapping stays where it is until ipc_scope_unmap
 * Errors: ERR_CUDA, ERR_NO_MEMORY, ERR_TOO_LARGE (NAMES_MAX); nothing was taken. */
int ipc_scope_map(struct ipc_scope *c, struct device *d, const struct ipc_handle *h,
                  uint32_t export, uint32_t *mapping, struct err *e);
uint64_t ipc_scope_addr(const struct ipc_scope *c, uint32_t mapping);
uint64_t ipc_scope_nbytes(const struct ipc_scope *c, uint32_t mapping);

/* ipc_scope_unmap - one use less. A mapping in no use stays open for a later bucket; of more than
 * IPC_MAPPINGS_KEPT such on a GPU, the one that has been idle longest is closed. */
void ipc_scope_unmap(struct ipc_scope *c, uint32_t mapping);

#endif

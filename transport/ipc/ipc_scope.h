/* The state that the CUDA IPC sources of one update share: mappings of trainers' memory, exports
 * with their counters, and watches on the processes that exported them.
 *
 * Uses are counted by handle: each handle of a source that has joined is one use of its export and,
 * once mapped, of its mapping. So sources that are open at the same time, and ranks that read the
 * same handle, do not have to coordinate. */
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

/* Whether an unused mapping may be reused for a later bucket. A mapping in use always may: the
 * exporter keeps its memory until the export is counted down. */
enum ipc_reuse {
    IPC_REUSE_HANDLE, /* for the same GPU, process and 64 bytes: assumes that a trainer which frees
                         memory and exports other memory gets other bytes */
    IPC_REUSE_EXPORT  /* only for the same export that it was opened for: assumes nothing */
};

#define IPC_REUSE IPC_REUSE_HANDLE /* what updates do */

enum { IPC_HEX_LEN = 2 * IPC_MEM_NBYTES };
_Static_assert((int)IPC_MEM_NBYTES == (int)IPC_EVENT_NBYTES, "either makes a key");

/* ipc_hex - the bytes of a handle as text, for sets of names. */
void ipc_hex(char out[IPC_HEX_LEN + 1], const uint8_t bytes[IPC_MEM_NBYTES]);

struct ipc_scope;

/* ipc_scope_new - make an empty scope; the update closes it by source_scope_close.
 * @stats  borrowed; outlives the scope
 * Errors: ERR_NO_MEMORY. */
int ipc_scope_new(struct ipc_scope **out, enum ipc_reuse reuse, struct cuda_ipc_stats *stats,
                  struct err *e);
struct source_scope *ipc_scope_source(struct ipc_scope *c);
struct ipc_scope *ipc_scope_of(struct source_scope *scope); /* asserts that it is one */

/* ipc_scope_take_export - one more use of a handle's export. The first that names a counter object
 * begins to watch its process, if that is visible from here and alive.
 * @export  its number, or IPC_NOTHING if it has no counter
 * Errors: ERR_TOO_LARGE (IPC_COUNTERS_MAX), ERR_NO_MEMORY; nothing was taken. */
int ipc_scope_take_export(struct ipc_scope *c, const struct ipc_handle *h, uint32_t *export,
                          struct err *e);

/* ipc_scope_drop_export - one use less. When the last use is dropped and `count` is set, torch's
 * counter is decremented, once in the life of the scope. A counter that cannot be opened is logged
 * once, counted as stuck, and not tried again.
 * ipc_scope_drop_end - call after a series of drops: closes the counter objects. */
void ipc_scope_drop_export(struct ipc_scope *c, uint32_t export, bool count);
void ipc_scope_drop_end(struct ipc_scope *c);

/* ipc_scope_exporter - the bit of an export's process; 0 if it is not watched. */
uint64_t ipc_scope_exporter(const struct ipc_scope *c, uint32_t export);

/* ipc_scope_check_exporters - are the processes of these bits all alive?
 * Errors: ERR_GONE (names the process): it has exited, or begun to exit, since the watch began.
 * Success proves little: a process of another pid namespace is not visible from here. */
int ipc_scope_check_exporters(const struct ipc_scope *c, uint64_t exporters, struct err *e);

/* ipc_scope_map - one more use of the mapping of a handle that has memory, on a GPU.
 * @export   of the handle, from ipc_scope_take_export
 * @mapping  its number; the mapping keeps its address until ipc_scope_unmap
 * Errors: ERR_CUDA, ERR_NO_MEMORY, ERR_TOO_LARGE (NAMES_MAX); nothing was taken. */
int ipc_scope_map(struct ipc_scope *c, struct device *d, const struct ipc_handle *h,
                  uint32_t export, uint32_t *mapping, struct err *e);
uint64_t ipc_scope_addr(const struct ipc_scope *c, uint32_t mapping);
uint64_t ipc_scope_nbytes(const struct ipc_scope *c, uint32_t mapping);

/* ipc_scope_unmap - one use less. An unused mapping stays open for a later bucket. If a GPU has
 * more than IPC_MAPPINGS_KEPT of them, the one that has been unused longest is closed. */
void ipc_scope_unmap(struct ipc_scope *c, uint32_t mapping);

#endif

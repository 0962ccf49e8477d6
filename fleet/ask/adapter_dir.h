/* Adapters whose tensors came with a request to this server, as PEFT directories (--adapter-dir):
 * the upstreams load them by lora_path, so one that lacks an adapter can load it again.
 *
 * DIR/NAME/baton-ID/{adapter_config.json,adapter_model.safetensors}: NAME is the adapter's name,
 * percent-encoded; each load has a new ID, so a path never gets other content. Nothing else in DIR
 * is read or removed. The files stay when the server stops: the upstreams still have the adapters,
 * and a vLLM may read them again. The next load or unload of the name that an engine takes removes
 * them. */
#ifndef BATON_FLEET_ASK_ADAPTER_DIR_H
#define BATON_FLEET_ASK_ADAPTER_DIR_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct adapter_dir;
struct workers;

/* adapter_dir_check - could adapter_dir_new use it? Nothing is made or written; one that does not
 * exist yet passes if it can be made in the directory above it. Errors: ERR_UNREADABLE. */
int adapter_dir_check(const char *path, struct err *e);

/* adapter_dir_new - use a directory; it is made if there is none.
 * @nbytes_max  for all adapters in it, also those of earlier servers
 * @disk        borrowed: the pool that writes and removes, for callers of a pool of jobs that wait;
 *              NULL: the callers do
 * Errors: ERR_UNREADABLE: it cannot be made, or is no directory that this process may write into;
 *         ERR_NO_MEMORY. */
int adapter_dir_new(struct adapter_dir **out, const char *path, uint64_t nbytes_max,
                    struct workers *disk, struct err *e);
void adapter_dir_free(struct adapter_dir *d); /* accepts NULL */

uint64_t adapter_dir_nbytes_max(const struct adapter_dir *d);

/* adapter_dir_nbytes - of all adapters in it now. Threads: any. Blocks: on the disk. */
uint64_t adapter_dir_nbytes(const struct adapter_dir *d);

/* All borrowed. */
struct adapter_content {
    const char *name, *config; /* config: the text of adapter_config.json */
    const void *tensors;       /* a whole .safetensors file */
    size_t nbytes;             /* of it */
};

/* adapter_dir_write - write one load of an adapter.
 * @path  the new directory, absolute, for free(); NULL on an error, which leaves no file
 * Threads: one at a time for each name. Blocks: on the disk.
 * Errors: ERR_BAD_REQUEST at /lora_name: the encoded name is longer than a file's name may be;
 *         ERR_TOO_LARGE: more than nbytes_max; ERR_NO_STAGING: more than is free of it, or the disk
 *         refuses; ERR_NO_MEMORY. */
int adapter_dir_write(const struct adapter_dir *d, const struct adapter_content *from, char **path,
                      struct err *e);

/* adapter_dir_keep_only - remove all loads of an adapter but one. What cannot be removed stays.
 * @path  as adapter_dir_write's; NULL, or another: remove all
 * Threads: as adapter_dir_write. Blocks: on the disk. */
void adapter_dir_keep_only(const struct adapter_dir *d, const char *name, const char *path);

/* adapter_dir_remove - remove one load of an adapter, and no other. What cannot be removed stays.
 * @path  as adapter_dir_write's
 * Threads: as adapter_dir_write. Blocks: on the disk. */
void adapter_dir_remove(const struct adapter_dir *d, const char *name, const char *path);

#endif

/* A version that is being read from a peer, for servers that read it from this one meanwhile. They
 * get the peer's list, and each tensor once its bytes have the checksum of that list. */
#ifndef BATON_TRANSPORT_PEER_PASS_H
#define BATON_TRANSPORT_PEER_PASS_H

#include "base/err.h"
#include "memory/checksum.h"
#include "weights/state/version_file.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stdint.h>

enum { PASS_WAIT_US = 100000 };

struct pass;

/* pass_new - one reference, the caller's; no tensor is there yet. Threads: any, of all below; they
 * take a leaf lock, and pass_read MTX_STORE.
 * @store   outlives all use but pass_unref
 * @sums    [n_tensors of the model spec] as the peer lists them; copied, as the next one
 * @wanted  which of them are read; the others are those of the served version
 * @base    the serial of that; 0: none, and all are read
 * Errors: ERR_NO_MEMORY. */
int pass_new(struct pass **out, struct store *store, const char *label, const struct checksum *sums,
             const bool *wanted, uint64_t base, struct err *e);
struct pass *pass_ref(struct pass *p);
void pass_unref(void *p); /* accepts NULL */

const struct version_file *pass_file(const struct pass *p); /* only its head and digests */
const char *pass_label(const struct pass *p);

/* pass_put - a tensor of the peer's list has the right bytes, at `at`, until pass_take_back.
 * pass_take_back - the memory of all of them may change when this returns.
 * Both accept NULL. Blocks: until what is being copied has been. */
void pass_put(struct pass *p, const char *name, uint32_t near, const void *at);
void pass_take_back(struct pass *p);

/* pass_end - nothing more comes. @serial  of the version that it became; 0: it came to nothing */
void pass_end(struct pass *p, uint64_t serial);

/* pass_read - bytes [at, at + *n) of the file, of which there must be some.
 * @n  set to how many are there; 0: none, for which it has waited PASS_WAIT_US
 * pass_check - can it be read at all?
 * Errors: ERR_LEASE_ENDED (it came to nothing, or its version is not served any more), ERR_CUDA. */
int pass_read(struct pass *p, uint64_t at, uint64_t *n, void *out, struct err *e);
int pass_check(struct pass *p, struct err *e);

#endif

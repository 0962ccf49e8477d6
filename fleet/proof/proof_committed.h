/* Are an engine's checksums those of the bytes that this server committed (--stage)?
 *
 * Only parameters with the name of a committed tensor can be compared. A difference alone is no
 * fault: under the same name an engine may hold a shard, padding, another dtype or another layout.
 * It is one where the same process had the committed bytes before. A tensor whose bytes repeat one
 * word, such as zeros, does not count as having had them: it looks the same in every layout. */
#ifndef BATON_FLEET_PROOF_PROOF_COMMITTED_H
#define BATON_FLEET_PROOF_PROOF_COMMITTED_H

#include "base/err.h"
#include "fleet/proof/proof_sums.h"
#include "weights/store/store.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct proof_committed; /* checksums of tensors of one version, made when they are first needed */

struct proof_compared {
    size_t n_checked, n_equal, n_different; /* parameters with the name of a committed tensor */
    size_t n_wrong;  /* of those that differ: this process had the committed bytes before */
    char wrong[128]; /* the name of one of those, cut; "": there is none */
};

/* proof_committed_new - Errors: ERR_NO_MEMORY. @store, @stop  borrowed until it is freed; once
 * `stop` is true comparisons end early. proof_committed_free accepts NULL. */
int proof_committed_new(struct proof_committed **out, struct store *store, const atomic_bool *stop,
                        struct err *e);
void proof_committed_free(struct proof_committed *c);

/* proof_committed_compare - and mark what is equal in `sums`.
 * @serial  of the version that the engine serves, in the store
 * @before  what the same process answered last, compared; NULL: nothing
 * @out     written on success
 * Threads: one at a time; no lock held.
 * Blocks:  it reads and hashes all tensors that are compared, once for each version: one to three
 *          seconds for each GB. It gives up when the version's memory is waited for, so that no
 *          commit and no sleep waits for it.
 * Errors:  ERR_CONFLICT  another version is served here, or it gave up: ask the engine again later
 *          ERR_ASLEEP, ERR_UNSYNCED, ERR_CUDA, ERR_NO_MEMORY */
int proof_committed_compare(struct proof_committed *c, struct proof_sums *sums,
                            const struct proof_sums *before, uint64_t serial,
                            struct proof_compared *out, struct err *e);

#endif

/* Between the parts of fleet/proof/fleet_proof.h: which engines are asked, how
 * checksums are read, and what the answers mean. */
#ifndef BATON_FLEET_PROOF_FLEET_PROOF_PRIV_H
#define BATON_FLEET_PROOF_FLEET_PROOF_PRIV_H

#include "fleet/proof/fleet_proof.h"

/* fleet_proof_judge - if an answer has come: compare those of the engines that serve the fleet's
 * version, report what is new, and fence the faulty. Threads: the loop's; no lock held. */
void fleet_proof_judge(struct fleet_control *fc);

/* fleet_proof_is_of_version_locked - is what was to prove the fleet's version? Before the first
 * update it has no serial, and only the label tells it from one that engines served before. */
bool fleet_proof_is_of_version_locked(const struct fleet_prover *p, const struct fleet_stats *s);

/* fleet_proof_begin - forget what is known of an engine, and let it be asked anew. Returns: the new
 * `wanted`; 0: it is not to be proven. */
uint64_t fleet_proof_begin(struct fleet_control *fc, struct upstream *upstream, bool checksums);

/* fleet_proof_read_sums - let a job read a reply with checksums. It stores the answer, unless the
 * engine is to be proven anew meanwhile; API_ANSWER_PENDING: it is asked again later.
 * @reply   its text is moved out
 * Threads: the loop's; no lock held. */
void fleet_proof_read_sums(struct fleet_prover *p, struct upstream_reply *reply);

/* fleet_proof_retry_locked - the engine is asked again, the later the more often that failed. */
void fleet_proof_retry_locked(struct fleet_prover *p);

/* proof_distance_of_values - the largest difference at one place; both [API_CANARY_VALUES]. */
double proof_distance_of_values(const double *a, const double *b);

#endif

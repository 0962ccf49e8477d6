/* Between the two halves of fleet/proof/fleet_proof.h: who is asked, and what the answers mean. */
#ifndef BATON_FLEET_PROOF_FLEET_PROOF_PRIV_H
#define BATON_FLEET_PROOF_FLEET_PROOF_PRIV_H

#include "fleet/proof/fleet_proof.h"

/* fleet_proof_judge - if an answer has come: compare those of the engines that serve the fleet's
 * version, report what is new, and fence the faulty. Threads: the loop's; no lock held. */
void fleet_proof_judge(struct fleet_control *fc);

/* proof_digest - a hash of checksums that does not depend on their order; equal checksums have the
 * same. */
uint64_t proof_digest(const json_t *sums);

/* proof_distance_of_values - the largest difference at one place; both [API_CANARY_VALUES]. */
double proof_distance_of_values(const double *a, const double *b);

/* proof_distance_of_sums - how many differ; -1: they are of other parameters. */
double proof_distance_of_sums(const json_t *a, const json_t *b);

#endif

/* Which experts compute a row, and how much each of them counts. */
#ifndef BATON_ENGINE_MODEL_ROUTER_H
#define BATON_ENGINE_MODEL_ROUTER_H

#include "weights/model/model_config.h"

#include <stdint.h>

/* router_choose - the experts of one row, from the router's logits; of equal scores the lower id.
 * @logits   [n]
 * @bias     [n], added to the scores for the choice alone; NULL where scores are a softmax
 * @scores   [n]; scratch, unused where scores are a softmax
 * @ids      [n_per_token], best first; @weights  [n_per_token], of `ids`
 * Threads: any. Logits that are not finite give some experts, each once. */
void router_choose(const struct model_experts *ex, const float *logits, const float *bias,
                   float *scores, uint16_t *ids, float *weights);

#endif

/* Rotary embeddings: frequencies of a model, and the angles of a position. */
#ifndef BATON_WEIGHTS_MODEL_ROPE_H
#define BATON_WEIGHTS_MODEL_ROPE_H

#include "weights/model/model_config.h"

#include <stdint.h>

/* rope_frequencies - [rope_dim / 2]; exponent, power and reciprocal rounded to float32 in turn, as
 * transformers computes them: a better value would be a different model at long positions. */
void rope_frequencies(float *out, const struct model_config *cfg);

/* rope_row - the rope_dim / 2 cosines, then as many sines, of one position; the angle is a float32
 * product for the same reason. */
void rope_row(float *out, const float *frequencies, const struct model_config *cfg, uint32_t pos);

#endif

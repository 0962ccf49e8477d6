/* Rotary embeddings: what config.json makes of each pair of elements. */
#include "weights/model/rope.h"

#include <math.h>

/* In float32 and in this order, as transformers computes it; a division of a number by a tensor is
 * a product with the reciprocal there. */
static float llama3_frequency(float frequency, const struct rope_scaling *s)
{
    float factor = (float)s->factor, low = (float)s->low_freq_factor;
    float wavelen = 1.0F / frequency * (float)6.283185307179586;
    float smooth, kept;

    if (wavelen < (float)(s->original_positions / s->high_freq_factor))
        return frequency;
    if (wavelen > (float)(s->original_positions / s->low_freq_factor))
        return frequency / factor;
    smooth = (1.0F / wavelen * (float)s->original_positions - low) /
             (float)(s->high_freq_factor - s->low_freq_factor);
    kept = 1.0F - smooth;
    return kept * frequency / factor + smooth * frequency;
}

/* The pair that turns so often in the original context; between two pairs. */
static double yarn_pair(const struct model_config *cfg, double n_turns)
{
    double waves = cfg->rope_scaling.original_positions / (n_turns * 2.0 * 3.141592653589793);

    return cfg->rope_dim * log(waves) / (2.0 * log(cfg->rope_theta));
}

/* Pairs before the ramp are kept, those after it divided. In float32 from the positions in the ramp
 * on, as transformers computes it. */
static float yarn_frequency(const struct model_config *cfg, uint32_t pair, float power)
{
    const struct rope_scaling *s = &cfg->rope_scaling;
    double first = yarn_pair(cfg, s->beta_fast), last = yarn_pair(cfg, s->beta_slow);
    float ramp, kept;

    first = fmax(s->truncate ? floor(first) : first, 0.0);
    last = fmin(s->truncate ? ceil(last) : last, cfg->rope_dim - 1.0);
    if (!(first < last || first > last))
        last += 0.001;
    ramp = ((float)pair - (float)first) / (float)(last - first);
    ramp = ramp < 0.0F ? 0.0F : ramp > 1.0F ? 1.0F : ramp;
    kept = 1.0F - ramp;
    return 1.0F / ((float)s->factor * power) * (1.0F - kept) + 1.0F / power * kept;
}

void rope_frequencies(float *out, const struct model_config *cfg)
{
    for (uint32_t i = 0; i < cfg->rope_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)cfg->rope_dim;
        float power = (float)pow(cfg->rope_theta, (double)exponent);

        switch (cfg->rope_kind) {
        case ROPE_DEFAULT:
            out[i] = 1.0F / power;
            break;
        case ROPE_LINEAR:
            out[i] = 1.0F / power / (float)cfg->rope_scaling.factor;
            break;
        case ROPE_LLAMA3:
            out[i] = llama3_frequency(1.0F / power, &cfg->rope_scaling);
            break;
        case ROPE_YARN:
            out[i] = yarn_frequency(cfg, i, power);
            break;
        }
    }
}

void rope_row(float *out, const float *frequencies, const struct model_config *cfg, uint32_t pos)
{
    float scale = cfg->rope_kind == ROPE_YARN ? (float)cfg->rope_scaling.rotation : 1.0F;
    uint32_t half = cfg->rope_dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        float angle = (float)pos * frequencies[i];

        out[i] = (float)cos((double)angle) * scale;
        out[half + i] = (float)sin((double)angle) * scale;
    }
}

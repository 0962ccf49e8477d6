/* The two ways to choose: by the softmax of all logits (Qwen3-MoE, Mixtral), and by the sigmoid of
 * each (DeepSeek-V3). Both in float32 over float32 logits, as transformers computes them.
 *
 * DeepSeek-V3 chooses from some groups only. The scores of the others become -infinity, as in
 * transformers 5 and vLLM; transformers 4 made them 0, which lets an expert of a dropped group win
 * over one whose bias makes its score negative. */
#include "engine/model/router.h"

#include <math.h>
#include <stdbool.h>

enum { GROUPS_MAX = MODEL_EXPERTS_MAX / 2 };

static const double WEIGHTS_SUM_MIN = 1e-20; /* keeps weights finite if all scores are 0 */

/* The k largest, best first; of equal ones the lower id. */
static void choose_largest(const float *x, uint32_t n, uint32_t k, uint16_t *ids)
{
    for (uint32_t id = 0, found = 0; id < n; id++) {
        uint32_t at = found < k ? found++ : k;

        while (at > 0 && x[id] > x[ids[at - 1]]) {
            if (at < k)
                ids[at] = ids[at - 1];
            at--;
        }
        if (at < k)
            ids[at] = (uint16_t)id;
    }
}

/* The softmax of all logits, of the chosen ones; normalized or not. */
static void weigh_softmax(const struct model_experts *ex, const float *logits, const uint16_t *ids,
                          float *weights)
{
    double max = (double)logits[ids[0]], sum = 0.0;

    if (ex->normalize) {
        for (uint32_t i = 0; i < ex->n_per_token; i++)
            sum += exp((double)logits[ids[i]] - max);
    } else {
        for (uint32_t id = 0; id < ex->n; id++)
            sum += exp((double)logits[id] - max);
    }
    for (uint32_t i = 0; i < ex->n_per_token; i++)
        weights[i] = (float)(exp((double)logits[ids[i]] - max) / sum);
}

static float sigmoid(float x)
{
    return (float)(1.0 / (1.0 + exp(-(double)x)));
}

static float sum_of_best_two(const float *x, uint32_t n)
{
    uint16_t best[2];

    choose_largest(x, n, 2, best);
    return x[best[0]] + x[best[1]];
}

static void drop_groups(const struct model_experts *ex, float *scores)
{
    uint32_t width = ex->n / ex->n_groups;
    bool kept[GROUPS_MAX] = {false};
    float of_groups[GROUPS_MAX];
    uint16_t best[GROUPS_MAX];

    for (uint32_t g = 0; g < ex->n_groups; g++)
        of_groups[g] = sum_of_best_two(scores + (size_t)g * width, width);
    choose_largest(of_groups, ex->n_groups, ex->n_groups_kept, best);
    for (uint32_t i = 0; i < ex->n_groups_kept; i++)
        kept[best[i]] = true;
    for (uint32_t id = 0; id < ex->n; id++)
        if (!kept[id / width])
            scores[id] = -INFINITY;
}

static void weigh_sigmoid(const struct model_experts *ex, const float *logits, const uint16_t *ids,
                          float *weights)
{
    double sum = WEIGHTS_SUM_MIN;

    for (uint32_t i = 0; i < ex->n_per_token; i++) {
        weights[i] = sigmoid(logits[ids[i]]);
        sum += (double)weights[i];
    }
    for (uint32_t i = 0; i < ex->n_per_token; i++)
        weights[i] = (ex->normalize ? (float)((double)weights[i] / sum) : weights[i]) * ex->scale;
}

void router_choose(const struct model_experts *ex, const float *logits, const float *bias,
                   float *scores, uint16_t *ids, float *weights)
{
    if (!ex->sigmoid) {
        choose_largest(logits, ex->n, ex->n_per_token, ids);
        weigh_softmax(ex, logits, ids, weights);
        return;
    }
    for (uint32_t id = 0; id < ex->n; id++)
        scores[id] = sigmoid(logits[id]) + bias[id];
    if (ex->n_groups_kept < ex->n_groups)
        drop_groups(ex, scores);
    choose_largest(scores, ex->n, ex->n_per_token, ids);
    weigh_sigmoid(ex, logits, ids, weights);
}

/* generation_config.json: the author's default sampling parameters. Only the members that vLLM uses
 * are read; the others (do_sample, num_beams, ...) have no effect in vLLM either. */
#include "weights/model/config_members.h"

#include <float.h>

enum { TEMPERATURE_MAX = 100 }; /* as gen_params_check */

/* A number within (or, if `open`, above) `least` and up to `most`. */
static int generation_read_number(float *out, bool *given, const json_t *o, const char *key,
                                  double least, bool open, double most, struct err *e)
{
    const json_t *v = config_member(o, key);
    double number = json_number_value(v);
    char found[64];

    if (v == NULL)
        return 0;
    if (!json_is_number(v) || !(number >= least && number <= most) || (open && number <= least))
        return config_refuse(e, "/generation_config", key, config_quoted(v, found, sizeof found),
                             "what a request may ask for");
    *out = (float)number;
    *given = true;
    return 0;
}

static int read_integer(int64_t *out, bool *given, const json_t *o, const char *key, int64_t least,
                        struct err *e)
{
    const json_t *v = config_member(o, key);
    char found[64];

    if (v == NULL)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > INT32_MAX)
        return config_refuse(e, "/generation_config", key, config_quoted(v, found, sizeof found),
                             "what a request may ask for");
    *out = json_integer_value(v);
    *given = true;
    return 0;
}

int config_generation(struct model_defaults *out, const json_t *generation, struct err *e)
{
    struct model_defaults d = {0};
    int64_t top_k = 0, max_tokens = 0;

    if (generation_read_number(&d.temperature, &d.has_temperature, generation, "temperature", 0,
                               false, TEMPERATURE_MAX, e) != 0 ||
        generation_read_number(&d.top_p, &d.has_top_p, generation, "top_p", 0, true, 1, e) != 0 ||
        generation_read_number(&d.min_p, &d.has_min_p, generation, "min_p", 0, false, 1, e) != 0 ||
        generation_read_number(&d.repetition_penalty, &d.has_repetition_penalty, generation,
                               "repetition_penalty", 0, true, (double)FLT_MAX, e) != 0 ||
        read_integer(&top_k, &d.has_top_k, generation, "top_k", -1, e) != 0 ||
        read_integer(&max_tokens, &d.has_max_tokens, generation, "max_new_tokens", 1, e) != 0)
        return -1;
    d.top_k = (int32_t)top_k;
    d.max_tokens = (uint32_t)max_tokens;
    *out = d;
    return 0;
}

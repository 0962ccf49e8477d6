/* The words of what an engine is asked for. */
#include "control/engine.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

const char *gen_on_update_name(enum gen_on_update mode)
{
    static const char *const names[] = {
#define X(constant, name) [constant] = name,
        GEN_ON_UPDATE(X)
#undef X
    };

    return names[mode];
}

int gen_on_update_parse(enum gen_on_update *out, const char *text, const char *field, struct err *e)
{
    static const enum gen_on_update modes[] = {
#define X(constant, name) constant,
        GEN_ON_UPDATE(X)
#undef X
    };

    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(text, gen_on_update_name(modes[i])) != 0)
            continue;
        *out = modes[i];
        return 0;
    }
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'%.64s' is no way to meet an update; expected continue, finish or recompute",
                   text);
}

const char *gen_logprobs_mode_name(enum gen_logprobs_mode mode)
{
    static const char *const names[GEN_LOGPROBS_N_MODES] = {
        [GEN_LOGPROBS_RAW] = "raw_logprobs",
        [GEN_LOGPROBS_TEMPERED] = "tempered_logprobs",
        [GEN_LOGPROBS_PROCESSED] = "processed_logprobs",
    };

    return names[mode];
}

const char *gen_finish_name(enum gen_finish f)
{
    static const char *const names[] = {"running", "stop", "length", "abort", "error"};

    assert((unsigned)f <= GEN_ERROR);
    return names[f];
}

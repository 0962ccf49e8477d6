/* What handlers need to know of the configuration; server/ fills it before anything is served. */
#ifndef BATON_HANDLERS_SETTINGS_H
#define BATON_HANDLERS_SETTINGS_H

#include "engine/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Strings are borrowed from the configuration, which outlives every request. */
struct settings {
    const char *const *allow_path; /* [n_allow_path]: real, absolute directories */
    size_t n_allow_path;
    uint64_t json_body_max; /* bytes */
    uint64_t update_timeout_ms, body_stall_timeout_ms, join_timeout_ms;
    uint64_t generate_concurrency, generate_queue;
    uint64_t detokenize_concurrency, detokenize_queue;
    unsigned dialects;            /* that are answered: bits of route_find */
    enum gen_on_update on_update; /* of generations that do not say */
    enum gen_logprobs_mode logprobs_mode;
    uint64_t max_logprobs;    /* with each token */
    const char *listen;       /* as given */
    bool has_tls;             /* there is a certificate */
    bool sglang_memory_saver; /* what /server_info says of it */
};

#endif

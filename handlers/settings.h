/* The configuration that handlers use; server/ fills it before the first request. */
#ifndef BATON_HANDLERS_SETTINGS_H
#define BATON_HANDLERS_SETTINGS_H

#include "control/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which replies have the experts of each token, beside those of requests that ask for them. */
enum routed_experts_mode {
    ROUTED_EXPERTS_ON_REQUEST, /* no others */
    ROUTED_EXPERTS_VLLM,       /* all on vLLM's routes */
    ROUTED_EXPERTS_PRIME_RL    /* all on /inference/v1/generate, in prime-rl's form */
};

/* Strings are borrowed from the configuration, which outlives every request. */
struct settings {
    const char *const *allow_path; /* [n_allow_path]: real, absolute directories */
    size_t n_allow_path;
    const char *base_weights; /* --weights, or --model; NULL: it started without weights */
    uint64_t json_body_max;   /* bytes */
    uint64_t update_timeout_ms, body_stall_timeout_ms, join_timeout_ms;
    uint64_t generate_concurrency, generate_queue;
    uint64_t detokenize_concurrency, detokenize_queue;
    unsigned dialects; /* APIs of other servers that are answered: bits 1 << enum route_dialect */
    enum gen_on_update on_update; /* of requests that do not set it */
    enum gen_logprobs_mode logprobs_mode;
    enum routed_experts_mode routed_experts;
    uint64_t max_logprobs;       /* that a request may ask for with each token */
    uint64_t max_unread_nbytes;  /* of replies of generate routes that clients have not read yet */
    const char *listen;          /* as given */
    bool has_tls;                /* there is a certificate */
    bool sglang_memory_saver;    /* reported by /server_info */
    uint64_t sglang_base_gpu_id; /* reported by /server_info; UINT64_MAX: what it is */
};

#endif

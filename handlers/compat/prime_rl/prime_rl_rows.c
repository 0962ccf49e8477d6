/* What requests may contain: prime rl. See handlers/rows/member.h. */
#include "handlers/compat/prime_rl/dialect_prime_rl.h"
#include "handlers/rows/rows.h"

const struct member prime_rl_update_members[] = {
    {"weight_dir", M_STRING,
     .doc = "prime-rl, instead of update_info: a whole update from that directory, beneath a root "
            "of --allow-path; the reply is {\"status\": \"ok\"}",
     .ours = "path"},
    {0},
};

const struct member prime_rl_broadcaster_members[] = {
    {"host", .type = M_STRING},
    {"port", .type = M_INT},
    {"rank_offset", .type = M_INT},
    {"inference_world_size", .type = M_INT},
    {"quantize_in_weight_transfer", .type = M_BOOL},
    {"timeout", .type = M_NUMBER},
    {"session_id", .type = M_STRING},
    {0},
};

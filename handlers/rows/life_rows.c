/* What requests may contain: life. See handlers/rows/member.h. */
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/rows/life_request.h"
#include "handlers/rows/rows.h"

#include <string.h>

const struct member no_members[] = {
    {0},
};

const struct member ready_query[] = {
    {"for", M_STRING, M_IN(struct ready_request, what), .flags = M_QUERY, .def = "generate",
     M_WORDS("generate", "control"),
     .doc = "generate (the default): would a generate sent now be served? control: would an "
            "update, a resume or a wake sent now be served? A server that has no weights or no "
            "engine, is paused or asleep is ready for control; one that is starting, stopping or "
            "not live is not."},
    {0},
};

const struct member events_query[] = {
    {"types", M_STRING, .flags = M_QUERY,
     .doc = "Types of the table above, separated by commas. Without it all. `state` always comes."},
    {0},
};

const struct member upstream_ready_query[] = {
    {"upstream", M_STRING, M_IN(struct upstream_request, upstream), .flags = M_QUERY | M_REQUIRED,
     .doc = "Its URL, as configured"},
    {0},
};

const struct member upstream_members[] = {
    {"upstream", M_STRING, M_IN(struct upstream_request, upstream), .flags = M_REQUIRED,
     .doc = "URL[,KIND][,key-file=FILE][,ca-file=FILE]; the "
            "kind is baton (the default), vllm or sglang"},
    {0},
};

const struct member upstreams_prove_members[] = {
    {"upstream", M_STRING, M_IN(struct prove_request, upstream),
     .doc = "The URL of one, as configured; without it all that serve the version"},
    {"checksums", M_BOOL, M_IN(struct prove_request, checksums), .def = "true",
     .doc = "false: only the canary"},
    {"timeout_s", M_INT, M_IN(struct prove_request, timeout_s), .min = 1, .max = 3600, .def = "120",
     .doc = "Those without a verdict by then are unproven"},
    {0},
};

static int check_owner(const char *owner, const char *field, struct err *e)
{
    size_t len = strlen(owner);

    if (len >= 1 && len <= PAUSE_OWNER_MAX)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "a name of %zu bytes; expected 1 to %d", len,
                   PAUSE_OWNER_MAX);
}

const struct member pause_members[] = {
    {"mode", M_STRING, M_IN(struct pause_input, mode), .def = "keep",
     M_WORDS("keep", "wait", "abort"),
     .doc = "`keep`: generations freeze between two tokens and go on at the resume. `wait`: the "
            "answer comes when all have ended. `abort`: all end with their tokens so far"},
    {"new_requests", M_STRING, M_IN(struct pause_input, new_requests), .def = "queue",
     M_WORDS("queue", "reject"),
     .doc = "`queue`: later requests wait, within the usual bound. `reject`: they get a 503 that "
            "names the pause"},
    {"lease_s", M_INT, M_IN(struct pause_input, lease_s), .min = 1, .max = PAUSE_LEASE_S_MAX,
     .doc = "the pause ends by itself this long after its acknowledgement; default: never"},
    {"timeout_s", M_INT, M_IN(struct pause_input, timeout_s), .min = 1, .max = PAUSE_TIMEOUT_S_MAX,
     .def = "300", .doc = "limit of the wait for the acknowledgement"},
    {"owner", M_STRING, M_IN(struct pause_input, owner), .min = 1, .max = PAUSE_OWNER_MAX,
     .check = check_owner,
     .doc = "name of the client that pauses, for the status; default: the request's id"},
    {0},
};

const struct member wake_members[] = {
    {"tags", M_ARRAY, .items = M_STRING, M_IN(struct wake_request, tags),
     M_WORDS("weights", "kv_cache", "cuda_graph"),
     .doc = "default: both; cuda_graph has no effect, since there are no graphs"},
    {0},
};

const struct member sleep_members[] = {
    {"level", M_INT, M_IN(struct sleep_request, level), .min = 1, .max = 2, .def = "1"},
    {"", M_ROWS_IN(wake_members, struct sleep_request, what)},
    {0},
};

const struct member reset_cache_members[] = {
    {"running", M_BOOL, M_IN(struct reset_cache_request, running), .def = "false",
     .doc = "Also the KV of running, waiting and frozen generations: it is recomputed before their "
            "next token, with the weights served then"},
    {"external", M_BOOL, M_IN(struct reset_cache_request, external), .def = "false",
     .doc =
         "Also caches outside the engine (a KV connector of vLLM); the embedded engine has none"},
    {0},
};

const struct member abort_requests_members[] = {
    {"request_ids", M_ARRAY, .items = M_STRING, M_IN(struct abort_request, ids),
     .max = ABORT_IDS_MAX,
     .doc = "The request_id of a request, or vLLM's id for it: cmpl-ID and cmpl-ID-I (prompt I of "
            "it), chatcmpl-ID, generate-tokens-ID"},
    {"all", M_BOOL, M_IN(struct abort_request, all), .doc = "true instead of request_ids"},
    {0},
};

/* What replies contain: the engines of a fleet. See handlers/rows/member.h. */
#include "base/clock.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstreams.h"
#include "fleet/proof/fleet_proof.h"
#include "handlers/rows/reply_rows.h"

const struct member result_reply[] = {
    {"upstream", M_STRING, M_IN(struct engine_result, upstream), .flags = M_REQUIRED,
     .doc = "its URL"},
    {"ok", M_BOOL, M_IN(struct engine_result, ok), .flags = M_REQUIRED},
    {"status", M_INT | M_NULL, M_IN(struct engine_result, status), .flags = M_REQUIRED,
     .doc = "of its last answer; null: it got no request, did not answer, or the answer is about "
            "--stage"},
    {"error", M_STRING | M_NULL, M_IN(struct engine_result, error), .flags = M_REQUIRED},
    {0},
};

static const struct member outstanding_rows[] = {
    {.name = "generate", .type = M_INT},
    {.name = "text", .type = M_INT},
    {0},
};

const struct member reason_rows[] = {
    {"code", M_STRING, M_IN(struct err, code), .word = err_wire_name},
    {"message", M_STRING, M_IN(struct err, msg)},
    {0},
};

const struct member upstream_error_rows[] = {
    {"code", M_STRING, M_IN(struct upstream_error, why.code), .word = err_wire_name},
    {"message", M_STRING, M_IN(struct upstream_error, why.msg)},
    {"at", M_INT, M_IN(struct upstream_error, wall_s), .doc = "As last_error_at"},
    {0},
};

static json_t *largest_difference_json(const void *from)
{
    const struct fleet_prover *p = from;

    return p->verdict.n_others > 0 ? json_real(p->verdict.distance) : json_null();
}

static const struct member compared_rows[] = {
    {"n_checked", M_INT, M_IN(struct proof_compared, n_checked),
     .doc = "Such parameters; of an engine with several ranks those of each"},
    {"n_equal", M_INT, M_IN(struct proof_compared, n_equal), .doc = "With the committed bytes"},
    {"n_different", M_INT, M_IN(struct proof_compared, n_different),
     .doc = "With other bytes; no fault if it shards, pads, converts or reorders them"},
    {"n_wrong", M_INT, M_IN(struct proof_compared, n_wrong),
     .doc = "Of those: this process had the committed bytes earlier. The upstream is fenced"},
    {0},
};

static const struct member checksums_rows[] = {
    {"state", M_STRING, M_IN(struct fleet_prover, sums_verdict.state), .word = proof_state_name,
     M_WORDS("unproven", "proven", "differs", "unknown"),
     .doc = "unproven: not read or compared yet. proven: read, and equal to those of most engines"
            " with the same parameters, or there is none (n_compared is 0: then only `committed` "
            "says something). differs: they differ. unknown: the engine has no checker, or "
            "refuses."},
    {"n", M_INT, M_IN(struct fleet_prover, n_sums), .doc = "Parameters"},
    {"n_different", M_INT, M_IN(struct fleet_prover, sums_verdict.distance),
     .doc = "Of these how many differ from those of most engines"},
    {"n_compared", M_INT, M_IN(struct fleet_prover, sums_verdict.n_others),
     .doc = "Engines with the same parameters"},
    {"committed", M_OBJECT | M_NULL, M_GIVEN(struct fleet_prover, has_compared),
     .at = offsetof(struct fleet_prover, compared_bytes), .store = STORE_ROWS, .of = compared_rows,
     .doc = "With --stage: the parameters with the name of a committed tensor, compared with its "
            "bytes. null: they were not compared"},
    {0},
};

const struct member proof_rows[] = {
    {"state", M_STRING, M_IN(struct fleet_prover, state), .word = proof_state_name,
     M_WORDS("unproven", "proven", "not_finite", "differs", "unknown"),
     .doc = "unproven: its answer, or that of engines to compare it with, has not come. proven: "
            "finite, and equal to what most engines of its version answered, if there are others."
            " not_finite: it is fenced. differs: it is fenced if a majority of the engines agree "
            "with each other and not with it, or if it has lost committed bytes. unknown: it "
            "refuses the request."},
    {"weight_version", M_STRING, M_IN(struct fleet_prover, label),
     .doc = "The version that was asked about"},
    {"n_compared", M_INT, M_IN(struct fleet_prover, verdict.n_others),
     .doc = "Engines of the version with which it was compared"},
    {"largest_difference", M_NUMBER | M_NULL, .make = largest_difference_json,
     .doc = "From what most engines answered, or without a majority from any, in nats; null: "
            "there was no other"},
    {"checksums", M_OBJECT | M_NULL, M_GIVEN(struct fleet_prover, with_checksums),
     .store = STORE_ROWS, .of = checksums_rows,
     .doc = "Those of its parameters; null: they were not asked for, by `--prove checksums` or a "
            "request"},
    {0},
};

const struct member upstream_reply[] = {
    {"upstream", M_STRING, .doc = "Its URL, as configured"},
    {"dialect", M_STRING, M_WORDS("baton", "vllm", "sglang")},
    {"origin", M_STRING, M_WORDS("configuration", "request", "name"),
     .doc = "request: it was added by POST /v1/upstreams, and the configuration does not name it. "
            "name: it is at an address of a name (`dns+http://…`)"},
    {"name", M_STRING | M_NULL, .doc = "Which name, as in `names`; null: of another origin"},
    {"state", M_STRING,
     M_WORDS("serving", "not_ready", "unsynced", "fenced", "refused", "down", "unknown", "removed"),
     .doc = "not_ready: it reports that it cannot serve (it starts, drains, or has no weights). "
            "unsynced: it serves another version than the fleet, or may, such as one that answers"
            " clients while 10 status probes in a row failed; or it lacks adapters, or has one "
            "that was unloaded; or it may be asleep while the fleet is awake; or it failed to "
            "resume, until it has; or its caches may hold results of other weights and could not "
            "be reset yet; or it started, or was not reachable, when the others were paused or "
            "put to sleep, until they resume. fenced: it is an SGLang that was not reachable when"
            " the fleet was put to sleep or woken (until a resync or an update), or an update of "
            "it failed (until one succeeds), also one of an earlier server: its weight_version "
            "then begins with \"baton:unfinished:\"; or its proof failed (until an update, or a "
            "resync of another process of it). With --stage it is repaired without an update. "
            "refused: it rejects this server's key (401; 403 to a probe, and of a baton), or the "
            "host name in its URL (421). down: it does not answer, or not as its dialect "
            "requires. unknown: it has not answered yet, and fewer than three attempts have "
            "failed. removed: it is not configured any more, and requests still run there."},
    {"weight_version", M_STRING | M_NULL,
     .doc = "Of the weights that it serves, as it last reported; null: it reports none"},
    {"serial", M_INT | M_NULL,
     .doc = "Serial of the fleet's version that it received last; null: none"},
    {"process", M_STRING | M_NULL, .doc = "Id of its process; a new one after each start"},
    {"outstanding", M_OBJECT, .of = outstanding_rows},
    {"n_granted", M_INT, .doc = "Requests of clients that were sent to it"},
    {"n_missed", M_INT,
     .doc = "Probes and requests of clients that failed since it was configured; a success does "
            "not reset it"},
    {"last_heard_s", M_NUMBER | M_NULL,
     .doc = "Seconds since its last successful status probe; replies to clients do not count. "
            "null: never"},
    {"error", M_OBJECT | M_NULL, .of = reason_rows, .doc = "The gravest of `errors`"},
    {"last_error_at", M_INT | M_NULL,
     .doc = "Seconds since 1970 at which `error` began; for a missing answer, at which the last "
            "attempt failed. null: no error"},
    {"errors", M_ARRAY, .items = M_OBJECT, .of = upstream_error_rows,
     .doc = "All that is wrong with it, the gravest first: a missing answer, if that keeps it out"
            " of rotation; then one for each kind of reason that does: a fence, its key, its "
            "weights, a pause that it missed, its adapters, what it says of itself; then a "
            "missing answer that does not yet. When it is removed: the gravest alone"},
    {"fence_paused", M_BOOL,
     .doc = "It is fenced for its weights, and paused by this server (`--pause-fenced`)"},
    {"missing_adapters", M_ARRAY, .items = M_STRING,
     .doc = "Names of the fleet's adapters that it does not have. An adapter that can be loaded "
            "again (from its lora_path, or from `--adapter-dir`) is loaded before the engine gets"
            " requests. One whose tensors the upstreams read themselves (shared memory, handles, "
            "a group) keeps the engine out of rotation until it is loaded again or unloaded, "
            "unless no upstream has it any more."},
    {"proof", M_OBJECT | M_NULL, .of = proof_rows,
     .doc = "What the log-probabilities of a fixed prompt show of a vLLM or SGLang since its last"
            " update, or since it serves the fleet's version without one (`--prove`), or since "
            "`POST /v1/upstreams/prove`. null: it was not asked: it does not serve that version, "
            "or is a baton, or `--prove` is none."},
    {"seeding_from", M_STRING | M_NULL,
     .doc = "The URL from which it is reading a version; null: it reads none"},
    {0},
};

static json_t *answered_json(const void *from)
{
    const struct upstream_name_info *n = from;
    uint64_t now = clock_now_us();

    if (n->answered_us == 0)
        return json_null();
    return json_real(now > n->answered_us ? (double)(now - n->answered_us) / 1e6 : 0.0);
}

static json_t *name_error_json(const void *from)
{
    const struct upstream_name_info *n = from;

    return n->why.code != ERR_NONE ? member_write(&n->why, reason_rows) : json_null();
}

const struct member upstream_name_rows[] = {
    {"name", M_STRING, M_IN(struct upstream_name_info, name), .doc = "As configured"},
    {"n_addresses", M_INT, M_IN(struct upstream_name_info, n_addresses),
     .doc = "Of the last answer: as many upstreams are there by it"},
    {"last_answered_s", M_NUMBER | M_NULL, .make = answered_json,
     .doc = "Seconds since that answer; null: there was none"},
    {"n_failures", M_INT, M_IN(struct upstream_name_info, n_failures),
     .doc = "Look-ups that failed, took 5 s or longer, or found no address"},
    {"error", M_OBJECT | M_NULL, .make = name_error_json, .of = reason_rows,
     .doc = "Of the last look-up: the upstreams of the answer before it stay"},
    {0},
};

const struct member upstreams_reply[] = {
    {"min_ready", M_INT,
     .doc = "How many must serve the current version for the server to be ready"},
    {.name = "n_serving", .type = M_INT},
    {"n", M_INT, .doc = "How many there are; removed ones do not count"},
    {"warning", M_STRING | M_NULL,
     .doc = "Upstreams that serve were found to have different weights, and no majority agrees: "
            "clients get tokens of each, and a person must decide. null: not so"},
    {"names", M_ARRAY, .items = M_OBJECT, .of = upstream_name_rows,
     .doc = "Names of the configuration (`dns+http://…`), whose addresses are upstreams"},
    {"list", M_ARRAY, .items = M_OBJECT, .of = upstream_reply},
    {0},
};

const struct member upstream_ready_reply[] = {
    {"ready", M_BOOL, .flags = M_REQUIRED},
    {"reason", M_STRING,
     M_WORDS("asleep", "paused", "not_ready", "unsynced", "fenced", "refused", "down", "unknown"),
     .doc = "asleep: it, or the whole fleet, is. paused: requests that come in the pause are "
            "refused (`new_requests: reject`). Else its `state`"},
    {"message", M_STRING, .doc = "Its `error`; may be empty"},
    {0},
};

const struct member upstreams_proven_reply[] = {
    {"n", M_INT, .doc = "How many were asked"},
    {"n_proven", M_INT, .doc = "Of those: `proof.state` is proven"},
    {"n_checksums", M_INT,
     .doc = "Of those: the checksums of their parameters are equal to another upstream's, or to "
            "committed bytes. The others are proven by the canary alone"},
    {"list", M_ARRAY, .items = M_OBJECT, .of = upstream_reply},
    {0},
};

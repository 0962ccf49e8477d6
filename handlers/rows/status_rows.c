/* What replies contain: the status. See handlers/rows/member.h. */
#include "control/admission.h"
#include "control/history.h"
#include "driver/cuda_info.h"
#include "driver/nccl_info.h"
#include "handlers/app.h"
#include "handlers/history_json.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"
#include "handlers/update_json.h"
#include "http/server/http_server.h"
#include "transport/nixl/nixl.h"
#include "transport/peer/seeder.h"

const struct member recorded_version_reply[] = {
    {.name = "serial", .type = M_INT},
    {.name = "weight_version", .type = M_STRING},
    {0},
};

const struct member admission_reply[] = {
    {"running", M_INT, M_IN(struct admission_stats, n_running)},
    {"waiting", M_INT, M_IN(struct admission_stats, n_waiting)},
    {"concurrency", M_INT, M_IN(struct admission_stats, n_permits)},
    {"concurrency_each", M_INT, .flags = M_FLEET,
     .doc = "In front of upstream engines, instead of concurrency, granted and wait_ms_max: the "
            "concurrency of each engine"},
    {"queue", M_INT, M_IN(struct admission_stats, n_queue_max)},
    {"granted", M_INT, M_IN(struct admission_stats, n_granted)},
    {"refused", M_INT, M_IN(struct admission_stats, n_refused)},
    {"cancelled", M_INT, M_IN(struct admission_stats, n_cancelled)},
    {"wait_ms_max", M_NUMBER, M_IN(struct admission_stats, wait_us_max), .per = M_MS},
    {0},
};

const struct member adapter_totals_reply[] = {
    {.name = "loaded", .type = M_INT},
    {.name = "loading", .type = M_INT},
    {"users", M_INT, .doc = "Requests that use any revision"},
    {"older_revisions", M_INT, .doc = "Replaced revisions that requests still use"},
    {"nbytes", M_INT, .doc = "Bytes of all revisions in memory"},
    {"nbytes_reserved", M_INT, .doc = "Bytes for loads in progress"},
    {.name = "max_loras", .type = M_INT},
    {.name = "max_lora_rank", .type = M_INT},
    {.name = "max_lora_bytes", .type = M_INT},
    {0},
};

static const struct member group_rank_rows[] = {
    {.name = "rank", .type = M_INT},
    {.name = "place", .type = M_STRING},
    {.name = "uuid", .type = M_STRING},
    {0},
};

const struct member group_reply[] = {
    {"state", M_STRING, M_WORDS("none", "joining", "joined", "failed", "stuck"),
     .flags = M_REQUIRED,
     .doc = "`stuck`: a call of NCCL's abort did not return; the process is no longer live and "
            "must be restarted"},
    {"transport", M_STRING | M_NULL, M_WORDS("nccl")},
    {.name = "world_size", .type = M_INT | M_NULL},
    {.name = "rank_offset", .type = M_INT | M_NULL},
    {"ranks", M_ARRAY, .items = M_OBJECT, .of = group_rank_rows},
    {"nccl_version", M_STRING | M_NULL,
     .doc = "Version of this server's library; the trainer's must be the same"},
    {.name = "nccl_library", .type = M_STRING | M_NULL},
    {"trainer_nccl_version", M_STRING | M_NULL, .doc = "If known, else null"},
    {"bootstrap", M_STRING | M_NULL,
     .doc = "The address in the unique id, where the trainer's NCCL listens"},
    {"master", M_STRING | M_NULL, .doc = "The address of the store"},
    {.name = "group_name", .type = M_STRING | M_NULL},
    {"error", M_OBJECT | M_NULL, .of = cause_reply, .doc = "Why it failed"},
    {.name = "nbytes_received", .type = M_INT},
    {.name = "n_broadcasts", .type = M_INT},
    {"age_s", M_NUMBER | M_NULL, .doc = "Seconds since the init"},
    {0},
};

static const struct member stage_error_rows[] = {
    {"code", M_STRING, .word = err_wire_name},
    {.name = "message", .type = M_STRING},
    {"retry_in_s", M_NUMBER, .doc = "0: it is due, or under way"},
    {0},
};

static const struct member stage_rows[] = {
    {"memory", M_STRING, M_WORDS("gpu", "host"), .doc = "Where the version is"},
    {"placement", M_STRING, M_WORDS("replicated", "sharded"),
     .doc = "`--placement`: sharded: each GPU keeps its share of the version"},
    {"window_nbytes", M_INT, .doc = "With --stage host: of each of the two windows; else 0"},
    {.name = "n_devices", .type = M_INT},
    {"state", M_STRING, M_WORDS("unsynced", "ready", "asleep", "dropped")},
    {.name = "plan_digest", .type = M_STRING},
    {.name = "weight_version", .type = M_STRING | M_NULL},
    {"serial", M_INT, .doc = "Of the committed version; 0: none"},
    {"handed_serial", M_INT,
     .doc = "Of the last one that at least --min-ready upstreams got; 0: none"},
    {.name = "n_handoffs", .type = M_INT},
    {"n_repairs", M_INT, .doc = "Upstreams that lacked the version got it again"},
    {"handoff", M_OBJECT | M_NULL, .of = update_reply,
     .doc = "The update of the upstreams that hands the version over now. `update` of the status "
            "is what a trainer has open"},
    {"upstreams", M_ARRAY, .items = M_OBJECT, .of = result_reply,
     .doc = "Which have the version. Empty before the first one"},
    {"last_handoff_s", M_NUMBER, .doc = "From its first request to its last"},
    {"error", M_OBJECT | M_NULL, .of = stage_error_rows,
     .doc = "Why the last try failed; it is repeated after `retry_in_s`"},
    {0},
};

static const struct member server_args_rows[] = {
    {"enable_memory_saver", M_BOOL, .doc = "Set by --sglang-memory-saver; sleep works either way"},
    {.name = "enable_return_routed_experts", .type = M_BOOL},
    {"base_gpu_id", M_INT, .doc = "Absent unless --sglang-base-gpu-id is set"},
    {0},
};

static const struct member spec_rows[] = {
    {"from", M_STRING, M_WORDS("--model", "--manifest", "update"),
     .doc = "update: the last successful whole update"},
    {.name = "n_tensors", .type = M_INT},
    {0},
};

static const struct member weights_rows[] = {
    {"state", M_STRING, M_WORDS("unsynced", "ready", "asleep", "dropped")},
    {"serial", M_INT | M_NULL, .doc = "null while unsynced"},
    {"update_id", M_STRING | M_NULL,
     .doc = "The update that made these weights, also after a restart that restored them from "
            "--state-dir. With --stage: null unless --min-ready upstreams serve the version of "
            "the last one. null in front of a fleet without --stage."},
    {.name = "weight_version", .type = M_STRING | M_NULL},
    {"coverage", M_STRING | M_NULL, COVERAGE_WORDS, .flags = M_FLEET, .doc = DOC_COVERAGE},
    {"spec", M_OBJECT | M_NULL, .of = spec_rows, .flags = M_FLEET,
     .doc = "The names that an update to vLLM and SGLang must cover; null: nothing is known about"
            " the model"},
    {"dtype", M_STRING, .doc = "The dtype of most of their bytes"},
    {.name = "nbytes", .type = M_INT},
    {.name = "n_tensors", .type = M_INT},
    {.name = "plan_digest", .type = M_STRING},
    {"digest", M_STRING | M_NULL,
     .doc = "Of the weights, as a lease of a file says it; null: not computed"},
    {.name = "versions_alive", .type = M_INT},
    {.name = "n_commits", .type = M_INT},
    {.name = "age_s", .type = M_NUMBER | M_NULL},
    {0},
};

static const struct member snapshots_rows[] = {
    {"keep", M_INT, .doc = "--snapshot"},
    {"newest", M_OBJECT | M_NULL, .of = recorded_version_reply,
     .doc = "written, or restored, by this process"},
    {.name = "writing", .type = M_BOOL},
    {.name = "written", .type = M_INT},
    {"given_up", M_INT, .doc = "because an update or a sleep needed their memory"},
    {.name = "failed", .type = M_INT},
    {"error", M_STRING | M_NULL, .doc = "of the last attempt"},
    {0},
};

static const struct member state_rows[] = {
    {.name = "dir", .type = M_STRING},
    {"started_from", M_STRING,
     M_WORDS("first_weights", "journal", "snapshot", "older_snapshot", "none"),
     .doc = "what was served at the start: --weights or the model's own; those, since they are "
            "the version that the journal names; the snapshot of that version; an older snapshot "
            "(--serve-base); nothing"},
    {"journal", M_OBJECT | M_NULL, .of = recorded_version_reply,
     .doc = "the version recorded last"},
    {"journal_failures", M_INT, .doc = "commits and labels refused with not_recorded"},
    {"snapshots", M_OBJECT, .of = snapshots_rows},
    {0},
};

const struct member seeded_from_rows[] = {
    {"url", M_STRING, M_IN(struct seeder_info, from)},
    {"weight_version", M_STRING, M_IN(struct seeder_info, label)},
    {"serial", M_INT, M_IN(struct seeder_info, serial), .doc = "that it has here"},
    {"boot_id", M_STRING, M_IN(struct seeder_info, boot_id), .doc = "of the peer"},
    {"peer_serial", M_INT, M_IN(struct seeder_info, peer_serial),
     .doc = "that it has there; 0: it was being read there too"},
    {"digest", M_STRING, M_IN(struct seeder_info, digest)},
    {0},
};

const struct member seed_reply[] = {
    {"state", M_STRING, M_WORDS("none", "seeding", "done", "ended"),
     .doc = "none: no peer was asked; done: a peer's version is served, or was served already; "
            "ended: another update was committed first"},
    {"peer", M_STRING | M_NULL, .doc = "asked last"},
    {"error", M_STRING | M_NULL, .doc = "why the last peer that failed was left"},
    {"versions", M_INT, .doc = "of peers that were committed"},
    {"failures", M_INT, .doc = "how often a peer was left"},
    {"nbytes_read", M_INT, .doc = "of tensors, of peers that were left too"},
    {"passes", M_BOOL,
     .doc = "Others can read what is being read: not where the weights are on GPUs alone"},
    {"seeded_from", M_OBJECT | M_NULL, .of = seeded_from_rows,
     .doc = "the last version that came of a peer"},
    {0},
};

static const struct member both_admission_rows[] = {
    {"generate", M_OBJECT, .of = admission_reply},
    {"detokenize", M_OBJECT, .of = admission_reply},
    {0},
};

static const struct member engine_rows[] = {
    {.name = "name", .type = M_STRING},
    {.name = "heartbeat_age_ms", .type = M_NUMBER},
    {.name = "running", .type = M_INT},
    {.name = "waiting", .type = M_INT},
    {.name = "kv_tokens_used", .type = M_INT},
    {.name = "kv_tokens_max", .type = M_INT},
    {.name = "n_steps", .type = M_INT},
    {.name = "n_prompt_tokens", .type = M_INT},
    {.name = "n_generated_tokens", .type = M_INT},
    {"n_recomputed_tokens", M_INT, .doc = "Tokens whose KV was recomputed after a commit"},
    {.name = "step_ms_max", .type = M_NUMBER},
    {"on_update", M_STRING, M_WORDS("continue", "finish", "recompute"),
     .doc = "The default for generations"},
    {"logprobs_mode", M_STRING, M_WORDS("raw_logprobs", "processed_logprobs"),
     .doc = "Set by --logprobs-mode"},
    {"max_logprobs", M_INT, .doc = "For each token, set by --max-logprobs; -1: the vocabulary"},
    {0},
};

const struct member http_rows[] = {
    {"connections", M_INT, M_IN(struct http_server_stats, n_connections)},
    {"accepted", M_INT, M_IN(struct http_server_stats, n_accepted)},
    {"requests", M_INT, M_IN(struct http_server_stats, n_requests)},
    {"rejected", M_INT, M_IN(struct http_server_stats, n_rejected)},
    {"gone", M_INT, M_IN(struct http_server_stats, n_gone)},
    {"timeouts", M_INT, M_IN(struct http_server_stats, n_timeouts)},
    {"loop_lag_ms_max", M_NUMBER, M_IN(struct http_server_stats, lag_us_max), .per = M_MS,
     .doc = "In the last 30 to 60 s"},
    {0},
};

const struct member model_rows[] = {
    {"name", M_STRING, M_IN(struct app_generate, model_name)},
    {"path", M_STRING, M_IN(struct app_generate, model_path)},
    {"vocab_size", M_INT, M_IN(struct app_generate, vocab_size)},
    {"max_model_len", M_INT, M_IN(struct app_generate, max_model_len)},
    {0},
};

const struct member cuda_device_rows[] = {
    {"index", M_INT, M_IN(struct cuda_device, ordinal)},
    {"name", M_STRING, M_IN(struct cuda_device, name)},
    {"uuid", M_STRING, M_IN(struct cuda_device, uuid),
     .doc = "As nvidia-smi prints it: GPU-..., of a MIG slice MIG-..."},
    {"nbytes_total", M_INT, M_IN(struct cuda_device, nbytes_total)},
    {0},
};

static const struct member cuda_rank_rows[] = {
    {.name = "rank", .type = M_INT},
    {"place", M_STRING, .doc = "`cuda:0`"},
    {.name = "uuid", .type = M_STRING},
    {.name = "name", .type = M_STRING},
    {"checksums_on_gpu", M_BOOL,
     .doc = "false: on the host, because this build has no kernels for it"},
    {0},
};

static const struct member cuda_rows[] = {
    {.name = "available", .type = M_BOOL},
    {"driver_version", M_STRING | M_NULL,
     .doc = "The newest CUDA version that the driver supports, such as 13.0"},
    {"devices", M_ARRAY, .items = M_OBJECT, .of = cuda_device_rows},
    {"ranks", M_ARRAY, .items = M_OBJECT, .of = cuda_rank_rows,
     .doc = "The GPUs that hold the weights, by rank (`--device`); empty if host memory holds "
            "them"},
    {"reason", M_STRING | M_NULL, .doc = "Why it is not available"},
    {0},
};

static json_t *nixl_backends_json(const void *info)
{
    (void)info;
    return json_pack("[s]", "UCX");
}

const struct member nccl_rows[] = {
    {"available", M_BOOL, M_IN(struct nccl_info, available)},
    {"version", M_STRING | M_NULL, M_IN(struct nccl_info, version)},
    {"library", M_STRING | M_NULL, M_IN(struct nccl_info, path)},
    {"reason", M_STRING | M_NULL, M_IN(struct nccl_info, reason), .doc = "Why it is not available"},
    {"group", M_OBJECT, .of = group_reply},
    {0},
};

const struct member nixl_status_rows[] = {
    {"library", M_STRING, M_IN(struct nixl_info, library)},
    {"backends", M_ARRAY, .items = M_STRING, M_MADE(nixl_backends_json, struct nixl_info, version),
     .doc = "The backends by which it reads"},
    {"ucx_version", M_STRING | M_NULL, M_IN(struct nixl_info, version),
     .doc = "Of UCX, which is in the library; NIXL does not say its own"},
    {"devices", M_STRING, M_IN(struct nixl_info, devices), .doc = "--nixl-devices"},
    {"transports", M_STRING | M_NULL, M_IN(struct nixl_info, tls), .doc = "--nixl-tls"},
    {"running", M_BOOL, M_IN(struct nixl_info, running),
     .doc = "There is a process that reads now: it ends a minute after the last update by NIXL"},
    {"n_started", M_INT, M_IN(struct nixl_info, n_started), .doc = "Such processes, ever"},
    {0},
};

const struct member status_reply[] = {
    {"upstreams", M_OBJECT, .of = upstreams_reply, .flags = M_FLEET},
    {"stage", M_OBJECT | M_NULL, .of = stage_rows, .flags = M_FLEET,
     .doc = "With --stage: the version that this server received for its upstreams; null without "
            "it"},
    {.name = "boot_id", .type = M_STRING},
    {.name = "version", .type = M_STRING},
    {.name = "uptime_s", .type = M_NUMBER},
    {"server_args", M_OBJECT, .of = server_args_rows,
     .doc = "Arguments that /server_info reports to SGLang's clients. In front of engines: the "
            "values that all engines share."},
    {"life", M_STRING, M_WORDS("starting", "serving", "leaving", "draining"),
     .doc = "leaving: not ready, but serving, for --drain-delay"},
    {.name = "live", .type = M_BOOL},
    {"ready", M_BOOL, .doc = "A generate sent now would be served"},
    {"control_ready", M_BOOL, .doc = "An update, a resume or a wake sent now would be served"},
    {"reason", M_OBJECT | M_NULL, .of = reason_rows, .doc = "Why it is not ready"},
    {"recent_updates", M_ARRAY, .items = M_OBJECT, .of = update_record_reply,
     .max = HISTORY_UPDATES_MAX,
     .doc = "The last updates that ended, and requests of updates that were refused, oldest "
            "first. Requests without a valid key are left out."},
    {"recent_errors", M_ARRAY, .items = M_OBJECT, .of = error_record_reply,
     .max = HISTORY_ERRORS_MAX,
     .doc = "The last errors that requests got, or that ended an update; the one that was last "
            "seen longest ago comes first. The same code at the same route is one record. Replies"
            " of health routes are left out."},
    {"weights", M_OBJECT, .of = weights_rows},
    {"state", M_OBJECT | M_NULL, .of = state_rows,
     .doc = "What --state-dir remembers; null without it"},
    {"seed", M_OBJECT | M_NULL, .of = seed_reply,
     .doc = "Versions of peers; null without --seed and --seed-cidr"},
    {"update", M_OBJECT | M_NULL, .of = update_reply},
    {"pause", M_OBJECT | M_NULL, .of = pause_reply,
     .doc = "the pause in force, or the one that is pending"},
    {"sleep", M_OBJECT, .of = sleep_reply},
    {"admission", M_OBJECT, .of = both_admission_rows},
    {"engine", M_OBJECT | M_NULL, .of = engine_rows},
    {"adapters", M_OBJECT | M_NULL, .of = adapter_totals_reply, .doc = "null without an engine"},
    {"http", M_OBJECT, .of = http_rows},
    {"model", M_OBJECT | M_NULL, .of = model_rows},
    {"cuda", M_OBJECT, .of = cuda_rows,
     .doc = "The driver and GPUs found at start, without creating a context"},
    {"nccl", M_OBJECT, .of = nccl_rows},
    {"nixl", M_OBJECT | M_NULL, .of = nixl_status_rows, .doc = "null without --nixl-library"},
    {0},
};

const struct member ready_reply[] = {
    {"ready", M_BOOL, .flags = M_REQUIRED},
    {"reason", M_STRING, .word = err_wire_name},
    {.name = "message", .type = M_STRING},
    {"warning", M_STRING | M_NULL,
     .doc = "If it is ready: as `warning` of GET /v1/upstreams, null where there are no upstreams"},
    {0},
};

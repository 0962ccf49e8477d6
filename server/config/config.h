/* Configuration of `baton serve`: flag over environment over JSON file over default. One table
 * (CONFIG_OPTIONS) makes the struct, the parser, the environment names and --help. */
#ifndef BATON_SERVER_CONFIG_CONFIG_H
#define BATON_SERVER_CONFIG_CONFIG_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CONFIG_LIST_MAX = 256 };

/* Row: kind, field, flag ("--" left out; the environment name is BATON_ + upper case with '_', the
 * JSON member is the flag with '_'), argument's name, default as text, minimum, maximum, help.
 * Kinds: STR (const char *, NULL when default is ""), INT (uint64_t), MS (uint64_t, milliseconds),
 * NBYTES (uint64_t; suffixes KiB MiB GiB TiB), BOOL, LIST (repeatable; separated by ':' in its
 * variable), WORDS (repeatable; separated by blanks there, since its items contain ':'). For some
 * INTs 0 means that the server chooses; help says so. */
#define CONFIG_OPTIONS(X)                                                                          \
    X(STR, model, "model", "DIR", "", 0, 0,                                                        \
      "Hugging Face model directory: config.json, tokenizer.json, weights; with "                  \
      "--upstream only the list of tensors that an update must contain is read from it")           \
    X(STR, weights, "weights", "FILE", "", 0, 0,                                                   \
      "weights to serve first: a .safetensors file or a directory; 'none' starts without "         \
      "weights; default: those of --model, if it has any")                                         \
    X(STR, weight_version, "weight-version", "LABEL", "", 0, 0,                                    \
      "label of the first weights; default: the one in their file, else initial")                  \
    X(STR, state_dir, "state-dir", "DIR", "", 0, 0,                                                \
      "directory in which each version is recorded before it is served; after a restart the "      \
      "server is not ready until it has the last one again; default: nothing is remembered")       \
    X(INT, snapshot, "snapshot", "N", "0", 0, 1000,                                                \
      "with --state-dir: keep the newest N versions there as files, written in the "               \
      "background, and serve the last one again after a restart; 0: none")                         \
    X(BOOL, serve_base, "serve-base", "", "false", 0, 0,                                           \
      "with --state-dir: if the version served last is lost, serve an older snapshot or "          \
      "--weights instead of waiting for an update")                                                \
    X(STR, served_model_name, "served-model-name", "NAME", "", 0, 0,                               \
      "name in /v1/models and accepted as \"model\"; default: the directory's name")               \
    X(STR, engine, "engine", "KIND", "embedded", 0, 0,                                             \
      "embedded, or none: a store without generation (with --manifest)")                           \
    X(STR, model_spec, "manifest", "FILE", "", 0, 0,                                               \
      "with --engine none, or --upstream: the tensors that an update must contain, as a "          \
      ".safetensors file, or a JSON file with the arrays names, dtypes and shapes; with "          \
      "--upstream, --model DIR instead, also of a model in several files")                         \
    X(WORDS, upstream, "upstream", "SPEC", "", 0, 0,                                               \
      "engine to run in front of, instead of an embedded one: "                                    \
      "URL[,KIND][,key-file=FILE][,ca-file=FILE]; URL is http://HOST:PORT, "                       \
      "https://HOST:PORT (default ports 80 and 443), unix:PATH, or dns+http://NAME:PORT or "       \
      "dns+https://NAME:PORT for an engine at each address of a name; KIND is baton (the "         \
      "default), vllm or sglang; once for each engine, separated by blanks in the "                \
      "variable; SIGHUP reads the key files again")                                                \
    X(STR, upstream_file, "upstream-file", "FILE", "", 0, 0,                                       \
      "more upstreams, one SPEC per line, '#' begins a comment; SIGHUP reads it again; it may "    \
      "have only comments, then upstreams are added by POST /v1/upstreams")                        \
    X(MS, dns_interval, "dns-interval", "MS", "10000", 100, 3600000,                               \
      "time between two look-ups of each dns+ name; a name is also looked up when an "             \
      "upstream has failed")                                                                       \
    X(STR, stage, "stage", "LIST", "none", 0, 0,                                                   \
      "GPUs of this host that receive each update before the upstreams do, a list as that of "     \
      "--device; once it is committed there, the upstreams, which must be on this host too, "      \
      "get it by CUDA IPC; host: it is received in page-locked host memory instead, and goes "     \
      "through windows on one GPU, cuda:0, or another as host,cuda:1; none: upstreams receive "    \
      "updates themselves; all but none need --manifest or --model")                               \
    X(NBYTES, stage_window, "stage-window", "BYTES", "0", 0, UINT64_MAX / 2,                       \
      "with --stage host: size of each of the two windows on the GPU; not less than the tensors "  \
      "of a layer that are sent together have; 0: 1GiB, or as much as they have")                  \
    X(STR, adapter_dir, "adapter-dir", "DIR", "", 0, 0,                                            \
      "directory that the upstreams read under the same path: adapters that are sent as a body "   \
      "of tensors are kept there, and loaded by each upstream, again by one that lacks them; "     \
      "default: such requests are refused")                                                        \
    X(STR, prove, "prove", "WHAT", "canary", 0, 0,                                                 \
      "what each vLLM or SGLang is asked for after an update, which waits for none of it, and "    \
      "when it comes to serve the fleet's version without one: "                                   \
      "canary: log-probabilities of a fixed prompt, which must be finite and equal to those "      \
      "of the other upstreams, or the upstream is fenced; checksums: those of its parameters "     \
      "too, for which it stands still; or none")                                                   \
    X(BOOL, pause_fenced, "pause-fenced", "", "false", 0, 0,                                       \
      "pause an upstream that is fenced for its weights too, so that a router beside this "        \
      "server gets no tokens of it either; what ends the fence resumes it")                        \
    X(BOOL, allow_unseen_tensors, "allow-unseen-tensors", "", "false", 0, 0,                       \
      "with --upstream and --model or --manifest: also accept tensors whose names this server "    \
      "cannot read, as those of a directory that SGLang opens itself; an update with them "        \
      "succeeds without a check that it is whole (coverage unknown)")                              \
    X(INT, min_ready, "min-ready", "N", "0", 0, 256,                                               \
      "upstreams that must serve the current version for this server to be ready, and "            \
      "for an update to succeed; as many must have the same version before the first "             \
      "update; 0: all, also those that are down; it may be more than are configured, if the "      \
      "others are added later")                                                                    \
    X(MS, probe_interval, "probe-interval", "MS", "2000", 10, 600000,                              \
      "time between two probes of each upstream; while it is idle, some of them generate "         \
      "a token")                                                                                   \
    X(MS, probe_timeout, "probe-timeout", "MS", "5000", 10, 600000,                                \
      "time limit of a probe; after three timeouts in a row an upstream is down")                  \
    X(STR, listen, "listen", "ADDRESS", "127.0.0.1:8700", 0, 0,                                    \
      "address to listen on: ADDRESS:PORT, or unix:PATH; port 0 takes a free one; beyond "         \
      "loopback it needs --api-key-file, --no-auth-cidr, or --insecure")                           \
    X(STR, control_listen, "control-listen", "ADDRESS", "", 0, 0,                                  \
      "address for control routes, which are then answered only there, by a thread of "            \
      "their own; as --listen; default: they are answered on --listen")                            \
    X(STR, health_listen, "health-listen", "ADDRESS", "", 0, 0,                                    \
      "additional address for health routes, answered by a thread that waits for no "              \
      "other; plain HTTP, no key; as --listen; default: only on --listen")                         \
    X(STR, api_key_file, "api-key-file", "FILE", "", 0, 0,                                         \
      "keys that requests must carry as 'Authorization: Bearer KEY'; lines of ROLE KEY, or "       \
      "ROLE KEY name=NAME with a name for the log; "                                               \
      "a viewer key may read status and metrics, a generate key may also generate, a "             \
      "control key may do everything but read the weights as a file, which is all that a "         \
      "weights key may; SIGHUP reads it again; default: no keys")                                  \
    X(LIST, no_auth_cidr, "no-auth-cidr", "CIDR", "", 0, 0,                                        \
      "addresses of clients that need no key, as 10.0.0.0/8, or unix for clients of a "            \
      "unix socket; repeatable; others need a key of --api-key-file")                              \
    X(WORDS, allowed_host, "allowed-host", "NAME", "", 0, 0,                                       \
      "name of this server that requests without a key may use, besides its addresses "            \
      "and localhost; NAME, *.SUFFIX, or * for any; repeatable, separated by blanks in "           \
      "the variable")                                                                              \
    X(WORDS, allow_origin, "allow-origin", "ORIGIN", "", 0, 0,                                     \
      "origin whose web pages may use this server: SCHEME://HOST[:PORT], or * for all; "           \
      "repeatable, separated by blanks in the variable; default: only its own")                    \
    X(STR, tls_cert, "tls-cert", "FILE", "", 0, 0,                                                 \
      "certificate of --listen and --control-listen, PEM, followed by its chain; with "            \
      "--tls-key; default: plain HTTP")                                                            \
    X(STR, tls_key, "tls-key", "FILE", "", 0, 0,                                                   \
      "private key of --tls-cert, PEM, without a password; default: plain HTTP")                   \
    X(BOOL, insecure, "insecure", "", "false", 0, 0,                                               \
      "allow listening beyond loopback without --api-key-file and --no-auth-cidr")                 \
    X(STR, compat, "compat", "LIST", "all", 0, 0,                                                  \
      "other servers' APIs that are answered too: all, none, or some of vllm, skyrl "              \
      "(with vllm), sglang, prime-rl, areal (with vllm), separated by commas")                     \
    X(LIST, allow_path, "allow-path", "DIR", "", 0, 0,                                             \
      "directory below which update sources of kind \"path\" and LoRA adapters may be "            \
      "read; repeatable; default: such requests are refused")                                      \
    X(LIST, fetch_prefix, "fetch-prefix", "PREFIX", "", 0, 0,                                      \
      "prefix of URLs beneath which deltas may be pulled: https://HOST/PATH, or what stands for "  \
      "such a URL, as gs://BUCKET=https://HOST/BUCKET; plain HTTP if it says http://; "            \
      "repeatable; default: such requests are refused")                                            \
    X(LIST, fetch_cidr, "fetch-cidr", "CIDR", "", 0, 0,                                            \
      "addresses that --fetch-prefix may lead to although no public server has them, as "          \
      "10.0.0.0/8; repeatable; default: none that is private, loopback or link-local")             \
    X(STR, fetch_ca_file, "fetch-ca-file", "FILE", "", 0, 0,                                       \
      "certificates, PEM, that alone are trusted for --fetch-prefix; default: the system's")       \
    X(WORDS, seed, "seed", "URL[,URL...]", "", 0, 0,                                               \
      "other baton servers of the same model, peers, http://HOST:PORT or https://HOST:PORT: the "  \
      "first that answers gives its version, which is served before any first weights; "           \
      "repeatable, separated by blanks in the variable; default: none is asked")                   \
    X(LIST, seed_cidr, "seed-cidr", "CIDR", "", 0, 0,                                              \
      "addresses of peers that POST /v1/weights/seed may name besides those of --seed, as "        \
      "10.0.0.0/8; repeatable; default: such requests are refused")                                \
    X(STR, seed_key_file, "seed-key-file", "FILE", "", 0, 0,                                       \
      "file with the key that peers get: theirs of the role weights")                              \
    X(STR, seed_ca_file, "seed-ca-file", "FILE", "", 0, 0,                                         \
      "certificates, PEM, that alone are trusted of peers; default: the system's")                 \
    X(NBYTES, seed_rate, "seed-rate", "BYTES", "0", 0, UINT64_MAX / 2,                             \
      "bytes a second that are read of a peer at most; 0: no limit")                               \
    X(INT, seed_connections, "seed-connections", "N", "4", 1, 64, "connections to a peer")         \
    X(INT, http_server_threads, "front-threads", "N", "1", 1, 64,                                  \
      "event loops of the HTTP server")                                                            \
    X(INT, control_threads, "control-threads", "N", "4", 1, 64,                                    \
      "threads for update, weights and status requests; in front of a fleet as many "              \
      "again for those that wait for upstreams")                                                   \
    X(INT, control_queue, "control-queue", "N", "1024", 1, 1000000,                                \
      "control requests that may wait; more get 503")                                              \
    X(INT, generate_concurrency, "generate-concurrency", "N", "512", 1, 1000000,                   \
      "generations admitted at once")                                                              \
    X(INT, generate_queue, "generate-queue", "N", "8192", 0, 1000000,                              \
      "generations that may wait for admission; more get 503")                                     \
    X(INT, generate_threads, "generate-threads", "N", "2", 1, 64,                                  \
      "threads that parse generate requests and write their replies")                              \
    X(INT, detokenize_concurrency, "detokenize-concurrency", "N", "2", 1, 1024,                    \
      "tokenize and detokenize requests processed at once, a thread for each")                     \
    X(INT, detokenize_queue, "detokenize-queue", "N", "4096", 0, 1000000,                          \
      "tokenize and detokenize requests that may wait; more get 503")                              \
    X(INT, engine_threads, "engine-threads", "N", "0", 0, 256,                                     \
      "compute threads of the embedded engine; 0: one for each processor it may use")              \
    X(BOOL, engine_pin, "engine-pin", "", "false", 0, 0,                                           \
      "bind each compute thread of the embedded engine to a processor of its own")                 \
    X(INT, max_num_seqs, "max-num-seqs", "N", "256", 1, 65536,                                     \
      "sequences in one batch of the embedded engine")                                             \
    X(INT, max_num_batched_tokens, "max-num-batched-tokens", "N", "512", 1, 65536,                 \
      "tokens in one step of the embedded engine")                                                 \
    X(INT, max_model_len, "max-model-len", "N", "0", 0, 16777216,                                  \
      "longest prompt and output together, at most the model's own; 0: that")                      \
    X(STR, generation_config, "generation-config", "WHAT", "auto", 0, 0,                           \
      "sampling defaults of completions and chat: auto: those of the model's "                     \
      "generation_config.json; vllm: none, as of the option of this name of vLLM; token ids that " \
      "end a sequence are taken from it all the same")                                             \
    X(STR, logprobs_mode, "logprobs-mode", "MODE", "raw_logprobs", 0, 0,                           \
      "which logprobs of sampled tokens are returned, as in vLLM: raw_logprobs (of the "           \
      "model's logits) or processed_logprobs (of the distribution that the token was "             \
      "drawn from: after penalties, temperature, top_k and top_p; TRL needs these); "              \
      "SGLang's /generate returns its own")                                                        \
    X(STR, return_routed_experts, "return-routed-experts", "MODE", "on-request", 0, 0,             \
      "which replies have the experts of each token: on-request (of requests with "                \
      "return_routed_experts, and on SkyRL's route), vllm (also all of vLLM's routes, as its "     \
      "--enable-return-routed-experts) or prime-rl (also all of /inference/v1/generate, in "       \
      "the form of prime-rl's server)")                                                            \
    X(BOOL, sglang_memory_saver, "sglang-memory-saver", "", "false", 0, 0,                         \
      "report enable_memory_saver as on in /server_info: slime compares it with its "              \
      "--offload-rollout; sleeping works either way")                                              \
    X(LIMIT, sglang_base_gpu_id, "sglang-base-gpu-id", "N", "-1", 0, 65535,                        \
      "report N as base_gpu_id in /server_info: Miles compares it with the GPU that it would "     \
      "have given to this engine; -1: the first GPU of --device, or 0")                            \
    X(LIMIT, max_logprobs, "max-logprobs", "N", "-1", 0, 16777216,                                 \
      "most logprobs that a request may ask for with each token, of prompt or output; "            \
      "more get 400; -1: as many as the vocabulary has")                                           \
    X(NBYTES, max_unread_bytes, "max-unread-bytes", "BYTES", "4GiB", 65536, UINT64_MAX / 2,        \
      "memory for replies of generate and tokenize routes that clients have not read yet, "        \
      "batches of rollouts and slow streams too; more get 503")                                    \
    X(STR, on_update, "on-update", "MODE", "", 0, 0,                                               \
      "what a commit does to running sequences, unless the request sets it: continue "             \
      "(the next token reads the new weights), finish (they end on the version they "              \
      "began with), or recompute (their KV is computed again with the new weights "                \
      "first); default: continue. In front of vLLM and SGLang the default is recompute, and "      \
      "with finish an update waits until they have ended: new ones wait meanwhile; what has "      \
      "not ended within half of --update-timeout is aborted (it ends with what it has)")           \
    X(NBYTES, kv_cache, "kv-cache", "BYTES", "256MiB", 65536, UINT64_MAX / 2,                      \
      "memory for the KV cache of the embedded engine")                                            \
    X(BOOL, no_prefix_cache, "no-prefix-cache", "", "false", 0, 0,                                 \
      "every sequence computes its whole prompt; default: KV of the same tokens, weights, "        \
      "adapter and cache_salt is shared, and kept after a generation until --kv-cache needs "      \
      "the room or other weights are served; tokens and logprobs are the same either way")         \
    X(INT, max_loras, "max-loras", "N", "64", 1, 4096,                                             \
      "LoRA adapters loaded at once; more get 409: nothing is evicted")                            \
    X(INT, max_lora_rank, "max-lora-rank", "N", "64", 1, 4096, "largest rank of a LoRA adapter")   \
    X(NBYTES, max_lora_bytes, "max-lora-bytes", "BYTES", "4GiB", 65536, UINT64_MAX / 2,            \
      "memory for LoRA adapters, including those being loaded and old revisions still in "         \
      "use; with --adapter-dir: bytes of all adapters in it; more get 507")                        \
    X(STR, device, "device", "LIST", "cpu", 0, 0,                                                  \
      "memory of the weights: cpu, or cuda:0 or cuda:0,cuda:1 or GPU UUIDs: a rank on "            \
      "each")                                                                                      \
    X(STR, placement, "placement", "WHERE", "replicated", 0, 0,                                    \
      "with several GPUs in --device (and --engine none) or --stage: replicated: each keeps "      \
      "whole versions; sharded: each keeps its share, all together have a version once, and "      \
      "the upstreams map each share from its GPU")                                                 \
    X(STR, cuda_library, "cuda-library", "FILE", "", 0, 0,                                         \
      "the CUDA driver's library; default: libcuda.so.1, as the loader finds it")                  \
    X(STR, nccl_library, "nccl-library", "FILE", "", 0, 0,                                         \
      "NCCL's library, of exactly the trainer's version: best the trainer's own file; "            \
      "default: libnccl.so.2, as the loader finds it")                                             \
    X(LIST, nccl_allow_cidr, "nccl-allow-cidr", "CIDR", "", 0, 0,                                  \
      "addresses of trainers whose NCCL groups may be joined, as 10.0.0.0/8; repeatable; "         \
      "default: every address")                                                                    \
    X(STR, nixl_library, "nixl-library", "FILE", "", 0, 0,                                         \
      "libnixl_capi.so of an installed NIXL: updates may then name transport nixl, for which a "   \
      "process of its own reads the trainer's memory; with --nixl-devices; default: they are "     \
      "refused")                                                                                   \
    X(STR, nixl_devices, "nixl-devices", "LIST", "", 0, 0,                                         \
      "with --nixl-library: devices by which it reads, as UCX names them: eth0, or mlx5_0:1, "     \
      "separated by commas; over TCP every host that reaches one can write to that process")       \
    X(STR, nixl_tls, "nixl-tls", "LIST", "", 0, 0,                                                 \
      "with --nixl-library: transports of UCX, as rc,cuda_copy or tcp; default: what UCX chooses") \
    X(MS, join_timeout, "join-timeout", "MS", "120000", 100, 86400000,                             \
      "longest time to join a trainer's NCCL group, unless the request sets timeout_s")            \
    X(NBYTES, max_weight_bytes, "max-weight-bytes", "BYTES", "0", 0, UINT64_MAX / 2,               \
      "limit of weights in memory, served and staging together; 0: the free memory of "            \
      "the machine")                                                                               \
    X(STR, non_finite, "non-finite", "WHAT", "refuse", 0, 0,                                       \
      "what to do with weights and LoRA adapters that contain NaN or infinity: refuse "            \
      "(422, names the tensor), warn (accept them, and report it in the log and the "              \
      "reply), allow (do not check); bytes that are copied from GPU to GPU are not "               \
      "checked")                                                                                   \
    X(INT, max_versions, "max-versions", "N", "3", 2, 64,                                          \
      "versions in memory at once, including the one being staged")                                \
    X(NBYTES, json_body_max, "json-body-max", "BYTES", "64MiB", 65536, UINT64_MAX / 2,             \
      "largest JSON body of an update or tensor list; other JSON routes take 16 MiB or "           \
      "less")                                                                                      \
    X(MS, update_timeout, "update-timeout", "MS", "600000", 100, 86400000,                         \
      "longest time of a single update request")                                                   \
    X(MS, body_stall_timeout, "body-stall-timeout", "MS", "10000", 100, 3600000,                   \
      "longest pause between bytes of a streamed tensor body")                                     \
    X(MS, pin_timeout, "pin-timeout", "MS", "30000", 10, 3600000,                                  \
      "how long an update waits for readers of an old version")                                    \
    X(MS, header_timeout, "header-timeout", "MS", "10000", 100, 3600000,                           \
      "longest time to send a request's header")                                                   \
    X(MS, body_timeout, "body-timeout", "MS", "60000", 100, 3600000,                               \
      "longest time to send a whole JSON body")                                                    \
    X(MS, idle_timeout, "idle-timeout", "MS", "75000", 2500, 86400000,                             \
      "time after which an idle connection is closed; sooner when others need its place")          \
    X(INT, max_connections, "max-connections", "N", "0", 0, 1000000,                               \
      "connections at once; near the limit idle ones are closed; 0: as many as file "              \
      "descriptors allow")                                                                         \
    X(MS, drain_delay, "drain-delay", "MS", "0", 0, 3600000,                                       \
      "after SIGTERM, time during which the server is not ready but serves as before, so "         \
      "that load balancers go elsewhere; then it drains")                                          \
    X(MS, drain_timeout, "drain-timeout", "MS", "30000", 0, 86400000,                              \
      "after SIGTERM and --drain-delay, longest time for running work and an open "                \
      "update to end")                                                                             \
    X(STR, log_level, "log-level", "LEVEL", "info", 0, 0, "debug, info, warn or error")            \
    X(STR, log_format, "log-format", "FORMAT", "", 0, 0,                                           \
      "json, or text: lines for people; default: text, coloured unless NO_COLOR is set, if "       \
      "standard error is a terminal, else json")                                                   \
    X(STR, access_log, "access-log", "WHICH", "all", 0, 0,                                         \
      "requests that have a line in the log: off, errors (status 400 and above) or all; "          \
      "refused and failed updates, refused keys and changes of health always have one")

#define CONFIG_TYPE_STR    const char *
#define CONFIG_TYPE_INT    uint64_t
#define CONFIG_TYPE_LIMIT  uint64_t
#define CONFIG_TYPE_MS     uint64_t
#define CONFIG_TYPE_NBYTES uint64_t
#define CONFIG_TYPE_BOOL   bool
#define CONFIG_TYPE_LIST   struct config_list
#define CONFIG_TYPE_WORDS  struct config_list

#define CONFIG_NO_LIMIT UINT64_MAX

struct config_list {
    const char *items[CONFIG_LIST_MAX]; /* owned by the config */
    size_t n;
};

struct config {
#define X(kind, field, flag, arg, def, min, max, help) CONFIG_TYPE_##kind field;
    CONFIG_OPTIONS(X)
#undef X
    void *storage;                  /* owned: everything that the strings point into */
    struct config_origins *origins; /* owned: where each value was given */
    int argc;                       /* what config_load read it from; borrowed */
    char *const *argv, *const *env;
};

/* config_load - defaults, then the JSON file (--config FILE or BATON_CONFIG), then BATON_*
 * environment variables, then flags ("--flag value" or "--flag=value").
 * @argv  after the subcommand; @env as environ, may be NULL. Both are copied from, and borrowed for
 *        config_reload.
 *
 * An empty variable counts as unset; a LIST is separated by ':' in its variable, WORDS by blanks,
 * and either is an array in the file; a stronger layer's list replaces a weaker one's. The file is
 * strict. An option that has no effect together with the others is refused. An unknown BATON_*
 * variable is only logged as a warning, since clusters set such variables. *out is untouched on
 * failure.
 * One argument without dashes, before all others, is the value of --model.
 * Errors: ERR_BAD_REQUEST; field is the flag, the variable, or "FILE:LINE: MEMBER"; the message
 *         says what was found, what is allowed, and the option probably meant for an unknown one.
 */
int config_load(struct config *out, int argc, char *const *argv, char *const *env, struct err *e);
void config_fini(struct config *c); /* accepts a zeroed one */

/* config_has_upstreams - is this a server in front of a fleet (--upstream, --upstream-file)? */
bool config_has_upstreams(const struct config *c);

/* config_has_stage - does it receive updates itself, and hand them to its upstreams (--stage)? */
bool config_has_stage(const struct config *c);

/* config_stage_is_host - is what it receives for them in host memory (--stage host)?
 * config_stage_device - the GPUs of --stage, in the form of --device. Borrowed. */
bool config_stage_is_host(const struct config *c);
/* config_is_sharded - does each GPU keep its share of a version (--placement sharded)? */
bool config_is_sharded(const struct config *c);
const char *config_stage_device(const struct config *c);

/* config_has_file - was a configuration file given?
 * config_reload - read the configuration again, from the same arguments, variables and file.
 * Errors: as config_load. */
bool config_has_file(const struct config *c);
int config_reload(struct config *out, const struct config *c, struct err *e);

/* config_changes - which options differ: their flags, separated by commas and cut if `cap` is too
 * small. @except  a flag that is not compared. Returns: how many differ. */
size_t config_changes(char *out, size_t cap, const struct config *a, const struct config *b,
                      const char *except);

/* config_where - how the value of an option was given: its variable, "FILE:LINE: MEMBER", or, if on
 * the command line or not at all, the flag. A field that is not a flag is copied. */
void config_where(char out[ERR_FIELD_MAX], const struct config *c, const char *field);

/* config_flags - the flags of this build without their dashes, NULL-terminated; static. Threads:
 * the main thread. */
const char *const *config_flags(void);

/* config_help - every option of this build with its default, environment name and meaning, within
 * 100 columns. */
void config_help(FILE *to);

enum { CONFIG_UNIX_PATH_MAX = 107 }; /* what a socket's address can hold */

struct config_listen {
    char address[64];                    /* without brackets; "" for a unix socket */
    char path[CONFIG_UNIX_PATH_MAX + 1]; /* of a unix socket; "" for an address */
    uint16_t port;
    bool loopback; /* true for a unix socket */
};
/* config_listen_parse - "127.0.0.1:8700", "[::1]:8700", "unix:/run/baton.sock". Numeric addresses
 * and "localhost" only.
 * @option  the field of an error, as "--listen" */
int config_listen_parse(struct config_listen *out, const char *text, const char *option,
                        struct err *e);

#endif

/* What handlers work with: made by server/ before the first request, and passed to each handler.
 * Pointers are borrowed, outlive every request and do not change after the start. */
#ifndef BATON_HANDLERS_APP_H
#define BATON_HANDLERS_APP_H

#include "base/err.h"
#include "base/jobs/workers.h"
#include "control/engine.h"
#include "handlers/settings.h"
#include "http/http_request.h"
#include "http/server/http_server.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct adapters;
struct app;
struct app_generate;
struct buf;
struct adapter_dir;
struct admission;
struct auth;
struct event_watch;
struct fetch_rules;
struct chat_template;
struct cuda_info;
struct cuda_ipc_stats;
struct device;
struct pause_controller;
struct request_log;
struct generations;
struct handle_leases;
struct handoff;
struct history;
struct engine;
struct fleet_control;
struct label_req;
struct life;
struct list_cache;
struct metrics;
struct lora_loads;
struct model_config;
struct seeder;
struct source_threads;
struct store;
struct tokenizer;
struct updates;
struct proxy;
struct pull_chain;
struct state_dir;
struct upstreams;
struct nccl_info;
struct nixl;
struct model_defaults;
struct weight_transfer;

/* For handlers of updates and of weights. */
struct app_weights {
    struct store *store;
    struct updates *updates;
    struct list_cache *lists;      /* of `updates`; NULL: none is cached */
    struct handle_leases *leases;  /* leases of other processes on versions */
    const struct cuda_info *cuda;  /* found at start */
    struct device *const *devices; /* the ranks of the store, in its order; NULL without GPUs */
    uint32_t n_devices;
    struct cuda_ipc_stats *ipc_stats;      /* of all updates so far */
    const struct nccl_info *nccl;          /* found at start */
    struct weight_transfer *transfer;      /* the group with a trainer */
    struct source_threads *source_threads; /* of updates by sockets, and of pulls */
    struct source_threads *file_threads;   /* of files of versions that are being sent */
    struct state_dir *state;               /* --state-dir; NULL: none */
    struct seeder *seeder;                 /* versions of peers; NULL: none may be asked */
    struct pull_chain *pulls;              /* versions that a trainer publishes */
    struct nixl *nixl;                     /* --nixl-library; NULL: none */
    const struct fetch_rules *fetch_rules; /* --fetch-prefix: where they may be fetched from */
};

/* What replies of other handlers say of the adapters; handlers/lora/ has it. JSON is new, and NULL
 * without memory. Threads: any. Blocks: on short locks. */
struct lora_view {
    json_t *(*totals)(const struct app_generate *generate); /* counts and bytes, and their limits */
    json_t *(*valid)(const struct app_generate *generate);  /* [{name, revision, valid}] of what is
                                                               loaded now, after a commit */
    void (*metrics)(const struct app_generate *generate, struct buf *out); /* Prometheus text */
};
extern const struct lora_view lora_view;

/* For handlers of generation and of adapters. */
struct app_generate {
    struct engine *engine;                 /* NULL with --engine none */
    const struct tokenizer *tokenizer;     /* NULL without an engine */
    struct adapters *adapters;             /* NULL without an engine, and so are the next three */
    struct lora_loads *loads;              /* loads of adapters that are under way */
    const struct lora_view *lora;          /* the adapters, as replies have them */
    const struct model_config *model;      /* what adapters are checked against */
    const struct chat_template *chat;      /* NULL: chat_why says why */
    const struct err *chat_why;            /* ERR_NOT_FOUND: the model has no chat template */
    const struct model_defaults *defaults; /* of /v1/completions; NULL: there are none */
    const char *model_name, *model_path;   /* "" without an engine */
    /* What requests may call the base model, and no adapter: its name, its path as it was given,
     * which is the name that vLLM would have, and that path made absolute. NULL without an engine
     */
    const char *const *base_names;
    uint32_t vocab_size, max_model_len; /* 0 without an engine */
    struct engine_info info;            /* zeroed without an engine */
    struct generations *generations;    /* those under way */
    struct admission *admission;        /* of generates */
    struct admission *text_admission;   /* of requests on `text` */
    struct admission *prompt_admission; /* of completions whose prompts are tokenized on `text` */
};

/* For handlers in front of a fleet. */
struct app_fleet {
    struct upstreams *upstreams;
    struct fleet_control *control;   /* updates, pauses, adapters of the fleet */
    struct handoff *handoff;         /* --stage; NULL: the upstreams receive updates themselves */
    struct adapter_dir *adapter_dir; /* --adapter-dir; NULL: adapters are not sent as tensors */
    struct proxy *proxy;             /* of generate requests */
    struct workers *executor;        /* of requests that wait for engines, or for each other */
    /* Would a generate sent now be served? Threads: any. Blocks: no. Errors: why not. */
    int (*ready)(const struct app *app, struct err *why);
    /* The status, and its member `update`: new; NULL without memory. Threads: any. */
    json_t *(*status)(const struct app *app);
    json_t *(*update)(const struct app *app);
    /* With --stage: each upstream, and whether it has the version that was committed here with this
     * serial: new; NULL without memory. Threads: any. */
    json_t *(*handed)(const struct app *app, uint64_t serial);
    /* With --stage: gives the version that is served another name, here and at the engines, and
     * replies (fleet_rename in handlers/fleet/handlers.h). Threads: those of `executor`. */
    void (*rename)(struct app *app, struct http_request *x, const struct label_req *req,
                   json_t *reply, void (*named)(void *arg, bool recorded), void *arg);
    /* Appends the fleet's metrics as Prometheus text. Threads: any; no lock held. */
    void (*metrics)(struct app *app, struct buf *out);
};

/* A server has weights of its own, is in front of a fleet, or both: with --stage it receives
 * weights for the fleet. */
struct app {
    struct app_weights
        *weights; /* NULL in front of a fleet without --stage, and so are the next two
                   */
    struct app_generate *generate;             /* with --stage: without an engine */
    struct pause_controller *pause_controller; /* pause, sleep, which call works in which state;
                                                  with --stage never paused: the fleet is */
    struct app_fleet *fleet;                   /* NULL with weights of its own */

    struct settings settings;
    struct life *life;
    struct metrics *metrics;
    struct event_watch *events; /* streams of GET /v1/events */
    struct history *history;    /* of updates and errors */
    struct request_log *request_log;
    struct workers *control_executor, *generate_executor, *text_executor;
    _Atomic(struct http_server *) http_server;         /* NULL until it listens */
    _Atomic(struct http_server *) control_http_server; /* the same; NULL without --control-listen */
};

/* app_n_devices - GPUs that hold the weights; 0: host memory, or there are none here. */
static inline uint32_t app_n_devices(const struct app *app)
{
    return app->weights != NULL ? app->weights->n_devices : 0;
}

/* One listener of routes. */
struct listener_ctx {
    struct app *app;
    struct auth *auth; /* keys, and addresses that need none */
    unsigned roles;    /* roles whose routes it answers: bits 1 << enum route_role */
};

/* app_http_server - the callbacks of an HTTP server (http/server/http_server.h); its app_arg is a
 * struct listener_ctx. */
extern const struct http_server_app app_http_server;

/* app_http_server_stats - sums of both listeners. Threads: any. */
void app_http_server_stats(const struct app *app, struct http_server_stats *out);

/* app_ready - would a generate sent now be served? Threads: any. Blocks: on short locks only.
 * Errors: why not. */
bool app_ready(const struct app *app, struct err *why);

/* app_control_ready - would an update, a resume or a wake that is sent now be served? So is a
 * server that has no weights or no engine, is paused or asleep. Threads, blocking and errors: as
 * app_ready. */
bool app_control_ready(const struct app *app, struct err *why);

/* app_update_lease - has an update of a trainer begun that is neither committed nor aborted, and
 * how long is its lease still? While a request of it is under way the lease does not run, and the
 * time does not shrink. @left_us  set if one is open. Threads: any. Blocks: on a short lock. */
bool app_update_lease(const struct app *app, uint64_t *left_us);

/* app_live - can the process do its work? In front of a fleet the loop of the upstreams must turn;
 * else the engine's step loop, and no call into NCCL may be stuck. Threads, blocking and errors: as
 * app_ready. */
bool app_live(const struct app *app, struct err *why);

#endif

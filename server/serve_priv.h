/* The one server of the process, and the functions by which serve.c builds, drains and frees it.
 * Private to server/serve*.c. All of them run on the main thread. */
#ifndef BATON_SERVER_SERVE_PRIV_H
#define BATON_SERVER_SERVE_PRIV_H

#include "base/err.h"
#include "base/net/cidr.h"
#include "control/life.h"
#include "driver/cuda_info.h"
#include "driver/nccl_info.h"
#include "handlers/app.h"
#include "handlers/status/events_poll.h"
#include "memory/device_list.h"
#include "server/config/config.h"
#include "server/listeners.h"
#include "transport/fetch.h"
#include "transport/file.h"
#include "transport/ipc/cuda_ipc.h"
#include "transport/peer/seeder.h"
#include "weights/model/model_config.h"
#include "weights/store/store.h"

#include <stdbool.h>

struct chat_template;
struct device;
struct model_spec;
struct nixl;
struct source;
struct state_dump;
struct state_found;
struct state_report;
struct tokenizer;

enum { SERVER_PATH_MAX = 4096 };

/* Each pointer is owned, and NULL until it is made: a server that was built in part can be freed.
 */
struct server {
    const struct config *given; /* borrowed */
    struct config config;       /* as given; --allow-path is resolved */
    uint64_t watchdog_us;       /* when the next report to the service manager is due */
    struct life life;
    struct app app;
    struct app_weights weights;   /* app.weights, or zeroed */
    struct app_generate generate; /* app.generate, or zeroed */
    struct app_fleet fleet;       /* app.fleet, or zeroed */
    struct listeners listeners;
    struct events_poll events_poll; /* of app.events */
    struct state_dump *state_dump;  /* of SIGQUIT */

    /* Read before anything runs (server_read_inputs). */
    char *allow_path[CONFIG_LIST_MAX]; /* --allow-path as real, absolute directories */
    struct source *first;              /* bytes of the first weights, until they are submitted */
    struct file_weights first_weights; /* their list, checksums and label */
    struct model_config model;
    struct model_spec *model_spec; /* until the store takes it */
    struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: chat_why says why */
    struct err chat_why;
    struct cidr_list nccl_allow;            /* --nccl-allow-cidr */
    struct fetch_rules *fetch_rules;        /* --fetch-prefix; NULL: none */
    char *seed_text[CONFIG_LIST_MAX];       /* --seed, cut at its commas */
    const char *seed_peers[SEED_PEERS_MAX]; /* [n_seed_peers] in it */
    size_t n_seed_peers;
    char *seed_authorization;    /* of --seed-key-file, or NULL; wiped */
    struct cidr_list seed_cidrs; /* --seed-cidr */
    struct cuda_info cuda;
    struct device_list device_list; /* --device: indices into cuda.devices, by rank */
    struct nccl_info nccl;
    struct nixl *nixl;      /* --nixl-library; NULL: none */
    uint64_t window_nbytes; /* --stage host: of each window; else 0 */

    struct device *devices[STORE_DEVICES_MAX]; /* weights.n_devices of them, by rank */
    struct cuda_ipc_stats ipc_stats;
    char model_name[SERVER_PATH_MAX], model_path[SERVER_PATH_MAX];
    const char *base_names[4]; /* handlers/app.h */
};

/* server_has_engine - is there an embedded engine, or is it --engine none? */
bool server_has_engine(const struct server *s);

/* server_first_label - the label of the first weights. */
const char *server_first_label(const struct server *s);

/* server_open_first - open the first weights (again), if there are any: s->first.
 * Errors: of their files; the field is the option. */
int server_open_first(struct server *s, struct err *e);

/* server_share_nbytes - what --placement sharded gives each rank of a version, once the model spec
 * and the GPUs are known. @out [number of ranks], untouched without GPUs. Errors: ERR_NO_MEMORY. */
int server_share_nbytes(const struct server *s, uint64_t *out, struct err *e);

/* server_read_inputs - read and check what a server with weights of its own needs before anything
 * runs: the headers of the first weights, model, tokenizer, --allow-path, CUDA, --device, NCCL.
 * Errors: of what is read; the field is the option. */
int server_read_inputs(struct server *s, struct err *e);

/* server_check_room - does the host have the memory that a start takes: two versions with --stage
 * host, else the first weights, if they are kept there? GPUs are looked at by server_read_inputs.
 * Errors: ERR_NO_STAGING. */
int server_check_room(const struct server *s, struct err *e);

/* server_read_engine - read what the embedded engine needs: the model, its tokenizer, its chat
 * template, and the model spec that follows. Errors: of what is read; the field is the option.
 * server_build_engine - the engine and its adapters, if there is one; after the store. Errors: of
 * each part; what was made is server_free's.
 * server_free_engine - what these two made, but for the engine, which ends before. */
int server_read_engine(struct server *s, struct err *e);
int server_build_engine(struct server *s, struct err *e);
void server_free_engine(struct server *s);

/* server_build_executors - the thread of events, and the executors of requests; in front of a fleet
 * requests that wait hold none of their threads. Errors: of workers_new, event_watch_new. */
int server_build_executors(struct server *s, struct err *e);

/* server_build_embedded - the server with weights of its own, up to its listeners.
 * Errors: of each part; what was made is server_free's. */
int server_build_embedded(struct server *s, struct err *e);

/* server_begin_seed - ask the peers of --seed, when the server serves. */
void server_begin_seed(struct server *s);

/* server_push_first - commit the first weights, if there are any, by the update path; with
 * --state-dir those that may be served after the process before this one.
 * Blocks: until they are committed. Errors: of the update. */
int server_push_first(struct server *s, struct err *e);

/* server_inspect_state - with --state-dir: what server_push_first would choose. Reads the heads of
 * snapshots, and changes nothing. Errors: those of state_dir_inspect. */
int server_inspect_state(const struct server *s, struct state_report *out, struct err *e);

/* server_describe_last - the version served last, for messages. */
void server_describe_last(const struct state_found *f, char *out, size_t cap);

/* server_build_fleet - the server in front of a fleet, up to its listeners; then probes begin.
 * Errors: of each part; what was made is server_free's. */
int server_build_fleet(struct server *s, struct err *e);

/* server_build_weights - the parts of a server with weights of its own, without listeners.
 * Errors: of each part; what was made is server_free's. */
int server_build_weights(struct server *s, struct err *e);

/* server_build_staged - the server that receives updates for its fleet (--stage): both, and the
 * hand-off. Errors: as server_build_fleet. */
int server_build_staged(struct server *s, struct err *e);

/* server_reload - SIGHUP: read the configuration's log level, certificate, keys and upstreams
 * again. What cannot be used is kept. The log says what happened to each. */
void server_reload(struct server *s);

/* server_notify_ready - report to the service manager. @more  appended to the status
 * server_watchdog - report that the server is live, if it is and a report is due. Returns: how long
 * until the next report is due. */
void server_notify_ready(const struct server *s, const char *more);
uint64_t server_watchdog(struct server *s);

/* server_drain - be not ready for --drain-delay; then take no new work, and wait until running
 * work and an open update have ended, --drain-timeout has passed, or a second signal arrives.
 * Returns: has all work ended? */
bool server_drain(struct server *s);

/* server_free - stop and free everything, and s itself. */
void server_free(struct server *s);

#endif

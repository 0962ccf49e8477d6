/* fake_engine: a double of vLLM, SGLang or baton, without a model. Tests order faults and read in
 * its journal which requests it received.
 *
 * One thread and one epoll, so that the order of its actions is well defined. Its state is real:
 * tokens that are generated while weights are incomplete show it (engine_data.c). */
#ifndef BATON_TESTS_FAKES_ENGINE_H
#define BATON_TESTS_FAKES_ENGINE_H

#include "base/buf.h"
#include "base/id.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dialect { BATON = 1, VLLM = 2, SGLANG = 4, ALL = 7 };

enum {
    HEAD_NBYTES_MAX = 64 << 10,
    BODY_NBYTES_MAX = 256 << 20,
    LABEL_MAX = 512,
    ADAPTERS_MAX = 64,
    FAULTS_MAX = 1024,
    TOKENS_MAX = 1 << 20,
    JOURNAL_BODY_MAX = 64 << 10, /* bytes of a body that are recorded */
    AHEAD_NBYTES_MAX = 64 << 10  /* unsent bytes of a stream */
};

/* Out of memory, a test double exits. */
#define must(p) must_have((p), __FILE__, __LINE__)
void *must_have(void *p, const char *file, int line);

struct timer {
    uint64_t due_us;
    void (*fire)(void *arg);
    void *arg;
    size_t at; /* of the heap, from 1; 0: not armed */
};

struct options {
    enum dialect dialect;
    const char *dialect_name, *unix_path, *address, *model, *label, *key;
    const char *vllm_version; /* of a vLLM: the version that it reports, and whose API it has */
    bool lora;                /* of a vLLM: started with --enable-lora */
    const char *vllm_config;  /* JSON: the configuration that a vLLM or a baton reports */
    unsigned port, world_size;
    size_t n_tokens; /* default of a request */
    size_t pad;      /* spaces after each event of a stream, to make it as long as real ones */
    size_t n_journal;
    uint64_t interval_us;      /* between two tokens of one request */
    uint64_t idle_us;          /* an idle connection is closed after it; 0: never */
    bool plain_finish;         /* a vLLM whose finish_weight_update takes no label */
    unsigned sglang;           /* an SGLang's version: 23 is 0.5.23 */
    const char *sglang_config; /* JSON: members of its /server_info, in place of the usual */
    bool silent_reset; /* a vLLM before 0.28: the reply to a reset does not show whether it was done
                        */
    bool hicache;      /* an SGLang with HiCache storage, which a flush does not empty */
    const char *experts; /* the form of its routed experts: "vllm", "prime-rl"; NULL: none */
    bool own_kv; /* frozen requests continue with the KV of other weights, if the pause said so */
};

/* ---- faults and the journal (engine_journal.c) ---- */

enum fault_kind {
    FAULT_NONE,
    FAULT_SLOW,         /* acts, answers `ms` later; tokens: begins `ms` later */
    FAULT_LATE,         /* acts `ms` later, also if the client has disconnected */
    FAULT_HANG,         /* no answer; acts only if `acts` */
    FAULT_CLOSE_BEFORE, /* does not act; the connection is closed without a byte */
    FAULT_CLOSE_AFTER,  /* acts; closed without a byte */
    FAULT_HALF_STREAM, /* acts; closed after `tokens` tokens, or half of an answer that is no stream
                        */
    FAULT_STALL_STREAM,  /* acts; after `tokens` tokens, or half of an answer, nothing more comes */
    FAULT_STATUS,        /* answers `status`, `text`; acts only if `acts` */
    FAULT_RAW,           /* does not act; sends `text` unchanged and closes */
    FAULT_WRONG_VERSION, /* acts, then serves `label` when it answers */
    FAULT_RESTART        /* does not act: restarts, and listens again after `ms` */
};

struct fault {
    struct fault *next;
    char on[LABEL_MAX + 1]; /* an op, "METHOD /path", or "*" */
    enum fault_kind kind;
    unsigned nth, times; /* the first match, and the number of them; 0: all from there on */
    unsigned n_seen, n_fired;
    bool off, acts, reset; /* reset: closes with RST */
    uint64_t ms;
    int status;
    size_t n_tokens;
    char label[LABEL_MAX + 1];
    char *text; /* owned */
};

/* A received request and its outcome. */
struct entry {
    struct entry *next;
    struct conn *conn; /* NULL: the request has ended */
    uint64_t n, connection, nth_on_connection, came_us, ended_us;
    const char *op, *end; /* static; end NULL: open */
    const char *fault;    /* static, or NULL */
    char *head, *body;    /* owned; head: the lines as received */
    size_t head_len, body_len, body_nbytes;
    int status;
    bool executed;
    size_t n_tokens;
    char *versions; /* owned JSON array of the versions that made the tokens, or NULL */
};

/* ---- connections (engine_conn.c) ---- */

struct request {
    char *text; /* owned; the rest points into it */
    const char *method, *path, *query;
    const char *headers;
    size_t headers_len;
    const char *body;
    size_t body_len;
    bool close, http10;
};

enum step { STEP_NONE, STEP_IDLE, STEP_NEXT, STEP_ACT, STEP_ANSWER, STEP_TOKEN };

struct conn {
    struct engine *e;
    struct conn *next, **prev_next, *next_dead;
    int fd; /* -1: closed; the conn stays for its pending actions */
    uint32_t events;
    uint64_t id, n_requests;
    struct buf in, out;
    size_t sent;
    struct timer timer;
    enum step step; /* the purpose of the timer */
    bool dead;

    /* The current request. */
    bool busy, own, whole, held, close, draining; /* draining: a pause waits for running requests */
    struct request req;
    const struct route *route;
    const struct fault *fault;
    struct entry *entry;
    struct job *job;
};

struct route {
    unsigned dialects;
    const char *method, *path, *op;
    /* Answers by one of conn_reply*, or starts a job. @body  an object; {} without a body */
    void (*handle)(struct conn *c, const json_t *body);
    bool data; /* a route of the data plane */
};

void conn_accept(struct engine *e, int fd);
void conn_ready(struct conn *c, uint32_t events);
void conn_flush(struct conn *c);
/* conn_end - close it. @how  static; recorded as the end of the current request */
void conn_end(struct conn *c, const char *how);
void conn_arm(struct conn *c, enum step step, uint64_t due_us);

/* Send a whole reply, subject to the request's fault. conn_reply_json steals `body`. */
void conn_reply(struct conn *c, int status, const char *type, const void *body, size_t len);
void conn_reply_text(struct conn *c, int status, const char *text);
void conn_reply_json(struct conn *c, int status, json_t *body);
/* conn_refuse - an error in the dialect's form; the request counts as not executed.
 * @code  the code in a baton's form */
__attribute__((format(printf, 4, 5))) void conn_refuse(struct conn *c, int status, const char *code,
                                                       const char *fmt, ...);
/* conn_refuse_at - the same with the place of the mistake. @param  JSON pointer; only a baton's
 * reply has it */
__attribute__((format(printf, 5, 6))) void conn_refuse_at(struct conn *c, int status,
                                                          const char *code, const char *param,
                                                          const char *fmt, ...);
void conn_stream_begin(struct conn *c, const char *type);
void conn_chunk(struct conn *c, const void *data, size_t len);
void conn_stream_end(struct conn *c);

/* request_header - the value, not NUL-terminated, or NULL. */
const char *request_header(const struct request *r, const char *name, size_t *len);
/* request_query - copies a member of the query. False: it is missing. */
bool request_query(const struct request *r, const char *name, char *out, size_t cap);

/* ---- tokens (engine_data.c) ---- */

struct adapter {
    char name[LABEL_MAX + 1], path[1024];
    unsigned n_loads; /* loads of this name so far, also while it is not loaded */
    bool loaded;
};

/* job_is_live - will it still make tokens? @queued  also one that has not started */
bool job_is_live(const struct conn *c, bool queued);
bool job_is(const struct conn *c, const char *id);
void job_tick(struct conn *c);
void job_abort(struct conn *c);
void job_free(struct conn *c);
/* job_preempt - release its KV; it is recomputed with its next token. */
void job_preempt(struct conn *c);
/* job_preempted - has its KV been released and not been recomputed? */
bool job_preempted(const struct conn *c);
extern const struct route data_routes[];

/* ---- routed experts (engine_experts.c) ---- */

enum experts_form { EXPERTS_VLLM, EXPERTS_PRIME_RL, EXPERTS_SKYRL, EXPERTS_SGLANG };

/* put_experts - append the value of routed_experts, as JSON.
 * @tags   [n_rows], which version computed each row
 * @start  of the first row */
void put_experts(struct buf *b, enum experts_form form, const uint8_t *tags, size_t n_rows,
                 size_t start);

/* ---- the canary (engine_canary.c) ---- */

/* put_prompt_logprobs - append a vLLM's member: [null, {ID: {"logprob": …}, …}, …].
 * put_input_token_logprobs - an SGLang's: [[null, ID, null], [LOGPROB, ID, null], …].
 * @maker  a number for the weights that computed them */
void put_prompt_logprobs(struct buf *b, const uint32_t *prompt, size_t n, uint32_t maker);
void put_input_token_logprobs(struct buf *b, const uint32_t *prompt, size_t n, uint32_t maker);

/* ---- the prefix cache (engine_cache.c) ----
 * An entry is the KV of the first tokens of a prompt, and records which weights made it. Tokens
 * that are generated from an entry of other weights show it. A baton's double has no such cache: a
 * baton's is keyed by the weights. */

enum {
    CACHE_ENTRIES_MAX = 1 << 16,
    CACHE_KEYS_MAX = 64 /* tokens of a prompt used for the look-up */
};

struct cache_entry {
    uint64_t key, weights; /* key 0: free */
};

struct cache {
    struct cache_entry *entries; /* owned; [CACHE_ENTRIES_MAX], open addressing; NULL: none yet */
    size_t n;
    struct cache *storage; /* borrowed; second level: all entries that were ever in this one */
};

/* cache_use - get the KV of a prompt from the cache, and add the missing entries.
 * @keys     [n_keys], of the first 1, 2, ... tokens
 * @weights  make the missing entries
 * @stale    set when an entry of other weights was used
 * Returns: how many of the first tokens were found; never the last of the prompt. */
size_t cache_use(struct cache *c, const uint64_t *keys, size_t n_keys, uint64_t weights,
                 bool *stale);
void cache_reset(struct cache *c);
void cache_fini(struct cache *c);

/* ---- state (engine_state.c), and the routes of each dialect ---- */

enum phase { UPDATE_NONE, UPDATE_OPEN, UPDATE_VERIFIED, UPDATE_COMMITTED, UPDATE_ABORTED };
enum pause { PAUSE_NONE, PAUSE_KEEP, PAUSE_WAIT, PAUSE_ABORT };
enum { SLEEP_WEIGHTS = 1, SLEEP_KV = 2, SLEEP_ALL = 3 };

struct engine {
    struct options o;

    /* Lost by a restart. */
    char boot_id[ID_LEN + 1];
    double started_s;
    char label[LABEL_MAX + 1]; /* "": none */
    bool has_label, torn;      /* torn: weights were received that belong to no version yet */
    char whole[LABEL_MAX + 1]; /* the label of the last complete weights */
    uint64_t serial, epoch;    /* epoch: counts each change that affects tokens */
    uint64_t weights;          /* counts each change of the weights, with or without a label */
    struct cache cache, storage;
    enum phase phase;
    char update_id[ID_LEN + 8], update_label[LABEL_MAX + 1];
    bool update_partial;
    size_t n_received; /* requests with tensors in this update */
    json_t *group;     /* of the last init, or NULL */
    json_t *groups;    /* an SGLang's, by name; or NULL */
    bool packed;       /* of a vLLM: its init said that handles are packed */
    enum pause pause;
    char pause_owner[64]; /* of a baton */
    unsigned asleep;
    struct adapter adapters[ADAPTERS_MAX];

    /* Kept over a restart. */
    struct fault *faults;
    struct entry *journal, **journal_end;
    size_t n_entries, n_dropped;
    uint64_t n_requests, n_accepted, n_tokens_made, n_tokens_stale, n_boots;
    size_t n_conns, n_running; /* running: jobs that have started */

    int epoll_fd, listen_fd, signal_fd;
    bool stop;
    struct timer listen_timer;
    struct conn *conns, *dead;
    struct timer **heap;
    size_t n_heap, heap_cap;
};

void timer_set(struct engine *e, struct timer *t, uint64_t due_us);
void timer_cancel(struct engine *e, struct timer *t);
void engine_restart(struct engine *e, uint64_t down_ms);

void state_reset(struct engine *e);
void state_commit(struct engine *e, const char *label);    /* NULL: no label */
void state_set_label(struct engine *e, const char *label); /* the weights stay; "": no label */
bool is_unfinished(const char *label); /* is it baton's marker of an unfinished update? */
void state_touch(struct engine *e);
json_t *state_checksums(const struct engine *e, const char *prefix); /* new; of two parameters */
void state_weights_changed(struct engine *e); /* the weights were changed or dropped */
void state_preempt(struct engine *e);         /* all running requests */
/* state_holds_kv - does a request hold KV? @preempted  also one that was preempted */
bool state_holds_kv(const struct engine *e, bool preempted);
void state_pause(struct conn *c, enum pause pause); /* answers when it holds */
void state_resume(struct engine *e);
void state_sleep(struct engine *e, unsigned what);
void state_wake(struct engine *e, unsigned what);
void state_job_ended(struct engine *e); /* a job ended: a pending pause may be complete now */
size_t state_abort(struct engine *e, const json_t *ids, bool queued);
size_t state_waiting(const struct engine *e);
struct adapter *state_adapter(struct engine *e, const char *name); /* a loaded one */
struct adapter *state_adapter_load(struct engine *e, const char *name, const char *path);
bool state_init(struct conn *c, const json_t *info, bool port_may_be_text); /* false: refused */
/* state_columns - check the columns of a tensor list; refuses the request if they are wrong. */
bool state_columns(struct conn *c, const json_t *body, const char *names, const char *dtypes);
unsigned state_tags(const json_t *body); /* memory tags: SLEEP_*; all if none are given */
json_t *baton_pause_json(const struct engine *e);
void reply_empty(struct conn *c, const json_t *body);

extern const struct route baton_routes[], vllm_routes[], sglang_routes[];

const char *text_member(const json_t *body, const char *name, const char *otherwise);
uint64_t int_member(const json_t *body, const char *name, uint64_t otherwise);
bool true_member(const json_t *body, const char *name);
void put_string(struct buf *b, const char *text); /* as JSON */

const struct fault *fault_take(struct engine *e, const char *op, const struct request *r);
const char *fault_name(enum fault_kind kind);
struct entry *journal_add(struct conn *c, const char *op);
void journal_end(struct conn *c, const char *how);
void journal_free(struct engine *e);
/* own_route - serve the double's own routes. False: the path is none of them. */
bool own_route(struct conn *c);

#endif

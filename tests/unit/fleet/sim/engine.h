/* Doubles of vLLM, SGLang and baton: what an engine is, and what it does when it is asked. Each
 * request comes as it would over the network, and so does each answer. */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_ENGINE_H
#define BATON_TESTS_UNIT_FLEET_SIM_ENGINE_H

#include "fleet/api/upstream_api.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TORN = -1, /* weights: of no version */
    NO_ENTRY = -1,
    REPLY_MAX = 1024
};

/* What it cached was made with these; NO_ENTRY: nothing. */
struct caches {
    int prefix, encoder, storage;
};

/* Requests of one sort that are under way; of two at the same time it is not known which came last.
 */
struct calls {
    unsigned n;
    bool overlap;
};

struct engine {
    enum upstream_kind kind;
    bool knows_start; /* else an SGLang of an old release */
    bool up;
    unsigned process;
    unsigned seen; /* the last one of which the fleet has heard, ... */
    uint64_t seen_us;
    char label[API_VERSION_MAX + 1];
    int weights;     /* the version that it had before `chunks` came; TORN: of none */
    int target;      /* of the update that `chunks` belong to */
    unsigned chunks; /* a bit for each */
    bool dropped;    /* by a sleep; then they are torn, too */
    bool open;       /* its own update */
    char own_id[API_UPDATE_ID_MAX + 1], committed_id[API_UPDATE_ID_MAX + 1];
    unsigned n_own;
    bool paused, weights_asleep, kv_asleep;
    char pause_owner[64];
    struct caches caches;
    int adapter;  /* its revision; 0: it has none */
    int answered; /* the revision of its last load that was answered well ... */
    uint64_t answered_us, answered_incarnation;
    int refused;             /* the revision whose load was refused last, on the way */
    struct calls changes;    /* loads and unloads */
    struct calls gates;      /* pauses and resumes */
    uint64_t not_resumed_us; /* its last resume has failed, and that was answered; 0: no */
    unsigned n_held;         /* requests that a pause holds */
    int held_kv;             /* what their KV was computed with; NO_ENTRY: it is computed again */

    unsigned refuses, breaks, denies; /* operations that it answers with 500, a bit each; that it
                                         executes all the same; that another status refuses */
    unsigned n_asked[API_OPS];

    /* For what may be asked of it. */
    unsigned n_queries;  /* under way ... */
    unsigned reported;   /* the process that has answered one of them with its name; 0: none */
    bool unreported;     /* one of them has failed */
    unsigned n_resyncs;  /* under way: what they hear counts at their end */
    unsigned n_finishes; /* requests to finish that are under way */
    int lost_target;     /* of tensors whose answer was lost; 0: none */
    uint64_t marked_at;  /* turn of its last marker or start */
    unsigned last_sent;  /* tensors: a bit for each chunk that came ... */
    int last_target;     /* ... of this update */
    unsigned attempt;    /* ... of those of this server */
    unsigned stray;      /* process that got tensors before it was seen */
    bool was_removed;    /* since it was started */
    bool released;       /* it was resumed while it was removed, and not paused since: what it holds
                            goes on, once it is awake */
    uint64_t added_us;   /* when it was added again last */
    int left;            /* the update that was open when it was removed: it gets the rest of that,
                            also if it was added again; 0: none */
    bool unclosed;       /* an end without tensors was refused as if none were open */
    bool unnamed;        /* a request for its version has failed: it may lack a marker */
};

/* engine_start - as it is when its process has begun: it serves version 0. */
void engine_start(struct engine *g);

/* engine_version - of the weights that it would generate with. */
int engine_version(const struct engine *g);
bool engine_overwrites(const struct engine *g);
bool engine_runs(const struct engine *g);

/* What it answers. */
struct reply {
    int status;
    char text[REPLY_MAX];
};

/* engine_operation - which operation does this request ask for? API_OPS: it is a query.
 * engine_ask - do it. */
enum api_op engine_operation(const struct engine *g, const char *path);
void engine_ask(struct engine *g, const char *path, const char *body, struct reply *out);

/* engine_token - a request of a client, or a probe; it is held if the engine stands still. */
void engine_token(struct engine *g, bool of_client);

/* engine_take - tensors of this update; @attempt  of this server's own; 0: of a trainer.
 * engine_take_part - of tensors: they came in part, and the rest will not. */
void engine_take(struct engine *g, int target, unsigned attempt, unsigned chunk);
void engine_take_part(struct engine *g);

/* engine_name - of its process of this number. */
void engine_name(const struct engine *g, unsigned process, char *out, size_t cap);

#endif

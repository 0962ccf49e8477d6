/* What is known about one process of an engine.
 *
 * Two rules make these facts safe to act on. Doubt first: before the first byte of a request that
 * changes something, have_doubt makes what it changes unknown; only an answer makes it known again
 * (have_answer). So a lost answer, a cancelled request and a forgotten error path are one case.
 * And one process: facts are of one process of the engine; have_reset begins those of another.
 *
 * Facts begin as "not ours": what others did to an engine is shown, and is not undone. Pure
 * functions: nothing is sent. Threads: the one that owns the engine; nothing blocks. */
#ifndef BATON_TESTS_MODEL_HAVE_H
#define BATON_TESTS_MODEL_HAVE_H

#include "fleet/api/upstream_api.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The 0 of each enum is "unknown": it may be anything, because a request of ours was sent. */
enum gate_fact { GATE_UNKNOWN, GATE_NOT_OURS, GATE_RUNNING, GATE_KEPT, GATE_ABORTED, GATE_WAITED };
enum sleep_fact { SLEEP_UNKNOWN, SLEEP_NOT_OURS, SLEEP_AWAKE, SLEEP_ASLEEP };
enum own_fact {
    OWN_UNKNOWN,
    OWN_NOT_OURS,
    OWN_CLOSED,
    OWN_OPEN,
    OWN_NO_ROUTE /* this release has no such call, and needs none */
};
enum weights_fact {
    WEIGHTS_UNKNOWN,      /* the next report of its version says */
    WEIGHTS_SERIAL,       /* those of one version of the fleet */
    WEIGHTS_OTHER,        /* whole, but of none that is known here */
    WEIGHTS_TORN,         /* a part of an update may have been written over them */
    WEIGHTS_WERE_DROPPED, /* a sleep of level 2 dropped them */
    WEIGHTS_WRONG         /* a proof found them wrong */
};
enum adapter_fact {
    ADAPTER_UNKNOWN, /* it may have another one under this name */
    ADAPTER_NONE,
    ADAPTER_THIS,
    ADAPTER_REFUSED /* it has none: it refused to load this revision */
};

struct adapter_have {
    enum adapter_fact state;
    uint32_t revision; /* with ADAPTER_THIS and ADAPTER_REFUSED */
};

/* What an engine cached. Numbers count the changes of its weights, and of adapters that it knows by
 * name only; 0: never emptied by this server. */
struct cache_facts {
    uint64_t needed;  /* the last change */
    uint64_t tried;   /* was asked to empty them since this one */
    uint64_t emptied; /* of prefixes: has no entry older than this one */
    uint64_t second;  /* the same of a vLLM's encoder outputs, and of an SGLang's storage */
};

struct engine_have {
    enum gate_fact pause;
    struct {
        enum sleep_fact weights, kv;
    } sleep;
    struct {
        enum own_fact state;
        uint64_t update; /* the fleet's update to which an open one belongs */
    } own;
    struct {
        enum weights_fact state;
        uint64_t serial; /* with WEIGHTS_SERIAL */
    } weights;
    struct {
        bool read;     /* `text` is what this process reports, as nothing was sent to it since */
        bool no_route; /* it can neither report nor take one */
        char text[API_VERSION_MAX + 1];
        char before[API_VERSION_MAX + 1]; /* while not read: it may still have this one */
        char old[API_VERSION_MAX + 1];    /* before the last marker of this server; "": none */
    } label;
    struct cache_facts caches;
    uint64_t packing; /* the set-up of handles that it has; 0: unknown */
    uint64_t groups;  /* of the trainer that it joined: a bit for each */
    uint64_t proof;   /* the last one that it passed */
    struct adapter_have
        *adapters; /* [n_adapters], by their number in the fleet; owned by the engine */
    size_t n_adapters;
};

/* A kind of request that changes facts, or reads them. */
enum engine_request {
    REQUEST_PAUSE,
    REQUEST_RESUME,
    REQUEST_SLEEP,
    REQUEST_WAKE,
    REQUEST_READ_SLEEP,
    REQUEST_READ_LABEL,
    REQUEST_SET_LABEL,
    REQUEST_PACKING,
    REQUEST_START,
    REQUEST_TENSORS,
    REQUEST_VERIFY, /* the whole update, before it is served: two-phase engines only */
    REQUEST_FINISH,
    REQUEST_CLOSE, /* end its own update, whatever it belongs to */
    REQUEST_RESET_PREFIX,
    REQUEST_RESET_ENCODER,
    REQUEST_RESET_STORAGE,
    REQUEST_LOAD,
    REQUEST_UNLOAD,
    REQUEST_PROVE,
    REQUEST_REPAIR, /* not sent to the engine: the hand-off gives it the fleet's version */
    REQUESTS
};
const char *engine_request_name(enum engine_request request); /* static */

enum { SLEEP_OF_WEIGHTS = 1, SLEEP_OF_KV = 2, SLEEP_OF_ALL = 3 };

struct call {
    enum engine_request request;
    enum gate_fact mode; /* of a pause */
    unsigned sleep_of;   /* SLEEP_OF_*: of a sleep or wake */
    unsigned level;      /* of a sleep */
    const char *label;   /* borrowed; to set, or to report after the finish */
    uint64_t update;     /* of a start */
    uint64_t serial;     /* of a finish */
    uint64_t number;     /* of a chunk, a set-up for handles, a proof */
    size_t adapter;
    uint32_t revision;
};

enum answer {
    ANSWER_LOST,    /* none came: executed, or not, or later */
    ANSWER_UNSENT,  /* it was not sent, or refused before anything was touched */
    ANSWER_REFUSED, /* not executed; of tensors: a part of them may be */
    ANSWER_NOTHING, /* there is nothing to end or to unload */
    ANSWER_NO_ROUTE,
    ANSWER_GOOD
};

/* What a good answer reports. */
struct reply {
    const char *label;  /* borrowed; of REQUEST_READ_LABEL */
    uint64_t serial;    /* of the fleet's version that it serves, by what it reports; 0: none */
    bool weights_awake; /* of REQUEST_READ_SLEEP */
    bool kv_awake;
    bool faulty;     /* of REQUEST_PROVE */
    bool overlapped; /* a pause and a resume were under way together: no answer of them counts */
};

/* What a request made unknown, so that a refusal can give it back. */
struct have_before {
    enum gate_fact pause;
    enum sleep_fact sleep_weights, sleep_kv;
    enum own_fact own;
    enum weights_fact weights;
};

/* have_init - nothing is known of the engine: not ours.
 * @adapters  [n], borrowed until the engine ends */
void have_init(struct engine_have *have, struct adapter_have *adapters, size_t n);

/* have_reset - begin the facts of another process of a known engine. Where a restart cannot be told
 * from a wrong guess (the process does not name itself), what this server changed is unknown.
 * @sent  a bit for each enum engine_request that was sent since the process before was last seen:
 *        the new one may have executed it, whatever the answer was */
void have_reset(struct engine_have *have, enum upstream_kind kind, uint32_t sent);

/* have_doubt - the call is about to be sent. @before  for have_answer */
void have_doubt(struct engine_have *have, enum upstream_kind kind, const struct call *call,
                struct have_before *before);

/* have_answer - it was answered, or the answer is lost.
 * @reply  with ANSWER_GOOD; else ignored */
void have_answer(struct engine_have *have, enum upstream_kind kind, const struct call *call,
                 enum answer answer, const struct have_before *before, const struct reply *reply);

/* have_token - it has made a token, so that it is awake and runs. An engine that reports neither
 * is known by that only; `since_change`: the request began after the last request of ours. */
void have_token(struct engine_have *have, bool since_change);

bool gate_is_closed(enum gate_fact fact); /* by a pause of ours */
bool have_caches_emptied(const struct engine_have *have, enum upstream_kind kind);
bool label_is_marker(const char *label); /* of any update */

#endif

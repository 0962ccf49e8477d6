/* Proof on the engine: after each update every engine that overwrites what it serves (vLLM, SGLang)
 * is asked for the log-probabilities of a fixed prompt (a canary), and if --prove says so for the
 * checksums of its parameters. Answers of engines of one version are compared
 * (fleet/proof/proof_verdict.h), and an engine that is faulty is fenced, so that a whole update or
 * a hand-off repairs it.
 *
 * Nothing waits for it. The requests are sent by the upstreams' loop, once the engine may generate
 * again: not while it is paused or asleep. A newer version, a pause or a restart ends those under
 * way. An engine that is full answers late; until then it is unproven, which is no fault.
 *
 * Rejected: jobs of an executor, as in fleet/fleet_reconcile.h. An engine that is full holds its
 * answer back for as long as it likes, and would hold a thread. */
#ifndef BATON_FLEET_PROOF_FLEET_PROOF_H
#define BATON_FLEET_PROOF_FLEET_PROOF_H

#include "base/err.h"
#include "base/loop.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"
#include "fleet/members/upstream_fanout.h"
#include "fleet/proof/proof_verdict.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;

enum fleet_prove { FLEET_PROVE_NONE, FLEET_PROVE_CANARY, FLEET_PROVE_CHECKSUMS };

/* fleet_prove_parse - "none", "canary", "checksums". Errors: ERR_BAD_REQUEST at `field`. */
int fleet_prove_parse(enum fleet_prove *out, const char *name, const char *field, struct err *e);

/* One engine. Guarded by the control's lock. */
struct fleet_prover {
    struct fleet_control *fc; /* immutable, and so is the next one */
    size_t upstream;
    uint64_t wanted; /* a new number for each of its updates; 0: nothing is to prove */
    uint64_t incarnation, serial;
    char label[FLEET_LABEL_MAX + 1];
    enum proof_answer canary, checksums;
    double values[API_CANARY_VALUES]; /* of the canary, if it is PROOF_VALUE */
    json_t *sums;                     /* of checksums, if PROOF_VALUE; owned; NULL: none */
    uint64_t sums_digest;
    struct proof_verdict verdict, sums_verdict;
    enum proof_state state;   /* of both */
    bool faulty;              /* by either */
    bool compared;            /* it serves what is to prove */
    bool asked_again;         /* its canary was faulty once, and all were asked again */
    uint64_t due_us, wait_us; /* no request before; delay after the next failure */
    unsigned n_faults;        /* verdicts that it is faulty, with this process and version */
    uint64_t n_results[PROOF_STATES];

    /* of the loop's thread */
    struct upstream_fanout *fanout; /* NULL: no request is under way */
    enum api_query query;
    uint64_t asked; /* `wanted` when it was sent */
};

struct fleet_provers {
    struct fleet_prover list[FLEET_MAX];
    uint64_t n_wanted; /* the last number given */
    bool judge;        /* an answer has come, or an engine is not compared any more */

    struct loop_item item; /* of the loop's thread, and so is the next one */
    struct loop_timer timer;
};

/* fleet_proof_init, fleet_proof_fini - part of fleet_control_new and fleet_control_free. */
void fleet_proof_init(struct fleet_control *fc);
void fleet_proof_fini(struct fleet_control *fc);

/* fleet_proof_stop - end the requests under way. After upstreams_stop, before upstreams_free.
 * Threads: main. Repeating is harmless. */
void fleet_proof_stop(struct fleet_control *fc);

/* fleet_proof_want - the engine has got the fleet's version just now: prove it. Engines with two
 * phases prove themselves; for them, and with --prove none, this does nothing.
 * Threads: any; no lock held. Blocks: no. */
void fleet_proof_want(struct fleet_control *fc, size_t upstream);

/* fleet_proof_is_beyond_repair - was the engine found faulty, got the same version once more, and
 * was found faulty again? Then only another version, or its restart, is worth another try. Threads:
 * any; no lock held. */
bool fleet_proof_is_beyond_repair(struct fleet_control *fc, size_t upstream);

/* fleet_proof_json - for the status (new): null: nothing is to prove. NULL: no memory. */
json_t *fleet_proof_json(struct fleet_control *fc, size_t upstream);

/* fleet_proof_counts - results so far, by state. Threads: any; no lock held. */
void fleet_proof_counts(struct fleet_control *fc, size_t upstream, uint64_t out[PROOF_STATES]);

#endif

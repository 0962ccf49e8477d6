/* Proof on the engine: every engine that overwrites what it serves (vLLM, SGLang) is asked for the
 * log-probabilities of a fixed prompt (a canary), and if --prove says so for the checksums of its
 * parameters: after each update, and whenever it comes to serve the fleet's version by its name
 * alone, since the fleet took that version, or it joined or was restarted. Answers of engines of
 * one version are compared (fleet/proof/proof_verdict.h), and an engine that is faulty is fenced,
 * so that a whole update or a hand-off repairs it.
 *
 * Nothing waits for it. The requests are sent by the upstreams' loop, once the engine may generate
 * again: not while it is paused or asleep. A newer version, a pause or a restart ends those under
 * way. An engine that is full answers late; until then it is unproven, which is no fault.
 *
 * Checksums are read by a job of an executor, one engine at a time, since there may be many. With
 * --stage it also compares them with the committed bytes (fleet/proof/proof_committed.h).
 *
 * Rejected: to wait for answers in jobs of an executor, as in fleet/want/fleet_reconcile.h. An
 * engine that is full holds its answer back for as long as it likes, and its job would count as a
 * control request that waits (--control-queue). */
#ifndef BATON_FLEET_PROOF_FLEET_PROOF_H
#define BATON_FLEET_PROOF_FLEET_PROOF_H

#include "base/err.h"
#include "base/jobs/workers.h"
#include "base/loop.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"
#include "fleet/members/retry.h"
#include "fleet/members/upstream_fanout.h"
#include "fleet/proof/proof_committed.h"
#include "fleet/proof/proof_sums.h"
#include "fleet/proof/proof_verdict.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;
struct http_request;

enum fleet_prove { FLEET_PROVE_NONE, FLEET_PROVE_CANARY, FLEET_PROVE_CHECKSUMS };

/* fleet_prove_parse - "none", "canary", "checksums". Errors: ERR_BAD_REQUEST at `field`. */
int fleet_prove_parse(enum fleet_prove *out, const char *name, const char *field, struct err *e);

/* One engine. Guarded by the control's lock, but for the last member. */
struct fleet_prover {
    struct fleet_control *fc;  /* immutable, and so is the next one */
    struct upstream *upstream; /* the engine itself; counted for each request and job under way */
    uint64_t wanted;           /* a new number for each of its updates; 0: nothing is to prove */
    uint64_t incarnation, serial;
    char label[FLEET_LABEL_MAX + 1];
    bool with_checksums; /* its checksums are asked for too */
    enum api_answer canary, checksums;
    double values[API_CANARY_VALUES]; /* of the canary, if it is API_ANSWER_VALUE */
    struct proof_sums *sums; /* of checksums, if API_ANSWER_VALUE; a reference; NULL: none */
    size_t n_sums;
    bool has_compared; /* `compared_bytes` is of `sums` */
    struct proof_compared compared_bytes;
    struct proof_sums *before; /* compared last, of the process `before_of`; a reference; or NULL */
    uint64_t before_of;
    bool told_different; /* that some of that process differ, which may be no fault */
    struct proof_verdict verdict, sums_verdict; /* of the canary, of checksums */
    enum proof_state state;                     /* of both */
    bool faulty;                                /* by either */
    bool compared;                              /* it serves what is to prove */
    bool asked_again; /* its canary was faulty once, and all were asked again */
    struct retry retry;
    unsigned n_faults; /* verdicts that it is faulty, with this process and version */
    uint64_t n_results[PROOF_STATES];
    unsigned n_holds;    /* no canary is sent meanwhile */
    bool reading;        /* a job reads checksums */
    enum api_query sent; /* API_GENERATE_CANARY or API_GET_CHECKSUMS, while it is under way */
    uint64_t asked;      /* `wanted` when it was sent */

    struct upstream_fanout *fanout; /* of the loop's thread; NULL: no request is under way */
};

struct fleet_provers {
    uint64_t n_wanted;        /* the last number given */
    unsigned n_holds;         /* of all engines: no canary is sent meanwhile */
    uint64_t asking_until_us; /* fleet_proof_ask is under way, and ends by then; 0: none is */
    bool judge;               /* an answer has come, or an engine is not compared any more */

    struct proof_committed *committed; /* owned; of the job; NULL: no bytes are committed here */
    atomic_bool stopping;              /* relaxed: jobs end early */

    struct upstream_fanout *under_way; /* of the loop's thread, and so is the next one */
    struct loop_item item;             /* a look at proofs alone, when something has come */
};

/* fleet_proof_init, fleet_proof_fini - part of fleet_control_new and fleet_control_free.
 * Errors: ERR_NO_MEMORY. */
int fleet_proof_init(struct fleet_control *fc, struct err *e);
void fleet_proof_fini(struct fleet_control *fc); /* repeating is harmless */
void fleet_prover_fini(struct fleet_prover *p);  /* part of the end of an engine */

/* fleet_proof_look - ask what is to be asked, also engines that serve the fleet's version without
 * an update, unless there is --prove none; and judge what was answered. Threads: the loop's, at
 * each look at all engines (fleet/fleet_root.c); no lock held. Blocks: no. */
void fleet_proof_look(struct fleet_control *fc);

/* fleet_proof_stop - end the requests under way, and soon the job. After upstreams_stop, before the
 * executors stop.
 * Threads: main. Repeating is harmless. */
void fleet_proof_stop(struct fleet_control *fc);

/* fleet_proof_want - the engine has got the fleet's version just now, also if it had it: prove it.
 * Engines with two phases prove themselves; for them, and with --prove none, this does nothing.
 * Threads: any; no lock held. Blocks: no. */
void fleet_proof_want(struct fleet_control *fc, struct upstream *upstream);

/* fleet_proof_is_beyond_repair - was the engine found faulty, got the same version once more, and
 * was found faulty again? Then only another version, or its restart, is worth another try. Threads:
 * any; no lock held. */
bool fleet_proof_is_beyond_repair(struct fleet_control *fc, struct upstream *upstream);

/* fleet_proof_hold - send no canary until fleet_proof_release: a vLLM ends if what asks for
 * prompt_logprobs is preempted, as a reset of its cache does it, at once or in a pause by `keep`
 * (0.24: "assert not prompt_logprobs_tensors"). Hold before engines are paused, and release when it
 * is known that they are; or hold around the reset. Holds add up.
 * @upstream  NULL: all. Threads: any; no lock held. Blocks: no.
 * fleet_proof_await - wait for the canaries that are under way at engines that are held. Threads:
 * any but the loop's; no lock held. Blocks: up to 2 s in all, for engines that serve. */
void fleet_proof_hold(struct fleet_control *fc, struct upstream *upstream);
void fleet_proof_await(struct fleet_control *fc);
void fleet_proof_release(struct fleet_control *fc, struct upstream *upstream);

/* What a client asks to prove. */
struct fleet_proof_request {
    const char *upstream; /* its name; NULL: each vLLM and SGLang that serves */
    bool checksums;       /* of its parameters too */
    uint64_t timeout_us;
    const struct life *life;         /* borrowed: a server that drains does not wait */
    const struct upstream_list *all; /* of upstreams_list: those that may be asked */
};

/* fleet_proof_ask - prove upstreams now, whatever --prove says, and wait for the verdicts. What
 * they are fleet_proof_get says; one without a verdict by then is unproven.
 * @x      the request whose client waits
 * @asked  [r->all->n], of 0: other numbers for those that were
 * Threads: any but the loop's; no lock held. Blocks: up to timeout_us.
 * Errors: ERR_NOT_FOUND; ERR_BAD_REQUEST at /upstream: a baton; ERR_CONFLICT: another such request
 *         is under way, or no upstream that may be asked serves the fleet's version;
 *         ERR_PAUSED, ERR_ASLEEP: they may not generate; ERR_GONE, ERR_DRAINING. */
int fleet_proof_ask(struct fleet_control *fc, struct http_request *x,
                    const struct fleet_proof_request *r, uint64_t *asked, struct err *e);

/* fleet_proof_get - what is known of an engine's proof. Threads: any; no lock held.
 * @out  a copy of what the lock guards; its pointers are not used
 * Returns: false: nothing is to prove. */
bool fleet_proof_get(struct fleet_control *fc, struct upstream *upstream, struct fleet_prover *out);

/* fleet_proof_warning - do engines that serve differ, and no majority agrees, so that clients get
 * tokens of weights of which some are wrong? Threads: any; no lock held.
 * @e  clean; if true it is set: which engines, and what to do */
bool fleet_proof_warning(struct fleet_control *fc, struct err *e);

#endif

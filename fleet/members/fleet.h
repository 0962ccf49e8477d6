/* The state of the upstream engines: which ones exist, what is known of each, and which one gets
 * the next request.
 *
 * Nothing here does I/O. Code that talks to an engine reports the outcome, and the reports alone
 * decide whether the engine is in rotation, that is, whether it gets requests: unless there is a
 * reason against it (upstream_state.h). An engine is synced if it serves the fleet's version, which
 * is the last one committed through this server. One that restarts, or reports another label, is
 * not synced until the next update or a resync. Before the first update the fleet's version is the
 * one that most engines report (fleet_decide.c); no engine is synced until that is decided. A baton
 * whose update failed at the very end is fenced until it reports that update (fleet_expect_update).
 *
 * Permits are counted for each engine and queue (generate, text); there is one queue of waiting
 * requests for each of the two. A request of a session goes to the session's own engine unless that
 * engine has more than its share (rendezvous hashing with bounded load); other requests go to the
 * engine with the fewest outstanding requests. */
#ifndef BATON_FLEET_MEMBERS_FLEET_H
#define BATON_FLEET_MEMBERS_FLEET_H

#include "base/err.h"
#include "base/ticket_queue.h"
#include "fleet/api/upstream_report.h"
#include "fleet/members/have.h"
#include "fleet/members/upstream.h"
#include "fleet/members/upstream_state.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FLEET_MAX = 256,         /* engines, the removed ones included */
    FLEET_FAILURES_DOWN = 3, /* in a row; once it has answered, a refused connection is enough */
    FLEET_PROBE_FAILURES_MAX = 10, /* probes in a row, even if clients got replies meanwhile */
    FLEET_REPORTS_MAX = 10,        /* state changes of one engine that are reported within ... */
    FLEET_REPORTS_US = 60000000,   /* ... this time */
    FLEET_VERSIONS_MAX = 8,        /* that are kept, and may follow each other in one reply */
    FLEET_LOAD_PERCENT = 125       /* of the fair share: how much affinity may load one engine */
};

enum fleet_queue { FLEET_GENERATE, FLEET_TEXT, FLEET_QUEUES };

/* fleet_queue_name - in metrics and in the log: "generate" or "text". */
const char *fleet_queue_name(enum fleet_queue queue);

struct fleet;

/* fleet_is_dirty_marker - does the label begin with the dirty marker? */
bool fleet_is_dirty_marker(const char *label);

/* A change of an engine's state. Changes of one engine are reported in their order, unless two
 * threads make them at the same moment. */
struct fleet_state_change {
    const char *name;
    enum upstream_state from, to;
    char label[FLEET_LABEL_MAX + 1]; /* of the weights that it serves, as far as known */
    struct err why;                  /* clean: it serves */
    bool is_last;          /* the last one within FLEET_REPORTS_US: later ones wait until its end */
    uint64_t n_unreported; /* changes since the last report that were left out */
};

struct fleet_cfg {
    size_t n_upstreams; /* 0.. FLEET_MAX, at the start */
    /* [n_upstreams], each borrowed until fleet_free */
    const struct upstream_config *const *configs;
    size_t n_permits[FLEET_QUEUES];   /* of each engine */
    size_t n_queue_max[FLEET_QUEUES]; /* waiting requests, of the whole fleet */
    size_t min_ready;                 /* 1.. */
    bool staged;         /* this server has a copy of the version, and repairs engines from it */
    const char *boot_id; /* this server's; borrowed until fleet_free; NULL: not known */
    /* What runs at some engines is not reliable any more and may never end (fleet_is_lost); or no
     * engine is in rotation any more, or requests were aborted: some wait in vain. Called without a
     * lock, on any thread; must not block. May be NULL. */
    void (*left_rotation)(void *arg);
    /* The state of one engine has changed. Called like left_rotation. May be NULL. */
    void (*state_changed)(void *arg, const struct fleet_state_change *change);
    void *arg;
};

/* fleet_new - make the table; no engine is alive yet. Errors: ERR_NO_MEMORY. */
int fleet_new(struct fleet **out, const struct fleet_cfg *cfg, struct err *e);

/* fleet_free - no request may be queued or hold a permit. Accepts NULL. */
void fleet_free(struct fleet *f);

/* fleet_remedy - what gives an engine the fleet's version again, for a message: "push a whole
 * update", or that this server does it. Static. Threads: any; no lock is needed. */
const char *fleet_remedy(const struct fleet *f);

/* ---- members ---- */

/* fleet_list - all engines (a reference). Threads: any. */
struct upstream_list *fleet_list(struct fleet *f);

/* fleet_list_by - the same. Blocks: until the deadline at most; as true of fleet_info_by and
 * fleet_stats_by below. Errors: of mtx_lock_by; *out untouched. */
int fleet_list_by(struct fleet *f, uint64_t deadline_us, struct upstream_list **out, struct err *e);

/* fleet_add - add an engine of which nothing is known, or one that was removed before. If the fleet
 * has a version already, the engine is not synced: before the first update until it reports that
 * version, later until the next update or a resync.
 * @u      it has a configuration
 * @grown  memory for the list with it (upstream_list_new); moved in. NULL: it is in the list
 * @drop   leaves the list, to make place; NULL: none
 * Threads: one at a time; also true of the next two functions. */
void fleet_add(struct fleet *f, struct upstream *u, struct upstream_list *grown,
               const struct upstream *drop);

/* fleet_remove - send it no more requests; those that run there may finish. */
void fleet_remove(struct fleet *f, struct upstream *upstream);

/* fleet_set_min_ready - how many engines have to serve. */
void fleet_set_min_ready(struct fleet *f, size_t min_ready);

/* ---- reports ---- */

/* fleet_probe_ok - a probe succeeded. Labels are not compared while an update runs. It counts as
 * one that failed if fleet_reject_alias rejects report->identity. Threads: any. */
void fleet_probe_ok(struct fleet *f, struct upstream *upstream,
                    const struct upstream_report *report);

/* fleet_reject_alias - a probe was answered by the process of this identity. If that is this server
 * itself, or an engine that joined earlier under another URL, the probe failed and the engine is
 * down at once. Returns: was it rejected? Threads: any.
 * @identity  as in upstream_report */
bool fleet_reject_alias(struct fleet *f, struct upstream *upstream, const char *identity);

/* fleet_doubt - the operation is about to be sent to the engine: what it changes there is unknown
 * until fleet_answer, which each call of this needs, also if nothing was sent in the end.
 * @args    NULL: none
 * @before  out; for fleet_answer
 * fleet_answer - @digest  of the files of an adapter that it has loaded; NULL: it does not say
 * Returns: false: it has loaded other files than the engine that answered first, so what it has is
 * not known to be the fleet's.
 * Threads: any. */
void fleet_doubt(struct fleet *f, struct upstream *upstream, enum api_op op,
                 const struct api_args *args, struct have_before *before);
bool fleet_answer(struct fleet *f, struct upstream *upstream, enum api_op op,
                  const struct api_args *args, const struct have_before *before,
                  enum have_answer answer, const char *digest);

/* fleet_check_process - a reply (to a client, or to a step of an update) named the process that
 * made it. If this is not the known process, the engine has restarted: it is not synced any more,
 * and the new process becomes the known one, unless another one became known since the request was
 * sent: then it may be an earlier one.
 * @incarnation  of the engine, when the request was sent
 * Returns: is it the known process? Threads: any. */
bool fleet_check_process(struct fleet *f, struct upstream *upstream, uint64_t incarnation,
                         const char *process);

/* fleet_may_report_version - may a reply to a client name this version? No if the fleet has another
 * version and already had it when the request was sent: then the engine no longer serves what it
 * was synced to. If the version has changed since, it is for the update to check the engine.
 * @weights_epoch  fleet_weights_epoch when the request was sent. Threads: any. */
bool fleet_may_report_version(struct fleet *f, const char *label, uint64_t weights_epoch);

/* fleet_request_failed - a request of a client failed, or a generation probe.
 * fleet_probe_failed - a status probe failed, or its reply was malformed.
 * @refused  the connection was refused: the engine is down at once */
void fleet_request_failed(struct fleet *f, struct upstream *upstream, bool refused,
                          const struct err *why);
void fleet_probe_failed(struct fleet *f, struct upstream *upstream, bool refused,
                        const struct err *why);

/* fleet_count_failure - the engine failed a request of an operation or of an update: it is counted,
 * and nothing else follows. */
void fleet_count_failure(struct fleet *f, struct upstream *upstream);

/* fleet_auth_failed - the engine rejected our key, for a probe (FLEET_AUTH_PROBE: holds until
 * fleet_probe_ok) or for a request of a client (FLEET_AUTH_REQUEST: holds until fleet_auth_ok).
 * Requests that run there may finish.
 * @why  of ERR_UPSTREAM_KEY */
enum fleet_auth { FLEET_AUTH_PROBE, FLEET_AUTH_REQUEST };
void fleet_auth_failed(struct fleet *f, struct upstream *upstream, enum fleet_auth what,
                       const struct err *why);
void fleet_auth_ok(struct fleet *f, struct upstream *upstream);

/* fleet_set_updating - an update begins to change what engines serve (on), or has ended without a
 * new version, or with one (off). Meanwhile the dirty marker puts no engine out of sync.
 * fleet_begin_naming - the same, and engines are about to report another name of the version: since
 * this, or fleet_begin_switch, no label does. */
void fleet_set_updating(struct fleet *f, bool on);
void fleet_begin_naming(struct fleet *f);

/* What stands still at all engines. */
struct fleet_still {
    bool quiesced;        /* an engine that is not alive as this begins, or that restarts meanwhile,
                             gets no requests until it ends or until fleet_confirm_quiesced */
    bool holds_generates; /* they wait here, if they could only go to engines that do not keep
                             requests back while they are paused: one that waits inside a paused
                             engine might read what that engine cached before the pause */
    bool no_probes;       /* that generate a token, since none would come */
    uint64_t order;       /* of the decision: an earlier one is ignored */
};

/* fleet_set_still - the engines are about to be quiesced, or to resume. Call it before the pause is
 * sent. Threads: any. */
void fleet_set_still(struct fleet *f, const struct fleet_still *still);

/* fleet_confirm_quiesced - an engine that had missed the pause is quiesced now.
 * @incarnation  of upstream_info, read before it was paused; ignored if the engine has restarted
 *               since */
void fleet_confirm_quiesced(struct fleet *f, struct upstream *upstream, uint64_t incarnation);

/* fleet_weights_epoch - a number that changes with each fleet_set_updating, fleet_begin_switch,
 * fleet_switch_version, fleet_repair_version, fleet_set_label and fleet_resync. A label from a
 * reply whose request was sent under another number may be outdated. */
uint64_t fleet_weights_epoch(struct fleet *f);

/* fleet_want_sleep - what of all engines is to sleep: before they are asked to sleep, and after
 * they were asked to wake. One that may sleep otherwise is out of rotation. */
void fleet_want_sleep(struct fleet *f, bool weights, bool kv);

/* fleet_found_awake - as have_found_awake.
 * @change  have.change of upstream_info, when it was asked */
void fleet_found_awake(struct fleet *f, struct upstream *upstream, uint64_t change);

/* fleet_slept - the engines in `asked` were put to sleep, or woken, by requests (fleet_answer). The
 * others get that when they answer (fleet/want/fleet_gate.c); but those that hide whether they
 * sleep are fenced until fleet_resync or an update, unless they are fenced already, and of removed
 * ones those that may sleep.
 * @of     the parts of them
 * @asked  [n] */
void fleet_slept(struct fleet *f, bool asleep, const struct api_sleep *of,
                 const struct upstream *const *asked, size_t n);

/* fleet_fence - an update began to change the engine and failed there. */
void fleet_fence(struct fleet *f, struct upstream *upstream, const struct err *why);

/* fleet_fence_served - what an engine serves was found to be wrong: fence it, unless it has got
 * another version or was restarted since.
 * @incarnation, @serial  of upstream_info, when it was found */
void fleet_fence_served(struct fleet *f, struct upstream *upstream, uint64_t incarnation,
                        uint64_t serial, const struct err *why);

struct upstream_info;

/* fleet_may_resync - would fleet_resync fail for any report? Errors: as of fleet_resync. */
int fleet_may_resync(struct fleet *f, struct upstream *upstream, struct err *e);

/* fleet_resync - an operator declares that the engine has the right weights: it is synced, and a
 * fence for a missed sleep or wake ends, or by fleet_fence_served if it was restarted since. If the
 * fleet has no version yet, this engine's becomes the fleet's.
 * @before  of upstream_info, when it was asked
 * @report  its reply since
 * Errors: ERR_NEEDS_UPDATE  an update of it failed, or never ended; or this process of it was
 *                           found wrong (fleet_fence_served); or it serves another version
 *                           than the fleet (after the first update an empty label is accepted)
 *         ERR_CONFLICT      it is not ready, it has changed since `before`, an update runs, or as
 *                           of fleet_reject_alias
 *         ERR_NOT_FOUND     it is removed
 *         After an error nothing has changed. */
int fleet_resync(struct fleet *f, struct upstream *upstream, const struct upstream_info *before,
                 const struct upstream_report *report, struct err *e);

/* What an engine needs besides the bytes of the weights. */
enum fleet_need {
    NEED_CACHES,   /* without entries of other weights */
    NEED_ADAPTERS, /* those of the fleet, and no others */
    NEED_NAME,     /* the last name of the version that it serves */
    FLEET_NEEDS
};

/* fleet_needs - does it need that, and may it be tried now?
 * fleet_need_tried - it was; of NEED_CACHES fleet_caches_end tells it. @why  it failed; clean: it
 * did not */
bool fleet_needs(struct fleet *f, struct upstream *upstream, enum fleet_need which);
void fleet_need_tried(struct fleet *f, struct upstream *upstream, enum fleet_need which,
                      const struct err *why);

/* fleet_caches_begin - its caches are about to be emptied, because of this change, which does not
 * yet keep it out of rotation: the caller holds back new requests, or none can read a stale entry.
 * @may_lack_route  out: an engine that has no route for it counts as one with empty caches
 * Returns: the number for fleet_caches_end.
 * fleet_caches_end - @why  they could not be emptied: it is out of rotation from now on until they
 * are; clean: they are. */
enum cache_change { CACHES_AS_BEFORE, CACHES_OF_OTHER_ADAPTER, CACHES_OF_OTHER_WEIGHTS };
uint64_t fleet_caches_begin(struct fleet *f, struct upstream *upstream, enum cache_change change,
                            bool *may_lack_route);
void fleet_caches_end(struct fleet *f, struct upstream *upstream, uint64_t number,
                      const struct err *why);

/* fleet_version_undecided - do engines answer, although the fleet has no version yet?
 * @e  clean; if true it is set, and says which versions there are and what to do */
bool fleet_version_undecided(struct fleet *f, struct err *e);

/* fleet_await_commit - this server has a version to hand over: until the hand-off ends, what
 * engines report does not decide the fleet's version, unless it is decided. Threads: any.
 * @why  what clients are answered until then, as that the version was lost; "": that it is not
 *       handed over yet */
void fleet_await_commit(struct fleet *f, const char *why);

/* How an update switches the fleet's version. In this order, and ended by
 * fleet_set_updating(false), at which engines that were not confirmed do not have it:
 * fleet_begin_switch - from now on the engines in `parts` are about to have a new version. Until
 * they are confirmed they count as synced if they served the one before: what they run goes on. No
 * engine is granted a generate until it is confirmed, so that no client gets the old version
 * after another client got the new one. It is called before the first of them is told to finish.
 * @parts  [n]
 * fleet_switch_version - it is the fleet's, under a new serial; the other engines do not have it.
 * Before the first engine makes a token of it that a client gets.
 * @serial  of a hand-off: the store's, which is not smaller than the fleet's, and equal to it if
 *          the hand-off of one version is repeated; 0: the fleet's next one
 * Returns: the serial.
 * fleet_confirm_version - this one of `parts` serves it, and is not fenced any more. Before
 *     fleet_switch_version it changes nothing: the fleet's version is an earlier one. Repeating is
 *     harmless. @named  it reports the label itself */
void fleet_begin_switch(struct fleet *f, struct upstream *const *parts, size_t n);
uint64_t fleet_switch_version(struct fleet *f, const char *label, uint64_t serial);
void fleet_confirm_version(struct fleet *f, struct upstream *upstream, bool named);

/* fleet_expect_update - the fleet's version reached this engine by its own update `id`, which it
 * has proven. From now on a probe that reports this update and the fleet's label shows that the
 * engine serves the version: it is synced, and a fence because its update failed ends. Until the
 * next version. */
void fleet_expect_update(struct fleet *f, struct upstream *upstream, const char *id);

/* fleet_repair_version - the engine serves `label` too now, as the others do, and is not fenced any
 * more. If the fleet's label has changed meanwhile, it is not synced.
 * Returns: the serial, which does not change. */
uint64_t fleet_repair_version(struct fleet *f, const char *label, struct upstream *upstream,
                              bool named);

/* fleet_set_label - the engines in `named` serve the same weights under another label; others that
 * served the fleet's version are not synced any more. Ends fleet_set_updating.
 * @named  [n]
 * Returns: the serial, which does not change. */
uint64_t fleet_set_label(struct fleet *f, const char *label, const struct upstream *const *named,
                         size_t n);

/* fleet_may_name - may an engine that reports this label be given the fleet's? It has not taken the
 * last name of the version that it serves, and no other client has named it since.
 * fleet_named - it has taken this label; or has not, because of `why`. Ignored if the fleet has
 * another by now. */
bool fleet_may_name(struct fleet *f, struct upstream *upstream, const char *label);
void fleet_named(struct fleet *f, struct upstream *upstream, const char *label,
                 const struct err *why);

/* ---- which versions made a reply ---- */

struct fleet_version {
    uint64_t serial;
    char label[FLEET_LABEL_MAX + 1];
};

/* An engine that is killed does not start, load its weights and answer in less. */
#define FLEET_RESTART_US 10000000

/* What a fleet has served since a permit was granted. */
struct fleet_versions {
    /* The weights of that engine have not changed since, and a probe saw the same process of it
     * FLEET_RESTART_US before the grant or later: the first version made it all. */
    bool one;
    bool complete;        /* no version is left out, and none is about to follow */
    bool last_is_unknown; /* an update changes that engine and has not ended */
    size_t n;             /* 1..; items[0]: at the grant */
    struct fleet_version
        items[FLEET_VERSIONS_MAX + 1]; /* after too many the first and the newest */
};

/* fleet_note_overwrite - from now on the weights of this engine, which it serves, may be changed in
 * place. Call it before the first byte is sent, once the engine makes no tokens. Threads: any. */
void fleet_note_overwrite(struct fleet *f, struct upstream *upstream);

/* fleet_versions_since - what may have made the tokens of a reply of which no byte is missing.
 * @t  granted, not yet released. Threads: any. */
struct fleet_ticket;
void fleet_versions_since(struct fleet *f, const struct fleet_ticket *t,
                          struct fleet_versions *out);

/* fleet_await_idle - wait until no generate request has a permit of this engine. Returns: has none.
 * Threads: any that may wait; no lock held. */
bool fleet_await_idle(struct fleet *f, struct upstream *upstream, uint64_t deadline_us);

/* ---- permits ---- */

struct fleet_ticket {
    struct ticket ticket; /* first; `arrival` of a generate: number of its first acquire */
    enum fleet_queue queue;
    uint64_t affinity; /* of a session; 0: none */
    uint64_t avoid;    /* prefer any other engine to that of this upstream_number, which has just
                          failed; 0: none */
    bool responded;    /* the engine has replied; set before fleet_permit_release */
    struct fleet_version served; /* written at the grant: the fleet's version */

    struct upstream *upstream; /* since it was granted; a reference until it is released */
    uint64_t incarnation;      /* of its process, at the grant */

    /* Private to the fleet. */
    unsigned n_lost;                /* at the grant */
    uint64_t n_named, n_overwrites; /* at the grant */
    uint64_t granted_us;
    bool settled; /* fleet_settle */
};

/* fleet_permit_acquire - take a permit now, or queue.
 * Errors: ERR_UNSYNCED      no engine is in rotation; the message has one engine's reason
 *         ERR_UPSTREAM_KEY  all engines reject our key
 *         ERR_OVERLOADED    the queue is full
 *         ERR_ABORTED       a retry, and it was aborted meanwhile
 *         ERR_DRAINING      after fleet_permits_close */
int fleet_permit_acquire(struct fleet *f, struct fleet_ticket *t, struct err *e);

/* fleet_permit_cancel - remove a queued ticket. Returns: false if it was granted already. */
bool fleet_permit_cancel(struct fleet *f, struct fleet_ticket *t);

/* fleet_is_lost - has what runs at its engine become unreliable since the permit was granted?
 * Threads: any. */
bool fleet_is_lost(const struct fleet_ticket *t);

/* fleet_permit_release - give a granted permit back. If t->responded, the engine's count of
 * failures in a row starts anew. */
void fleet_permit_release(struct fleet *f, struct fleet_ticket *t);

/* ---- requests that came before a pause ---- */

/* fleet_settle - an engine is known to have the request of this ticket, because it began to reply,
 * or the request has ended. Each ticket that was ever acquired needs it; repeating is harmless. */
void fleet_settle(struct fleet *f, struct fleet_ticket *t);

/* fleet_is_aborted - was the request of this ticket aborted? It then has to be answered here. @sent
 * it was sent to an engine, which has not begun to reply */
bool fleet_is_aborted(struct fleet *f, const struct fleet_ticket *t, bool sent);

/* fleet_draw_line - a pause begins. Threads: one at a time, as fleet_release_since.
 * @anew   all that has come until now came before it; else the line stays
 * @holds  until fleet_release_since, generates that come later wait here */
void fleet_draw_line(struct fleet *f, bool anew, bool holds);
void fleet_release_since(struct fleet *f);

/* fleet_abort_queued - abort generates that have no permit, and those that ask for another one.
 * fleet_cut_aborted - also those that were sent and have no reply yet.
 * @all  not only those that came before the line
 * Returns: how many wait for a permit. Threads: any. */
size_t fleet_abort_queued(struct fleet *f, bool all);
void fleet_cut_aborted(struct fleet *f);

/* fleet_await_before - wait until all that came before the line is settled, or fleet_permits_close.
 * Returns: how many are not. */
size_t fleet_await_before(struct fleet *f, uint64_t deadline_us);

/* fleet_permits_close - from now on fleet_permit_acquire fails with ERR_DRAINING.
 * fleet_is_closed - was it called? */
void fleet_permits_close(struct fleet *f);
bool fleet_is_closed(struct fleet *f);

/* fleet_serves - is the engine in rotation? Threads: any. */
bool fleet_serves(struct fleet *f, struct upstream *upstream);

/* fleet_affinity - a hash of a session's name; 0 for "". */
uint64_t fleet_affinity(const char *session);

/* ---- status ---- */

/* What is wrong with an engine. */
struct upstream_error {
    struct err why;
    int64_t wall_s; /* since when; of a missing answer, when the last attempt failed */
};

struct upstream_info {
    bool alive; /* it answers, and accepts our key for probes */
    bool synced, fenced, removed;
    bool request_auth_failed; /* fleet_auth_failed with FLEET_AUTH_REQUEST */
    bool in_step;             /* synced, not fenced, and as awake and running as the others */
    bool may_sleep;           /* while the others are awake */
    bool no_probes;           /* as in struct fleet_still, and so is the next */
    uint64_t still_order;
    bool needs_token;         /* which alone would show that it does not */
    struct api_sleep to_wake; /* what of it can be woken */
    struct engine_have have;
    bool stale_caches; /* they may hold entries of other weights */
    bool wants_seed; /* it lacks the fleet's version, and would read it from another engine; what is
                        broken is left to an update, and with `staged` all of it to this server */
    uint64_t incarnation; /* counts its processes, as far as known; never the same again */
    enum upstream_state state;
    unsigned out;    /* why it is out of rotation: REASON_BITs; 0: it is not */
    uint64_t serial; /* of the fleet's version that it serves; 0: the one that it started with */
    struct upstream_report report; /* the last one */
    size_t n_outstanding[FLEET_QUEUES];
    uint64_t n_granted;
    uint64_t n_failures;         /* probes and requests that failed */
    uint64_t probe_ok_us;        /* when its last status probe succeeded; 0: never. base/clock.h */
    struct upstream_error error; /* the gravest of fleet_errors; clean: nothing is wrong */
};
void fleet_info(struct fleet *f, struct upstream *upstream, struct upstream_info *out);
int fleet_info_by(struct fleet *f, struct upstream *upstream, uint64_t deadline_us,
                  struct upstream_info *out, struct err *e);

/* fleet_errors - all that is wrong with an engine, the gravest first: a missing answer, if that
 * keeps it out of rotation, then each reason that does, then a missing answer that does not
 * yet. @out  [UPSTREAM_ERRORS_MAX]. Returns: how many.
 * fleet_why_unreliable - why what runs there cannot be relied on (fleet_cfg.left_rotation) */
enum { UPSTREAM_ERRORS_MAX = 1 + UPSTREAM_REASONS };
size_t fleet_errors(struct fleet *f, struct upstream *upstream, struct upstream_error *out);
void fleet_why_unreliable(struct fleet *f, struct upstream *upstream, struct err *out);

/* upstream_info_is_probed - has it answered a probe, or failed to? Until then nothing is known. */
bool upstream_info_is_probed(const struct upstream_info *info);

struct fleet_stats {
    size_t n_upstreams, n_serving, min_ready; /* without the removed ones */
    size_t n_waiting[FLEET_QUEUES], n_running[FLEET_QUEUES];
    uint64_t n_refused[FLEET_QUEUES], n_cancelled[FLEET_QUEUES];
    uint64_t oldest_us[FLEET_QUEUES]; /* when the first in the queue came; 0: it is empty */
    uint64_t serial;
    bool decided;                    /* it has a version, of an update or of what engines report */
    char label[FLEET_LABEL_MAX + 1]; /* of its version; "": not decided, or without a label */
    bool ready;                      /* n_serving >= min_ready */
};
void fleet_stats(struct fleet *f, struct fleet_stats *out);
int fleet_stats_by(struct fleet *f, uint64_t deadline_us, struct fleet_stats *out, struct err *e);

#endif

/* A job reads what an engine's checker answered: a reply may have hundreds of thousands of
 * checksums, and the committed bytes must be read for them. */
#include "base/log.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/proof/fleet_proof_priv.h"

#include <stdlib.h>

/* One reply, and what it says. */
struct reading {
    struct job job;
    struct fleet_prover *p; /* its engine is counted */
    enum upstream_kind kind;
    char *reply; /* owned */
    size_t reply_len;
    uint64_t wanted, serial, incarnation; /* of the prover when it was asked */
    enum api_answer answer;
    struct proof_sums *sums; /* one reference; NULL: none */
    bool has_compared;
    struct proof_compared compared;
};

static void read_reply(struct reading *r)
{
    struct buf text = {0};

    r->answer = api_read_checksums(&text, r->kind, r->reply, r->reply_len);
    if (r->answer == API_ANSWER_VALUE)
        r->sums = proof_sums_new(r->kind, &text);
    if (r->answer == API_ANSWER_VALUE && r->sums == NULL)
        r->answer = API_ANSWER_PENDING;
    buf_fini(&text);
}

/* What cannot be compared now is asked for again: by then the engine may have a newer version. */
static void compare(struct reading *r)
{
    struct fleet_control *fc = r->p->fc;
    struct proof_sums *before = NULL;
    struct err why = {0};

    if (r->answer != API_ANSWER_VALUE || fc->proof.committed == NULL)
        return;
    mtx_lock(&fc->lock);
    if (r->p->before_of == r->incarnation)
        before = proof_sums_ref(r->p->before);
    mtx_unlock(&fc->lock);
    r->has_compared = proof_committed_compare(fc->proof.committed, r->sums, before, r->serial,
                                              &r->compared, &why) == 0;
    if (!r->has_compared)
        r->answer = API_ANSWER_PENDING;
    mtx_lock(&fc->lock);
    proof_sums_unref(before);
    mtx_unlock(&fc->lock);
}

static void keep_locked(struct reading *r)
{
    struct fleet_prover *p = r->p;

    p->checksums = r->answer;
    if (r->answer == API_ANSWER_PENDING)
        fleet_proof_retry_locked(p);
    if (r->answer != API_ANSWER_VALUE)
        return;
    proof_sums_unref(p->sums);
    p->sums = proof_sums_ref(r->sums);
    p->n_sums = r->sums->n;
    p->has_compared = r->has_compared;
    p->compared_bytes = r->compared;
    if (!r->has_compared)
        return;
    if (p->before_of != r->incarnation)
        p->told_different = false;
    proof_sums_unref(p->before);
    p->before = proof_sums_ref(r->sums);
    p->before_of = r->incarnation;
}

/* Once for each process: the engine's layout does not change. */
static bool must_tell_locked(const struct reading *r)
{
    if (!r->has_compared || r->p->told_different || r->compared.n_different == r->compared.n_wrong)
        return false;
    r->p->told_different = true;
    return true;
}

static void tell(const struct reading *r)
{
    struct log_rec rec;

    log_begin(&rec, LOG_WARN, "upstream.layout");
    log_str(&rec, "upstream", upstream_name(r->p->upstream));
    log_u64(&rec, "n_equal", r->compared.n_equal);
    log_u64(&rec, "n_different", r->compared.n_different);
    log_str(
        &rec, "meaning",
        "parameters that differ from the committed tensors of the same name, and were not equal "
        "before: no fault if it shards, pads, converts or reorders them");
    log_event(&rec);
}

static void reading_free(struct reading *r)
{
    upstream_unref(r->p->upstream);
    free(r->reply);
    free(r);
}

static void read_job(void *arg)
{
    struct reading *r = arg;
    struct fleet_prover *p = r->p;
    struct fleet_control *fc = p->fc;
    bool keeps, tells;

    read_reply(r);
    compare(r);
    mtx_lock(&fc->lock);
    keeps = p->wanted == r->wanted;
    if (keeps)
        keep_locked(r);
    tells = keeps && must_tell_locked(r);
    proof_sums_unref(r->sums);
    p->reading = false;
    fc->proof.judge = true;
    mtx_unlock(&fc->lock);
    if (tells)
        tell(r);
    loop_post(upstreams_loop(fc->upstreams), &fc->proof.item);
    reading_free(r);
}

void fleet_proof_read_sums(struct fleet_prover *p, struct upstream_reply *reply)
{
    struct fleet_control *fc = p->fc;
    struct reading *r = calloc(1, sizeof *r);
    struct err ignored = {0};

    if (r == NULL) {
        mtx_lock(&fc->lock);
        fleet_proof_retry_locked(p);
        mtx_unlock(&fc->lock);
        return;
    }
    *r = (struct reading){.job = {.run = read_job, .arg = r},
                          .p = p,
                          .kind = upstream_kind(p->upstream),
                          .reply = reply->text,
                          .reply_len = reply->text_len};
    reply->text = NULL;
    (void)upstream_ref(p->upstream);
    mtx_lock(&fc->lock);
    p->reading = true;
    r->wanted = p->asked;
    r->serial = p->serial;
    r->incarnation = p->incarnation;
    mtx_unlock(&fc->lock);
    if (workers_post(fc->cfg.blocking, &r->job, WORKERS_URGENT, &ignored) == 0)
        return;
    mtx_lock(&fc->lock);
    p->reading = false;
    fleet_proof_retry_locked(p);
    mtx_unlock(&fc->lock);
    reading_free(r); /* its reference is not the last one: on_reply has its own */
}

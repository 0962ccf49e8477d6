/* A job reads what an engine's checker answered: a reply may have hundreds of thousands of
 * checksums, and the committed bytes must be read for them. */
#include "base/log.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/proof/fleet_proof_priv.h"

#include <stdlib.h>

/* What one reply says. */
struct reading {
    enum proof_answer answer;
    struct proof_sums *sums; /* one reference; NULL: none */
    bool has_compared;
    struct proof_compared compared;
};

static void read_reply(struct reading *out, const struct fleet_prover *p)
{
    struct err why = {0};
    struct api_checksums sums;

    *out = (struct reading){.answer = PROOF_NO_VALUE};
    if (api_read_checksums(&sums, p->read_kind, p->reply, p->reply_len, &why) != 0) {
        if (why.code == ERR_NO_MEMORY)
            out->answer = PROOF_PENDING;
        return;
    }
    out->sums = proof_sums_new(p->read_kind, &sums);
    out->answer = out->sums != NULL ? PROOF_VALUE : PROOF_PENDING;
    api_checksums_fini(&sums);
}

static struct proof_sums *before_of(struct fleet_prover *p)
{
    struct proof_sums *before = NULL;

    mtx_lock(&p->fc->lock);
    if (p->before_of == p->read_incarnation)
        before = proof_sums_ref(p->before);
    mtx_unlock(&p->fc->lock);
    return before;
}

/* What cannot be compared now is asked for again: by then the engine may have a newer version. */
static void compare(struct reading *r, struct fleet_prover *p)
{
    struct proof_sums *before;
    struct err why = {0};

    if (r->answer != PROOF_VALUE || p->fc->proof.committed == NULL)
        return;
    before = before_of(p);
    if (proof_committed_compare(p->fc->proof.committed, r->sums, before, p->read_serial,
                                &r->compared, &why) == 0)
        r->has_compared = true;
    else
        r->answer = PROOF_PENDING;
    mtx_lock(&p->fc->lock);
    proof_sums_unref(before);
    mtx_unlock(&p->fc->lock);
}

static void keep_locked(struct fleet_prover *p, struct reading *r)
{
    p->checksums = r->answer;
    if (r->answer == PROOF_PENDING)
        fleet_proof_retry_locked(p);
    if (r->answer != PROOF_VALUE)
        return;
    proof_sums_unref(p->sums);
    p->sums = proof_sums_ref(r->sums);
    p->n_sums = r->sums->n;
    p->has_compared = r->has_compared;
    p->compared_bytes = r->compared;
    if (!r->has_compared)
        return;
    if (p->before_of != p->read_incarnation)
        p->told_different = false;
    proof_sums_unref(p->before);
    p->before = proof_sums_ref(r->sums);
    p->before_of = p->read_incarnation;
}

/* Once for each process: the engine's layout does not change. */
static bool must_tell_locked(struct fleet_prover *p, const struct reading *r)
{
    if (!r->has_compared || p->told_different || r->compared.n_different == r->compared.n_wrong)
        return false;
    p->told_different = true;
    return true;
}

static void tell(struct fleet_prover *p, const struct reading *r)
{
    struct log_rec rec;

    log_begin(&rec, LOG_WARN, "upstream.layout");
    log_str(&rec, "upstream", upstream_name(p->upstream));
    log_u64(&rec, "n_equal", r->compared.n_equal);
    log_u64(&rec, "n_different", r->compared.n_different);
    log_str(
        &rec, "meaning",
        "parameters that differ from the committed tensors of the same name, and were not equal "
        "before: no fault if it shards, pads, converts or reorders them");
    log_event(&rec);
}

static void read_job(void *arg)
{
    struct fleet_prover *p = arg;
    struct fleet_control *fc = p->fc;
    struct reading r;
    bool keeps, tells;

    read_reply(&r, p);
    compare(&r, p);
    free(p->reply);
    mtx_lock(&fc->lock);
    p->reply = NULL;
    keeps = p->wanted == p->read_for;
    if (keeps)
        keep_locked(p, &r);
    tells = keeps && must_tell_locked(p, &r);
    proof_sums_unref(r.sums);
    p->reading = false;
    fc->proof.judge = true;
    mtx_unlock(&fc->lock);
    if (tells)
        tell(p, &r);
    loop_post(upstreams_loop(fc->upstreams), &fc->proof.item);
    upstream_unref(p->upstream);
}

void fleet_proof_read_sums(struct fleet_prover *p, struct upstream_reply *reply)
{
    struct fleet_control *fc = p->fc;
    struct err ignored = {0};

    p->read_kind = upstream_kind(p->upstream);
    p->reply = reply->text;
    p->reply_len = reply->text_len;
    reply->text = NULL;
    p->job = (struct job){.run = read_job, .arg = p};
    (void)upstream_ref(p->upstream); /* until the job ends */
    mtx_lock(&fc->lock);
    p->reading = true;
    p->read_for = p->asked;
    p->read_serial = p->serial;
    p->read_incarnation = p->incarnation;
    mtx_unlock(&fc->lock);
    if (workers_post(fc->cfg.blocking, &p->job, WORKERS_URGENT, &ignored) == 0)
        return;
    free(p->reply);
    mtx_lock(&fc->lock);
    p->reply = NULL;
    p->reading = false;
    mtx_unlock(&fc->lock);
    upstream_unref(p->upstream); /* not the last one: on_reply has its own */
}

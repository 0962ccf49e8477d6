/* Replies and events of SGLang's /generate. Each event has all of its sequence so far, so events
 * may be skipped for a slow client; the last event of a sequence is never skipped. */
#include "handlers/generate/sglang_generate.h"

#include "control/life.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/generate/routed_experts.h"
#include "handlers/json_put.h"
#include "handlers/reply.h"
#include "weights/store/store.h"

void sglang_sent_fini(struct sglang_sent *sent)
{
    buf_fini(&sent->text);
    buf_fini(&sent->ids);
    buf_fini(&sent->logprobs);
    buf_fini(&sent->tops);
}

/* [logprob, id, text]; @known  false: the logprob is null */
static void put_tuple(struct buf *out, const struct sglang_op *op, uint32_t id, float logprob,
                      bool known)
{
    json_put_open(out, '[');
    if (known)
        json_put_real(out, generation_logprob(logprob));
    else
        json_put_null(out);
    json_put_int(out, id);
    if (op->with_text)
        generation_put_token_text(out, op->c.g.app->generate->tokenizer, id);
    else
        json_put_null(out);
    json_put_close(out, ']');
}

static void put_sglang_tops(struct buf *out, const struct sglang_op *op, const struct gen_token *t)
{
    json_put_open(out, '[');
    for (uint32_t i = 0; i < t->n_top; i++)
        put_tuple(out, op, t->top[i].id, t->top[i].logprob, true);
    json_put_close(out, ']');
}

/* The part's entries of output_token_logprobs and output_top_logprobs. */
static void put_part_logprobs(struct buf *out, const struct sglang_op *op,
                              const struct completions_part *p)
{
    for (uint32_t i = p->first; i < p->end && op->with_logprobs; i++)
        put_tuple(out, op, p->tokens[i].id, p->tokens[i].logprob, true);
}

static void put_part_tops(struct buf *out, const struct sglang_op *op,
                          const struct completions_part *p)
{
    for (uint32_t i = p->first; i < p->end && op->n_top > 0; i++)
        put_sglang_tops(out, op, &p->tokens[i]);
}

/* Adds the part to what was sent. A whole reply has no later event that repeats its logprobs: they
 * are written straight into it. */
static void sent_append(const struct sglang_op *op, struct sglang_sent *sent,
                        const struct completions_part *p)
{
    for (uint32_t i = p->first; i < p->end; i++)
        json_put_int(&sent->ids, p->tokens[i].id);
    sent->n_tokens += p->end - p->first;
    if (op->c.stream.on) {
        put_part_logprobs(&sent->logprobs, op, p);
        put_part_tops(&sent->tops, op, p);
    }
    buf_append(&sent->text, p->text.data, p->text.len);
    sent->text.failed = sent->text.failed || p->failed;
}

static json_t *stop_json(const struct gen_output *out)
{
    json_t *matched = NULL;

    if (out->stop_text != NULL)
        matched = json_string(out->stop_text);
    else if (out->n_tokens > 0)
        matched = json_integer(out->tokens[out->n_tokens - 1].id);
    return json_pack("{s:s, s:o}", "type", "stop", "matched",
                     matched != NULL ? matched : json_null());
}

/* AReaL reads a message that begins with "Abort before prefill" as an output without tokens. */
static json_t *abort_json(const struct gen_output *out)
{
    return json_pack("{s:s, s:s, s:n, s:n}", "type", "abort", "message",
                     out->n_tokens == 0 ? "Abort before prefill" : "Aborted", "status_code",
                     "err_type");
}

static json_t *sglang_finish_json(const struct sglang_op *op, const struct gen_output *out)
{
    if (out == NULL)
        return json_null();
    if (out->finish == GEN_ABORT)
        return abort_json(out);
    if (out->finish == GEN_STOP && !op->c.no_output)
        return stop_json(out);
    return json_pack("{s:s, s:I}", "type", "length", "length",
                     (json_int_t)(op->c.no_output ? 0 : out->n_tokens));
}

/* The version of the newest token; if there is none, the version that serves now. */
static json_t *version_json(const struct sglang_op *op, const struct completions_part *p)
{
    struct store_info info = {0};
    uint32_t n = p->out != NULL ? p->out->n_tokens : p->end;

    if (n > 0)
        return json_string(p->tokens[n - 1].version);
    if (op->c.g.app->weights->store == NULL)
        return json_null();
    store_info(op->c.g.app->weights->store, &info);
    return info.serial > 0 ? json_string(info.label) : json_null();
}

/* Logprobs of the prompt from the requested start. The first of them is null, as in SGLang. They
 * are available once the prompt's first sequence has ended, which computes them for all its
 * choices. */
static void put_input_logprobs(struct buf *out, const struct sglang_op *op,
                               const struct generation_seq *seq)
{
    const struct generation *g = &op->c.g;
    const struct gen_token *ignored;
    struct gen_output *made = NULL;
    uint32_t n = 0, start = 0;

    generation_snapshot(&g->seqs[seq->prompt * g->params.n], &ignored, &n, &made);
    n = op->logprob_start >= 0 && made != NULL && made->prompt != NULL ? made->n_prompt : 0;
    if (op->logprob_start < n)
        start = op->logprob_start > 0 ? (uint32_t)op->logprob_start : 0;
    else
        n = 0;
    json_put_name(out, "input_token_logprobs");
    json_put_open(out, '[');
    for (uint32_t i = start; i < n; i++)
        put_tuple(out, op, made->prompt[i].id, made->prompt[i].logprob, i > start);
    json_put_close(out, ']');
    if (op->n_top == 0)
        return;
    json_put_name(out, "input_top_logprobs");
    json_put_open(out, '[');
    if (start < n)
        json_put_null(out);
    for (uint32_t i = start + 1; i < n; i++)
        put_sglang_tops(out, op, &made->prompt[i]);
    json_put_close(out, ']');
}

static void put_sglang_logprobs(struct buf *out, const struct sglang_op *op,
                                const struct completions_part *p)
{
    const struct sglang_sent *sent = &op->sent[p->seq->index];

    if (!op->with_logprobs)
        return;
    json_put_name(out, "output_token_logprobs");
    json_put_open(out, '[');
    json_put_text(out, &sent->logprobs);
    if (!op->c.stream.on)
        put_part_logprobs(out, op, p);
    json_put_close(out, ']');
    json_put_name(out, "output_token_logprobs_length");
    json_put_int(out, sent->n_tokens);
    if (op->n_top > 0) {
        json_put_name(out, "output_top_logprobs");
        json_put_open(out, '[');
        json_put_text(out, &sent->tops);
        if (!op->c.stream.on)
            put_part_tops(out, op, p);
        json_put_close(out, ']');
    }
    if (op->logprob_start < 0 || p->out != NULL)
        put_input_logprobs(out, op, p->seq);
}

/* In the last event only. As in SGLang a sequence that was aborted before its first token has none:
 * slime refuses fewer rows than it has tokens. */
static void put_routed(struct buf *out, const struct sglang_op *op,
                       const struct completions_part *p)
{
    if (!op->c.g.params.gen.routes || p->out == NULL || p->out->n_tokens == 0)
        return;
    json_put_name(out, "routed_experts");
    routed_experts_put(out, p->seq, p->out, p->end, ROUTED_INT32);
    json_put_name(out, "routed_experts_start_len");
    json_put_int(out, op->c.g.params.routes_start);
}

/* Of the whole sequence: seconds since the request came. */
static void put_latency(struct buf *out, const struct generation_seq *seq)
{
    json_put_name(out, "e2e_latency");
    json_put_real(out, (double)(seq->ended_us - seq->g->began_us) / 1e6);
}

/* The engine never retracts a sequence that it has begun, and no parser looks for reasoning. */
static void put_meta(struct buf *out, const struct sglang_op *op, const struct completions_part *p)
{
    const struct generation_seq *seq = p->seq;
    const struct gen_output *made = p->out;
    const struct generation *g = &op->c.g;

    json_put_open(out, '{');
    json_put_members(out,
                     json_pack("{s:s, s:o, s:I, s:I, s:I, s:n, s:i, s:i, s:n, s:o, s:o, s:s}", "id",
                               op->rids[seq->index], "finish_reason", sglang_finish_json(op, made),
                               "prompt_tokens", (json_int_t)g->prompts[seq->prompt].n,
                               "completion_tokens", (json_int_t)op->sent[seq->index].n_tokens,
                               "cached_tokens", (json_int_t)generation_n_cached(seq),
                               "cached_tokens_details", "num_retractions", 0, "reasoning_tokens", 0,
                               "dp_rank", "weight_version", version_json(op, p), "adapter",
                               generation_adapter_json(g), "boot_id", g->app->life->boot_id));
    put_sglang_logprobs(out, op, p);
    put_routed(out, op, p);
    if (made != NULL) {
        put_latency(out, seq);
        json_put_name(out, "weight_versions");
        json_put_value(out, completions_versions_json(&op->c, made));
    }
    json_put_close(out, '}');
}

/* Writes the sequence including the part. */
static void put_item(struct buf *out, const struct sglang_op *op, const struct completions_part *p)
{
    struct sglang_sent *sent = &op->sent[p->seq->index];

    sent_append(op, sent, p);
    if (sent->text.failed)
        out->failed = true;
    json_put_open(out, '{');
    json_put_name(out, "text");
    json_put_string(out, sent->text.len > 0 ? sent->text.data : "", sent->text.len);
    json_put_name(out, "output_ids");
    json_put_open(out, '[');
    json_put_text(out, &sent->ids);
    json_put_close(out, ']');
    json_put_name(out, "meta_info");
    put_meta(out, op, p);
    if (op->c.stream.on && op->is_array) {
        json_put_name(out, "index");
        json_put_int(out, p->seq->index);
    }
    json_put_close(out, '}');
    if (p->out != NULL)
        sglang_sent_fini(sent); /* no later event repeats it */
}

/* Sends the next event of a sequence. Returns false if there is none. */
static bool send_sglang_event(struct sglang_op *op, struct generation_seq *seq)
{
    struct completions_part p;
    struct buf event = {0};

    if (!completions_part_next(&p, &op->c, seq))
        return false;
    generation_event_begin(&event);
    put_item(&event, op, &p);
    generation_event(&op->c.g, &event);
    completions_part_sent(&p);
    return true;
}

void sglang_generate_on_tokens(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        while (generation_client_keeps_up(g) && send_sglang_event(sglang_of(g), &g->seqs[i]))
            ;
}

static void put_sglang_whole(struct buf *out, struct generation *g)
{
    struct sglang_op *op = sglang_of(g);

    if (op->is_array)
        json_put_open(out, '[');
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        struct completions_part p;

        if (http_request_disconnected(g->x) || !completions_part_next(&p, &op->c, &g->seqs[i])) {
            out->failed = true;
            return;
        }
        put_item(out, op, &p);
        completions_part_sent(&p);
    }
    if (op->is_array)
        json_put_close(out, ']');
}

void sglang_generate_finish(struct generation *g)
{
    if (!sglang_of(g)->c.stream.on) {
        generation_reply_whole(g, put_sglang_whole);
        return;
    }
    sglang_generate_on_tokens(g);
    generation_end(g);
}

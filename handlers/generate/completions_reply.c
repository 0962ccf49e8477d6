/* Replies and events of /v1/completions, and what chat replies share with them. A reply that is not
 * streamed is made as a stream of one part. */
#include "handlers/generate/completions.h"

#include "base/names.h"
#include "control/life.h"
#include "handlers/generate/chat.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/generate/routed_experts.h"
#include "handlers/json_put.h"
#include "handlers/reply.h"

static void label_of(const struct completions_op *op, uint32_t id, struct buf *label)
{
    if (op->as_ids)
        buf_printf(label, "token_id:%u", id);
    else
        generation_token_text(op->g.app->generate->tokenizer, id, label);
}

static void put_label(struct buf *out, const struct completions_op *op, uint32_t id)
{
    struct buf label = {0};

    label_of(op, id, &label);
    if (label.failed)
        out->failed = true;
    json_put_string(out, label.len > 0 ? label.data : "", label.len);
    buf_fini(&label);
}

/* Several tokens can have the same text (parts of one character): the first, most likely one stays.
 * @names  the texts that were written */
static void put_top(struct buf *out, const struct completions_op *op, struct names *names,
                    uint32_t id, float logprob)
{
    struct buf label = {0};
    struct err ignored = {0};
    struct names_key key;

    label_of(op, id, &label);
    key = names_key(names, label.len > 0 ? label.data : "", label.len);
    if (label.failed) {
        out->failed = true;
    } else if (names_find_key(names, &key) == NAMES_NONE) {
        if (names_add_key(names, &key, &ignored) != 0)
            out->failed = true;
        json_put_string(out, key.text, key.len);
        buf_puts(out, ":");
        json_put_real(out, generation_logprob(logprob));
    }
    buf_fini(&label);
}

/* top_logprobs of one token: an object, so that no name may come twice. */
static void put_completions_tops(struct buf *out, const struct completions_op *op,
                                 const struct gen_token *t)
{
    struct names names;

    names_init(&names);
    json_put_open(out, '{');
    put_top(out, op, &names, t->id, t->logprob);
    for (uint32_t i = 0; i < t->n_top && (int64_t)i < op->logprobs; i++)
        put_top(out, op, &names, t->top[i].id, t->top[i].logprob);
    json_put_close(out, '}');
    names_fini(&names);
}

/* @known  false for a prompt's first token, which has no logprob */
static void add_logprob(struct completions_part *p, const struct gen_token *t, bool known,
                        uint64_t offset)
{
    const struct completions_op *op = p->op;
    struct buf *lists = p->logprobs;

    if (op->logprobs < 0 || op->chat != NULL)
        return;
    put_label(&lists[COMPLETIONS_TOKENS], op, t->id);
    if (known)
        json_put_real(&lists[COMPLETIONS_TOKEN_LOGPROBS], generation_logprob(t->logprob));
    else
        json_put_null(&lists[COMPLETIONS_TOKEN_LOGPROBS]);
    json_put_int(&lists[COMPLETIONS_TEXT_OFFSET], (int64_t)offset);
}

/* The output that has the prompt's logprobs: that of the prompt's first choice. NULL in a stream.
 */
static const struct gen_output *prompt_output(const struct completions_part *p)
{
    const struct generation *g = &p->op->g;

    return p->op->stream.on ? NULL : g->seqs[p->seq->prompt * g->params.n].out;
}

/* As in vLLM the text has no prompt if the reply has the prompt's ids; the logprobs have it. */
static void echo_prompt(struct completions_part *p)
{
    const struct completions_op *op = p->op;
    const struct completions_prompt *prompt = &op->prompts[p->seq->prompt];
    const struct gen_output *out = prompt_output(p);
    struct completion_text echoed;

    buf_append(&p->text, prompt->text, op->return_ids ? 0 : prompt->len);
    if (op->logprobs < 0 || out == NULL || out->prompt == NULL)
        return;
    p->echoed = out;
    completion_text_init(&echoed, op->g.app->generate->tokenizer, op->g.params.skip_special_tokens,
                         &op->g.params.gen, true, 0);
    for (uint32_t i = 0; i < out->n_prompt; i++) {
        add_logprob(p, &out->prompt[i], i > 0, echoed.n_chars);
        completion_text_push(&echoed, out->prompt[i].id);
    }
    completion_text_fini(&echoed);
}

/* The stop token is not part of the text, as in vLLM and SGLang. */
static bool is_hidden_stop_token(const struct completions_part *p, uint32_t i)
{
    return p->out != NULL && i + 1 == p->out->n_tokens && p->out->finish == GEN_STOP &&
           p->out->stop_text == NULL && !p->op->g.params.include_stop_str;
}

static void fill_part(struct completions_part *p)
{
    struct completion_text *c = &p->op->texts[p->seq->index];

    if (!p->seq->first_event_sent && p->op->echo)
        echo_prompt(p);
    completion_text_more(c);
    for (uint32_t i = p->first; i < p->end; i++) {
        add_logprob(p, &p->tokens[i], true, c->n_chars);
        if (!is_hidden_stop_token(p, i))
            completion_text_push(c, p->tokens[i].id);
    }
    if (p->out != NULL && !p->op->no_output)
        completion_text_end(c, p->out->stop_text, p->out->stop_text_cut);
    completion_text_take(c, p->out != NULL ? c->pending.len : completion_text_ready(c), &p->text);
    p->failed = p->failed || p->text.failed;
}

static json_t *prompt_ids_json(const struct completions_part *p)
{
    const struct generation_prompt *prompt = &p->op->g.prompts[p->seq->prompt];

    if (!p->op->return_ids || p->seq->first_event_sent)
        return json_null();
    return generation_ids_json(prompt->ids, prompt->n);
}

/* With 0 tokens requested the finish reason is "length", even if the hidden token is a stop token.
 */
static json_t *completions_finish_json(const struct completions_part *p)
{
    if (p->op->no_output && p->out->finish == GEN_STOP)
        return json_string(gen_finish_name(GEN_LENGTH));
    return generation_finish_json(p->out);
}

json_t *completions_versions_json(const struct completions_op *op, const struct gen_output *out)
{
    if (!op->no_output || out->n_spans == 0)
        return generation_versions_json(out);
    return json_pack("[{s:s, s:i, s:i, s:I}]", "version", out->spans[0].label, "start", 0, "end", 0,
                     "serial", (json_int_t)out->spans[0].serial);
}

void completions_put_token_ids(struct buf *out, const struct completions_part *p)
{
    json_put_name(out, "token_ids");
    if (p->op->return_ids)
        generation_put_token_ids(out, p->tokens, p->first, p->end);
    else
        json_put_null(out);
}

void completions_put_routed(struct buf *out, const struct completions_part *p)
{
    json_put_name(out, "routed_experts");
    routed_experts_put(out, p->seq, p->out, p->end, ROUTED_NPY);
}

static void put_list(struct buf *out, const char *name, const struct buf *list)
{
    json_put_name(out, name);
    json_put_open(out, '[');
    json_put_text(out, list);
    json_put_close(out, ']');
}

static void put_top_logprobs(struct buf *out, const struct completions_part *p)
{
    json_put_name(out, "top_logprobs");
    json_put_open(out, '[');
    if (p->echoed != NULL)
        json_put_null(out); /* the prompt's first token has no logprob */
    for (uint32_t i = 1; p->echoed != NULL && i < p->echoed->n_prompt; i++)
        put_completions_tops(out, p->op, &p->echoed->prompt[i]);
    for (uint32_t i = p->first; i < p->end; i++)
        put_completions_tops(out, p->op, &p->tokens[i]);
    json_put_close(out, ']');
}

static void put_completions_logprobs(struct buf *out, const struct completions_part *p)
{
    json_put_name(out, "logprobs");
    if (p->op->logprobs < 0) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '{');
    put_list(out, "tokens", &p->logprobs[COMPLETIONS_TOKENS]);
    put_list(out, "token_logprobs", &p->logprobs[COMPLETIONS_TOKEN_LOGPROBS]);
    put_top_logprobs(out, p);
    put_list(out, "text_offset", &p->logprobs[COMPLETIONS_TEXT_OFFSET]);
    json_put_close(out, '}');
}

static void put_prompt_logprobs(struct buf *out, const struct completions_part *p)
{
    const struct completions_op *op = p->op;

    json_put_name(out, "prompt_logprobs");
    if (op->prompt_logprobs >= 0)
        generation_put_prompt_logprobs(out, prompt_output(p), (uint32_t)op->prompt_logprobs,
                                       op->g.app->generate->tokenizer);
    else
        json_put_null(out);
}

static void put_completions_choice(struct buf *out, const struct completions_part *p)
{
    const struct completions_op *op = p->op;

    json_put_open(out, '{');
    json_put_name(out, "index");
    json_put_int(out, p->seq->index);
    json_put_name(out, "text");
    json_put_string(out, p->text.len > 0 ? p->text.data : "", p->text.len);
    put_completions_logprobs(out, p);
    json_put_members(
        out, json_pack("{s:o, s:o}", "finish_reason", completions_finish_json(p), "stop_reason",
                       op->no_output ? json_null() : generation_stop_reason_json(p->out)));
    completions_put_token_ids(out, p);
    json_put_name(out, "prompt_token_ids");
    json_put_value(out, prompt_ids_json(p));
    put_prompt_logprobs(out, p);
    completions_put_routed(out, p);
    if (p->out != NULL) {
        json_put_name(out, "weight_versions");
        json_put_value(out, completions_versions_json(op, p->out));
    }
    json_put_close(out, '}');
}

static void put_part(struct buf *out, const struct completions_part *p)
{
    if (p->failed)
        out->failed = true;
    if (p->op->chat != NULL)
        chat_put_choice(out, p);
    else
        put_completions_choice(out, p);
}

/* put_completions_head and put_completions_tail write the members around the choices of each reply
 * and event. */
static void put_completions_head(struct buf *out, const struct completions_op *op)
{
    const char *kind = op->chat == NULL ? "text_completion"
                       : op->stream.on  ? "chat.completion.chunk"
                                        : "chat.completion";

    json_put_open(out, '{');
    json_put_members(
        out,
        json_pack("{s:o, s:s, s:I, s:n, s:s, s:s, s:o}", "id",
                  json_sprintf("%s%s", op->chat != NULL ? "chatcmpl-" : "cmpl-", op->request_id),
                  "object", kind, "created", (json_int_t)op->created_s, "service_tier",
                  "system_fingerprint", GENERATION_FINGERPRINT, "model", generation_model(&op->g),
                  "adapter", generation_adapter_json(&op->g)));
    json_put_name(out, "choices");
    json_put_open(out, '[');
}

/* @usage  stolen */
static void put_completions_tail(struct buf *out, struct completions_op *op, json_t *usage)
{
    json_put_close(out, ']');
    if (op->chat != NULL)
        chat_put_tail(out, op, usage);
    else
        json_put_members(
            out, json_pack("{s:o, s:s}", "usage", usage, "boot_id", op->g.app->life->boot_id));
}

static json_t *usage_json(const struct completions_op *op)
{
    return generation_usage_json(&op->g, generation_n_sent(&op->g));
}

static void part_fini(struct completions_part *p)
{
    p->seq->n_sent = p->end;
    p->seq->last_event_sent = p->out != NULL;
    for (size_t i = 0; i < COMPLETIONS_LOGPROBS_N; i++)
        buf_fini(&p->logprobs[i]);
    buf_fini(&p->text);
}

bool completions_part_next(struct completions_part *p, struct completions_op *op,
                           struct generation_seq *seq)
{
    struct gen_output *out;

    *p = (struct completions_part){.op = op, .seq = seq, .first = seq->n_sent};
    generation_snapshot(seq, &p->tokens, &p->end, &out);
    p->out = out;
    if (seq->last_event_sent || (out != NULL && out->finish == GEN_ERROR))
        return false;
    if (op->no_output)
        p->end = p->first;
    if (out == NULL && p->end == p->first)
        return false;
    if (op->stream.on && p->end - p->first > generation_event_tokens_max(&op->g)) {
        p->end = p->first + generation_event_tokens_max(&op->g);
        p->out = NULL;
    }
    fill_part(p);
    return true;
}

void completions_part_sent(struct completions_part *p)
{
    p->seq->first_event_sent = true;
    part_fini(p);
}

/* Sends the next part of a choice as an event. Returns false if there is none yet. */
static bool send_part_event(struct completions_op *op, struct generation_seq *seq)
{
    struct completions_part p;
    struct buf event = {0};

    if (!completions_part_next(&p, op, seq))
        return false;
    generation_event_begin(&event);
    put_completions_head(&event, op);
    put_part(&event, &p);
    completions_part_sent(&p);
    put_completions_tail(&event, op, generation_usage_each(seq, op->stream.usage_each));
    json_put_close(&event, '}');
    generation_event(&op->g, &event);
    return true;
}

void completions_on_tokens(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        while (generation_client_keeps_up(g) && send_part_event(completions_of(g), &g->seqs[i]))
            ;
}

static void send_usage_event(struct completions_op *op)
{
    struct buf event = {0};

    generation_event_begin(&event);
    put_completions_head(&event, op);
    put_completions_tail(&event, op, usage_json(op));
    json_put_close(&event, '}');
    generation_event(&op->g, &event);
}

static void put_completions_whole(struct buf *out, struct generation *g)
{
    struct completions_op *op = completions_of(g);

    put_completions_head(out, op);
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        struct completions_part p;

        if (http_request_disconnected(g->x) || !completions_part_next(&p, op, &g->seqs[i])) {
            out->failed = true;
            return;
        }
        put_part(out, &p);
        completions_part_sent(&p);
    }
    put_completions_tail(out, op, usage_json(op));
    json_put_members(
        out, json_pack("{s:n, s:n, s:n}", "kv_transfer_params", "ec_transfer_params", "metrics"));
    json_put_close(out, '}');
}

void completions_finish(struct generation *g)
{
    struct completions_op *op = completions_of(g);
    struct err why = {0};

    if (!op->stream.on) {
        generation_reply_whole(g, put_completions_whole);
        return;
    }
    completions_on_tokens(g);
    if (op->stream.usage_last && !generation_failed(g, &why))
        send_usage_event(op);
    generation_end(g);
}

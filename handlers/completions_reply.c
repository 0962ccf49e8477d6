/* Answers and events of /v1/completions, and what a chat's share with them. One part of a choice is
 * made the same way for both: a whole answer is a stream of one part. */
#include "handlers/completions.h"

#include "handlers/chat.h"
#include "handlers/generation_reply.h"
#include "handlers/reply.h"
#include "server/life.h"

static json_t *label_json(const struct completions_op *op, uint32_t id)
{
    struct buf text = {0};
    json_t *label;

    if (op->as_ids)
        return json_sprintf("token_id:%u", id);
    generation_token_text(op->g.app->tokenizer, id, &text);
    label = text.failed ? NULL : json_stringn(text.len > 0 ? text.data : "", text.len);
    buf_fini(&text);
    return label;
}

/* Several tokens can spell alike (parts of one character): the first, the likeliest, stays. */
static int put_top(const struct completions_op *op, json_t *top, uint32_t id, float logprob)
{
    json_t *label = label_json(op, id);
    int rc = label == NULL ? -1 : 0;

    if (rc == 0 && json_object_get(top, json_string_value(label)) == NULL)
        rc = json_object_set_new(top, json_string_value(label), generation_logprob_json(logprob));
    json_decref(label);
    return rc;
}

static json_t *top_json(const struct completions_op *op, const struct gen_token *t)
{
    json_t *top = json_object();
    int rc = top == NULL ? -1 : put_top(op, top, t->id, t->logprob);

    for (uint32_t i = 0; i < t->n_top && (int64_t)i < op->logprobs && rc == 0; i++)
        rc = put_top(op, top, t->top[i].id, t->top[i].logprob);
    if (rc == 0)
        return top;
    json_decref(top);
    return NULL;
}

/* @known  false for a prompt's first token, which nothing predicts */
static void add_logprob(struct completions_part *p, const struct gen_token *t, bool known,
                        uint64_t offset)
{
    json_t *o = p->logprobs;

    if (o == NULL)
        return;
    if (p->op->chat != NULL) {
        json_t *entry = chat_logprob_json(p->op, t);

        if (json_array_append_new(json_object_get(o, "content"), entry) != 0)
            p->failed = true;
        return;
    }
    if (json_array_append_new(json_object_get(o, "tokens"), label_json(p->op, t->id)) != 0 ||
        json_array_append_new(json_object_get(o, "token_logprobs"),
                              known ? generation_logprob_json(t->logprob) : json_null()) != 0 ||
        json_array_append_new(json_object_get(o, "top_logprobs"),
                              known ? top_json(p->op, t) : json_null()) != 0 ||
        json_array_append_new(json_object_get(o, "text_offset"),
                              json_integer((json_int_t)offset)) != 0)
        p->failed = true;
}

static void begin_logprobs(struct completions_part *p)
{
    if (p->op->logprobs < 0)
        return;
    p->logprobs = p->op->chat != NULL ? json_pack("{s:[]}", "content")
                                      : json_pack("{s:[], s:[], s:[], s:[]}", "tokens",
                                                  "token_logprobs", "top_logprobs", "text_offset");
    p->failed = p->failed || p->logprobs == NULL;
}

/* The output that carries the prompt's logprobs: the prompt's first choice's. */
static const struct gen_output *prompt_output(const struct completions_part *p)
{
    const struct generation *g = &p->op->g;

    return p->op->stream.on ? NULL : g->seqs[p->seq->prompt * g->params.n].out;
}

static void echo_prompt(struct completions_part *p)
{
    const struct completions_op *op = p->op;
    const struct completions_prompt *prompt = &op->prompts[p->seq->prompt];
    const struct gen_output *out = prompt_output(p);
    struct completion_text place;

    buf_append(&p->text, prompt->text, prompt->len);
    if (p->logprobs == NULL || out == NULL || out->prompt == NULL)
        return;
    completion_text_init(&place, op->g.app->tokenizer, op->g.params.skip_special_tokens,
                         &op->g.params.gen, true, 0);
    for (uint32_t i = 0; i < out->n_prompt; i++) {
        add_logprob(p, &out->prompt[i], i > 0, place.n_chars);
        completion_text_push(&place, out->prompt[i].id);
    }
    completion_text_fini(&place);
}

/* The stop token itself is not text, as in every server that trainers know. */
static bool is_silent(const struct completions_part *p, uint32_t i)
{
    return p->out != NULL && i + 1 == p->out->n_tokens && p->out->finish == GEN_STOP &&
           p->out->stop_text == NULL && !p->op->g.params.include_stop_str;
}

static void fill_part(struct completions_part *p)
{
    struct completion_text *c = &p->op->texts[p->seq->index];

    begin_logprobs(p);
    if (!p->seq->begun && p->op->echo)
        echo_prompt(p);
    completion_text_more(c);
    for (uint32_t i = p->first; i < p->end; i++) {
        add_logprob(p, &p->tokens[i], true, c->n_chars);
        if (!is_silent(p, i))
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

    if (!p->op->return_ids || p->seq->begun)
        return json_null();
    return generation_ids_json(prompt->ids, prompt->n);
}

/* A token that nobody asked for stops nothing. */
static json_t *finish_json(const struct completions_part *p)
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

static json_t *part_json(const struct completions_part *p)
{
    const struct completions_op *op = p->op;
    json_t *choice;

    if (p->failed)
        return NULL;
    if (op->chat != NULL)
        return chat_choice_json(p);
    choice = json_pack(
        "{s:I, s:o, s:O?, s:o, s:o, s:o, s:o, s:o, s:n}", "index", (json_int_t)p->seq->index,
        "text", json_stringn(p->text.len > 0 ? p->text.data : "", p->text.len), "logprobs",
        p->logprobs, "finish_reason", finish_json(p), "stop_reason",
        op->no_output ? json_null() : generation_stop_reason_json(p->out), "token_ids",
        op->return_ids ? generation_token_ids_json(p->tokens, p->first, p->end) : json_null(),
        "prompt_token_ids", prompt_ids_json(p), "prompt_logprobs",
        op->prompt_logprobs >= 0
            ? generation_prompt_logprobs_json(prompt_output(p), (uint32_t)op->prompt_logprobs,
                                              op->g.app->tokenizer)
            : json_null(),
        "routed_experts");
    if (choice != NULL && p->out != NULL &&
        json_object_set_new(choice, "weight_versions", completions_versions_json(op, p->out)) !=
            0) {
        json_decref(choice);
        return NULL;
    }
    return choice;
}

/* What every answer and every event says. @choices and @usage are stolen. */
static json_t *envelope(struct completions_op *op, json_t *choices, json_t *usage)
{
    const struct app *app = op->g.app;

    if (op->chat != NULL)
        return chat_envelope(op, choices, usage);
    return json_pack("{s:o, s:s, s:I, s:n, s:s, s:s, s:o, s:o, s:o, s:s}", "id",
                     json_sprintf("cmpl-%s", op->request_id), "object", "text_completion",
                     "created", (json_int_t)op->created_s, "service_tier", "system_fingerprint",
                     GENERATION_FINGERPRINT, "model", generation_model(&op->g), "adapter",
                     generation_adapter_json(&op->g), "choices", choices, "usage", usage, "boot_id",
                     app->life->boot_id);
}

static json_t *usage_json(const struct completions_op *op)
{
    return generation_usage_json(generation_n_prompt(&op->g), generation_n_sent(&op->g));
}

static void drop_part(struct completions_part *p)
{
    p->seq->n_sent = p->end;
    p->seq->told = p->out != NULL;
    json_decref(p->logprobs);
    buf_fini(&p->text);
}

bool completions_next(struct completions_part *p, struct completions_op *op,
                      struct generation_seq *seq)
{
    struct gen_output *out;

    *p = (struct completions_part){.op = op, .seq = seq, .first = seq->n_sent};
    generation_look(seq, &p->tokens, &p->end, &out);
    p->out = out;
    if (seq->told || (out != NULL && out->finish == GEN_ERROR))
        return false;
    if (op->no_output)
        p->end = p->first;
    if (out == NULL && p->end == p->first)
        return false;
    if (op->stream.on && p->end - p->first > generation_share(&op->g)) {
        p->end = p->first + generation_share(&op->g);
        p->out = NULL;
    }
    fill_part(p);
    return true;
}

void completions_told(struct completions_part *p)
{
    p->seq->begun = true;
    drop_part(p);
}

/* The next part of a choice as JSON. Returns false when there is nothing to tell yet. */
static bool next_part(struct completions_op *op, struct generation_seq *seq, json_t **choice)
{
    struct completions_part p;

    if (!completions_next(&p, op, seq))
        return false;
    *choice = part_json(&p);
    completions_told(&p);
    return true;
}

void completions_news(struct generation *g)
{
    struct completions_op *op = completions_of(g);
    json_t *choice = NULL;

    for (uint32_t i = 0; i < g->n_seqs; i++) {
        while (generation_keeps_up(g) && next_part(op, &g->seqs[i], &choice))
            generation_event(g, envelope(op, json_pack("[o]", choice),
                                         op->stream.usage_each ? usage_json(op) : json_null()));
    }
}

static json_t *whole_json(struct completions_op *op)
{
    struct generation *g = &op->g;
    json_t *choices = json_array(), *choice = NULL;

    for (uint32_t i = 0; i < g->n_seqs && choices != NULL; i++) {
        if (!exchange_gone(g->x) && next_part(op, &g->seqs[i], &choice) &&
            json_array_append_new(choices, choice) == 0)
            continue;
        json_decref(choices);
        choices = NULL;
    }
    return generation_with(
        envelope(op, choices, usage_json(op)),
        json_pack("{s:n, s:n, s:n}", "kv_transfer_params", "ec_transfer_params", "metrics"));
}

void completions_finish(struct generation *g)
{
    struct completions_op *op = completions_of(g);
    struct exchange *x = g->x;
    struct err why = {0};
    json_t *whole;
    bool failed = generation_failed(g, &why);

    if (op->stream.on) {
        completions_news(g);
        if (op->stream.usage_last && !failed)
            generation_event(g, envelope(op, json_array(), usage_json(op)));
        generation_end(g);
        return;
    }
    whole = failed ? NULL : whole_json(op);
    failed = generation_failed(g, &why); /* the client may have gone meanwhile */
    g->x = NULL;
    if (failed) {
        json_decref(whole);
        reply_error(x, &why, NULL);
    } else {
        reply_json(x, 200, whole);
    }
}

/* Answers and events of SGLang's /generate. An event says all of its sequence so far, so that one
 * may be left out for a reader that is slow; the last one of each sequence never is. */
#include "handlers/sglang_generate.h"

#include "handlers/generation_reply.h"
#include "handlers/reply.h"
#include "server/life.h"
#include "weights/store.h"

static json_t *text_json(const struct sglang_op *op, uint32_t id)
{
    struct buf text = {0};
    json_t *s;

    if (!op->with_text)
        return json_null();
    generation_token_text(op->c.g.app->tokenizer, id, &text);
    s = text.failed ? NULL : json_stringn(text.len > 0 ? text.data : "", text.len);
    buf_fini(&text);
    return s;
}

/* [logprob, id, text]; @logprob  new */
static json_t *tuple_json(const struct sglang_op *op, uint32_t id, json_t *logprob)
{
    return json_pack("[o, I, o]", logprob, (json_int_t)id, text_json(op, id));
}

static json_t *tops_json(const struct sglang_op *op, const struct gen_token *t)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < t->n_top && array != NULL; i++) {
        json_t *tuple = tuple_json(op, t->top[i].id, generation_logprob_json(t->top[i].logprob));

        if (json_array_append_new(array, tuple) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static int begin_told(struct sglang_told *told)
{
    if (told->ids != NULL)
        return 0;
    told->ids = json_array();
    told->logprobs = json_array();
    told->tops = json_array();
    return told->ids != NULL && told->logprobs != NULL && told->tops != NULL ? 0 : -1;
}

static int tell_token(const struct sglang_op *op, struct sglang_told *told,
                      const struct gen_token *t)
{
    if (json_array_append_new(told->ids, json_integer(t->id)) != 0)
        return -1;
    if (op->with_logprobs &&
        json_array_append_new(told->logprobs,
                              tuple_json(op, t->id, generation_logprob_json(t->logprob))) != 0)
        return -1;
    return op->n_top == 0 ? 0 : json_array_append_new(told->tops, tops_json(op, t));
}

/* Adds the part to what was told. Returns -1 without memory. */
static int tell_part(const struct sglang_op *op, struct sglang_told *told,
                     const struct completions_part *p)
{
    if (begin_told(told) != 0 || p->failed)
        return -1;
    for (uint32_t i = p->first; i < p->end; i++)
        if (tell_token(op, told, &p->tokens[i]) != 0)
            return -1;
    buf_append(&told->text, p->text.data, p->text.len);
    return told->text.failed ? -1 : 0;
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

/* AReaL takes a message that begins with "Abort before prefill" for an output without tokens. */
static json_t *abort_json(const struct gen_output *out)
{
    return json_pack("{s:s, s:s, s:n, s:n}", "type", "abort", "message",
                     out->n_tokens == 0 ? "Abort before prefill" : "Aborted", "status_code",
                     "err_type");
}

static json_t *finish_json(const struct sglang_op *op, const struct gen_output *out)
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

/* Of the newest token; where there is none, and before the end, what serves now. */
static json_t *version_json(const struct sglang_op *op, const struct gen_output *out)
{
    struct store_info info = {0};

    if (out != NULL && out->n_spans > 0)
        return json_string(out->spans[out->n_spans - 1].label);
    if (op->c.g.app->store == NULL)
        return json_null();
    store_info(op->c.g.app->store, &info);
    return info.serial > 0 ? json_string(info.label) : json_null();
}

/* The prompt's, from the start that was asked for; as SGLang, of the first of them nothing is told.
 * They are there when the prompt's first sequence ended, which computes them for all. */
static int put_input_logprobs(const struct sglang_op *op, const struct generation_seq *seq,
                              json_t *meta)
{
    const struct generation *g = &op->c.g;
    json_t *tokens = json_array(), *tops = json_array();
    const struct gen_token *ignored;
    struct gen_output *out = NULL;
    uint32_t n = 0, start = 0;
    int rc = tokens == NULL || tops == NULL ? -1 : 0;

    generation_look(&g->seqs[seq->prompt * g->params.n], &ignored, &n, &out);
    n = op->logprob_start >= 0 && out != NULL && out->prompt != NULL ? out->n_prompt : 0;
    if (op->logprob_start < n)
        start = op->logprob_start > 0 ? (uint32_t)op->logprob_start : 0;
    else
        n = 0;
    for (uint32_t i = start; i < n && rc == 0; i++) {
        const struct gen_token *t = &out->prompt[i];

        rc = json_array_append_new(
            tokens,
            tuple_json(op, t->id, i > start ? generation_logprob_json(t->logprob) : json_null()));
        if (rc == 0)
            rc = json_array_append_new(tops, i > start ? tops_json(op, t) : json_null());
    }
    if (rc == 0)
        rc = json_object_set(meta, "input_token_logprobs", tokens);
    if (rc == 0 && op->n_top > 0)
        rc = json_object_set(meta, "input_top_logprobs", tops);
    json_decref(tokens);
    json_decref(tops);
    return rc;
}

static int put_logprobs(const struct sglang_op *op, const struct generation_seq *seq,
                        const struct gen_output *out, json_t *meta)
{
    const struct sglang_told *told = &op->told[seq->index];

    if (!op->with_logprobs)
        return 0;
    if (json_object_set(meta, "output_token_logprobs", told->logprobs) != 0 ||
        (op->n_top > 0 && json_object_set(meta, "output_top_logprobs", told->tops) != 0))
        return -1;
    return op->logprob_start >= 0 && out == NULL ? 0 : put_input_logprobs(op, seq, meta);
}

static json_t *meta_json(const struct sglang_op *op, const struct generation_seq *seq,
                         const struct gen_output *out)
{
    const struct generation *g = &op->c.g;
    json_t *meta = json_pack("{s:s, s:o, s:I, s:I, s:i, s:o, s:o, s:s}", "id", op->rids[seq->index],
                             "finish_reason", finish_json(op, out), "prompt_tokens",
                             (json_int_t)g->prompts[seq->prompt].n, "completion_tokens",
                             (json_int_t)json_array_size(op->told[seq->index].ids), "cached_tokens",
                             0, "weight_version", version_json(op, out), "adapter",
                             generation_adapter_json(g), "boot_id", g->app->life->boot_id);

    if (meta != NULL && put_logprobs(op, seq, out, meta) == 0 &&
        (out == NULL ||
         json_object_set_new(meta, "weight_versions", completions_versions_json(&op->c, out)) == 0))
        return meta;
    json_decref(meta);
    return NULL;
}

/* A sequence as it stands after the part; NULL without memory. */
static json_t *item_json(const struct sglang_op *op, const struct completions_part *p)
{
    struct sglang_told *told = &op->told[p->seq->index];
    json_t *item;

    if (tell_part(op, told, p) != 0)
        return NULL;
    item = json_pack("{s:o, s:O, s:o}", "text",
                     json_stringn(told->text.len > 0 ? told->text.data : "", told->text.len),
                     "output_ids", told->ids, "meta_info", meta_json(op, p->seq, p->out));
    if (item == NULL || !op->c.stream.on || !op->many ||
        json_object_set_new(item, "index", json_integer(p->seq->index)) == 0)
        return item;
    json_decref(item);
    return NULL;
}

/* The next event of a sequence. Returns false when there is none. */
static bool tell_seq(struct sglang_op *op, struct generation_seq *seq)
{
    struct completions_part p;

    if (!completions_next(&p, &op->c, seq))
        return false;
    generation_event(&op->c.g, item_json(op, &p));
    completions_told(&p);
    return true;
}

void sglang_generate_news(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        while (generation_keeps_up(g) && tell_seq(sglang_of(g), &g->seqs[i]))
            ;
}

static json_t *whole_json(struct sglang_op *op)
{
    struct generation *g = &op->c.g;
    json_t *array = json_array(), *first;

    for (uint32_t i = 0; i < g->n_seqs && array != NULL; i++) {
        struct completions_part p;
        json_t *item = NULL;

        if (!exchange_gone(g->x) && completions_next(&p, &op->c, &g->seqs[i])) {
            item = item_json(op, &p);
            completions_told(&p);
        }
        if (json_array_append_new(array, item) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    if (op->many || array == NULL)
        return array;
    first = json_incref(json_array_get(array, 0));
    json_decref(array);
    return first;
}

void sglang_generate_finish(struct generation *g)
{
    struct sglang_op *op = sglang_of(g);
    struct exchange *x = g->x;
    struct err why = {0};
    json_t *whole = NULL;

    if (op->c.stream.on) {
        sglang_generate_news(g);
        generation_end(g);
        return;
    }
    if (!generation_failed(g, &why))
        whole = whole_json(op);
    (void)generation_failed(g, &why); /* the client may have gone meanwhile */
    g->x = NULL;
    if (why.code != ERR_NONE) {
        json_decref(whole);
        reply_error(x, &why, NULL);
    } else {
        reply_json(x, 200, whole);
    }
}

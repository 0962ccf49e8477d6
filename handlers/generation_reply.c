/* JSON of what the engine made, and the framing of server-sent events. */
#include "handlers/generation_reply.h"

#include "engine/embedded/tokenizer.h"
#include "handlers/reply.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *generation_logprob_json(float logprob)
{
    double v = (double)logprob;

    return json_real(isfinite(v) && v > GENERATION_LOGPROB_MIN ? v : GENERATION_LOGPROB_MIN);
}

/* Appends, and turns a failure into NULL so that builders check once. */
static json_t *append(json_t *array, json_t *item)
{
    if (array != NULL && json_array_append_new(array, item) == 0)
        return array;
    if (array == NULL)
        json_decref(item);
    json_decref(array);
    return NULL;
}

json_t *generation_with(json_t *o, json_t *more)
{
    if (json_object_update_new(o, more) == 0)
        return o;
    json_decref(o);
    return NULL;
}

json_t *generation_versions_json(const struct gen_output *out)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < out->n_spans && array != NULL; i++) {
        const struct gen_span *s = &out->spans[i];

        array = append(array, json_pack("{s:s, s:I, s:I, s:I}", "version", s->label, "start",
                                        (json_int_t)s->start, "end", (json_int_t)s->end, "serial",
                                        (json_int_t)s->serial));
    }
    return array;
}

json_t *generation_finish_json(const struct gen_output *out)
{
    return out != NULL ? json_string(gen_finish_name(out->finish)) : json_null();
}

json_t *generation_stop_reason_json(const struct gen_output *out)
{
    if (out == NULL || out->finish != GEN_STOP)
        return json_null();
    if (out->stop_text != NULL)
        return json_string(out->stop_text);
    return out->stop_id >= 0 ? json_integer(out->stop_id) : json_null();
}

json_t *generation_adapter_json(const struct generation *g)
{
    if (g->lora == NULL)
        return json_null();
    return json_pack("{s:s, s:o}", "name", g->lora, "revision",
                     g->lora_revision > 0 ? json_integer((json_int_t)g->lora_revision)
                                          : json_null());
}

json_t *generation_usage_json(uint64_t n_prompt, uint64_t n_completion)
{
    return json_pack("{s:I, s:I, s:I, s:n, s:n}", "prompt_tokens", (json_int_t)n_prompt,
                     "completion_tokens", (json_int_t)n_completion, "total_tokens",
                     (json_int_t)(n_prompt + n_completion), "prompt_tokens_details",
                     "completion_tokens_details");
}

json_t *generation_ids_json(const uint32_t *ids, uint32_t n)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < n && array != NULL; i++)
        array = append(array, json_integer(ids[i]));
    return array;
}

json_t *generation_token_ids_json(const struct gen_token *tokens, uint32_t first, uint32_t end)
{
    json_t *array = json_array();

    for (uint32_t i = first; i < end && array != NULL; i++)
        array = append(array, json_integer(tokens[i].id));
    return array;
}

void generation_token_text(const struct tokenizer *t, uint32_t id, struct buf *out)
{
    if (tokenizer_token(t, id) == NULL)
        buf_printf(out, "token_id:%u", id); /* the model's padding has no spelling */
    else
        tokenizer_token_text(t, id, out);
}

static json_t *decoded_json(const struct tokenizer *t, uint32_t id)
{
    struct buf text = {0};
    json_t *s;

    if (t == NULL)
        return json_null();
    generation_token_text(t, id, &text);
    s = text.failed ? NULL : json_stringn(text.len > 0 ? text.data : "", text.len);
    buf_fini(&text);
    return s;
}

static int put_prompt_logprob(json_t *object, uint32_t id, float logprob, uint32_t rank,
                              const struct tokenizer *t)
{
    char key[16];

    (void)snprintf(key, sizeof key, "%u", id);
    if (json_object_get(object, key) != NULL)
        return 0;
    return json_object_set_new(object, key,
                               json_pack("{s:o, s:I, s:o}", "logprob",
                                         generation_logprob_json(logprob), "rank", (json_int_t)rank,
                                         "decoded_token", decoded_json(t, id)));
}

static json_t *prompt_logprob_json(const struct gen_token *token, uint32_t n_top_max,
                                   const struct tokenizer *t)
{
    json_t *object = json_object();
    int rc = object == NULL ? -1
                            : put_prompt_logprob(object, token->id, token->logprob, token->rank, t);

    for (uint32_t i = 0; i < token->n_top && i < n_top_max && rc == 0; i++)
        rc = put_prompt_logprob(object, token->top[i].id, token->top[i].logprob, token->top[i].rank,
                                t);
    if (rc == 0)
        return object;
    json_decref(object);
    return NULL;
}

json_t *generation_prompt_logprobs_json(const struct gen_output *out, uint32_t n_top_max,
                                        const struct tokenizer *t)
{
    json_t *array;

    if (out == NULL || out->prompt == NULL)
        return json_null();
    array = append(json_array(), json_null()); /* nothing predicts the first token */
    for (uint32_t i = 1; i < out->n_prompt && array != NULL; i++)
        array = append(array, prompt_logprob_json(&out->prompt[i], n_top_max, t));
    return array;
}

uint64_t generation_n_prompt(const struct generation *g)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_prompts; i++)
        n += g->prompts[i].n;
    return n;
}

uint64_t generation_n_sent(const struct generation *g)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_seqs; i++)
        n += g->seqs[i].n_sent;
    return n;
}

uint64_t generation_n_made(const struct generation *g)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_seqs; i++)
        n += g->seqs[i].out != NULL ? g->seqs[i].out->n_tokens : 0;
    return n;
}

static void break_stream(struct generation *g)
{
    g->stream_broken = true;
    generation_cancel(g);
}

static void stream_write(struct generation *g, const void *data, size_t len)
{
    if (g->stream_broken)
        return;
    if (!g->stream_open)
        exchange_stream_open(g->x, 200, "text/event-stream; charset=utf-8");
    g->stream_open = true;
    if (exchange_stream_write(g->x, data, len) != 0)
        break_stream(g);
}

bool generation_keeps_up(const struct generation *g)
{
    return !g->stream_open || exchange_stream_unsent(g->x) <= GENERATION_UNSENT_MAX;
}

uint32_t generation_share(const struct generation *g)
{
    uint32_t n_each = g->params.gen.logprobs > 0 ? (uint32_t)g->params.gen.logprobs + 1 : 1;
    uint32_t n = GENERATION_UNSENT_MAX / GENERATION_LOGPROB_NBYTES / n_each;

    if (!g->stream_late)
        return 1;
    if (g->events_repeat)
        return UINT32_MAX;
    return n > 0 ? n : 1;
}

void generation_event(struct generation *g, json_t *event)
{
    struct buf out = {0};

    if (!g->stream_broken) {
        buf_puts(&out, "data: ");
        reply_dump(&out, event);
        buf_puts(&out, "\n\n");
    }
    json_decref(event);
    if (g->stream_broken || out.failed)
        break_stream(g); /* a missing event must not look like a complete stream */
    else
        stream_write(g, out.data, out.len);
    buf_fini(&out);
}

void generation_end(struct generation *g)
{
    static const char last[] = "data: [DONE]\n\n";
    const struct route *route = g->x->route;
    struct exchange *x = g->x;
    struct err why = {0};
    bool failed = generation_failed(g, &why);

    if (!g->stream_open && (failed || g->stream_broken)) {
        if (!failed)
            (void)err_set(&why, ERR_NO_MEMORY, "", "no memory for the stream's first event");
        reply_error(x, &why, NULL);
        g->x = NULL;
        return;
    }
    if (failed && why.code != ERR_GONE)
        generation_event(g, reply_error_json(route->form, &why, NULL));
    if (why.code != ERR_GONE)
        stream_write(g, last, sizeof last - 1);
    g->x = NULL;
    exchange_stream_close(x, !g->stream_broken && why.code != ERR_GONE);
}

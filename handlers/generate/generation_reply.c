/* JSON of the engine's output, and the framing of server-sent events. */
#include "handlers/generate/generation_reply.h"

#include "handlers/batch/batch.h"
#include "handlers/json_put.h"
#include "handlers/reply.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double generation_logprob(float logprob)
{
    return (double)batch_logprob(logprob);
}

json_t *generation_versions_json(const struct gen_output *out)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < out->n_spans && array != NULL; i++) {
        const struct gen_span *s = &out->spans[i];

        array = json_list_append(array,
                                 json_pack("{s:s, s:I, s:I, s:I}", "version", s->label, "start",
                                           (json_int_t)s->start, "end", (json_int_t)s->end,
                                           "serial", (json_int_t)s->serial));
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

/* The details are null without cached tokens, as in vLLM. */
static json_t *usage_json(uint64_t n_prompt, uint64_t n_cached, uint64_t n_completion)
{
    return json_pack("{s:I, s:I, s:I, s:o, s:n}", "prompt_tokens", (json_int_t)n_prompt,
                     "completion_tokens", (json_int_t)n_completion, "total_tokens",
                     (json_int_t)(n_prompt + n_completion), "prompt_tokens_details",
                     n_cached > 0 ? json_pack("{s:I}", "cached_tokens", (json_int_t)n_cached)
                                  : json_null(),
                     "completion_tokens_details");
}

json_t *generation_usage_json(const struct generation *g, uint64_t n_completion)
{
    uint64_t n_prompt = 0, n_cached = 0;

    for (uint32_t i = 0; i < g->n_prompts; i++)
        n_prompt += g->prompts[i].n;
    for (uint32_t i = 0; i < g->n_seqs; i++)
        n_cached += g->seqs[i].choice == 0 ? generation_n_cached(&g->seqs[i]) : 0;
    return usage_json(n_prompt, n_cached, n_completion);
}

json_t *generation_usage_each(const struct generation_seq *seq, bool each)
{
    return each ? usage_json(seq->g->prompts[seq->prompt].n, generation_n_cached(seq), seq->n_sent)
                : json_null();
}

uint32_t generation_n_cached(const struct generation_seq *seq)
{
    uint32_t n;

    mtx_lock(&seq->g->lock);
    n = seq->n_cached;
    mtx_unlock(&seq->g->lock);
    return n;
}

json_t *generation_ids_json(const uint32_t *ids, uint32_t n)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < n && array != NULL; i++)
        array = json_list_append(array, json_integer(ids[i]));
    return array;
}

void generation_put_token_ids(struct buf *out, const struct gen_token *tokens, uint32_t first,
                              uint32_t end)
{
    json_put_open(out, '[');
    for (uint32_t i = first; i < end; i++)
        json_put_int(out, tokens[i].id);
    json_put_close(out, ']');
}

void generation_token_text(const struct tokenizer *t, uint32_t id, struct buf *out)
{
    if (tokenizer_token(t, id) == NULL)
        buf_printf(out, "token_id:%u", id); /* padding of the vocabulary has no text */
    else
        tokenizer_token_text(t, id, out);
}

void generation_put_token_text(struct buf *out, const struct tokenizer *t, uint32_t id)
{
    struct buf text = {0};

    generation_token_text(t, id, &text);
    if (text.failed)
        out->failed = true;
    json_put_string(out, text.len > 0 ? text.data : "", text.len);
    buf_fini(&text);
}

static void put_prompt_logprob(struct buf *out, uint32_t id, float logprob, uint32_t rank,
                               const struct tokenizer *t)
{
    char name[16];

    (void)snprintf(name, sizeof name, "%u", id);
    json_put_name(out, name);
    json_put_open(out, '{');
    json_put_name(out, "logprob");
    json_put_real(out, generation_logprob(logprob));
    json_put_name(out, "rank");
    json_put_int(out, rank);
    json_put_name(out, "decoded_token");
    if (t != NULL)
        generation_put_token_text(out, t, id);
    else
        json_put_null(out);
    json_put_close(out, '}');
}

/* The prompt's own token is often one of the most likely ones: it is listed once. */
static void put_prompt_token(struct buf *out, const struct gen_token *token, uint32_t n_top_max,
                             const struct tokenizer *t)
{
    json_put_open(out, '{');
    put_prompt_logprob(out, token->id, token->logprob, token->rank, t);
    for (uint32_t i = 0; i < token->n_top && i < n_top_max; i++)
        if (token->top[i].id != token->id)
            put_prompt_logprob(out, token->top[i].id, token->top[i].logprob, token->top[i].rank, t);
    json_put_close(out, '}');
}

void generation_put_prompt_logprobs(struct buf *out, const struct gen_output *made,
                                    uint32_t n_top_max, const struct tokenizer *t)
{
    if (made == NULL || made->prompt == NULL) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '[');
    json_put_null(out); /* the first token has no logprob */
    for (uint32_t i = 1; i < made->n_prompt; i++)
        put_prompt_token(out, &made->prompt[i], n_top_max, t);
    json_put_close(out, ']');
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

static uint64_t n_tops(int32_t logprobs)
{
    return logprobs > 0 ? (uint64_t)logprobs : 0;
}

static uint64_t routes_nbytes(const struct gen_output *out)
{
    return (uint64_t)out->n_routed * out->n_route_layers * out->n_routes_per_token *
           sizeof *out->routes;
}

uint64_t generation_outputs_nbytes(const struct generation *g)
{
    const struct gen_params *p = &g->params.gen;
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct gen_output *out = g->seqs[i].out;

        if (out == NULL)
            continue;
        n += out->n_tokens * (sizeof *out->tokens + n_tops(p->logprobs) * sizeof(struct gen_top));
        if (out->prompt != NULL)
            n += out->n_prompt *
                 (sizeof *out->prompt + n_tops(p->prompt_logprobs) * sizeof(struct gen_top));
        n += routes_nbytes(out);
    }
    return n;
}

uint64_t generation_text_nbytes(const struct generation *g)
{
    enum { TOKEN_NBYTES = 16 /* its id and text */, ROUTES_TIMES = 3 /* int32, in base64 */ };
    const struct gen_params *p = &g->params.gen;
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct gen_output *out = g->seqs[i].out;
        uint64_t n_logprobs = 0;

        if (out == NULL)
            continue;
        if (p->logprobs >= 0)
            n_logprobs = out->n_tokens * (1 + n_tops(p->logprobs));
        if (out->prompt != NULL)
            n_logprobs += out->n_prompt * (1 + n_tops(p->prompt_logprobs)) *
                          g->prompt_logprobs_times;
        n += (uint64_t)out->n_tokens * TOKEN_NBYTES + n_logprobs * GENERATION_LOGPROB_NBYTES +
             ROUTES_TIMES * routes_nbytes(out);
    }
    return n;
}

int generation_fill_body(struct unread_body *b, struct buf *text, struct err *e)
{
    size_t len = 0;
    char *data;

    buf_append(text, "\n", 1); /* so that a shell's prompt begins a line of its own */
    data = buf_take(text, &len);
    if (data == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the answer");
    unread_body_fill(b, data, len);
    return 0;
}

/* NULL: an error. */
static struct unread_body *
write_whole(struct generation *g, void (*put)(struct buf *out, struct generation *g), struct err *e)
{
    struct unread_body *b;
    struct buf text = {0};

    if (unread_body_new(&b, g->app->settings.max_unread_nbytes, g->n_unread,
                        generation_text_nbytes(g), e) != 0)
        return NULL;
    put(&text, g);
    if (generation_fill_body(b, &text, e) == 0)
        return b;
    unread_body_free(b);
    return NULL;
}

void generation_reply_body(struct http_request *x, struct unread_body *b, const char *content_type)
{
    http_reply(x, &(struct http_reply){.status = 200,
                                       .content_type = content_type,
                                       .data = b->data,
                                       .len = b->nbytes,
                                       .release = unread_body_free,
                                       .release_arg = b});
}

void generation_reply_whole(struct generation *g,
                            void (*put)(struct buf *out, struct generation *g))
{
    struct unread_body *b = NULL;
    struct http_request *x = g->x;
    struct err why = {0}, gone = {0};

    if (!generation_failed(g, &why))
        b = write_whole(g, put, &why);
    if (generation_failed(g, &gone)) /* the client may have disconnected meanwhile */
        why = gone;
    g->x = NULL;
    if (why.code == ERR_NONE) {
        generation_reply_body(x, b, "application/json");
        return;
    }
    unread_body_free(b);
    reply_error(x, &why, NULL);
}

void generation_break_stream(struct generation *g)
{
    g->stream_broken = true;
    generation_cancel(g);
}

void generation_stream(struct generation *g, const char *content_type, const void *data, size_t len)
{
    if (g->stream_broken)
        return;
    if (!g->stream_open)
        http_request_stream_open(g->x, 200, content_type);
    g->stream_open = true;
    if (http_request_stream_write(g->x, data, len) != 0)
        generation_break_stream(g);
}

static void stream_write(struct generation *g, const void *data, size_t len)
{
    generation_stream(g, "text/event-stream; charset=utf-8", data, len);
}

bool generation_client_keeps_up(struct generation *g)
{
    if (g->stream_open && http_request_stream_unsent(g->x) > GENERATION_UNSENT_MAX)
        g->stream_behind = true;
    return !g->stream_behind;
}

uint32_t generation_event_tokens_max(const struct generation *g)
{
    uint32_t n_each = g->params.gen.logprobs > 0 ? (uint32_t)g->params.gen.logprobs + 1 : 1;
    uint32_t n = GENERATION_UNSENT_MAX / GENERATION_LOGPROB_NBYTES / n_each;

    if (!g->stream_lagged)
        return 1;
    if (g->events_repeat)
        return UINT32_MAX;
    return n > 0 ? n : 1;
}

void generation_event_begin(struct buf *event)
{
    buf_puts(event, "data: ");
}

void generation_event(struct generation *g, struct buf *event)
{
    buf_puts(event, "\n\n");
    if (event->failed)
        generation_break_stream(g); /* a missing event must not look like a complete stream */
    else
        stream_write(g, event->data, event->len);
    buf_fini(event);
}

void generation_end(struct generation *g)
{
    static const char last[] = "data: [DONE]\n\n";
    const struct route *route = g->x->route;
    struct http_request *x = g->x;
    struct err why = {0};
    struct buf event = {0};
    bool failed = generation_failed(g, &why);

    if (!g->stream_open && (failed || g->stream_broken)) {
        if (!failed)
            (void)err_set(&why, ERR_NO_MEMORY, "", "no memory for the stream's first event");
        reply_error(x, &why, NULL);
        g->x = NULL;
        return;
    }
    if (failed && why.code != ERR_GONE) {
        generation_event_begin(&event);
        json_put_value(&event, reply_error_json(route->form, &why, NULL));
        generation_event(g, &event);
    }
    if (why.code != ERR_GONE)
        stream_write(g, last, sizeof last - 1);
    g->x = NULL;
    http_request_stream_close(x, !g->stream_broken && why.code != ERR_GONE);
}

/* POST /v1/generate and /inference/v1/generate: token ids in, token ids out.
 *
 * The two routes differ only in how they treat unknown members. The reply has no text: stop strings
 * work, but a trainer gets exactly the sampled ids. */
#include "handlers/data_plane.h"

#include "base/clock.h"
#include "control/life.h"
#include "handlers/body.h"
#include "handlers/dialect.h"
#include "handlers/generate/generation.h"
#include "handlers/generate/generation_parse.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/generate/routed_experts.h"
#include "handlers/json_put.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/rows/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *generate_hint(const char *member)
{
    static const char *const elsewhere[][2] = {
        {"prompt", "text goes to /v1/completions; token ids are token_ids"},
        {"text", "text goes to /v1/completions; token ids are token_ids"},
        {"messages", "messages go to /v1/chat/completions; token ids are token_ids"},
        {"input_ids", "token ids are token_ids"},
        {"prompt_token_ids", "token ids are token_ids"},
    };

    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (strcmp(member, elsewhere[i][0]) == 0)
            return elsewhere[i][1];
    return member_find(sampling_rows, member, 0) != NULL ? "it belongs inside sampling_params"
                                                         : NULL;
}

struct generate_op {
    struct generation g; /* first: generation_ops.free gets its address */
    char *request_id;    /* owned */
    int64_t created_s;
    struct generation_stream stream;
    bool sampled_only; /* the dialect has only the logprob of the sampled token */
    enum routed_form routed_form;
    struct replay_layout replay; /* n_stages 0: none */
    bool return_ids, prompt_sent;
};

static struct generate_op *op_of(struct generation *g)
{
    return (struct generate_op *)(void *)g;
}

static void put_entry(struct buf *out, uint32_t id, float logprob, uint32_t rank)
{
    char token[32];

    (void)snprintf(token, sizeof token, "token_id:%u", id);
    json_put_name(out, "token");
    json_put_string(out, token, strlen(token));
    json_put_name(out, "token_id");
    json_put_int(out, id);
    json_put_name(out, "logprob");
    json_put_real(out, generation_logprob(logprob));
    json_put_name(out, "rank");
    json_put_int(out, rank);
    json_put_name(out, "bytes");
    json_put_null(out);
}

/* @n_top  how many of the most likely tokens to list */
static void put_generate_token(struct buf *out, const struct gen_token *t, uint32_t n_top)
{
    json_put_open(out, '{');
    put_entry(out, t->id, t->logprob, t->rank);
    json_put_name(out, "top_logprobs");
    json_put_open(out, '[');
    for (uint32_t i = 0; i < n_top; i++) {
        json_put_open(out, '{');
        put_entry(out, t->top[i].id, t->top[i].logprob, t->top[i].rank);
        json_put_close(out, '}');
    }
    json_put_close(out, ']');
    json_put_close(out, '}');
}

static void put_generate_logprobs(struct buf *out, const struct generate_op *op,
                                  const struct gen_token *tokens, uint32_t first, uint32_t end)
{
    if (op->g.params.gen.logprobs < 0) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '{');
    json_put_name(out, "content");
    json_put_open(out, '[');
    for (uint32_t i = first; i < end; i++)
        put_generate_token(out, &tokens[i], op->sampled_only ? 0 : tokens[i].n_top);
    json_put_close(out, ']');
    json_put_close(out, '}');
}

static void put_plain_logprobs(struct buf *out, const struct generation *g,
                               const struct gen_output *made)
{
    if (g->params.gen.logprobs < 0) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '{');
    json_put_name(out, "content");
    json_put_open(out, '[');
    for (uint32_t i = 0; i < made->n_tokens; i++) {
        json_put_open(out, '{');
        json_put_name(out, "logprob");
        json_put_real(out, generation_logprob(made->tokens[i].logprob));
        json_put_close(out, '}');
    }
    json_put_close(out, ']');
    json_put_close(out, '}');
}

/* Writes a choice with the tokens [first, end). `made` is NULL while the sequence runs. */
static void put_generate_choice(struct buf *out, const struct generate_op *op,
                                const struct generation_seq *seq, const struct gen_token *tokens,
                                uint32_t first, uint32_t end, const struct gen_output *made)
{
    json_put_open(out, '{');
    json_put_name(out, "index");
    json_put_int(out, seq->index);
    json_put_name(out, "token_ids");
    generation_put_token_ids(out, tokens, first, end);
    json_put_name(out, "finish_reason");
    json_put_value(out, generation_finish_json(made));
    json_put_name(out, "stop_reason");
    json_put_value(out, generation_stop_reason_json(made));
    json_put_name(out, "logprobs");
    put_generate_logprobs(out, op, tokens, first, end);
    json_put_name(out, "routed_experts");
    routed_experts_put(out, seq, made, end, op->routed_form);
    if (made != NULL && op->replay.n_stages > 0) {
        json_put_name(out, "replay_blocks");
        routed_experts_put_blocks(out, seq, made, &op->replay);
    }
    json_put_members(out, json_pack("{s:n}", "sampling_mask"));
    if (made != NULL) {
        json_put_name(out, "weight_versions");
        json_put_value(out, generation_versions_json(made));
    }
    json_put_close(out, '}');
}

/* put_generate_head and put_generate_tail write the members around the choices of each reply and
 * event. */
static void put_generate_head(struct buf *out, const struct generate_op *op)
{
    json_put_open(out, '{');
    json_put_name(out, "request_id");
    json_put_string(out, op->request_id, strlen(op->request_id));
    json_put_name(out, "choices");
    json_put_open(out, '[');
}

/* @usage  stolen */
static void put_generate_tail(struct buf *out, const struct generate_op *op, json_t *usage)
{
    json_put_close(out, ']');
    json_put_members(out,
                     json_pack("{s:o, s:s, s:o, s:I, s:s, s:s}", "usage", usage, "model",
                               generation_model(&op->g), "adapter", generation_adapter_json(&op->g),
                               "created", (json_int_t)op->created_s, "boot_id",
                               op->g.app->life->boot_id, "output_mode", "tokens"));
}

/* In a stream in the first event. */
static void put_prompt_ids(struct buf *out, struct generate_op *op)
{
    const struct generation_prompt *prompt = &op->g.prompts[0];

    if (!op->return_ids || op->prompt_sent)
        return;
    op->prompt_sent = true;
    json_put_name(out, "prompt_token_ids");
    json_put_value(out, generation_ids_json(prompt->ids, prompt->n));
}

static void put_generate_whole(struct buf *out, struct generation *g)
{
    struct generate_op *op = op_of(g);

    put_generate_head(out, op);
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct gen_output *made = g->seqs[i].out;

        put_generate_choice(out, op, &g->seqs[i], made->tokens, 0, made->n_tokens, made);
    }
    put_generate_tail(out, op, generation_usage_json(g, generation_n_made(g)));
    json_put_name(out, "prompt_logprobs");
    generation_put_prompt_logprobs(out, op->sampled_only ? NULL : g->seqs[0].out, UINT32_MAX, NULL);
    if (op->return_ids)
        put_prompt_ids(out, op);
    else
        json_put_members(out, json_pack("{s:n}", "prompt_token_ids"));
    json_put_members(out, json_pack("{s:n, s:n, s:n, s:n, s:n}", "prompt_token_id_logprobs",
                                    "mm_placeholders", "kv_transfer_params", "ec_transfer_params",
                                    "metrics"));
    json_put_close(out, '}');
}

/* SkyRL's reply: one choice, and only the logprob of each token. */
static void put_skyrl(struct buf *out, struct generation *g)
{
    const struct gen_output *made = g->seqs[0].out;

    json_put_open(out, '{');
    json_put_name(out, "choices");
    json_put_open(out, '[');
    json_put_open(out, '{');
    json_put_name(out, "token_ids");
    generation_put_token_ids(out, made->tokens, 0, made->n_tokens);
    json_put_name(out, "finish_reason");
    json_put_value(out, generation_finish_json(made));
    json_put_name(out, "logprobs");
    put_plain_logprobs(out, g, made);
    json_put_name(out, "routed_experts");
    routed_experts_put(out, &g->seqs[0], made, made->n_tokens, ROUTED_SKYRL);
    json_put_close(out, '}');
    json_put_close(out, ']');
    json_put_close(out, '}');
}

/* Sends the next event of a sequence. Returns false if there is none yet. */
static bool send_generate_event(struct generate_op *op, struct generation_seq *seq)
{
    const struct gen_token *tokens;
    struct buf event = {0};
    struct gen_output *out;
    uint32_t n, first = seq->n_sent;

    generation_snapshot(seq, &tokens, &n, &out);
    if (seq->last_event_sent || (n == first && out == NULL) ||
        (out != NULL && out->finish == GEN_ERROR))
        return false;
    if (n - first > generation_event_tokens_max(&op->g)) {
        n = first + generation_event_tokens_max(&op->g);
        out = NULL;
    }
    generation_event_begin(&event);
    put_generate_head(&event, op);
    put_generate_choice(&event, op, seq, tokens, first, n, out);
    seq->n_sent = n;
    seq->last_event_sent = out != NULL;
    put_generate_tail(&event, op, generation_usage_each(seq, op->stream.usage_each));
    put_prompt_ids(&event, op);
    json_put_close(&event, '}');
    generation_event(&op->g, &event);
    return true;
}

static void generate_on_tokens(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        while (generation_client_keeps_up(g) && send_generate_event(op_of(g), &g->seqs[i]))
            ;
}

static void finish_generate_stream(struct generate_op *op)
{
    struct generation *g = &op->g;
    struct buf event = {0};
    struct err why = {0};

    generate_on_tokens(g);
    if (op->stream.usage_last && !generation_failed(g, &why)) {
        generation_event_begin(&event);
        put_generate_head(&event, op);
        put_generate_tail(&event, op, generation_usage_json(g, generation_n_sent(g)));
        json_put_close(&event, '}');
        generation_event(g, &event);
    }
    generation_end(g);
}

static void generate_finish(struct generation *g)
{
    struct generate_op *op = op_of(g);

    if (op->stream.on)
        finish_generate_stream(op);
    else
        generation_reply_whole(g, op->routed_form == ROUTED_SKYRL ? put_skyrl : put_generate_whole);
}

static void generate_free(struct generation *g)
{
    struct generate_op *op = op_of(g);

    generation_fini(g);
    free(op->request_id);
    free(op);
}

static const struct generation_ops whole_ops = {.finish = generate_finish, .free = generate_free};
static const struct generation_ops stream_ops = {
    .on_tokens = generate_on_tokens, .finish = generate_finish, .free = generate_free};

static int parse_generate_prompt(struct generation *g, const json_t *ids, struct err *e)
{
    const struct app *app = g->app;

    if (generation_check_prompt(app, json_array_size(ids), "/token_ids", e) != 0)
        return -1;
    g->prompts = calloc(1, sizeof *g->prompts);
    if (g->prompts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the prompt");
    g->n_prompts = 1;
    return generate_parse_ids(&g->prompts[0].ids, &g->prompts[0].n, ids, "/token_ids",
                              app->generate->vocab_size, app->generate->max_model_len, e);
}

static int parse_generate_sampling(struct generate_op *op, const json_t *sampling, bool strict,
                                   struct err *e)
{
    static const char at[] = "/sampling_params";
    struct generation *g = &op->g;

    if (!strict)
        dialect_note_unknown(sampling, at + 1, sampling_rows, 0, g->x, g->x->route);
    else if (body_only(sampling, at, sampling_rows, e) != 0)
        return -1;
    if (generate_params_parse(&g->params, sampling, at, g->app->generate->vocab_size,
                              g->app->generate->tokenizer, e) != 0)
        return -1;
    if (op->stream.on && g->params.gen.prompt_logprobs >= 0)
        return err_set(e, ERR_BAD_REQUEST, "/sampling_params/prompt_logprobs",
                       "prompt logprobs are not sent in a stream; set 'stream' to false");
    return 0;
}

static enum routed_form routed_form_of(const struct app *app, const struct route *route)
{
    if (route->routed_array)
        return ROUTED_SKYRL;
    if (route->form == FORM_NATIVE)
        return ROUTED_NATIVE;
    return app->settings.routed_experts == ROUTED_EXPERTS_PRIME_RL ? ROUTED_PRIME_RL : ROUTED_NPY;
}

/* What return_routed_experts is if the request does not say it. */
static bool routed_default(const struct generate_op *op)
{
    bool asks = op->routed_form == ROUTED_NATIVE || op->routed_form == ROUTED_SKYRL;

    return op->g.app->settings.routed_experts != ROUTED_EXPERTS_ON_REQUEST && !asks;
}

static int generate_parse(struct generate_op *op, const json_t *body, bool strict, struct err *e)
{
    struct generation *g = &op->g;
    struct generate_request r;

    if (generation_read(&r, &op->request_id, g, generate_members, body, routed_default(op), e) !=
            0 ||
        generation_read_stream(&op->stream, &r, strict, e) != 0 ||
        parse_generate_prompt(g, r.token_ids, e) != 0 ||
        parse_generate_sampling(op, r.sampling_params, strict, e) != 0 ||
        routed_experts_parse_replay(&op->replay, g, r.replay_layout, e) != 0)
        return -1;
    op->return_ids = r.return_token_ids;
    return generation_expand(g, "/sampling_params/n", e);
}

int handle_generate(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    struct generate_op *op;
    json_t *body = NULL;

    if (route->dialect == DIALECT_NATIVE && route->strict && rollouts_accepted(x))
        return handle_rollouts(app, x, e);
    if (generation_check_app(app, NULL, e) != 0 || body_parse(&body, x, route, e) != 0)
        return -1;
    http_request_drop_body(x);
    op = calloc(1, sizeof *op);
    if (op == NULL) {
        json_decref(body);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    }
    generation_init(&op->g, app, x, &whole_ops, app->generate_executor);
    op->g.id_prefix = "generate-tokens-";
    op->g.logprobs_at = "/sampling_params/logprobs";
    op->g.prompt_logprobs_at = "/sampling_params/prompt_logprobs";
    op->g.routes_start_at = "/sampling_params/routed_experts_prompt_start";
    op->routed_form = routed_form_of(app, route);
    op->created_s = clock_wall_s();
    op->sampled_only = route->dialect != DIALECT_NATIVE;
    if (generate_parse(op, body, route->strict, e) != 0) {
        json_decref(body);
        generation_unref(&op->g);
        return -1;
    }
    json_decref(body);
    if (op->stream.on)
        op->g.ops = &stream_ops;
    generation_announce(&op->g);
    generation_watch(&op->g);
    generation_enter(&op->g);
    return 0;
}

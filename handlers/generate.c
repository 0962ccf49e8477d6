/* POST /v1/generate and /inference/v1/generate: token ids in, token ids out.
 *
 * The two routes differ only in how they treat members that nobody knows. Text is not made here:
 * stop strings work, but the answer is ids, so that what was sampled is what is trained on. */
#include "handlers/data_plane.h"

#include "base/clock.h"
#include "handlers/body.h"
#include "handlers/generation.h"
#include "handlers/generation_parse.h"
#include "handlers/generation_reply.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "server/life.h"

#include <stdlib.h>
#include <string.h>

const char *const generate_members[] = {"token_ids",
                                        "sampling_params",
                                        "model",
                                        "request_id",
                                        "session_id",
                                        "stream",
                                        "stream_options",
                                        "on_update",
                                        "cache_salt",
                                        "priority",
                                        "features",
                                        "kv_transfer_params",
                                        "ec_transfer_params",
                                        "return_token_ids",
                                        "output_mode",
                                        "content_parts",
                                        "reasoning_ended",
                                        "reasoning_parser_kwargs",
                                        "token_offsets",
                                        "assistant_tokens_mask",
                                        NULL};

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
    for (const char *const *m = generate_sampling_members; *m != NULL; m++)
        if (strcmp(member, *m) == 0)
            return "it belongs inside sampling_params";
    return NULL;
}

static const struct neutral_rule generate_rules[] = {{"priority", NEUTRAL_NUMBER, 0},
                                                     {"features", NEUTRAL_NULL, 0},
                                                     {"kv_transfer_params", NEUTRAL_NULL, 0},
                                                     {"ec_transfer_params", NEUTRAL_NULL, 0},
                                                     {"content_parts", NEUTRAL_EMPTY, 0},
                                                     {"reasoning_ended", NEUTRAL_FALSE, 0},
                                                     {"reasoning_parser_kwargs", NEUTRAL_EMPTY, 0},
                                                     {"token_offsets", NEUTRAL_FALSE, 0},
                                                     {"assistant_tokens_mask", NEUTRAL_FALSE, 0},
                                                     {NULL, NEUTRAL_NULL, 0}};

struct generate_op {
    struct generation g; /* first: generation_ops.free gets its address */
    char *request_id;    /* owned */
    int64_t created_s;
    struct generation_stream stream;
};

static struct generate_op *op_of(struct generation *g)
{
    return (struct generate_op *)(void *)g;
}

static json_t *entry_json(uint32_t id, float logprob, uint32_t rank, json_t *top)
{
    return json_pack("{s:o, s:I, s:o, s:I, s:n, s:o*}", "token", json_sprintf("token_id:%u", id),
                     "token_id", (json_int_t)id, "logprob", generation_logprob_json(logprob),
                     "rank", (json_int_t)rank, "bytes", "top_logprobs", top);
}

static json_t *token_json(const struct gen_token *t)
{
    json_t *top = json_array();

    for (uint32_t i = 0; i < t->n_top && top != NULL; i++) {
        if (json_array_append_new(
                top, entry_json(t->top[i].id, t->top[i].logprob, t->top[i].rank, NULL)) != 0) {
            json_decref(top);
            top = NULL;
        }
    }
    return top == NULL ? NULL : entry_json(t->id, t->logprob, t->rank, top);
}

static json_t *logprobs_json(const struct generate_op *op, const struct gen_token *tokens,
                             uint32_t first, uint32_t end)
{
    json_t *content;

    if (op->g.params.gen.logprobs < 0)
        return json_null();
    content = json_array();
    for (uint32_t i = first; i < end && content != NULL; i++) {
        if (json_array_append_new(content, token_json(&tokens[i])) != 0) {
            json_decref(content);
            content = NULL;
        }
    }
    return content == NULL ? NULL : json_pack("{s:o}", "content", content);
}

/* A choice with the tokens [first, end); out is NULL while the sequence runs. */
static json_t *choice_json(const struct generate_op *op, const struct generation_seq *seq,
                           const struct gen_token *tokens, uint32_t first, uint32_t end,
                           const struct gen_output *out)
{
    json_t *choice = json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:n, s:n}", "index", (json_int_t)seq->index, "token_ids",
        generation_token_ids_json(tokens, first, end), "finish_reason", generation_finish_json(out),
        "stop_reason", generation_stop_reason_json(out), "logprobs",
        logprobs_json(op, tokens, first, end), "routed_experts", "sampling_mask");

    if (out == NULL)
        return choice;
    return generation_with(choice,
                           json_pack("{s:o}", "weight_versions", generation_versions_json(out)));
}

/* What every answer and every event says. @choices and @usage are stolen. */
static json_t *envelope(const struct generate_op *op, json_t *choices, json_t *usage)
{
    const struct app *app = op->g.app;

    return json_pack("{s:s, s:o, s:o, s:s, s:o, s:I, s:s}", "request_id", op->request_id, "choices",
                     choices, "usage", usage, "model", generation_model(&op->g), "adapter",
                     generation_adapter_json(&op->g), "created", (json_int_t)op->created_s,
                     "boot_id", app->life->boot_id);
}

static json_t *whole_json(struct generate_op *op)
{
    const struct generation *g = &op->g;
    json_t *choices = json_array();

    for (uint32_t i = 0; i < g->n_seqs && choices != NULL; i++) {
        const struct gen_output *out = g->seqs[i].out;

        if (json_array_append_new(
                choices, choice_json(op, &g->seqs[i], out->tokens, 0, out->n_tokens, out)) != 0) {
            json_decref(choices);
            choices = NULL;
        }
    }
    return generation_with(
        envelope(op, choices, generation_usage_json(generation_n_prompt(g), generation_n_made(g))),
        json_pack("{s:s, s:o, s:n, s:n, s:n, s:n, s:n, s:n}", "output_mode", "tokens",
                  "prompt_logprobs",
                  generation_prompt_logprobs_json(g->seqs[0].out, UINT32_MAX, NULL),
                  "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders",
                  "kv_transfer_params", "ec_transfer_params", "metrics"));
}

static json_t *usage_each(const struct generate_op *op)
{
    return op->stream.usage_each
               ? generation_usage_json(generation_n_prompt(&op->g), generation_n_sent(&op->g))
               : json_null();
}

/* The next event of a sequence. Returns false when there is none yet. */
static bool tell_seq(struct generate_op *op, struct generation_seq *seq)
{
    const struct gen_token *tokens;
    struct gen_output *out;
    uint32_t n, first = seq->n_sent;
    json_t *choice;

    generation_look(seq, &tokens, &n, &out);
    if (seq->told || (n == first && out == NULL) || (out != NULL && out->finish == GEN_ERROR))
        return false;
    if (n - first > generation_share(&op->g)) {
        n = first + generation_share(&op->g);
        out = NULL;
    }
    choice = choice_json(op, seq, tokens, first, n, out);
    seq->n_sent = n;
    seq->told = out != NULL;
    generation_event(&op->g, envelope(op, json_pack("[o]", choice), usage_each(op)));
    return true;
}

static void generate_news(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        while (generation_keeps_up(g) && tell_seq(op_of(g), &g->seqs[i]))
            ;
}

static void finish_stream(struct generate_op *op)
{
    struct generation *g = &op->g;
    struct err why = {0};

    generate_news(g);
    if (op->stream.usage_last && !generation_failed(g, &why))
        generation_event(
            g, envelope(op, json_array(),
                        generation_usage_json(generation_n_prompt(g), generation_n_sent(g))));
    generation_end(g);
}

static void generate_finish(struct generation *g)
{
    struct generate_op *op = op_of(g);
    struct exchange *x = g->x;
    struct err why = {0};

    if (op->stream.on) {
        finish_stream(op);
        return;
    }
    g->x = NULL;
    if (generation_failed(g, &why))
        reply_error(x, &why, NULL);
    else
        reply_json(x, 200, whole_json(op));
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
    .news = generate_news, .finish = generate_finish, .free = generate_free};

static int parse_mode(const json_t *body, struct err *e)
{
    const char *mode = NULL;
    bool flag = false;

    if (body_str(&mode, body, "", "output_mode", e) != 0 ||
        body_bool(&flag, body, "", "return_token_ids", e) != 0)
        return -1;
    if (mode != NULL && strcmp(mode, "tokens") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/output_mode",
                       "output mode '%.100s' is not supported; only 'tokens' is", mode);
    return 0;
}

static int parse_prompt(struct generation *g, const json_t *body, struct err *e)
{
    const struct app *app = g->app;
    const json_t *ids = NULL;

    if (body_required(body, "", "token_ids", e) != 0 ||
        body_array(&ids, body, "", "token_ids", e) != 0)
        return -1;
    if (generation_check_prompt(app, json_array_size(ids), "/token_ids", e) != 0)
        return -1;
    g->prompts = calloc(1, sizeof *g->prompts);
    if (g->prompts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the prompt");
    g->n_prompts = 1;
    return generate_ids(&g->prompts[0].ids, &g->prompts[0].n, ids, "/token_ids", app->vocab_size,
                        app->max_model_len, e);
}

static int parse_sampling(struct generate_op *op, const json_t *body, bool strict, struct err *e)
{
    static const char at[] = "/sampling_params";
    struct generation *g = &op->g;
    const json_t *sampling = NULL;

    if (body_required(body, "", "sampling_params", e) != 0 ||
        body_object(&sampling, body, "", "sampling_params", e) != 0)
        return -1;
    if (strict && body_only(sampling, at, generate_sampling_members, e) != 0)
        return -1;
    if (generate_params_parse(&g->params, sampling, at, g->app->vocab_size, g->app->tokenizer, e) !=
        0)
        return -1;
    if (op->stream.on && g->params.gen.prompt_logprobs >= 0)
        return err_set(e, ERR_BAD_REQUEST, "/sampling_params/prompt_logprobs",
                       "prompt logprobs are not sent in a stream; set 'stream' to false");
    return 0;
}

static int parse_on_update(struct generation *g, const json_t *body, struct err *e)
{
    const char *mode = NULL;

    if (body_str(&mode, body, "", "on_update", e) != 0)
        return -1;
    return mode == NULL ? 0 : gen_on_update_parse(&g->on_update, mode, "/on_update", e);
}

static int generate_parse(struct generate_op *op, const json_t *body, bool strict, struct err *e)
{
    if (generation_parse_names(&op->request_id, &op->g, body, e) != 0 ||
        generation_parse_stream(&op->stream, body, strict, e) != 0 || parse_mode(body, e) != 0 ||
        parse_on_update(&op->g, body, e) != 0 ||
        generate_neutral(body, "", generate_rules, e) != 0 || parse_prompt(&op->g, body, e) != 0 ||
        parse_sampling(op, body, strict, e) != 0)
        return -1;
    return generation_expand(&op->g, "/sampling_params/n", e);
}

int handle_generate(struct app *app, struct exchange *x, struct err *e)
{
    const struct route *route = x->route;
    struct generate_op *op;
    json_t *body = NULL;

    if (generation_check_app(app, NULL, e) != 0 || body_parse(&body, x, route, e) != 0)
        return -1;
    exchange_drop_body(x);
    op = calloc(1, sizeof *op);
    if (op == NULL) {
        json_decref(body);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    }
    generation_init(&op->g, app, x, &whole_ops, app->generate_pool);
    op->g.id_prefix = "generate-tokens-";
    op->g.logprobs_at = "/sampling_params/logprobs";
    op->g.prompt_logprobs_at = "/sampling_params/prompt_logprobs";
    op->created_s = clock_wall_s();
    if (generate_parse(op, body, route->strict, e) != 0) {
        json_decref(body);
        generation_unref(&op->g);
        return -1;
    }
    json_decref(body);
    if (op->stream.on)
        op->g.ops = &stream_ops;
    generation_watch(&op->g);
    generation_enter(&op->g);
    return 0;
}

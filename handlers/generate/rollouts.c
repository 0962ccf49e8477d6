/* POST /v1/rollouts: many prompts, n samples of each; the reply is one batch of tensors
 * (handlers/batch/batch.h). POST /v1/generate of a client that accepts tensors is the same for one
 * prompt. */
#include "handlers/generate/rollouts.h"

#include "base/clock.h"
#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/data_plane.h"
#include "handlers/generate/generation_parse.h"
#include "handlers/generate/routed_experts.h"
#include "handlers/route.h"
#include "handlers/rows/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rollouts_hint(const char *member)
{
    if (strcmp(member, "prompt") == 0 || strcmp(member, "token_ids") == 0)
        return "token ids are prompts: an array of arrays";
    if (strcmp(member, "messages") == 0 || strcmp(member, "text") == 0)
        return "prompts are token ids: /v1/chat/completions/render and /tokenize make them";
    return generate_hint(member);
}

/* The engine reports /token_ids/<i>; here that is the prompt of the sequence. */
static void rollouts_set_error_field(const struct generation_seq *seq, struct err *e)
{
    static const char ids[] = "/token_ids";
    char rest[ERR_FIELD_MAX];

    if (rollouts_of(seq->g)->one_prompt || strncmp(e->field, ids, sizeof ids - 1) != 0)
        return;
    (void)snprintf(rest, sizeof rest, "%s", e->field + sizeof ids - 1);
    (void)snprintf(e->field, sizeof e->field, "/prompts/%u%.64s", seq->prompt, rest);
}

static void rollouts_free(struct generation *g)
{
    struct rollouts_op *op = rollouts_of(g);

    generation_fini(g);
    batch_options_fini(&op->options);
    free(op->group_sent);
    unread_body_free(op->frame);
    free(op->request_id);
    free(op);
}

static const struct generation_ops whole_ops = {
    .set_error_field = rollouts_set_error_field, .finish = rollouts_finish, .free = rollouts_free};
static const struct generation_ops stream_ops = {.on_tokens = rollouts_on_ended,
                                                 .ends_only = true,
                                                 .set_error_field = rollouts_set_error_field,
                                                 .finish = rollouts_finish,
                                                 .free = rollouts_free};

static int parse_rollouts_prompt(struct generation *g, uint32_t i, const json_t *ids,
                                 const char *at, struct err *e)
{
    if (!json_is_array(ids))
        return err_set(e, ERR_BAD_REQUEST, at, "%s; an array of token ids is expected",
                       body_type_name(ids));
    if (generation_check_prompt(g->app, json_array_size(ids), at, e) != 0)
        return -1;
    return generate_parse_ids(&g->prompts[i].ids, &g->prompts[i].n, ids, at,
                              g->app->generate->vocab_size, g->app->generate->max_model_len, e);
}

/* The array of prompts; of /v1/generate its one prompt. */
static int parse_rollouts_prompts(struct rollouts_op *op, const json_t *list, struct err *e)
{
    struct generation *g = &op->g;
    char at[ERR_FIELD_MAX] = "/token_ids";
    size_t n;

    n = op->one_prompt ? 1 : json_array_size(list);
    if (n == 0 || n > GENERATION_SEQS_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/prompts", "%zu prompts; 1 to %d are allowed", n,
                       GENERATION_SEQS_MAX);
    g->prompts = calloc(n, sizeof *g->prompts);
    if (g->prompts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu prompts", n);
    g->n_prompts = (uint32_t)n;
    if (op->one_prompt)
        return parse_rollouts_prompt(g, 0, list, at, e);
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(at, sizeof at, "/prompts/%u", i);
        if (parse_rollouts_prompt(g, i, json_array_get(list, i), at, e) != 0)
            return -1;
    }
    return 0;
}

/* A batch has the logprob of each sampled token and no others, and the routes of all positions. */
static int check_sampling(struct generate_params *params, struct err *e)
{
    struct gen_params *p = &params->gen;

    if (params->routes_start > 0)
        return err_set(e, ERR_BAD_REQUEST, "/sampling_params/routed_experts_prompt_start",
                       "%u; a batch has the experts of all positions: send null or 0",
                       params->routes_start);
    if (p->prompt_logprobs >= 0)
        return err_set(e, ERR_BAD_REQUEST, "/sampling_params/prompt_logprobs",
                       "a batch has no logprobs of prompts; send the prompt to /v1/generate, which "
                       "replies with JSON");
    if (p->logprobs > 1)
        return err_set(e, ERR_BAD_REQUEST, "/sampling_params/logprobs",
                       "%d logprobs for each token; a batch has those of the sampled tokens only: "
                       "send null, 0 or 1",
                       p->logprobs);
    p->logprobs = 0;
    return 0;
}

static int parse_rollouts_sampling(struct generation *g, const json_t *sampling, struct err *e)
{
    static const char at[] = "/sampling_params";

    if (body_only(sampling, at, sampling_rows, e) != 0 ||
        generate_params_parse(&g->params, sampling, at, g->app->generate->vocab_size,
                              g->app->generate->tokenizer, e) != 0)
        return -1;
    return check_sampling(&g->params, e);
}

static struct batch_routes routes_of(const struct generation *g)
{
    const struct engine_info *info = &g->app->generate->info;

    if (!g->params.gen.routes)
        return (struct batch_routes){0};
    return (struct batch_routes){.n_experts = info->n_experts,
                                 .n_layers = info->n_route_layers,
                                 .top_k = info->n_routes_per_token};
}

static uint64_t nbytes_allowed(const struct rollouts_op *op)
{
    uint64_t all = op->g.app->settings.max_unread_nbytes;

    return all < BATCH_NBYTES_MAX ? all : BATCH_NBYTES_MAX;
}

/* Checks, before anything is computed, how large a batch can become: the whole, or that of each
 * group of a stream. */
static int check_nbytes(const struct rollouts_op *op, struct err *e)
{
    const struct generation *g = &op->g;
    struct batch_shape shape = {0};
    uint64_t n_max = 0, n;

    for (uint32_t p = 0; p < g->n_prompts; p++) {
        uint32_t rest = g->app->generate->max_model_len - g->prompts[p].n;
        uint32_t most = g->params.gen.max_tokens;

        for (uint32_t i = 0; i < g->params.n; i++)
            batch_shape_add(&shape, g->prompts[p].n, most < rest ? most : rest);
        n = batch_nbytes(&shape, &op->options, &op->routes);
        n_max = n > n_max ? n : n_max;
        if (op->stream && batch_group_of(&op->options, p).end == p + 1)
            shape = (struct batch_shape){0};
    }
    if (n_max <= nbytes_allowed(op))
        return unread_check(g->app->settings.max_unread_nbytes, n_max, e);
    return err_set(
        e, ERR_TOO_LARGE, "/sampling_params/max_tokens",
        "a batch of this request may have %llu bytes, as each of its sequences may have "
        "max_tokens; at most %llu are allowed: lower max_tokens, send fewer prompts in a "
        "request%s",
        (unsigned long long)n_max, (unsigned long long)nbytes_allowed(op),
        op->stream ? "" : ", or set 'stream' to true: each group is a batch then");
}

/* Members of /v1/generate that have no meaning for tensors are refused, not ignored. */
static int check_one_prompt(const json_t *body, struct err *e)
{
    const char *name;
    json_t *value;

    json_object_foreach(json_mutable(body), name, value)
    {
        char at[ERR_FIELD_MAX];

        if (strcmp(name, "token_ids") == 0 || member_find(rollouts_members, name, 0) != NULL ||
            json_is_null(value))
            continue;
        (void)snprintf(at, sizeof at, "/%.64s", name);
        return err_set(e, ERR_BAD_REQUEST, at,
                       "'%.64s' has no place in a reply of tensors, which the Accept header asks "
                       "for: leave the member out, or accept application/json",
                       name);
    }
    return 0;
}

static int rollouts_parse(struct rollouts_op *op, const json_t *body, struct err *e)
{
    struct generation *g = &op->g;
    struct generate_request r;

    if ((op->one_prompt && check_one_prompt(body, e) != 0) ||
        generation_read(&r, &op->request_id, g,
                        op->one_prompt ? generate_members : rollouts_members, body, false, e) != 0)
        return -1;
    op->stream = r.stream;
    op->routes = routes_of(g);
    if (parse_rollouts_prompts(op, op->one_prompt ? r.token_ids : r.prompts, e) != 0 ||
        parse_rollouts_sampling(g, r.sampling_params, e) != 0 ||
        batch_options_parse(&op->options, body, g->n_prompts, g->app->generate->vocab_size, e) !=
            0 ||
        generation_expand(g, "/sampling_params/n", e) != 0 || check_nbytes(op, e) != 0)
        return -1;
    op->group_sent = calloc(g->n_prompts, sizeof *op->group_sent);
    if (op->group_sent == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u groups", g->n_prompts);
    return 0;
}

static struct rollouts_op *rollouts_new(struct app *app, struct http_request *x)
{
    struct rollouts_op *op = calloc(1, sizeof *op);

    if (op == NULL)
        return NULL;
    generation_init(&op->g, app, x, &whole_ops, app->generate_executor);
    op->g.id_prefix = "rollouts-";
    op->g.logprobs_at = "/sampling_params/logprobs";
    op->g.keeps_failures = true;
    op->created_s = clock_wall_s();
    op->one_prompt = ((const struct route *)x->route)->operation == OPERATION_GENERATE;
    return op;
}

int handle_rollouts(struct app *app, struct http_request *x, struct err *e)
{
    struct rollouts_op *op;
    json_t *body = NULL;
    int rc;

    if (generation_check_app(app, NULL, e) != 0 || body_parse(&body, x, x->route, e) != 0)
        return -1;
    http_request_drop_body(x);
    op = rollouts_new(app, x);
    if (op == NULL) {
        json_decref(body);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    }
    rc = rollouts_parse(op, body, e);
    json_decref(body);
    if (rc != 0) {
        generation_unref(&op->g);
        return -1;
    }
    if (op->stream)
        op->g.ops = &stream_ops;
    generation_announce(&op->g);
    generation_watch(&op->g);
    generation_enter(&op->g);
    return 0;
}

/* The parameters of an element of an Accept header: "q=0" is "not acceptable" (RFC 9110, 12.4.2).
 */
static bool quality_is_zero(const char *at)
{
    for (; *at == ';'; at += strcspn(at, ";,")) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, "q=0", 3) == 0 && strchr(" \t;,", at[2 + strspn(at + 2, "0.")]) != NULL)
            return true;
    }
    return false;
}

bool rollouts_accepted(const struct http_request *x)
{
    static const char type[] = BODY_TENSORS_TYPE;
    const char *at = x->accept;

    for (; at != NULL && *at != '\0'; at += *at == ',' ? 1 : 0) {
        at += strspn(at, " \t");
        if (strncasecmp(at, type, sizeof type - 1) == 0 &&
            strchr(" \t;,", at[sizeof type - 1]) != NULL) { /* the NUL is in that set too */
            at += sizeof type - 1;
            if (!quality_is_zero(at + strspn(at, " \t")))
                return true;
        }
        at += strcspn(at, ",");
    }
    return false;
}

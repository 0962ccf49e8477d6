/* POST and PUT /generate: SGLang's form, text or token ids in, text and token ids out.
 *
 * It has a handler of its own, not a translation of another route: a reply is an object or an
 * array, depending on the request, and an event repeats all earlier tokens; neither can be made
 * from a native reply. Between the prompts and the reply it is a completion
 * (handlers/generate/completions.h).
 *
 * Defaults are those of SGLang, not those of the model's generation_config.json. Logprobs of the
 * output are those of SGLang too: of the logits divided by the temperature, before penalties, bias
 * and filters. All prompts of one request have the same sampling parameters. */
#include "handlers/generate/sglang_generate.h"

#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/data_plane.h"
#include "handlers/dialect.h"
#include "handlers/generate/generation_parse.h"
#include "handlers/generate/routed_experts.h"
#include "handlers/route.h"
#include "handlers/rows/generate_request.h"
#include "handlers/rows/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLING_AT "/sampling_params"

static void sglang_free(struct generation *g)
{
    struct sglang_op *op = sglang_of(g);

    for (uint32_t i = 0; i < op->n_seqs; i++) {
        if (op->rids != NULL)
            free(op->rids[i]);
        if (op->sent != NULL)
            sglang_sent_fini(&op->sent[i]);
    }
    free(op->rids);
    free(op->sent);
    completions_fini(&op->c);
    free(op);
}

static const struct generation_ops whole_ops = {.set_error_field = completions_set_error_field,
                                                .finish = sglang_generate_finish,
                                                .free = sglang_free};
static const struct generation_ops stream_ops = {.on_tokens = sglang_generate_on_tokens,
                                                 .set_error_field = completions_set_error_field,
                                                 .finish = sglang_generate_finish,
                                                 .free = sglang_free};

static int parse_sglang_prompts(struct sglang_op *op, const json_t *body, struct err *e)
{
    const json_t *text = body_given(body, "text"), *ids = body_given(body, "input_ids");

    if ((text == NULL) == (ids == NULL))
        return err_set(e, ERR_BAD_REQUEST, "/text",
                       "'text' and 'input_ids' are %s; one of them is needed%s",
                       text == NULL ? "missing" : "both given",
                       body_given(body, "token_ids") != NULL
                           ? ": this route takes SGLang's form, token_ids go to /v1/generate"
                           : "");
    op->c.prompts_at = text != NULL ? "/text" : "/input_ids";
    if (completions_parse_prompts(&op->c, text != NULL ? text : ids, e) != 0)
        return -1;
    if (op->c.is_text == (text != NULL))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, op->c.prompts_at,
                   text != NULL ? "token ids belong in 'input_ids', not in 'text'"
                                : "text belongs in 'text', not in 'input_ids'");
}

/* flat[member] = the value for all prompts. SGLang also takes an array with a value for each
 * prompt; here these must be equal. */
static int flatten(json_t *flat, const char *member, uint32_t n_prompts, struct err *e)
{
    json_t *array = json_object_get(flat, member), *v = json_array_get(array, 0);
    char field[ERR_FIELD_MAX];

    if (!json_is_array(array))
        return 0;
    (void)snprintf(field, sizeof field, "/%s", member);
    if (json_array_size(array) != n_prompts)
        return err_set(e, ERR_BAD_REQUEST, field, "%zu values for %u prompts",
                       json_array_size(array), n_prompts);
    for (size_t i = 1; i < json_array_size(array); i++) {
        if (json_equal(v, json_array_get(array, i)))
            continue;
        (void)snprintf(field, sizeof field, "/%s/%zu", member, i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "prompts of one request cannot differ in '%s' here; send them one by one",
                       member);
    }
    return dialect_set(flat, member, json_incref(v), e);
}

static int flatten_all(json_t **out, const json_t *body, uint32_t n_prompts, struct err *e)
{
    json_t *flat = json_copy_all(body);

    if (flat == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    for (const struct member *m = sglang_generate_members; m->name != NULL; m++) {
        if ((m->flags & M_EACH) != 0 && flatten(flat, m->name, n_prompts, e) != 0) {
            json_decref(flat);
            return -1;
        }
    }
    *out = flat;
    return 0;
}

/* max_new_tokens: null means the rest of the context; without the member the default is used. */
static int parse_lengths(struct sglang_op *op, const json_t *sampling, struct err *e)
{
    struct gen_params *gen = &op->c.g.params.gen;

    if (json_is_null(json_object_get(sampling, "max_new_tokens")))
        gen->max_tokens = GEN_MAX_TOKENS_REST;
    if (gen->min_tokens > gen->max_tokens)
        return err_set(e, ERR_BAD_REQUEST, SAMPLING_AT "/min_new_tokens",
                       "min_new_tokens is %u; at most max_new_tokens, %u, is allowed",
                       gen->min_tokens, gen->max_tokens);
    op->c.no_output = gen->max_tokens == 0;
    gen->max_tokens += op->c.no_output;
    return 0;
}

static int parse_sglang_sampling(struct sglang_op *op, const json_t *sampling, struct err *e)
{
    struct generation *g = &op->c.g;

    if (member_read_only(&g->params, sglang_sampling_rows, sampling, SAMPLING_AT, e) != 0 ||
        parse_lengths(op, sampling, e) != 0)
        return -1;
    return generate_params_lists(&g->params, sampling, SAMPLING_AT, g->app->generate->vocab_size,
                                 g->app->generate->tokenizer, e);
}

static int parse_logprobs(struct sglang_op *op, const struct sglang_request *r, const json_t *flat,
                          struct err *e)
{
    struct gen_params *gen = &op->c.g.params.gen;
    int start = r->logprob_start_len;
    uint32_t n_top = 0;

    if (body_u32(&n_top, flat, "", "top_logprobs_num", 0, op->c.g.app->generate->vocab_size, e) !=
        0)
        return -1;
    op->with_logprobs = r->return_logprob;
    op->c.g.logprobs_at = op->c.g.prompt_logprobs_at = "/top_logprobs_num";
    op->logprob_start = op->with_logprobs ? start : -1;
    if (!op->with_logprobs)
        return 0;
    op->n_top = n_top;
    gen->logprobs = (int32_t)n_top;
    gen->logprobs_mode = GEN_LOGPROBS_TEMPERED;
    if (start < 0)
        return 0;
    gen->prompt_logprobs = (int32_t)n_top;
    op->c.g.prompt_logprobs_from = (uint32_t)start;
    op->c.g.prompt_logprobs_times = op->c.g.params.n;
    if (op->c.stream.on && op->c.g.params.n > 1)
        return err_set(e, ERR_BAD_REQUEST, "/logprob_start_len",
                       "logprobs of the prompt are not sent in a stream of more than one sequence "
                       "from it; set 'stream' to false, or 'n' to 1");
    return 0;
}

static int check_lora(struct generation *g, const char *name, struct err *e)
{
    int kind;

    if (name == NULL || name[0] == '\0')
        return 0;
    kind = generation_check_model(g->app, name, e);
    if (kind < 0) {
        (void)snprintf(e->field, sizeof e->field, "/lora_path");
        return -1;
    }
    if (kind == 0)
        return err_set(e, ERR_NOT_FOUND, "/lora_path",
                       "'%.160s' is the base model, not an adapter; leave 'lora_path' out", name);
    g->lora = strdup(name);
    if (g->lora == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the name of the adapter");
    return 0;
}

static int check_rid(const json_t *v, const char *field, struct err *e)
{
    const char *rid = json_string_value(v);

    if (rid != NULL && rid[0] != '\0' && json_string_length(v) <= GENERATION_REQUEST_ID_MAX &&
        strlen(rid) == json_string_length(v))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "%s; a request id is a string of 1 to %d bytes",
                   rid == NULL ? body_type_name(v) : "no such string", GENERATION_REQUEST_ID_MAX);
}

/* Ids must differ: otherwise one prompt could not be aborted without the other. */
static int check_rids(const json_t *rids, uint32_t n_prompts, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (json_array_size(rids) != n_prompts)
        return err_set(e, ERR_BAD_REQUEST, "/rid", "%zu request ids for %u prompts",
                       json_array_size(rids), n_prompts);
    for (size_t i = 0; i < n_prompts; i++) {
        const json_t *rid = json_array_get(rids, i);

        (void)snprintf(field, sizeof field, "/rid/%zu", i);
        if (check_rid(rid, field, e) != 0)
            return -1;
        for (size_t k = 0; k < i; k++)
            if (json_equal(rid, json_array_get(rids, k)))
                return err_set(e, ERR_BAD_REQUEST, field, "request id '%.64s' is given twice",
                               json_string_value(rid));
    }
    return 0;
}

/* Ids as SGLang makes them. Where SGLang uses random ids (n > 1), here they are the request's id
 * and an index. */
static char *make_rid(const struct sglang_op *op, const json_t *rids, uint32_t i)
{
    uint32_t n = op->c.g.params.n;
    const char *base = op->c.request_id;
    char text[GENERATION_REQUEST_ID_MAX + 16];

    if (rids != NULL)
        base = json_string_value(json_array_get(rids, i / n));
    if (rids != NULL ? n == 1 : !op->is_array)
        return strdup(base);
    (void)snprintf(text, sizeof text, "%s_%u", base, rids != NULL ? i % n : i);
    return strdup(text);
}

static int parse_rids(struct sglang_op *op, const json_t *body, struct err *e)
{
    struct generation *g = &op->c.g;
    const json_t *v = body_given(body, "rid"), *rids = json_is_array(v) ? v : NULL;

    if (rids != NULL ? check_rids(rids, g->n_prompts, e) != 0
                     : v != NULL && check_rid(v, "/rid", e) != 0)
        return -1;
    op->c.request_id = strdup(v != NULL && rids == NULL ? json_string_value(v)
                                                        : g->x->actor.request_id);
    op->rids = calloc(op->n_seqs, sizeof *op->rids);
    op->sent = calloc(op->n_seqs, sizeof *op->sent);
    if (op->c.request_id == NULL || op->rids == NULL || op->sent == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u request ids", op->n_seqs);
    for (uint32_t i = 0; i < op->n_seqs; i++) {
        op->rids[i] = make_rid(op, rids, i);
        if (op->rids[i] == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a request id");
    }
    g->request_id = op->c.request_id;
    g->seq_ids = op->rids;
    return 0;
}

/* Any JSON, as one value for all prompts. */
static int parse_salts(struct generation *g, const json_t *flat, struct err *e)
{
    json_t *extra = json_object_get(flat, "extra_key"), *salt = json_object_get(flat, "cache_salt");
    json_auto_t *both = json_pack("[O?, O?]", extra, salt);
    char *text;

    if (body_given(flat, "extra_key") == NULL && body_given(flat, "cache_salt") == NULL)
        return 0;
    text = json_dumps(both, JSON_COMPACT | JSON_SORT_KEYS);
    if (text == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the cache salt");
    generation_salt(g, text);
    free(text);
    return 0;
}

static int parse_all(struct sglang_op *op, const json_t *flat, struct err *e)
{
    struct generation *g = &op->c.g;
    struct sglang_request r = {0};

    if (member_read(&r, sglang_generate_members, flat, "", e) != 0)
        return -1;
    op->c.stream.on = r.stream;
    op->with_text = r.return_text_in_logprobs;
    if (parse_sglang_sampling(op, r.sampling_params, e) != 0 || parse_salts(g, flat, e) != 0)
        return -1;
    g->params.routes_start = r.routed_experts_start_len;
    g->routes_start_at = "/routed_experts_start_len";
    if (routed_experts_ask(g, r.return_routed_experts, e) != 0 ||
        parse_logprobs(op, &r, flat, e) != 0 || check_lora(g, r.lora_path, e) != 0 ||
        generation_count_seqs(g, op->c.prompts_at, &op->n_seqs, e) != 0)
        return -1;
    op->is_array = op->c.is_list || g->params.n > 1;
    return parse_rids(op, flat, e);
}

static int sglang_parse(struct sglang_op *op, const json_t *body, struct err *e)
{
    json_t *flat = NULL;
    int rc;

    op->c.sampling_at = SAMPLING_AT;
    op->c.g.events_repeat = true;
    op->c.logprobs = op->c.prompt_logprobs = -1; /* they are sent in SGLang's form */
    op->c.add_special = op->c.return_ids = true;
    if (parse_sglang_prompts(op, body, e) != 0 ||
        flatten_all(&flat, body, op->c.g.n_prompts, e) != 0)
        return -1;
    rc = parse_all(op, flat, e);
    json_decref(flat);
    return rc;
}

int handle_sglang_generate(struct app *app, struct http_request *x, struct err *e)
{
    struct sglang_op *op;
    json_t *body = NULL;
    int rc;

    if (generation_check_app(app, NULL, e) != 0)
        return -1;
    if (app->generate->tokenizer == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "no tokenizer is loaded: this server cannot generate text");
    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    http_request_drop_body(x);
    op = calloc(1, sizeof *op);
    if (op == NULL) {
        json_decref(body);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    }
    completions_init(&op->c, app, x);
    op->c.g.ops = &whole_ops;
    op->c.stream_ops = &stream_ops;
    rc = sglang_parse(op, body, e);
    json_decref(body);
    if (rc == 0)
        completions_begin(&op->c);
    else
        generation_unref(&op->c.g);
    return rc;
}

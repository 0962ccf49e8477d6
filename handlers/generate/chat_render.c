/* POST /v1/chat/completions/render: returns the request to /inference/v1/generate that generates
 * the same as /v1/chat/completions would for this body. Nothing is generated here. Defaults from
 * the model's generation_config.json are written out, because /inference/v1/generate does not use
 * them. Runs on app->text_executor with a detokenize permit that the dispatcher holds. */
#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/data_plane.h"
#include "handlers/generate/chat.h"
#include "handlers/generate/chat_parse.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/rows/rows.h"
#include "text/tokenizer.h"

#include <stdio.h>

/* o[member] = value (stolen; NULL: no memory), unless `body` has the member. */
static int set_default(json_t *o, const json_t *body, const char *member, json_t *value)
{
    if (body_given(body, member) == NULL)
        return json_object_set_new(o, member, value);
    json_decref(value);
    return 0;
}

static int set_defaults(json_t *o, const json_t *body, const struct gen_params *p)
{
    return set_default(o, body, "temperature", json_real((double)p->temperature)) != 0 ||
                   set_default(o, body, "top_p", json_real((double)p->top_p)) != 0 ||
                   set_default(o, body, "top_k", json_integer(p->top_k)) != 0 ||
                   set_default(o, body, "min_p", json_real((double)p->min_p)) != 0 ||
                   set_default(o, body, "repetition_penalty",
                               json_real((double)p->repetition_penalty)) != 0
               ? -1
               : 0;
}

/* Returns a new reference, or NULL if there is no memory. */
static json_t *sampling_json(const struct completions_op *op, const json_t *body, uint32_t n_prompt)
{
    const struct gen_params *p = &op->g.params.gen;
    uint32_t rest = op->g.app->generate->max_model_len - n_prompt;
    json_t *o = json_object();
    int rc = o == NULL ? -1 : 0;

    for (const struct member *m = sampling_rows; m->name != NULL && rc == 0; m++) {
        const json_t *v = body_given(body, m->name);

        rc = v == NULL ? 0 : json_object_set(o, m->name, json_mutable(v));
    }
    if (rc == 0 && set_defaults(o, body, p) == 0 &&
        json_object_set_new(o, "max_tokens",
                            json_integer(p->max_tokens < rest ? p->max_tokens : rest)) == 0 &&
        json_object_set_new(o, "logprobs",
                            p->logprobs >= 0 ? json_integer(p->logprobs) : json_null()) == 0)
        return o;
    json_decref(o);
    return NULL;
}

static json_t *member_json(const json_t *body, const char *member)
{
    const json_t *v = body_given(body, member);

    return v == NULL ? json_null() : json_incref(json_mutable(v));
}

/* Tokenizes the text of chat_render into the generation's prompt. */
static int encode(struct completions_op *op, struct err *e)
{
    const struct completions_prompt *p = &op->prompts[0];
    struct generation_prompt *out = &op->g.prompts[0];
    size_t n = 0;

    if (tokenizer_encode(op->g.app->generate->tokenizer, p->text, p->len, op->add_special,
                         &out->ids, &n, e) != 0) {
        (void)snprintf(e->field, sizeof e->field, "%s", op->prompts_at);
        return -1;
    }
    out->n = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return generation_check_prompt(op->g.app, out->n, op->prompts_at, e);
}

static json_t *rendered_json(const struct completions_op *op, const json_t *body)
{
    const struct generation_prompt *p = &op->g.prompts[0];

    return json_pack("{s:s, s:s, s:o, s:n, s:o, s:b, s:o, s:o, s:i, s:n}", "request_id",
                     op->request_id, "model", generation_model(&op->g), "token_ids",
                     generation_ids_json(p->ids, p->n), "features", "sampling_params",
                     sampling_json(op, body, p->n), "stream", op->stream.on, "stream_options",
                     member_json(body, "stream_options"), "cache_salt",
                     member_json(body, "cache_salt"), "priority", 0, "kv_transfer_params");
}

int handle_chat_render(struct app *app, struct http_request *x, struct err *e)
{
    struct completions_op *op;
    json_t *body = NULL;
    int rc = -1;

    if (generation_check_app(app, NULL, e) != 0 || chat_check_app(app, e) != 0 ||
        body_parse(&body, x, x->route, e) != 0)
        return -1;
    op = completions_new(app, x, e);
    if (op != NULL && chat_op_parse(op, body, e) == 0 && chat_render(op, e) == 0 &&
        encode(op, e) == 0) {
        reply_json(x, 200, rendered_json(op, body));
        rc = 0;
    }
    if (op != NULL)
        generation_unref(&op->g);
    json_decref(body);
    return rc;
}

/* POST /v1/chat/completions: messages in, a message out. The model's chat template renders the
 * prompt; from there on it is a completion. */
#include "handlers/generate/chat.h"

#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/data_plane.h"
#include "handlers/generate/chat_parse.h"
#include "handlers/route.h"

#include <stdlib.h>
#include <string.h>

/* Translates the sampling members to those of a completion: logprobs is a number, max_tokens. New.
 */
static int sampling_of(json_t **out, const json_t *body, bool logprobs, uint32_t vocab_size,
                       struct err *e)
{
    const json_t *max = body_given(body, "max_completion_tokens");
    int64_t n_top = 0;
    json_t *o;

    if (body_i64(&n_top, body, "", "top_logprobs", -1, (int64_t)vocab_size, e) != 0)
        return -1;
    if (n_top != 0 && !logprobs)
        return err_set(e, ERR_BAD_REQUEST, "/top_logprobs",
                       "top_logprobs are given, but 'logprobs' is not true");
    o = json_copy_all(body);
    if (o == NULL ||
        json_object_set_new(o, "logprobs",
                            logprobs ? json_integer((json_int_t)n_top) : json_null()) != 0 ||
        (max != NULL && json_object_set(o, "max_tokens", json_mutable(max)) != 0)) {
        json_decref(o);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    }
    *out = o;
    return 0;
}

static int parse_chat_sampling(struct completions_op *op, const json_t *body, bool logprobs,
                               struct err *e)
{
    struct generation *g = &op->g;
    json_t *sampling;
    int rc;

    if (sampling_of(&sampling, body, logprobs, g->app->generate->vocab_size, e) != 0)
        return -1;
    rc = completions_parse_sampling(op, sampling, e);
    json_decref(sampling);
    if (rc != 0)
        return -1;
    if (g->params.gen.prompt_logprobs >= 0)
        return err_set(e, ERR_BAD_REQUEST, "/prompt_logprobs",
                       "this route returns no prompt logprobs; /v1/completions does");
    op->logprobs = g->params.gen.logprobs;
    op->prompt_logprobs = -1;
    return 0;
}

/* Borrowed; NULL without messages. */
static json_t *last_role(const struct chat_request *chat)
{
    size_t n = json_array_size(chat->messages);

    return n > 0 ? json_object_get(json_array_get(chat->messages, n - 1), "role") : NULL;
}

int chat_op_parse(struct completions_op *op, const json_t *body, struct err *e)
{
    struct generation *g = &op->g;
    bool routed = g->app->settings.routed_experts == ROUTED_EXPERTS_VLLM;
    struct generate_request r;

    op->chat = calloc(1, sizeof *op->chat);
    op->prompts = calloc(1, sizeof *op->prompts);
    g->prompts = calloc(1, sizeof *g->prompts);
    if (op->chat == NULL || op->prompts == NULL || g->prompts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    g->n_prompts = 1;
    op->is_text = true;
    op->prompts_at = "/messages";
    g->logprobs_at = "/top_logprobs";
    g->id_prefix = "chatcmpl-";
    if (generation_read(&r, &op->request_id, g, chat_members, body, routed, e) != 0 ||
        generation_read_stream(&op->stream, &r, false, e) != 0 ||
        parse_chat_sampling(op, body, r.logprobs, e) != 0 ||
        chat_parse(op->chat, body, g->app->generate->chat, e) != 0)
        return -1;
    op->return_ids = r.return_token_ids;
    op->return_text = r.return_prompt_text;
    op->as_ids = r.return_tokens_as_token_ids;
    op->add_special = op->chat->add_special;
    if (!op->chat->add_generation_prompt) /* the last message is continued, as in vLLM */
        op->role = json_incref(last_role(op->chat));
    return 0;
}

int chat_render(struct completions_op *op, struct err *e)
{
    struct completions_prompt *p = &op->prompts[0];
    struct buf text = {0};

    if (chat_prompt(op->chat, op->g.app->generate->chat, &text, e) != 0) {
        buf_fini(&text);
        return -1;
    }
    chat_request_fini(op->chat); /* it is as large as the prompt and no longer needed */
    p->text = buf_take(&text, &p->len);
    if (p->text == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the text of the prompt");
    return 0;
}

int handle_chat(struct app *app, struct http_request *x, struct err *e)
{
    if (generation_check_app(app, NULL, e) != 0 || chat_check_app(app, e) != 0)
        return -1;
    return completions_handle(app, x, chat_op_parse, e);
}

/* Answers and events of /v1/chat/completions: OpenAI's chat.completion and chat.completion.chunk.
 */
#include "handlers/chat.h"

#include "handlers/generation_reply.h"
#include "server/life.h"

/* {token, logprob, bytes}: the bytes are of the text as told, U+FFFD where a token is no whole
 * character. */
static json_t *token_json(const struct completions_op *op, uint32_t id, float logprob)
{
    json_t *bytes = json_array(), *label;
    struct buf text = {0};

    generation_token_text(op->g.app->tokenizer, id, &text);
    for (size_t i = 0; i < text.len && bytes != NULL; i++) {
        if (json_array_append_new(bytes, json_integer((unsigned char)text.data[i])) != 0) {
            json_decref(bytes);
            bytes = NULL;
        }
    }
    label = op->as_ids    ? json_sprintf("token_id:%u", id)
            : text.failed ? NULL
                          : json_stringn(text.len > 0 ? text.data : "", text.len);
    buf_fini(&text);
    return json_pack("{s:o, s:o, s:o}", "token", label, "logprob", generation_logprob_json(logprob),
                     "bytes", bytes);
}

json_t *chat_logprob_json(const struct completions_op *op, const struct gen_token *t)
{
    json_t *entry = token_json(op, t->id, t->logprob), *top = json_array();
    int rc = entry == NULL || top == NULL ? -1 : 0;

    for (uint32_t i = 0; i < t->n_top && (int64_t)i < op->logprobs && rc == 0; i++)
        rc = json_array_append_new(top, token_json(op, t->top[i].id, t->top[i].logprob));
    if (rc == 0 && json_object_set(entry, "top_logprobs", top) == 0) {
        json_decref(top);
        return entry;
    }
    json_decref(top);
    json_decref(entry);
    return NULL;
}

static json_t *said_json(const struct completions_part *p)
{
    const struct completions_op *op = p->op;
    json_t *said = json_pack("{s:o}", "content",
                             json_stringn(p->text.len > 0 ? p->text.data : "", p->text.len));

    if (!op->stream.on || !p->seq->begun)
        said = generation_with(
            said, json_pack("{s:o}", "role",
                            op->role != NULL ? json_incref(op->role) : json_string("assistant")));
    if (op->stream.on)
        return said;
    return generation_with(said,
                           json_pack("{s:n, s:n, s:n, s:n, s:[], s:n}", "refusal", "annotations",
                                     "audio", "function_call", "tool_calls", "reasoning"));
}

json_t *chat_choice_json(const struct completions_part *p)
{
    const struct completions_op *op = p->op;
    json_t *choice = json_pack(
        "{s:I, s:o, s:O?, s:o, s:o, s:o}", "index", (json_int_t)p->seq->index,
        op->stream.on ? "delta" : "message", said_json(p), "logprobs", p->logprobs, "finish_reason",
        generation_finish_json(p->out), "stop_reason", generation_stop_reason_json(p->out),
        "token_ids",
        op->return_ids ? generation_token_ids_json(p->tokens, p->first, p->end) : json_null());

    if (!op->stream.on)
        choice = generation_with(choice, json_pack("{s:n}", "routed_experts"));
    if (p->out != NULL)
        choice = generation_with(
            choice, json_pack("{s:o}", "weight_versions", generation_versions_json(p->out)));
    return choice;
}

json_t *chat_envelope(struct completions_op *op, json_t *choices, json_t *usage)
{
    const struct generation *g = &op->g;
    json_t *o = json_pack("{s:o, s:s, s:I, s:n, s:s, s:s, s:o, s:o, s:o, s:s}", "id",
                          json_sprintf("chatcmpl-%s", op->request_id), "object",
                          op->stream.on ? "chat.completion.chunk" : "chat.completion", "created",
                          (json_int_t)op->created_s, "service_tier", "system_fingerprint",
                          GENERATION_FINGERPRINT, "model", generation_model(g), "adapter",
                          generation_adapter_json(g), "choices", choices, "usage", usage, "boot_id",
                          g->app->life->boot_id);

    if (!op->stream.on)
        o = generation_with(o, json_pack("{s:n}", "prompt_logprobs"));
    if (op->prompt_told)
        return o;
    op->prompt_told = true;
    return generation_with(
        o, json_pack("{s:n, s:o}", "prompt_text", "prompt_token_ids",
                     op->return_ids ? generation_ids_json(g->prompts[0].ids, g->prompts[0].n)
                                    : json_null()));
}

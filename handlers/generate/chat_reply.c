/* Replies and events of /v1/chat/completions: OpenAI's chat.completion and chat.completion.chunk.
 */
#include "handlers/generate/chat.h"

#include "control/life.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/json_put.h"

/* Writes token, logprob, bytes. The bytes are those of the text as sent, with U+FFFD where a token
 * is not a whole character. */
static void put_chat_token(struct buf *out, const struct completions_op *op, uint32_t id,
                           float logprob)
{
    struct buf text = {0};

    generation_token_text(op->g.app->generate->tokenizer, id, &text);
    if (text.failed)
        out->failed = true;
    json_put_name(out, "token");
    if (op->as_ids)
        json_put_value(out, json_sprintf("token_id:%u", id));
    else
        json_put_string(out, text.len > 0 ? text.data : "", text.len);
    json_put_name(out, "logprob");
    json_put_real(out, generation_logprob(logprob));
    json_put_name(out, "bytes");
    json_put_open(out, '[');
    for (size_t i = 0; i < text.len; i++)
        json_put_int(out, (unsigned char)text.data[i]);
    json_put_close(out, ']');
    buf_fini(&text);
}

static void put_logprob(struct buf *out, const struct completions_op *op, const struct gen_token *t)
{
    json_put_open(out, '{');
    put_chat_token(out, op, t->id, t->logprob);
    json_put_name(out, "top_logprobs");
    json_put_open(out, '[');
    for (uint32_t i = 0; i < t->n_top && (int64_t)i < op->logprobs; i++) {
        json_put_open(out, '{');
        put_chat_token(out, op, t->top[i].id, t->top[i].logprob);
        json_put_close(out, '}');
    }
    json_put_close(out, ']');
    json_put_close(out, '}');
}

static void put_chat_message(struct buf *out, const struct completions_part *p)
{
    const struct completions_op *op = p->op;

    json_put_open(out, '{');
    json_put_name(out, "content");
    json_put_string(out, p->text.len > 0 ? p->text.data : "", p->text.len);
    if (!op->stream.on || !p->seq->first_event_sent) {
        json_put_name(out, "role");
        json_put_value(out, op->role != NULL ? json_incref(op->role) : json_string("assistant"));
    }
    if (!op->stream.on)
        json_put_members(out, json_pack("{s:n, s:n, s:n, s:n, s:[], s:n}", "refusal", "annotations",
                                        "audio", "function_call", "tool_calls", "reasoning"));
    json_put_close(out, '}');
}

static void put_chat_logprobs(struct buf *out, const struct completions_part *p)
{
    if (p->op->logprobs < 0) {
        json_put_null(out);
        return;
    }
    json_put_open(out, '{');
    json_put_name(out, "content");
    json_put_open(out, '[');
    for (uint32_t i = p->first; i < p->end; i++)
        put_logprob(out, p->op, &p->tokens[i]);
    json_put_close(out, ']');
    json_put_close(out, '}');
}

void chat_put_choice(struct buf *out, const struct completions_part *p)
{
    const struct completions_op *op = p->op;

    json_put_open(out, '{');
    json_put_name(out, "index");
    json_put_int(out, p->seq->index);
    json_put_name(out, op->stream.on ? "delta" : "message");
    put_chat_message(out, p);
    json_put_name(out, "logprobs");
    put_chat_logprobs(out, p);
    json_put_name(out, "finish_reason");
    json_put_value(out, generation_finish_json(p->out));
    json_put_name(out, "stop_reason");
    json_put_value(out, generation_stop_reason_json(p->out));
    completions_put_token_ids(out, p);
    if (!op->stream.on || (op->g.params.gen.routes && p->out != NULL))
        completions_put_routed(out, p);
    if (p->out != NULL) {
        json_put_name(out, "weight_versions");
        json_put_value(out, generation_versions_json(p->out));
    }
    json_put_close(out, '}');
}

void chat_put_tail(struct buf *out, struct completions_op *op, json_t *usage)
{
    const struct generation *g = &op->g;

    json_put_members(out,
                     json_pack("{s:o, s:s}", "usage", usage, "boot_id", g->app->life->boot_id));
    if (!op->stream.on)
        json_put_members(out, json_pack("{s:n}", "prompt_logprobs"));
    if (op->prompt_sent)
        return;
    op->prompt_sent = true;
    json_put_name(out, "prompt_text");
    if (op->return_text)
        json_put_string(out, op->prompts[0].text, op->prompts[0].len);
    else
        json_put_null(out);
    json_put_members(out, json_pack("{s:o}", "prompt_token_ids",
                                    op->return_ids
                                        ? generation_ids_json(g->prompts[0].ids, g->prompts[0].n)
                                        : json_null()));
}

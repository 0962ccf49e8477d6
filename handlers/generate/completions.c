/* POST /v1/completions: OpenAI's form, text or token ids in, text out.
 *
 * A chat (chat.c) is a completion too: its prompt is rendered first, on the same executor.
 *
 * Text prompts are tokenized on app->text_executor before the request queues for its permit, and
 * text is made there after the permit is given back, so that slow text never holds an engine slot.
 * Both share that executor's urgent queue with /tokenize and /detokenize, first come first served.
 * Each of the three is bounded by an admission queue of its own, so a flood of one does not fill
 * the urgent queue. */
#include "handlers/data_plane.h"

#include "base/clock.h"
#include "control/admission.h"
#include "control/life.h"
#include "handlers/body.h"
#include "handlers/generate/chat.h"
#include "handlers/generate/chat_parse.h"
#include "handlers/generate/completions_priv.h"
#include "handlers/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The engine reports /token_ids/<i> and /sampling_params/<member>; here these have other names. */
void completions_set_error_field(const struct generation_seq *seq, struct err *e)
{
    static const char ids[] = "/token_ids", sampling[] = "/sampling_params";
    const struct completions_op *op = completions_of(seq->g);
    char field[ERR_FIELD_MAX], rest[ERR_FIELD_MAX];

    if (strncmp(e->field, ids, sizeof ids - 1) == 0) {
        completions_prompt_field(field, op, seq->prompt);
        (void)snprintf(rest, sizeof rest, "%s", e->field + sizeof ids - 1);
        (void)snprintf(e->field, sizeof e->field, "%.32s%.100s", field, rest);
    } else if (strncmp(e->field, sampling, sizeof sampling - 1) == 0) {
        (void)snprintf(rest, sizeof rest, "%s", e->field + sizeof sampling - 1);
        (void)snprintf(e->field, sizeof e->field, "%.32s%.100s", op->sampling_at, rest);
    }
}

void completions_fini(struct completions_op *op)
{
    struct generation *g = &op->g;

    for (uint32_t i = 0; i < g->n_prompts && op->prompts != NULL; i++)
        free(op->prompts[i].text);
    free(op->prompts);
    for (uint32_t i = 0; i < g->n_seqs && op->texts != NULL; i++)
        completion_text_fini(&op->texts[i]);
    free(op->texts);
    if (op->chat != NULL)
        chat_request_fini(op->chat);
    free(op->chat);
    json_decref(op->role);
    free(op->request_id);
    generation_fini(g);
}

static void completions_free(struct generation *g)
{
    completions_fini(completions_of(g));
    free(g);
}

static const struct generation_ops whole_ops = {.set_error_field = completions_set_error_field,
                                                .finish = completions_finish,
                                                .free = completions_free};
static const struct generation_ops stream_ops = {.on_tokens = completions_on_tokens,
                                                 .set_error_field = completions_set_error_field,
                                                 .finish = completions_finish,
                                                 .free = completions_free};

static int encode_prompt(struct completions_op *op, uint32_t i, struct err *e)
{
    const struct app *app = op->g.app;
    struct generation_prompt *out = &op->g.prompts[i];
    char field[ERR_FIELD_MAX];
    uint32_t *ids = NULL;
    size_t n = 0;

    completions_prompt_field(field, op, i);
    if (tokenizer_encode(app->generate->tokenizer, op->prompts[i].text, op->prompts[i].len,
                         op->add_special, &ids, &n, e) != 0) {
        (void)snprintf(e->field, sizeof e->field, "%s", field);
        return -1;
    }
    out->ids = ids;
    out->n = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return generation_check_prompt(app, out->n, field, e);
}

/* An echo needs the text of the prompt: the client's, or else the decoded ids; and so does a chat
 * whose reply has it. */
static int prepare_prompt_text(struct completions_op *op, uint32_t i, struct err *e)
{
    struct completions_prompt *p = &op->prompts[i];
    const struct generation_prompt *ids = &op->g.prompts[i];
    struct buf text = {0};

    if (op->return_text)
        return 0;
    if (!op->echo) {
        free(p->text);
        *p = (struct completions_prompt){0};
        return 0;
    }
    if (p->text == NULL) {
        if (tokenizer_decode(op->g.app->generate->tokenizer, ids->ids, ids->n,
                             op->g.params.skip_special_tokens, &text, e) != 0) {
            buf_fini(&text);
            completions_prompt_field(e->field, op, i);
            return -1;
        }
        p->text = buf_take(&text, &p->len);
        if (p->text == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for the text of the prompt");
    }
    p->n_chars = completion_text_chars(p->text, p->len);
    return 0;
}

static int make_texts(struct completions_op *op, struct err *e)
{
    struct generation *g = &op->g;

    if (generation_expand(g, op->prompts_at, e) != 0)
        return -1;
    op->texts = calloc(g->n_seqs, sizeof *op->texts);
    if (op->texts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u texts", g->n_seqs);
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct generation_prompt *prompt = &g->prompts[g->seqs[i].prompt];

        completion_text_init(&op->texts[i], g->app->generate->tokenizer,
                             g->params.skip_special_tokens, &g->params.gen,
                             g->params.include_stop_str, op->prompts[g->seqs[i].prompt].n_chars);
        completion_text_follow(&op->texts[i], prompt->ids, prompt->n);
    }
    return 0;
}

/* All work of the tokenizer before the request queues for its permit. */
static int make_prompts(struct completions_op *op, struct err *e)
{
    if (http_request_disconnected(op->g.x))
        return err_set(e, ERR_GONE, "", "the client disconnected while its request was queued");
    if (life_state(op->g.app->life) == LIFE_DRAINING) /* no permit would follow */
        return err_set(e, ERR_DRAINING, "", "the server is draining: no new generate");
    if (op->chat != NULL && chat_render(op, e) != 0)
        return -1;
    for (uint32_t i = 0; i < op->g.n_prompts; i++) {
        if ((op->is_text && encode_prompt(op, i, e) != 0) || prepare_prompt_text(op, i, e) != 0)
            return -1;
    }
    return make_texts(op, e);
}

/* On app->text_executor. */
static void completions_prepare(void *arg)
{
    struct completions_op *op = arg;
    struct err e = {0};
    int rc;

    http_request_on_disconnect(op->g.x, NULL, NULL);
    rc = make_prompts(op, &e);
    admission_leave(op->g.app->generate->prompt_admission, &op->ticket);
    if (rc != 0) {
        generation_fail(&op->g, &e);
        return;
    }
    generation_watch(&op->g);
    generation_enter(&op->g);
}

/* The client disconnected while queued: its ticket has already been removed from the queue. */
static void completions_fail_disconnected(void *arg)
{
    struct completions_op *op = arg;
    struct err e = {0};

    (void)err_set(&e, ERR_GONE, "", "the client disconnected while its request was queued");
    generation_fail(&op->g, &e);
}

/* Runs under the request's lock: only removes the ticket; another thread answers. */
static void completions_on_disconnect(void *arg)
{
    struct completions_op *op = arg;
    struct app *app = op->g.app;
    struct err ignored = {0};

    if (!admission_cancel(app->generate->prompt_admission, &op->ticket))
        return;
    op->g.step = (struct job){.run = completions_fail_disconnected, .arg = op};
    (void)workers_post(app->text_executor, &op->g.step, WORKERS_URGENT, &ignored);
}

/* If the threads of the executor have ended, it runs here. */
static void completions_granted(void *arg)
{
    struct completions_op *op = arg;
    struct err ignored = {0};

    op->g.step = (struct job){.run = completions_prepare, .arg = op};
    if (workers_post(op->g.app->text_executor, &op->g.step, WORKERS_URGENT, &ignored) != 0)
        completions_prepare(op);
}

void completions_init(struct completions_op *op, struct app *app, struct http_request *x)
{
    generation_init(&op->g, app, x, &whole_ops, app->text_executor);
    op->created_s = clock_wall_s();
    op->g.id_prefix = "cmpl-";
    op->stream_ops = &stream_ops;
    op->prompts_at = "/prompt";
    op->sampling_at = "";
}

struct completions_op *completions_new(struct app *app, struct http_request *x, struct err *e)
{
    struct completions_op *op = calloc(1, sizeof *op);

    if (op == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
        return NULL;
    }
    completions_init(op, app, x);
    return op;
}

void completions_begin(struct completions_op *op)
{
    struct http_request *x = op->g.x;
    struct err e = {0};

    if (op->stream.on)
        op->g.ops = op->stream_ops;
    if (generation_make_seqs(&op->g, op->prompts_at, &e) != 0) {
        generation_fail(&op->g, &e);
        return;
    }
    generation_announce(&op->g);
    op->ticket = (struct ticket){.granted = completions_granted, .arg = op};
    http_request_on_disconnect(x, completions_on_disconnect, op);
    if (admission_enter(op->g.app->generate->prompt_admission, &op->ticket, &e) == 0)
        return;
    http_request_on_disconnect(x, NULL, NULL);
    generation_fail(&op->g, &e);
}

int completions_handle(struct app *app, struct http_request *x,
                       int (*parse)(struct completions_op *, const json_t *, struct err *),
                       struct err *e)
{
    struct completions_op *op;
    json_t *body = NULL;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    http_request_drop_body(x);
    op = completions_new(app, x, e);
    rc = op != NULL ? parse(op, body, e) : -1;
    json_decref(body);
    if (rc == 0)
        completions_begin(op);
    else if (op != NULL)
        generation_unref(&op->g);
    return rc;
}

int handle_completions(struct app *app, struct http_request *x, struct err *e)
{
    if (generation_check_app(app, NULL, e) != 0)
        return -1;
    if (app->generate->tokenizer == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "no tokenizer is loaded: this server cannot generate text");
    return completions_handle(app, x, completions_parse, e);
}

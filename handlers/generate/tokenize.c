/* POST /tokenize: text, or messages through the chat template, to ids. Runs on app->text_executor
 * with a detokenize permit that the dispatcher holds. */
#include "handlers/data_plane.h"

#include "handlers/body.h"
#include "handlers/generate/chat_parse.h"
#include "handlers/generate/generation.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/json_put.h"
#include "handlers/rows/generate_request.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZE_PROMPT_NBYTES_MAX = 8 << 20 };

struct tokenize_req {
    struct tokenize_request r; /* its prompt is of the body, or `text` */
    struct buf text;           /* rendered messages */
};

/* The prompt that /v1/chat/completions would make of the same members. */
static int render_messages(struct tokenize_req *req, const struct app *app, const json_t *body,
                           struct err *e)
{
    struct chat_request chat = {0};
    int rc = chat_check_app(app, e);

    if (rc == 0)
        rc = chat_parse(&chat, body, app->generate->chat, e);
    if (rc == 0)
        rc = chat_prompt(&chat, app->generate->chat, &req->text, e);
    if (rc == 0) {
        req->r.prompt = (struct member_text){req->text.data, req->text.len};
        req->r.add_special_tokens = chat.add_special;
    }
    chat_request_fini(&chat);
    return rc;
}

static int tokenize_parse(struct tokenize_req *req, const struct app *app, const json_t *body,
                          struct err *e)
{
    req->r.add_special_tokens = true;
    if (member_read(&req->r, tokenize_members, body, "", e) != 0)
        return -1;
    if (body_given(body, "messages") != NULL)
        return render_messages(req, app, body, e);
    return body_required(body, "", "prompt", e);
}

static int tokenize_validate(const struct tokenize_req *req, const struct app *app, struct err *e)
{
    if (generation_check_model(app, req->r.model, e) < 0)
        return -1;
    if (req->r.prompt.len > TOKENIZE_PROMPT_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "/prompt", "%zu bytes of text; at most %d are allowed",
                       req->r.prompt.len, TOKENIZE_PROMPT_NBYTES_MAX);
    return 0;
}

static void put_strings(struct buf *out, const struct tokenizer *t, const uint32_t *ids, size_t n)
{
    json_put_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        const char *spelling = tokenizer_token(t, ids[i]);

        spelling = spelling != NULL ? spelling : "";
        json_put_string(out, spelling, strlen(spelling));
    }
    json_put_close(out, ']');
}

/* What is written as text, and not as a tree of ten times its memory: a prompt of megabytes. */
static void put_reply(struct buf *out, const struct app_generate *generate,
                      const struct tokenize_req *req, const uint32_t *ids, size_t n)
{
    json_put_open(out, '{');
    json_put_members(out, json_pack("{s:I, s:I}", "count", (json_int_t)n, "max_model_len",
                                    (json_int_t)generate->max_model_len));
    json_put_name(out, "tokens");
    json_put_open(out, '[');
    for (size_t i = 0; i < n; i++)
        json_put_int(out, ids[i]);
    json_put_close(out, ']');
    json_put_name(out, "token_strs");
    if (req->r.return_token_strs)
        put_strings(out, generate->tokenizer, ids, n);
    else
        json_put_null(out);
    json_put_close(out, '}');
}

/* The length is about that of the text that came, and of its ids. */
static int reply_ids(struct http_request *x, const struct app *app, const struct tokenize_req *req,
                     const uint32_t *ids, size_t n, struct err *e)
{
    enum { ID_NBYTES = 8, STRING_NBYTES = 3 /* quotes and comma */ };
    uint64_t about = ID_NBYTES * n +
                     (req->r.return_token_strs ? req->r.prompt.len + STRING_NBYTES * n : 0);
    struct unread_body *b;
    struct buf text = {0};

    if (unread_body_new(&b, app->settings.max_unread_nbytes, 0, about, e) != 0)
        return -1;
    put_reply(&text, app->generate, req, ids, n);
    if (generation_fill_body(b, &text, e) != 0) {
        unread_body_free(b);
        return -1;
    }
    generation_reply_body(x, b, "application/json");
    return 0;
}

int handle_tokenize(struct app *app, struct http_request *x, struct err *e)
{
    struct tokenize_req req = {0};
    uint32_t *ids = NULL;
    json_t *body = NULL;
    size_t n = 0;
    int rc = -1;

    if (app->generate->tokenizer == NULL)
        return err_set(e, ERR_NO_ENGINE, "", "no tokenizer is loaded: start with --model DIR");
    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    if (tokenize_parse(&req, app, body, e) != 0 || tokenize_validate(&req, app, e) != 0)
        goto out;
    if (tokenizer_encode(app->generate->tokenizer, req.r.prompt.s, req.r.prompt.len,
                         req.r.add_special_tokens, &ids, &n, e) != 0)
        goto out;
    rc = reply_ids(x, app, &req, ids, n, e);
out:
    free(ids);
    buf_fini(&req.text);
    json_decref(body);
    return rc;
}

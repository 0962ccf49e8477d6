/* POST /tokenize: text, or messages through the chat template, to ids. Runs on app->text_executor
 * with a detokenize permit that the dispatcher holds. */
#include "handlers/data_plane.h"

#include "handlers/body.h"
#include "handlers/generate/chat_parse.h"
#include "handlers/generate/generation.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/reply.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZE_PROMPT_NBYTES_MAX = 8 << 20 };

const char *const tokenize_members[] = {CHAT_MEMBERS "model", "prompt", "return_token_strs", NULL};

struct tokenize_req {
    const char *model, *prompt; /* borrowed from the body */
    size_t len;
    bool add_special, return_strings;
    struct buf text; /* rendered messages */
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
        req->prompt = req->text.data;
        req->len = req->text.len;
        req->add_special = chat.add_special;
    }
    chat_request_fini(&chat);
    return rc;
}

static int tokenize_parse(struct tokenize_req *req, const struct app *app, const json_t *body,
                          struct err *e)
{
    req->add_special = true;
    if (body_str(&req->model, body, "", "model", e) != 0 ||
        body_bool(&req->return_strings, body, "", "return_token_strs", e) != 0)
        return -1;
    if (body_given(body, "messages") != NULL)
        return render_messages(req, app, body, e);
    if (body_required(body, "", "prompt", e) != 0 ||
        body_text(&req->prompt, &req->len, body, "", "prompt", e) != 0 ||
        body_bool(&req->add_special, body, "", "add_special_tokens", e) != 0)
        return -1;
    return 0;
}

static int tokenize_validate(const struct tokenize_req *req, const struct app *app, struct err *e)
{
    if (generation_check_model(app, req->model, e) < 0)
        return -1;
    if (req->len > TOKENIZE_PROMPT_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "/prompt", "%zu bytes of text; at most %d are allowed",
                       req->len, TOKENIZE_PROMPT_NBYTES_MAX);
    return 0;
}

static json_t *strings_json(const struct tokenizer *t, const uint32_t *ids, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n && array != NULL; i++) {
        const char *spelling = tokenizer_token(t, ids[i]);

        if (json_array_append_new(array, json_string(spelling != NULL ? spelling : "")) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static json_t *tokenize_json(const struct app_generate *generate, const struct tokenize_req *req,
                             const uint32_t *ids, size_t n)
{
    return json_pack("{s:I, s:I, s:o, s:o}", "count", (json_int_t)n, "max_model_len",
                     (json_int_t)generate->max_model_len, "tokens",
                     generation_ids_json(ids, (uint32_t)n), "token_strs",
                     req->return_strings ? strings_json(generate->tokenizer, ids, n) : json_null());
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
    if (tokenizer_encode(app->generate->tokenizer, req.prompt, req.len, req.add_special, &ids, &n,
                         e) != 0)
        goto out;
    reply_json(x, 200, tokenize_json(app->generate, &req, ids, n));
    rc = 0;
out:
    free(ids);
    buf_fini(&req.text);
    json_decref(body);
    return rc;
}

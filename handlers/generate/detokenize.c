/* POST /detokenize: ids to text. Runs on app->text_executor with a detokenize permit that the
 * dispatcher holds. */
#include "handlers/data_plane.h"

#include "handlers/body.h"
#include "handlers/generate/generate_params.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/json_put.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { DETOKENIZE_TOKENS_MAX = 1 << 20 };

static int detokenize_parse(uint32_t **ids, uint32_t *n, bool *skip_special, const struct app *app,
                            const json_t *body, struct err *e)
{
    struct detokenize_request r = {0};

    if (member_read(&r, detokenize_members, body, "", e) != 0 ||
        generation_check_model(app, r.model, e) < 0)
        return -1;
    *skip_special = r.skip_special_tokens;
    return generate_parse_ids(ids, n, r.tokens, "/tokens",
                              tokenizer_vocab_size(app->generate->tokenizer), DETOKENIZE_TOKENS_MAX,
                              e);
}

static int reply_prompt(struct http_request *x, const struct app *app, const struct buf *prompt,
                        struct err *e)
{
    struct unread_body *b;
    struct buf text = {0};

    if (unread_body_new(&b, app->settings.max_unread_nbytes, 0, prompt->len, e) != 0)
        return -1;
    text.failed = prompt->failed;
    json_put_open(&text, '{');
    json_put_name(&text, "prompt");
    json_put_string(&text, prompt->len > 0 ? prompt->data : "", prompt->len);
    json_put_close(&text, '}');
    if (generation_fill_body(b, &text, e) != 0) {
        unread_body_free(b);
        return -1;
    }
    generation_reply_body(x, b, "application/json");
    return 0;
}

int handle_detokenize(struct app *app, struct http_request *x, struct err *e)
{
    struct buf text = {0};
    bool skip_special = false;
    uint32_t *ids = NULL, n = 0;
    json_t *body = NULL;
    int rc = -1;

    if (app->generate->tokenizer == NULL)
        return err_set(e, ERR_NO_ENGINE, "", "no tokenizer is loaded: start with --model DIR");
    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    if (detokenize_parse(&ids, &n, &skip_special, app, body, e) != 0 ||
        tokenizer_decode(app->generate->tokenizer, ids, n, skip_special, &text, e) != 0)
        goto out;
    rc = reply_prompt(x, app, &text, e);
out:
    buf_fini(&text);
    free(ids);
    json_decref(body);
    return rc;
}

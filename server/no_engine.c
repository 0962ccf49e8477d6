/* In a build without the engine: what others call of serve_engine.c, handlers/generate/ and
 * handlers/lora/ in the other one. Lists are empty, as in a server with --engine none; all else is
 * refused, and the error says which build has it. In front of a fleet no handler of these is
 * called.
 */
#include "handlers/control_plane.h"
#include "handlers/data_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"
#include "server/config/build.h"
#include "server/serve_priv.h"

const struct member generate_members[] = {{0}}, completions_members[] = {{0}},
                    chat_members[] = {{0}}, sglang_generate_members[] = {{0}},
                    rollouts_members[] = {{0}}, tokenize_members[] = {{0}},
                    detokenize_members[] = {{0}}, adapter_reply[] = {{0}},
                    loaded_adapter_reply[] = {{0}};

const char *generate_hint(const char *member)
{
    (void)member;
    return NULL;
}

const char *rollouts_hint(const char *member)
{
    (void)member;
    return NULL;
}

int handle_models(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    (void)e;
    reply_json(x, 200, json_pack("{s:s, s:[]}", "object", "list", "data"));
    return 0;
}

int handle_model(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    return err_set(e, ERR_NOT_FOUND, "/model", "model '%.160s' is not served here: %s", x->path_arg,
                   BUILD_LACKS_ENGINE);
}

int handle_generations(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    (void)e;
    reply_json(x, 200, json_pack("{s:i, s:[]}", "n", 0, "generations"));
    return 0;
}

int server_read_engine(struct server *s, struct err *e)
{
    (void)s;
    return err_set(e, ERR_BAD_REQUEST, "--engine",
                   BUILD_LACKS_ENGINE
                   "; or run a store by --engine none, or a front of other engines by "
                   "--upstream");
}

int server_build_engine(struct server *s, struct err *e)
{
    (void)s;
    (void)e;
    return 0;
}

void server_free_engine(struct server *s)
{
    (void)s;
}

static int no_engine_refuse(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    (void)x;
    return err_set(e, ERR_NO_ENGINE, "", "this server holds weights only (--engine none): %s",
                   BUILD_LACKS_ENGINE);
}

int handle_generate(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_rollouts(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_completions(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_sglang_generate(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_chat(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_chat_render(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_tokenize(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_detokenize(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_lora_load(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_lora_unload(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_lora_list(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

int handle_lora_file(struct app *app, struct http_request *x, struct err *e)
{
    return no_engine_refuse(app, x, e);
}

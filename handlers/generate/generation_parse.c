/* The model, ids and stream options of a generate request. */
#include "handlers/generate/generation_parse.h"

#include "handlers/body.h"
#include "handlers/generate/routed_experts.h"
#include "handlers/rows/rows.h"

#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>

static int parse_model(struct generation *g, const char *model, struct err *e)
{
    int kind = generation_check_model(g->app, model, e);

    if (kind <= 0)
        return kind;
    g->lora = strdup(model);
    if (g->lora == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the name of the adapter");
    return 0;
}

void generation_salt(struct generation *g, const char *text)
{
    struct sha256_ctx sha;

    sha256_init(&sha);
    sha256_update(&sha, strlen(text), (const uint8_t *)text);
    sha256_digest(&sha, sizeof g->salt, g->salt);
}

int generation_read(struct generate_request *r, char **request_id, struct generation *g,
                    const struct member *rows, const json_t *body, bool routed, struct err *e)
{
    const char *id;

    *r = (struct generate_request){.on_update = (int)g->on_update, .return_routed_experts = routed};
    if (member_read(r, rows, body, "", e) != 0 || parse_model(g, r->model, e) != 0 ||
        routed_experts_ask(g, r->return_routed_experts, e) != 0)
        return -1;
    id = r->request_id != NULL ? r->request_id : r->rid;
    *request_id = strdup(id != NULL ? id : g->x->actor.request_id);
    if (*request_id == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the request id");
    g->request_id = *request_id;
    g->on_update = (enum gen_on_update)r->on_update;
    if (r->cache_salt != NULL)
        generation_salt(g, r->cache_salt);
    return 0;
}

int generation_read_stream(struct generation_stream *out, const struct generate_request *r,
                           bool strict, struct err *e)
{
    static const char at[] = "/stream_options";
    const json_t *options = r->stream_options;

    *out = (struct generation_stream){.on = r->stream};
    if (options == NULL)
        return 0;
    if (!r->stream)
        return err_set(e, ERR_BAD_REQUEST, at,
                       "stream options are given, but 'stream' is not true");
    if ((strict ? member_read_only : member_read)(out, stream_options_rows, options, at, e) != 0)
        return -1;
    out->usage_each = out->usage_each && out->usage_last;
    return 0;
}

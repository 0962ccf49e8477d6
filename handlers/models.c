/* GET /v1/models: the OpenAI list; trainers match `id` exactly and read `max_model_len`. */
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "server/life.h"

static json_t *permission(const struct app *app)
{
    return json_pack(
        "{s:s, s:s, s:I, s:b, s:b, s:b, s:b, s:b, s:b, s:s, s:n, s:b}", "id", "modelperm-baton",
        "object", "model_permission", "created", (json_int_t)app->life->started_wall_s,
        "allow_create_engine", 0, "allow_sampling", 1, "allow_logprobs", 1, "allow_search_indices",
        0, "allow_view", 1, "allow_fine_tuning", 0, "organization", "*", "group", "is_blocking", 0);
}

int handle_models(struct app *app, struct exchange *x, struct err *e)
{
    json_t *data = json_array(), *card;

    (void)e;
    if (app->model_name[0] != '\0') {
        card = json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:o, s:[o]}", "id", app->model_name,
                         "object", "model", "created", (json_int_t)app->life->started_wall_s,
                         "owned_by", "baton", "root", app->model_path, "parent", "max_model_len",
                         app->max_model_len > 0 ? json_integer(app->max_model_len) : json_null(),
                         "permission", permission(app));
        if (json_array_append_new(data, card) != 0) {
            json_decref(data);
            data = NULL;
        }
    }
    reply_json(x, 200,
               data == NULL ? NULL : json_pack("{s:s, s:o}", "object", "list", "data", data));
    return 0;
}

/* GET /v1/models and /v1/models/{id}: OpenAI's list. Adapters have a parent. Trainers compare `id`
 * exactly and read `max_model_len`. A path is listed beside the name, because it is the `id` that
 * vLLM would have; the name comes first. */
#include "control/life.h"
#include "engine/lora/adapters.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"

#include <string.h>

static json_t *permission(const struct app *app)
{
    return json_pack(
        "{s:s, s:s, s:I, s:b, s:b, s:b, s:b, s:b, s:b, s:s, s:n, s:b}", "id", "modelperm-baton",
        "object", "model_permission", "created", (json_int_t)app->life->started_wall_s,
        "allow_create_engine", 0, "allow_sampling", 1, "allow_logprobs", 1, "allow_search_indices",
        0, "allow_view", 1, "allow_fine_tuning", 0, "organization", "*", "group", "is_blocking", 0);
}

static json_t *lora_card(const struct app *app, const struct adapters_item *i)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:o, s:[o], s:I, s:s}", "id", i->name,
                     "object", "model", "created", (json_int_t)i->loaded_at, "owned_by", "baton",
                     "root", i->path[0] != '\0' ? i->path : i->name, "parent",
                     app->generate->model_name, "max_model_len",
                     json_integer(app->generate->max_model_len), "permission", permission(app),
                     "revision", (json_int_t)i->revision, "digest", i->digest);
}

/* Returns false if there is no memory. */
static bool add_adapters(const struct app *app, json_t *data)
{
    struct adapters_list list = {0};
    struct err e = {0};
    bool added = true;

    if (app->generate->adapters == NULL)
        return true;
    if (adapters_list(app->generate->adapters, &list, &e) != 0)
        return false;
    for (uint32_t i = 0; i < list.n && added; i++)
        added = json_array_append_new(data, lora_card(app, &list.items[i])) == 0;
    adapters_list_fini(&list);
    return added;
}

/* Returns NULL if there is no memory. */
static json_t *base_card(const struct app *app, const char *name)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:o, s:[o]}", "id", name, "object", "model",
                     "created", (json_int_t)app->life->started_wall_s, "owned_by", "baton", "root",
                     app->generate->model_path, "parent", "max_model_len",
                     app->generate->max_model_len > 0 ? json_integer(app->generate->max_model_len)
                                                      : json_null(),
                     "permission", permission(app));
}

static bool add_bases(const struct app *app, json_t *data)
{
    const char *name = app->generate->model_name, *given = app->generate->base_names[1];

    return json_array_append_new(data, base_card(app, name)) == 0 &&
           (strchr(given, '/') == NULL || strcmp(given, name) == 0 ||
            json_array_append_new(data, base_card(app, given)) == 0);
}

static json_t *cards(const struct app *app)
{
    json_t *data = json_array();

    if (app->generate->model_name[0] == '\0' || (add_bases(app, data) && add_adapters(app, data)))
        return data;
    json_decref(data);
    return NULL;
}

int handle_models(struct app *app, struct http_request *x, struct err *e)
{
    json_t *data = cards(app);

    (void)e;
    reply_json(x, 200,
               data == NULL ? NULL : json_pack("{s:s, s:o}", "object", "list", "data", data));
    return 0;
}

int handle_model(struct app *app, struct http_request *x, struct err *e)
{
    json_t *data = cards(app), *card, *found = NULL;
    size_t i;

    json_array_foreach(data, i, card)
    {
        if (strcmp(json_string_value(json_object_get(card, "id")), x->path_arg) == 0)
            found = json_incref(card);
    }
    json_decref(data);
    if (data != NULL && found == NULL)
        return err_set(e, ERR_NOT_FOUND, "/model",
                       "model '%.160s' is not served here: /v1/models lists those that are",
                       x->path_arg);
    reply_json(x, 200, found);
    return 0;
}

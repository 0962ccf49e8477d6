/* Adapters in replies. */
#include "handlers/lora/lora_json.h"

#include "engine/lora/adapters.h"
#include "handlers/app.h"

json_t *lora_gauges_json(const struct app_generate *generate)
{
    const struct adapters_config *cfg;
    struct adapters_gauges g;

    if (generate->adapters == NULL)
        return json_null();
    cfg = adapters_config_of(generate->adapters);
    adapters_gauges(generate->adapters, &g);
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "loaded", (json_int_t)g.n_loaded,
        "loading", (json_int_t)g.n_loading, "users", (json_int_t)g.n_pinned_refs, "older_revisions",
        (json_int_t)g.n_older, "nbytes", (json_int_t)g.nbytes, "nbytes_reserved",
        (json_int_t)g.nbytes_reserved, "max_loras", (json_int_t)cfg->n_max, "max_lora_rank",
        (json_int_t)cfg->rank_max, "max_lora_bytes", (json_int_t)cfg->nbytes_max);
}

static json_t *item_json(const struct adapters_item *i)
{
    return json_pack("{s:s, s:I, s:s, s:o, s:I, s:I, s:b, s:I, s:I, s:I}", "lora_name", i->name,
                     "revision", (json_int_t)i->revision, "digest", i->digest, "path",
                     i->path[0] != '\0' ? json_string(i->path) : json_null(), "rank",
                     (json_int_t)i->rank, "nbytes", (json_int_t)i->nbytes, "pinned", (int)i->pinned,
                     "loaded_at", (json_int_t)i->loaded_at, "n_users", (json_int_t)i->n_users,
                     "n_users_older", (json_int_t)i->n_users_older);
}

/* An update keeps all names and shapes of the model, and an adapter was checked against nothing
 * else: it stays valid. Only its trainer knows whether it fits these weights. */
static json_t *valid_json(const struct adapters_item *i)
{
    return json_pack("{s:s, s:I, s:b}", "name", i->name, "revision", (json_int_t)i->revision,
                     "valid", 1);
}

static json_t *list_json(const struct app_generate *generate,
                         json_t *(*of)(const struct adapters_item *))
{
    struct adapters_list list = {0};
    json_t *array = json_array();
    struct err e = {0};

    if (generate->adapters != NULL && adapters_list(generate->adapters, &list, &e) != 0) {
        json_decref(array);
        return NULL; /* no memory */
    }
    for (uint32_t i = 0; i < list.n && array != NULL; i++) {
        if (json_array_append_new(array, of(&list.items[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    adapters_list_fini(&list);
    return array;
}

json_t *lora_list_json(const struct app_generate *generate)
{
    return list_json(generate, item_json);
}

json_t *lora_valid_json(const struct app_generate *generate)
{
    return list_json(generate, valid_json);
}

json_t *lora_loaded_json(const struct app_generate *generate)
{
    struct adapters_list list = {0};
    json_t *loaded = json_object();
    struct err e = {0};
    bool complete = true;

    if (generate->adapters != NULL && adapters_list(generate->adapters, &list, &e) != 0)
        complete = false;
    for (uint32_t i = 0; i < list.n && complete; i++) {
        const struct adapters_item *it = &list.items[i];

        complete = json_object_set_new(loaded, it->name,
                                       it->path[0] != '\0' ? json_string(it->path) : json_null()) ==
                   0;
    }
    adapters_list_fini(&list);
    if (complete)
        return loaded;
    json_decref(loaded);
    return NULL;
}

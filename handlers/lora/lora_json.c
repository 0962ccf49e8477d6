/* Adapters in replies. */
#include "handlers/lora/lora_json.h"

#include "engine/lora/adapters.h"
#include "handlers/app.h"
#include "handlers/rows/reply_rows.h"

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

const struct member adapter_reply[] = {
    {"lora_name", M_STRING, M_IN(struct adapters_item, name)},
    {"revision", M_INT, M_IN(struct adapters_item, revision)},
    {"digest", M_STRING, M_IN(struct adapters_item, digest),
     .doc = "SHA-256 of everything that generation depends on, independent of file names"},
    {"path", M_STRING | M_NULL, M_IN(struct adapters_item, path)},
    {"rank", M_INT, M_IN(struct adapters_item, rank)},
    {"nbytes", M_INT, M_IN(struct adapters_item, nbytes)},
    {"pinned", M_BOOL, M_IN(struct adapters_item, pinned)},
    {"loaded_at", M_INT, M_IN(struct adapters_item, loaded_at), .doc = "Seconds since 1970"},
    {"n_users", M_INT, M_IN(struct adapters_item, n_users),
     .doc = "Requests that use this revision"},
    {"n_users_older", M_INT, M_IN(struct adapters_item, n_users_older)},
    {0},
};

/* An update keeps all names and shapes of the model, and an adapter was checked against nothing
 * else: it stays valid. Only its trainer knows whether it fits these weights. */
static const struct member valid_rows[] = {
    {"name", M_STRING, M_IN(struct adapters_item, name)},
    {"revision", M_INT, M_IN(struct adapters_item, revision)},
    {"valid", M_BOOL, .def = "true"},
    {0},
};

static json_t *list_json(const struct app_generate *generate, const struct member *rows)
{
    struct adapters_list list = {0};
    struct err e = {0};
    json_t *array;

    if (generate->adapters != NULL && adapters_list(generate->adapters, &list, &e) != 0)
        return NULL; /* no memory */
    array = member_write_list(list.items, list.n, sizeof *list.items, rows);
    adapters_list_fini(&list);
    return array;
}

json_t *lora_list_json(const struct app_generate *generate)
{
    return list_json(generate, adapter_reply);
}

json_t *lora_valid_json(const struct app_generate *generate)
{
    return list_json(generate, valid_rows);
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

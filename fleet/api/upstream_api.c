/* The kinds of upstreams, and the requests for each. To add a kind: a file with its struct
 * upstream_api, a value of enum upstream_kind, a row here. */
#include "fleet/api/upstream_api_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct upstream_api *const kinds[UPSTREAM_KINDS] = {
    [UPSTREAM_BATON] = &baton_api,
    [UPSTREAM_VLLM] = &vllm_api,
    [UPSTREAM_SGLANG] = &sglang_api,
};

const struct upstream_api *upstream_api(enum upstream_kind kind)
{
    return kinds[kind];
}

const struct upstream_caps *upstream_caps(enum upstream_kind kind)
{
    return &kinds[kind]->caps;
}

const char *upstream_kind_name(enum upstream_kind kind)
{
    return kinds[kind]->name;
}

int upstream_kind_parse(enum upstream_kind *out, const char *name, const char *field, struct err *e)
{
    const char *names[UPSTREAM_KINDS + 1] = {NULL};

    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        names[kind] = kinds[kind]->name;
        if (strcmp(name, names[kind]) == 0)
            *out = (enum upstream_kind)kind;
    }
    return api_check_word(name, names, field, e);
}

bool api_packs_handles_at_init(enum upstream_kind kind, const char *release)
{
    const struct upstream_api *api = kinds[kind];

    return api->packs_handles_at_init != NULL && api->packs_handles_at_init(release);
}

bool api_renames_for_lora(enum upstream_kind kind, const struct upstream_report *report)
{
    const struct upstream_api *api = kinds[kind];

    return api->renames_for_lora != NULL && report->has_lora &&
           api->renames_for_lora(report->release);
}

int api_names_for_lora(enum api_names *out, enum upstream_kind kind, const char *release,
                       const char *architecture, const char *text, size_t len, struct err *e)
{
    json_auto_t *config = api_read_config(kind, text, len, e);

    return config != NULL ? kinds[kind]->names_for_lora(out, release, architecture, config, e) : -1;
}

const char *api_refuses_windows(enum upstream_kind kind, const char *release)
{
    const struct upstream_api *api = kinds[kind];

    return api->refuses_windows != NULL ? api->refuses_windows(release) : NULL;
}

bool api_has_mapped_nothing(enum upstream_kind kind, int status, const char *text, size_t len)
{
    const struct upstream_api *api = kinds[kind];
    json_auto_t *reply = json_loadb(text, len, 0, NULL);

    return api->has_mapped_nothing != NULL && api->has_mapped_nothing(status, reply);
}

void api_request_fini(struct api_request *r)
{
    if (r->n_refs == NULL || atomic_fetch_sub_explicit(r->n_refs, 1, memory_order_acq_rel) == 1) {
        free(r->body);
        free(r->n_refs);
    }
    memset(r, 0, sizeof *r);
}

int api_request_share(struct api_request *out, struct api_request *from, struct err *e)
{
    memset(out, 0, sizeof *out);
    if (from->body != NULL && from->n_refs == NULL) {
        from->n_refs = malloc(sizeof *from->n_refs);
        if (from->n_refs == NULL)
            return api_no_memory(e);
        atomic_init(from->n_refs, 1);
    }
    *out = *from;
    if (out->n_refs != NULL)
        atomic_fetch_add_explicit(out->n_refs, 1, memory_order_relaxed);
    return 0;
}

static bool is_same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool api_context_equal(const struct api_context *a, const struct api_context *b)
{
    return is_same_text(a->release, b->release) && a->names == b->names &&
           a->group.packed == b->group.packed && a->group.bucket_nbytes == b->group.bucket_nbytes &&
           is_same_text(a->group_name, b->group_name) && is_same_text(a->update_id, b->update_id) &&
           a->has_rank_offset == b->has_rank_offset && a->rank_offset == b->rank_offset &&
           a->has_begun == b->has_begun;
}

/* Errors: ERR_BAD_REQUEST at the first member that the row refuses and a client sent. */
static int refuse(const struct api_draft *d, const struct api_op_row *row)
{
    char field[64];
    int len;

    for (const char *at = row->refuses; at != NULL && *at != '\0'; at += len + (at[len] == ' ')) {
        len = (int)strcspn(at, " ");
        (void)snprintf(field, sizeof field, "/%.*s", len, at);
        if (api_has(d->own, field + 1))
            return err_set(d->e, ERR_BAD_REQUEST, field, "%s upstreams do not support %s%s",
                           d->api->name, field + 1, row->takes != NULL ? row->takes : "");
    }
    return 0;
}

int api_make_request(struct api_request *out, enum upstream_kind kind, enum api_op op,
                     const struct api_args *args, const struct api_context *ctx, struct err *e)
{
    const struct api_op_row *row = &kinds[kind]->ops[op];
    struct api_request made = {.method = row->method};
    const struct api_draft d = {.api = kinds[kind],
                                .args = args,
                                .ctx = ctx,
                                .own = args->native != NULL ? args->native->json : NULL,
                                .out = &made,
                                .e = e};
    int rc;

    if (row->path != NULL)
        (void)api_set_path(&made, row->path);
    rc = refuse(&d, row);
    if (rc == 0 && row->make != NULL)
        rc = row->make(&d);
    if (rc != 0)
        api_request_fini(&made);
    *out = made;
    return rc;
}

int api_make_query(struct api_request *out, enum upstream_kind kind, enum api_query query,
                   struct err *e)
{
    const struct api_query_row *row = &kinds[kind]->queries[query];
    struct api_request made = {.method = "GET", .older = row->older};

    memset(out, 0, sizeof *out);
    if (row->path == NULL)
        return 0;
    (void)api_set_path(&made, row->path);
    if (row->body != NULL) {
        made.method = "POST";
        made.body = strdup(row->body);
        made.body_len = strlen(row->body);
        if (made.body == NULL)
            return api_no_memory(e);
    }
    *out = made;
    return 0;
}

enum err_code api_error_code(const char *name)
{
    for (int code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++)
        if (strcmp(err_wire_name((enum err_code)code), name) == 0)
            return (enum err_code)code;
    return ERR_NONE;
}

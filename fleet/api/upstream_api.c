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

static int refuse_kind(const char *name, const char *field, struct err *e)
{
    char known[64] = "";
    size_t len = 0;

    for (int kind = 0; kind < UPSTREAM_KINDS && len < sizeof known; kind++)
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", kind > 0 ? ", " : "",
                                kinds[kind]->name);
    return err_set(e, ERR_BAD_REQUEST, field, "'%.32s' is not one of %s", name, known);
}

int upstream_kind_parse(enum upstream_kind *out, const char *name, const char *field, struct err *e)
{
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        if (strcmp(name, kinds[kind]->name) != 0)
            continue;
        *out = (enum upstream_kind)kind;
        return 0;
    }
    return refuse_kind(name, field, e);
}

struct api_release api_release_of(enum upstream_kind kind, const char *release)
{
    struct api_release out = {0};

    if (kinds[kind]->read_release != NULL)
        kinds[kind]->read_release(&out, release);
    return out;
}

int api_names_for_lora(enum api_names *out, enum upstream_kind kind, const char *release,
                       const char *architecture, const char *text, size_t len, struct err *e)
{
    json_auto_t *config = api_read_config(kind, text, len, e);

    return config != NULL ? kinds[kind]->names_for_lora(out, release, architecture, config, e) : -1;
}

int api_check_partial(enum upstream_kind kind, bool by_path, const char *text, size_t len,
                      const char *model, size_t model_len, struct err *e)
{
    json_auto_t *reply = json_loadb(text, len, 0, NULL);
    json_auto_t *config = model != NULL ? json_loadb(model, model_len, 0, NULL) : NULL;

    return kinds[kind]->check_partial != NULL
               ? kinds[kind]->check_partial(by_path, reply, config, e)
               : 0;
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
static int api_refuse(const struct api_draft *d, const struct api_row *row)
{
    char field[1 + API_WORD_MAX] = "/";

    for (const char *at = row->refuses; (at = api_next_word(field + 1, at)) != NULL;)
        if (api_has(d->own, field + 1))
            return err_set(d->e, ERR_BAD_REQUEST, field, "%s upstreams do not support %s%s",
                           d->api->name, field + 1, row->takes != NULL ? row->takes : "");
    return 0;
}

/* What the row says of it. Errors: ERR_NO_MEMORY. */
static int begin_request(struct api_request *out, const struct api_row *row, struct err *e)
{
    *out = (struct api_request){.method = row->method, .older = row->older};
    if (row->path != NULL)
        (void)api_set_path(out, row->path);
    return row->body != NULL ? api_set_text(out, strdup(row->body), e) : 0;
}

int api_make_request(struct api_request *out, enum upstream_kind kind, enum api_op op,
                     const struct api_args *args, const struct api_context *ctx, struct err *e)
{
    const struct api_row *row = &kinds[kind]->ops[op];
    const struct api_draft d = {.api = kinds[kind],
                                .args = args,
                                .ctx = ctx,
                                .own = args->native != NULL ? args->native->json : NULL,
                                .out = out,
                                .e = e};
    int rc = begin_request(out, row, e);

    if (rc == 0)
        rc = api_refuse(&d, row);
    if (rc == 0 && row->make != NULL)
        rc = row->make(&d);
    if (rc != 0)
        api_request_fini(out);
    return rc;
}

int api_make_query(struct api_request *out, enum upstream_kind kind, enum api_query query,
                   struct err *e)
{
    int rc = begin_request(out, &kinds[kind]->queries[query], e);

    if (rc != 0)
        api_request_fini(out);
    return rc;
}

enum err_code api_error_code(const char *name)
{
    for (int code = ERR_NONE + 1; code < ERR_CODE_COUNT; code++)
        if (strcmp(err_wire_name((enum err_code)code), name) == 0)
            return (enum err_code)code;
    return ERR_NONE;
}

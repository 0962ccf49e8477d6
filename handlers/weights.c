/* What is served: the list of tensors, and the bytes of one. Both read a pinned version, so that a
 * commit in between cannot mix two. */
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "server/life.h"
#include "weights/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)VERSION_LABEL_MAX <= (int)EXCHANGE_HEADER_VALUE_MAX,
               "a label is told whole in a header");

const char *const weights_list_query[] = {"checksums", NULL};

static json_t *shape_json(const struct tensor_spec *t)
{
    json_t *list = json_array();

    for (uint32_t k = 0; k < t->ndim; k++) {
        if (json_array_append_new(list, json_integer((json_int_t)t->shape[k])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *label_or_null(struct store *s, uint64_t serial)
{
    char label[VERSION_LABEL_MAX + 1];

    return store_label_of(s, serial, label) ? json_string(label) : json_null();
}

static json_t *tensor_json(struct store *s, const struct version *v, uint32_t i, bool checksums)
{
    const struct tensor_spec *t = &store_manifest(s)->plan->tensors[i];
    char sum[CHECKSUM_LEN + 1];
    struct checksum c;

    if (checksums) {
        c = store_checksum(s, v, i);
        checksum_text(&c, sum);
    }
    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:o, s:I}", "name", t->name, "dtype",
                     dtype_name(t->dtype), "shape", shape_json(t), "nbytes", (json_int_t)t->nbytes,
                     "checksum", checksums ? json_string(sum) : json_null(), "version",
                     label_or_null(s, v->views[i].serial), "serial",
                     (json_int_t)v->views[i].serial);
}

static json_t *list_json(struct app *app, const struct version *v, bool checksums)
{
    const struct plan *plan = store_manifest(app->store)->plan;
    json_t *tensors = json_array();

    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        if (json_array_append_new(tensors, tensor_json(app->store, v, i, checksums)) != 0) {
            json_decref(tensors);
            return NULL;
        }
    }
    return json_pack("{s:s, s:I, s:s, s:s, s:I, s:I, s:o}", "weight_version", v->label, "serial",
                     (json_int_t)v->serial, "boot_id", app->life->boot_id, "plan_digest",
                     plan->digest, "nbytes", (json_int_t)v->nbytes, "n_tensors",
                     (json_int_t)plan->n_tensors, "tensors", tensors);
}

int handle_weights_list(struct app *app, struct exchange *x, struct err *e)
{
    const struct version *v;
    bool checksums = true;
    json_t *list;

    if (query_bool(&checksums, x, "checksums", e) != 0 || store_pin(app->store, &v, e) != 0)
        return -1;
    list = list_json(app, v, checksums);
    store_unpin(app->store, v);
    reply_json(x, 200, list);
    return 0;
}

/* A download holds its version until the last byte has left. */
struct download {
    struct store *store;
    struct workers *pool;
    struct job job;
    const struct version *version;
};

static void download_end(void *arg)
{
    struct download *d = arg;

    store_unpin(d->store, d->version);
    free(d);
}

/* Called on a front loop, which must not be the one that unmaps an old version. */
static void download_release(void *arg)
{
    struct download *d = arg;
    struct err ignored = {0};

    d->job = (struct job){.run = download_end, .arg = d};
    if (workers_post(d->pool, &d->job, WORKERS_URGENT, &ignored) != 0)
        download_end(d); /* the pool has stopped: so does everything */
}

/* A tensor's own name, or one that ties to it. */
static int find_tensor(const struct manifest *m, const char *name, uint32_t *index, struct err *e)
{
    *index = plan_find(m->plan, name);
    for (uint32_t i = 0; i < m->n_aliases && *index == PLAN_NO_TENSOR; i++) {
        if (m->aliases[i].kind == ALIAS_TIED && strcmp(m->aliases[i].name, name) == 0)
            *index = m->aliases[i].targets[0];
    }
    if (*index == PLAN_NO_TENSOR)
        return err_set(e, ERR_NOT_FOUND, "", "there is no tensor '%.160s'", name);
    return 0;
}

static void shape_header(char *out, size_t cap, const struct tensor_spec *t)
{
    size_t len = 0;

    out[0] = '\0';
    for (uint32_t k = 0; k < t->ndim && len < cap; k++)
        len += (size_t)snprintf(out + len, cap - len, "%s%llu", k > 0 ? "," : "",
                                (unsigned long long)t->shape[k]);
}

static void send_tensor(struct app *app, struct exchange *x, struct download *d, uint32_t index)
{
    const struct tensor_spec *t = &store_manifest(app->store)->plan->tensors[index];
    struct checksum c = store_checksum(app->store, d->version, index);
    struct exchange_reply r = {
        .status = 200,
        .content_type = "application/octet-stream",
        .data = d->version->views[index].data,
        .len = t->nbytes,
        .release = download_release,
        .release_arg = d,
    };
    char shape[EXCHANGE_HEADER_VALUE_MAX + 1], sum[CHECKSUM_LEN + 1];

    shape_header(shape, sizeof shape, t);
    checksum_text(&c, sum);
    exchange_reply_header(&r, "X-Baton-Dtype", "%s", dtype_name(t->dtype));
    exchange_reply_header(&r, "X-Baton-Shape", "%s", shape);
    exchange_reply_header(&r, "X-Baton-Weight-Version", "%s", d->version->label);
    exchange_reply_header(&r, "X-Baton-Serial", "%llu", (unsigned long long)d->version->serial);
    exchange_reply_header(&r, "X-Baton-Checksum", "%s", sum);
    exchange_reply(x, &r);
}

int handle_weights_get(struct app *app, struct exchange *x, struct err *e)
{
    struct download *d;
    uint32_t index;

    if (find_tensor(store_manifest(app->store), x->path_arg, &index, e) != 0)
        return -1;
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the download");
    d->store = app->store;
    d->pool = app->control;
    if (store_pin(app->store, &d->version, e) != 0) {
        free(d);
        return -1;
    }
    send_tensor(app, x, d, index);
    return 0;
}

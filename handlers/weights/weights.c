/* The served weights: the list of tensors, and the bytes of one tensor. Both read a pinned
 * version, so that a commit in between cannot mix two versions. Bytes in host memory are sent
 * from where they are; bytes that are only on GPUs are copied first. */
#include "base/utf8.h"
#include "control/life.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/weights_request.h"
#include "handlers/weights/shape_json.h"
#include "handlers/weights/weights_find.h"
#include "memory/memory.h"
#include "weights/source.h"
#include "weights/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)VERSION_LABEL_MAX <= (int)HTTP_REQUEST_HEADER_VALUE_MAX,
               "a label is told whole in a header");

enum { DOWNLOAD_MEMORY_SHARE = 2 }; /* a copy may take half of the free memory */

static json_t *label_or_null(struct store *s, uint64_t serial)
{
    char label[VERSION_LABEL_MAX + 1];

    return store_label_of(s, serial, label) ? json_string(label) : json_null();
}

/* The serial of the version that brought a tensor's bytes; it is the same in all places. */
static uint64_t serial_of(const struct store *s, const struct version *v, uint32_t i)
{
    for (uint32_t p = 0; p < store_n_places(s); p++)
        if (v->places[p][i].slab != NULL)
            return v->places[p][i].serial;
    return v->serial;
}

static json_t *served_tensor_json(struct store *s, const struct version *v, uint32_t i,
                                  const char *sum)
{
    const struct tensor_spec *t = &store_model_spec(s)->tensor_list->tensors[i];
    uint64_t serial = serial_of(s, v, i);

    return json_pack("{s:s, s:s, s:o, s:I, s:s?, s:o, s:I}", "name", t->name, "dtype",
                     dtype_name(t->dtype), "shape", shape_json(t), "nbytes", (json_int_t)t->nbytes,
                     "checksum", sum, "version", label_or_null(s, serial), "serial",
                     (json_int_t)serial);
}

static int add_tensor_json(json_t *list, struct store *s, const struct version *v, uint32_t i,
                           bool checksums, struct err *e)
{
    char sum[CHECKSUM_LEN + 1];
    struct checksum c;

    if (checksums) {
        if (store_checksum(s, v, i, &c, e) != 0)
            return -1;
        checksum_text(&c, sum);
    }
    if (json_array_append_new(list, served_tensor_json(s, v, i, checksums ? sum : NULL)) != 0)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the answer");
    return 0;
}

/* New, or NULL with e set. */
static json_t *weights_list_json(struct app *app, const struct version *v, bool checksums,
                                 struct err *e)
{
    const struct tensor_list *tensor_list = store_model_spec(app->weights->store)->tensor_list;
    json_t *tensors = json_array(), *list;

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        if (add_tensor_json(tensors, app->weights->store, v, i, checksums, e) != 0) {
            json_decref(tensors);
            return NULL;
        }
    }
    list = json_pack("{s:s, s:I, s:s, s:s, s:I, s:I, s:o}", "weight_version", v->label, "serial",
                     (json_int_t)v->serial, "boot_id", app->life->boot_id, "plan_digest",
                     tensor_list->digest, "nbytes", (json_int_t)v->nbytes, "n_tensors",
                     (json_int_t)tensor_list->n_tensors, "tensors", tensors);
    if (list == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the answer");
    return list;
}

int handle_weights_list(struct app *app, struct http_request *x, struct err *e)
{
    const struct version *v;
    struct weights_list_request req = {0};
    json_t *list;

    if (member_read_query(&req, weights_list_query, x, e) != 0 ||
        store_pin(app->weights->store, &v, e) != 0)
        return -1;
    list = weights_list_json(app, v, req.checksums, e);
    store_unpin(app->weights->store, v);
    if (list == NULL)
        return -1;
    reply_json(x, 200, list);
    return 0;
}

/* A download pins its version until the last byte is sent. */
struct download {
    struct store *store;
    struct workers *pool;
    struct job job;
    const struct version *version;
    void *copy; /* owned; NULL if the bytes are sent from the version's memory */
};

static void download_end(void *arg)
{
    struct download *d = arg;

    store_unpin(d->store, d->version);
    free(d->copy);
    free(d);
}

/* Called on an HTTP event loop, which must not unmap the memory of an old version. */
static void download_release(void *arg)
{
    struct download *d = arg;
    struct err ignored = {0};

    d->job = (struct job){.run = download_end, .arg = d};
    if (workers_post(d->pool, &d->job, WORKERS_URGENT, &ignored) != 0)
        download_end(d); /* the executor has stopped: the server ends */
}

int weights_find(const struct model_spec *m, const char *name, uint32_t *index, struct err *e)
{
    *index = tensor_list_find(m->tensor_list, name);
    for (uint32_t i = 0; i < m->n_aliases && *index == TENSOR_LIST_NO_TENSOR; i++) {
        if (m->aliases[i].kind == ALIAS_TIED && strcmp(m->aliases[i].name, name) == 0)
            *index = m->aliases[i].targets[0];
    }
    if (*index == TENSOR_LIST_NO_TENSOR)
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

/* Allocates memory for a copy, if enough memory remains for everything else. */
static int copy_alloc(void **out, const struct tensor_spec *t, struct err *e)
{
    struct memory_room room = memory_room("");

    if (t->nbytes > room.nbytes / DOWNLOAD_MEMORY_SHARE)
        return err_set(e, ERR_NO_MEMORY, "",
                       "'%.*s' has %llu bytes, which lie on a GPU; a copy to send them may take "
                       "%llu (bound: a part of %s)",
                       utf8_cut_name(t->name), t->name, (unsigned long long)t->nbytes,
                       (unsigned long long)(room.nbytes / DOWNLOAD_MEMORY_SHARE), room.bound);
    *out = malloc(t->nbytes > 0 ? t->nbytes : 1);
    if (*out == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to copy %llu bytes from the GPU",
                       (unsigned long long)t->nbytes);
    return 0;
}

static int copy_tensor(struct download *d, uint32_t index, const struct http_request *x,
                       struct err *e)
{
    const struct tensor_spec *t = &store_model_spec(d->store)->tensor_list->tensors[index];
    uint64_t piece;

    if (copy_alloc(&d->copy, t, e) != 0)
        return -1;
    if (x->method == METHOD_HEAD)
        return 0; /* only its length is sent */
    for (uint64_t at = 0; at < t->nbytes; at += piece) {
        piece = t->nbytes - at < SOURCE_PIECE_NBYTES ? t->nbytes - at : SOURCE_PIECE_NBYTES;
        if (store_read(d->store, d->version, index, at, piece, (char *)d->copy + at, e) != 0)
            return -1;
    }
    return 0;
}

static void send_tensor(struct http_request *x, struct download *d, uint32_t index,
                        const struct checksum *c)
{
    const struct tensor_spec *t = &store_model_spec(d->store)->tensor_list->tensors[index];
    struct http_reply r = {
        .status = 200,
        .content_type = "application/octet-stream",
        .data = d->copy != NULL ? d->copy : d->version->views[index].data,
        .len = t->nbytes,
        .release = download_release,
        .release_arg = d,
    };
    char shape[HTTP_REQUEST_HEADER_VALUE_MAX + 1], sum[CHECKSUM_LEN + 1];

    shape_header(shape, sizeof shape, t);
    checksum_text(c, sum);
    http_reply_header(&r, "X-Baton-Dtype", "%s", dtype_name(t->dtype));
    if (shape[0] != '\0') /* a scalar has none, and a header cannot be empty */
        http_reply_header(&r, "X-Baton-Shape", "%s", shape);
    http_reply_header_text(&r, "X-Baton-Weight-Version", d->version->label);
    http_reply_header(&r, "X-Baton-Serial", "%llu", (unsigned long long)d->version->serial);
    http_reply_header(&r, "X-Baton-Checksum", "%s", sum);
    http_reply(x, &r);
}

int handle_weights_get(struct app *app, struct http_request *x, struct err *e)
{
    struct download *d;
    struct checksum sum;
    uint32_t index;

    if (weights_find(store_model_spec(app->weights->store), x->path_arg, &index, e) != 0)
        return -1;
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the download");
    d->store = app->weights->store;
    d->pool = app->control_executor;
    if (store_pin(app->weights->store, &d->version, e) != 0 ||
        store_checksum(app->weights->store, d->version, index, &sum, e) != 0 ||
        (d->version->views == NULL && copy_tensor(d, index, x, e) != 0)) {
        download_end(d);
        return -1;
    }
    send_tensor(x, d, index, &sum);
    return 0;
}

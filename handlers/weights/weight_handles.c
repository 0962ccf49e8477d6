/* The served weights for other processes on this host: one CUDA IPC handle for each slab on a
 * GPU, and the place of each tensor in the slabs, under a lease.
 *
 * The columns names, dtypes and shapes are those of an update; for each GPU two more columns
 * give the slab and the offset of each tensor. So the reply for tens of thousands of tensors on
 * several GPUs is only a few megabytes. */
#include "control/life.h"
#include "driver/cuda_info.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/reply_rows.h"
#include "handlers/rows/weights_request.h"
#include "handlers/weights/shape_json.h"
#include "memory/device.h"
#include "weights/store/leases.h"
#include "weights/store/slab_set.h"
#include "weights/store/store.h"

#include <nettle/base64.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLE_TEXT_LEN = BASE64_ENCODE_RAW_LENGTH(DEVICE_IPC_NBYTES) };

static int handles_refuse_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the handles");
}

/* [{handle, nbytes}]; nbytes from the allocation's begin to the slab's end. New, or NULL. */
static json_t *slabs_json(struct device *device, struct slab_set *set, struct err *e)
{
    uint8_t handle[DEVICE_IPC_NBYTES];
    char text[HANDLE_TEXT_LEN + 1];
    json_t *list = json_array();

    for (uint32_t i = 0; i < set->n; i++) {
        struct slab *slab = set->slabs[i];

        if (device_export(device, slab->addr, handle, &set->offsets[i], e) != 0)
            goto err_free_list;
        base64_encode_raw(text, sizeof handle, handle);
        text[HANDLE_TEXT_LEN] = '\0';
        if (json_array_append_new(list, json_pack("{s:s, s:I}", "handle", text, "nbytes",
                                                  (json_int_t)(set->offsets[i] + slab->nbytes))) !=
            0) {
            (void)handles_refuse_memory(e);
            goto err_free_list;
        }
    }
    if (list == NULL)
        (void)handles_refuse_memory(e);
    return list;

err_free_list:
    json_decref(list);
    return NULL;
}

/* Columns "slab" and "offset", null where this GPU lacks the tensor. */
static int add_columns(json_t *object, const struct view *views, uint32_t n_tensors,
                       const struct slab_set *set)
{
    json_t *slab = json_array(), *offset = json_array();
    int rc = 0;

    for (uint32_t i = 0; i < n_tensors && rc == 0; i++) {
        const struct view *v = &views[i];
        uint32_t k = v->slab != NULL ? slab_set_index(set, v->slab) : 0;
        json_t *which = json_null(), *where = json_null();

        if (v->slab != NULL) {
            which = json_integer(k);
            where = json_integer((json_int_t)(set->offsets[k] + (v->addr - v->slab->addr)));
        }
        rc |= json_array_append_new(slab, which);
        rc |= json_array_append_new(offset, where);
    }
    rc |= json_object_set_new(object, "slab", slab);
    rc |= json_object_set_new(object, "offset", offset);
    return rc;
}

/* One GPU. New, or NULL with e set. */
static json_t *device_json(const struct app_weights *weights, const struct version *v,
                           uint32_t place, struct err *e)
{
    uint32_t n_tensors = store_model_spec(weights->store)->tensor_list->n_tensors;
    struct device *device = store_device(weights->store, place);
    json_t *object = NULL, *slabs;
    struct slab_set set = {0};

    if (slab_set_init(&set, v->places[place], n_tensors, e) != 0)
        return NULL;
    slabs = slabs_json(device, &set, e);
    if (slabs != NULL)
        object = json_pack("{s:s, s:s, s:o}", "place", store_place_name(weights->store, place),
                           "uuid", device_about(device)->uuid, "slabs", slabs);
    if (slabs != NULL &&
        (object == NULL || add_columns(object, v->places[place], n_tensors, &set) != 0)) {
        json_decref(object);
        object = NULL;
        (void)handles_refuse_memory(e);
    }
    slab_set_fini(&set);
    return object;
}

static json_t *devices_json(const struct app_weights *weights, const struct version *v,
                            struct err *e)
{
    json_t *list = json_array();

    for (uint32_t place = 0; place < weights->n_devices; place++) {
        json_t *one = device_json(weights, v, place, e);

        if (one == NULL || json_array_append_new(list, one) != 0) {
            json_decref(list);
            if (e->code == ERR_NONE)
                (void)handles_refuse_memory(e);
            return NULL;
        }
    }
    return list;
}

static int add_tensors(json_t *object, const struct tensor_list *tensor_list)
{
    json_t *names = json_array(), *dtypes = json_array(), *shapes = json_array();
    int rc = 0;

    for (uint32_t i = 0; i < tensor_list->n_tensors && rc == 0; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        rc |= json_array_append_new(names, json_string(t->name));
        rc |= json_array_append_new(dtypes, json_string(dtype_torch_name(t->dtype)));
        rc |= json_array_append_new(shapes, shape_json(t));
    }
    rc |= json_object_set_new(object, "names", names);
    rc |= json_object_set_new(object, "dtypes", dtypes);
    rc |= json_object_set_new(object, "shapes", shapes);
    return rc;
}

/* Other names of whole tensors: {"lm_head.weight": "model.embed_tokens.weight"}. */
static int add_aliases(json_t *object, const struct model_spec *m)
{
    json_t *aliases = json_object();
    int rc = 0;

    for (uint32_t i = 0; i < m->n_aliases && rc == 0; i++) {
        const struct alias *a = &m->aliases[i];

        if (a->kind == ALIAS_TIED)
            rc = json_object_set_new(aliases, a->name,
                                     json_string(m->tensor_list->tensors[a->targets[0]].name));
    }
    return json_object_set_new(object, "aliases", aliases) | rc;
}

static const char *placement_of(const struct app_weights *weights, const struct version *v)
{
    uint32_t n_tensors = store_model_spec(weights->store)->tensor_list->n_tensors;

    for (uint32_t place = 0; place < weights->n_devices; place++)
        for (uint32_t i = 0; i < n_tensors; i++)
            if (v->places[place][i].slab == NULL)
                return "sharded";
    return "replicated";
}

/* New, or NULL with e set. */
static json_t *handles_json(const struct app *app, const struct version *v,
                            const struct lease_info *lease, struct err *e)
{
    const struct model_spec *m = store_model_spec(app->weights->store);
    json_t *devices = devices_json(app->weights, v, e), *object;

    if (devices == NULL)
        return NULL;
    object = json_pack("{s:s, s:I, s:s, s:s, s:I, s:s, s:I, s:s, s:o}", "lease_id", lease->id,
                       "lease_s", (json_int_t)lease->timer.length_s, "boot_id", app->life->boot_id,
                       "weight_version", v->label, "serial", (json_int_t)v->serial, "plan_digest",
                       m->tensor_list->digest, "nbytes", (json_int_t)v->nbytes, "placement",
                       placement_of(app->weights, v), "devices", devices);
    if (object == NULL || add_tensors(object, m->tensor_list) != 0 || add_aliases(object, m) != 0) {
        json_decref(object);
        (void)handles_refuse_memory(e);
        return NULL;
    }
    return object;
}

static int make_reply(const struct app *app, const struct version *v,
                      const struct lease_info *lease, struct http_reply *reply, struct err *e)
{
    json_t *object = handles_json(app, v, lease, e);

    if (object == NULL)
        return -1;
    return reply_json_make(NULL, 200, object, reply) ? 0 : handles_refuse_memory(e);
}

/* HEAD: the reply's head and length, without a lease. */
static int answer_head(struct app *app, struct http_request *x, uint32_t lease_s, struct err *e)
{
    struct lease_info none = {.timer = {.length_s = lease_s}};
    const struct version *v;
    struct http_reply reply;
    int rc;

    memset(none.id, '0', LEASE_ID_LEN);
    if (store_pin(app->weights->store, &v, e) != 0)
        return -1;
    rc = make_reply(app, v, &none, &reply, e);
    store_unpin(app->weights->store, v);
    if (rc == 0)
        http_reply(x, &reply);
    return rc;
}

static int check_gpus(const struct app *app, struct err *e)
{
    if (!store_in_host_memory(app->weights->store))
        return 0;
    if (app->weights->n_devices > 0)
        return err_set(e, ERR_NO_GPU, "",
                       "the weights are in host memory (--stage host), to which there is no CUDA "
                       "IPC handle: read them by GET /v1/weights, or start with --stage cuda:0");
    if (!app->weights->cuda->available)
        return err_set(e, ERR_NO_GPU, "",
                       "the weights are in host memory, and CUDA is not available: %.300s",
                       app->weights->cuda->reason);
    return err_set(e, ERR_NO_GPU, "",
                   "the weights are in host memory: the server was started with --device cpu; "
                   "there are %zu GPUs, cuda:0 first",
                   app->weights->cuda->n_devices);
}

int handle_handles_get(struct app *app, struct http_request *x, struct err *e)
{
    struct handles_request req = {0};
    const struct version *v;
    struct http_reply reply;
    struct lease_info lease;
    struct err ignored = {0};

    if (member_read_query(&req, handles_query, x, e) != 0 || check_gpus(app, e) != 0)
        return -1;
    if (x->method == METHOD_HEAD)
        return answer_head(app, x, req.lease_s, e);
    if (lease_open(app->weights->leases, LEASE_HANDLES, req.lease_s, &lease, &v, e) != 0)
        return -1;
    if (make_reply(app, v, &lease, &reply, e) != 0) {
        (void)lease_close(app->weights->leases, LEASE_HANDLES, lease.id, &ignored);
        return -1;
    }
    lease_start(app->weights->leases, lease.id, NULL, NULL); /* before a client can renew it */
    http_reply(x, &reply);
    return 0;
}

static json_t *renewed_json(const struct app_weights *weights, const struct lease_info *lease)
{
    struct store_info info;

    store_info(weights->store, &info);
    return json_object_with(member_write(lease, lease_reply), "served",
                            json_boolean(info.serial == lease->serial));
}

static int handles_lease_renew(struct app *app, struct http_request *x, enum lease_kind kind,
                               struct err *e)
{
    struct handles_renew_request req = {0};
    json_auto_t *body = NULL;
    struct lease_info lease;

    if (body_parse(&body, x, x->route, e) != 0 ||
        member_read(&req, handles_renew_members, body, "", e) != 0 ||
        lease_renew(app->weights->leases, kind, req.lease_id, req.lease_s, &lease, e) != 0)
        return -1;
    reply_json(x, 200, renewed_json(app->weights, &lease));
    return 0;
}

int handle_handles_renew(struct app *app, struct http_request *x, struct err *e)
{
    return handles_lease_renew(app, x, LEASE_HANDLES, e);
}

int handle_leases_renew(struct app *app, struct http_request *x, struct err *e)
{
    return handles_lease_renew(app, x, LEASE_FILE, e);
}

static int handles_lease_delete(struct app *app, struct http_request *x, enum lease_kind kind,
                                struct err *e)
{
    if (lease_close(app->weights->leases, kind, x->path_arg, e) != 0)
        return -1;
    reply_json(x, 200, json_pack("{s:s}", "lease_id", x->path_arg));
    return 0;
}

int handle_handles_delete(struct app *app, struct http_request *x, struct err *e)
{
    return handles_lease_delete(app, x, LEASE_HANDLES, e);
}

int handle_leases_delete(struct app *app, struct http_request *x, struct err *e)
{
    return handles_lease_delete(app, x, LEASE_FILE, e);
}

/* The request of an update over sockets: its addresses, and the address for each rank. */
#include "handlers/update/zmq_request.h"

#include "base/clock.h"
#include "base/json_parse.h"
#include "base/utf8.h"
#include "control/source_threads.h"
#include "driver/cuda_info.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/update_request.h"
#include "handlers/source/gpu_match.h"
#include "handlers/source/ipc_request.h"
#include "handlers/update/update_requester.h"
#include "handlers/update/zmq_session.h"
#include "handlers/update_members.h"
#include "memory/device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD "/zmq_handles"

enum { KEY_SHOWN = 64 };

/* The GPUs that the request names. @set  zeroed; receives their UUIDs, no handles */
static int read_gpus(struct ipc_handles *set, const json_t *handles, struct err *e)
{
    const char *key;
    const json_t *value;

    if (json_object_size(handles) == 0 || json_object_size(handles) > IPC_GPUS_MAX)
        return err_set(e, ERR_BAD_REQUEST, FIELD, "there are %zu sockets, expected 1 to %d",
                       json_object_size(handles), IPC_GPUS_MAX);
    json_object_foreach(json_mutable(handles), key, value)
    {
        char *uuid = set->gpus[set->n_gpus].uuid;

        if (!ipc_uuid_parse(uuid, key, strlen(key)))
            return err_set(e, ERR_BAD_REQUEST, FIELD,
                           "'%.*s' is not the UUID of a CUDA GPU; a key is GPU-xxxxxxxx-xxxx-...",
                           utf8_cut(key, KEY_SHOWN), key);
        for (uint32_t i = 0; i < set->n_gpus; i++)
            if (strcmp(set->gpus[i].uuid, uuid) == 0)
                return err_set(e, ERR_BAD_REQUEST, FIELD, "GPU %s is named twice", uuid);
        if (!json_is_string(value))
            return err_set(e, ERR_BAD_REQUEST, FIELD,
                           "the address of GPU %s is %s; expected a string", uuid,
                           body_type_name(value));
        if (zmq_address_check(json_string_value(value), FIELD, e) != 0)
            return -1;
        set->n_gpus++;
    }
    return 0;
}

static int zmq_refuse_no_gpu(const struct app_weights *weights, const struct ipc_handles *set,
                             struct err *e)
{
    if (!weights->cuda->available)
        return err_set(e, ERR_NO_GPU, FIELD,
                       "the sockets bring CUDA IPC handles (of GPU %s), but this server has no "
                       "CUDA: %.200s; send the tensors by shm, path or as the body",
                       set->gpus[0].uuid, weights->cuda->reason);
    return err_set(e, ERR_NO_GPU, FIELD,
                   "the sockets bring CUDA IPC handles (of GPU %s), but this server was started "
                   "with --device cpu, which keeps its weights in host memory; start it with "
                   "--device cuda:0 (it has %s there)",
                   set->gpus[0].uuid, weights->cuda->devices[0].uuid);
}

/* The address of a GPU that the request names. @uuid  as ipc_uuid_parse made it from the key */
static const char *address_of(const json_t *handles, const char *uuid)
{
    char found[IPC_UUID_LEN + 1];
    const char *key;
    const json_t *value;

    json_object_foreach(json_mutable(handles), key, value)
    {
        if (ipc_uuid_parse(found, key, strlen(key)) && strcmp(found, uuid) == 0)
            return json_string_value(value);
    }
    return NULL;
}

static int add_port(struct zmq_session *p, const char *uuid, const json_t *handles, uint32_t *port,
                    struct err *e)
{
    for (*port = 0; *port < p->n_ports; ++*port)
        if (strcmp(p->uuids[*port], uuid) == 0)
            return 0;
    p->addresses[*port] = strdup(address_of(handles, uuid));
    if (p->addresses[*port] == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the sockets");
    memcpy(p->uuids[*port], uuid, sizeof p->uuids[*port]);
    p->n_ports++;
    return 0;
}

/* Assigns a socket to each rank. Sockets of other GPUs are for other servers. */
static int match_ports(struct zmq_session *p, const struct ipc_handles *set, const json_t *handles,
                       struct err *e)
{
    const struct app_weights *weights = p->app->weights;
    const struct ipc_gpu *rank_gpus[STORE_DEVICES_MAX];
    const char *uuids[STORE_DEVICES_MAX];
    struct gpu_match_ranks ranks = {.n = weights->n_devices,
                                    .uuids = uuids,
                                    .reach = ipc_gpu_reach,
                                    .arg = (void *)(uintptr_t)weights};

    for (uint32_t r = 0; r < weights->n_devices; r++)
        uuids[r] = device_about(weights->devices[r])->uuid;
    if (gpu_match(rank_gpus, &ranks, set, false, FIELD, e) != 0)
        return -1;
    for (uint32_t r = 0; r < weights->n_devices; r++)
        if (add_port(p, rank_gpus[r]->uuid, handles, &p->port_of[r], e) != 0)
            return -1;
    return 0;
}

static int zmq_session_parse(struct zmq_session *p, const json_t *body, struct err *e)
{
    struct ipc_handles set = {0};
    struct zmq_request r = {0};

    if (member_read(&r, update_zmq_members, body, "", e) != 0 || read_gpus(&set, r.handles, e) != 0)
        return -1;
    if (p->app->weights->n_devices == 0)
        return zmq_refuse_no_gpu(p->app->weights, &set, e);
    (void)snprintf(p->label, sizeof p->label, "%s", r.label != NULL ? r.label : "");
    p->deadline_us = r.timeout_ms > 0 ? clock_after_us(r.timeout_ms * 1000) : CLOCK_NEVER;
    return match_ports(p, &set, r.handles, e);
}

static int zmq_session_new(struct zmq_session **out, struct app *app, struct http_request *x,
                           struct err *e)
{
    struct zmq_session *p = calloc(1, sizeof *p);
    json_t *body = NULL;
    int rc;

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
    p->app = app;
    mtx_init(&p->result.lock, MTX_LEAF);
    cnd_init(&p->result.done_cnd);
    rc = body_parse(&body, x, x->route, e);
    if (rc == 0)
        rc = zmq_session_parse(p, body, e);
    json_decref(body);
    if (rc == 0)
        rc = update_requester_new(&p->asker, app, x, NULL, e);
    if (rc == 0)
        p->actor = x->actor;
    if (rc != 0) {
        zmq_session_free(p);
        return -1;
    }
    *out = p;
    return 0;
}

int handle_update_zmq(struct app *app, struct http_request *x, struct err *e)
{
    struct zmq_session *p;

    if (zmq_session_new(&p, app, x, e) != 0)
        return -1;
    p->pool = app->weights->source_threads;
    p->job = (struct job){.run = zmq_session_run, .arg = p};
    if (source_threads_post(p->pool, &p->job, e) == 0)
        return 0;
    zmq_session_free(p);
    return -1;
}

int fleet_update_zmq(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    (void)x;
    return err_set(
        e, ERR_HAS_UPSTREAMS, FIELD,
        "update_weights_from_ipc is not forwarded to upstream engines: checkpoint-engine sends "
        "every bucket to all engines at the same time, but baton allows one update at a time; give "
        "it the engines' own addresses, or push once through baton by path, nccl or CUDA IPC");
}

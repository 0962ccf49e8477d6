/* sleep and wake. */
#include "control/pause_controller.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/pause_controller_json.h"
#include "handlers/reply.h"

#include <stdio.h>
#include <string.h>


/* No tags mean all. cuda_graph is a tag of other servers that has no effect here: alone it gives
 * *out = 0. */
static int tags_parse(unsigned *out, const json_t *body, struct err *e)
{
    const json_t *list = NULL;
    unsigned tags = 0;
    bool graphs = false;

    if (body_array(&list, body, "", "tags", e) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *tag = json_string_value(json_array_get(list, i));
        char field[ERR_FIELD_MAX];

        if (tag != NULL && strcmp(tag, "weights") == 0) {
            tags |= PAUSE_WEIGHTS;
        } else if (tag != NULL && strcmp(tag, "kv_cache") == 0) {
            tags |= PAUSE_KV;
        } else if (tag != NULL && strcmp(tag, "cuda_graph") == 0) {
            graphs = true;
        } else {
            (void)snprintf(field, sizeof field, "/tags/%zu", i);
            return err_set(e, ERR_BAD_REQUEST, field,
                           "'%.32s' is not one of weights, kv_cache, cuda_graph",
                           tag != NULL ? tag : "");
        }
    }
    *out = tags != 0 || graphs ? tags : PAUSE_WEIGHTS | PAUSE_KV;
    return 0;
}

static int sleep_parse(int *level, unsigned *tags, struct http_request *x, struct err *e)
{
    uint64_t n = 1;
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = body_u64(&n, body, "", "level", 1, 2, e);
    if (rc == 0)
        rc = tags_parse(tags, body, e);
    json_decref(body);
    *level = (int)n;
    return rc;
}

/* Replies with the sleep state and `more` (stolen). */
static void reply_sleep(struct app *app, struct http_request *x, json_t *more)
{
    json_t *reply = pause_controller_sleep_json(app->pause_controller);

    if (reply != NULL && (more == NULL || json_object_update(reply, more) != 0)) {
        json_decref(reply);
        reply = NULL;
    }
    json_decref(more);
    reply_json(x, 200, reply);
}

int handle_sleep(struct app *app, struct http_request *x, struct err *e)
{
    struct pause_controller_slept slept = {0};
    unsigned tags = 0;
    int level = 1;

    if (sleep_parse(&level, &tags, x, e) != 0)
        return -1;
    if (tags != 0 && pause_controller_sleep(app->pause_controller, level, tags, &slept, e) != 0)
        return -1;
    reply_sleep(app, x,
                json_pack("{s:i, s:{s:I, s:I, s:I, s:I}, s:I, s:I}", "level", level, "freed",
                          "weights_device", (json_int_t)slept.weights.nbytes_device, "weights_host",
                          (json_int_t)slept.weights.nbytes_host, "staging",
                          (json_int_t)slept.weights.nbytes_ready, "kv_cache",
                          (json_int_t)slept.nbytes_kv, "kept",
                          (json_int_t)slept.weights.nbytes_kept, "aborted",
                          (json_int_t)slept.n_aborted));
    return 0;
}

int handle_wake(struct app *app, struct http_request *x, struct err *e)
{
    uint64_t nbytes = 0;
    unsigned tags = 0;
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = tags_parse(&tags, body, e);
    json_decref(body);
    if (rc != 0 ||
        (tags != 0 && pause_controller_wake(app->pause_controller, tags, &nbytes, e) != 0))
        return -1;
    reply_sleep(app, x, json_pack("{s:I}", "restored", (json_int_t)nbytes));
    return 0;
}

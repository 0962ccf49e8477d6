/* Reads the requests of the life cycle. */
#include "handlers/rows/life_request.h"

#include "base/log.h"
#include "handlers/control_plane.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Once in the life of the process: a trainer pauses at every step. */
static void warn_no_lease(const struct http_request *x)
{
    static atomic_bool warned;
    struct log_rec r;

    if (atomic_exchange_explicit(&warned, true, memory_order_relaxed))
        return;
    log_begin(&r, LOG_WARN, "pause.no_lease");
    log_actor(&r, &x->actor);
    log_str(&r, "message",
            "a pause without lease_s lasts until a resume, also if its client dies; "
            "later ones are not logged");
    log_end(&r);
}

int pause_parse(struct pause_request *req, const struct http_request *x, const json_t *body,
                struct err *e)
{
    struct pause_input given = {.owner = x->actor.request_id};

    if (member_read(&given, pause_members, body, "", e) != 0)
        return -1;
    if (given.lease_s == 0)
        warn_no_lease(x);
    (void)snprintf(req->owner, sizeof req->owner, "%s", given.owner);
    req->mode = (enum lifecycle_pause)(PAUSE_KEEP + given.mode);
    req->reject = given.new_requests != 0;
    req->lease_s = given.lease_s;
    req->timeout_s = given.timeout_s;
    return 0;
}

/* cuda_graph is a tag of other servers that has no effect here. */
static int tags_parse(struct wake_request *req, struct err *e)
{
    for (size_t i = 0; i < json_array_size(req->tags); i++) {
        const char *tag = json_string_value(json_array_get(req->tags, i));
        char field[ERR_FIELD_MAX];

        if (tag != NULL && strcmp(tag, "weights") == 0) {
            req->weights = true;
        } else if (tag != NULL && strcmp(tag, "kv_cache") == 0) {
            req->kv = true;
        } else if (tag == NULL || strcmp(tag, "cuda_graph") != 0) {
            (void)snprintf(field, sizeof field, "/tags/%zu", i);
            return err_set(e, ERR_BAD_REQUEST, field,
                           "'%.32s' is not one of weights, kv_cache, cuda_graph",
                           tag != NULL ? tag : "");
        }
    }
    if (json_array_size(req->tags) == 0)
        req->weights = req->kv = true;
    return 0;
}

int sleep_parse(struct sleep_request *req, const json_t *body, struct err *e)
{
    return member_read(req, sleep_members, body, "", e) != 0 ? -1 : tags_parse(&req->what, e);
}

int wake_parse(struct wake_request *req, const json_t *body, struct err *e)
{
    return member_read(req, wake_members, body, "", e) != 0 ? -1 : tags_parse(req, e);
}

int abort_parse(struct abort_request *req, const json_t *body, struct err *e)
{
    if (member_read(req, abort_requests_members, body, "", e) != 0)
        return -1;
    if (req->all == (req->ids != NULL))
        return err_set(e, ERR_BAD_REQUEST, "", "one of 'request_ids' and \"all\": true is needed");
    return 0;
}

/* A version as one safetensors file, or a range of it, under a lease: what another server reads to
 * serve the same version.
 *
 * The bytes are copied piece by piece into the stream of the reply, and each piece is read under
 * the lease: when that has ended the connection is cut, and the memory is free at once. A reply
 * takes FILE_UNSENT_MAX and one piece of memory, however long it is and however slow its client.
 * Rejected: replies that point into the version's memory, as those of one tensor do, because an
 * update would have to wait until they have ended. */
#include "base/clock.h"
#include "control/life.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/file_reply.h"
#include "handlers/reply.h"
#include "handlers/rows/weights_request.h"
#include "transport/peer/pass.h"
#include "transport/peer/seeder.h"
#include "weights/state/version_file.h"
#include "weights/store/leases.h"
#include "weights/store/store.h"

#include <stdlib.h>
#include <string.h>

static json_t *file_lease_json(const struct app *app, const struct lease_info *lease,
                               const struct version_file *f)
{
    const struct tensor_list *spec = store_model_spec(app->weights->store)->tensor_list;

    return json_pack("{s:s, s:I, s:s, s:s, s:I, s:s, s:s, s:I, s:I, s:o}", "lease_id", lease->id,
                     "lease_s", (json_int_t)lease->timer.length_s, "boot_id", app->life->boot_id,
                     "weight_version", lease->label, "serial", (json_int_t)lease->serial,
                     "plan_digest", spec->digest, "digest", f->content, "nbytes",
                     (json_int_t)f->nbytes, "n_tensors", (json_int_t)spec->n_tensors, "adapters",
                     app->generate->lora != NULL ? app->generate->lora->valid(app->generate)
                                                 : json_array());
}

struct opener {
    const struct app *app;
    struct http_request *x;
};

static bool opener_gone(void *arg)
{
    const struct opener *o = arg;

    return http_request_disconnected(o->x) || life_state(o->app->life) == LIFE_DRAINING;
}

static bool start_lease(const struct app *app, struct http_request *x,
                        const struct lease_info *lease, const struct version_file *f, void *file,
                        void (*free_file)(void *file), struct err *e)
{
    struct handle_leases *leases = app->weights->leases;
    struct http_reply reply;
    struct err ignored = {0};

    if (e->code == ERR_NONE && !reply_json_make(NULL, 200, file_lease_json(app, lease, f), &reply))
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the answer");
    if (e->code != ERR_NONE) {
        (void)lease_close(leases, LEASE_FILE, lease->id, &ignored);
        free_file(file);
        return false;
    }
    lease_start(leases, lease->id, file, free_file); /* before the client can use it */
    http_reply(x, &reply);
    return true;
}

/* What is being read from a peer comes before what is served. */
static int lease_passed(struct app *app, struct http_request *x, struct pass *pass,
                        uint32_t lease_s, struct err *e)
{
    struct lease_info lease;

    if (lease_open_passed(app->weights->leases, lease_s, pass_label(pass), &lease, e) != 0) {
        pass_unref(pass);
        return -1;
    }
    return start_lease(app, x, &lease, pass_file(pass), pass, pass_unref, e) ? 0 : -1;
}

int handle_leases_open(struct app *app, struct http_request *x, struct err *e)
{
    struct handle_leases *leases = app->weights->leases;
    struct opener opener = {app, x};
    struct progress progress = {
        .deadline_us = CLOCK_NEVER, .gone = opener_gone, .gone_arg = &opener};
    struct handles_request req = {0};
    struct version_file *f = NULL;
    json_auto_t *body = NULL;
    struct pass *pass = NULL;
    const struct version *v;
    struct lease_info lease;

    if (body_parse(&body, x, x->route, e) != 0 ||
        member_read(&req, leases_members, body, "", e) != 0 ||
        seeder_pass(app->weights->seeder, &pass, e) != 0)
        return -1;
    if (pass != NULL)
        return lease_passed(app, x, pass, req.lease_s, e);
    if (lease_open(leases, LEASE_FILE, req.lease_s, &lease, &v, e) != 0)
        return -1;
    (void)version_file_new(&f, app->weights->store, v, &progress, e);
    return start_lease(app, x, &lease, f, f, version_file_free, e) ? 0 : -1;
}

/* A version that is being sent. */
struct leased_file {
    const struct app_weights *weights; /* borrowed */
    char lease_id[LEASE_ID_LEN + 1];
};

static int leased_read(void *arg, uint64_t at, uint64_t *n, void *out, struct err *e)
{
    const struct leased_file *l = arg;
    struct lease_use use;
    int rc;

    if (lease_use(l->weights->leases, l->lease_id, &use, e) != 0)
        return -1;
    rc = use.version == NULL
             ? pass_read(use.file, at, n, out, e)
             : version_file_read(use.file, l->weights->store, use.version, at, *n, out, e);
    lease_unuse(l->weights->leases, &use);
    return rc;
}

static int leased_reply(struct app *app, struct http_request *x, const char *lease_id,
                        const struct lease_use *use, struct err *e)
{
    const struct version_file *f = use->version == NULL ? pass_file(use->file) : use->file;
    struct leased_file *l = calloc(1, sizeof *l);
    struct file_source source = {f->nbytes, f->digest, leased_read, free, l};
    struct http_reply head = {.content_type = "application/vnd.safetensors"};

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the download");
    l->weights = app->weights;
    memcpy(l->lease_id, lease_id, strlen(lease_id)); /* it is that of a lease */
    http_reply_header_text(&head, "X-Baton-Weight-Version", use->info->label);
    if (use->version != NULL)
        http_reply_header(&head, "X-Baton-Serial", "%llu", (unsigned long long)use->info->serial);
    return file_reply(app, x, &source, &head, e);
}

int handle_weights_file(struct app *app, struct http_request *x, struct err *e)
{
    struct weights_file_request req = {0};
    struct lease_use use;
    int rc;

    if (member_read_query(&req, weights_file_query, x, e) != 0 ||
        lease_use(app->weights->leases, req.lease_id, &use, e) != 0)
        return -1;
    rc = use.version == NULL ? pass_check(use.file, e) : 0;
    if (rc == 0)
        rc = leased_reply(app, x, req.lease_id, &use, e);
    lease_unuse(app->weights->leases, &use);
    return rc;
}

/* GET /v1/lora_adapters/{name}: a loaded adapter as one safetensors file, for another host. Its
 * adapter_config.json is in __metadata__. The revision is kept until its last byte is sent, or
 * until it does not serve any more: a slow client must take no memory from the next one. */
#include "base/json_parse.h"
#include "engine/lora/adapters.h"
#include "handlers/app.h"
#include "handlers/control_plane.h"
#include "handlers/file_reply.h"
#include "handlers/rows/lora_request.h"
#include "weights/safetensors_write.h"
#include "weights/state/version_content.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct adapter_export {
    struct adapters *set;   /* borrowed */
    struct adapter_ref ref; /* pinned */
    char *head;             /* owned */
    struct safetensors_parts parts;
};

static void adapter_export_free(void *arg)
{
    struct adapter_export *x = arg;

    adapters_unpin(x->set, &x->ref);
    free(x->head);
    free(x);
}

static int adapter_export_tensor(void *arg, uint32_t i, uint64_t offset, uint64_t n, void *out,
                                 struct err *e)
{
    const struct adapter_export *x = arg;

    (void)e;
    memcpy(out, (const char *)adapter_bytes(x->ref.adapter, i) + offset, n);
    return 0;
}

static int adapter_export_read(void *arg, uint64_t at, uint64_t *n, void *out, struct err *e)
{
    const struct adapter_export *x = arg;

    if (!adapters_serves(x->set, &x->ref))
        return err_set(e, ERR_PRECONDITION, "",
                       "revision %" PRIu64 " of adapter '%.160s' was replaced or unloaded while it "
                       "was sent",
                       x->ref.revision, x->ref.name);
    return safetensors_read_parts(&x->parts, at, *n, out, e);
}

static int adapter_export_head(struct adapter_export *x, struct err *e)
{
    const struct adapter *a = x->ref.adapter;
    const struct tensor_list *list = adapter_tensors(a);
    json_t *metadata = json_object_with(content_metadata(NULL, list, adapter_checksums(a)),
                                        "baton.adapter_config",
                                        json_string(adapter_config_text(a)));
    size_t nbytes = 0;
    int rc;

    metadata = json_object_with(metadata, "baton.adapter_digest", json_string(adapter_digest(a)));
    rc = safetensors_head_make(&x->head, &nbytes, list->tensors, list->n_tensors, metadata, e);
    x->parts = (struct safetensors_parts){x->head, nbytes, list, adapter_export_tensor, x};
    return rc;
}

static int check_revision(const struct adapter_ref *ref, uint64_t wanted, struct err *e)
{
    if (wanted == 0 || wanted == ref->revision)
        return 0;
    return err_set(e, ERR_PRECONDITION, "/revision",
                   "adapter '%.160s' is at revision %" PRIu64 ", not %" PRIu64, ref->name,
                   ref->revision, wanted);
}

static int adapter_export_reply(struct app *app, struct http_request *x, struct adapter_export *a,
                                struct err *e)
{
    struct http_reply head = {.content_type = "application/vnd.safetensors"};
    char digest[CONTENT_LEN + 1];
    struct file_source source = {a->parts.nbytes_head + a->parts.tensors->nbytes, digest,
                                 adapter_export_read, adapter_export_free, a};
    struct sha256_ctx ctx;

    sha256_init(&ctx);
    sha256_update(&ctx, a->parts.nbytes_head, (const uint8_t *)a->head);
    content_text(&ctx, digest);
    http_reply_header(&head, "X-Baton-Adapter-Revision", "%" PRIu64, a->ref.revision);
    return file_reply(app, x, &source, &head, e);
}

int handle_lora_file(struct app *app, struct http_request *x, struct err *e)
{
    struct lora_file_request req = {0};
    struct adapter_export *a;

    if (app->generate->adapters == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "this server holds weights only (--engine none): it has no adapters");
    if (member_read_query(&req, lora_file_query, x, e) != 0)
        return -1;
    a = calloc(1, sizeof *a);
    if (a == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to send an adapter");
    a->set = app->generate->adapters;
    if (adapters_pin(a->set, x->path_arg, &a->ref, e) != 0 ||
        check_revision(&a->ref, req.revision, e) != 0 || adapter_export_head(a, e) != 0) {
        adapter_export_free(a);
        return -1;
    }
    return adapter_export_reply(app, x, a, e);
}

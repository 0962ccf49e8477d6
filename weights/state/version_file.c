/* Reads the file of a version piece by piece. */
#include "weights/state/version_file.h"

#include "weights/safetensors_write.h"
#include "weights/state/version_content.h"

#include <stdlib.h>

/* The trainer goes first here too: a whole version may have to be read. */
static int sum_next(struct checksum *out, struct store *s, const struct version *v, uint32_t i,
                    const struct progress *progress, struct err *e)
{
    if (progress_check(progress, e) != 0)
        return -1;
    if (store_reader_awaited(s, v))
        return err_set(e, ERR_LEASE_ENDED, "",
                       "an update or a sleep waits for the version '%s', or it got another label, "
                       "before the file was ready",
                       v->label);
    return store_checksum(s, v, i, out, e);
}

int version_file_new(struct version_file **out, struct store *s, const struct version *v,
                     const struct progress *progress, struct err *e)
{
    const struct tensor_list *spec = store_model_spec(s)->tensor_list;
    struct checksum *sums = calloc(spec->n_tensors, sizeof *sums);
    int rc = 0;

    if (sums == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u checksums", spec->n_tensors);
    for (uint32_t i = 0; i < spec->n_tensors && rc == 0; i++)
        rc = sum_next(&sums[i], s, v, i, progress, e);
    if (rc == 0)
        rc = version_file_of(out, spec, v->label, sums, e);
    free(sums);
    if (rc == 0)
        store_note_content(s, v->serial, (*out)->content);
    return rc;
}

int version_file_of(struct version_file **out, const struct tensor_list *spec, const char *label,
                    const struct checksum *sums, struct err *e)
{
    struct version_file *f = calloc(1, sizeof *f);
    struct sha256_ctx ctx;
    size_t nbytes;

    if (f == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the head of a file");
    if (safetensors_head_make(&f->head, &nbytes, spec->tensors, spec->n_tensors,
                              content_metadata(label, spec, sums), e) != 0) {
        version_file_free(f);
        return -1;
    }
    f->nbytes_head = nbytes;
    f->nbytes = nbytes + spec->nbytes;
    content_of(spec, sums, f->content);
    sha256_init(&ctx);
    sha256_update(&ctx, f->nbytes_head, (const uint8_t *)f->head);
    content_text(&ctx, f->digest);
    *out = f;
    return 0;
}

void version_file_free(void *file)
{
    struct version_file *f = file;

    if (f == NULL)
        return;
    free(f->head);
    free(f);
}

struct version_read {
    struct store *store;
    const struct version *version;
};

static int read_tensor(void *arg, uint32_t i, uint64_t offset, uint64_t n, void *out, struct err *e)
{
    const struct version_read *r = arg;

    return store_read(r->store, r->version, i, offset, n, out, e);
}

int version_file_read(const struct version_file *f, struct store *s, const struct version *v,
                      uint64_t at, uint64_t n, void *out, struct err *e)
{
    struct version_read r = {s, v};
    const struct safetensors_parts parts = {f->head, f->nbytes_head,
                                            store_model_spec(s)->tensor_list, read_tensor, &r};

    return safetensors_read_parts(&parts, at, n, out, e);
}

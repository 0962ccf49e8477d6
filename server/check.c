/* What --check says. Text for people and grep; /v1/status says it as JSON once a server runs. */
#include "server/check.h"

#include "server/config.h"
#include "server/serve.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void put_cuda(const struct cuda_info *cuda, FILE *to)
{
    if (!cuda->available) {
        (void)fprintf(to, "cuda: not available: %s\n", cuda->reason);
        return;
    }
    (void)fprintf(to, "cuda: available, driver for CUDA %s, %zu devices\n", cuda->driver_version,
                  cuda->n_devices);
    for (size_t i = 0; i < cuda->n_devices; i++) {
        const struct cuda_device *d = &cuda->devices[i];

        (void)fprintf(to, "cuda:%d: %s, %s, %" PRIu64 " bytes, compute capability %d.%d%s\n",
                      d->ordinal, d->name, d->uuid, d->nbytes_total, d->major, d->minor,
                      d->mig ? ", a MIG slice" : "");
    }
}

int serve_check(const struct config *config, FILE *to, struct err *e)
{
    struct serve_report *r = calloc(1, sizeof *r);
    int rc = -1;

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to check");
    if (serve_inspect(config, r, e) != 0)
        goto out;
    (void)fprintf(to, "configuration: ok, would listen on %s\n", config->listen);
    if (config->model != NULL && strcmp(config->engine, "none") != 0)
        (void)fprintf(to, "model: %s, %" PRIu64 " tokens in its vocabulary\n", config->model,
                      r->vocab_size);
    (void)fprintf(to, "weights: %" PRIu64 " tensors, %" PRIu64 " bytes in each version\n",
                  r->n_tensors, r->nbytes);
    (void)fprintf(to, "first weights: %s%s\n", r->has_weights ? "version " : "none, unsynced",
                  r->label);
    put_cuda(&r->cuda, to);
    rc = fflush(to) == 0 && !ferror(to)
             ? 0
             : err_set_errno(e, ERR_INTERNAL, "", errno, "the report could not be written");
out:
    free(r);
    return rc;
}

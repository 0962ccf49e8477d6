/* The report of --check: text for people and grep. GET /v1/status reports the same as JSON once a
 * server runs. */
#include "server/serve_check.h"

#include "memory/copy_sum.h"
#include "server/config/config.h"
#include "server/listeners.h"
#include "server/serve.h"
#include "server/serve_fleet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void put_values(const struct serve_report *r, FILE *to)
{
    if (!r->has_weights)
        return;
    if (!r->values.read)
        (void)fputs("values of the first weights: not read (--non-finite allow)\n", to);
    else if (r->values.n_non_finite == 0)
        (void)fputs("values of the first weights: read, all are finite\n", to);
    else
        (void)fprintf(to,
                      "values of the first weights: read, %" PRIu64
                      " tensors have NaN or infinity (--non-finite warn)\n",
                      r->values.n_non_finite);
}

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

/* The rank of a GPU, or -1. */
static int rank_of(const struct device_list *list, size_t index)
{
    for (uint32_t rank = 0; rank < list->n; rank++)
        if (list->index[rank] == index)
            return (int)rank;
    return -1;
}

static const char *sums(const struct cu_api *cu)
{
    if (copy_sum_image_nbytes == 0)
        return "on the host: this program was built without nvcc";
    return cu_can_launch(cu) ? "on the GPU, in the pass that copies"
                             : "on the host: the driver has no calls to launch kernels";
}

static void put_devices(const struct serve_report *r, FILE *to)
{
    if (r->devices.n == 0) {
        (void)fprintf(to, "device: cpu, the weights are kept in host memory%s\n",
                      r->cuda.available ? "; there are GPUs, --device cuda:0 would use the first"
                                        : "");
        return;
    }
    for (size_t i = 0; i < r->cuda.n_devices; i++) {
        const struct cuda_device *d = &r->cuda.devices[i];
        int rank = rank_of(&r->devices, i);

        if (rank < 0)
            (void)fprintf(to, "device: cuda:%d is not used\n", d->ordinal);
        else
            (void)fprintf(to,
                          "device: cuda:%d is rank %d, %" PRIu64 " bytes in each version, the GPU "
                          "has %" PRIu64 "\n",
                          d->ordinal, rank, r->nbytes, d->nbytes_total);
    }
    (void)fprintf(to, "device: checksums %s\n", sums(&r->cuda.api));
    (void)fprintf(to, "device: %s\n",
                  r->mirror ? "each version is kept in host memory too, for the embedded engine"
                            : "no copy in host memory");
}

static void put_nccl(const struct nccl_info *nccl, FILE *to)
{
    if (nccl->available)
        (void)fprintf(to, "nccl: available, version %s, %s\n", nccl->version, nccl->path);
    else
        (void)fprintf(to, "nccl: not available: %s\n", nccl->reason);
}

/* Listeners first, as a start does. */
static int check_fleet(const struct config *config, FILE *to, struct err *e)
{
    struct listeners l = {0};
    int rc = listeners_read(&l, config, e);

    listeners_fini(&l);
    return rc == 0 ? serve_fleet_check(config, to, e) : -1;
}

int serve_check(const struct config *config, FILE *to, struct err *e)
{
    struct serve_report *r = calloc(1, sizeof *r);
    int rc = -1;

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to check");
    if (config_has_upstreams(config)) {
        rc = check_fleet(config, to, e);
        goto out;
    }
    if (serve_inspect(config, r, e) != 0 || listeners_put(config, to, e) != 0)
        goto out;
    if (config->model != NULL && strcmp(config->engine, "none") != 0)
        (void)fprintf(to, "model: %s, %" PRIu64 " tokens in its vocabulary\n", config->model,
                      r->vocab_size);
    (void)fprintf(to, "weights: %" PRIu64 " tensors, %" PRIu64 " bytes in each version\n",
                  r->n_tensors, r->nbytes);
    (void)fprintf(to, "first weights: %s%s\n", r->has_weights ? "version " : "none, unsynced",
                  r->label);
    put_values(r, to);
    put_cuda(&r->cuda, to);
    put_devices(r, to);
    put_nccl(&r->nccl, to);
    rc = fflush(to) == 0 && !ferror(to)
             ? 0
             : err_set_errno(e, ERR_INTERNAL, "", errno, "the report could not be written");
out:
    free(r);
    return rc;
}

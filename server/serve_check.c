/* The report of --check: text for people and grep. GET /v1/status reports the same as JSON once a
 * server runs. */
#include "server/serve_check.h"

#include "fleet/handoff/window_plan.h"
#include "memory/copy_sum.h"
#include "memory/memory.h"
#include "server/config/config.h"
#include "server/listeners.h"
#include "server/serve.h"
#include "server/serve_fleet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_TEXT_MAX = 64, SIZE_TEXT_MAX = 48 };

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
    (void)fprintf(to, "cuda: available, driver for CUDA %s, %zu device%s\n", cuda->driver_version,
                  cuda->n_devices, cuda->n_devices == 1 ? "" : "s");
    for (size_t i = 0; i < cuda->n_devices; i++) {
        const struct cuda_device *d = &cuda->devices[i];

        (void)fprintf(to, "cuda:%d: %s, %s, %" PRIu64 " bytes, compute capability %d.%d%s\n",
                      d->ordinal, d->name, d->uuid, d->nbytes_total, d->major, d->minor,
                      d->mig ? ", a MIG slice" : "");
    }
}

/* The rank of a GPU, or -1. */
static int serve_check_rank_of(const struct device_list *list, size_t index)
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
        int rank = serve_check_rank_of(&r->devices, i);

        if (rank < 0)
            (void)fprintf(to, "device: cuda:%d is not used\n", d->ordinal);
        else if (r->window_nbytes > 0)
            (void)fprintf(to,
                          "device: cuda:%d has the windows, %u of %" PRIu64 " bytes, the GPU has "
                          "%" PRIu64 "\n",
                          d->ordinal, (unsigned)window_n_halves(r->window_nbytes, r->nbytes),
                          r->window_nbytes, d->nbytes_total);
        else
            (void)fprintf(to,
                          "device: cuda:%d is rank %d, %" PRIu64 " bytes in each version, the GPU "
                          "has %" PRIu64 "\n",
                          d->ordinal, rank, r->sharded ? r->share_nbytes[rank] : r->nbytes,
                          d->nbytes_total);
    }
    (void)fprintf(to, "device: checksums %s\n", sums(&r->cuda.api));
    (void)fprintf(to, "device: %s\n",
                  r->mirror ? "each version is kept in host memory too, for the embedded engine"
                  : r->window_nbytes > 0 ? "each version is in page-locked host memory"
                                         : "no copy in host memory");
}

static void put_nccl(const struct nccl_info *nccl, FILE *to)
{
    if (nccl->available)
        (void)fprintf(to, "nccl: available, version %s, %s\n", nccl->version, nccl->path);
    else
        (void)fprintf(to, "nccl: not available: %s\n", nccl->reason);
}

static void put_nixl(const struct nixl_info *nixl, FILE *to)
{
    if (nixl->library != NULL)
        (void)fprintf(to, "nixl: backend UCX %s, devices %s, transports %s, %s\n", nixl->version,
                      nixl->devices, nixl->tls != NULL ? nixl->tls : "as UCX chooses",
                      nixl->library);
}

static uint64_t largest_share(const struct serve_report *r)
{
    uint64_t largest = 0;

    for (uint32_t rank = 0; rank < r->devices.n; rank++)
        if (r->share_nbytes[rank] > largest)
            largest = r->share_nbytes[rank];
    return largest;
}

/* What a place holds of one version, at most. */
static uint64_t largest_nbytes(const struct serve_report *r)
{
    return r->sharded ? largest_share(r) : r->nbytes;
}

/* "137438953472 bytes (137.4 GB)" */
struct size_text {
    char text[SIZE_TEXT_MAX];
};

static struct size_text size_text(uint64_t nbytes)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    double n = (double)nbytes / 1e3;
    struct size_text s;
    size_t i = 0;

    for (; n >= 1000 && i + 1 < sizeof units / sizeof units[0]; i++)
        n /= 1000;
    (void)snprintf(s.text, sizeof s.text, "%" PRIu64 " bytes (%.1f %s)", nbytes, n, units[i]);
    return s;
}

/* What a staging needs in one place, beside the served version, and what there is.
 * @there      what follows the number of bytes that there are
 * @otherwise  what follows if they are too few */
static void put_need(const char *place, const char *what, uint64_t needed, uint64_t available,
                     const char *there, const char *otherwise, FILE *to)
{
    (void)fprintf(to, "%s: %s while an update is staged (%s)", place, size_text(needed).text, what);
    if (available == UINT64_MAX)
        (void)fputs(", how much there is, is not known\n", to);
    else
        (void)fprintf(to, ", %s %s%s%s\n", size_text(available).text, there,
                      needed <= available ? "" : ": not enough, ",
                      needed <= available ? "" : otherwise);
}

/* Of several GPUs one line: the largest need, and the least memory. */
static void put_gpu_place(const struct serve_report *r, bool sharded, FILE *to)
{
    static const char *const whats[] = {"two versions",
                                        "two shares; an update by NCCL: and one of its buckets"};
    static const char *const others[] = {"only updates that bring each GPU a part of its own fit",
                                         "updates would be refused"};
    const struct cuda_device *least = device_list_least(&r->devices, &r->cuda);
    bool many = r->devices.n > 1;
    char place[PLACE_TEXT_MAX], there[PLACE_TEXT_MAX];

    (void)snprintf(there, sizeof there, "are all that cuda:%d has", least->ordinal);
    if (many)
        (void)snprintf(place, sizeof place, "memory of each GPU%s%s",
                       sharded == r->sharded ? "" : " by --placement ",
                       sharded == r->sharded ? ""
                       : sharded             ? "sharded"
                                             : "replicated");
    else
        (void)snprintf(place, sizeof place, "memory of cuda:%d", least->ordinal);
    put_need(place, whats[sharded], 2 * (sharded ? largest_share(r) : r->nbytes),
             least->nbytes_total, there, others[sharded || !many], to);
}

/* What the other --placement needs is said too, where there is a choice. */
static void put_gpu_memory(const struct serve_report *r, FILE *to)
{
    if (r->devices.n == 0 || r->window_nbytes > 0)
        return;
    put_gpu_place(r, r->sharded, to);
    if (r->devices.n > 1 && !r->mirror)
        put_gpu_place(r, !r->sharded, to);
}

static void put_memory(const struct config *config, const struct serve_report *r, FILE *to)
{
    bool has_engine = !config_has_stage(config) && strcmp(config->engine, "none") != 0;
    bool in_host = r->devices.n == 0 || r->mirror || r->window_nbytes > 0;
    uint64_t host = in_host ? 2 * r->nbytes : 0;
    const char *otherwise = r->room.code != ERR_NONE ? "a start would fail"
                                                     : "updates would be refused";

    put_gpu_memory(r, to);
    if (config->max_weight_bytes > 0) /* in each place */
        put_need("--max-weight-bytes", r->sharded ? "two shares" : "two versions",
                 2 * largest_nbytes(r), config->max_weight_bytes, "are available", otherwise, to);
    if (in_host || has_engine)
        put_need(has_engine ? "host memory, with the KV cache" : "host memory", "two versions",
                 host + (has_engine ? config->kv_cache : 0), memory_room("").nbytes,
                 "are available", otherwise, to);
}

/* What was found in the directory. */
static void put_state_found(const struct state_report *s, FILE *to)
{
    const struct state_found *f = &s->found;

    if (!s->exists)
        (void)fputs("it does not exist, a start makes it", to);
    else if (f->journal == JOURNAL_NONE)
        (void)fputs("it has no journal, so no version was served", to);
    else if (f->journal == JOURNAL_DAMAGED)
        (void)fprintf(to, "its journal is damaged: %s", f->damage.msg);
    else
        (void)fprintf(to, "the version served last is '%s' (serial %" PRIu64 ")%s", f->entry.label,
                      f->entry.serial, f->other_model ? ", of another model" : "");
    if (s->exists)
        (void)fprintf(to, "; %u snapshots", (unsigned)f->snapshots.n);
    if (s->in_use.code != ERR_NONE)
        (void)fprintf(to, "; %s", s->in_use.msg);
    (void)fputc('\n', to);
}

/* What a start would do with it. */
static void put_state_choice(const struct config *config, const struct state_report *s, FILE *to)
{
    const char *label = s->snapshot.label;

    (void)fputs("state directory: a start ", to);
    switch (s->choice) {
    case STATE_CHOICE_FIRST:
        (void)fputs("records the first version\n", to);
        break;
    case STATE_CHOICE_SNAPSHOT:
        (void)fputs("restores that version from its snapshot, whose head is good\n", to);
        break;
    case STATE_CHOICE_EQUAL:
        (void)fprintf(to,
                      "compares the first weights with that version: %s if they are not the same\n",
                      config->serve_base ? "--serve-base serves others" : "it is not ready");
        break;
    case STATE_CHOICE_OLDER:
        (void)fprintf(to, "serves the older snapshot of '%s' (serial %" PRIu64 ", --serve-base)\n",
                      label, s->snapshot.serial);
        break;
    case STATE_CHOICE_BASE:
        (void)fputs("serves the first weights instead (--serve-base)\n", to);
        break;
    case STATE_CHOICE_UNSYNCED:
        (void)fputs("is not ready until a whole update\n", to);
        break;
    }
}

static void serve_check_put_state(const struct config *config, const struct serve_report *r,
                                  FILE *to)
{
    if (config->state_dir == NULL)
        return;
    (void)fprintf(to, "state directory: %s: ", config->state_dir);
    put_state_found(&r->state, to);
    if (r->state.skipped.code != ERR_NONE)
        (void)fprintf(to, "state directory: the snapshot of that version cannot be used: %s\n",
                      r->state.skipped.msg);
    put_state_choice(config, &r->state, to);
}

static void put_embedded(const struct config *config, const struct serve_report *r, FILE *to)
{
    (void)fputs("allowed paths: ", to);
    for (size_t i = 0; i < config->allow_path.n; i++)
        (void)fprintf(to, "%s%s", i > 0 ? ", " : "", config->allow_path.items[i]);
    (void)fputs(config->allow_path.n > 0 ? "\n" : "none\n", to);
    if (r->vocab_size > 0)
        (void)fprintf(to, "model: %s, %" PRIu64 " tokens in its vocabulary\n", config->model,
                      r->vocab_size);
    (void)fprintf(to, "weights: %" PRIu64 " tensors, %" PRIu64 " bytes in each version\n",
                  r->n_tensors, r->nbytes);
    (void)fprintf(to, "first weights: %s%s\n", r->has_weights ? "version " : "none, unsynced",
                  r->label);
    put_values(r, to);
    serve_check_put_state(config, r, to);
    put_memory(config, r, to);
    put_cuda(&r->cuda, to);
    put_devices(r, to);
    put_nccl(&r->nccl, to);
    put_nixl(&r->nixl, to);
}

/* A start would fail: the first weights are the first of at least two versions, and on a GPU it
 * takes the memory of one in any case. */
static int check_limit(const struct config *config, const struct serve_report *r, struct err *e)
{
    bool reserves = r->window_nbytes == 0 && (r->sharded || r->devices.n == 1);

    if (!(r->has_weights || reserves) || config->max_weight_bytes == 0 ||
        largest_nbytes(r) <= config->max_weight_bytes)
        return 0;
    return err_set(e, ERR_NO_STAGING, "--max-weight-bytes",
                   "%s %" PRIu64 " bytes%s, %" PRIu64 " are allowed",
                   r->has_weights ? "the first weights have" : "a version of the weights has",
                   largest_nbytes(r), r->sharded ? " on a GPU" : "", config->max_weight_bytes);
}

static int report_embedded(const struct config *config, const struct serve_report *r, FILE *to,
                           struct err *fails, struct err *e)
{
    put_embedded(config, r, to);
    if (fails->code == ERR_NONE && r->state.in_use.code != ERR_NONE) {
        *fails = r->state.in_use;
        (void)serve_option_error(fails, "--state-dir", config->state_dir);
    }
    if (fails->code == ERR_NONE)
        *fails = r->room;
    return fflush(to) == 0 && !ferror(to)
               ? 0
               : err_set_errno(e, ERR_INTERNAL, "", errno, "the report could not be written");
}

/* What the server itself would hold is read before anything is reported.
 * @out  free() it; NULL: it holds nothing */
static int inspect(struct serve_report **out, const struct config *config, struct err *e)
{
    *out = NULL;
    if (config_has_upstreams(config) && !config_has_stage(config))
        return 0;
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to check");
    return serve_inspect(config, *out, e) == 0 ? check_limit(config, *out, e) : -1;
}

/* Listeners first, as a start does. */
int serve_check(const struct config *config, FILE *to, struct err *e)
{
    struct listeners l = {0};
    struct err fails = {0}; /* why a start would fail, although all could be read */
    struct serve_report *r = NULL;
    int rc = listeners_read(&l, config, e);

    if (rc == 0)
        rc = inspect(&r, config, e);
    if (rc == 0)
        rc = config_has_upstreams(config) ? serve_fleet_check(&l, to, &fails, e)
                                          : listeners_put(&l, to, &fails, e);
    if (rc == 0 && r != NULL)
        rc = report_embedded(config, r, to, &fails, e);
    free(r);
    listeners_fini(&l);
    if (rc != 0 || fails.code == ERR_NONE)
        return rc;
    *e = fails;
    return -1;
}

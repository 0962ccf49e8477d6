/* weights delta, weights apply: deltas as files, without a server. */
#include "cli/cli_priv.h"
#include "cli/delta_file.h"
#include "cli/weight_files.h"

#include <stdio.h>
#include <string.h>

static enum cli_exit delta_failed(const struct cli *c, const struct err *e)
{
    (void)fprintf(stderr, "baton %s: %s\n", c->name, e->msg);
    return e->code == ERR_ABORTED ? CLI_INTERRUPTED : CLI_USAGE;
}

/* The label that a checkpoint says it has; NULL: none. */
static const char *files_label(const struct weight_files *w)
{
    return w->n == 1 ? w->files[0].head.weight_version : NULL;
}

static void delta_made(const char *path, const struct delta_file *d, uint32_t n_tensors)
{
    char size[CLI_TEXT_MAX], whole[CLI_TEXT_MAX];

    (void)printf("%s: %u of %u tensors changed, %s instead of %s (%.3g %%)\n", path, d->n_changed,
                 n_tensors, cli_nbytes((double)d->nbytes, size),
                 cli_nbytes((double)d->nbytes_whole, whole),
                 100.0 * (double)d->nbytes / (double)d->nbytes_whole);
}

static int delta_write(struct delta_file *d, const struct delta_file_cfg *cfg, const char *path,
                       struct err *e)
{
    struct out_file spool = {0}, out = {0};
    int rc = out_file_open(&spool, path, false, e);

    if (rc == 0)
        rc = delta_file_make(d, &spool, cfg, e);
    if (rc == 0)
        rc = out_file_open(&out, path, true, e);
    if (rc == 0)
        rc = out_file_copy(&out, spool.fd, d->offset, d->nbytes, e);
    if (rc == 0)
        rc = out_file_finish(&out, e);
    out_file_close(&out);
    out_file_close(&spool);
    return rc;
}

enum cli_exit cmd_weights_delta(struct cli *c)
{
    struct weight_files base = {0}, to = {0};
    struct delta_file_cfg cfg = {.base = &base, .to = &to};
    struct delta_file d = {0};
    struct err e = {0};
    const char *path = c->values[OPT_OUTPUT];
    int rc;

    if (path == NULL)
        return cli_usage_error(c, "it needs --output: the file to write");
    rc = weight_files_open(&base, c->args[0], &e);
    if (rc == 0)
        rc = weight_files_open(&to, c->args[1], &e);
    if (rc == 0) {
        cfg.base_version = cli_has(c, OPT_DELTA_FROM) ? c->values[OPT_DELTA_FROM]
                                                      : files_label(&base);
        cfg.version = cli_has(c, OPT_VERSION) ? c->values[OPT_VERSION] : files_label(&to);
        rc = delta_write(&d, &cfg, path, &e);
    }
    if (rc == 0)
        delta_made(path, &d, to.n_tensors);
    delta_file_fini(&d);
    weight_files_close(&to);
    weight_files_close(&base);
    return rc == 0 ? CLI_OK : delta_failed(c, &e);
}

static int apply_write(const struct weight_files *base, const struct weight_file *delta,
                       const char *path, struct delta_applied *applied, struct err *e)
{
    struct out_file out = {0};
    int rc = 0;

    if (delta->head.delta_base == NULL)
        rc = err_set(e, ERR_BAD_REQUEST, "", "%.300s is no delta: weights delta writes one",
                     delta->path);
    if (rc == 0)
        rc = out_file_open(&out, path, true, e);
    if (rc == 0)
        rc = delta_file_apply(&out, base, delta, applied, e);
    if (rc == 0)
        rc = out_file_finish(&out, e);
    out_file_close(&out);
    return rc;
}

static void delta_applied(const char *path, uint32_t n_tensors, const struct delta_applied *a)
{
    (void)printf("%s: %u tensors, %u of them from the delta, %u of all proven by its checksums\n",
                 path, n_tensors, a->n_changed, a->n_proven);
    if (a->n_proven < n_tensors)
        (void)fprintf(stderr,
                      "baton weights apply: warning: the delta has no checksum of %u of the "
                      "tensors: nothing proves that it builds on this base\n",
                      n_tensors - a->n_proven);
}

enum cli_exit cmd_weights_apply(struct cli *c)
{
    struct weight_files base = {0}, delta = {0};
    struct err e = {0};
    const char *path = c->values[OPT_OUTPUT];
    struct delta_applied applied = {0};
    int rc;

    if (path == NULL)
        return cli_usage_error(c, "it needs --output: the file to write");
    rc = weight_files_open(&base, c->args[0], &e);
    if (rc == 0)
        rc = weight_files_open(&delta, c->args[1], &e);
    if (rc == 0 && delta.n != 1)
        rc = err_set(&e, ERR_BAD_REQUEST, "", "a delta is one file, and %.300s has %zu", c->args[1],
                     delta.n);
    if (rc == 0)
        rc = apply_write(&base, &delta.files[0], path, &applied, &e);
    if (rc == 0)
        delta_applied(path, base.n_tensors, &applied);
    weight_files_close(&delta);
    weight_files_close(&base);
    return rc == 0 ? CLI_OK : delta_failed(c, &e);
}

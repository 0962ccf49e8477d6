/* lora load: a PEFT directory, sent whole, or by its path; or what changed since the revision with
 * the digest --delta-from. */
#include "base/file.h"
#include "cli/cli_priv.h"
#include "cli/delta_file.h"
#include "cli/query.h"
#include "cli/weight_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CONFIG_NBYTES_MAX = 32 << 10, PATH_LEN_MAX = 4096 }; /* the config goes into the query */

static enum cli_exit load_path(struct cli *c, struct answer *out)
{
    const char *digest = c->values[OPT_DELTA_FROM];
    char *path = realpath(c->args[1], NULL);
    json_t *body = json_pack("{s:s, s:s}", "lora_name", c->args[0], "lora_path",
                             path != NULL ? path : c->args[1]);
    enum cli_exit rc;

    if (digest != NULL)
        (void)json_object_update_new(body,
                                     json_pack("{s:b, s:s}", "delta", 1, "if_digest", digest));
    rc = cli_ask(c, "POST", "/v1/load_lora_adapter", body, out);
    free(path);
    return rc;
}

/* @digest  of the revision that the bytes are a delta of; NULL: they are whole
 * @gone    set if another one is loaded, which is then not reported; NULL: it is */
static enum cli_exit load_bytes(struct cli *c, const void *bytes, size_t nbytes, const char *config,
                                const char *digest, bool *gone, struct answer *out)
{
    struct buf path = {0};
    struct call call = {.method = "POST",
                        .content_type = "application/vnd.safetensors",
                        .body = bytes,
                        .body_len = nbytes};
    json_t *sent = json_pack("{s:s}", "lora_name", c->args[0]);
    enum cli_exit rc;

    buf_puts(&path, "/v1/load_lora_adapter");
    query_put(&path, "lora_name", c->args[0]);
    query_put(&path, "adapter_config", config);
    if (digest != NULL) {
        query_put(&path, "delta", "true");
        query_put(&path, "if_digest", digest);
    }
    call.path = path.data;
    call.sent = sent;
    rc = connection_call(c->connection, &call, out);
    if (rc == CLI_REFUSED && gone != NULL &&
        strcmp(cli_text(out->json, "error.code"), "precondition_failed") == 0) {
        *gone = true;
        (void)fprintf(stderr, "baton lora load: all is sent, not a delta: %s\n",
                      cli_text(out->json, "error.message"));
    } else if (rc != CLI_OK) {
        answer_report(out, c->connection, c->name);
    }
    buf_fini(&path);
    json_decref(sent);
    return rc;
}

/* The file as it is: whole, or a delta. */
static enum cli_exit load_as_is(struct cli *c, const struct weight_file *f, const char *config,
                                struct answer *out)
{
    const char *digest = c->values[OPT_DELTA_FROM], *base = f->head.delta_base;

    if (digest == NULL && base != NULL && base[0] != '\0')
        digest = base;
    if (base == NULL && digest != NULL)
        return cli_usage_error(c,
                               "--delta-from needs --delta-base: the directory of that revision");
    if (base != NULL && digest == NULL)
        return cli_usage_error(c,
                               "it needs --delta-from: the delta does not say what it builds on");
    return load_bytes(c, f->bytes, (size_t)f->nbytes, config, digest, NULL, out);
}

/* @whole  set if all is to be sent instead */
static enum cli_exit load_made(struct cli *c, const struct delta_file *d,
                               const struct out_file *spool, const char *config, bool *whole,
                               struct answer *out)
{
    size_t len = (size_t)(d->offset + d->nbytes);
    unsigned char *at;
    enum cli_exit rc;

    *whole = d->nbytes >= d->nbytes_whole;
    if (*whole) {
        (void)fputs("baton lora load: all is sent: a delta has no fewer bytes\n", stderr);
        return CLI_OK;
    }
    at = mmap(NULL, len, PROT_READ, MAP_SHARED, spool->fd, 0);
    if (at == MAP_FAILED) {
        (void)fputs("baton lora load: no memory for a delta\n", stderr);
        return CLI_USAGE;
    }
    rc = load_bytes(c, at + d->offset, (size_t)d->nbytes, config, c->values[OPT_DELTA_FROM], whole,
                    out);
    (void)munmap(at, len);
    return rc;
}

/* What changed since --delta-base; all of it where that is no less, or another one is loaded. */
static enum cli_exit load_difference(struct cli *c, const struct weight_files *w,
                                     const char *config, struct answer *out)
{
    struct delta_file_cfg cfg = {.to = w, .base_version = c->values[OPT_DELTA_FROM]};
    char tensors[PATH_LEN_MAX];
    struct weight_files base = {0};
    struct out_file spool = {0};
    struct delta_file made = {0};
    struct err e = {0};
    enum cli_exit rc = CLI_USAGE;
    bool whole = false;

    cfg.base = &base;
    (void)snprintf(tensors, sizeof tensors, "%.4000s/adapter_model.safetensors",
                   c->values[OPT_DELTA_BASE]);
    if (weight_files_open(&base, tensors, &e) != 0 || out_file_memory(&spool, &e) != 0 ||
        delta_file_make(&made, &spool, &cfg, &e) != 0) {
        (void)fprintf(stderr, "baton lora load: %s\n", e.msg);
        rc = e.code == ERR_ABORTED ? CLI_INTERRUPTED : CLI_USAGE;
    } else {
        rc = load_made(c, &made, &spool, config, &whole, out);
    }
    out_file_close(&spool);
    delta_file_fini(&made);
    weight_files_close(&base);
    if (!whole)
        return rc;
    answer_fini(out);
    return load_bytes(c, w->files[0].bytes, (size_t)w->files[0].nbytes, config, NULL, NULL, out);
}

static enum cli_exit load_dir(struct cli *c, struct answer *out)
{
    struct file_cfg cfg = {
        .dir = c->args[1], .path = "adapter_config.json", .nbytes_max = CONFIG_NBYTES_MAX};
    char tensors[PATH_LEN_MAX], *config = NULL;
    struct weight_files w = {0};
    struct err e = {0};
    size_t len;
    enum cli_exit rc = CLI_USAGE;

    (void)snprintf(tensors, sizeof tensors, "%.4000s/adapter_model.safetensors", c->args[1]);
    if (file_read(&config, &len, &cfg, &e) != 0 || weight_files_open(&w, tensors, &e) != 0)
        (void)fprintf(stderr, "baton lora load: %s: %s\n", c->args[1], e.msg);
    else if (cli_has(c, OPT_DELTA_BASE))
        rc = load_difference(c, &w, config, out);
    else
        rc = load_as_is(c, &w.files[0], config, out);
    weight_files_close(&w);
    free(config);
    return rc;
}

static enum cli_exit load_any(struct cli *c, struct answer *out)
{
    if (!cli_has(c, OPT_DELTA_BASE))
        return cli_has(c, OPT_PATH) ? load_path(c, out) : load_dir(c, out);
    if (cli_has(c, OPT_PATH))
        return cli_usage_error(c, "with --path the server reads the files: --delta-base is for "
                                  "adapters that are sent");
    if (!cli_has(c, OPT_DELTA_FROM))
        return cli_usage_error(c,
                               "it needs --delta-from: the digest that the load of %.200s printed",
                               c->values[OPT_DELTA_BASE]);
    return load_dir(c, out);
}

enum cli_exit cmd_lora_load(struct cli *c)
{
    struct answer a = {0};
    enum cli_exit rc = load_any(c, &a);
    const char *digest = cli_text(a.json, "digest");

    if (rc == CLI_OK && cli_has(c, OPT_JSON))
        cli_print_json(&a);
    else if (rc == CLI_OK)
        (void)printf("%s: revision %.0f%s%s%s\n", c->args[0], cli_real(a.json, "revision"),
                     json_is_true(cli_at(a.json, "unchanged")) ? ", unchanged" : "",
                     digest[0] != '\0' ? ", digest " : "", digest);
    if (rc == CLI_OK && json_is_string(cli_at(a.json, "warning")))
        (void)fprintf(stderr, "baton lora load: warning: %s: %s\n", c->args[0],
                      cli_text(a.json, "warning"));
    answer_fini(&a);
    return rc;
}

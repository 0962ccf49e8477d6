/* lora load: a PEFT directory, sent whole, or by its path. */
#include "base/file.h"
#include "cli/cli_priv.h"
#include "cli/query.h"
#include "cli/weight_files.h"

#include <stdio.h>
#include <stdlib.h>

enum { CONFIG_NBYTES_MAX = 32 << 10, PATH_LEN_MAX = 4096 }; /* the config goes into the query */

static enum cli_exit load_path(struct cli *c, struct answer *out)
{
    char *path = realpath(c->args[1], NULL);
    enum cli_exit rc = cli_ask(c, "POST", "/v1/load_lora_adapter",
                               json_pack("{s:s, s:s}", "lora_name", c->args[0], "lora_path",
                                         path != NULL ? path : c->args[1]),
                               out);

    free(path);
    return rc;
}

static enum cli_exit load_bytes(struct cli *c, const struct weight_file *f, const char *config,
                                struct answer *out)
{
    struct buf path = {0};
    struct call call = {.method = "POST",
                        .content_type = "application/vnd.safetensors",
                        .body = f->bytes,
                        .body_len = (size_t)f->nbytes};
    json_t *sent = json_pack("{s:s}", "lora_name", c->args[0]);
    enum cli_exit rc;

    buf_puts(&path, "/v1/load_lora_adapter");
    query_put(&path, "lora_name", c->args[0]);
    query_put(&path, "adapter_config", config);
    call.path = path.data;
    call.sent = sent;
    rc = connection_call(c->connection, &call, out);
    if (rc != CLI_OK)
        answer_report(out, c->connection, c->name);
    buf_fini(&path);
    json_decref(sent);
    return rc;
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
    else
        rc = load_bytes(c, &w.files[0], config, out);
    weight_files_close(&w);
    free(config);
    return rc;
}

enum cli_exit cmd_lora_load(struct cli *c)
{
    struct answer a = {0};
    enum cli_exit rc = cli_has(c, OPT_PATH) ? load_path(c, &a) : load_dir(c, &a);

    if (rc == CLI_OK && cli_has(c, OPT_JSON))
        cli_print_json(&a);
    else if (rc == CLI_OK)
        (void)printf("%s: revision %.0f%s\n", c->args[0], cli_real(a.json, "revision"),
                     json_is_true(cli_at(a.json, "unchanged")) ? ", unchanged" : "");
    if (rc == CLI_OK && json_is_string(cli_at(a.json, "warning")))
        (void)fprintf(stderr, "baton lora load: warning: %s: %s\n", c->args[0],
                      cli_text(a.json, "warning"));
    answer_fini(&a);
    return rc;
}

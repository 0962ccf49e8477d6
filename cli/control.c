/* Commands that are one request each. */
#include "cli/cli_priv.h"

#include <stdio.h>
#include <string.h>

/* Sends it, and prints the answer's JSON, or `done`. */
static enum cli_exit send_one(struct cli *c, const char *path, json_t *body,
                              void (*done)(const json_t *answer))
{
    struct answer a;
    enum cli_exit rc = cli_ask(c, "POST", path, body, &a);

    if (rc == CLI_OK && cli_has(c, OPT_JSON))
        cli_print_json(&a);
    else if (rc == CLI_OK)
        done(a.json);
    answer_fini(&a);
    return rc;
}

static void pause_done(const json_t *a)
{
    (void)printf("paused (%s): %.0f frozen, %.0f waiting, %.0f aborted\n", cli_text(a, "mode"),
                 cli_real(a, "running"), cli_real(a, "waiting"), cli_real(a, "aborted"));
}

enum cli_exit cmd_pause(struct cli *c)
{
    json_t *body = json_object();
    double lease_s;

    if (cli_number(c, OPT_LEASE, 0, 1, 3600, &lease_s) != CLI_OK)
        return json_decref(body), CLI_USAGE;
    if (cli_has(c, OPT_MODE))
        (void)json_object_set_new(body, "mode", json_string(c->values[OPT_MODE]));
    if (lease_s > 0)
        (void)json_object_set_new(body, "lease_s", json_integer((json_int_t)lease_s));
    if (cli_has(c, OPT_REJECT))
        (void)json_object_set_new(body, "new_requests", json_string("reject"));
    (void)json_object_set_new(body, "owner", json_string("baton pause"));
    return send_one(c, "/v1/pause", body, pause_done);
}

static void resume_done(const json_t *a)
{
    (void)puts(json_is_true(cli_at(a, "was_paused")) ? "resumed" : "it was not paused");
}

enum cli_exit cmd_resume(struct cli *c)
{
    return send_one(c, "/v1/resume", json_object(), resume_done);
}

/* {"tags": ["weights", …]} of --tags, or {}. */
static json_t *tags_body(const struct cli *c)
{
    json_t *body = json_object(), *tags = json_array();
    const char *at = cli_has(c, OPT_TAGS) ? c->values[OPT_TAGS] : "";

    while (*at != '\0') {
        size_t len = strcspn(at, ",");

        (void)json_array_append_new(tags, json_stringn(at, len));
        at += len + (at[len] == ',');
    }
    if (json_array_size(tags) > 0)
        (void)json_object_set(body, "tags", tags);
    json_decref(tags);
    return body;
}

static void sleep_done(const json_t *a)
{
    (void)printf("weights %s, KV cache %s\n", cli_text(a, "weights"), cli_text(a, "kv_cache"));
}

enum cli_exit cmd_sleep(struct cli *c)
{
    json_t *body;
    double level;

    if (cli_number(c, OPT_LEVEL, 1, 1, 2, &level) != CLI_OK)
        return CLI_USAGE;
    body = tags_body(c);
    (void)json_object_set_new(body, "level", json_integer((json_int_t)level));
    return send_one(c, "/v1/sleep", body, sleep_done);
}

enum cli_exit cmd_wake(struct cli *c)
{
    return send_one(c, "/v1/wake", tags_body(c), sleep_done);
}

static void abort_done(const json_t *a)
{
    (void)printf("aborted %.0f\n", cli_real(a, "aborted"));
}

static void update_done(const json_t *a)
{
    (void)printf("aborted %s\n", cli_text(a, "update_id"));
}

/* The id of the open update comes from the status. */
static enum cli_exit control_abort_update(struct cli *c)
{
    struct answer a;
    enum cli_exit rc = cli_ask(c, "GET", "/v1/status", NULL, &a);
    const char *id = cli_text(a.json, "update.update_id");

    if (rc == CLI_OK && json_is_null(cli_at(a.json, "update"))) {
        (void)puts("no update is open");
    } else if (rc == CLI_OK) {
        rc = send_one(c, "/v1/update_weights/abort",
                      json_pack("{s:s, s:s}", "update_id", id, "reason", "baton abort --update"),
                      update_done);
    }
    answer_fini(&a);
    return rc;
}

enum cli_exit cmd_abort(struct cli *c)
{
    json_t *body, *ids;

    if (cli_has(c, OPT_UPDATE) && (cli_has(c, OPT_ALL) || c->n_args > 0))
        return cli_usage_error(c, "--update goes neither with ids nor with --all");
    if (cli_has(c, OPT_UPDATE))
        return control_abort_update(c);
    if (cli_has(c, OPT_ALL) == (c->n_args > 0))
        return cli_usage_error(c, "expected the ids of requests, --all, or --update");
    if (cli_has(c, OPT_ALL))
        return send_one(c, "/v1/abort_requests", json_pack("{s:b}", "all", 1), abort_done);
    ids = json_array();
    for (int i = 0; i < c->n_args; i++)
        (void)json_array_append_new(ids, json_string(c->args[i]));
    body = json_pack("{s:o}", "request_ids", ids);
    return send_one(c, "/v1/abort_requests", body, abort_done);
}

static void lora_unload_done(const json_t *a)
{
    (void)a;
    (void)puts("unloaded");
}

enum cli_exit cmd_lora_unload(struct cli *c)
{
    return send_one(c, "/v1/unload_lora_adapter", json_pack("{s:s}", "lora_name", c->args[0]),
                    lora_unload_done);
}

enum cli_exit cmd_lora_list(struct cli *c)
{
    struct answer a;
    enum cli_exit rc = cli_ask(c, "GET", "/v1/lora_adapters", NULL, &a);
    const json_t *row;
    size_t i;

    if (rc == CLI_OK && cli_has(c, OPT_JSON)) {
        cli_print_json(&a);
    } else if (rc == CLI_OK) {
        (void)printf("%-24s %8s %5s %10s\n", "ADAPTER", "REVISION", "RANK", "SIZE");
        json_array_foreach(cli_at(a.json, "adapters"), i, row)
        {
            char size[CLI_TEXT_MAX] = "-", rank[CLI_TEXT_MAX] = "-"; /* a fleet has neither */

            if (json_is_number(cli_at(row, "rank")))
                (void)snprintf(rank, sizeof rank, "%.0f", cli_real(row, "rank"));
            if (json_is_number(cli_at(row, "nbytes")))
                (void)cli_nbytes(cli_real(row, "nbytes"), size);
            (void)printf("%-24s %8.0f %5s %10s\n", cli_text(row, "lora_name"),
                         cli_real(row, "revision"), rank, size);
        }
    }
    answer_fini(&a);
    return rc;
}

static void add_done(const json_t *a)
{
    (void)printf("%s: %s (%s)\n", cli_text(a, "upstream"), cli_text(a, "state"),
                 cli_text(a, "dialect"));
}

enum cli_exit cmd_upstreams_add(struct cli *c)
{
    return send_one(c, "/v1/upstreams", json_pack("{s:s}", "upstream", c->args[0]), add_done);
}

static void remove_done(const json_t *a)
{
    double n = cli_real(a, "outstanding.generate") + cli_real(a, "outstanding.text");

    (void)printf("%s: removed, %.0f request%s there%s\n", cli_text(a, "upstream"), n,
                 n == 1 ? " still runs" : "s still run",
                 strcmp(cli_text(a, "origin"), "request") != 0
                     ? "; the configuration names it: it is back after SIGHUP or a restart"
                     : "");
}

enum cli_exit cmd_upstreams_remove(struct cli *c)
{
    return send_one(c, "/v1/upstreams/remove", json_pack("{s:s}", "upstream", c->args[0]),
                    remove_done);
}

/* An engine without a checker is proven by its log-probabilities alone. */
static void prove_checksums_done(const json_t *sums)
{
    const char *state = cli_text(sums, "state");
    double n = cli_real(sums, "n_compared");
    bool alone = n == 0 && cli_real(sums, "committed.n_equal") == 0;

    if (!json_is_object(sums))
        return;
    if (strcmp(state, "unknown") == 0)
        (void)fputs("; checksums: unknown, it has no checker that can be used", stdout);
    else if (strcmp(state, "unproven") == 0)
        (void)fputs("; checksums: not compared yet", stdout);
    else if (alone && strcmp(state, "proven") == 0)
        (void)fputs("; checksums: no engine with the same parameters", stdout);
    else
        (void)printf("; checksums: %s, compared with %.0f other%s", state, n, cli_plural(n));
}

/* @with_checksums  they were asked for: others are of an earlier request, or of an update */
static void prove_done(const json_t *a, bool with_checksums)
{
    const json_t *row, *list = cli_at(a, "list");
    size_t i;

    if (json_array_size(list) == 0)
        (void)puts("there is no upstream to prove");
    json_array_foreach(list, i, row)
    {
        const json_t *bytes = cli_at(row, "proof.checksums.committed");
        double n = cli_real(row, "proof.n_compared");

        (void)printf("%s: %s, compared with %.0f other%s", cli_text(row, "upstream"),
                     json_is_object(cli_at(row, "proof")) ? cli_text(row, "proof.state") : "gone",
                     n, cli_plural(n));
        if (with_checksums)
            prove_checksums_done(cli_at(row, "proof.checksums"));
        if (with_checksums && json_is_object(bytes))
            (void)printf("; of %.0f that have names of committed tensors %.0f have their bytes, "
                         "%.0f have others (another layout is no fault), %.0f wrong",
                         cli_real(bytes, "n_equal") + cli_real(bytes, "n_different"),
                         cli_real(bytes, "n_equal"),
                         cli_real(bytes, "n_different") - cli_real(bytes, "n_wrong"),
                         cli_real(bytes, "n_wrong"));
        (void)putchar('\n');
    }
}

enum cli_exit cmd_upstreams_prove(struct cli *c)
{
    json_t *body = json_pack("{s:b}", "checksums", !cli_has(c, OPT_CANARY));
    struct answer a;
    enum cli_exit rc;

    if (c->n_args > 0)
        (void)json_object_set_new(body, "upstream", json_string(c->args[0]));
    rc = cli_ask(c, "POST", "/v1/upstreams/prove", body, &a);
    if (rc == CLI_OK && cli_has(c, OPT_JSON))
        cli_print_json(&a);
    else if (rc == CLI_OK)
        prove_done(a.json, !cli_has(c, OPT_CANARY));
    if (rc == CLI_OK && (cli_real(a.json, "n_proven") < cli_real(a.json, "n") ||
                         json_array_size(cli_at(a.json, "list")) == 0))
        rc = CLI_REFUSED; /* of none nothing is proven */
    answer_fini(&a);
    return rc;
}

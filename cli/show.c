/* status and upstreams: a page of lines, once or each second. How far the hand-off is, and what the
 * proofs of upstreams say. */
#include "cli/cli_priv.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void show_weights(const json_t *s)
{
    char size[CLI_TEXT_MAX], age[CLI_TEXT_MAX];
    const json_t *w = cli_at(s, "weights");

    if (!json_is_string(cli_at(w, "weight_version"))) {
        (void)printf("weights     %s\n", cli_text(w, "state"));
        return;
    }
    if (cli_real(w, "serial") == 0) /* in front of engines, before the first update */
        (void)printf("weights     %s (of the engines, not pushed here), %s",
                     cli_text(w, "weight_version"), cli_text(w, "state"));
    else
        (void)printf("weights     %s (serial %.0f), %s", cli_text(w, "weight_version"),
                     cli_real(w, "serial"), cli_text(w, "state"));
    if (json_is_integer(cli_at(w, "n_tensors")))
        (void)printf(", %.0f tensors, %s %s", cli_real(w, "n_tensors"),
                     cli_nbytes(cli_real(w, "nbytes"), size), cli_text(w, "dtype"));
    if (json_is_number(cli_at(w, "age_s")))
        (void)printf(", committed %s ago", cli_duration(cli_real(w, "age_s"), age));
    (void)putchar('\n');
}

static void show_update(const json_t *s)
{
    char done[CLI_TEXT_MAX], total[CLI_TEXT_MAX], rate[CLI_TEXT_MAX];
    const json_t *u = cli_at(s, "update");

    if (!json_is_object(u)) {
        (void)puts("update      none");
        return;
    }
    (void)printf("update      %s %s: %s of %s, %.0f of %.0f tensors, %s/s\n",
                 cli_text(u, "update_id"), cli_text(u, "phase"),
                 cli_nbytes(cli_real(u, "nbytes_done"), done),
                 cli_nbytes(cli_real(u, "nbytes_total"), total), cli_real(u, "n_tensors_done"),
                 cli_real(u, "n_tensors_total"), cli_nbytes(cli_real(u, "nbytes_per_s"), rate));
}

static void show_pause(const json_t *s)
{
    const json_t *p = cli_at(s, "pause");
    char held[CLI_TEXT_MAX];

    if (json_is_object(p))
        (void)printf("paused      %s by %s, for %s\n", cli_text(p, "mode"), cli_text(p, "owner"),
                     cli_duration(cli_real(p, "held_s"), held));
    if (json_is_true(cli_at(s, "sleep.asleep")))
        (void)printf("asleep      weights %s, KV cache %s\n", cli_text(s, "sleep.weights"),
                     cli_text(s, "sleep.kv_cache"));
}

void upstreams_warn(FILE *to, const json_t *list, const char *before)
{
    const json_t *row;
    size_t i;

    json_array_foreach(list, i, row)
    {
        if (!json_is_true(cli_at(row, "ok")))
            (void)fprintf(to, "%s%s: %s\n", before, cli_text(row, "upstream"),
                          cli_text(row, "error"));
    }
}

/* "the upstreams", or "1 of 2 upstreams" if some lack the version. */
static const char *which_have(const json_t *list, char out[CLI_TEXT_MAX])
{
    size_t i, n = 0;
    const json_t *row;

    json_array_foreach(list, i, row) n += json_is_true(cli_at(row, "ok"));
    if (n == json_array_size(list))
        return "the upstreams";
    (void)snprintf(out, CLI_TEXT_MAX, "%zu of %zu upstreams", n, json_array_size(list));
    return out;
}

/* Of a server with --stage: which version it has for its upstreams, and whether they have it. */
static void show_stage(const json_t *s)
{
    const json_t *stage = cli_at(s, "stage");
    double serial = cli_real(stage, "serial"), handed = cli_real(stage, "handed_serial");
    double n_handoffs = cli_real(stage, "n_handoffs"), n_repairs = cli_real(stage, "n_repairs");
    double retry_s = cli_real(stage, "error.retry_in_s");
    char took[CLI_TEXT_MAX], which[CLI_TEXT_MAX];

    if (!json_is_object(stage))
        return;
    (void)fputs("hand-off    ", stdout);
    if (serial == 0 && cli_real(s, "state.journal.serial") > 0)
        (void)printf("version %s (serial %.0f) is lost; waiting for an update",
                     cli_text(s, "state.journal.weight_version"),
                     cli_real(s, "state.journal.serial"));
    else if (serial == 0)
        (void)fputs("no version to hand over yet", stdout);
    else if (handed == serial)
        (void)printf("%s (serial %.0f) was handed to %s, in %s", cli_text(stage, "weight_version"),
                     serial, which_have(cli_at(stage, "upstreams"), which),
                     cli_duration(cli_real(stage, "last_handoff_s"), took));
    else if (handed == 0)
        (void)printf("%s (serial %.0f) is not handed over yet", cli_text(stage, "weight_version"),
                     serial);
    else
        (void)printf("%s (serial %.0f) is not handed over yet; the last that was is serial %.0f",
                     cli_text(stage, "weight_version"), serial, handed);
    (void)printf("; %.0f hand-off%s, %.0f repair%s\n", n_handoffs, cli_plural(n_handoffs),
                 n_repairs, cli_plural(n_repairs));
    if (serial > 0 && handed == serial)
        upstreams_warn(stdout, cli_at(stage, "upstreams"), "            without it: ");
    if (json_is_object(cli_at(stage, "error")))
        (void)printf("            the last try failed and is repeated %s%s: %s\n",
                     retry_s > 0 ? "in " : "now", retry_s > 0 ? cli_duration(retry_s, took) : "",
                     cli_text(stage, "error.message"));
}

enum cli_exit stage_show(const struct cli *c)
{
    struct answer a;
    enum cli_exit rc = cli_ask(c, "GET", "/v1/status", NULL, &a);

    if (rc == CLI_OK)
        show_stage(a.json);
    answer_fini(&a);
    return rc;
}

/* A line for each upstream whose proof found a fault. Of those which differ without a majority none
 * is fenced: a person decides. */
static void show_faults(const json_t *list)
{
    const json_t *row;
    size_t i;

    json_array_foreach(list, i, row)
    {
        const json_t *proof = cli_at(row, "proof");
        bool differs = strcmp(cli_text(proof, "state"), "differs") == 0;
        double n_sums = cli_real(proof, "checksums.n_different");
        double nats = cli_real(proof, "largest_difference");

        if (strcmp(cli_text(proof, "state"), "not_finite") == 0)
            (void)printf("proof       %s: not_finite: its log-probabilities are not numbers\n",
                         cli_text(row, "upstream"));
        if (differs)
            (void)printf("proof       %s: differs from %.0f other%s", cli_text(row, "upstream"),
                         cli_real(proof, "n_compared"), cli_plural(cli_real(proof, "n_compared")));
        if (differs && nats > 0)
            (void)printf(": log-probabilities by up to %.3g nats", nats);
        if (differs && n_sums > 0)
            (void)printf("%s %.0f of %.0f parameters", nats > 0 ? ";" : ":", n_sums,
                         cli_real(proof, "checksums.n"));
        if (differs)
            (void)putchar('\n');
    }
}

/* A line for each name that the last look-up did not find. */
static void show_names(const json_t *names)
{
    const json_t *row;
    size_t i;

    json_array_foreach(names, i, row)
    {
        if (json_is_object(cli_at(row, "error")))
            (void)printf("            %s: %s; the %.0f upstreams at its addresses stay\n",
                         cli_text(row, "name"), cli_text(row, "error.message"),
                         cli_real(row, "n_addresses"));
    }
}

/* A line for each upstream that does not serve, also when enough of the others do. */
static void show_out_of_rotation(const json_t *list)
{
    const json_t *row;
    size_t i;

    json_array_foreach(list, i, row)
    {
        const char *state = cli_text(row, "state"), *why = cli_text(row, "error.message");

        if (strcmp(state, "serving") != 0)
            (void)printf("            %s: %s%s%s\n", cli_text(row, "upstream"), state,
                         why[0] != '\0' ? ": " : "", why);
    }
}

/* Engines serve weights that differ, and nobody knows which are right. */
static void show_warning(const json_t *upstreams)
{
    if (json_is_string(cli_at(upstreams, "warning")))
        (void)printf("warning     %s\n", cli_text(upstreams, "warning"));
}

static enum cli_exit show_status(const struct cli *c, const json_t *s)
{
    char up[CLI_TEXT_MAX];
    const json_t *g = cli_at(s, "admission.generate");

    (void)printf("baton %s at %s, up %s, %s\n", cli_text(s, "version"),
                 connection_url(c->connection), cli_duration(cli_real(s, "uptime_s"), up),
                 cli_text(s, "life"));
    if (json_is_true(cli_at(s, "ready")))
        (void)puts("ready       yes");
    else
        (void)printf("ready       no: %s\n", cli_text(s, "reason.message"));
    (void)printf("for control %s\n", json_is_true(cli_at(s, "control_ready")) ? "yes" : "no");
    show_weights(s);
    show_update(s);
    show_stage(s);
    show_pause(s);
    (void)printf("generate    %.0f running, %.0f waiting", cli_real(g, "running"),
                 cli_real(g, "waiting"));
    if (json_is_integer(cli_at(g, "granted"))) /* in front of engines each has its own number */
        (void)printf(", %.0f granted", cli_real(g, "granted"));
    (void)printf(", %.0f refused\n", cli_real(g, "refused"));
    if (json_is_object(cli_at(s, "adapters")))
        (void)printf("adapters    %.0f loaded, %.0f loading\n", cli_real(s, "adapters.loaded"),
                     cli_real(s, "adapters.loading"));
    if (json_is_object(cli_at(s, "upstreams")))
        (void)printf("upstreams   %.0f of %.0f serving, %.0f needed\n",
                     cli_real(s, "upstreams.n_serving"), cli_real(s, "upstreams.n"),
                     cli_real(s, "upstreams.min_ready"));
    show_names(cli_at(s, "upstreams.names"));
    show_out_of_rotation(cli_at(s, "upstreams.list"));
    show_warning(cli_at(s, "upstreams"));
    show_faults(cli_at(s, "upstreams.list"));
    return CLI_OK;
}

/* The width of a column: a URL, or the version of an update that never ended, may be long. */
static int column_width(const json_t *list, const char *member, int least)
{
    const json_t *row;
    size_t i;

    json_array_foreach(list, i, row)
    {
        int len = (int)strlen(cli_text(row, member));

        least = len > least ? len : least;
    }
    return least;
}

/* Where it was added: what a removal, SIGHUP or a restart does depends on it. */
static const char *origin_text(const json_t *row)
{
    const char *origin = cli_text(row, "origin");

    return strcmp(origin, "configuration") == 0 ? "config" : origin;
}

static enum cli_exit show_upstreams(const struct cli *c, const json_t *s)
{
    const json_t *list = cli_at(s, "list"), *row;
    int url = column_width(list, "upstream", 32),
        version = column_width(list, "weight_version", 20);
    enum cli_exit rc;
    size_t i;

    (void)printf("%.0f of %.0f serving, %.0f needed\n", cli_real(s, "n_serving"), cli_real(s, "n"),
                 cli_real(s, "min_ready"));
    rc = stage_show(c);
    show_names(cli_at(s, "names"));
    show_warning(s);
    show_faults(list);
    (void)printf("%-*s %-6s %-7s %-9s %-*s %7s %-10s  %s\n", url, "UPSTREAM", "KIND", "FROM",
                 "STATE", version, "VERSION", "RUNNING", "PROOF", "ERROR");
    json_array_foreach(list, i, row)(void)
        printf("%-*s %-6s %-7s %-9s %-*s %7.0f %-10s  %s\n", url, cli_text(row, "upstream"),
               cli_text(row, "dialect"), origin_text(row), cli_text(row, "state"), version,
               cli_text(row, "weight_version"), cli_real(row, "outstanding.generate"),
               json_is_object(cli_at(row, "proof")) ? cli_text(row, "proof.state") : "-",
               cli_text(row, "error.message"));
    return rc;
}

/* Shows the answer of `path` once; with --watch each second, also while the server is away. */
static enum cli_exit show(struct cli *c, const char *path,
                          enum cli_exit (*print)(const struct cli *c, const json_t *s))
{
    const struct timespec second = {.tv_sec = 1};
    unsigned n_shown = 0;
    enum cli_exit rc;

    for (;;) {
        struct answer a;

        rc = connection_json(c->connection, "GET", path, NULL, &a);
        if (rc == CLI_OK && cli_has(c, OPT_WATCH) && isatty(STDOUT_FILENO))
            terminal_control(stdout, "\033[H\033[2J");
        else if (rc == CLI_OK && n_shown++ > 0 && !cli_has(c, OPT_JSON))
            (void)putchar('\n');
        if (rc == CLI_OK && cli_has(c, OPT_JSON))
            cli_print_json(&a);
        else if (rc == CLI_OK)
            rc = print(c, a.json);
        else if (rc != CLI_INTERRUPTED)
            answer_report(&a, c->connection, c->name);
        answer_fini(&a);
        (void)fflush(stdout);
        if (!cli_has(c, OPT_WATCH))
            return rc;
        if (!interrupted())
            (void)nanosleep(&second, NULL);
        if (interrupted())
            return CLI_OK; /* how a watch ends */
    }
}

enum cli_exit cmd_status(struct cli *c)
{
    return show(c, "/v1/status", show_status);
}

enum cli_exit cmd_upstreams(struct cli *c)
{
    return show(c, "/v1/upstreams", show_upstreams);
}

/* push: one update session, a request for each file, and a finish that carries the checksums, so
 * that the server proves the bytes of all files together. A session that fails is aborted. */
#include "cli/cli_priv.h"
#include "cli/interrupt.h"
#include "cli/query.h"
#include "cli/terminal.h"
#include "cli/weight_files.h"

#include "base/clock.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENSORS_TYPE "application/vnd.safetensors"
#define CLEAR_LINE   "\r\033[K"

enum { LINE_US = 5000000 }; /* between two lines of progress where nothing can be redrawn */

struct progress_line {
    uint64_t nbytes_before, nbytes_total; /* of the files that were sent; of all */
    uint64_t begun_us, line_us;
    bool tty;
};

static void progress_show(void *arg, uint64_t nbytes_sent)
{
    struct progress_line *p = arg;
    uint64_t now = clock_now_us();
    double done = (double)(p->nbytes_before + nbytes_sent), total = (double)p->nbytes_total;
    double s = (double)(now - p->begun_us) / 1e6, rate = s > 0 ? done / s : 0;
    char d[CLI_TEXT_MAX], t[CLI_TEXT_MAX], r[CLI_TEXT_MAX], eta[CLI_TEXT_MAX];

    if (!p->tty && now - p->line_us < LINE_US)
        return;
    p->line_us = now;
    if (p->tty)
        terminal_control(stderr, CLEAR_LINE);
    (void)fprintf(stderr, "sent %s of %s, %s/s, %s left%s", cli_nbytes(done, d),
                  cli_nbytes(total, t), cli_nbytes(rate, r),
                  rate > 0 ? cli_duration((total - done) / rate, eta) : "?", p->tty ? "" : "\n");
    (void)fflush(stderr);
}

static enum cli_exit session_start(struct cli *c, struct answer *out)
{
    json_t *body = json_object();

    if (cli_has(c, OPT_VERSION))
        (void)json_object_set_new(body, "weight_version", json_string(c->values[OPT_VERSION]));
    if (cli_has(c, OPT_PARTIAL))
        (void)json_object_set_new(body, "partial", json_true());
    if (cli_has(c, OPT_CONVERT))
        (void)json_object_set_new(body, "convert", json_true());
    return cli_ask(c, "POST", "/v1/update_weights/start", body, out);
}

/* The server reads the file itself. */
static enum cli_exit send_path(struct cli *c, const char *update_id, const struct weight_file *f)
{
    char *path = realpath(f->path, NULL);
    struct answer a;
    enum cli_exit rc = cli_ask(
        c, "POST", "/v1/update_weights",
        json_pack("{s:s, s:s}", "update_id", update_id, "path", path != NULL ? path : f->path), &a);

    free(path);
    answer_fini(&a);
    return rc;
}

static enum cli_exit send_bytes(struct cli *c, const char *update_id, const struct weight_file *f,
                                struct progress_line *p)
{
    struct buf path = {0};
    struct answer a;
    struct call call = {.method = "POST",
                        .content_type = TENSORS_TYPE,
                        .body = f->bytes,
                        .body_len = (size_t)f->nbytes,
                        .progress = progress_show,
                        .arg = p};
    json_t *sent = json_pack("{s:s}", "update_id", update_id);
    enum cli_exit rc;

    buf_puts(&path, "/v1/update_weights");
    query_put(&path, "update_id", update_id);
    call.path = path.data;
    call.sent = sent;
    rc = connection_call(c->connection, &call, &a);
    if (p->tty)
        terminal_control(stderr, CLEAR_LINE);
    if (rc != CLI_OK)
        answer_report(&a, c->connection, c->name);
    p->nbytes_before += f->nbytes;
    answer_fini(&a);
    json_decref(sent);
    buf_fini(&path);
    return rc;
}

/* {name: checksum} of all tensors. */
static json_t *checksums_json(const struct weight_files *w)
{
    json_t *sums = json_object();
    char text[CHECKSUM_LEN + 1];

    for (size_t i = 0; i < w->n; i++) {
        const struct weight_file *f = &w->files[i];

        for (uint32_t k = 0; k < f->head.tensor_list->n_tensors && !interrupted(); k++) {
            struct checksum sum = weight_file_checksum(f, k);

            checksum_text(&sum, text);
            (void)json_object_set_new(sums, f->head.tensor_list->tensors[k].name,
                                      json_string(text));
        }
    }
    return sums;
}

static enum cli_exit session_finish(struct cli *c, const char *update_id,
                                    const struct weight_files *w, struct answer *out)
{
    json_t *body = json_pack("{s:s}", "update_id", update_id);

    if (!cli_has(c, OPT_NO_CHECKSUMS) && !cli_has(c, OPT_CONVERT))
        (void)json_object_set_new(body, "checksums", checksums_json(w));
    return cli_ask(c, "POST", "/v1/update_weights/finish", body, out);
}

/* What failed may have ended the session already: nothing is reported. */
static void session_abort(struct cli *c, const char *update_id)
{
    struct answer a;

    interrupt_clear();
    (void)connection_json(
        c->connection, "POST", "/v1/update_weights/abort",
        json_pack("{s:s, s:s}", "update_id", update_id, "reason", "baton push did not finish"), &a);
    answer_fini(&a);
}

static void pushed(const struct cli *c, const struct answer *a, const struct weight_files *w,
                   uint64_t begun_us)
{
    char size[CLI_TEXT_MAX], took[CLI_TEXT_MAX], rate[CLI_TEXT_MAX];
    double s = (double)(clock_now_us() - begun_us) / 1e6, nbytes = 0;

    for (size_t i = 0; i < w->n; i++) /* of the tensors, as the status has it */
        nbytes += (double)w->files[i].head.tensor_list->nbytes;
    (void)changes_warn(stderr, a->json,
                       "baton push: warning: ", "; 'baton weights diff' has the names");
    upstreams_warn(stderr, cli_at(a->json, "upstreams"), "baton push: warning: not taken by ");
    if (cli_has(c, OPT_JSON)) {
        cli_print_json(a);
        return;
    }
    (void)printf("%s is served (serial %.0f%s): %u tensors, %s in %s, %s/s, at %s\n",
                 cli_text(a->json, "weight_version"), cli_real(a->json, "serial"),
                 json_is_true(cli_at(a->json, "changes.repeated"))
                     ? ", with the bytes and the label of the one before"
                     : "",
                 w->n_tensors, cli_nbytes(nbytes, size), cli_duration(s, took),
                 cli_nbytes(s > 0 ? nbytes / s : 0, rate), connection_url(c->connection));
}

/* The error was printed: it begins with "the version is committed here". */
static enum cli_exit not_handed_over(const struct cli *c, const struct answer *a)
{
    upstreams_warn(stderr, cli_at(a->json, "error.details.upstreams"),
                   "baton push: not taken yet by ");
    if (cli_has(c, OPT_JSON))
        cli_print_json(a);
    return CLI_NOT_HANDED_OVER;
}

static enum cli_exit push_files(struct cli *c, const struct weight_files *w)
{
    struct progress_line p = {.nbytes_total = w->nbytes,
                              .begun_us = clock_now_us(),
                              .line_us = clock_now_us(),
                              .tty = isatty(STDERR_FILENO) && !cli_has(c, OPT_JSON)};
    struct answer started, finished = {0};
    enum cli_exit rc = session_start(c, &started);
    const char *id = cli_text(started.json, "update_id");

    for (size_t i = 0; i < w->n && rc == CLI_OK; i++)
        rc = cli_has(c, OPT_PATH) ? send_path(c, id, &w->files[i])
                                  : send_bytes(c, id, &w->files[i], &p);
    if (rc == CLI_OK)
        rc = session_finish(c, id, w, &finished);
    if (rc == CLI_OK)
        pushed(c, &finished, w, p.begun_us);
    else if (strcmp(cli_text(finished.json, "error.code"), "not_handed_over") == 0)
        rc = not_handed_over(c, &finished);
    else if (id[0] != '\0')
        session_abort(c, id);
    answer_fini(&finished);
    answer_fini(&started);
    return rc;
}

enum cli_exit cmd_push(struct cli *c)
{
    struct weight_files w;
    struct err e = {0};
    enum cli_exit rc;

    if (weight_files_open(&w, c->args[0], &e) != 0) {
        (void)fprintf(stderr, "baton push: %s\n", e.msg);
        return CLI_USAGE;
    }
    rc = push_files(c, &w);
    weight_files_close(&w);
    return rc;
}

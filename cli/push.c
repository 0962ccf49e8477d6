/* push: one update session, a request for each file, and a finish that carries the checksums, so
 * that the server proves the bytes of all files together. A session that fails is aborted. With
 * --delta-base the one file is a delta, made in memory; all is sent instead where that is of no
 * use. */
#include "cli/cli_priv.h"
#include "cli/delta_file.h"
#include "cli/interrupt.h"
#include "cli/query.h"
#include "cli/terminal.h"
#include "cli/weight_files.h"

#include "base/clock.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* What one session sends. */
struct push {
    struct cli *c;
    const struct weight_files *files;
    const char *version;           /* label; NULL: the server makes one */
    const char *base_version;      /* that the server must have; NULL: any */
    bool delta;                    /* the files are a delta of it */
    json_t *checksums;             /* borrowed: of the tensors that a delta makes */
    const struct delta_file *made; /* NULL: no delta, or one that was made before */
    bool base_is_gone;             /* output: the server has another version than base_version, and
                                      all is to be sent */
};

static enum cli_exit session_start(struct push *p, struct answer *out)
{
    struct cli *c = p->c;
    json_t *body = json_object();
    enum cli_exit rc;

    if (p->version != NULL)
        (void)json_object_set_new(body, "weight_version", json_string(p->version));
    if (p->base_version != NULL)
        (void)json_object_set_new(body, "base_version", json_string(p->base_version));
    if (p->delta)
        (void)json_object_set_new(body, "delta", json_true());
    else if (cli_has(c, OPT_PARTIAL))
        (void)json_object_set_new(body, "partial", json_true());
    if (cli_has(c, OPT_CONVERT))
        (void)json_object_set_new(body, "convert", json_true());
    rc = connection_json(c->connection, "POST", "/v1/update_weights/start", body, out);
    p->base_is_gone = p->made != NULL && !cli_has(c, OPT_PARTIAL) && rc == CLI_REFUSED &&
                      strcmp(cli_text(out->json, "error.code"), "precondition_failed") == 0;
    if (p->base_is_gone)
        (void)fprintf(stderr, "baton push: all is sent, not a delta: %s\n",
                      cli_text(out->json, "error.message"));
    else if (rc != CLI_OK)
        answer_report(out, c->connection, c->name);
    return rc;
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

static enum cli_exit session_finish(const struct push *p, const char *update_id, struct answer *out)
{
    struct cli *c = p->c;
    json_t *body = json_pack("{s:s}", "update_id", update_id);

    if (!cli_has(c, OPT_NO_CHECKSUMS) && !cli_has(c, OPT_CONVERT))
        (void)json_object_set_new(body, "checksums",
                                  p->delta ? json_incref(p->checksums) : checksums_json(p->files));
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

/* "46 tensors, 1.8 MB", and of a delta what it saved. */
static void pushed_what(const struct push *p, const struct answer *a, double nbytes)
{
    char size[CLI_TEXT_MAX], whole[CLI_TEXT_MAX];

    (void)cli_nbytes(nbytes, size);
    if (p->made != NULL)
        (void)printf("%u tensors changed, %s instead of %s", p->made->n_changed, size,
                     cli_nbytes((double)p->made->nbytes_whole, whole));
    else if (p->delta)
        (void)printf("%.0f tensors of a delta, %s", cli_real(a->json, "n_tensors_done"), size);
    else
        (void)printf("%u tensors, %s", p->files->n_tensors, size);
}

static void pushed(const struct push *p, const struct answer *a, uint64_t begun_us)
{
    const struct cli *c = p->c;
    char took[CLI_TEXT_MAX], rate[CLI_TEXT_MAX];
    double s = (double)(clock_now_us() - begun_us) / 1e6, nbytes = 0;

    for (size_t i = 0; i < p->files->n; i++) /* of the tensors, as the status has it */
        nbytes += (double)p->files->files[i].head.tensor_list->nbytes;
    (void)changes_warn(stderr, a->json,
                       "baton push: warning: ", "; 'baton weights diff' has the names");
    upstreams_warn(stderr, cli_at(a->json, "upstreams"), "baton push: warning: not taken by ");
    if (cli_has(c, OPT_JSON)) {
        cli_print_json(a);
        return;
    }
    (void)printf("%s is served (serial %.0f%s): ", cli_text(a->json, "weight_version"),
                 cli_real(a->json, "serial"),
                 json_is_true(cli_at(a->json, "changes.repeated"))
                     ? ", with the bytes and the label of the one before"
                     : "");
    pushed_what(p, a, nbytes);
    (void)printf(" in %s, %s/s, at %s\n", cli_duration(s, took),
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

static enum cli_exit push_session(struct push *push)
{
    struct cli *c = push->c;
    const struct weight_files *w = push->files;
    struct progress_line p = {.nbytes_total = w->nbytes,
                              .begun_us = clock_now_us(),
                              .line_us = clock_now_us(),
                              .tty = isatty(STDERR_FILENO) && !cli_has(c, OPT_JSON)};
    struct answer started, finished = {0};
    enum cli_exit rc = session_start(push, &started);
    const char *id = cli_text(started.json, "update_id");

    for (size_t i = 0; i < w->n && rc == CLI_OK; i++)
        rc = cli_has(c, OPT_PATH) ? send_path(c, id, &w->files[i])
                                  : send_bytes(c, id, &w->files[i], &p);
    if (rc == CLI_OK)
        rc = session_finish(push, id, &finished);
    if (rc == CLI_OK)
        pushed(push, &finished, p.begun_us);
    else if (strcmp(cli_text(finished.json, "error.code"), "not_handed_over") == 0)
        rc = not_handed_over(c, &finished);
    else if (id[0] != '\0')
        session_abort(c, id);
    answer_fini(&finished);
    answer_fini(&started);
    return rc;
}

/* The delta that lies in memory, as a file. */
static enum cli_exit push_made(struct push *p, const struct out_file *spool)
{
    const struct delta_file *d = p->made;
    size_t len = (size_t)(d->offset + d->nbytes);
    unsigned char *at = mmap(NULL, len, PROT_READ, MAP_SHARED, spool->fd, 0);
    struct weight_file f = {.path = (char *)(uintptr_t) "a delta", .nbytes = d->nbytes};
    struct weight_files one = {.files = &f, .n = 1, .nbytes = d->nbytes};
    struct err e = {0};
    uint64_t nbytes_head;
    enum cli_exit rc = CLI_USAGE;

    if (at == MAP_FAILED) {
        (void)fputs("baton push: no memory for a delta\n", stderr);
        return rc;
    }
    f.bytes = at + d->offset;
    if (safetensors_head_nbytes(f.bytes, (size_t)d->nbytes, &nbytes_head, &e) == 0 &&
        safetensors_parse(&f.head, f.bytes, nbytes_head, d->nbytes, &e) == 0) {
        one.n_tensors = f.head.tensor_list->n_tensors;
        p->files = &one;
        rc = push_session(p);
    } else {
        (void)fprintf(stderr, "baton push: %s\n", e.msg);
    }
    safetensors_fini(&f.head);
    (void)munmap(at, len);
    return rc;
}

/* What changed since --delta-base; all of it where that is no less, or the server cannot use it. */
static enum cli_exit push_difference(struct push *p, const struct weight_files *base)
{
    const struct weight_files *all = p->files;
    struct delta_file_cfg cfg = {.base = base,
                                 .to = all,
                                 .base_version = p->base_version,
                                 .version = p->version,
                                 .partial = cli_has(p->c, OPT_PARTIAL)};
    struct delta_file made = {0};
    struct out_file spool = {0};
    struct err e = {0};
    enum cli_exit rc = CLI_USAGE;
    bool whole = false;

    if (out_file_memory(&spool, &e) != 0 || delta_file_make(&made, &spool, &cfg, &e) != 0) {
        (void)fprintf(stderr, "baton push: %s\n", e.msg);
        rc = e.code == ERR_ABORTED ? CLI_INTERRUPTED : CLI_USAGE;
    } else if (made.nbytes >= made.nbytes_whole) {
        (void)fputs("baton push: all is sent: a delta has no fewer bytes\n", stderr);
        whole = true;
    } else {
        p->made = &made;
        p->delta = true;
        p->checksums = made.checksums;
        rc = push_made(p, &spool);
        whole = p->base_is_gone;
    }
    out_file_close(&spool);
    delta_file_fini(&made);
    if (!whole)
        return rc;
    *p = (struct push){.c = p->c,
                       .files = all,
                       .version = p->version,
                       /* what is not sent must be that of the base */
                       .base_version = cfg.partial ? cfg.base_version : NULL};
    return push_session(p);
}

/* --delta-base PATH: what differs from it is sent. */
static enum cli_exit push_from(struct push *p, const char *path)
{
    struct weight_files base;
    struct err e = {0};
    enum cli_exit rc;

    if (cli_has(p->c, OPT_PATH))
        return cli_usage_error(p->c, "with --path the server reads files, and a delta is none yet: "
                                     "write one by 'baton weights delta', and push that");
    if (weight_files_open(&base, path, &e) != 0) {
        (void)fprintf(stderr, "baton push: %s\n", e.msg);
        return CLI_USAGE;
    }
    if (p->base_version == NULL && base.n == 1)
        p->base_version = base.files[0].head.weight_version;
    rc = p->base_version != NULL
             ? push_difference(p, &base)
             : cli_usage_error(
                   p->c, "it needs --delta-from: %.200s does not say which version it is", path);
    weight_files_close(&base);
    return rc;
}

/* The first delta among the files; NULL: there is none. */
static const struct safetensors *find_delta(const struct weight_files *w)
{
    for (size_t k = 0; k < w->n; k++)
        if (w->files[k].head.delta_base != NULL)
            return &w->files[k].head;
    return NULL;
}

/* {name: checksum} of what a delta says that it makes. */
static json_t *made_json(const struct made_sums *made)
{
    json_t *sums = json_object();
    char text[CHECKSUM_LEN + 1];

    for (uint32_t i = 0; i < made->names.n; i++) {
        checksum_text(&made->sums[i], text);
        (void)json_object_set_new(sums, made->names.items[i], json_string(text));
    }
    return sums;
}

static enum cli_exit push_delta(struct push *p, const struct safetensors *delta)
{
    enum cli_exit rc;

    if (p->base_version == NULL && delta->delta_base[0] != '\0')
        p->base_version = delta->delta_base;
    if (p->base_version == NULL)
        return cli_usage_error(p->c, "it needs --delta-from: the delta does not say what it "
                                     "builds on");
    if (p->version == NULL)
        p->version = delta->weight_version;
    p->delta = true;
    p->checksums = made_json(&delta->made);
    rc = push_session(p);
    json_decref(p->checksums);
    return rc;
}

/* One delta file, or all of what lies there. */
static enum cli_exit push_as_is(struct push *p)
{
    const struct safetensors *delta = find_delta(p->files);

    if (delta != NULL && p->files->n == 1)
        return push_delta(p, delta);
    if (delta != NULL) {
        (void)fprintf(stderr,
                      "baton push: there is a delta among these %zu files: push each delta by "
                      "itself\n",
                      p->files->n);
        return CLI_USAGE;
    }
    return p->base_version != NULL
               ? cli_usage_error(p->c, "--delta-from needs --delta-base: the files of that version")
               : push_session(p);
}

enum cli_exit cmd_push(struct cli *c)
{
    struct weight_files w;
    struct push p = {.c = c,
                     .files = &w,
                     .version = c->values[OPT_VERSION],
                     .base_version = c->values[OPT_DELTA_FROM]};
    struct err e = {0};
    enum cli_exit rc;

    if (weight_files_open(&w, c->args[0], &e) != 0) {
        (void)fprintf(stderr, "baton push: %s\n", e.msg);
        return CLI_USAGE;
    }
    rc = cli_has(c, OPT_DELTA_BASE) ? push_from(&p, c->values[OPT_DELTA_BASE]) : push_as_is(&p);
    weight_files_close(&w);
    return rc;
}

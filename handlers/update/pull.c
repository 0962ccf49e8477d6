/* POST /pull_weights, and the commit of what it staged. The state (weights/delta/pull_chain.h) is
 * taken by one request at a time, and put back with its answer. What is pulled is read on a thread
 * of control/source_threads.h until an update is staged for it. */
#include "handlers/update/pull.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "control/life.h"
#include "control/pause_controller.h"
#include "control/source_threads.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/update_request.h"
#include "handlers/update/update_requester.h"
#include "handlers/update_json.h"
#include "handlers/update_members.h"
#include "transport/fetch.h"
#include "transport/file.h"
#include "transport/roots.h"
#include "weights/delta/pull_chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A request that has taken the state. */
struct pull_job {
    struct app *app;        /* borrowed */
    struct http_request *x; /* consumed by the answer */
    json_t *body;           /* owned; NULL: of a commit */
    struct pull_request r;  /* borrowed from the body */
    struct job job;
    struct pull_state state;
    uint64_t target;
    struct pull_place place; /* of the target, as the request names it */
    bool whole;              /* it has all tensors */
    bool base_read;          /* the trainer's base model was, and compared */
    uint32_t n_versions, n_tensors;
    uint64_t begun_us, fetch_us;       /* the second: how long it took to get indexes and files */
    char label[VERSION_LABEL_MAX + 1]; /* that the commit gives */
};

static struct pull_chain *chain_of(const struct app *app)
{
    return app->weights->pulls;
}

static void job_end(struct pull_job *j)
{
    pull_chain_put(chain_of(j->app), &j->state);
    json_decref(j->body);
    free(j);
}

/* Is the target in another directory than the version that is served? */
static bool is_elsewhere(const struct pull_job *j)
{
    const struct pull_place *is = &j->state.place;

    return j->state.version != PULL_NO_VERSION && is->source[0] != '\0' &&
           (is->form != j->place.form || strcmp(is->source, j->place.source) != 0);
}

static void answer_pulled(struct pull_job *j)
{
    const struct pull_state *s = &j->state;
    double total_s = (double)(clock_now_us() - j->begun_us) / 1e6;
    double fetch_s = (double)j->fetch_us / 1e6;
    json_t *served = s->version == PULL_NO_VERSION || is_elsewhere(j)
                         ? json_null()
                         : json_integer((json_int_t)s->version);
    json_t *reply = json_pack(
        "{s:I, s:o, s:I, s:I, s:s, s:b, s:f, s:f}", "version", (json_int_t)j->target, "served",
        served, "n_versions", (json_int_t)j->n_versions, "n_tensors", (json_int_t)j->n_tensors,
        "base", s->base_unchecked && !s->pulled_whole ? "unchecked" : "checked", "base_read",
        j->base_read, "fetch_s", fetch_s, "total_s", total_s);
    struct http_request *x = j->x;

    job_end(j); /* first: the next request may come with the answer */
    reply_json(x, 200, reply);
}

/* ---- what is pulled ---- */

static void note_pulled(struct pull_job *j)
{
    j->state.pulled = j->target;
    j->state.pulled_place = j->place;
    j->state.pulled_whole = j->whole;
    j->state.waits_until_us = clock_after_us(UPDATE_ANONYMOUS_LEASE_S * UINT64_C(1000000));
}

/* It was committed, or its update has ended. */
static void forget_pulled(struct pull_state *s)
{
    s->pulled = PULL_NO_VERSION;
    s->pulled_whole = false;
    s->update_id[0] = '\0';
}

/* Can it be committed? */
static bool pulled_waits(struct app *app, const struct pull_state *s)
{
    struct update_info info;
    struct store_info served;
    struct err ignored = {0};

    if (s->pulled == PULL_NO_VERSION)
        return false;
    if (s->update_id[0] == '\0') {
        store_info(app->weights->store, &served);
        return s->serial == served.serial && clock_now_us() < s->waits_until_us;
    }
    return updates_get(app->weights->updates, s->update_id, &info, &ignored) == 0 &&
           info.phase == UPDATE_VERIFIED;
}

/* What was pulled before and not committed. */
static void drop_pulled(struct pull_job *j)
{
    struct update_info info;
    struct err ignored = {0}; /* it may have ended */

    if (j->state.update_id[0] != '\0')
        (void)updates_abort(j->app->weights->updates, j->state.update_id,
                            "another version was pulled before its commit", &info, &ignored);
    forget_pulled(&j->state);
}

/* ---- the run's beginning ---- */

/* A long read ends with the server too. */
static bool requester_gone(void *arg)
{
    const struct pull_job *j = arg;

    return http_request_disconnected(j->x) || life_state(j->app->life) == LIFE_DRAINING;
}

static struct progress progress_of(struct pull_job *j)
{
    return (struct progress){
        .deadline_us = clock_after_us(j->app->settings.update_timeout_ms * 1000),
        .gone = requester_gone,
        .gone_arg = j};
}

/* What a base is compared with: the trainer's, if it is a path that may be read here and is there,
 * else what the server started with. @source  stays NULL: nothing is known of it */
static int open_base(struct source **source, struct file_weights *w, struct pull_job *j,
                     struct err *e)
{
    const struct settings *s = &j->app->settings;

    if (j->r.base != NULL) {
        if (file_source_open(source, w, s->allow_path, s->n_allow_path, j->r.base, NULL, e) == 0) {
            j->base_read = true;
            return 0;
        }
        if (e->code != ERR_FORBIDDEN && e->code != ERR_NOT_FOUND)
            return -1;
        err_clear(e); /* it may be the name of a hub, or of another host */
    }
    return s->base_weights != NULL ? file_source_open_local(source, w, s->base_weights, e) : 0;
}

/* @serial  of what was compared. @unchecked  with nothing */
static int check_base(struct pull_job *j, uint64_t *serial, bool *unchecked, struct err *e)
{
    struct store *store = j->app->weights->store;
    struct progress progress = progress_of(j);
    const struct version *v = NULL;
    struct file_weights w = {0};
    struct source *source = NULL;
    int rc;

    if (store_pin(store, &v, e) != 0)
        return -1;
    *serial = v->serial;
    rc = open_base(&source, &w, j, e);
    *unchecked = source == NULL;
    if (rc == 0 && source != NULL)
        rc = pull_base_check(source, w.tensor_list, store, v, &progress, e);
    if (rc != 0)
        e->field[0] = '\0';
    source_close(source);
    file_weights_fini(&w);
    store_unpin(store, v);
    return rc;
}

/* Nothing of an earlier run is known from now on. */
static int begin_run(struct pull_job *j, struct err *e)
{
    uint64_t serial;
    bool unchecked;

    if (check_base(j, &serial, &unchecked, e) != 0)
        return -1;
    drop_pulled(j);
    j->state.version = 0;
    j->state.place = j->place;
    j->state.serial = serial;
    j->state.base_unchecked = unchecked;
    j->state.ended = PULL_NO_VERSION;
    answer_pulled(j);
    return 0;
}

/* ---- a version ---- */

static void log_pull(const struct pull_job *j, const char *event, const struct err *e)
{
    struct log_rec r;

    log_begin(&r, e == NULL ? LOG_INFO : LOG_WARN, event);
    log_actor(&r, &j->x->actor);
    log_u64(&r, "version", j->target);
    if (e != NULL)
        log_err(&r, e);
    log_end(&r);
}

static void answer_failed(struct pull_job *j, const struct err *e)
{
    struct http_request *x = j->x;

    log_pull(j, "weights.pull_failed", e);
    job_end(j);
    reply_error(x, e, NULL);
}

/* The update has ended, or ends here; nothing of it is kept. */
static void pull_failed(struct pull_job *j, const struct update_info *info, const struct err *e)
{
    struct update_info ended;
    struct err ignored = {0}, told = *e; /* it may have ended already */

    if (info->phase != UPDATE_ABORTED)
        (void)updates_fail(j->app->weights->updates, j->state.update_id, e, &ended, &ignored);
    j->state.update_id[0] = '\0';
    told.field[0] = '\0'; /* the request has no list of tensors */
    answer_failed(j, &told);
}

static void pull_verified(void *arg, const struct update_info *info, const struct err *e)
{
    struct pull_job *j = arg;

    if (e->code != ERR_NONE) {
        pull_failed(j, info, e);
        return;
    }
    note_pulled(j);
    log_pull(j, "weights.pulled", NULL);
    answer_pulled(j);
}

static void pull_received(void *arg, const struct update_info *info, const struct err *e)
{
    struct pull_job *j = arg;
    struct err why = *e;

    if (why.code == ERR_NONE && updates_verify(j->app->weights->updates, j->state.update_id, NULL,
                                               0, pull_verified, j, &why) == 0)
        return;
    pull_failed(j, info, &why);
}

static struct update_chunk *pull_chunk(struct pull_job *j, struct source *source,
                                       struct tensor_list *list, struct err *e)
{
    struct update_chunk *c = calloc(1, sizeof *c);

    if (c == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
        return NULL;
    }
    memcpy(c->update_id, j->state.update_id, sizeof c->update_id);
    c->tensor_list = tensor_list_ref(list);
    c->source = source;
    c->gone = requester_gone;
    c->done = pull_received;
    c->done_arg = j;
    return c;
}

/* @p  moved in */
static int submit_pull(struct pull_job *j, struct pull *p, struct err *e)
{
    struct tensor_list *list = tensor_list_ref(pull_tensors(p));
    struct update_start start = {
        .partial = !pull_is_whole(p), .lease_s = UPDATE_ANONYMOUS_LEASE_S, .actor = j->x->actor};
    struct updates *updates = j->app->weights->updates;
    struct update_chunk *c = NULL;
    struct source *source = NULL;
    struct update_info info;
    struct err ignored = {0};
    int rc = updates_start(updates, &start, &info, e);

    if (rc != 0) {
        pull_close(p);
        tensor_list_unref(list);
        return -1;
    }
    memcpy(j->state.update_id, info.id, sizeof j->state.update_id);
    rc = pull_source(&source, p, j->app->weights->store, j->state.serial, e);
    if (rc == 0) {
        c = pull_chunk(j, source, list, e);
        rc = c != NULL ? updates_submit(updates, c, e) : -1;
        if (c == NULL)
            source_close(source);
    }
    if (rc != 0) {
        update_chunk_free(c);
        (void)updates_fail(updates, j->state.update_id, e, &info, &ignored);
        j->state.update_id[0] = '\0';
    }
    tensor_list_unref(list);
    return rc;
}

static int prove_served(struct pull_job *j, struct pull *p, struct err *e)
{
    struct store *store = j->app->weights->store;
    struct progress progress = progress_of(j);
    const struct version *v = NULL;
    int rc;

    if (store_pin(store, &v, e) != 0)
        return -1;
    rc = v->serial == j->state.serial ? pull_prove(p, store, v, &progress, e)
                                      : err_set(e, ERR_CONFLICT, "",
                                                "another version was just "
                                                "committed: pull again");
    store_unpin(store, v);
    return rc;
}

/* Of a directory that does not begin with a whole checkpoint the versions are read in vain. */
static int refuse_elsewhere(const struct pull_job *j, struct err *e)
{
    const char *source = j->state.place.source;

    if (e->code == ERR_NOT_FOUND)
        err_append(e, "; and a version of another directory is served: only a whole checkpoint, "
                      "and what follows it, is taken from this one");
    if (e->code != ERR_CONFLICT)
        return -1;
    err_clear(e);
    return err_set(e, ERR_PRECONDITION, "/source",
                   "version %llu of another directory is served ('%.*s'), and no version up to "
                   "%llu of this one is a whole checkpoint: begin a run with version 0",
                   (unsigned long long)j->state.version, utf8_cut(source, 200), source,
                   (unsigned long long)j->target);
}

/* @served  what the target may build on; PULL_NO_VERSION: it has to be whole */
static int open_pull(struct pull **out, struct pull_job *j, uint64_t served, struct err *e)
{
    const struct settings *s = &j->app->settings;
    struct progress progress = progress_of(j);
    struct fetch *fetch = NULL;
    struct pull_cfg cfg = {.form = j->place.form,
                           .spec = store_model_spec(j->app->weights->store),
                           .progress = &progress,
                           .served = served,
                           .target = j->target};
    int rc;

    if (fetch_is_url(j->place.source)) {
        if (fetch_open(&fetch, j->app->weights->fetch_rules, j->place.source, &progress,
                       s->body_stall_timeout_ms * 1000, e) != 0)
            return -1;
        cfg.fetch = fetch_file;
        cfg.fetch_arg = fetch;
        rc = pull_open(out, &cfg, e);
        fetch_close(fetch);
        return rc;
    }
    if (roots_open(&cfg.rootfd, &cfg.source, s->allow_path, s->n_allow_path, j->place.source,
                   "/source", e) != 0)
        return -1;
    rc = pull_open(out, &cfg, e);
    (void)close(cfg.rootfd);
    return rc;
}

static int pull_version(struct pull_job *j, struct err *e)
{
    bool elsewhere = is_elsewhere(j);
    uint64_t served = elsewhere ? PULL_NO_VERSION : j->state.version, from_us = clock_now_us();
    struct pull *p = NULL;

    if (open_pull(&p, j, served, e) != 0)
        return elsewhere ? refuse_elsewhere(j, e) : -1;
    j->fetch_us = clock_now_us() - from_us;
    if (j->target == served && prove_served(j, p, e) != 0) {
        pull_close(p);
        return -1;
    }
    drop_pulled(j);
    j->n_versions = pull_n_versions(p);
    j->n_tensors = pull_tensors(p) != NULL ? pull_tensors(p)->n_tensors : 0;
    j->whole = pull_is_whole(p);
    if (j->target != served && pull_tensors(p) != NULL)
        return submit_pull(j, p, e);
    pull_close(p);
    note_pulled(j); /* the bytes that are served: the commit gives them the name */
    answer_pulled(j);
    return 0;
}

/* An update by other means ends the chain, and what is pulled without bytes of its own. */
static void note_served(struct pull_job *j)
{
    struct store_info info;

    store_info(j->app->weights->store, &info);
    if (info.serial != j->state.serial) {
        if (j->state.version != PULL_NO_VERSION)
            j->state.ended = j->state.version;
        j->state.version = PULL_NO_VERSION;
        if (j->state.update_id[0] == '\0')
            j->state.pulled = PULL_NO_VERSION;
    }
    j->state.serial = info.serial;
}

static void say_ended(const struct pull_job *j, struct err *e)
{
    char text[96];

    if (j->state.ended == PULL_NO_VERSION)
        return;
    (void)snprintf(text, sizeof text, "; after version %llu another update was committed",
                   (unsigned long long)j->state.ended);
    err_append(e, text);
}

static int use_request(struct pull_job *j, const struct pull_request *r, struct err *e)
{
    struct pull_place *p = &j->place;
    size_t len = strlen(r->source);

    if (r->version != 0 && (r->source[0] == '\0' || r->name[0] == '\0'))
        return err_set(e, ERR_BAD_REQUEST, r->source[0] == '\0' ? "/source" : "/name",
                       "it is empty: it names what is pulled");
    if (len >= sizeof p->source || strlen(r->name) >= sizeof p->name)
        return err_set(e, ERR_BAD_REQUEST, strlen(r->name) >= sizeof p->name ? "/name" : "/source",
                       "it is longer than %d bytes", (int)PULL_PATH_MAX - 1);
    while (len > 1 && r->source[len - 1] == '/')
        len--;
    p->form = (enum pull_form)r->form;
    (void)snprintf(p->source, sizeof p->source, "%.*s", (int)len, r->source);
    (void)snprintf(p->name, sizeof p->name, "%s", r->name);
    j->target = r->version;
    return 0;
}

static void pull_run(void *arg)
{
    struct pull_job *j = arg;
    struct source_threads *threads = j->app->weights->source_threads;
    struct err e = {0};

    note_served(j);
    if (use_request(j, &j->r, &e) != 0 ||
        (j->target == 0 ? begin_run(j, &e) : pull_version(j, &e)) != 0) {
        say_ended(j, &e);
        answer_failed(j, &e);
    }
    source_threads_end(threads);
}

int handle_pull(struct app *app, struct http_request *x, struct err *e)
{
    struct pull_job *j = calloc(1, sizeof *j);

    if (j == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a pull");
    *j = (struct pull_job){
        .app = app, .x = x, .job = {.run = pull_run, .arg = j}, .begun_us = clock_now_us()};
    if (body_parse(&j->body, x, x->route, e) != 0 ||
        member_read(&j->r, pull_members, j->body, "", e) != 0 ||
        pause_controller_allows(app->pause_controller, CALL_UPDATE_START, e) != 0 ||
        pull_chain_take(chain_of(app), &j->state, e) != 0) {
        json_decref(j->body);
        free(j);
        return -1;
    }
    if (source_threads_post(app->weights->source_threads, &j->job, e) == 0)
        return 0;
    job_end(j);
    return -1;
}

/* ---- the commit ---- */

bool pull_is_named(const struct app *app, const char *path)
{
    struct store_info info;

    store_info(app->weights->store, &info);
    return pull_chain_is_named(chain_of(app), path, info.serial);
}

/* What is pulled is served, under this serial. */
static void note_committed(struct pull_state *s, uint64_t serial)
{
    s->version = s->pulled;
    s->place = s->pulled_place;
    s->serial = serial;
    s->ended = PULL_NO_VERSION;
    s->base_unchecked = s->base_unchecked && !s->pulled_whole;
    s->committed = true;
}

/* Who knows the update's id can finish it too, under another label. */
static void refuse_other_label(struct pull_job *j, const struct update_info *info, struct err *e)
{
    if (info->phase != UPDATE_COMMITTED || e->code != ERR_NONE ||
        strcmp(info->label, j->label) == 0)
        return;
    j->state.committed = false;
    (void)err_set(e, ERR_CONFLICT, "",
                  "version %llu was pulled to be served as '%.64s', but another client committed "
                  "it as '%.*s': pull the version again, then name its directory here",
                  (unsigned long long)j->target, j->label, utf8_cut(info->label, 64), info->label);
}

static void pull_committed(void *arg, const struct update_info *info, const struct err *e)
{
    struct pull_job *j = arg;
    struct update_requester *asker = NULL;
    struct err none = {0}, why = *e;
    struct http_request *x = j->x;
    struct app *app = j->app;

    if (info->phase == UPDATE_COMMITTED)
        note_committed(&j->state, info->serial);
    refuse_other_label(j, info, &why);
    forget_pulled(&j->state);
    job_end(j);
    if (update_requester_new(&asker, app, x, NULL, &none) == 0)
        update_reply_done(asker, info, &why);
    else
        reply_json(x, why.code == ERR_NONE ? 200 : 503, NULL);
}

/* The version has the bytes of the one that is served. */
static void note_renamed(struct pull_job *j, uint64_t serial)
{
    note_committed(&j->state, serial);
    forget_pulled(&j->state);
}

static json_t *renamed_json(const char *label, uint64_t serial)
{
    return json_pack("{s:s, s:s, s:I, s:i}", "phase", "committed", "weight_version", label,
                     "serial", (json_int_t)serial, "n_tensors_done", 0);
}

static void engines_renamed(void *arg, bool recorded)
{
    struct pull_job *j = arg;

    if (recorded)
        note_renamed(j, j->state.serial);
    job_end(j);
}

static void rename_at_engines(void *arg)
{
    struct pull_job *j = arg;
    const struct label_req req = {.label = j->label, .if_serial = j->state.serial};

    j->app->fleet->rename(j->app, j->x, &req, renamed_json(req.label, req.if_serial),
                          engines_renamed, j);
}

static int rename_served(struct pull_job *j, struct err *e)
{
    struct http_request *x = j->x;
    uint64_t serial;
    json_t *reply;

    if (j->app->fleet != NULL) { /* on threads that may wait for engines */
        j->job = (struct job){.run = rename_at_engines, .arg = j};
        return workers_post(j->app->fleet->executor, &j->job, WORKERS_NORMAL, e);
    }
    if (store_set_label(j->app->weights->store, j->label, j->state.serial, &serial, e) != 0)
        return -1;
    note_renamed(j, serial);
    reply = renamed_json(j->label, serial);
    job_end(j);
    reply_json(x, 200, reply);
    return 0;
}

static int check_pulled(struct pull_job *j, const char *label, struct err *e)
{
    const struct pull_state *s = &j->state;
    char served[64] = "nothing is known of what is served";

    if (s->version != PULL_NO_VERSION)
        (void)snprintf(served, sizeof served, "version %llu is served",
                       (unsigned long long)s->version);
    if (s->pulled == PULL_NO_VERSION)
        return err_set(e, ERR_CONFLICT, "",
                       "no version is pulled, and %s: pull the version first, then name its "
                       "directory here",
                       served);
    j->target = s->pulled;
    if (label != NULL &&
        (strspn(label, "0123456789") != strlen(label) || strtoull(label, NULL, 10) != s->pulled))
        return err_set(e, ERR_PRECONDITION, "/weight_version", "version %llu is pulled, not '%.*s'",
                       (unsigned long long)s->pulled, utf8_cut(label, 64), label);
    return 0;
}

static int commit_job(struct pull_job *j, const char *label, bool abort_requests, struct err *e)
{
    note_served(j);
    if (check_pulled(j, label, e) != 0)
        return -1;
    if (label != NULL)
        (void)snprintf(j->label, sizeof j->label, "%s", label);
    else
        (void)snprintf(j->label, sizeof j->label, "%llu", (unsigned long long)j->target);
    if (abort_requests && (j->state.update_id[0] == '\0' || pulled_waits(j->app, &j->state)))
        update_abort_generations(j->app);
    if (j->state.update_id[0] == '\0')
        return rename_served(j, e);
    if (updates_finish(j->app->weights->updates, j->state.update_id, j->label, NULL, 0,
                       pull_committed, j, e) == 0)
        return 0;
    if (e->code == ERR_NOT_FOUND || e->code == ERR_ENDED) {
        err_append(e, "; pull the version again");
        forget_pulled(&j->state);
    }
    return -1;
}

int pull_commit(struct app *app, struct http_request *x, const char *label, bool abort_requests,
                struct err *e)
{
    struct pull_job *j;

    if (pause_controller_allows(app->pause_controller, CALL_UPDATE_FINISH, e) != 0)
        return -1;
    j = calloc(1, sizeof *j);
    if (j == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the commit");
    if (pull_chain_take(chain_of(app), &j->state, e) != 0) {
        free(j);
        return -1;
    }
    j->app = app;
    j->x = x;
    if (commit_job(j, label, abort_requests, e) == 0)
        return 0;
    job_end(j);
    return -1;
}

int handle_pull_commit(struct app *app, struct http_request *x, struct err *e)
{
    struct pull_request r = {0};
    char label[24];
    json_t *body;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = member_read(&r, pull_commit_members, body, "", e);
    if (rc == 0 && !pull_is_named(app, r.name))
        rc = err_set(e, ERR_CONFLICT, "/name", "no version was fetched from '%.*s'",
                     utf8_cut(r.name, 200), r.name);
    (void)snprintf(label, sizeof label, "%llu", (unsigned long long)r.version);
    json_decref(body);
    return rc == 0 ? pull_commit(app, x, label, false, e) : -1;
}

/* ---- an update around it ---- */

bool pull_session_start(struct app *app)
{
    struct pull_state *s = malloc(sizeof *s);
    struct err ignored = {0};
    bool begins = false;

    if (s != NULL && pull_chain_take(chain_of(app), s, &ignored) == 0) {
        begins = pulled_waits(app, s) && s->pulled_place.form == PULL_SKYRL;
        s->session = begins;
        s->committed = false;
        pull_chain_put(chain_of(app), s);
    }
    free(s);
    return begins;
}

int pull_session_finish(bool *ended, struct app *app, struct err *e)
{
    struct pull_state *s = malloc(sizeof *s);
    struct err ignored = {0};
    int rc = 0;

    *ended = false;
    if (s != NULL && pull_chain_take(chain_of(app), s, &ignored) == 0) {
        *ended = s->session;
        if (s->session && s->pulled != PULL_NO_VERSION)
            rc = err_set(e, ERR_CONFLICT, "", "version %llu is fetched, but was not committed",
                         (unsigned long long)s->pulled);
        else if (s->session && !s->committed)
            rc = err_set(e, ERR_CONFLICT, "", "what was fetched was not committed: fetch it again");
        s->session = false;
        pull_chain_put(chain_of(app), s);
    }
    free(s);
    return rc;
}

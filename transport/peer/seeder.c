/* One turn asks each peer once. What a peer has is read into a session that stays open from one
 * peer to the next (weights/update/update.h), so that tensors which came are not read again. */
#include "transport/peer/seeder.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mtx.h"
#include "base/utf8.h"
#include "http/client/http.h"
#include "transport/peer/pass.h"
#include "transport/peer/peer.h"
#include "weights/model_spec.h"
#include "weights/state/snapshot_file.h"
#include "weights/state/version_content.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEASE_S = 60, OTHER_UPDATE_US = 100000, STEPS_STALLED = 3, SOON_US = 10000 };

struct peers {
    char (*urls)[SEED_URL_MAX + 1]; /* owned; [n] */
    size_t n;
    uint64_t serial; /* served when they were named */
    bool awaited;    /* as of struct seeder, once they are asked */
};

struct seeder {
    struct seeder_cfg cfg;

    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed;
    bool answered;
    bool awaited;      /* others that ask for a version wait for the one that is to be read */
    struct pass *pass; /* owned; of the session; NULL: none */
    struct update_info answer; /* of the update worker, and why it failed */
    struct err why;
    struct seeder_info info;
    struct peers next; /* after those that are asked now; urls NULL: none */

    atomic_bool stopping; /* relaxed: looked at again under the lock */
    pthread_t thread;
    bool runs; /* the owner's */

    /* The thread's. */
    char update_id[UPDATE_ID_MAX + 1]; /* the session; "": none */
    uint64_t base;                     /* of the session: what it builds on; 0: nothing */
    char digest[CONTENT_LEN + 1];      /* of the session: of the version that it becomes */
    bool again;                        /* it has bytes of an earlier attempt */
    uint64_t serial;                   /* served when nothing else was committed since */
    struct peers peers;
    unsigned round;
    size_t last; /* the peer that was asked last */
    struct peer *peer;
};

/* How an attempt ended. */
enum end { TOOK, HAS_NOTHING_NEWER, FAILED };

const char *seeder_state_name(enum seeder_state state)
{
    static const char *const names[] = {"none", "seeding", "done", "ended"};

    return names[state];
}

static bool seed_stopping(void *seeder)
{
    const struct seeder *s = seeder;

    return atomic_load_explicit(&s->stopping, memory_order_relaxed);
}

/* ---- the update ---- */

static void seed_answered(void *arg, const struct update_info *info, const struct err *e)
{
    struct seeder *s = arg;

    mtx_lock(&s->lock);
    s->answered = true;
    s->answer = *info;
    s->why = *e;
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
}

/* @serial  of the version that it became; 0: none */
static void end_pass(struct seeder *s, uint64_t serial)
{
    struct pass *pass;

    mtx_lock(&s->lock);
    pass = s->pass;
    s->pass = NULL;
    mtx_unlock(&s->lock);
    if (pass != NULL)
        pass_end(pass, serial);
    pass_unref(pass);
}

static void drop_session(struct seeder *s, const char *why)
{
    struct update_info info;
    struct err ignored = {0}; /* it may have ended */

    end_pass(s, 0);
    if (s->update_id[0] != '\0')
        (void)updates_abort(s->cfg.updates, s->update_id, why, &info, &ignored);
    s->update_id[0] = '\0';
    s->again = false;
}

/* Waits for the worker's answer to what was queued. */
static int await_answer(struct seeder *s, struct err *e)
{
    bool told = false;

    mtx_lock(&s->lock);
    while (!s->answered) {
        (void)cnd_wait(&s->changed, &s->lock, clock_after_us(100000));
        if (!seed_stopping(s) || told)
            continue;
        told = true;
        mtx_unlock(&s->lock);
        drop_session(s, "the server is stopping");
        mtx_lock(&s->lock);
    }
    s->answered = false;
    *e = s->why;
    mtx_unlock(&s->lock);
    return e->code == ERR_NONE ? 0 : -1;
}

/* Has another update been committed; is one open? */
static bool is_overtaken(struct seeder *s)
{
    struct store_info info;

    store_info(s->cfg.store, &info);
    return info.serial != s->serial;
}

/* A session that builds on a version becomes one other version only: of the next one, tensors that
 * are served already are not read, and would be those that it has. From here on each other update
 * aborts it, so that it is the last moment to see what was committed while the peer was asked.
 * @base  the version that stays but for what is read; 0: none */
static int open_session(struct seeder *s, uint64_t base, const struct peer_version *v,
                        struct err *e)
{
    struct update_start start = {
        .partial = base != 0, .base = {.serial = base}, .yields = true, .lease_s = LEASE_S};
    struct update_info info;
    struct err gone = {0};

    if (s->update_id[0] != '\0' &&
        (s->base != base || (base != 0 && strcmp(s->digest, v->digest) != 0) ||
         updates_get(s->cfg.updates, s->update_id, &info, &gone) != 0 ||
         info.phase == UPDATE_ABORTED))
        drop_session(s, "it builds on another version than is served, or becomes another one");
    if (s->update_id[0] != '\0')
        return 0;
    (void)snprintf(start.label, sizeof start.label, "%s", v->label);
    if (updates_start(s->cfg.updates, &start, &info, e) != 0)
        return -1;
    memcpy(s->update_id, info.id, sizeof s->update_id);
    s->base = base;
    (void)snprintf(s->digest, sizeof s->digest, "%s", v->digest);
    if (is_overtaken(s)) {
        drop_session(s, "another update was committed");
        return err_set(e, ERR_CONFLICT, "", "another update was committed meanwhile");
    }
    return 0;
}

/* ---- what is read ---- */

/* Of one attempt. */
struct reading {
    struct checksum *sums; /* owned; [n_tensors] of the model spec, and so is the next */
    bool *wanted;
    uint32_t n_wanted;
    uint64_t base;
    char label[VERSION_LABEL_MAX + 1]; /* of the base */
    struct tensor_list *list;          /* of what is read; one reference */
    uint32_t *at;                      /* owned; [list->n_tensors] in the file */
};

static void reading_fini(struct reading *r)
{
    free(r->sums);
    free(r->wanted);
    free(r->at);
    tensor_list_unref(r->list);
}

/* Is it this model, and are the list and the lease of one version? */
static int check_peer(struct seeder *s, struct reading *r, struct err *e)
{
    const struct tensor_list *spec = store_model_spec(s->cfg.store)->tensor_list;
    const struct peer_version *v = peer_version(s->peer);
    const struct safetensors *f = peer_file(s->peer);
    char content[CONTENT_LEN + 1];

    if (snapshot_file_sums(f, spec, r->sums, e) != 0)
        return -1;
    content_of(spec, r->sums, content);
    if (strcmp(content, v->digest) == 0 && f->weight_version != NULL &&
        strcmp(f->weight_version, v->label) == 0)
        return 0;
    return err_set(e, ERR_CHECKSUM, "",
                   "the peer leased version '%.*s' of digest %.12s, and lists '%.*s' of %.12s",
                   utf8_cut(v->label, 64), v->label, v->digest,
                   utf8_cut(f->weight_version != NULL ? f->weight_version : "", 64),
                   f->weight_version != NULL ? f->weight_version : "", content);
}

/* What differs from the served version; all, if there is none. */
static int find_wanted(struct seeder *s, struct reading *r, struct err *e)
{
    uint32_t n = store_model_spec(s->cfg.store)->tensor_list->n_tensors;
    const struct version *served = NULL;
    struct checksum sum;
    struct err none = {0};
    int rc = 0;

    if (store_pin(s->cfg.store, &served, &none) != 0) {
        memset(r->wanted, true, n);
        r->n_wanted = n;
        return 0;
    }
    r->base = served->serial;
    (void)snprintf(r->label, sizeof r->label, "%s", served->label);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = seed_stopping(s) || store_reader_awaited(s->cfg.store, served)
                 ? err_set(e, ERR_CONFLICT, "", "the served version is wanted for something else")
                 : store_checksum(s->cfg.store, served, i, &sum, e);
        r->wanted[i] = rc == 0 && !checksum_equal(sum, r->sums[i]);
        r->n_wanted += r->wanted[i];
    }
    store_unpin(s->cfg.store, served);
    return rc;
}

/* In the file's order. */
static int list_wanted(struct seeder *s, struct reading *r, struct err *e)
{
    const struct tensor_list *all = peer_file(s->peer)->tensor_list;
    const struct tensor_list *spec = store_model_spec(s->cfg.store)->tensor_list;
    struct tensor_list_builder *b;
    uint32_t n = 0;

    r->at = calloc(all->n_tensors, sizeof *r->at);
    if (r->at == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u tensors", all->n_tensors);
    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < all->n_tensors; i++) {
        const struct tensor_spec *t = &all->tensors[i];

        if (!r->wanted[tensor_list_find_near(spec, t->name, i)])
            continue;
        if (tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
        r->at[n++] = i;
    }
    return tensor_list_builder_finish(b, &r->list, e);
}

/* The next peer goes on with what the last one began, if it is the same file. */
static int start_pass(struct seeder *s, const struct reading *r, struct err *e)
{
    const struct peer_version *v = peer_version(s->peer);
    struct pass *pass;

    if (s->pass != NULL && strcmp(pass_file(s->pass)->content, v->digest) == 0 &&
        strcmp(pass_label(s->pass), v->label) == 0)
        return 0;
    end_pass(s, 0);
    if (!store_has_host(s->cfg.store))
        return 0;
    if (pass_new(&pass, s->cfg.store, v->label, r->sums, r->wanted, r->base, e) != 0)
        return -1;
    mtx_lock(&s->lock);
    s->pass = pass;
    mtx_unlock(&s->lock);
    return 0;
}

static int submit(struct seeder *s, const struct reading *r, struct err *e)
{
    struct update_chunk *c = calloc(1, sizeof *c);
    uint32_t n = r->list->n_tensors;

    if (c != NULL) {
        c->checksums = calloc(n, sizeof *c->checksums);
        c->has_checksum = calloc(n, sizeof *c->has_checksum);
    }
    if (c == NULL || c->checksums == NULL || c->has_checksum == NULL) {
        update_chunk_free(c);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u tensors", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        c->checksums[i] = peer_file(s->peer)->checksums[r->at[i]];
        c->has_checksum[i] = true;
    }
    memcpy(c->update_id, s->update_id, sizeof c->update_id);
    c->tensor_list = tensor_list_ref(r->list);
    c->done = seed_answered;
    c->done_arg = s;
    if (peer_source(&c->source, s->peer, r->list, r->at, s->again, s->pass, e) == 0 &&
        updates_submit(s->cfg.updates, c, e) == 0)
        return 0;
    update_chunk_free(c);
    return -1;
}

static void log_seeded(struct seeder *s, uint64_t begun_us, const struct reading *r)
{
    struct log_rec rec;

    log_begin(&rec, LOG_INFO, "weights.seeded");
    log_str(&rec, "peer", s->info.from);
    log_str(&rec, "weight_version", s->info.label);
    log_str(&rec, "instead_of", r->base != 0 ? r->label : NULL);
    log_u64(&rec, "serial", s->info.serial);
    log_u64(&rec, "n_tensors", r->n_wanted);
    log_u64(&rec, "nbytes_read", peer_nbytes_read(s->peer));
    log_u64(&rec, "ms", (clock_now_us() - begun_us) / 1000);
    log_event(&rec);
}

/* Only this thread writes the info's members of a version. */
static void note_taken(struct seeder *s, const char *url)
{
    const struct peer_version *v = peer_version(s->peer);

    store_note_content(s->cfg.store, s->answer.serial, v->digest);
    mtx_lock(&s->lock);
    s->serial = s->answer.serial;
    s->awaited = false;
    s->info.serial = s->serial;
    s->info.peer_serial = v->serial;
    s->info.n_versions++;
    (void)snprintf(s->info.from, sizeof s->info.from, "%s", url);
    (void)snprintf(s->info.label, sizeof s->info.label, "%s", v->label);
    (void)snprintf(s->info.boot_id, sizeof s->info.boot_id, "%s", v->boot_id);
    (void)snprintf(s->info.digest, sizeof s->info.digest, "%s", v->digest);
    mtx_unlock(&s->lock);
    end_pass(s, s->serial);
    s->update_id[0] = '\0';
    s->again = false;
}

/* The version stays committed when what follows a commit fails. */
static int finish(struct seeder *s, struct err *e)
{
    if (updates_finish(s->cfg.updates, s->update_id, peer_version(s->peer)->label, NULL, 0,
                       seed_answered, s, e) != 0)
        return -1;
    if (await_answer(s, e) == 0)
        return 0;
    if (s->answer.phase != UPDATE_COMMITTED)
        return -1;
    err_clear(e);
    return 0;
}

static enum end take(struct seeder *s, struct reading *r, const char *url, struct err *e)
{
    uint64_t begun_us = clock_now_us();

    if (list_wanted(s, r, e) != 0 || open_session(s, r->base, peer_version(s->peer), e) != 0 ||
        start_pass(s, r, e) != 0 || submit(s, r, e) != 0)
        return FAILED;
    s->again = true;
    if (await_answer(s, e) != 0 || finish(s, e) != 0)
        return FAILED;
    note_taken(s, url);
    log_seeded(s, begun_us, r);
    return TOOK;
}

static enum end read_peer(struct seeder *s, struct reading *r, const char *url, struct err *e)
{
    const struct tensor_list *spec = store_model_spec(s->cfg.store)->tensor_list;

    r->sums = calloc(spec->n_tensors, sizeof *r->sums);
    r->wanted = calloc(spec->n_tensors, sizeof *r->wanted);
    if (r->sums == NULL || r->wanted == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %u tensors", spec->n_tensors);
        return FAILED;
    }
    if (check_peer(s, r, e) != 0 || find_wanted(s, r, e) != 0)
        return FAILED;
    if (r->n_wanted == 0)
        store_note_content(s->cfg.store, r->base, peer_version(s->peer)->digest);
    if (r->n_wanted == 0 && strcmp(r->label, peer_version(s->peer)->label) == 0)
        return HAS_NOTHING_NEWER;
    if (r->n_wanted == 0) { /* the same bytes under another name */
        r->wanted[0] = true;
        r->n_wanted = 1;
    }
    return take(s, r, url, e);
}

static enum end ask_peer(struct seeder *s, const char *url, struct err *e)
{
    const struct seeder_cfg *c = &s->cfg;
    const char *plan = store_model_spec(c->store)->tensor_list->digest;
    struct progress p = {.deadline_us = clock_after_us(STEPS_STALLED * c->stall_us),
                         .gone = seed_stopping,
                         .gone_arg = s};
    struct reading r = {0};
    enum end end = FAILED;

    if (strcmp(peer_version(s->peer)->boot_id, c->boot_id) == 0)
        (void)err_set(e, ERR_CONFLICT, "", "the peer is this server itself");
    else if (strcmp(peer_version(s->peer)->plan_digest, plan) != 0)
        (void)err_set(e, ERR_MISMATCH, "",
                      "the peer serves another model: the digest of its tensor list is %.12s, "
                      "here it is %.12s",
                      peer_version(s->peer)->plan_digest, plan);
    else if (peer_read_head(s->peer, &p, e) == 0)
        end = read_peer(s, &r, url, e);
    reading_fini(&r);
    return end;
}

static bool is_allowed(const void *cidrs, const struct sockaddr *addr)
{
    return cidr_list_match(cidrs, addr);
}

static bool is_of_option(const struct seeder *s, const char *url)
{
    for (size_t i = 0; i < s->cfg.n_peers; i++)
        if (strcmp(s->cfg.peers[i], url) == 0)
            return true;
    return false;
}

static void note_peer(struct seeder *s, const char *url, const struct err *e)
{
    struct log_rec r;

    mtx_lock(&s->lock);
    (void)snprintf(s->info.peer, sizeof s->info.peer, "%s", url);
    if (e != NULL) {
        s->info.error = *e;
        s->info.n_failures++;
    }
    mtx_unlock(&s->lock);
    if (e == NULL)
        return;
    log_begin(&r, LOG_WARN, "weights.seed_failed");
    log_str(&r, "peer", url);
    log_err(&r, e);
    log_event(&r);
}

static bool other_is_open(struct seeder *s)
{
    struct update_info info;

    updates_current(s->cfg.updates, &info);
    return info.phase != UPDATE_NONE && !info.yields;
}

static void seed_wait(struct seeder *s, uint64_t us)
{
    uint64_t until_us = clock_after_us(us);

    mtx_lock(&s->lock);
    while (!seed_stopping(s) && !clock_passed(until_us))
        (void)cnd_wait(&s->changed, &s->lock, until_us);
    mtx_unlock(&s->lock);
}

static bool must_end(struct seeder *s)
{
    return seed_stopping(s) || is_overtaken(s) || other_is_open(s);
}

/* One that is about to read the version itself is asked again, ever less often. */
static int open_peer(struct seeder *s, const struct peer_cfg *cfg, struct err *e)
{
    uint64_t begun_us = clock_now_us(), waited_us = 0;

    while (!must_end(s)) {
        struct progress p = {.deadline_us = clock_after_us(STEPS_STALLED * cfg->stall_us),
                             .gone = seed_stopping,
                             .gone_arg = s};

        err_clear(e);
        if (peer_open(&s->peer, cfg, &p, e) == 0)
            return 0;
        if (e->code != ERR_SEEDING || waited_us > cfg->stall_us)
            return -1;
        seed_wait(s, SOON_US + waited_us / 8);
        waited_us = clock_now_us() - begun_us;
    }
    err_clear(e);
    return err_set(e, ERR_CONFLICT, "", "another update is open, or was committed");
}

static enum end seed_from(struct seeder *s, const char *url)
{
    const struct seeder_cfg *c = &s->cfg;
    bool any = is_of_option(s, url);
    struct peer_cfg cfg = {.url = url,
                           .authorization = c->authorization,
                           .ca_file = c->ca_file,
                           .allowed = any ? NULL : is_allowed,
                           .allowed_arg = c->cidrs,
                           .n_connections = c->n_connections,
                           .rate_max = c->rate_max,
                           .stall_us = c->stall_us};
    enum end end = FAILED;
    struct err e = {0};

    note_peer(s, url, NULL);
    if (open_peer(s, &cfg, &e) == 0) {
        end = ask_peer(s, url, &e);
        mtx_lock(&s->lock);
        s->info.nbytes_read += peer_nbytes_read(s->peer);
        mtx_unlock(&s->lock);
    }
    peer_close(s->peer);
    s->peer = NULL;
    if (end == FAILED && must_end(s))
        end_pass(s, 0);
    else if (end == FAILED)
        note_peer(s, url, &e);
    return end;
}

/* ---- turns ---- */

/* Waits for peers that were named meanwhile. What this server has committed itself since then is no
 * other update. */
static bool take_peers(struct seeder *s, uint64_t until_us)
{
    bool taken;

    mtx_lock(&s->lock);
    while (!seed_stopping(s) && s->next.urls == NULL && !clock_passed(until_us))
        (void)cnd_wait(&s->changed, &s->lock, until_us);
    taken = s->next.urls != NULL;
    if (taken) {
        free(s->peers.urls);
        s->peers = s->next;
        s->next = (struct peers){0};
        s->serial = s->serial > s->peers.serial ? s->serial : s->peers.serial;
        s->awaited = s->peers.awaited;
    }
    mtx_unlock(&s->lock);
    return taken;
}

/* Each peer once, until one has a version; then that one again, which may have a newer one. */
static enum end turn(struct seeder *s)
{
    enum end end = FAILED;
    size_t i = s->round > 0 ? s->last : 0, n = s->round > 0 ? i + 1 : s->peers.n;

    for (; i < n && end == FAILED; i++) {
        while (other_is_open(s) && !is_overtaken(s) && !seed_stopping(s))
            seed_wait(s, OTHER_UPDATE_US);
        if (seed_stopping(s) || is_overtaken(s))
            break;
        s->last = i;
        end = seed_from(s, s->peers.urls[i]);
    }
    return end;
}

static void seed_end(struct seeder *s, enum seeder_state state)
{
    struct log_rec r;

    drop_session(s, "the seed has ended");
    mtx_lock(&s->lock);
    s->info.state = s->next.urls != NULL ? SEED_SEEDING : state;
    s->awaited = false;
    mtx_unlock(&s->lock);
    log_begin(&r, LOG_INFO, "weights.seed_end");
    log_str(&r, "state", seeder_state_name(state));
    log_event(&r);
}

/* Nobody is to wait for what may never come. */
static void give_up(struct seeder *s)
{
    end_pass(s, 0);
    mtx_lock(&s->lock);
    s->awaited = false;
    mtx_unlock(&s->lock);
}

static void seed(struct seeder *s)
{
    s->round = 0;
    while (!seed_stopping(s)) {
        enum end end = turn(s);

        if (end == TOOK && ++s->round < SEED_ROUNDS_MAX)
            continue;
        give_up(s);
        if (end != FAILED || s->round > 0)
            return seed_end(s, SEED_DONE);
        if (is_overtaken(s))
            return seed_end(s, SEED_ENDED);
        /* While another is open, the next turn waits. */
        (void)take_peers(s,
                         other_is_open(s) ? 0 : clock_after_us(SEED_RETRY_S * UINT64_C(1000000)));
    }
}

static void *seeder_main(void *arg)
{
    struct seeder *s = arg;

    (void)pthread_setname_np(pthread_self(), "seed");
    while (take_peers(s, CLOCK_NEVER))
        seed(s);
    drop_session(s, "the server is stopping");
    return NULL;
}

/* ---- the owner's and others ---- */

int seeder_check_url(const char *url, const char *field, struct err *e)
{
    const char *host = strstr(url, "://");

    if (strlen(url) > SEED_URL_MAX || host == NULL || strchr(host + 3, '/') != NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.*s' is not http://HOST:PORT or https://HOST:PORT, without a path",
                       utf8_cut(url, 200), url);
    return http_target_check(url, field, e);
}

int seeder_begin(struct seeder *s, const char *const *peers, size_t n, const uint64_t *if_serial,
                 struct err *e)
{
    char field[ERR_FIELD_MAX];
    bool of_option = peers == NULL;
    struct store_info served;
    struct peers next, old;
    int rc = 0;

    if (of_option) {
        peers = s->cfg.peers;
        n = s->cfg.n_peers;
    }
    if (n == 0)
        return err_set(e, ERR_BAD_REQUEST, "/peers", "name peers: there is no --seed");
    for (size_t i = 0; i < n && !of_option; i++) {
        (void)snprintf(field, sizeof field, "/peers/%zu", i);
        if (seeder_check_url(peers[i], field, e) != 0)
            return -1;
        if (!is_of_option(s, peers[i]) && s->cfg.cidrs->n == 0)
            return err_set(
                e, ERR_FORBIDDEN, field,
                "'%.*s' is not one of --seed, and there is no --seed-cidr that says where "
                "others may be",
                utf8_cut(peers[i], 200), peers[i]);
    }
    store_info(s->cfg.store, &served);
    if (if_serial != NULL && *if_serial != served.serial)
        return err_set(e, ERR_CONFLICT, "/if_serial", "serial %llu is served, not %llu",
                       (unsigned long long)served.serial, (unsigned long long)*if_serial);
    next = (struct peers){.urls = calloc(n, sizeof *next.urls),
                          .n = n,
                          .serial = served.serial,
                          .awaited = !of_option || served.state == STORE_UNSYNCED};
    if (next.urls == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for peers");
    for (size_t i = 0; i < n; i++)
        (void)snprintf(next.urls[i], sizeof next.urls[i], "%s", peers[i]);
    mtx_lock(&s->lock);
    if (seed_stopping(s)) {
        rc = err_set(e, ERR_DRAINING, "", "the server is stopping");
    } else {
        s->awaited = s->awaited || next.awaited;
        old = s->next;
        s->next = next;
        next = old;
        s->info.state = SEED_SEEDING;
        cnd_broadcast(&s->changed);
    }
    mtx_unlock(&s->lock);
    free(next.urls);
    return rc;
}

void seeder_info(struct seeder *s, struct seeder_info *out)
{
    mtx_lock(&s->lock);
    *out = s->info;
    mtx_unlock(&s->lock);
}

int seeder_pass(struct seeder *s, struct pass **out, struct err *e)
{
    bool waits;

    *out = NULL;
    if (s == NULL)
        return 0;
    mtx_lock(&s->lock);
    if (s->pass != NULL)
        *out = pass_ref(s->pass);
    waits = s->awaited && store_has_host(s->cfg.store);
    mtx_unlock(&s->lock);
    if (*out == NULL && waits)
        return err_set(e, ERR_SEEDING, "",
                       "a version of a peer is to be read, and is passed on when that has begun");
    return 0;
}

bool seeder_is_seeding(struct seeder *s)
{
    struct seeder_info info = {.state = SEED_NONE};

    if (s != NULL)
        seeder_info(s, &info);
    return info.state == SEED_SEEDING;
}

int seeder_new(struct seeder **out, const struct seeder_cfg *cfg, struct err *e)
{
    struct seeder *s;

    if (http_init(e) != 0)
        return -1;
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for seeds");
    s->cfg = *cfg;
    mtx_init(&s->lock, MTX_LEAF);
    cnd_init(&s->changed);
    s->runs = pthread_create(&s->thread, NULL, seeder_main, s) == 0;
    if (!s->runs) {
        seeder_free(s);
        return err_set(e, ERR_INTERNAL, "", "no thread for seeds");
    }
    *out = s;
    return 0;
}

void seeder_stop(struct seeder *s)
{
    if (!s->runs)
        return;
    mtx_lock(&s->lock);
    atomic_store_explicit(&s->stopping, true, memory_order_relaxed);
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL);
    s->runs = false;
}

void seeder_free(struct seeder *s)
{
    if (s == NULL)
        return;
    seeder_stop(s);
    cnd_fini(&s->changed);
    mtx_fini(&s->lock);
    free(s->next.urls);
    free(s->peers.urls);
    free(s);
}

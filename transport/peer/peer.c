/* All of a run's bytes come in one piece of work (lanes.h): each connection takes the next range
 * until none is left. One more lane renews the lease. */
#include "transport/peer/peer.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/json_reader.h"
#include "base/utf8.h"
#include "transport/lanes.h"
#include "transport/peer/pass.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEASES_PATH "/v1/weights/leases"
#define FILE_PATH   "/v1/weights/file?lease_id="

enum {
    STATUS_OK = 200,
    ANSWER_NBYTES_MAX = 64 << 10, /* that is no file */
    PIECE_MIN = 64 << 10,
    PIECES_EACH = 32, /* ranges of each connection, at least: all end together, and tensors are
                         whole one after the other, for those who read from here */
    PIECES_S = 10,    /* ranges a second, where the rate is limited */
    CLOSE_US = 1000000,
    RENEW_US = PEER_LEASE_S / 3 * 1000000
};

struct peer {
    struct peer_cfg cfg;
    struct lanes *lanes;
    struct peer_version version;
    struct safetensors file;
    char path[sizeof FILE_PATH + PEER_TEXT_MAX];
    char etag[HTTP_VALUE_MAX];        /* "": not known yet */
    char renewal[PEER_TEXT_MAX + 64]; /* the body */
    uint64_t renew_us;                /* when it is due */
    atomic_uint_fast64_t nbytes_read; /* relaxed: a gauge */

    /* The loop's thread has these while a request runs, the caller otherwise. */
    struct lane_ask ask;
    struct buf answer;
    size_t answer_max;
    int status;
    bool asked;
};

/* ---- one request ---- */

static enum lane_next one_next(void *arg, unsigned lane, struct lane_ask *out)
{
    struct peer *p = arg;
    bool first = !p->asked;

    (void)lane;
    p->asked = true;
    *out = p->ask;
    return first ? LANE_ASKS : LANE_RESTS;
}

/* Every range is of the same file. */
static int check_file(struct peer *p, const struct http_head *h, const struct lane_ask *ask,
                      struct err *e)
{
    uint64_t total;

    if (h->status == 410)
        return err_set(e, ERR_UNREADABLE, "", "the peer has ended the lease (410)");
    if (lanes_check_range(h, ask, &total, e) != 0 || lanes_check_encoding(h, e) != 0)
        return -1;
    if (p->etag[0] == '\0')
        memcpy(p->etag, h->etag, sizeof p->etag);
    if (total == p->version.nbytes && p->etag[0] != '\0' && strcmp(p->etag, h->etag) == 0)
        return 0;
    return err_set(e, ERR_UNREADABLE, "",
                   "the peer answered with %llu bytes of the file %.*s, and leased %llu of %.*s",
                   (unsigned long long)total, utf8_cut(h->etag, 80), h->etag,
                   (unsigned long long)p->version.nbytes, utf8_cut(p->etag, 80), p->etag);
}

static int one_head(void *arg, unsigned lane, const struct http_head *h, struct err *e)
{
    struct peer *p = arg;

    (void)lane;
    p->status = h->status;
    return p->ask.to != 0 ? check_file(p, h, &p->ask, e) : lanes_check_encoding(h, e);
}

static int one_data(void *arg, unsigned lane, const void *data, size_t len, struct err *e)
{
    struct peer *p = arg;

    (void)lane;
    if (len > p->answer_max - p->answer.len)
        return err_set(e, ERR_UNREADABLE, "", "the peer sent more than %zu bytes", p->answer_max);
    buf_append(&p->answer, data, len);
    return p->answer.failed ? err_set(e, ERR_NO_MEMORY, "", "no memory for an answer") : 0;
}

static int one_whole(void *arg, unsigned lane, struct err *e)
{
    struct peer *p = arg;

    (void)lane;
    if (p->ask.to == 0 || p->answer.len == p->answer_max)
        return 0;
    return err_set(e, ERR_UNREADABLE, "", "the peer sent %zu of %zu bytes", p->answer.len,
                   p->answer_max);
}

/* The answer is in p->answer, behind what was there. */
static int peer_ask(struct peer *p, const struct lane_ask *ask, const struct progress *progress,
                    struct err *e)
{
    struct lanes_work w = {.n_lanes = 1,
                           .next = one_next,
                           .head = one_head,
                           .data = one_data,
                           .whole = one_whole,
                           .arg = p};

    p->ask = *ask;
    p->answer_max = ask->to != 0 ? p->answer.len + (size_t)(ask->to - ask->from)
                                 : ANSWER_NBYTES_MAX;
    p->asked = false;
    return lanes_run(p->lanes, &w, progress, NULL, e);
}

/* ---- the lease ---- */

static bool read_version(struct peer_version *v, const char *text, size_t len)
{
    const struct {
        const char *key;
        char *out;
        size_t cap;
    } texts[] = {{"lease_id", v->lease_id, sizeof v->lease_id},
                 {"boot_id", v->boot_id, sizeof v->boot_id},
                 {"plan_digest", v->plan_digest, sizeof v->plan_digest},
                 {"digest", v->digest, sizeof v->digest},
                 {"weight_version", v->label, sizeof v->label}};
    const size_t n_texts = sizeof texts / sizeof texts[0];
    struct json_reader r;
    char key[PEER_TEXT_MAX];
    uint32_t n = 0;

    json_reader_init(&r, text, len);
    (void)json_reader_open(&r, '{');
    while (json_reader_next(&r, '}', &n)) {
        size_t i = 0;

        if (!json_reader_key(&r, key, sizeof key))
            break;
        while (i < n_texts && strcmp(key, texts[i].key) != 0)
            i++;
        if (i < n_texts)
            (void)json_reader_string(&r, texts[i].out, texts[i].cap);
        else if (strcmp(key, "serial") == 0)
            (void)json_reader_u64(&r, &v->serial);
        else if (strcmp(key, "nbytes") == 0)
            (void)json_reader_u64(&r, &v->nbytes);
        else
            (void)json_reader_skip(&r, 8);
    }
    for (size_t i = 0; i < n_texts; i++)
        if (texts[i].out[0] == '\0')
            return false;
    return json_reader_end(&r) && v->nbytes > SAFETENSORS_PREFIX;
}

/* It becomes part of a path. */
static bool is_plain(const char *id)
{
    return id[strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")] ==
           '\0';
}

/* A code is one of the answer's strings; in its messages quotes are escaped. */
static bool is_code(const struct peer *p, const char *code)
{
    char text[PEER_TEXT_MAX];

    (void)snprintf(text, sizeof text, "\"%s\"", code);
    return p->answer.data != NULL && strstr(p->answer.data, text) != NULL;
}

static int take_lease(struct peer *p, const struct progress *progress, struct err *e)
{
    char body[64];
    struct lane_ask ask = {.method = "POST", .path = LEASES_PATH, .body = body};

    (void)snprintf(body, sizeof body, "{\"lease_s\": %d}", PEER_LEASE_S);
    p->renew_us = clock_after_us(RENEW_US);
    if (peer_ask(p, &ask, progress, e) != 0)
        return -1;
    if (p->status != STATUS_OK)
        return err_set(e, is_code(p, "seeding") ? ERR_SEEDING : ERR_UNREADABLE, "",
                       "the peer answered %d: %.*s", p->status,
                       utf8_cut(p->answer.data != NULL ? p->answer.data : "", 200),
                       p->answer.data != NULL ? p->answer.data : "");
    if (p->answer.data == NULL || !read_version(&p->version, p->answer.data, p->answer.len) ||
        !is_plain(p->version.lease_id)) {
        p->version.lease_id[0] = '\0';
        return err_set(e, ERR_UNREADABLE, "", "the peer's answer is no lease of a version");
    }
    (void)snprintf(p->path, sizeof p->path, FILE_PATH "%s", p->version.lease_id);
    (void)snprintf(p->renewal, sizeof p->renewal, "{\"lease_id\": \"%s\"}", p->version.lease_id);
    return 0;
}

int peer_open(struct peer **out, const struct peer_cfg *cfg, const struct progress *progress,
              struct err *e)
{
    struct lanes_place place = {
        .target = {.url = cfg->url, .authorization = cfg->authorization, .ca_file = cfg->ca_file},
        .allowed = cfg->allowed,
        .allowed_arg = cfg->allowed_arg};
    struct peer *p = calloc(1, sizeof *p);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a peer");
    p->cfg = *cfg;
    if (lanes_open(&p->lanes, &place, cfg->stall_us, e) != 0 || take_lease(p, progress, e) != 0) {
        peer_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

void peer_close(struct peer *p)
{
    struct progress progress = {.deadline_us = clock_after_us(CLOSE_US)};
    char path[sizeof LEASES_PATH + PEER_TEXT_MAX + 1];
    struct lane_ask ask = {.method = "DELETE", .path = path};
    struct err ignored = {0}; /* it ends by itself */

    if (p == NULL)
        return;
    (void)snprintf(path, sizeof path, LEASES_PATH "/%s", p->version.lease_id);
    buf_fini(&p->answer);
    if (p->version.lease_id[0] != '\0')
        (void)peer_ask(p, &ask, &progress, &ignored);
    lanes_close(p->lanes);
    buf_fini(&p->answer);
    safetensors_fini(&p->file);
    free(p);
}

const struct peer_version *peer_version(const struct peer *p)
{
    return &p->version;
}

const struct safetensors *peer_file(const struct peer *p)
{
    return &p->file;
}

uint64_t peer_nbytes_read(const struct peer *p)
{
    return atomic_load_explicit(&p->nbytes_read, memory_order_relaxed);
}

int peer_read_head(struct peer *p, const struct progress *progress, struct err *e)
{
    uint64_t nbytes = p->version.nbytes, head;
    struct lane_ask ask = {.method = "GET", .path = p->path};
    int rc;

    buf_fini(&p->answer);
    ask.to = SAFETENSORS_PREFIX; /* no more than the head: a tensor may not be there yet */
    if (peer_ask(p, &ask, progress, e) != 0 ||
        safetensors_head_nbytes(p->answer.data, p->answer.len, &head, e) != 0)
        return -1;
    if (head > nbytes)
        return err_set(e, ERR_UNREADABLE, "", "the head is longer than the file");
    ask.from = ask.to;
    ask.to = head;
    ask.etag = p->etag;
    if (head > ask.from && peer_ask(p, &ask, progress, e) != 0)
        return -1;
    rc = safetensors_parse(&p->file, p->answer.data, head, nbytes, e);
    buf_fini(&p->answer);
    return rc;
}

/* ---- tensors ---- */

struct extent {
    uint64_t at, end; /* of the file */
};

struct peer_lane {
    struct lane_ask ask; /* to 0: the renewal */
    uint64_t at;
};

struct peer_source {
    struct source source; /* first */
    struct peer *peer;
    struct tensor_list *list;
    struct pass *pass;     /* owned; or NULL */
    uint64_t *from;        /* owned; [n_tensors] where they are in the file */
    struct checksum *want; /* owned; [n_tensors], and so are the next three */
    struct checksum *sums; /* of the bytes that came */
    uint64_t *got;
    bool *wrong; /* it was read, and is read once more */
    bool again;

    /* Of a fill: the loop's thread has these. */
    struct peer_lane lanes[PEER_CONNECTIONS_MAX + 1];
    struct extent *extents; /* owned; what is still to be asked for is in [extent, n_extents) */
    uint32_t extent, n_extents;
    uint64_t piece, begun_us, nbytes_asked;
    uint32_t first, end;
    uint8_t *dst;
    struct progress *progress;
};

static const struct tensor_spec *tensor_of(const struct peer_source *s, uint32_t i)
{
    return &s->list->tensors[i];
}

static uint8_t *place_of(const struct peer_source *s, uint32_t i)
{
    return s->dst + (tensor_of(s, i)->offset - tensor_of(s, s->first)->offset);
}

/* The tensor that has the byte of the file; empty ones have none. */
static uint32_t tensor_at(const struct peer_source *s, uint64_t at)
{
    uint32_t first = s->first, end = s->end;

    while (first + 1 < end) {
        uint32_t middle = first + (end - first) / 2;

        if (s->from[middle] <= at)
            first = middle;
        else
            end = middle;
    }
    while (tensor_of(s, first)->nbytes == 0)
        first--;
    return first;
}

static void came(struct peer_source *s, const uint8_t *at, uint64_t nbytes)
{
    (void)atomic_fetch_add_explicit(&s->progress->nbytes_done, nbytes, memory_order_relaxed);
    progress_came(s->progress, at, nbytes);
}

static int check_tensor(struct peer_source *s, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = tensor_of(s, i);

    if (checksum_equal(s->sums[i], s->want[i])) {
        pass_put(s->pass, t->name, i, place_of(s, i));
        return 0;
    }
    if (s->wrong[i])
        return err_set(e, ERR_CHECKSUM, "",
                       "the peer sent tensor '%.*s' with another checksum than it lists, twice",
                       utf8_cut_name(t->name), t->name);
    s->wrong[i] = true;
    s->got[i] = 0;
    s->sums[i] = (struct checksum){0, 0};
    (void)atomic_fetch_sub_explicit(&s->progress->nbytes_done, t->nbytes, memory_order_relaxed);
    s->extents[s->n_extents++] = (struct extent){s->from[i], s->from[i] + t->nbytes};
    return 0;
}

static int land(struct peer_source *s, uint64_t at, const uint8_t *data, uint64_t len,
                struct err *e)
{
    (void)atomic_fetch_add_explicit(&s->peer->nbytes_read, len, memory_order_relaxed);
    while (len > 0) {
        uint32_t i = tensor_at(s, at);
        uint64_t skip = at - s->from[i], left = tensor_of(s, i)->nbytes - skip;
        uint64_t n = len < left ? len : left;
        uint8_t *to = place_of(s, i) + skip;

        memcpy(to, data, n);
        checksum_add(&s->sums[i], to, n, skip);
        s->got[i] += n;
        came(s, to, n);
        if (s->got[i] == tensor_of(s, i)->nbytes && check_tensor(s, i, e) != 0)
            return -1;
        at += n;
        data += n;
        len -= n;
    }
    return 0;
}

/* Would more be asked for than the rate allows until now? */
static bool is_early(const struct peer_source *s)
{
    double elapsed_s = (double)(clock_now_us() - s->begun_us) / 1e6;

    return s->peer->cfg.rate_max > 0 &&
           (double)s->nbytes_asked > elapsed_s * (double)s->peer->cfg.rate_max;
}

static enum lane_next fill_next(void *arg, unsigned lane, struct lane_ask *out)
{
    struct peer_source *s = arg;
    struct peer_lane *l = &s->lanes[lane];
    struct peer *p = s->peer;
    struct extent *x;

    if (lane == p->cfg.n_connections) {
        if (!clock_passed(p->renew_us))
            return LANE_RESTS;
        p->renew_us = clock_after_us(RENEW_US);
        l->ask = (struct lane_ask){
            .method = "POST", .path = LEASES_PATH "/renew", .body = p->renewal};
        *out = l->ask;
        return LANE_ASKS;
    }
    if (s->extent == s->n_extents || is_early(s))
        return s->extent == s->n_extents ? LANE_RESTS : LANE_WAITS;
    x = &s->extents[s->extent];
    l->ask = (struct lane_ask){.method = "GET", .path = p->path, .etag = p->etag, .from = x->at};
    l->ask.to = x->end - x->at < s->piece ? x->end : x->at + s->piece;
    l->at = x->at;
    x->at = l->ask.to;
    s->nbytes_asked += l->ask.to - l->at;
    s->extent += x->at == x->end;
    *out = l->ask;
    return LANE_ASKS;
}

static int fill_head(void *arg, unsigned lane, const struct http_head *h, struct err *e)
{
    struct peer_source *s = arg;

    if (s->lanes[lane].ask.to != 0)
        return check_file(s->peer, h, &s->lanes[lane].ask, e);
    return h->status == STATUS_OK
               ? 0
               : err_set(e, ERR_UNREADABLE, "", "the peer did not renew the lease (%d)", h->status);
}

static int fill_data(void *arg, unsigned lane, const void *data, size_t len, struct err *e)
{
    struct peer_source *s = arg;
    struct peer_lane *l = &s->lanes[lane];

    if (l->ask.to == 0)
        return 0;
    if (len > l->ask.to - l->at)
        return err_set(e, ERR_UNREADABLE, "", "the peer sent more than it was asked for");
    l->at += len;
    return land(s, l->at - len, data, len, e);
}

static int fill_whole(void *arg, unsigned lane, struct err *e)
{
    struct peer_source *s = arg;
    struct peer_lane *l = &s->lanes[lane];

    return l->ask.to == 0 || l->at == l->ask.to
               ? 0
               : err_set(e, ERR_UNREADABLE, "", "the peer sent less than it was asked for");
}

/* Has an earlier attempt brought it? */
static int look_there(struct peer_source *s, uint32_t i, bool *there, struct err *e)
{
    const struct tensor_spec *t = tensor_of(s, i);
    struct checksum sum = {0, 0};

    *there = false;
    for (uint64_t at = 0, n; s->again && at < t->nbytes; at += n) {
        n = t->nbytes - at < PEER_PIECE_MAX ? t->nbytes - at : PEER_PIECE_MAX;
        if (progress_check(s->progress, e) != 0)
            return -1;
        checksum_add(&sum, place_of(s, i) + at, n, at);
    }
    *there = s->again && checksum_equal(sum, s->want[i]);
    if (!*there)
        return 0;
    came(s, place_of(s, i), t->nbytes);
    pass_put(s->pass, t->name, i, place_of(s, i));
    return 0;
}

static int plan(struct peer_source *s, struct err *e)
{
    const struct peer_cfg *cfg = &s->peer->cfg;
    uint64_t total = 0;
    bool there;

    s->extent = s->n_extents = 0;
    for (uint32_t i = s->first; i < s->end; i++) {
        uint64_t from = s->from[i], nbytes = tensor_of(s, i)->nbytes;
        struct extent *last = s->n_extents > 0 ? &s->extents[s->n_extents - 1] : NULL;

        if (look_there(s, i, &there, e) != 0)
            return -1;
        if (nbytes == 0 || there)
            continue;
        total += nbytes;
        if (last != NULL && last->end == from)
            last->end += nbytes;
        else
            s->extents[s->n_extents++] = (struct extent){from, from + nbytes};
    }
    s->piece = total / ((uint64_t)cfg->n_connections * PIECES_EACH);
    s->piece = s->piece < PEER_PIECE_MAX ? s->piece : PEER_PIECE_MAX;
    if (cfg->rate_max > 0 && s->piece > cfg->rate_max / PIECES_S)
        s->piece = cfg->rate_max / PIECES_S;
    s->piece = s->piece > PIECE_MIN ? s->piece : PIECE_MIN;
    s->begun_us = clock_now_us();
    s->nbytes_asked = 0;
    return 0;
}

static int peer_fill(struct source *source, const struct tensor_list *list, uint32_t first,
                     uint32_t n, void *dst, struct progress *p, struct err *e)
{
    struct peer_source *s = (struct peer_source *)source;
    struct lanes_work w = {.n_lanes = s->peer->cfg.n_connections + 1,
                           .next = fill_next,
                           .head = fill_head,
                           .data = fill_data,
                           .whole = fill_whole,
                           .arg = s};
    int rc;

    s->first = first;
    s->end = first + n;
    s->dst = dst;
    s->progress = p;
    if (s->pass != NULL && n != list->n_tensors)
        pass_end(s->pass, 0); /* the memory is used for other tensors before the commit */
    rc = plan(s, e);
    if (rc == 0 && s->n_extents > 0)
        rc = lanes_run(s->peer->lanes, &w, p, NULL, e);
    pass_take_back(s->pass);
    return rc;
}

static void peer_source_close(struct source *source)
{
    struct peer_source *s = (struct peer_source *)source;

    if (s == NULL)
        return;
    tensor_list_unref(s->list);
    pass_unref(s->pass);
    free(s->from);
    free(s->want);
    free(s->sums);
    free(s->got);
    free(s->wrong);
    free(s->extents);
    free(s);
}

static const struct source_ops peer_ops = {
    .name = "peer", .fill = peer_fill, .close = peer_source_close};

int peer_source(struct source **out, struct peer *p, struct tensor_list *list, const uint32_t *at,
                bool again, struct pass *pass, struct err *e)
{
    struct peer_source *s = calloc(1, sizeof *s);
    uint32_t n = list->n_tensors;

    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a source");
    s->source.ops = &peer_ops;
    s->peer = p;
    s->list = tensor_list_ref(list);
    s->again = again;
    s->pass = pass != NULL ? pass_ref(pass) : NULL;
    s->from = calloc(n, sizeof *s->from);
    s->want = calloc(n, sizeof *s->want);
    s->sums = calloc(n, sizeof *s->sums);
    s->got = calloc(n, sizeof *s->got);
    s->wrong = calloc(n, sizeof *s->wrong);
    s->extents = calloc(2 * (size_t)n, sizeof *s->extents); /* each may be asked for twice */
    if (s->from == NULL || s->want == NULL || s->sums == NULL || s->got == NULL ||
        s->wrong == NULL || s->extents == NULL) {
        peer_source_close(&s->source);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a source of %u tensors", (unsigned)n);
    }
    for (uint32_t i = 0; i < n; i++) {
        s->from[i] = p->file.nbytes_head + p->file.tensor_list->tensors[at[i]].offset;
        s->want[i] = p->file.checksums[at[i]];
    }
    *out = &s->source;
    return 0;
}

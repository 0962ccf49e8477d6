/* POST /v1/weights/check: the SHA-256 of each served tensor, either returned or compared with a
 * caller's or with those of a snapshot. The snapshot is the only state here.
 *
 * Everything is read from one pinned version, a piece at a time, and hashed on the handler's own
 * thread. Only one check runs at a time, so that checks cannot occupy all threads of the control
 * executor. It ends early if its client disconnects or the server drains. */
#include "base/hex.h"
#include "base/json_parse.h"
#include "control/life.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/body_scan.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/rows/weights_request.h"
#include "weights/source.h"
#include "weights/store/store.h"

#include <nettle/sha2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SUM_LEN = 2 * SHA256_DIGEST_SIZE };

static json_t *snapshot; /* owned: sums by name; NULL: no snapshot yet; guarded by check_running */
static atomic_flag check_running = ATOMIC_FLAG_INIT; /* acquire, release: one check at a time */

struct check {
    struct app *app;
    struct http_request *x;
    const json_t
        *baseline; /* borrowed from the body, or the snapshot; NULL: the sums are returned */
    const json_t
        *skip; /* borrowed: tensors whose names contain one of these are skipped; NULL: none */
    bool is_snapshot, must_match;
    const struct version *v; /* pinned; NULL: nothing is served, so nothing can be equal */
    char *piece;             /* owned; NULL when the host has the bytes */
    uint32_t n_checked, n_skipped;
    json_t *found; /* owned: sums by name, or an array of the names that differ */
};

static int check_cancelled(const struct check *c, struct err *e)
{
    if (http_request_disconnected(c->x))
        return err_set(e, ERR_GONE, "", "the client disconnected before the check was complete");
    if (life_state(c->app->life) == LIFE_DRAINING)
        return err_set(e, ERR_DRAINING, "", "the server is draining");
    return 0;
}

static int hash_tensor(struct sha256_ctx *sha, const struct check *c, uint32_t i, struct err *e)
{
    struct store *s = c->app->weights->store;
    uint64_t nbytes = store_model_spec(s)->tensor_list->tensors[i].nbytes, n;

    for (uint64_t at = 0; at < nbytes; at += n) {
        const char *bytes = c->piece;

        n = nbytes - at < SOURCE_PIECE_NBYTES ? nbytes - at : SOURCE_PIECE_NBYTES;
        if (check_cancelled(c, e) != 0)
            return -1;
        if (c->piece == NULL)
            bytes = (const char *)c->v->views[i].data + at;
        else if (store_read(s, c->v, i, at, n, c->piece, e) != 0)
            return -1;
        sha256_update(sha, n, (const uint8_t *)bytes);
    }
    return 0;
}

static int sum_tensor(char out[SUM_LEN + 1], const struct check *c, uint32_t i, struct err *e)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx sha;

    sha256_init(&sha);
    if (hash_tensor(&sha, c, i, e) != 0)
        return -1;
    sha256_digest(&sha, sizeof digest, digest);
    hex_text(out, digest, sizeof digest);
    return 0;
}

static int check_refuse_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the answer");
}

/* @sum  "" if nothing is served */
static int record_sum(struct check *c, const char *name, const char *sum, struct err *e)
{
    const char *expected;
    int rc = 0;

    if (c->baseline == NULL) {
        rc = json_object_set_new(c->found, name, json_string(sum));
    } else {
        expected = json_string_value(json_object_get(c->baseline, name));
        if (expected == NULL || strcasecmp(expected, sum) != 0)
            rc = json_array_append_new(c->found, json_string(name));
    }
    return rc == 0 ? 0 : check_refuse_memory(e);
}

static bool skips(const struct check *c, const char *name)
{
    const json_t *part;
    size_t i;

    json_array_foreach(c->skip, i,
                       part) if (strstr(name, json_string_value(part)) != NULL) return true;
    return false;
}

static int check_served(struct check *c, struct err *e)
{
    const struct tensor_list *tensor_list = store_model_spec(c->app->weights->store)->tensor_list;
    char sum[SUM_LEN + 1] = "";

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        if (skips(c, tensor_list->tensors[i].name)) {
            c->n_skipped++;
            continue;
        }
        c->n_checked++;
        if (c->v != NULL && sum_tensor(sum, c, i, e) != 0)
            return -1;
        if (record_sum(c, tensor_list->tensors[i].name, sum, e) != 0)
            return -1;
    }
    return 0;
}

/* Names of the baseline that the model does not have are mismatches. */
static int check_unknown_names(struct check *c, struct err *e)
{
    const struct tensor_list *tensor_list = store_model_spec(c->app->weights->store)->tensor_list;
    const char *name;
    json_t *value;

    json_object_foreach(json_mutable(c->baseline), name, value)
    {
        if (tensor_list_find(tensor_list, name) == TENSOR_LIST_NO_TENSOR && !skips(c, name) &&
            json_array_append_new(c->found, json_string(name)) != 0)
            return check_refuse_memory(e);
    }
    return 0;
}

static int check_baseline(const json_t *baseline, struct err *e)
{
    const json_t *value;
    const char *name;

    json_object_foreach(json_mutable(baseline), name, value)
    {
        const char *sum = json_string_value(value);
        char field[ERR_FIELD_MAX] = "/baseline";

        if (sum != NULL && strlen(sum) == SUM_LEN &&
            strspn(sum, "0123456789abcdefABCDEF") == SUM_LEN)
            continue;
        scan_escape(field, sizeof field, name, strlen(name));
        return err_set(e, ERR_BAD_REQUEST, field, "the SHA-256 of '%.160s' is not %d hex digits",
                       name, SUM_LEN);
    }
    return 0;
}

static int skip_parse(const json_t **out, const json_t *body, struct err *e)
{
    const json_t *skip = body_given(body, "skip"), *part;
    size_t i;

    if (skip == NULL)
        return 0;
    if (!json_is_array(skip) || json_array_size(skip) > CHECK_SKIP_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/skip", "skip is not an array of at most %d strings",
                       CHECK_SKIP_MAX);
    json_array_foreach(skip, i, part)
    {
        if (!json_is_string(part))
            return err_set(e, ERR_BAD_REQUEST, "/skip", "an element of skip is not a string");
    }
    *out = skip;
    return 0;
}

static int check_parse(struct check *c, const json_t *body, struct err *e)
{
    struct weights_check_request req = {0};

    if (member_read(&req, weights_check_members, body, "", e) != 0 ||
        skip_parse(&c->skip, body, e) != 0)
        return -1;
    c->must_match = req.must_match;
    c->is_snapshot = req.action == CHECK_SNAPSHOT;
    if (req.action != CHECK_COMPARE && req.baseline != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/baseline", "baseline is for action compare");
    if (req.action != CHECK_COMPARE)
        return 0;
    c->baseline = req.baseline != NULL ? req.baseline : snapshot;
    if (c->baseline == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/baseline",
                       "baseline is missing, and no snapshot was taken: send the sums to compare "
                       "with, or action snapshot first");
    return check_baseline(req.baseline, e);
}

/* Without weights, a comparison reports every tensor as different; weights that are asleep
 * cannot be read, which is an error. */
static int pin_version(struct check *c, struct err *e)
{
    struct store *s = c->app->weights->store;
    struct store_info info;

    if (store_pin(s, &c->v, e) != 0) {
        store_info(s, &info);
        if (c->baseline == NULL || (info.state != STORE_UNSYNCED && info.state != STORE_DROPPED))
            return -1;
        err_clear(e);
        return 0;
    }
    if (c->v->views != NULL)
        return 0;
    c->piece = malloc(SOURCE_PIECE_NBYTES);
    return c->piece != NULL ? 0 : check_refuse_memory(e);
}

static json_t *check_answer_json(const struct check *c)
{
    json_t *label = c->v != NULL ? json_string(c->v->label) : json_null();
    json_t *serial = c->v != NULL ? json_integer((json_int_t)c->v->serial) : json_null();

    if (c->is_snapshot)
        return json_pack("{s:s, s:o, s:o, s:I}", "algorithm", "sha256", "weight_version", label,
                         "serial", serial, "n_tensors", (json_int_t)json_object_size(c->found));
    if (c->baseline == NULL)
        return json_pack("{s:s, s:o, s:o, s:O}", "algorithm", "sha256", "weight_version", label,
                         "serial", serial, "checksums", c->found);
    return json_pack("{s:s, s:o, s:o, s:b, s:O, s:I, s:I}", "algorithm", "sha256", "weight_version",
                     label, "serial", serial, "match", json_array_size(c->found) == 0, "mismatches",
                     c->found, "n_compared", (json_int_t)c->n_checked, "n_skipped",
                     (json_int_t)c->n_skipped);
}

static int refuse_mismatch(const struct check *c, struct err *e)
{
    size_t n = json_array_size(c->found);
    const char *first = json_string_value(json_array_get(c->found, 0));

    return err_set(e, ERR_MISMATCH, "", "%zu tensors differ from those of the %s: '%.160s'%s", n,
                   c->baseline == snapshot ? "snapshot" : "baseline", first,
                   n > 1 ? " and others" : "");
}

static void keep_snapshot(struct check *c)
{
    json_decref(snapshot);
    snapshot = json_incref(c->found);
}

static int check(json_t **reply, struct check *c, const json_t *body, struct err *e)
{
    if (check_parse(c, body, e) != 0 || pin_version(c, e) != 0)
        return -1;
    c->found = c->baseline == NULL ? json_object() : json_array();
    if (c->found == NULL)
        return check_refuse_memory(e);
    if (check_served(c, e) != 0 || check_unknown_names(c, e) != 0)
        return -1;
    if (c->n_checked == 0)
        return err_set(e, ERR_BAD_REQUEST, "/skip",
                       "skip leaves out every tensor of the model: nothing would be checked");
    if (c->is_snapshot)
        keep_snapshot(c);
    if (c->must_match && json_is_array(c->found) && json_array_size(c->found) > 0)
        return refuse_mismatch(c, e);
    *reply = check_answer_json(c);
    return 0;
}

static int run_check(struct app *app, struct http_request *x, json_t **reply, struct err *e)
{
    struct check c = {.app = app, .x = x};
    json_auto_t *body = NULL;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = check(reply, &c, body, e);
    store_unpin(app->weights->store, c.v);
    free(c.piece);
    json_decref(c.found);
    return rc;
}

int handle_weights_check(struct app *app, struct http_request *x, struct err *e)
{
    json_t *reply = NULL;
    int rc;

    if (atomic_flag_test_and_set_explicit(&check_running, memory_order_acquire))
        return err_set(e, ERR_CONFLICT, "",
                       "another check of the weights is running: retry when it has ended");
    rc = run_check(app, x, &reply, e);
    atomic_flag_clear_explicit(&check_running, memory_order_release);
    if (rc == 0)
        reply_json(x, 200, reply);
    return rc;
}

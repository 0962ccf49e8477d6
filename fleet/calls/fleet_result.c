/* Results in terms of our client's errors: what an engine replied, or that it did not. */
#include "fleet/calls/fleet_result.h"

#include "fleet/calls/fleet_priv.h"
#include "fleet/members/upstreams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fleet_result_fini(struct fleet_result *result)
{
    upstream_unref(result->upstream);
    free(result->text);
    *result = (struct fleet_result){0};
}

void fleet_results_fini(struct fleet_results *results)
{
    for (size_t i = 0; results->list != NULL && i < results->n; i++)
        fleet_result_fini(&results->list[i]);
    free(results->list);
    *results = (struct fleet_results){0};
}

/* A 403 concerns our key, unless it names a member of the request, for instance a path: then it
 * concerns our client's request. */
static bool rejects_our_key(int status, const char *field)
{
    return api_is_auth_error(status) && !(status == 403 && field[0] != '\0');
}

/* For servers whose error bodies have no code. A status that concerns this server and not our
 * client (a route that does not exist) is the upstream's failure. */
static enum err_code code_of_status(int status)
{
    switch (status) {
    case 400:
        return ERR_BAD_REQUEST;
    case 409:
        return ERR_CONFLICT;
    case 413:
        return ERR_TOO_LARGE;
    case 422:
        return ERR_MISMATCH;
    default:
        return ERR_UPSTREAM;
    }
}

static bool is_internal(enum err_code code)
{
    return code == ERR_INTERNAL || code == ERR_BAD_METHOD || code == ERR_MEDIA_TYPE ||
           code == ERR_EXPECTATION || code == ERR_GONE;
}

/* The code in a baton's error body, if it belongs to the status. */
static enum err_code code_of_body(enum err_code code, int status)
{
    if (code == ERR_NONE || err_http_status(code) != status)
        return ERR_NONE;
    return is_internal(code) ? ERR_UPSTREAM : code;
}

static void read_refusal(struct fleet_result *result, const char *name)
{
    struct api_refusal r;
    enum err_code code;
    bool refused;
    char words[FLEET_ERROR_TEXT_MAX] = "";

    api_read_refusal(&r, result->text, result->text_len);
    refused = rejects_our_key(result->status, r.field);
    code = refused ? ERR_UPSTREAM_KEY : code_of_body(r.code, result->status);
    if (result->text_len > 0)
        api_read_error(words, sizeof words, result->text, result->text_len);
    if (code == ERR_NONE)
        code = code_of_status(result->status);
    (void)err_set(&result->why, code, r.field, "%.100s %s%d: %s", name,
                  refused && result->status != 421 ? "refuses the key of this server: "
                                                   : "answered ",
                  result->status, words);
}

void fleet_result_read(struct fleet_result *result, const char *name, struct upstream_reply *a)
{
    result->status = a->status;
    result->text = a->text;
    result->text_len = a->text_len;
    a->text = NULL;
    if (a->good) {
        result->outcome = a->requested ? FLEET_OK : FLEET_SKIPPED;
    } else if (a->status >= 300) {
        result->outcome = FLEET_REFUSED;
        read_refusal(result, name);
    } else {
        result->outcome = a->sent ? FLEET_UNKNOWN : FLEET_UNSENT;
        (void)err_set(&result->why, a->why.code, "", "%.100s: %.320s%s", name, a->why.msg,
                      a->sent ? "; it may have been processed" : "");
    }
}

/* The engine gave out that id itself; our client never saw it. */
bool fleet_result_read_lost(struct fleet_result *result, const struct api_context *ctx,
                            const char *name)
{
    if (result->outcome != FLEET_REFUSED || ctx->update_id == NULL ||
        result->why.code != ERR_NOT_FOUND || strcmp(result->why.field, "/update_id") != 0)
        return false;
    result->outcome = FLEET_LOST;
    err_clear(&result->why);
    (void)err_set(&result->why, ERR_UPSTREAM, "",
                  "%.100s was restarted during the update and has lost it: start the update again",
                  name);
    return true;
}

enum have_answer fleet_result_answer(const struct fleet_result *result)
{
    if (result_ok(result))
        return HAVE_GOOD;
    if (result->outcome == FLEET_REFUSED && result->status >= 500)
        return HAVE_BROKE;
    if (result->outcome == FLEET_UNSENT)
        return HAVE_UNSENT;
    return result->outcome == FLEET_UNKNOWN ? HAVE_LOST : HAVE_REFUSED;
}

bool fleet_result_may_have_run(const struct fleet_result *result)
{
    static const int early[] = {401, 403, 404, 405, 413, 415, 421};

    if (result->outcome == FLEET_SKIPPED || result->outcome == FLEET_UNSENT ||
        result->outcome == FLEET_LOST)
        return false;
    for (size_t i = 0; i < sizeof early / sizeof early[0]; i++)
        if (result->outcome == FLEET_REFUSED && result->status == early[i])
            return false;
    return true;
}

bool fleet_result_lacks_route(const struct fleet_result *result)
{
    return result->outcome == FLEET_REFUSED && (result->status == 404 || result->status == 405);
}

const struct fleet_result *fleet_results_cause(const struct fleet_results *results)
{
    const struct fleet_result *cause = NULL;

    for (size_t i = 0; i < results->n; i++) {
        if (results->list[i].outcome == FLEET_REFUSED)
            return &results->list[i];
        if (cause == NULL && !result_ok(&results->list[i]))
            cause = &results->list[i];
    }
    return cause;
}

uint64_t fleet_results_sum(const struct fleet_results *results, const char *member)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < results->n; i++)
        if (results->list[i].outcome == FLEET_OK)
            sum += api_read_count(results->list[i].text, results->list[i].text_len, member);
    return sum;
}

const struct fleet_result *fleet_result_of(const struct fleet_results *results,
                                           const struct upstream *upstream)
{
    for (size_t i = 0; i < results->n; i++)
        if (results->list[i].upstream == upstream)
            return &results->list[i];
    return NULL;
}

bool result_ok(const struct fleet_result *result)
{
    return result->outcome == FLEET_OK || result->outcome == FLEET_SKIPPED;
}

bool fleet_results_ok(const struct fleet_results *results, struct err *e)
{
    const struct fleet_result *cause = fleet_results_cause(results);

    if (cause == NULL)
        return true;
    *e = cause->why;
    return false;
}

void fleet_error_after_change(struct err *e)
{
    if (err_http_status(e->code) >= 500)
        return;
    e->code = ERR_UPSTREAM;
    e->field[0] = '\0';
}

bool fleet_results_done(const struct fleet_results *results, struct err *e)
{
    bool any = false;

    if (fleet_results_ok(results, e))
        return true;
    for (size_t i = 0; i < results->n; i++)
        any = any || results->list[i].outcome == FLEET_OK ||
              results->list[i].outcome == FLEET_UNKNOWN;
    if (any)
        fleet_error_after_change(e);
    return false;
}

/* What all dialects share: their names, the unknown members of requests, and helpers for
 * translations. */
#include "handlers/dialect.h"

#include "base/closest_match.h"
#include "base/json_parse.h"
#include "base/log.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    UNKNOWN_LOGGED_MAX = 64, /* names, in the life of the process */
    UNKNOWN_NAME_MAX = 96
};

static const char *const names[DIALECT_COUNT] = {
    [DIALECT_NATIVE] = "native", [DIALECT_VLLM] = "vllm",         [DIALECT_SKYRL] = "skyrl",
    [DIALECT_SGLANG] = "sglang", [DIALECT_PRIME_RL] = "prime-rl", [DIALECT_AREAL] = "areal"};

static _Atomic uint64_t n_unknown[DIALECT_COUNT]; /* for metrics only */

/* Hashes of what was logged; 0: free. Relaxed: each is read alone. */
static _Atomic uint64_t logged[UNKNOWN_LOGGED_MAX];

const char *dialect_name(enum route_dialect d)
{
    return names[d];
}

uint64_t dialect_n_unknown(enum route_dialect d)
{
    return atomic_load_explicit(&n_unknown[d], memory_order_relaxed);
}

/* The bits of a dialect and of the dialect whose routes it includes; or 0. The servers of SkyRL
 * and AReaL have vLLM's routes and some more. */
static unsigned bits_of(const char *word, size_t len)
{
    static const unsigned shared[DIALECT_COUNT] = {
        [DIALECT_SKYRL] = 1U << DIALECT_VLLM, [DIALECT_AREAL] = 1U << DIALECT_VLLM};

    for (unsigned d = DIALECT_NATIVE + 1; d < DIALECT_COUNT; d++)
        if (strlen(names[d]) == len && memcmp(names[d], word, len) == 0)
            return 1U << d | shared[d];
    return 0;
}

int dialects_parse(unsigned *out, const char *text, const char *field, struct err *e)
{
    unsigned bits = 1U << DIALECT_NATIVE;

    if (strcmp(text, "all") == 0) {
        *out = (1U << DIALECT_COUNT) - 1;
        return 0;
    }
    for (const char *at = text; strcmp(text, "none") != 0; at++) {
        size_t len = strcspn(at, ",");
        unsigned more = bits_of(at, len);

        if (more == 0)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "'%.*s' is not a dialect, expected all, none, or some of vllm, skyrl, "
                           "sglang, prime-rl, areal, with commas between them",
                           (int)(len < 32 ? len : 32), at);
        bits |= more;
        at += len;
        if (*at == '\0')
            break;
    }
    *out = bits;
    return 0;
}

/* FNV-1a, of a route and a name. Never 0. */
static uint64_t name_hash(const struct route *route, const char *at, const char *name)
{
    const char *texts[] = {at, name};
    uint64_t h = 14695981039346656037U ^ (uintptr_t)route;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (const char *c = texts[i];; c++) {
            h = (h ^ (unsigned char)*c) * 1099511628211U;
            if (*c == '\0')
                break;
        }
    return h != 0 ? h : 1;
}

/* Is it the first time? Clients choose names, so only a limited number is ever logged. */
static bool is_new_name(uint64_t hash)
{
    for (size_t i = 0; i < UNKNOWN_LOGGED_MAX; i++) {
        uint64_t found = 0;

        if (atomic_compare_exchange_strong_explicit(&logged[i], &found, hash, memory_order_relaxed,
                                                    memory_order_relaxed))
            return true;
        if (found == hash)
            return false;
    }
    return false;
}

static void note_unknown(const char *at, const char *name, const struct member *known,
                         unsigned flags, const struct http_request *x, const struct route *route)
{
    const char *list[MEMBER_NAMES_MAX], *near;
    char member[UNKNOWN_NAME_MAX], message[UNKNOWN_NAME_MAX * 3] = "it has no effect";
    struct log_rec r;

    (void)atomic_fetch_add_explicit(&n_unknown[route->dialect], 1, memory_order_relaxed);
    if (!is_new_name(name_hash(route, at, name)))
        return;
    member_names(list, known, flags);
    near = closest_match(name, list);
    (void)snprintf(member, sizeof member, "%s%s%s", at, at[0] != '\0' ? "/" : "", name);
    if (near != NULL)
        (void)snprintf(message, sizeof message, "it has no effect; did you mean '%.64s'?", near);
    log_begin(&r, LOG_WARN, "request.unknown_member");
    log_actor(&r, &x->actor);
    log_str(&r, "route", route->pattern);
    log_str(&r, "member", member);
    log_str(&r, "message", message);
    log_end(&r);
}

void dialect_note_unknown(const json_t *object, const char *at, const struct member *known,
                          unsigned flags, const struct http_request *x, const struct route *route)
{
    const char *name;
    json_t *value;

    json_object_foreach(json_mutable(object), name, value)
    {
        (void)value;
        if (member_find(known, name, flags) == NULL)
            note_unknown(at, name, known, flags, x, route);
    }
}

/* The translations are ours and tested; this catches a member that no handler reads. */
static int check_translated(const json_t *body, const struct route *route, struct err *e)
{
    const char *name;
    json_t *value;

    json_object_foreach(json_mutable(body), name, value)
    {
        if (member_find(route->translated_members, name, 0) == NULL)
            return err_set(e, ERR_INTERNAL, "", "translating %s made a member '%.64s'",
                           route->pattern, name);
    }
    return 0;
}

int dialect_request(json_t **body, const struct http_request *x, const struct route *route,
                    struct err *e)
{
    for (size_t i = 0; i < x->n_query; i++)
        if (member_find(route->query, x->query[i].name, M_QUERY) == NULL)
            note_unknown("", x->query[i].name, route->query, M_QUERY, x, route);
    if (route->translate_request == NULL)
        return 0;
    return route->translate_request(body, x, e) != 0 ? -1 : check_translated(*body, route, e);
}

static int set_dialect_member(json_t *body, const char *member, json_t *value, struct err *e)
{
    if (json_object_set_new(body, member, value) == 0)
        return 0;
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
}

int dialect_set(json_t *body, const char *place, json_t *value, struct err *e)
{
    const char *slash = strchr(place, '/');
    char outer[UNKNOWN_NAME_MAX];
    json_t *config;

    if (slash == NULL)
        return set_dialect_member(body, place, value, e);
    (void)snprintf(outer, sizeof outer, "%.*s", (int)(slash - place), place);
    if (strcmp(slash, "/0") == 0)
        return set_dialect_member(body, outer, json_pack("[o]", value), e);
    config = json_object_get(body, outer);
    if (config == NULL && set_dialect_member(body, outer, config = json_object(), e) != 0) {
        json_decref(value);
        return -1;
    }
    return set_dialect_member(config, slash + 1, value, e);
}

int dialect_translate(json_t **body, const json_t *from, const struct member *rows, unsigned flags,
                      struct err *e)
{
    json_t *made = json_object();
    int rc = made != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for the request");

    for (const struct member *m = rows; m->name != NULL && rc == 0; m++) {
        json_t *value = json_mutable(body_given(from, m->name));

        if (value == NULL || m->ours == NULL || (m->flags & flags) != flags)
            continue;
        rc = dialect_set(made, m->ours[0] != '\0' ? m->ours : m->name, json_incref(value), e);
    }
    if (rc != 0) {
        json_decref(made);
        return -1;
    }
    json_decref(*body);
    *body = made;
    return 0;
}

int dialect_request_plain(json_t **body, const struct http_request *x, struct err *e)
{
    const struct route *route = x->route;

    return dialect_translate(body, *body, route->members, 0, e);
}

/* The row whose native place the field is at or below; NULL: none.
 * @field  without its first '/'
 * @len    out: of the place */
static const struct member *row_of_place(const struct member *rows, const char *field, size_t *len)
{
    for (const struct member *m = rows; m != NULL && m->name != NULL; m++) {
        const char *ours = m->ours != NULL && m->ours[0] == '\0' ? m->name : m->ours;

        *len = ours != NULL ? strlen(ours) : 0;
        if (*len > 0 && strncmp(field, ours, *len) == 0 &&
            (field[*len] == '/' || field[*len] == '\0'))
            return m;
    }
    return NULL;
}

/* A message can begin with the name of the member, as those of handlers/body.h do. */
static void rename_in_message(char msg[ERR_MSG_MAX], const char *place, size_t len,
                              const char *name)
{
    const char *last = memrchr(place, '/', len), *ours = last != NULL ? last + 1 : place;
    char renamed[ERR_MSG_MAX + ERR_FIELD_MAX];

    len -= (size_t)(ours - place);
    if (strncmp(msg, ours, len) != 0 || msg[len] != ' ')
        return;
    (void)snprintf(renamed, sizeof renamed, "%s%s", name, msg + len);
    (void)snprintf(msg, ERR_MSG_MAX, "%.*s", ERR_MSG_MAX - 1, renamed);
}

void dialect_error(struct err *e, const struct route *route)
{
    const char *at = route->error_at != NULL ? route->error_at : "";
    const struct member *rows = route->error_members != NULL ? route->error_members
                                                             : route->members;
    const struct member *m;
    char place[2 * ERR_FIELD_MAX] = "", field[ERR_FIELD_MAX];
    size_t len;

    if (route->translated_members == NULL || e->field[0] != '/')
        return;
    (void)snprintf(field, sizeof field, "%s", e->field + 1);
    m = row_of_place(rows, field, &len);
    if (m != NULL) {
        (void)snprintf(place, sizeof place, "%s%s%s%s", at, m->name[0] != '\0' ? "/" : "", m->name,
                       field + len);
        rename_in_message(e->msg, field, len, m->name);
    } else {
        (void)snprintf(place, sizeof place, "%.*s", (int)strcspn(e->field + 1, "/"), e->field + 1);
        if (member_find(route->members, place, 0) != NULL ||
            member_find(route->query, place, M_QUERY) != NULL ||
            member_find(route->translated_members, place, 0) == NULL)
            return; /* as the client sent it */
        place[0] = '\0';
    }
    (void)snprintf(e->field, sizeof e->field, "%.*s", ERR_FIELD_MAX - 1,
                   strlen(place) < ERR_FIELD_MAX ? place : "");
}

int dialect_flag(bool *out, const struct http_request *x, const char *member, struct err *e)
{
    static const char *const words[][2] = {{"false", "true"}, {"0", "1"}, {"no", "yes"},
                                           {"off", "on"},     {"n", "y"}, {"f", "t"}};
    const char *text = http_request_query(x, member);
    char field[ERR_FIELD_MAX];

    if (text == NULL)
        return 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (int yes = 0; yes <= 1; yes++) {
            if (strcasecmp(text, words[i][yes]) != 0)
                continue;
            *out = yes != 0;
            return 0;
        }
    }
    (void)snprintf(field, sizeof field, "/%s", member);
    return err_set(e, ERR_BAD_REQUEST, field, "%s is '%.60s', expected true or false", member,
                   text);
}

int dialect_check_action(const char *action, const char *reset, struct err *e)
{
    const char *const *ours = member_find(weights_check_members, "action", 0)->words;

    while (*ours != NULL && strcmp(*ours, action) != 0)
        ours++;
    return *ours != NULL ? 0
                         : err_set(e, ERR_BAD_REQUEST, "/action",
                                   "action '%.32s' is not one of checksum, compare, snapshot, %s",
                                   action, reset);
}

int dialect_replace(json_t **reply, json_t *value)
{
    if (value == NULL)
        return -1;
    json_decref(*reply);
    *reply = value;
    return 0;
}

int dialect_reply_empty(json_t **reply, const struct http_request *x)
{
    (void)x;
    json_decref(*reply);
    *reply = NULL;
    return 0;
}

int dialect_reply_null(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_null());
}

int dialect_reply_status(json_t **reply, const struct http_request *x)
{
    (void)x;
    return dialect_replace(reply, json_pack("{s:s}", "status", "ok"));
}

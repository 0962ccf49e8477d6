/* One value of one option: from text into the struct, checked. */
#include "server/config/config_table.h"

#include "base/closest_match.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct config_option config_options[CONFIG_N_OPTIONS] = {
#define X(kind, field, flag, arg, def, min, max, help)                                             \
    {KIND_##kind, flag, arg, def, help, min, max, offsetof(struct config, field)},
    CONFIG_OPTIONS(X)
#undef X
};

/* Options whose text is one of a few words. */
static const char *const engine_words[] = {"embedded", "none", NULL};
static const char *const access_words[] = {"off", "errors", "all", NULL};
static const char *const format_words[] = {"json", "text", NULL};
static const char *const level_words[] = {"debug", "info", "warn", "error", NULL};
static const char *const on_update_words[] = {"continue", "finish", "recompute", NULL};
static const char *const logprobs_words[] = {"raw_logprobs", "processed_logprobs", NULL};
static const char *const routed_words[] = {"on-request", "vllm", "prime-rl", NULL};
static const char *const generation_words[] = {"auto", "vllm", NULL};
static const char *const prove_words[] = {"none", "canary", "checksums", NULL};
static const char *const placement_words[] = {"replicated", "sharded", NULL};
static const char *const non_finite_words[] = {"refuse", "warn", "allow", NULL};
static const struct {
    const char *flag;
    const char *const *words;
} choices[] = {{"engine", engine_words},
               {"access-log", access_words},
               {"log-format", format_words},
               {"log-level", level_words},
               {"logprobs-mode", logprobs_words},
               {"on-update", on_update_words},
               {"non-finite", non_finite_words},
               {"return-routed-experts", routed_words},
               {"generation-config", generation_words},
               {"prove", prove_words},
               {"placement", placement_words}};

/* Strings live as long as the config: a list of blocks, freed together. */
struct text {
    struct text *next;
    char s[];
};

static const char *config_keep(struct config *c, const char *s)
{
    size_t len = strlen(s);
    struct text *t = malloc(sizeof *t + len + 1);

    if (t == NULL)
        return NULL;
    memcpy(t->s, s, len + 1);
    t->next = c->storage;
    c->storage = t;
    return t->s;
}

void config_fini(struct config *c)
{
    struct text *next;

    for (struct text *t = c->storage; t != NULL; t = next) {
        next = t->next;
        free(t);
    }
    free(c->origins);
    memset(c, 0, sizeof *c);
}

void config_member_name(char out[CONFIG_NAME_MAX], const struct config_option *o)
{
    (void)snprintf(out, CONFIG_NAME_MAX, "%s", o->flag);
    for (char *p = out; *p != '\0'; p++) {
        if (*p == '-')
            *p = '_';
    }
}

void config_env_name(char out[CONFIG_NAME_MAX], const struct config_option *o)
{
    (void)snprintf(out, CONFIG_NAME_MAX, "BATON_%s", o->flag);
    for (char *p = out; *p != '\0'; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
}

bool config_is_list(const struct config_option *o)
{
    return o->kind == KIND_LIST || o->kind == KIND_WORDS;
}

const struct config_option *config_find(const char *flag, size_t len)
{
    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        if (strlen(config_options[i].flag) == len && memcmp(config_options[i].flag, flag, len) == 0)
            return &config_options[i];
    }
    return NULL;
}

void config_place(char out[ERR_FIELD_MAX], const struct config_origins *from, uint32_t line,
                  const char *member)
{
    size_t len = (size_t)snprintf(out, ERR_FIELD_MAX, "%s", from->file);

    if (line > 0)
        len += (size_t)snprintf(out + len, ERR_FIELD_MAX - len, ":%" PRIu32, line);
    if (member != NULL)
        (void)snprintf(out + len, ERR_FIELD_MAX - len, ": %.*s", CONFIG_NAME_MAX, member);
}

void config_where(char out[ERR_FIELD_MAX], const struct config *c, const char *field)
{
    const struct config_option *o = NULL;
    char name[CONFIG_NAME_MAX];

    (void)snprintf(out, ERR_FIELD_MAX, "%s", field);
    if (strncmp(field, "--", 2) == 0)
        o = config_find(field + 2, strlen(field + 2));
    if (o == NULL)
        return;
    if (c->origins->layers[o - config_options] == LAYER_ENV) {
        config_env_name(name, o);
        (void)snprintf(out, ERR_FIELD_MAX, "%s", name);
    } else if (c->origins->layers[o - config_options] == LAYER_FILE) {
        config_member_name(name, o);
        config_place(out, c->origins, c->origins->lines[o - config_options], name);
    }
}

void config_near(char out[CONFIG_NEAR_MAX], const char *word, const char *prefix,
                 void (*name)(char out[CONFIG_NAME_MAX], const struct config_option *o))
{
    char names[CONFIG_N_OPTIONS][CONFIG_NAME_MAX];
    const char *candidates[CONFIG_N_OPTIONS + 1];
    const char *near;

    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        name(names[i], &config_options[i]);
        candidates[i] = names[i];
    }
    candidates[CONFIG_N_OPTIONS] = NULL;
    near = closest_match(word, candidates);
    out[0] = '\0';
    if (near != NULL)
        (void)snprintf(out, CONFIG_NEAR_MAX, ", did you mean %s%s?", prefix, near);
}

/* Digits only: no sign, no space, no other base. Returns what follows them, or NULL. */
static const char *digits_parse(const char *text, uint64_t *out)
{
    uint64_t v = 0;
    const char *p = text;

    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');

        if (v > (UINT64_MAX - digit) / 10)
            return NULL;
        v = v * 10 + digit;
    }
    if (p == text)
        return NULL;
    *out = v;
    return p;
}

static const char *unit_of(enum config_kind kind)
{
    return kind == KIND_MS ? " milliseconds" : kind == KIND_NBYTES ? " bytes" : "";
}

static int check_range(const struct config_option *o, const char *field, const char *text,
                       uint64_t v, struct err *e)
{
    if (v >= o->min && v <= o->max)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'%.60s' is out of range, expected %" PRIu64 " to %" PRIu64 "%s", text, o->min,
                   o->max, unit_of(o->kind));
}

static int set_number(uint64_t *out, const struct config_option *o, const char *field,
                      const char *text, struct err *e)
{
    uint64_t v = 0;
    const char *rest = digits_parse(text, &v);

    if (rest == NULL || *rest != '\0')
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.60s' is not a whole number%s, from %" PRIu64 " to %" PRIu64, text,
                       o->kind == KIND_MS ? " of milliseconds" : "", o->min, o->max);
    if (check_range(o, field, text, v, e) != 0)
        return -1;
    *out = v;
    return 0;
}

static int set_limit(uint64_t *out, const struct config_option *o, const char *field,
                     const char *text, struct err *e)
{
    if (strcmp(text, "-1") != 0)
        return set_number(out, o, field, text, e);
    *out = CONFIG_NO_LIMIT;
    return 0;
}

static int set_nbytes(uint64_t *out, const struct config_option *o, const char *field,
                      const char *text, struct err *e)
{
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
    uint64_t v = 0;
    const char *rest = digits_parse(text, &v);

    for (unsigned i = 0; rest != NULL && i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (strcmp(rest, suffixes[i]) != 0)
            continue;
        if (v > UINT64_MAX >> (10 * i))
            break;
        v <<= 10 * i;
        if (check_range(o, field, text, v, e) != 0)
            return -1;
        *out = v;
        return 0;
    }
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'%.60s' is not a number of bytes, such as 1048576, 512KiB, 64MiB, 2GiB or 1TiB",
                   text);
}

static int set_bool(bool *out, const char *field, const char *text, struct err *e)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return err_set(e, ERR_BAD_REQUEST, field, "'%.60s' is neither true nor false", text);
    *out = text[0] == 't';
    return 0;
}

static int config_value_check_choice(const struct config_option *o, const char *field,
                                     const char *text, struct err *e)
{
    char list[64] = "";
    size_t len = 0;

    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (strcmp(choices[i].flag, o->flag) != 0)
            continue;
        for (const char *const *w = choices[i].words; *w != NULL; w++) {
            if (strcmp(*w, text) == 0)
                return 0;
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", len > 0 ? ", " : "", *w);
        }
        return err_set(e, ERR_BAD_REQUEST, field, "'%.60s' is not one of %s", text, list);
    }
    return 0;
}

static int set_str(struct config *c, const char **out, const struct config_option *o,
                   const char *field, const char *text, struct err *e)
{
    const char *kept = NULL;

    if ((text[0] != '\0' || o->def[0] != '\0') && config_value_check_choice(o, field, text, e) != 0)
        return -1;
    if (text[0] == '\0' && o->def[0] != '\0')
        return err_set(e, ERR_BAD_REQUEST, field, "it is empty, %s is expected", o->arg);
    if (text[0] != '\0') {
        kept = config_keep(c, text);
        if (kept == NULL)
            return err_set(e, ERR_NO_MEMORY, field, "no memory for it");
    }
    *out = kept;
    return 0;
}

static int add_item(struct config *c, struct config_list *list, const char *field, const char *text,
                    struct err *e)
{
    const char *kept;

    if (text[0] == '\0')
        return err_set(e, ERR_BAD_REQUEST, field, "an entry is empty");
    if (list->n == CONFIG_LIST_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "more than %d entries", CONFIG_LIST_MAX);
    kept = config_keep(c, text);
    if (kept == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory for it");
    list->items[list->n++] = kept;
    return 0;
}

int config_set(struct config_loader *l, const struct config_option *o, enum config_layer layer,
               const char *field, const char *text, struct err *e)
{
    char *at = (char *)&l->config + o->offset;
    enum config_layer *given_by = &l->config.origins->layers[o - config_options];
    int rc = 0;

    if (strnlen(text, CONFIG_VALUE_LEN_MAX + 1) > CONFIG_VALUE_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "it is longer than %d bytes",
                       CONFIG_VALUE_LEN_MAX);
    if (config_is_list(o) && *given_by != layer)
        ((struct config_list *)(void *)at)->n = 0;
    *given_by = layer;
    switch (o->kind) {
    case KIND_STR:
        rc = set_str(&l->config, (const char **)(void *)at, o, field, text, e);
        break;
    case KIND_INT:
    case KIND_MS:
        rc = set_number((uint64_t *)(void *)at, o, field, text, e);
        break;
    case KIND_LIMIT:
        rc = set_limit((uint64_t *)(void *)at, o, field, text, e);
        break;
    case KIND_NBYTES:
        rc = set_nbytes((uint64_t *)(void *)at, o, field, text, e);
        break;
    case KIND_BOOL:
        rc = set_bool((bool *)(void *)at, field, text, e);
        break;
    case KIND_LIST:
    case KIND_WORDS:
        rc = add_item(&l->config, (struct config_list *)(void *)at, field, text, e);
        break;
    }
    return rc;
}

static int refuse_listen(const char *text, const char *option, const char *why, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, option,
                   "'%.120s': %s; expected ADDRESS:PORT, as 127.0.0.1:8700 or [::1]:8700, or "
                   "unix:PATH",
                   text, why);
}

/* Numeric address -> whether it is loopback; -1 when it is not numeric. */
static int address_is_loopback(const char *address, bool v6)
{
    struct in6_addr a6;
    struct in_addr a4;

    if (v6) {
        if (inet_pton(AF_INET6, address, &a6) != 1)
            return -1;
        if (IN6_IS_ADDR_V4MAPPED(&a6))
            return a6.s6_addr[12] == 127;
        return IN6_IS_ADDR_LOOPBACK(&a6) ? 1 : 0;
    }
    if (inet_pton(AF_INET, address, &a4) != 1)
        return -1;
    return (ntohl(a4.s_addr) >> 24) == 127;
}

static int parse_unix(struct config_listen *out, const char *text, const char *option,
                      struct err *e)
{
    struct config_listen l = {.loopback = true};
    const char *path = text + strlen("unix:");
    size_t len = strlen(path);

    if (len == 0)
        return refuse_listen(text, option, "it has no path", e);
    if (len > CONFIG_UNIX_PATH_MAX)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "the path of a unix socket has at most %d bytes, this one %zu",
                       CONFIG_UNIX_PATH_MAX, len);
    memcpy(l.path, path, len + 1);
    *out = l;
    return 0;
}

int config_listen_parse(struct config_listen *out, const char *text, const char *option,
                        struct err *e)
{
    struct config_listen l = {0};
    const char *colon = strrchr(text, ':'), *rest;
    bool v6 = text[0] == '[';
    size_t len;
    uint64_t port = 0;
    int is_loopback;

    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(out, text, option, e);
    if (colon == NULL || (v6 && (colon == text || colon[-1] != ']')))
        return refuse_listen(text, option, "it has no port", e);
    rest = digits_parse(colon + 1, &port);
    if (rest == NULL || *rest != '\0' || port > UINT16_MAX)
        return refuse_listen(text, option, "the port is not a number from 0 to 65535", e);
    len = (size_t)(colon - text) - (v6 ? 2 : 0);
    if (len == 0 || len >= sizeof l.address)
        return refuse_listen(text, option, "the address is empty or too long", e);
    memcpy(l.address, text + (v6 ? 1 : 0), len);
    if (!v6 && strcmp(l.address, "localhost") == 0)
        (void)snprintf(l.address, sizeof l.address, "127.0.0.1");
    is_loopback = address_is_loopback(l.address, v6);
    if (is_loopback < 0)
        return refuse_listen(text, option, "the address is neither numeric nor localhost", e);
    l.port = (uint16_t)port;
    l.loopback = is_loopback == 1;
    *out = l;
    return 0;
}

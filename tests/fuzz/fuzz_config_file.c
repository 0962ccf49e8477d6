/* The configuration file, and after its first NUL byte variables ("BATON_LISTEN=...") and flags
 * ("--listen=..."), each ended by a NUL. A refusal names the option that it is about; what is
 * accepted lies within the limits of the table, and a file that says only what differs from the
 * defaults says the same again. */
#include "tests/fuzz/fuzz.h"

#include "fleet/members/upstream_config.h"
#include "server/config/config_table.h"

#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ARGS_MAX = 8 };

static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_NONE};

struct input {
    char *argv[ARGS_MAX + 1], *env[ARGS_MAX + 1];
    int argc, n_env;
    char path[32];
};

static int file_of(const void *data, size_t len, char path[32])
{
    int fd = memfd_create("config", MFD_CLOEXEC);

    CHECK(fd >= 0);
    CHECK(write(fd, data, len) == (ssize_t)len);
    (void)snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

static const uint64_t *number_at(const struct config *c, const struct config_option *o)
{
    return (const uint64_t *)(const void *)((const char *)c + o->offset);
}

static const char *text_at(const struct config *c, const struct config_option *o)
{
    return *(const char *const *)(const void *)((const char *)c + o->offset);
}

static const struct config_list *list_at(const struct config *c, const struct config_option *o)
{
    return (const struct config_list *)(const void *)((const char *)c + o->offset);
}

static bool flag_at(const struct config *c, const struct config_option *o)
{
    return *(const bool *)((const char *)c + o->offset);
}

static void check_list(const struct config_list *l)
{
    CHECK(l->n <= CONFIG_LIST_MAX);
    for (size_t k = 0; k < l->n; k++)
        CHECK(l->items[k][0] != '\0' && strlen(l->items[k]) <= CONFIG_VALUE_LEN_MAX);
}

static void check_option(const struct config *c, const struct config_option *o)
{
    const char *text;

    switch (o->kind) {
    case KIND_STR:
        text = text_at(c, o);
        CHECK(text == NULL || (text[0] != '\0' && strlen(text) <= CONFIG_VALUE_LEN_MAX));
        CHECK(text != NULL || o->def[0] == '\0');
        break;
    case KIND_INT:
    case KIND_MS:
    case KIND_NBYTES:
        CHECK(*number_at(c, o) >= o->min && *number_at(c, o) <= o->max);
        break;
    case KIND_LIMIT:
        CHECK(*number_at(c, o) <= o->max || *number_at(c, o) == CONFIG_NO_LIMIT);
        break;
    case KIND_BOOL:
        break;
    case KIND_LIST:
    case KIND_WORDS:
        check_list(list_at(c, o));
        break;
    }
}

static bool same_list(const struct config_list *a, const struct config_list *b)
{
    bool same = a->n == b->n;

    for (size_t k = 0; same && k < a->n; k++)
        same = strcmp(a->items[k], b->items[k]) == 0;
    return same;
}

static bool same_option(const struct config *a, const struct config *b,
                        const struct config_option *o)
{
    switch (o->kind) {
    case KIND_STR:
        return text_at(a, o) == NULL || text_at(b, o) == NULL
                   ? text_at(a, o) == text_at(b, o)
                   : strcmp(text_at(a, o), text_at(b, o)) == 0;
    case KIND_BOOL:
        return flag_at(a, o) == flag_at(b, o);
    case KIND_LIST:
    case KIND_WORDS:
        return same_list(list_at(a, o), list_at(b, o));
    default:
        return *number_at(a, o) == *number_at(b, o);
    }
}

/* As a member of the file; NULL: what it is has no words in JSON. */
static json_t *said(const struct config *c, const struct config_option *o)
{
    const struct config_list *l = list_at(c, o);
    json_t *list;

    switch (o->kind) {
    case KIND_STR:
        return json_string(text_at(c, o) != NULL ? text_at(c, o) : "");
    case KIND_BOOL:
        return json_boolean(flag_at(c, o));
    case KIND_LIST:
    case KIND_WORDS:
        list = json_array();
        for (size_t k = 0; k < l->n; k++)
            if (json_array_append_new(list, json_string(l->items[k])) != 0) {
                json_decref(list);
                return NULL;
            }
        return list;
    default:
        return *number_at(c, o) <= INT64_MAX ? json_integer((json_int_t)*number_at(c, o)) : NULL;
    }
}

static bool differing(const struct config *c, json_t *out)
{
    struct config plain = {0};
    struct err e = {0};
    char name[CONFIG_NAME_MAX];
    bool all = true;

    CHECK(config_load(&plain, 0, NULL, NULL, &e) == 0);
    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        const struct config_option *o = &config_options[i];
        json_t *v;

        if (same_option(c, &plain, o))
            continue;
        v = said(c, o);
        config_member_name(name, o);
        all = v != NULL && json_object_set_new(out, name, v) == 0 && all;
    }
    config_fini(&plain);
    return all;
}

static void check_again(const struct config *c)
{
    json_t *members = json_object();
    struct config again = {0};
    struct err e = {0};
    char path[32], flag[] = "--config", *argv[] = {flag, path, NULL}, *text;
    int fd;

    if (differing(c, members)) {
        text = json_dumps(members, 0);
        CHECK(text != NULL);
        fd = file_of(text, strlen(text), path);
        CHECK(config_load(&again, 2, argv, NULL, &e) == 0);
        for (size_t i = 0; i < CONFIG_N_OPTIONS; i++)
            CHECK(same_option(c, &again, &config_options[i]));
        config_fini(&again);
        (void)close(fd);
        free(text);
    }
    json_decref(members);
}

/* The values that are read further: where to listen, and whom to ask. */
static void check_values(const struct config *c)
{
    struct upstream_config_list entries = {0};
    struct config_listen at = {0};
    struct err e = {0};

    if (config_listen_parse(&at, c->listen, "--listen", &e) != 0)
        check_refusal(&e, codes, "--listen");
    else
        CHECK((at.path[0] != '\0') != (at.address[0] != '\0') &&
              (at.path[0] == '\0' || at.loopback));
    err_clear(&e);
    for (size_t i = 0; i < c->upstream.n; i++)
        if (strstr(c->upstream.items[i], "-file=") != NULL)
            return; /* the disk is none of the input */
    if (c->upstream.n == 0)
        return;
    if (upstream_config_list_read(&entries, c->upstream.items, c->upstream.n, NULL, &e) != 0) {
        check_refusal(&e, codes, "--upstream");
        CHECK(entries.n == 0);
        return;
    }
    CHECK(entries.n == c->upstream.n);
    for (size_t i = 0; i < entries.n; i++)
        CHECK(entries.items[i]->kind < UPSTREAM_KINDS && entries.items[i]->url[0] != '\0');
    upstream_config_list_fini(&entries);
}

/* Words behind the file, copied: an option of argv cannot be changed, but is not const either. */
static void read_words(struct input *in, const uint8_t *at, const uint8_t *end)
{
    while (at < end && in->argc < ARGS_MAX && in->n_env < ARGS_MAX) {
        size_t n = strnlen((const char *)at, (size_t)(end - at));
        char *word = strndup((const char *)at, n);

        CHECK(word != NULL);
        if (strncmp(word, "--config", 8) == 0 || strncmp(word, "BATON_CONFIG", 12) == 0)
            free(word); /* not a file of this machine */
        else if (strncmp(word, "BATON_", 6) == 0)
            in->env[in->n_env++] = word;
        else
            in->argv[in->argc++] = word;
        at += n + (at + n < end);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const uint8_t *nul = len > 0 ? memchr(data, '\0', len) : NULL;
    size_t n = nul != NULL ? (size_t)(nul - data) : len;
    struct input in = {0};
    struct config c = {0};
    struct err e = {0};
    int fd = file_of(data, n, in.path);
    char config[64];

    (void)snprintf(config, sizeof config, "BATON_CONFIG=%s", in.path);
    in.env[in.n_env++] = strdup(config);
    read_words(&in, nul != NULL ? nul + 1 : data + len, data + len);
    if (config_load(&c, in.argc, in.argv, in.env, &e) != 0) {
        check_refusal(&e, codes, "");
        CHECK(c.storage == NULL && c.listen == NULL);
    } else {
        CHECK(e.code == ERR_NONE);
        for (size_t i = 0; i < CONFIG_N_OPTIONS; i++)
            check_option(&c, &config_options[i]);
        check_values(&c);
        check_again(&c);
        config_fini(&c);
    }
    for (int i = 0; i < ARGS_MAX; i++) {
        free(in.argv[i]);
        free(in.env[i]);
    }
    (void)close(fd);
    return 0;
}

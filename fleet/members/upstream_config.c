/* Parses and checks the configuration: otherwise a malformed URL, a key with a line break or a
 * missing CA file would be noticed only at the first request. */
#include "fleet/members/upstream_config.h"

#include "base/log.h"
#include "base/secret_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char scheme[] = "Bearer ", name_scheme[] = "dns+";

void upstream_config_free(struct upstream_config *s)
{
    if (s == NULL)
        return;
    if (s->authorization != NULL)
        explicit_bzero(s->authorization, strlen(s->authorization));
    free(s->authorization);
    free(s->key_file);
    free(s->entry);
    free(s->ca_file);
    free(s->name_url);
    free(s->url);
    free(s);
}

void upstream_config_list_fini(struct upstream_config_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        upstream_config_free(l->items[i]);
    for (size_t i = 0; i < l->n_names; i++)
        upstream_config_free(l->names[i]);
    l->n = l->n_names = 0;
}

const char *upstream_config_origin(const struct upstream_config *s)
{
    return s->name_url != NULL ? "name" : s->requested ? "request" : "configuration";
}

static bool text_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool upstream_config_same_entry(const struct upstream_config *a, const struct upstream_config *b)
{
    return text_same(a->url, b->url) && a->kind == b->kind && text_same(a->ca_file, b->ca_file) &&
           text_same(a->key_file, b->key_file);
}

bool upstream_config_same(const struct upstream_config *a, const struct upstream_config *b)
{
    return upstream_config_same_entry(a, b) && a->requested == b->requested &&
           text_same(a->name_url, b->name_url) && text_same(a->authorization, b->authorization);
}

/* Puts the URL before the message. Always -1. */
static int prefix_url(struct err *e, const char *field, const char *url)
{
    struct err cause = *e;

    err_clear(e);
    return err_set(e, cause.code, field, "'%.200s': %.250s", url, cause.msg);
}

/* A key has to be one line of visible characters: it becomes the value of a header. */
static int upstream_config_check_key(const char *text, size_t *len, const char *path,
                                     const char *field, struct err *e)
{
    size_t n = strcspn(text, "\r\n");

    if (text[n + strspn(text + n, "\r\n")] != '\0')
        return err_set(e, ERR_BAD_REQUEST, field, "key file '%.200s' has more than one line", path);
    if (n == 0 || n > UPSTREAM_CONFIG_KEY_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the key in '%.200s' has %zu bytes, expected 1 to %d", path, n,
                       UPSTREAM_CONFIG_KEY_MAX);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return err_set(e, ERR_BAD_REQUEST, field,
                           "the key in '%.200s' has a blank or a byte that is not printable ASCII: "
                           "give the key alone, without the role that it has in the key file of "
                           "its server",
                           path);
    *len = n;
    return 0;
}

int upstream_authorization(char **out, const char *path, const char *field, struct err *e)
{
    char *text = NULL, *value;
    size_t n_text = 0, len = 0;
    int rc = -1;

    if (secret_file_read(&text, &n_text, path, field, e) != 0)
        return -1;
    if (upstream_config_check_key(text, &len, path, field, e) != 0)
        goto wipe;
    value = malloc(sizeof scheme + len);
    if (value == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, field, "no memory for the key");
        goto wipe;
    }
    memcpy(value, scheme, sizeof scheme - 1);
    memcpy(value + sizeof scheme - 1, text, len);
    value[sizeof scheme - 1 + len] = '\0';
    *out = value;
    rc = 0;
wipe:
    secret_file_free(text, n_text);
    return rc;
}

static int upstream_read_key(struct upstream_config *s, const char *path, const char *field,
                             struct err *e)
{
    if (s->authorization != NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "key-file is given twice");
    if (upstream_authorization(&s->authorization, path, field, e) != 0)
        return -1;
    s->key_file = strdup(path);
    return s->key_file != NULL ? 0 : err_set(e, ERR_NO_MEMORY, field, "no memory for the key");
}

static int set_ca_file(struct upstream_config *s, const char *path, const char *field,
                       struct err *e)
{
    if (s->ca_file != NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "ca-file is given twice");
    if (strncmp(s->url, "https://", strlen("https://")) != 0)
        return err_set(e, ERR_BAD_REQUEST, field, "ca-file needs an https URL");
    if (access(path, R_OK) != 0)
        return err_set_errno(e, ERR_BAD_REQUEST, field, errno, "ca-file '%.200s' cannot be read",
                             path);
    s->ca_file = strdup(path);
    return s->ca_file != NULL ? 0 : err_set(e, ERR_NO_MEMORY, field, "no memory for an upstream");
}

/* "key_file", "keyfile", "KEY-FILE" and "key" all mean key-file. */
static bool is_misspelled(const char *name, size_t len, const char *wanted)
{
    size_t k = 0;

    for (size_t i = 0; i < len; i++) {
        if (name[i] == '-' || name[i] == '_')
            continue;
        if (wanted[k] == '-')
            k++;
        if ((name[i] | 0x20) != wanted[k])
            return false;
        k++;
    }
    return wanted[k] == '\0' || strcmp(wanted + k, "-file") == 0;
}

/* The message quotes only the name of NAME=VALUE: the value may be a key. */
static int reject_option(const char *text, const char *field, struct err *e)
{
    size_t len = strcspn(text, "=");
    const char *hint = "";

    if (is_misspelled(text, len, "key-file") || is_misspelled(text, len, "api-key"))
        hint = "; did you mean key-file=FILE, a file that contains the key?";
    else if (is_misspelled(text, len, "ca-file"))
        hint = "; did you mean ca-file=FILE?";
    return err_set(e, ERR_BAD_REQUEST, field, "'%.*s=' is not one of key-file=FILE, ca-file=FILE%s",
                   (int)(len < 60 ? len : 60), text, hint);
}

static bool is_url(const char *text)
{
    return strstr(text, "://") != NULL || strncmp(text, "unix:", strlen("unix:")) == 0;
}

static int reject_second_url(const char *text, const char *field, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'%.200s' after it is another upstream: use %s for each", text,
                   strcmp(field, "--upstream-file") == 0 ? "one line"
                   : strcmp(field, "--upstream") == 0    ? "one --upstream"
                                                         : "one request");
}

static const char key_option[] = "key-file=", ca_option[] = "ca-file=";

/* The value of OPTION= in a field; NULL: the field is another one. */
static const char *upstream_config_value_of(const char *text, const char *option)
{
    size_t len = strlen(option);

    return strncmp(text, option, len) == 0 ? text + len : NULL;
}

/* One of the fields after the URL. @text  without its comma */
static int read_field(struct upstream_config *s, const char *text, bool *has_kind,
                      const char *field, struct err *e)
{
    if (upstream_config_value_of(text, key_option) != NULL)
        return upstream_read_key(s, upstream_config_value_of(text, key_option), field, e);
    if (upstream_config_value_of(text, ca_option) != NULL)
        return set_ca_file(s, upstream_config_value_of(text, ca_option), field, e);
    if (is_url(text))
        return reject_second_url(text, field, e);
    if (strchr(text, '=') != NULL)
        return reject_option(text, field, e);
    if (*has_kind)
        return err_set(
            e, ERR_BAD_REQUEST, field,
            "'%.60s' is not one of key-file=FILE, ca-file=FILE, and the kind is already given",
            text);
    *has_kind = true;
    return upstream_kind_parse(&s->kind, text, field, e);
}

static bool is_loopback(const char *url)
{
    static const char *const hosts[] = {"127.", "localhost:", "[::1]"};
    const char *host = url + strlen("http://");

    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        if (strncmp(host, hosts[i], strlen(hosts[i])) == 0)
            return true;
    return strcmp(host, "localhost") == 0;
}

static void warn_of_plain_key(const struct upstream_config *s)
{
    struct log_rec r;

    if (s->authorization == NULL || strncmp(s->url, "http://", strlen("http://")) != 0 ||
        is_loopback(s->url))
        return;
    log_begin(&r, LOG_WARN, "upstream.plain");
    log_str(&r, "upstream", s->url);
    log_str(&r, "why", "its key is sent over the network in clear text: use https");
    log_end(&r);
}

/* https without a port means 443, which is usual; but engines that speak http do not use port 80.
 */
static void warn_of_no_port(const struct upstream_config *s)
{
    struct log_rec r;

    if (http_target_port_meant(s->url) != 80)
        return;
    log_begin(&r, LOG_WARN, "upstream.port");
    log_str(&r, "upstream", s->url);
    log_str(&r, "why",
            "its URL has no port, so port 80 is used; by default vLLM listens on 8000, SGLang on "
            "30000, baton on 8700");
    log_end(&r);
}

static int read_fields(struct upstream_config *s, char *fields, const char *field, struct err *e)
{
    bool has_kind = false;
    char *next;

    for (; fields != NULL; fields = next) {
        next = strchr(fields, ',');
        if (next != NULL)
            *next++ = '\0';
        if (read_field(s, fields, &has_kind, field, e) != 0)
            return prefix_url(e, field, s->url);
    }
    return 0;
}

/* Two URLs with a blank between them are not a URL with a path. */
static int reject_two_urls(const char *url, const char *field, struct err *e)
{
    const char *blank = strpbrk(url, " \t");

    if (blank == NULL || !is_url(blank + 1))
        return 0;
    return reject_second_url(blank + strspn(blank, " \t"), field, e);
}

static int parse_entry(struct upstream_config **out, const char *text, const char *field,
                       struct err *e)
{
    struct upstream_config *s = calloc(1, sizeof *s);
    char *comma;

    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory for an upstream");
    s->kind = UPSTREAM_BATON;
    s->url = strdup(text);
    s->entry = strdup(text);
    if (s->url == NULL || s->entry == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, field, "no memory for an upstream");
        goto free_config;
    }
    comma = strchr(s->url, ',');
    if (comma != NULL)
        *comma++ = '\0';
    if (reject_two_urls(s->url, field, e) != 0 || http_target_check(s->url, field, e) != 0 ||
        read_fields(s, comma, field, e) != 0)
        goto free_config;
    s->target = (struct http_target){s->url, s->authorization, s->ca_file, NULL};
    warn_of_plain_key(s);
    warn_of_no_port(s);
    *out = s;
    return 0;

free_config:
    upstream_config_free(s);
    return -1;
}

/* The port is given, since it is that of each engine. */
static int check_name(const struct upstream_config *s, const char *field, struct err *e)
{
    if (s->url[0] == 'h' && strchr(s->url, '[') == NULL && http_target_port_meant(s->url) == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'dns+%.200s' is none of dns+http://NAME:PORT, dns+https://NAME:PORT", s->url);
}

static bool is_listed(struct upstream_config *const *items, size_t n, const char *url)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(items[i]->url, url) == 0)
            return true;
    return false;
}

static int add_to(struct upstream_config **items, size_t *n, size_t max, struct upstream_config *s,
                  const char *what, const char *field, struct err *e)
{
    if (*n == max)
        return err_set(e, ERR_BAD_REQUEST, field, "more than %zu %s", max, what);
    if (is_listed(items, *n, s->url))
        return err_set(e, ERR_BAD_REQUEST, field, "'%.200s' is given twice", s->url);
    items[(*n)++] = s;
    return 0;
}

int upstream_config_list_add(struct upstream_config_list *l, const char *text, const char *field,
                             struct err *e)
{
    bool name = strncmp(text, name_scheme, sizeof name_scheme - 1) == 0;
    struct upstream_config *s;
    int rc;

    if (strnlen(text, UPSTREAM_CONFIG_LEN_MAX + 1) > UPSTREAM_CONFIG_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "an entry is longer than %d bytes",
                       UPSTREAM_CONFIG_LEN_MAX);
    if (parse_entry(&s, name ? text + sizeof name_scheme - 1 : text, field, e) != 0)
        return -1;
    if (name)
        rc = check_name(s, field, e) == 0 ? add_to(l->names, &l->n_names, UPSTREAM_NAMES_MAX, s,
                                                   "names of upstreams", field, e)
                                          : -1;
    else
        rc = add_to(l->items, &l->n, FLEET_MAX, s, "upstreams", field, e);
    if (rc != 0)
        upstream_config_free(s);
    return rc;
}

/* NULL stays NULL. @failed  set if there is no memory */
static char *copy_text(const char *text, bool *failed)
{
    char *copy = text != NULL ? strdup(text) : NULL;

    *failed = *failed || (text != NULL && copy == NULL);
    return copy;
}

/* A certificate is that of the name, and so the URL that libcurl gets has the name. Of plain http
 * it has the address, which every engine accepts as a Host. */
static struct upstream_config *config_at(const struct upstream_config *name, const char *address)
{
    bool tls = strncmp(name->url, "https", strlen("https")) == 0, failed = false;
    const char *prefix = tls ? "https://" : "http://";
    size_t cap = strlen(prefix) + strlen(address) + 1;
    struct upstream_config *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->kind = name->kind;
    s->url = malloc(cap);
    s->entry = copy_text(name->entry, &failed);
    s->key_file = copy_text(name->key_file, &failed);
    s->ca_file = copy_text(name->ca_file, &failed);
    s->authorization = copy_text(name->authorization, &failed);
    s->name_url = copy_text(name->url, &failed);
    if (s->url == NULL || failed) {
        upstream_config_free(s);
        return NULL;
    }
    (void)snprintf(s->url, cap, "%s%s", prefix, address);
    s->target = (struct http_target){tls ? s->name_url : s->url, s->authorization, s->ca_file,
                                     tls ? s->url + strlen(prefix) : NULL};
    return s;
}

int upstream_config_list_add_address(struct upstream_config_list *l,
                                     const struct upstream_config *name, const char *address,
                                     struct err *e)
{
    struct upstream_config *s = config_at(name, address);
    int rc = 0;

    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an upstream");
    if (!is_listed(l->items, l->n, s->url) &&
        (rc = add_to(l->items, &l->n, FLEET_MAX, s, "upstreams", "", e)) == 0)
        return 0;
    upstream_config_free(s);
    return rc;
}

/* The line without its comment and surrounding blanks; may be "". */
static char *strip(char *line)
{
    size_t len;

    line[strcspn(line, "#")] = '\0';
    line += strspn(line, " \t\r");
    len = strlen(line);
    while (len > 0 && strchr(" \t\r", line[len - 1]) != NULL)
        line[--len] = '\0';
    return line;
}

static int add_lines(struct upstream_config_list *l, char *text, const char *field, struct err *e)
{
    size_t n = 0;
    char *next;

    for (char *line = text; line != NULL; line = next) {
        const char *entry;

        n++;
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        entry = strip(line);
        if (*entry != '\0' && upstream_config_list_add(l, entry, field, e) != 0) {
            struct err cause = *e;

            err_clear(e);
            return err_set(e, cause.code, field, "line %zu: %.480s", n, cause.msg);
        }
    }
    return 0;
}

static int upstream_config_add_file(struct upstream_config_list *l, const char *path, struct err *e)
{
    static const char field[] = "--upstream-file";
    struct stat st;
    char *text;
    size_t len;
    int rc;

    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.200s' is empty: it may be half written; a file without upstreams has a "
                       "comment, as '# none yet'",
                       path);
    if (public_file_read(&text, &len, path, field, e) != 0)
        return -1;
    rc = add_lines(l, text, field, e);
    secret_file_free(text, len);
    return rc;
}

int upstream_config_list_read(struct upstream_config_list *out, const char *const *entries,
                              size_t n, const char *file, struct err *e)
{
    struct upstream_config_list l = {.n = 0};

    for (size_t i = 0; i < n; i++)
        if (upstream_config_list_add(&l, entries[i], "--upstream", e) != 0)
            goto free_list;
    if (file != NULL && upstream_config_add_file(&l, file, e) != 0)
        goto free_list;
    if (l.n + l.n_names == 0 && file == NULL) {
        (void)err_set(e, ERR_BAD_REQUEST, "--upstream", "no upstream is given");
        goto free_list;
    }
    *out = l;
    return 0;

free_list:
    upstream_config_list_fini(&l);
    return -1;
}

int upstream_config_check_files(const char *entry, bool (*may_read)(void *arg, const char *path),
                                void *arg, const char *field, struct err *e)
{
    char path[UPSTREAM_CONFIG_LEN_MAX + 1];

    for (const char *at = strchr(entry, ','); at != NULL; at = strchr(at, ',')) {
        const char *key = upstream_config_value_of(++at, key_option);
        const char *file = key != NULL ? key : upstream_config_value_of(at, ca_option);
        size_t len = file != NULL ? strcspn(file, ",") : 0;

        if (file == NULL)
            continue;
        if (len < sizeof path) {
            memcpy(path, file, len);
            path[len] = '\0';
            if (may_read(arg, path))
                continue;
        }
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a request may name a key-file or ca-file only as the configuration does, "
                       "and no upstream there has '%.*s': add this one to --upstream-file",
                       len < 200 ? (int)len : 200, file);
    }
    return 0;
}

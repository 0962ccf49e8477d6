/* Text of the configuration, read with care: a URL that is none, a key with a line break in it or a
 * CA file that is not there would otherwise be found at the first request only. */
#include "fleet/members/spec.h"

#include "base/log.h"
#include "base/secret_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char scheme[] = "Bearer ";

void spec_free(struct spec *s)
{
    if (s == NULL)
        return;
    if (s->authorization != NULL)
        explicit_bzero(s->authorization, strlen(s->authorization));
    free(s->authorization);
    free(s->ca_file);
    free(s->url);
    free(s);
}

void spec_list_fini(struct spec_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        spec_free(l->items[i]);
    l->n = 0;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool spec_same(const struct spec *a, const struct spec *b)
{
    return same_text(a->url, b->url) && a->kind == b->kind && same_text(a->ca_file, b->ca_file) &&
           same_text(a->authorization, b->authorization);
}

/* Adds what was asked for to what was wrong with it. Always -1. */
static int blame(struct err *e, const char *field, const char *url)
{
    struct err cause = *e;

    err_clear(e);
    return err_set(e, cause.code, field, "'%.200s': %.250s", url, cause.msg);
}

/* One line of visible characters: a key goes into a header, and nothing else with it. */
static int check_key(const char *text, size_t *len, const char *path, const char *field,
                     struct err *e)
{
    size_t n = strcspn(text, "\r\n");

    if (text[n + strspn(text + n, "\r\n")] != '\0')
        return err_set(e, ERR_BAD_REQUEST, field, "key file '%.200s' has more than one line", path);
    if (n == 0 || n > SPEC_KEY_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the key in '%.200s' has %zu bytes, expected 1 to %d", path, n,
                       SPEC_KEY_MAX);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return err_set(e, ERR_BAD_REQUEST, field,
                           "the key in '%.200s' has a blank or a byte that is no visible ASCII",
                           path);
    *len = n;
    return 0;
}

static int read_key(struct spec *s, const char *path, const char *field, struct err *e)
{
    char *text = NULL;
    size_t n_text = 0, len = 0;
    int rc = -1;

    if (s->authorization != NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "key-file is given twice");
    if (secret_file_read(&text, &n_text, path, field, e) != 0)
        return -1;
    if (check_key(text, &len, path, field, e) != 0)
        goto wipe;
    s->authorization = malloc(sizeof scheme + len);
    if (s->authorization == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, field, "no memory for its key");
        goto wipe;
    }
    memcpy(s->authorization, scheme, sizeof scheme - 1);
    memcpy(s->authorization + sizeof scheme - 1, text, len);
    s->authorization[sizeof scheme - 1 + len] = '\0';
    rc = 0;
wipe:
    secret_file_free(text, n_text);
    return rc;
}

static int keep_ca(struct spec *s, const char *path, const char *field, struct err *e)
{
    if (s->ca_file != NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "ca-file is given twice");
    if (strncmp(s->url, "https://", strlen("https://")) != 0)
        return err_set(e, ERR_BAD_REQUEST, field, "ca-file is of use with https only");
    if (access(path, R_OK) != 0)
        return err_set_errno(e, ERR_BAD_REQUEST, field, errno, "ca-file '%.200s' cannot be read",
                             path);
    s->ca_file = strdup(path);
    return s->ca_file != NULL ? 0 : err_set(e, ERR_NO_MEMORY, field, "no memory for it");
}

/* "key_file", "keyfile", "KEY-FILE" and "key" are the same wish. */
static bool looks_like(const char *name, size_t len, const char *wanted)
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

/* Of NAME=VALUE only the name is told again: the value may be a key. */
static int refuse_option(const char *word, const char *field, struct err *e)
{
    size_t len = strcspn(word, "=");
    const char *hint = "";

    if (looks_like(word, len, "key-file") || looks_like(word, len, "api-key"))
        hint = ": is key-file=FILE meant, of a file with the key in it?";
    else if (looks_like(word, len, "ca-file"))
        hint = ": is ca-file=FILE meant?";
    return err_set(e, ERR_BAD_REQUEST, field, "'%.*s=' is none of key-file=FILE, ca-file=FILE%s",
                   (int)(len < 60 ? len : 60), word, hint);
}

static bool is_url(const char *word)
{
    return strstr(word, "://") != NULL || strncmp(word, "unix:", strlen("unix:")) == 0;
}

static int refuse_second(const char *word, const char *field, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field, "'%.200s' behind it is another upstream: %s for each",
                   word, strcmp(field, "--upstream-file") == 0 ? "one line" : "one --upstream");
}

/* What follows the URL, one after the other. @word  without its comma */
static int read_word(struct spec *s, const char *word, bool *has_dialect, const char *field,
                     struct err *e)
{
    static const char key[] = "key-file=", ca[] = "ca-file=";

    if (strncmp(word, key, sizeof key - 1) == 0)
        return read_key(s, word + sizeof key - 1, field, e);
    if (strncmp(word, ca, sizeof ca - 1) == 0)
        return keep_ca(s, word + sizeof ca - 1, field, e);
    if (is_url(word))
        return refuse_second(word, field, e);
    if (strchr(word, '=') != NULL)
        return refuse_option(word, field, e);
    if (*has_dialect)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.60s' is none of key-file=FILE, ca-file=FILE, and the dialect is given",
                       word);
    *has_dialect = true;
    return upstream_kind_parse(&s->kind, word, field, e);
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

static void warn_of_plain_key(const struct spec *s)
{
    struct log_rec r;

    if (s->authorization == NULL || strncmp(s->url, "http://", strlen("http://")) != 0 ||
        is_loopback(s->url))
        return;
    log_begin(&r, LOG_WARN, "upstream.plain");
    log_str(&r, "upstream", s->url);
    log_str(&r, "why", "its key crosses the network in clear text: https would hide it");
    log_end(&r);
}

/* Of https without a port the usual one is meant; engines that speak http listen elsewhere. */
static void warn_of_no_port(const struct spec *s)
{
    struct log_rec r;

    if (http_target_port_meant(s->url) != 80)
        return;
    log_begin(&r, LOG_WARN, "upstream.port");
    log_str(&r, "upstream", s->url);
    log_str(&r, "why",
            "it names no port, so it is asked at port 80; unless told otherwise vLLM listens at "
            "8000, SGLang at 30000, baton at 8700");
    log_end(&r);
}

static int read_words(struct spec *s, char *words, const char *field, struct err *e)
{
    bool has_dialect = false;
    char *next;

    for (; words != NULL; words = next) {
        next = strchr(words, ',');
        if (next != NULL)
            *next++ = '\0';
        if (read_word(s, words, &has_dialect, field, e) != 0)
            return blame(e, field, s->url);
    }
    return 0;
}

/* Two with a blank between them are no URL with a path. */
static int check_one(const char *url, const char *field, struct err *e)
{
    const char *blank = strpbrk(url, " \t");

    if (blank == NULL || !is_url(blank + 1))
        return 0;
    return refuse_second(blank + strspn(blank, " \t"), field, e);
}

static int read_spec(struct spec **out, const char *text, const char *field, struct err *e)
{
    struct spec *s = calloc(1, sizeof *s);
    char *comma;

    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, field, "no memory for it");
    s->kind = UPSTREAM_BATON;
    s->url = strdup(text);
    if (s->url == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, field, "no memory for it");
        goto free_spec;
    }
    comma = strchr(s->url, ',');
    if (comma != NULL)
        *comma++ = '\0';
    if (check_one(s->url, field, e) != 0 || http_target_check(s->url, field, e) != 0 ||
        read_words(s, comma, field, e) != 0)
        goto free_spec;
    s->target = (struct http_target){s->url, s->authorization, s->ca_file};
    warn_of_plain_key(s);
    warn_of_no_port(s);
    *out = s;
    return 0;

free_spec:
    spec_free(s);
    return -1;
}

static int add_spec(struct spec_list *l, const char *text, const char *field, struct err *e)
{
    struct spec *s;

    if (strnlen(text, SPEC_LEN_MAX + 1) > SPEC_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "an entry is longer than %d bytes", SPEC_LEN_MAX);
    if (l->n == FLEET_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "more than %d upstreams", FLEET_MAX);
    if (read_spec(&s, text, field, e) != 0)
        return -1;
    for (size_t i = 0; i < l->n; i++) {
        if (strcmp(l->items[i]->url, s->url) != 0)
            continue;
        (void)err_set(e, ERR_BAD_REQUEST, field, "'%.200s' is given twice", s->url);
        spec_free(s);
        return -1;
    }
    l->items[l->n++] = s;
    return 0;
}

/* Without the comment and the blanks around; "" for nothing. */
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

static int add_lines(struct spec_list *l, char *text, const char *field, struct err *e)
{
    size_t n = 0;
    char *next;

    for (char *line = text; line != NULL; line = next) {
        const char *spec;

        n++;
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        spec = strip(line);
        if (*spec != '\0' && add_spec(l, spec, field, e) != 0) {
            struct err cause = *e;

            err_clear(e);
            return err_set(e, cause.code, field, "line %zu: %.480s", n, cause.msg);
        }
    }
    return 0;
}

static int add_file(struct spec_list *l, const char *path, struct err *e)
{
    static const char field[] = "--upstream-file";
    char *text;
    size_t len;
    int rc;

    if (public_file_read(&text, &len, path, field, e) != 0)
        return -1;
    rc = add_lines(l, text, field, e);
    secret_file_free(text, len);
    return rc;
}

int spec_list_read(struct spec_list *out, const char *const *specs, size_t n, const char *file,
                   struct err *e)
{
    struct spec_list l = {.n = 0};

    for (size_t i = 0; i < n; i++)
        if (add_spec(&l, specs[i], "--upstream", e) != 0)
            goto free_list;
    if (file != NULL && add_file(&l, file, e) != 0)
        goto free_list;
    if (l.n == 0) {
        (void)err_set(e, ERR_BAD_REQUEST, file != NULL ? "--upstream-file" : "--upstream",
                      "there is no upstream");
        goto free_list;
    }
    *out = l;
    return 0;

free_list:
    spec_list_fini(&l);
    return -1;
}

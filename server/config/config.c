/* The layers of the configuration: defaults, file, environment, flags, each over the one before.
 *
 * Flags are read twice: once for --config alone, so that the file can be read first, and once for
 * the rest. Rejected: collecting every layer and merging them at the end, which needs a value type
 * for each kind, and a second place that finds where a bad value was given. */
#include "server/config/config.h"

#include "base/log.h"
#include "server/config/config_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int config_set_defaults(struct config_loader *l, struct err *e)
{
    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        const struct config_option *o = &config_options[i];

        if (!config_is_list(o) && config_set(l, o, LAYER_DEFAULT, o->flag, o->def, e) != 0)
            return -1;
    }
    return 0;
}

static void flag_name(char out[CONFIG_NAME_MAX], const struct config_option *o)
{
    (void)snprintf(out, CONFIG_NAME_MAX, "%s", o->flag);
}

/* One flag of the command line: its name, and its value if it is attached or follows. */
struct flag {
    const char *name; /* after "--" */
    size_t len;
    const char *value;                  /* NULL when none is given */
    const struct config_option *option; /* NULL for --config */
};

/* The option of ours that other servers call `word`, or NULL. */
static const char *foreign_flag(const char *word)
{
    static const char *const names[][2] = {
        {"host", "--listen ADDRESS:PORT"}, {"port", "--listen ADDRESS:PORT"},
        {"uds", "--listen unix:PATH"},     {"api-key", "--api-key-file FILE"},
        {"model-path", "--model DIR"},     {"ssl-certfile", "--tls-cert FILE"},
        {"ssl-keyfile", "--tls-key FILE"},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i][0], word) == 0)
            return names[i][1];
    return NULL;
}

static int unknown_flag(const struct flag *f, struct err *e)
{
    char word[CONFIG_NAME_MAX], near[CONFIG_NEAR_MAX], field[CONFIG_NAME_MAX + 2];
    const char *foreign;

    (void)snprintf(word, sizeof word, "%.*s", (int)(f->len < sizeof word ? f->len : sizeof word),
                   f->name);
    (void)snprintf(field, sizeof field, "--%s", word);
    foreign = foreign_flag(word);
    if (foreign != NULL)
        return err_set(e, ERR_BAD_REQUEST, field, "unknown option, did you mean %s?", foreign);
    config_near(near, word, "--", flag_name);
    return err_set(e, ERR_BAD_REQUEST, field, "unknown option%s%s", near,
                   near[0] == '\0' ? "; 'baton serve --help' lists all" : "");
}

/* An argument that is neither an option nor a value. */
static int unexpected(const char *text, struct err *e)
{
    bool truth = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;

    return err_set(e, ERR_BAD_REQUEST, "", "unexpected argument '%.100s'; %s", text,
                   truth ? "write true or false with '=', as in --insecure=false"
                   : text[0] == '-'
                       ? "options begin with two dashes, 'baton serve --help' lists all"
                       : "a model directory comes before all options, as in 'baton "
                         "serve DIR', or after --model");
}

/* Reads the flag at argv[*i] and advances *i past it and its value. */
static int read_flag(struct flag *out, int argc, char *const *argv, int *i, struct err *e)
{
    const char *text = argv[*i];
    struct flag f = {0};

    if (*i == 0 && text[0] != '-' && text[0] != '\0') {
        *out = (struct flag){"model", 5, text, config_find("model", 5)};
        (*i)++;
        return 0;
    }
    if (strncmp(text, "--", 2) != 0 || text[2] == '\0')
        return unexpected(text, e);
    f.name = text + 2;
    f.len = strcspn(f.name, "=");
    if (f.name[f.len] == '=')
        f.value = f.name + f.len + 1;
    f.option = config_find(f.name, f.len);
    if (f.option == NULL && !(f.len == 6 && memcmp(f.name, "config", 6) == 0))
        return unknown_flag(&f, e);
    (*i)++;
    if (f.value == NULL && f.option != NULL && f.option->kind == KIND_BOOL)
        f.value = "true";
    else if (f.value == NULL && *i < argc && strncmp(argv[*i], "--", 2) != 0)
        f.value = argv[(*i)++];
    if (f.value == NULL)
        return err_set(e, ERR_BAD_REQUEST, text, "it needs a value, %s",
                       f.option == NULL ? "FILE" : f.option->arg);
    *out = f;
    return 0;
}

static int set_flags(struct config_loader *l, int argc, char *const *argv, struct err *e)
{
    const struct config_option *model = config_find("model", 5);
    char field[CONFIG_NAME_MAX + 2];
    struct flag f;

    for (int i = 0; i < argc;) {
        if (read_flag(&f, argc, argv, &i, e) != 0)
            return -1;
        if (f.option == NULL)
            continue; /* --config, seen by find_file */
        (void)snprintf(field, sizeof field, "--%s", f.option->flag);
        if (f.option == model && f.value != argv[0] && argv[0][0] != '-')
            return err_set(e, ERR_BAD_REQUEST, field,
                           "'%.100s' is given before the options too; give one of the two",
                           argv[0]);
        if (config_set(l, f.option, LAYER_FLAG, field, f.value, e) != 0)
            return -1;
    }
    return 0;
}

static const char *env_value(char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (; env != NULL && *env != NULL; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return *env + len + 1;
    }
    return NULL;
}

/* A long path loses its beginning, not its end. */
static void name_file(struct config_origins *from, const char *path)
{
    static const char dots[] = "...";
    size_t len = strlen(path), cap = sizeof from->file;

    if (len < cap)
        memcpy(from->file, path, len + 1);
    else
        (void)snprintf(from->file, cap, "%s%s", dots, path + len - (cap - sizeof dots));
}

static int find_file(struct config_loader *l, int argc, char *const *argv, char *const *env,
                     struct err *e)
{
    struct flag f;

    l->file = env_value(env, "BATON_CONFIG");
    l->file_option = "BATON_CONFIG";
    for (int i = 0; i < argc;) {
        if (read_flag(&f, argc, argv, &i, e) != 0)
            return -1;
        if (f.option != NULL)
            continue;
        if (f.value[0] == '\0')
            return err_set(e, ERR_BAD_REQUEST, "--config", "it is empty, FILE is expected");
        l->file = f.value;
        l->file_option = "--config";
    }
    if (l->file != NULL && l->file[0] == '\0')
        l->file = NULL;
    if (l->file != NULL)
        name_file(l->config.origins, l->file);
    return 0;
}

/* In a variable a LIST is separated by ':', as PATH is, and WORDS by any number of blanks. */
static int set_env_list(struct config_loader *l, const struct config_option *o, const char *field,
                        const char *text, struct err *e)
{
    char item[CONFIG_VALUE_LEN_MAX + 1];
    const char *between = o->kind == KIND_WORDS ? " \t\n" : ":";
    size_t len;

    for (;; text += len + 1) {
        if (o->kind == KIND_WORDS) {
            text += strspn(text, between);
            if (*text == '\0')
                return 0;
        }
        len = strcspn(text, between);
        if (len >= sizeof item)
            return err_set(e, ERR_BAD_REQUEST, field, "an entry is longer than %d bytes",
                           CONFIG_VALUE_LEN_MAX);
        memcpy(item, text, len);
        item[len] = '\0';
        if (config_set(l, o, LAYER_ENV, field, item, e) != 0)
            return -1;
        if (text[len] == '\0')
            return 0;
    }
}

static int set_env(struct config_loader *l, char *const *env, struct err *e)
{
    char name[CONFIG_NAME_MAX];
    const char *value;
    int rc;

    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        const struct config_option *o = &config_options[i];

        config_env_name(name, o);
        value = env_value(env, name);
        if (value == NULL || value[0] == '\0')
            continue; /* an empty variable is an unset one, as in compose files */
        if (config_is_list(o))
            rc = set_env_list(l, o, name, value, e);
        else
            rc = config_set(l, o, LAYER_ENV, name, value, e);
        if (rc != 0)
            return -1;
    }
    return 0;
}

static bool env_known(const char *name)
{
    char known[CONFIG_NAME_MAX];

    if (strcmp(name, "BATON_URL") == 0 || strcmp(name, "BATON_API_KEY") == 0)
        return true; /* the client's */
    if (strcmp(name, "BATON_CONFIG") == 0)
        return true;
    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        config_env_name(known, &config_options[i]);
        if (strcmp(known, name) == 0)
            return true;
    }
    return false;
}

static bool config_ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), n = strlen(end);

    return len >= n && strcmp(text + len - n, end) == 0;
}

/* Kubernetes sets such variables for each service, here for one named "baton" or "baton-...".
 * BATON_PORT is one of them only if its value is a URL: a number was meant as an option. */
static bool env_of_a_service(const char *name, const char *value)
{
    return config_ends_with(name, "_SERVICE_HOST") || strstr(name, "_SERVICE_PORT") != NULL ||
           strstr(name, "_PORT_") != NULL ||
           (config_ends_with(name, "_PORT") && strstr(value, "://") != NULL);
}

/* Only warns: in a cluster such variables are also set for other programs. */
static void warn_unknown_env(char *const *env)
{
    char name[128], near[CONFIG_NEAR_MAX];

    for (; env != NULL && *env != NULL; env++) {
        if (strncmp(*env, "BATON_", 6) != 0)
            continue;
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(*env, "="), *env);
        if (env_known(name) || env_of_a_service(name, *env + strcspn(*env, "=")))
            continue;
        config_near(near, name, "", config_env_name);
        log_line(LOG_WARN, "config.unknown_variable", "environment variable %s is not an option%s",
                 name, near);
    }
}

int config_load(struct config *out, int argc, char *const *argv, char *const *env, struct err *e)
{
    struct config_loader l = {.config.origins = calloc(1, sizeof *l.config.origins)};

    if (l.config.origins == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the configuration");
    if (find_file(&l, argc, argv, env, e) != 0 || config_set_defaults(&l, e) != 0 ||
        (l.file != NULL && config_file_load(&l, e) != 0) || set_env(&l, env, e) != 0 ||
        set_flags(&l, argc, argv, e) != 0 || config_fit(&l, e) != 0) {
        config_fini(&l.config);
        return -1;
    }
    warn_unknown_env(env);
    l.config.argc = argc;
    l.config.argv = argv;
    l.config.env = env;
    *out = l.config;
    return 0;
}

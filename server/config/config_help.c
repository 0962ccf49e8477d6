/* --help: one paragraph for each option, from the same table that reads them. */
#include "server/config/build.h"
#include "server/config/config_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    HELP_COLUMNS = 100,
    HELP_ENV_COLUMN = 44, /* where the environment's name begins */
    HELP_INDENT = 6,
    HELP_TEXT_MAX = 640
};

/* The title is printed before this option. */
static const struct {
    const char *before, *title;
} groups[] = {
    {"model", "Model and weights"},
    {"upstream", "In front of other engines"},
    {"listen", "Listeners, authentication and files"},
    {"front-threads", "Threads, admission and queues"},
    {"engine-threads", "Embedded engine"},
    {"max-loras", "LoRA adapters"},
    {"device", "GPUs"},
    {"max-weight-bytes", "Memory"},
    {"update-timeout", "Time limits and connections (milliseconds)"},
    {"log-level", "Log"},
};

static void put_title(FILE *to, const char *flag)
{
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        if (strcmp(groups[i].before, flag) == 0)
            (void)fprintf(to, "\n%s\n", groups[i].title);
    }
}

/* A blank at which no line is broken. */
#define GLUE '\x1f'

static void config_help_put_word(FILE *to, const char *word, size_t len)
{
    for (size_t i = 0; i < len; i++)
        (void)fputc(word[i] == GLUE ? ' ' : word[i], to);
}

/* Writes the text in lines of at most HELP_COLUMNS. */
static void put_wrapped(FILE *to, size_t indent, const char *text)
{
    size_t column = 0, len;

    for (; *text != '\0'; text += len + strspn(text + len, " ")) {
        len = strcspn(text, " ");
        if (column > 0 && column + 1 + len > HELP_COLUMNS) {
            (void)fputc('\n', to);
            column = 0;
        }
        (void)fprintf(to, "%*s", column == 0 ? (int)indent : 1, "");
        config_help_put_word(to, text, len);
        column += (column == 0 ? indent : 1) + len;
    }
    (void)fputc('\n', to);
}

/* 67108864 -> "64MiB": the largest unit that divides it. */
static void nbytes_text(char *out, size_t cap, uint64_t v)
{
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
    unsigned i = 0;

    while (i < 4 && v >= 1024 && v % 1024 == 0) {
        v /= 1024;
        i++;
    }
    (void)snprintf(out, cap, "%" PRIu64 "%s", v, suffixes[i]);
}

static void range_text(char *out, size_t cap, const struct config_option *o)
{
    char least[24];

    out[0] = '\0';
    if (o->kind == KIND_INT || o->kind == KIND_LIMIT || o->kind == KIND_MS)
        (void)snprintf(out, cap, "; %" PRIu64 " to %" PRIu64, o->min, o->max);
    if (o->kind == KIND_NBYTES && o->min > 0) {
        nbytes_text(least, sizeof least, o->min);
        (void)snprintf(out, cap, "; at least %s", least);
    }
}

static void put_option(FILE *to, const struct config_option *o)
{
    char head[96], env[CONFIG_NAME_MAX], text[HELP_TEXT_MAX], tail[128], range[64];

    config_env_name(env, o);
    (void)snprintf(head, sizeof head, "  --%s%s%s", o->flag, o->arg[0] != '\0' ? " " : "", o->arg);
    (void)fprintf(to, "%-*s %s\n", HELP_ENV_COLUMN - 1, head, env);
    range_text(range, sizeof range, o);
    tail[0] = '\0';
    if (o->def[0] != '\0')
        (void)snprintf(tail, sizeof tail, "(default %s%s)", o->def, range);
    else if (strstr(o->help, "default:") == NULL)
        (void)snprintf(tail, sizeof tail, "(no default)");
    for (char *p = tail; *p != '\0'; p++)
        *p = *p == ' ' ? GLUE : *p;
    (void)snprintf(text, sizeof text, "%s %s", o->help, tail);
    put_wrapped(to, HELP_INDENT, text);
}

/* Which options the engine alone has. */
static void put_engine_options(FILE *to)
{
    char text[HELP_TEXT_MAX] = "Only the embedded engine has";
    size_t len = strlen(text);

    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++)
        if (config_is_of_engine(&config_options[i]))
            len += (size_t)snprintf(text + len, sizeof text - len, " --%s,",
                                    config_options[i].flag);
    (void)snprintf(text + len - 1, sizeof text - len + 1, ": %s.",
                   build_has_engine ? "baton-control, the build without it, lacks them"
                                    : "this build (baton-control) lacks them");
    (void)fputc('\n', to);
    put_wrapped(to, 0, text);
}

void config_help(FILE *to)
{
    put_wrapped(to, 0,
                "Each option may be a flag (--flag VALUE or --flag=VALUE), an environment variable "
                "(the name beside it), or a member of a JSON file (the flag with '_' for '-'). A "
                "flag overrides a variable, a variable the file, the file the default. "
                "BYTES may end in KiB, MiB, GiB or TiB; a repeatable option is an array "
                "in the file and separated by ':' in its variable, unless it says otherwise.");
    put_engine_options(to);
    (void)fprintf(to, "\n%-*s %s\n", HELP_ENV_COLUMN - 1, "  --config FILE", "BATON_CONFIG");
    put_wrapped(to, HELP_INDENT, "the JSON file (no default)");
    (void)fprintf(to, "\n  --check\n");
    put_wrapped(to, HELP_INDENT,
                "start nothing; read what a start would read, and report what it would serve, how "
                "many bytes the weights need, and which GPUs there are");
    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        put_title(to, config_options[i].flag);
        if (config_is_here(&config_options[i]))
            put_option(to, &config_options[i]);
    }
}

/* The program: `baton serve`, `baton help`, `baton version`, and the commands of cli/. */
#include "base/closest_match.h"
#include "base/json_parse.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "driver/nccl.h"
#include "server/config/build.h"
#include "server/config/config.h"
#include "server/notify.h"
#include "server/serve.h"
#include "server/serve_check.h"
#include "server/signals.h"
#include "transport/nixl/nixl_child.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What `baton serve` ends with. */
enum {
    EXIT_WELL = 0,
    EXIT_FAILED = 1, /* it could not start */
    EXIT_USAGE = 2,  /* a wrong option */
    EXIT_CUT = 3     /* --drain-timeout or a second signal cut running work */
};

static int usage_print(FILE *to, int rc)
{
    struct buf commands = {0};

    (void)fprintf(to, "baton " BATON_VERSION
                      ": inference control for reinforcement-learning post-training\n"
                      "\n"
                      "usage: baton serve DIR [options]     run the server; also --model DIR\n"
                      "       baton serve --check [options] report what it would start with\n"
                      "       baton serve --help            every option, with its default\n"
                      "       baton help                    this text, as --help\n"
                      "       baton version                 as --version\n"
                      "\n"
                      "of a running server (--url URL, or BATON_URL):\n");
    cli_usage(&commands);
    (void)fputs(commands.data != NULL ? commands.data : "", to);
    (void)fputs("\nTrainers push weights by baton push, the Python package, or "
                "POST /v1/update_weights.\n",
                to);
    buf_fini(&commands);
    return rc;
}

/* Names the closest command too. */
static int unknown_command(const char *word)
{
    static const char *const own[] = {"serve", "help", "version", NULL};
    const char *near = closest_match(word, own);

    if (near == NULL)
        near = closest_match(word, cli_commands());
    (void)fprintf(stderr, "baton: unknown command '%.60s'", word);
    if (cli_instead(word) != NULL)
        (void)fprintf(stderr, "; did you mean %s?", cli_instead(word));
    else if (near != NULL)
        (void)fprintf(stderr, "; did you mean '%s'?", near);
    (void)fputs("\n\n", stderr);
    return usage_print(stderr, 2);
}

/* Is the only argument this word, written as a command, an option or a letter? */
static bool main_is_word(int argc, char **argv, const char *command, const char *option,
                         const char *letter)
{
    return argc == 2 && (strcmp(argv[1], command) == 0 || strcmp(argv[1], option) == 0 ||
                         strcmp(argv[1], letter) == 0);
}

/* @c  NULL, or the configuration: an option is named by its variable or its place in the file, if
 *     it was given there */
static void error_print(const struct config *c, const struct err *e)
{
    char where[ERR_FIELD_MAX];

    (void)snprintf(where, sizeof where, "%s", e->field);
    if (c != NULL)
        config_where(where, c, e->field);
    (void)fprintf(stderr, "baton: %s%s%s\n", where, where[0] != '\0' ? ": " : "", e->msg);
}

/* As --log-format says, or for people where a person looks. */
static void choose_log_format(const struct config *c)
{
    const char *no_color = getenv("NO_COLOR");
    bool terminal = isatty(STDERR_FILENO) == 1;
    bool text = c->log_format != NULL ? strcmp(c->log_format, "text") == 0 : terminal;

    log_set_text(text, terminal && (no_color == NULL || no_color[0] == '\0'));
}

static int serve_run(const struct config *c, bool check)
{
    struct err e = {0};
    enum log_level least = LOG_INFO;
    bool drained = true;
    int rc;

    (void)log_level_parse(&least, c->log_level); /* config checked it */
    notify_init();
    json_parse_init();   /* before any thread: jansson's allocator, its hash seed, which the */
    json_object_seed(0); /* first objects would race to set, and the environment */
    nccl_environment();
    signals_block();
    choose_log_format(c);
    if (log_open(STDERR_FILENO, least, &e) != 0) {
        error_print(c, &e);
        return 1;
    }
    rc = check ? serve_check(c, stdout, &e) : serve(c, &drained, &e);
    log_close();
    if (rc != 0)
        error_print(c, &e);
    if (rc == 0)
        return drained ? EXIT_WELL : EXIT_CUT;
    return strncmp(e.field, "--", 2) == 0 ? EXIT_USAGE : EXIT_FAILED;
}

static int command_serve(int argc, char **argv)
{
    struct config c = {0};
    struct err e = {0};
    bool check = false;
    int rc, n = 0;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            config_help(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--check") == 0)
            check = true; /* a command, not a setting: it has no variable and no JSON member */
        else
            argv[n++] = argv[i];
    }
    if (config_load(&c, n, argv, environ, &e) != 0) {
        error_print(NULL, &e);
        return 2;
    }
    rc = serve_run(&c, check);
    config_fini(&c);
    return rc;
}

/* "baton help push": as "baton push --help". */
static int command_help_of(int argc, char **argv)
{
    char help[] = "--help";
    char *line[] = {argv[0], argv[2], argc > 3 ? argv[3] : help, help, NULL};

    if (strcmp(argv[2], "serve") == 0)
        return command_serve(1, line + 3);
    return cli_is_command(argv[2]) ? cli_run(4, line, config_flags()) : unknown_command(argv[2]);
}

int main(int argc, char **argv)
{
    if (argc == NIXL_CHILD_ARGC && strcmp(argv[1], NIXL_CHILD_COMMAND) == 0)
        nixl_child_main(argv);
    if (!terminal_guard()) { /* arguments, files and servers have texts that others wrote */
        (void)fputs("baton: no memory\n", stderr);
        return EXIT_USAGE;
    }
    if (argc < 2)
        return usage_print(stderr, 2);
    if (strcmp(argv[1], "serve") == 0)
        return command_serve(argc - 2, argv + 2);
    if (main_is_word(argc, argv, "version", "--version", "-V") || strcmp(argv[1], "-v") == 0)
        return printf("baton " BATON_VERSION " (%s: %s embedded engine)\n", build_package(),
                      build_has_engine ? "with the" : "without the") < 0;
    if (main_is_word(argc, argv, "help", "--help", "-h"))
        return usage_print(stdout, 0);
    if (cli_is_command(argv[1]))
        return cli_run(argc, argv, config_flags());
    if (strcmp(argv[1], "help") == 0)
        return command_help_of(argc, argv);
    return unknown_command(argv[1]);
}

/* One table has every command: its words, its arguments, the options that it takes. Help,
 * completion and the manual are made of it. */
#include "cli/cli_priv.h"

#include "base/closest_match.h"
#include "base/json_parse.h"
#include "base/log.h"
#include "base/secret_file.h"
#include "cli/interrupt.h"
#include "cli/manual.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_S = 600, TIMEOUT_S_MAX = 86400 };

#define BIT(o) (1u << (o))

#define ASK (BIT(OPT_URL) | BIT(OPT_KEY_FILE) | BIT(OPT_CA_FILE) | BIT(OPT_TIMEOUT) | BIT(OPT_HELP))

#define REPLY (ASK | BIT(OPT_JSON))

const struct command commands[] = {
    {"push", NULL, "FILE|DIR", "push weights, prove them, put them into service", 1, 1,
     REPLY | BIT(OPT_VERSION) | BIT(OPT_PARTIAL) | BIT(OPT_CONVERT) | BIT(OPT_PATH) |
         BIT(OPT_NO_CHECKSUMS) | BIT(OPT_DELTA_FROM) | BIT(OPT_DELTA_BASE),
     cmd_push},
    {"status", NULL, "", "what the server serves and does", 0, 0, REPLY | BIT(OPT_WATCH),
     cmd_status},
    {"wait", NULL, "", "return when the server is ready", 0, 0, REPLY | BIT(OPT_FOR), cmd_wait},
    {"upstreams", "add", "URL[,KIND]", "add an engine: vllm, sglang or baton (default)", 1, 1,
     REPLY, cmd_upstreams_add},
    {"upstreams", "remove", "URL", "send an engine no more requests", 1, 1, REPLY,
     cmd_upstreams_remove},
    {"upstreams", "prove", "[URL]", "do they serve what they got?", 0, 1, REPLY | BIT(OPT_CANARY),
     cmd_upstreams_prove},
    {"upstreams", NULL, "", "the engines behind the server; also upstreams add, remove, prove", 0,
     0, REPLY | BIT(OPT_WATCH), cmd_upstreams},
    {"generate", NULL, "PROMPT|-", "stream a reply; - reads the prompt from stdin", 1, 1,
     REPLY | BIT(OPT_MAX_TOKENS) | BIT(OPT_TEMPERATURE) | BIT(OPT_SEED) | BIT(OPT_MODEL) |
         BIT(OPT_CHAT),
     cmd_generate},
    {"lora", "load", "NAME DIR",
     "load an adapter, or its next revision; in front of engines it needs serve --adapter-dir, or "
     "--path",
     2, 2, REPLY | BIT(OPT_PATH) | BIT(OPT_DELTA_FROM) | BIT(OPT_DELTA_BASE), cmd_lora_load},
    {"lora", "unload", "NAME", "unload an adapter", 1, 1, REPLY, cmd_lora_unload},
    {"lora", "list", "", "the adapters that are loaded", 0, 0, REPLY, cmd_lora_list},
    {"pause", NULL, "", "stop generation", 0, 0,
     REPLY | BIT(OPT_MODE) | BIT(OPT_LEASE) | BIT(OPT_REJECT), cmd_pause},
    {"resume", NULL, "", "end the pause", 0, 0, REPLY, cmd_resume},
    {"sleep", NULL, "", "free the memory of weights and KV cache", 0, 0,
     REPLY | BIT(OPT_LEVEL) | BIT(OPT_TAGS), cmd_sleep},
    {"wake", NULL, "", "allocate it again", 0, 0, REPLY | BIT(OPT_TAGS), cmd_wake},
    {"abort", NULL, "[ID...]", "end requests with their tokens so far, or the open update", 0, 1024,
     REPLY | BIT(OPT_ALL) | BIT(OPT_UPDATE), cmd_abort},
    {"weights", "list", "", "name, dtype, shape and checksum of each served tensor", 0, 0, REPLY,
     cmd_weights_list},
    {"weights", "verify", "FILE|DIR", "is exactly this served?", 1, 1, ASK, cmd_weights_verify},
    {"weights", "diff", "[FILE|DIR FILE|DIR]",
     "what the last commit changed, or which tensors differ between two checkpoints, each with its "
     "relative change: the norm of the difference divided by the norm of the first",
     0, 2, REPLY, cmd_weights_diff},
    {"weights", "delta", "FILE|DIR FILE|DIR",
     "write what changed from the first checkpoint to the second into a delta file, which push "
     "sends",
     2, 2, BIT(OPT_OUTPUT) | BIT(OPT_DELTA_FROM) | BIT(OPT_VERSION) | BIT(OPT_HELP),
     cmd_weights_delta},
    {"weights", "apply", "FILE|DIR DELTA", "write the checkpoint that a delta makes of another one",
     2, 2, BIT(OPT_OUTPUT) | BIT(OPT_HELP), cmd_weights_apply},
    {"completion", NULL, "bash|zsh", "a completion script for the shell", 1, 1, BIT(OPT_HELP),
     cmd_completion},
    {NULL, NULL, NULL, NULL, 0, 0, 0, NULL}};

const char *const *cli_commands(void)
{
    static const char *names[sizeof commands / sizeof commands[0]];
    size_t n = 0;

    for (const struct command *c = commands; c->name != NULL; c++)
        if (n == 0 || strcmp(names[n - 1], c->name) != 0) /* its second words stand together */
            names[n++] = c->name;
    names[n] = NULL;
    return names;
}

const char *cli_instead(const char *word)
{
    static const struct {
        const char *word, *instead;
    } rows[] = {
        {"run", "'baton serve --model DIR' or 'baton generate PROMPT'"},
        {"start", "'baton serve --model DIR'"},
        {"stop", "SIGTERM, which ends a server, or 'baton pause'"},
        {"kill", "SIGTERM, which ends a server, or 'baton abort'"},
        {"ps", "'baton status' or 'baton upstreams'"},
        {"list", "'baton status', 'baton lora list' or 'baton weights list'"},
        {"ls", "'baton status', 'baton lora list' or 'baton weights list'"},
        {"get", "'baton status', 'baton upstreams' or 'baton weights list'"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].word, word) == 0)
            return rows[i].instead;
    return NULL;
}

bool cli_is_command(const char *word)
{
    for (const struct command *c = commands; c->name != NULL; c++)
        if (strcmp(c->name, word) == 0)
            return true;
    return false;
}

static enum cli_exit option_unknown(const struct cli *c, const char *flag)
{
    const char *near[CLI_OPTION_COUNT + 1];
    size_t n = 0;

    for (int o = 0; o < CLI_OPTION_COUNT; o++)
        if ((c->command->options & BIT(o)) != 0)
            near[n++] = option_rows[o].flag;
    near[n] = NULL;
    near[0] = closest_match(flag, near);
    return near[0] != NULL
               ? cli_usage_error(c, "unknown option %.60s; did you mean %s?", flag, near[0])
               : cli_usage_error(c, "unknown option %.60s", flag);
}

/* Reads argv[i], an option. Returns how many words it took; 0 after a message. */
static int option_read(struct cli *c, char **argv, int i, int argc)
{
    const char *word = strcmp(argv[i], "-o") == 0 ? "--output" : argv[i];
    const char *equals = strchr(word, '=');
    size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);

    for (int o = 0; o < CLI_OPTION_COUNT; o++) {
        const struct option_row *row = &option_rows[o];

        if ((c->command->options & BIT(o)) == 0 || strlen(row->flag) != len ||
            strncmp(row->flag, word, len) != 0)
            continue;
        if (row->value[0] == '\0') {
            c->values[o] = "";
            return equals == NULL ? 1 : (cli_usage_error(c, "%s takes no value", row->flag), 0);
        }
        c->values[o] = equals != NULL ? equals + 1 : i + 1 < argc ? argv[i + 1] : NULL;
        if (c->values[o] == NULL)
            return cli_usage_error(c, "%s needs a value: %s", row->flag, row->value), 0;
        return equals != NULL ? 1 : 2;
    }
    (void)option_unknown(c, argv[i]);
    return 0;
}

/* Options and arguments in any order; what follows "--" is an argument. */
static enum cli_exit words_read(struct cli *c, char **argv, int argc, const char **args)
{
    bool only_args = false;

    for (int i = 0; i < argc;) {
        int n = 1;

        if (!only_args && strcmp(argv[i], "--") == 0)
            only_args = true;
        else if (!only_args && (strcmp(argv[i], "-h") == 0))
            c->values[OPT_HELP] = "";
        else if (!only_args && argv[i][0] == '-' && argv[i][1] != '\0')
            n = option_read(c, argv, i, argc);
        else
            args[c->n_args++] = argv[i];
        if (n == 0)
            return CLI_USAGE;
        i += n;
    }
    c->args = args;
    if (cli_has(c, OPT_HELP))
        return CLI_OK;
    if (c->n_args < c->command->n_args_min || c->n_args > c->command->n_args_max)
        return cli_usage_error(c, "expected %s",
                               c->command->args[0] != '\0' ? c->command->args : "no argument");
    return CLI_OK;
}

/* Is there a second word that can only be meant as that of a command? */
static bool is_misspelt(const struct command *c, int argc, char **argv)
{
    return c > commands && strcmp(c[-1].name, c->name) == 0 && c->n_args_max == 0 && argc > 1 &&
           argv[1][0] != '-';
}

/* Finds the command; @n_words is how many words of the line name it. */
static const struct command *command_find(int argc, char **argv, int *n_words)
{
    for (const struct command *c = commands; c->name != NULL; c++) {
        if (strcmp(c->name, argv[0]) != 0)
            continue;
        *n_words = c->sub != NULL ? 2 : 1;
        if (c->sub == NULL ? !is_misspelt(c, argc, argv) : argc > 1 && strcmp(c->sub, argv[1]) == 0)
            return c;
    }
    return NULL;
}

/* "lora" without a second word, or one that is unknown. */
static int sub_missing(int argc, char **argv)
{
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    FILE *to = help ? stdout : stderr;

    if (!help && argc > 1)
        (void)fprintf(to, "baton %s: unknown command '%.60s'\n", argv[0], argv[1]);
    for (const struct command *c = commands; c->name != NULL; c++)
        if (strcmp(c->name, argv[0]) == 0)
            (void)fprintf(to, "  baton %s %s %s\n      %s\n", c->name, c->sub != NULL ? c->sub : "",
                          c->args, c->summary);
    return help ? CLI_OK : CLI_USAGE;
}

static enum cli_exit connect_by(struct cli *c, const char *key)
{
    const char *env = getenv("BATON_URL"), *key_env = getenv("BATON_API_KEY");
    struct connection_cfg cfg = {.key = key != NULL ? key : key_env,
                                 .ca_file = c->values[OPT_CA_FILE]};
    struct err e = {0};
    double timeout_s;

    if (cli_number(c, OPT_TIMEOUT, TIMEOUT_S, 0.001, TIMEOUT_S_MAX, &timeout_s) != CLI_OK)
        return CLI_USAGE;
    cfg.timeout_us = (uint64_t)(timeout_s * 1e6);
    cfg.url = cli_has(c, OPT_URL)             ? c->values[OPT_URL]
              : env != NULL && env[0] != '\0' ? env
                                              : "http://127.0.0.1:8700";
    if (cfg.key != NULL && cfg.key[0] == '\0')
        cfg.key = NULL;
    if (connection_new(&c->connection, &cfg, &e) != 0)
        return cli_usage_error(c, "%s%s%s", e.field, e.field[0] != '\0' ? ": " : "", e.msg);
    return CLI_OK;
}

/* The key in the first line of a file: KEY, or ROLE KEY [name=NAME] as in the server's file. */
static char *key_of_line(char *text)
{
    static const char blank[] = " \t";
    char *first = text + strspn(text, blank), *second;

    first[strcspn(first, "\r\n")] = '\0';
    second = first + strcspn(first, blank);
    second += strspn(second, blank);
    if (second[0] == '\0')
        second = first;
    second[strcspn(second, blank)] = '\0';
    return second;
}

/* With the key in place, and a connection unless the command needs none. */
static enum cli_exit command_run(struct cli *c)
{
    char *key = NULL;
    size_t len = 0;
    struct err e = {0};
    enum cli_exit rc = CLI_OK;

    if ((c->command->options & BIT(OPT_URL)) == 0)
        return c->command->run(c);
    if (cli_has(c, OPT_KEY_FILE)) {
        if (public_file_read(&key, &len, c->values[OPT_KEY_FILE], "--key-file", &e) != 0)
            return cli_usage_error(c, "--key-file: %s", e.msg);
    }
    rc = connect_by(c, key != NULL ? key_of_line(key) : NULL);
    if (rc == CLI_OK)
        rc = c->command->run(c);
    connection_free(c->connection);
    secret_file_free(key, len);
    return rc;
}

int cli_run(int argc, char **argv, const char *const *serve_flags)
{
    struct cli c = {.serve_flags = serve_flags};
    const char **args = calloc((size_t)argc + 1, sizeof *args);
    char name[CLI_TEXT_MAX];
    int n_words = 1, rc;

    if (args == NULL)
        return free(args), CLI_USAGE;
    c.command = command_find(argc - 1, argv + 1, &n_words);
    if (c.command == NULL) {
        rc = sub_missing(argc - 1, argv + 1);
    } else {
        (void)snprintf(name, sizeof name, "%s%s%s", c.command->name,
                       c.command->sub != NULL ? " " : "",
                       c.command->sub != NULL ? c.command->sub : "");
        c.name = name;
        json_parse_init();
        json_object_seed(0);
        interrupt_watch();
        rc = words_read(&c, argv + 1 + n_words, argc - 1 - n_words, args);
        if (rc == CLI_OK && cli_has(&c, OPT_HELP))
            command_help(c.command);
        else if (rc == CLI_OK)
            rc = command_run(&c);
    }
    free(args);
    if (fflush(stdout) != 0 && rc == CLI_OK)
        rc = CLI_REFUSED;
    return rc;
}

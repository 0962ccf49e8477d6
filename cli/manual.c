#include "cli/manual.h"

#include <stdio.h>
#include <string.h>

static void words(FILE *to, const struct command *c)
{
    (void)fprintf(to, "baton %s%s%s%s%s", c->name, c->sub != NULL ? " " : "",
                  c->sub != NULL ? c->sub : "", c->args[0] != '\0' ? " " : "", c->args);
}

void command_help(const struct command *c)
{
    (void)fputs("usage: ", stdout);
    words(stdout, c);
    (void)printf(" [options]\n\n%s\n\n", c->summary);
    for (int o = 0; o < CLI_OPTION_COUNT; o++)
        if ((c->options & (1u << o)) != 0)
            (void)printf("  %s%s%s\n      %s\n", option_rows[o].flag,
                         option_rows[o].value[0] != '\0' ? " " : "", option_rows[o].value,
                         option_rows[o].text);
    (void)fputs(
        "\nexit status: 0 done, 1 refused by the server, 2 wrong command line or file, "
        "3 no answer of a baton\nserver, 4 committed by a server with --stage, and not handed "
        "over yet: do not push it again, 130 interrupted;\nweights verify, and weights "
        "diff of two checkpoints: 0 the same, 1 different; weights diff of the last\n"
        "commit: 0 without a warning, 1 with one; upstreams prove: 1 if not all are "
        "proven\n",
        stdout);
}

void cli_usage(struct buf *out)
{
    for (const struct command *c = commands; c->name != NULL; c++) {
        char text[64];

        (void)snprintf(text, sizeof text, "%s%s%s %s", c->name, c->sub != NULL ? " " : "",
                       c->sub != NULL ? c->sub : "", c->args);
        buf_printf(out, "       baton %-32s %s\n", text, c->summary);
    }
}

/* The second words of a command, or its options, for one line of a script. */
static void subs_print(const char *name)
{
    for (const struct command *c = commands; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0 && c->sub != NULL)
            (void)printf("%s ", c->sub);
}

static void options_print(const char *name)
{
    unsigned options = 0;

    for (const struct command *c = commands; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0)
            options |= c->options;
    for (int o = 0; o < CLI_OPTION_COUNT; o++)
        if ((options & (1u << o)) != 0)
            (void)printf("%s ", option_rows[o].flag);
}

/* The first word of a command line, and by it the words and options that may follow. The variables
 * of the shell: n, the place of the word that is completed; first, the first word. */
static void cases_print(const char *const *serve_flags)
{
    const char *const *names = cli_commands();

    (void)fputs("  case $n:$first in\n  1:*) list='serve help version ", stdout);
    for (size_t i = 0; names[i] != NULL; i++)
        (void)printf("%s ", names[i]);
    (void)fputs("' ;;\n  2:help) list='serve ", stdout);
    for (size_t i = 0; names[i] != NULL; i++)
        (void)printf("%s ", names[i]);
    (void)fputs("' ;;\n  *:serve) options='--help --check --config ", stdout);
    for (size_t i = 0; serve_flags[i] != NULL; i++)
        (void)printf("--%s ", serve_flags[i]);
    (void)fputs("' ;;\n", stdout);
    for (size_t i = 0; names[i] != NULL; i++) {
        (void)printf("  *:%s) options='", names[i]);
        options_print(names[i]);
        (void)fputs("'; ((n > 2)) || list='", stdout);
        subs_print(names[i]);
        (void)fputs("' ;;\n", stdout);
    }
    (void)fputs("  esac\n  [[ $cur != -* ]] || list=$options\n", stdout);
}

/* Options only behind a '-', so that elsewhere the shell completes files. */
static void bash_print(const char *const *serve_flags)
{
    (void)fputs("_baton() {\n  local cur=${COMP_WORDS[COMP_CWORD]} n=$COMP_CWORD "
                "first=${COMP_WORDS[1]} list= options=\n",
                stdout);
    cases_print(serve_flags);
    (void)fputs("  mapfile -t COMPREPLY < <(compgen -W \"$list\" -- \"$cur\")\n}\n"
                "complete -o default -F _baton baton\n",
                stdout);
}

/* Works as a file of fpath, which zsh runs at the first completion, and sourced. */
static void zsh_print(const char *const *serve_flags)
{
    (void)fputs("#compdef baton\n_baton() {\n  local cur=${words[CURRENT]} n=$((CURRENT - 1)) "
                "first=${words[2]} list= options=\n",
                stdout);
    cases_print(serve_flags);
    (void)fputs("  if [[ -n ${list// /} ]]; then compadd -- ${=list}; else _files; fi\n}\n"
                "if [[ ${funcstack[1]} == _baton ]]; then _baton \"$@\"; "
                "else compdef _baton baton; fi\n",
                stdout);
}

enum cli_exit cmd_completion(struct cli *c)
{
    if (strcmp(c->args[0], "bash") == 0)
        bash_print(c->serve_flags);
    else if (strcmp(c->args[0], "zsh") == 0)
        zsh_print(c->serve_flags);
    else
        return cli_usage_error(c, "'%.40s' is neither bash nor zsh", c->args[0]);
    return CLI_OK;
}

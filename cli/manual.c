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
    (void)fputs("\nexit status: 0 done, 1 refused by the server or different, 2 wrong command "
                "line or file,\n3 no answer from the server, 130 interrupted\n",
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

/* Options only behind a '-', so that elsewhere the shell completes files. */
static void bash_print(void)
{
    const char *const *names = cli_commands();

    (void)fputs("_baton() {\n  local cur=${COMP_WORDS[COMP_CWORD]} words= options=\n"
                "  case $COMP_CWORD:${COMP_WORDS[1]} in\n  1:*) words='serve help version ",
                stdout);
    for (size_t i = 0; names[i] != NULL; i++)
        (void)printf("%s ", names[i]);
    (void)fputs("' ;;\n", stdout);
    for (size_t i = 0; names[i] != NULL; i++) {
        (void)printf("  *:%s) options='", names[i]);
        options_print(names[i]);
        (void)fputs("'; ((COMP_CWORD > 2)) || words='", stdout);
        subs_print(names[i]);
        (void)fputs("' ;;\n", stdout);
    }
    (void)fputs("  esac\n  [[ $cur != -* ]] || words=$options\n"
                "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n}\n"
                "complete -o default -F _baton baton\n",
                stdout);
}

enum cli_exit cmd_completion(struct cli *c)
{
    if (strcmp(c->args[0], "bash") != 0 && strcmp(c->args[0], "zsh") != 0)
        return cli_usage_error(c, "'%.40s' is neither bash nor zsh", c->args[0]);
    if (strcmp(c->args[0], "zsh") == 0)
        (void)fputs("autoload -U +X bashcompinit && bashcompinit\n", stdout);
    bash_print();
    return CLI_OK;
}

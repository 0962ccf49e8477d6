/* The table of commands, and the texts that are made of it. */
#ifndef BATON_CLI_MANUAL_H
#define BATON_CLI_MANUAL_H

#include "cli/cli_priv.h"

struct command {
    const char *name, *sub; /* sub: its second word, or NULL */
    const char *args;       /* "" = none */
    const char *summary;
    int n_args_min, n_args_max;
    unsigned options; /* bits 1 << enum cli_option */
    enum cli_exit (*run)(struct cli *c);
};
extern const struct command commands[]; /* the last has no name */

struct option_row {
    const char *flag, *value, *text;
};
extern const struct option_row option_rows[CLI_OPTION_COUNT];

/* command_help - to stdout. */
void command_help(const struct command *c);

#endif

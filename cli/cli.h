/* The command line: what the program does as a client of a running server. */
#ifndef BATON_CLI_CLI_H
#define BATON_CLI_CLI_H

#include "base/buf.h"

#include <stdbool.h>

/* cli_is_command - does the first word of a command line name one of these commands? */
bool cli_is_command(const char *word);

/* cli_run - run a command: argv[1] and what follows. Writes its result to stdout, and why it failed
 * to stderr.
 * @serve_flags  options of `baton serve` without their dashes, for `completion`; borrowed, NULL at
 *               the end
 * Returns: what the process ends with (enum cli_exit).
 * Threads: main's, before any other. Blocks: until the server has answered. */
int cli_run(int argc, char **argv, const char *const *serve_flags);

/* cli_commands - the names of all commands (static; NULL at the end), for a list of near ones. */
const char *const *cli_commands(void);

/* cli_instead - what does here what a command of other programs does there: "'baton status' or …";
 * NULL: nothing is known. */
const char *cli_instead(const char *word);

/* cli_usage - a line for each command. */
void cli_usage(struct buf *out);

#endif

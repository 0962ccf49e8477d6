/* What the commands print has texts of servers, engines, files and models in it. None of them may
 * control a terminal, or make its lines read otherwise: control characters, C1 controls, line
 * separators and bidirectional marks are shown as "\x1b" or "\u202e". */
#ifndef BATON_CLI_TERMINAL_H
#define BATON_CLI_TERMINAL_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* terminal_guard - from now on stdout and stderr show such characters, line ends and tabs excepted,
 * whatever is printed to them. Threads: main's, before any other. Without memory they stay as they
 * are, and false is returned. */
bool terminal_guard(void);

/* terminal_pass_stdout - from now on stdout is what was printed: for a reply that goes to a file.
 */
void terminal_pass_stdout(void);

/* terminal_control - write a control sequence of ours, behind what was printed. */
void terminal_control(FILE *to, const char *sequence);

enum terminal_form {
    TERMINAL_TEXT, /* line ends and tabs stay */
    TERMINAL_LINE, /* one line */
    TERMINAL_JSON  /* as TERMINAL_TEXT; escapes are those of JSON: the value stays the same */
};

/* terminal_show - append the text with such characters shown.
 * Returns: how many bytes at its end begin a character that may go on. */
size_t terminal_show(struct buf *out, const char *text, size_t len, enum terminal_form form);

#endif

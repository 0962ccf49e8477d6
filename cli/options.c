/* The options of the commands, and what is wrong with the words of a command line. */
#include "cli/cli_priv.h"

#include "cli/manual.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const struct option_row option_rows[CLI_OPTION_COUNT] = {
#define X(constant, flag_, value_, text_) [constant] = {flag_, value_, text_},
    CLI_OPTIONS(X)
#undef X
};

enum cli_exit cli_usage_error(const struct cli *c, const char *fmt, ...)
{
    va_list args;

    (void)fprintf(stderr, "baton %s: ", c->name);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "; see 'baton %s --help'\n", c->name);
    return CLI_USAGE;
}

enum cli_exit cli_number(const struct cli *c, enum cli_option o, double fallback, double least,
                         double most, double *out)
{
    char *end;

    *out = fallback;
    if (!cli_has(c, o))
        return CLI_OK;
    *out = strtod(c->values[o], &end);
    if (end == c->values[o] || *end != '\0' || !isfinite(*out) || *out < least || *out > most)
        return cli_usage_error(c, "%s: expected a number of %.10g to %.10g, not '%.40s'",
                               option_rows[o].flag, least, most, c->values[o]);
    return CLI_OK;
}

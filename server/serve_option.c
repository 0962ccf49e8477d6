/* What the parts of a start ask of the options. */
#include "server/serve.h"
#include "server/serve_priv.h"

#include <stdio.h>
#include <string.h>

int serve_option_error(struct err *e, const char *option, const char *value)
{
    struct err cause = *e;
    /* "/path" is a member of a request: here the value came by an option. */
    const char *field = strcmp(cause.field, "/path") == 0 ? "" : cause.field;
    bool named = strstr(cause.msg, value) != NULL;

    err_clear(e);
    return err_set(e, cause.code, option, "%.200s%s%s%s%.400s", named ? "" : value,
                   named ? "" : ": ", field, field[0] != '\0' ? ": " : "", cause.msg);
}

bool server_has_engine(const struct server *s)
{
    return strcmp(s->config.engine, "none") != 0;
}

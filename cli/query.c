#include "cli/query.h"

#include <string.h>

void query_put(struct buf *path, const char *name, const char *value)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

    buf_printf(path, "%s%s=", path->data != NULL && strchr(path->data, '?') != NULL ? "&" : "?",
               name);
    for (const unsigned char *at = (const unsigned char *)value; *at != '\0'; at++) {
        if (strchr(plain, *at) != NULL)
            buf_append(path, at, 1);
        else
            buf_printf(path, "%%%02X", *at);
    }
}

/* The configuration read again: what changed in its file since the start. */
#include "server/config/config_table.h"

#include <stdio.h>
#include <string.h>

bool config_has_file(const struct config *c)
{
    return c->origins->file[0] != '\0';
}

int config_reload(struct config *out, const struct config *c, struct err *e)
{
    return config_load(out, c->argc, c->argv, c->env, e);
}

static bool same_text(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool same_value(const struct config_option *o, const struct config *a,
                       const struct config *b)
{
    const void *x = (const char *)a + o->offset, *y = (const char *)b + o->offset;
    const struct config_list *many = x, *others = y;

    if (o->kind == KIND_STR)
        return same_text(*(const char *const *)x, *(const char *const *)y);
    if (o->kind == KIND_BOOL)
        return *(const bool *)x == *(const bool *)y;
    if (!config_is_list(o))
        return *(const uint64_t *)x == *(const uint64_t *)y;
    for (size_t i = 0; i < many->n && i < others->n; i++)
        if (!same_text(many->items[i], others->items[i]))
            return false;
    return many->n == others->n;
}

size_t config_changes(char *out, size_t cap, const struct config *a, const struct config *b,
                      const char *except)
{
    size_t n = 0, len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++) {
        const struct config_option *o = &config_options[i];

        if (strcmp(o->flag, except) == 0 || same_value(o, a, b))
            continue;
        if (len < cap)
            len += (size_t)snprintf(out + len, cap - len, "%s--%s", n > 0 ? ", " : "", o->flag);
        n++;
    }
    return n;
}

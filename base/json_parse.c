/* jansson 2.14 ignores a failed growth of its token buffer, which would shorten a long name or
 * number: so a parse that ran out of memory is neither the text's mistake nor a success. */
#include "base/json_parse.h"

#include <stdlib.h>
#include <string.h>

/* While a thread parses, its first failed allocation is remembered and every later one fails too,
 * so that jansson stops at once instead of going on with a shortened token. */
static _Thread_local struct {
    bool parsing, starved;
} memory;

static void *parse_malloc(size_t nbytes)
{
    void *p = memory.parsing && memory.starved ? NULL : malloc(nbytes);

    if (p == NULL)
        memory.starved = true;
    return p;
}

void json_parse_init(void)
{
    json_set_alloc_funcs(parse_malloc, free);
}

/* Without json_parse_init an allocation failure looks like this: no text at all, or "invalid token"
 * at a string. Real mistakes in strings all have other texts. */
static bool looks_starved(const json_error_t *why)
{
    return why->text[0] == '\0' || json_error_code(why) == json_error_out_of_memory ||
           strncmp(why->text, "invalid token near '\"", 21) == 0;
}

json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *why, bool *starved)
{
    json_t *root;

    memset(why, 0, sizeof *why);
    memory.parsing = true;
    memory.starved = false;
    root = json_loadb(text, len, flags, why);
    memory.parsing = false;
    *starved = memory.starved || (root == NULL && looks_starved(why));
    if (*starved) {
        json_decref(root);
        return NULL;
    }
    return root;
}

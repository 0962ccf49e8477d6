#include "fleet/api/api_spans.h"

#include <jansson.h>
#include <stdlib.h>

bool api_spans_read(struct api_spans *out, const char *text, size_t len)
{
    json_t *list = json_loadb(text, len, 0, NULL);
    size_t n = json_array_size(list);

    *out = (struct api_spans){.list = n > 0 ? calloc(n, sizeof *out->list) : NULL, .json = list};
    for (; out->list != NULL && out->n < n; out->n++) {
        struct api_span *span = &out->list[out->n];
        json_int_t start, end;

        if (json_unpack(json_array_get(list, out->n), "{s:s, s:I, s:I}", "version", &span->version,
                        "start", &start, "end", &end) != 0)
            break;
        span->start = start;
        span->end = end;
    }
    if (n > 0 && out->n == n)
        return true;
    api_spans_fini(out);
    return false;
}

void api_spans_fini(struct api_spans *s)
{
    free(s->list);
    json_decref(s->json);
    *s = (struct api_spans){0};
}

static json_t *token_json(int64_t at)
{
    return at >= 0 ? json_integer(at) : json_null();
}

void api_spans_put(struct buf *out, const struct api_span *span, const uint64_t *serial, bool exact)
{
    json_auto_t *json = json_pack(
        "{s:o, s:o, s:o, s:o, s:b}", "version",
        span->version[0] != '\0' ? json_string(span->version) : json_null(), "start",
        token_json(span->start), "end", token_json(span->end), "serial",
        serial != NULL ? json_integer((json_int_t)*serial) : json_null(), "exact", (int)exact);
    char *text = json_dumps(json, JSON_COMPACT);

    if (text == NULL)
        out->failed = true;
    else
        buf_puts(out, text);
    free(text);
}

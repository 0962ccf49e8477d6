#include "fleet/api/api_spans.h"

#include <jansson.h>
#include <stdlib.h>

static bool is_span(const json_t *span)
{
    return json_is_string(json_object_get(span, "version")) &&
           json_is_integer(json_object_get(span, "start")) &&
           json_is_integer(json_object_get(span, "end"));
}

bool api_spans_read(struct api_spans *out, const char *text, size_t len)
{
    json_t *list = json_loadb(text, len, 0, NULL);
    size_t n = json_array_size(list);

    *out = (struct api_spans){.list = n > 0 ? calloc(n, sizeof *out->list) : NULL, .json = list};
    for (; out->list != NULL && out->n < n; out->n++) {
        const json_t *span = json_array_get(list, out->n);

        if (!is_span(span))
            break;
        out->list[out->n] = (struct api_span){json_string_value(json_object_get(span, "version")),
                                              json_integer_value(json_object_get(span, "start")),
                                              json_integer_value(json_object_get(span, "end"))};
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

void api_spans_put(struct buf *out, const struct api_span_put *span)
{
    json_t *json = json_pack(
        "{s:o, s:o, s:o, s:o, s:b}", "version",
        span->version[0] != '\0' ? json_string(span->version) : json_null(), "start",
        token_json(span->start), "end", token_json(span->end), "serial",
        span->serial != NULL ? json_integer((json_int_t)*span->serial) : json_null(), "exact",
        (int)span->exact);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;

    if (text == NULL)
        out->failed = true;
    else
        buf_puts(out, text);
    free(text);
    json_decref(json);
}

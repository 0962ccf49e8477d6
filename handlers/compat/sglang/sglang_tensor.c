/* Translates the requests of SGLang's updates by tensor. */
#include "handlers/compat/sglang/sglang_tensor.h"

#include "handlers/body.h"
#include "handlers/dialect.h"

#include <string.h>

/* The pickles themselves show which of the two forms they have. */
static int check_format(const json_t *body, struct err *e)
{
    const char *load_format = "direct";

    if (body_str(&load_format, body, "", "load_format", e) != 0)
        return -1;
    if (strcmp(load_format, "direct") == 0 || strcmp(load_format, "flattened_bucket") == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/load_format",
                   "load_format '%.64s' is not direct or flattened_bucket, nor left out: other "
                   "loaders are code, which is not run here",
                   load_format);
}

int sglang_tensor_request(json_t **body, const struct http_request *x, struct err *e)
{
    bool target = false;

    if (body_bool(&target, *body, "", "disable_draft_model", e) != 0)
        return -1;
    /* The name of selector before 0.5.21. */
    if (target && body_given(*body, "selector") == NULL &&
        dialect_set(*body, "selector", json_string("target"), e) != 0)
        return -1;
    if (check_format(*body, e) != 0 || body_required(*body, "", "serialized_named_tensors", e) != 0)
        return -1;
    return dialect_request_plain(body, x, e);
}

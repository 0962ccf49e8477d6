/* One table for each dialect, a row for each operation. What the rows of a dialect cannot say is
 * refused by the member that asks for it, never left out. */
#include "fleet/api/upstream_api_priv.h"

#include <stdlib.h>
#include <string.h>

static const char *const dialect_names[UPSTREAM_KINDS] = {"baton", "vllm", "sglang"};

int upstream_kind_parse(enum upstream_kind *out, const char *name, const char *field, struct err *e)
{
    for (int d = 0; d < UPSTREAM_KINDS; d++) {
        if (strcmp(name, dialect_names[d]) != 0)
            continue;
        *out = (enum upstream_kind)d;
        return 0;
    }
    return err_set(e, ERR_BAD_REQUEST, field, "'%.32s' is none of baton, vllm, sglang", name);
}

const char *upstream_kind_name(enum upstream_kind d)
{
    return dialect_names[d];
}

bool upstream_is_two_phase(enum upstream_kind d)
{
    return d == UPSTREAM_BATON;
}

void api_request_fini(struct api_request *r)
{
    free(r->body);
    memset(r, 0, sizeof *r);
}

int api_make_request(struct api_request *out, enum upstream_kind d, enum api_op op,
                     const json_t *native, const struct api_context *about, struct err *e)
{
    static int (*const make[UPSTREAM_KINDS])(struct api_request *, enum api_op, const json_t *,
                                             const struct api_context *, struct err *) = {
        baton_make_request, vllm_make_request, sglang_make_request};
    struct api_request made = {0};

    if (make[d](&made, op, native, about, e) != 0) {
        api_request_fini(&made);
        memset(out, 0, sizeof *out);
        return -1;
    }
    *out = made;
    return 0;
}

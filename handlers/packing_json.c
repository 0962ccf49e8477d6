/* The members that describe how a group's broadcasts are packed. */
#include "handlers/packing_json.h"

#include "handlers/body.h"

static int parse_bucket(struct packing_params *out, const json_t *body, struct err *e)
{
    static const char *const fields[] = {"/bucket_nbytes", "/packed_buffer_size_bytes"};

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (body_given(body, fields[i] + 1) == NULL)
            continue;
        if (out->bucket_nbytes != 0)
            return err_set(e, ERR_BAD_REQUEST, fields[i],
                           "bucket_nbytes and packed_buffer_size_bytes are one member; send one of "
                           "them");
        out->bucket_field = fields[i];
        if (body_u64(&out->bucket_nbytes, body, "", fields[i] + 1, 1, INT64_MAX, e) != 0)
            return -1;
    }
    return 0;
}

int packing_parse(struct packing_params *out, const json_t *body, struct err *e)
{
    *out = (struct packing_params){.packed_given = body_given(body, "packed") != NULL};
    if (body_bool(&out->packed, body, "", "packed", e) != 0)
        return -1;
    return parse_bucket(out, body, e);
}

int packing_parse_join(struct packing_params *out, const json_t *body, struct err *e)
{
    uint64_t n_buffers = 0;

    if (packing_parse(out, body, e) != 0 ||
        body_u64(&n_buffers, body, "", "packed_num_buffers", 1, INT64_MAX, e) != 0)
        return -1;
    if (out->packed || out->bucket_nbytes == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, out->bucket_field, "%s goes with \"packed\": true",
                   out->bucket_field + 1);
}

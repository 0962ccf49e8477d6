/* How a group's broadcasts are packed. */
#include "handlers/packing_json.h"

int packing_settle(struct packing_request *p, struct err *e)
{
    if (p->bucket_nbytes != 0 && p->buffer_nbytes != 0)
        return err_set(e, ERR_BAD_REQUEST, "/packed_buffer_size_bytes",
                       "bucket_nbytes and packed_buffer_size_bytes are one member; send one of "
                       "them");
    p->field = p->buffer_nbytes != 0 ? "/packed_buffer_size_bytes" : "/bucket_nbytes";
    p->bucket_nbytes += p->buffer_nbytes;
    return 0;
}

int packing_settle_join(struct packing_request *p, struct err *e)
{
    if (packing_settle(p, e) != 0)
        return -1;
    if (p->packed || p->bucket_nbytes == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, p->field, "%s goes with \"packed\": true", p->field + 1);
}

/* The ids that a request names an update, or a part of one, by. */
#include "handlers/update/update_parts.h"

#include "handlers/body.h"

#include <string.h>

int update_id_check(const char *id, size_t len_max, const char *field, struct err *e)
{
    size_t len = strlen(id);

    if (len == 0 || len > len_max)
        return err_set(e, ERR_BAD_REQUEST, field, "an id is 1 to %zu bytes long; this has %zu",
                       len_max, len);
    return 0;
}

int update_id_parse(const char **id, const json_t *body, struct err *e)
{
    const char *found = NULL;

    if (body_required(body, "", "update_id", e) != 0 ||
        body_str(&found, body, "", "update_id", e) != 0 ||
        update_id_check(found, UPDATE_ID_MAX, "/update_id", e) != 0)
        return -1;
    *id = found;
    return 0;
}

/* How tensors are packed: vLLM accepts it when a transfer is set up; before 0.27 (handles) and 0.28
 * (groups), in each update. A trainer for either release may work with engines of either. */
#include "base/json_parse.h"
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/calls/fleet_transfer.h"
#include "handlers/body.h"
#include "handlers/fleet/handlers.h"
#include "handlers/packing_json.h"
#include "handlers/rows/rows.h"
#include "weights/tensor_list.h"

#include <string.h>

static int packing_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
}

int fleet_inherit_list(struct fleet_control *fc, json_t *body, struct err *e)
{
    const char *plan_id = json_string_value(body_given(body, "plan_id"));
    const char *group = json_string_value(body_given(body, "group_name"));
    struct api_object *list;
    int rc;

    if (plan_id == NULL || strcmp(plan_id, TENSOR_LIST_ID_LAST) != 0 ||
        body_given(body, "transport") == NULL || body_given(body, "names") != NULL)
        return 0;
    if (fleet_require_group(fc, group, e) != 0)
        return -1;
    list = fleet_group_list(fc, group);
    if (list == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/names", TENSOR_LIST_NONE_BEFORE);
    (void)json_object_del(body, "plan_id");
    rc = json_object_update(body, json_mutable(api_object_json(list))) == 0 ? 0
                                                                            : packing_no_memory(e);
    api_object_unref(list);
    return rc;
}

/* As in a server with GPUs of its own (nccl_request.c). */
static int inherit_from_group(const struct api_packing *g, json_t *body, struct err *e)
{
    bool sized = body_given(body, "sizes") != NULL;
    struct packing_request words = {0};

    if (!g->packed)
        return 0;
    if (member_read(&words, packing_rows, body, "", e) != 0 || packing_settle(&words, e) != 0)
        return -1;
    if (!words.packed_given && sized)
        return err_set(
            e, ERR_BAD_REQUEST, "/sizes",
            "the group was joined with packed, which is many broadcasts, and packed with "
            "sizes is one: give packed here too, or leave out sizes");
    if ((words.packed_given && !words.packed) ||
        (words.packed_given && (sized || words.bucket_nbytes != 0 || g->bucket_nbytes == 0)))
        return 0;
    if (json_object_set_new(body, "packed", json_true()) != 0 ||
        (words.bucket_nbytes == 0 && g->bucket_nbytes != 0 &&
         json_object_set_new(body, "bucket_nbytes", json_integer((json_int_t)g->bucket_nbytes)) !=
             0))
        return packing_no_memory(e);
    return 0;
}

static bool body_has_handles(const json_t *body)
{
    return body_given(body, "ipc_handles_pickled") != NULL ||
           body_given(body, "ipc_handles") != NULL;
}

int fleet_inherit_packing(struct fleet_control *fc, json_t *body, struct err *e)
{
    struct fleet_handles handles;
    struct fleet_group group;
    bool packed = false;

    (void)fleet_get_group(fc, json_string_value(body_given(body, "group_name")), &group);
    fleet_get_handles(fc, &handles);
    if (body_given(body, "transport") != NULL)
        return inherit_from_group(&group.packing, body, e);
    if (!body_has_handles(body))
        return 0;
    if (body_bool(&packed, body, "", "packed", e) != 0)
        return -1;
    if (!handles.on || body_given(body, "packed") != NULL)
        return 0;
    return json_object_set_new(body, "packed", json_boolean(handles.packed)) == 0
               ? 0
               : packing_no_memory(e);
}

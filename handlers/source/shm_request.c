/* The `shm` member: one packed bucket, or one range for each tensor. */
#include "handlers/body.h"
#include "handlers/rows/rows.h"
#include "handlers/source/source_json.h"
#include "transport/shm.h"

#include <stdio.h>
#include <stdlib.h>

static int read_range(struct shm_range *out, const json_t *object, const char *at, struct err *e)
{
    if (!json_is_object(object))
        return err_set(e, ERR_BAD_REQUEST, at, "a range is an object {name, offset, nbytes}");
    return member_read_only(out, shm_rows, object, at, e);
}

static int read_ranges(struct shm_range *ranges, const json_t *list, struct err *e)
{
    char at[32];

    for (size_t i = 0; i < json_array_size(list); i++) {
        (void)snprintf(at, sizeof at, "/shm/%zu", i);
        if (read_range(&ranges[i], json_array_get(list, i), at, e) != 0)
            return -1;
    }
    return 0;
}

/* `packed` is optional; if given, it must agree with the form of `shm`. */
static int check_shm_packed(const json_t *body, bool is_packed, struct err *e)
{
    bool packed = is_packed;

    if (body_bool(&packed, body, "", "packed", e) != 0)
        return -1;
    if (packed == is_packed)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/packed",
                   packed ? "packed is true, but shm is a list of ranges; a packed bucket is one "
                            "object {name, offset, nbytes}"
                          : "packed is false, but shm is one object; unpacked tensors need a list "
                            "with one range for each");
}

static int open_each(struct source **out, const json_t *list, const struct tensor_list *tensor_list,
                     struct err *e)
{
    struct shm_range *ranges;
    int rc;

    if (json_array_size(list) != tensor_list->n_tensors)
        return err_set(e, ERR_BAD_REQUEST, "/shm", "shm has %zu ranges for %u tensors",
                       json_array_size(list), tensor_list->n_tensors);
    ranges = calloc(tensor_list->n_tensors, sizeof *ranges);
    if (ranges == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the ranges");
    rc = read_ranges(ranges, list, e);
    if (rc == 0)
        rc = shm_source_open(out, ranges, tensor_list->n_tensors, false, tensor_list, e);
    free(ranges);
    return rc;
}

int shm_from_body(struct source **out, const json_t *body, const struct tensor_list *tensor_list,
                  struct err *e)
{
    const json_t *shm = json_object_get(body, "shm");
    struct shm_range range = {0};

    if (json_is_array(shm)) {
        if (check_shm_packed(body, false, e) != 0)
            return -1;
        return open_each(out, shm, tensor_list, e);
    }
    if (!json_is_object(shm))
        return err_set(e, ERR_BAD_REQUEST, "/shm",
                       "shm is an object {name, offset, nbytes}, or a list of them");
    if (check_shm_packed(body, true, e) != 0 || read_range(&range, shm, "/shm", e) != 0)
        return -1;
    return shm_source_open(out, &range, 1, true, tensor_list, e);
}

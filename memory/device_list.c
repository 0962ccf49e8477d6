/* Parses `--device`. The whole text is checked before CUDA is loaded, so that a mistake in it is
 * reported as one on a machine without a GPU too. */
#include "memory/device_list.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FIELD "--device"

enum {
    LIST_TEXT_MAX = 384, /* of the available devices, in a message */
    ORDINAL_DIGITS_MAX = 4,
    UUID_LEN = 36
};

/* One entry of the list, in the caller's text. */
struct entry {
    const char *text;
    size_t len;
};

static bool starts_with(const char *text, size_t len, const char *prefix)
{
    return len >= strlen(prefix) && strncasecmp(text, prefix, strlen(prefix)) == 0;
}

/* "GPU-" and "MIG-" are how a tool shows a UUID, not a part of it. */
static struct entry bare_uuid(const char *text, size_t len)
{
    size_t skip = starts_with(text, len, "GPU-") || starts_with(text, len, "MIG-") ? 4 : 0;

    return (struct entry){text + skip, len - skip};
}

static bool is_uuid(struct entry it)
{
    if (it.len != UUID_LEN)
        return false;
    for (size_t i = 0; i < it.len; i++) {
        const char *allowed = i == 8 || i == 13 || i == 18 || i == 23 ? "-"
                                                                      : "0123456789abcdefABCDEF";

        if (it.text[i] == '\0' || strchr(allowed, it.text[i]) == NULL)
            return false;
    }
    return true;
}

/* The number after "cuda:", or -1. */
static int ordinal_of(struct entry it)
{
    static const char prefix[] = "cuda:";
    size_t n = sizeof prefix - 1;
    int ordinal = 0;

    if (it.len <= n || it.len > n + ORDINAL_DIGITS_MAX || strncmp(it.text, prefix, n) != 0 ||
        strspn(it.text + n, "0123456789") < it.len - n)
        return -1;
    for (size_t i = n; i < it.len; i++)
        ordinal = ordinal * 10 + (it.text[i] - '0');
    return ordinal;
}

static bool names_device(struct entry it, const struct cuda_device *d)
{
    struct entry theirs = bare_uuid(d->uuid, strlen(d->uuid));
    int ordinal = ordinal_of(it);

    if (ordinal >= 0)
        return d->ordinal == ordinal;
    it = bare_uuid(it.text, it.len);
    return it.len == theirs.len && strncasecmp(it.text, theirs.text, it.len) == 0;
}

static int check_entry(struct entry it, const char *expected, struct err *e)
{
    if (ordinal_of(it) >= 0 || is_uuid(bare_uuid(it.text, it.len)))
        return 0;
    if (it.len == 3 && strncmp(it.text, "cpu", 3) == 0)
        return err_set(e, ERR_BAD_REQUEST, FIELD,
                       "cpu stands alone: weights lie in host memory, or on GPUs");
    return err_set(e, ERR_BAD_REQUEST, FIELD, "'%.*s' is not a device; expected %s",
                   (int)(it.len < 64 ? it.len : 64), it.text, expected);
}

/* Reads the entry at *at and moves *at behind it; false at the end. */
static bool next_entry(const char **at, struct entry *out)
{
    if (*at == NULL)
        return false;
    *out = (struct entry){*at, strcspn(*at, ",")};
    *at = out->text[out->len] == ',' ? out->text + out->len + 1 : NULL;
    return true;
}

/* "cuda:0 (GPU-..., NVIDIA H200), ...": as many as fit, then how many more. */
static void describe_devices(char out[LIST_TEXT_MAX], const struct cuda_info *cuda)
{
    char one[CUDA_NAME_MAX + CUDA_UUID_MAX + 32];
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < cuda->n_devices; i++) {
        const struct cuda_device *d = &cuda->devices[i];
        int n = snprintf(one, sizeof one, "%scuda:%d (%s, %s)", i > 0 ? ", " : "", d->ordinal,
                         d->uuid, d->name);

        if (n < 0 || len + (size_t)n + 24 > LIST_TEXT_MAX) {
            (void)snprintf(out + len, LIST_TEXT_MAX - len, " and %zu more", cuda->n_devices - i);
            return;
        }
        len += (size_t)snprintf(out + len, LIST_TEXT_MAX - len, "%s", one);
    }
}

static int find_device(uint32_t *index, struct entry it, const struct cuda_info *cuda,
                       struct err *e)
{
    char list[LIST_TEXT_MAX];

    for (size_t i = 0; i < cuda->n_devices; i++) {
        if (names_device(it, &cuda->devices[i])) {
            *index = (uint32_t)i;
            return 0;
        }
    }
    describe_devices(list, cuda);
    return err_set(e, ERR_NO_GPU, FIELD, "there is no %.*s; there is %s", (int)it.len, it.text,
                   list);
}

static int add_device(struct device_list *list, struct entry it, const struct cuda_info *cuda,
                      struct err *e)
{
    uint32_t index = 0;

    if (find_device(&index, it, cuda, e) != 0)
        return -1;
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->index[i] != index)
            continue;
        if (ordinal_of(it) >= 0)
            return err_set(e, ERR_BAD_REQUEST, FIELD,
                           "cuda:%d is given twice: each rank needs a GPU of its own",
                           cuda->devices[index].ordinal);
        return err_set(e, ERR_BAD_REQUEST, FIELD,
                       "%.*s is cuda:%d, which is given already: each rank needs a GPU of its own",
                       (int)it.len, it.text, cuda->devices[index].ordinal);
    }
    list->index[list->n++] = index; /* without duplicates there are at most as many as devices */
    return 0;
}

int device_list_parse(struct device_list *out, const char *text, const struct cuda_info *cuda,
                      const char *expected, struct err *e)
{
    struct device_list list = {0};
    const char *at;
    struct entry it;

    if (strcmp(text, "cpu") == 0) {
        *out = list;
        return 0;
    }
    for (at = text; next_entry(&at, &it);)
        if (check_entry(it, expected, e) != 0)
            return -1;
    if (!cuda->available)
        return err_set(e, ERR_NO_GPU, FIELD, "'%.64s' needs CUDA, which is not available: %.320s",
                       text, cuda->reason);
    for (at = text; next_entry(&at, &it);)
        if (add_device(&list, it, cuda, e) != 0)
            return -1;
    *out = list;
    return 0;
}

const struct cuda_device *device_list_least(const struct device_list *list,
                                            const struct cuda_info *cuda)
{
    const struct cuda_device *least = &cuda->devices[list->index[0]];

    for (uint32_t rank = 1; rank < list->n; rank++)
        if (cuda->devices[list->index[rank]].nbytes_total < least->nbytes_total)
            least = &cuda->devices[list->index[rank]];
    return least;
}

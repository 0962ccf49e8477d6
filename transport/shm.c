/* POSIX shared memory as a source: objects are opened and their lengths checked here, and read
 * by ranges.c. */
#include "transport/shm.h"

#include "base/utf8.h"
#include "transport/ranges.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_LEN_MAX = 255 }; /* with the slash */

struct shm_source {
    struct source source; /* first */
    struct ranges ranges;
};

static int shm_fill(struct source *s, const struct tensor_list *tensor_list, uint32_t first,
                    uint32_t n, void *dst, struct progress *p, struct err *e)
{
    return ranges_fill(&((struct shm_source *)s)->ranges, tensor_list, first, n, dst, p, e);
}

static void shm_close(struct source *s)
{
    struct shm_source *shm = (struct shm_source *)s;

    if (shm == NULL)
        return;
    ranges_fini(&shm->ranges);
    free(shm);
}

static const struct source_ops shm_ops = {.name = "shm", .fill = shm_fill, .close = shm_close};

/* Fills `field` with "/shm/<member>", or "/shm/<i>/<member>" of a list. */
static const char *shm_field_of(char field[ERR_FIELD_MAX], bool packed, uint32_t i,
                                const char *member)
{
    if (packed)
        (void)snprintf(field, ERR_FIELD_MAX, "/shm/%s", member);
    else
        (void)snprintf(field, ERR_FIELD_MAX, "/shm/%u/%s", (unsigned)i, member);
    return field;
}

/* The name for shm_open, with its slash, into out[NAME_LEN_MAX + 1]. */
static int check_shm_name(char *out, const char *name, const char *field, struct err *e)
{
    const char *rest = name[0] == '/' ? name + 1 : name;
    size_t len = strnlen(rest, NAME_LEN_MAX);

    if (len == 0 || len >= NAME_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the name of a shared memory object must have 1 to %d bytes, unlike '%.*s'",
                       (int)NAME_LEN_MAX - 1, utf8_cut_name(name), name);
    if (strcmp(rest, ".") == 0 || strcmp(rest, "..") == 0 || strchr(rest, '/') != NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.*s' is not the name of a shared memory object: it is '/' and then a "
                       "name without '/'",
                       utf8_cut_name(name), name);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)rest[i] < 0x20 || rest[i] == 0x7f)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "a shared memory object's name has a control character at byte %zu", i);
    (void)snprintf(out, NAME_LEN_MAX + 1, "/%s", rest);
    return 0;
}

/* The number of the object in r->files; opens it when it is named first. */
static int open_object(struct ranges *r, uint32_t *file, const char *name, const char *field,
                       struct err *e)
{
    struct stat st;
    int fd;

    *file = names_find(&r->files, name);
    if (*file != NAMES_NONE)
        return 0;
    fd = shm_open(name, O_RDONLY | O_NONBLOCK, 0); /* O_NONBLOCK: opening a FIFO must not block */
    if (fd < 0)
        return err_set_errno(e, ranges_open_code(errno), field, errno,
                             "shared memory object '%.*s' cannot be opened", utf8_cut_name(name),
                             name);
    if (fstat(fd, &st) != 0) {
        (void)err_set_errno(e, ERR_UNREADABLE, field, errno,
                            "cannot get the status of shared memory object '%.*s'",
                            utf8_cut_name(name), name);
        (void)close(fd);
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        (void)close(fd);
        return err_set(e, ERR_UNREADABLE, field, "'%.*s' is not a shared memory object",
                       utf8_cut_name(name), name);
    }
    *file = r->files.n;
    return ranges_add(r, name, fd, e);
}

/* Checks a range before anything is opened. `what` names the tensor or the bucket. */
static int shm_check_nbytes(const struct shm_range *range, uint64_t nbytes, const char *what,
                            bool packed, uint32_t i, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (range->nbytes != nbytes)
        return err_set(e, ERR_BAD_REQUEST, shm_field_of(field, packed, i, "nbytes"),
                       "%s%.*s%s: nbytes is %llu, but names, dtypes and shapes make %llu",
                       packed ? "" : "tensor '", utf8_cut_name(what), what, packed ? "" : "'",
                       (unsigned long long)range->nbytes, (unsigned long long)nbytes);
    if (range->offset > TENSOR_LIST_NBYTES_MAX - nbytes)
        return err_set(e, ERR_BAD_REQUEST, shm_field_of(field, packed, i, "offset"),
                       "offset %llu and nbytes %llu reach beyond 2^63 - 1",
                       (unsigned long long)range->offset, (unsigned long long)nbytes);
    return 0;
}

static int open_range(struct ranges *r, uint32_t *file, const struct shm_range *range, bool packed,
                      uint32_t i, struct err *e)
{
    char field[ERR_FIELD_MAX], name[NAME_LEN_MAX + 1];
    struct stat st;

    (void)shm_field_of(field, packed, i, "name");
    if (check_shm_name(name, range->name, field, e) != 0 ||
        open_object(r, file, name, field, e) != 0)
        return -1;
    if (fstat(r->fds[*file], &st) != 0)
        return err_set_errno(e, ERR_UNREADABLE, field, errno,
                             "cannot get the size of shared memory object '%.*s'",
                             utf8_cut_name(name), name);
    if ((uint64_t)st.st_size < range->offset + range->nbytes)
        return err_set(
            e, ERR_UNREADABLE, shm_field_of(field, packed, i, "nbytes"),
            "shared memory object '%.*s' has %llu bytes, but offset %llu and nbytes %llu "
            "were given",
            utf8_cut_name(name), name, (unsigned long long)st.st_size,
            (unsigned long long)range->offset, (unsigned long long)range->nbytes);
    return 0;
}

static int open_packed(struct ranges *r, const struct shm_range *range,
                       const struct tensor_list *tensor_list, struct err *e)
{
    uint32_t file;

    if (shm_check_nbytes(range, tensor_list->nbytes, "the packed bucket", true, 0, e) != 0 ||
        open_range(r, &file, range, true, 0, e) != 0)
        return -1;
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        r->at[i] = (struct range){file, range->offset + tensor_list->tensors[i].offset};
    return 0;
}

static int shm_open_each(struct ranges *r, const struct shm_range *ranges,
                         const struct tensor_list *tensor_list, struct err *e)
{
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];
        if (shm_check_nbytes(&ranges[i], t->nbytes, t->name, false, i, e) != 0 ||
            open_range(r, &r->at[i].file, &ranges[i], false, i, e) != 0)
            return -1;
        r->at[i].offset = ranges[i].offset;
    }
    return 0;
}

int shm_source_open(struct source **out, const struct shm_range *ranges, uint32_t n_ranges,
                    bool packed, const struct tensor_list *tensor_list, struct err *e)
{
    struct shm_source *shm;
    int rc;

    if (n_ranges != (packed ? 1 : tensor_list->n_tensors))
        return err_set(e, ERR_BAD_REQUEST, "/shm",
                       "%u ranges of shared memory were given; %s %u is needed", (unsigned)n_ranges,
                       packed ? "for a packed bucket" : "one for each tensor,",
                       packed ? 1 : (unsigned)tensor_list->n_tensors);
    shm = malloc(sizeof *shm);
    if (shm == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a source");
    shm->source.ops = &shm_ops;
    ranges_init(&shm->ranges, "shared memory object");
    rc = ranges_alloc(&shm->ranges, tensor_list->n_tensors, e);
    if (rc == 0)
        rc = packed ? open_packed(&shm->ranges, ranges, tensor_list, e)
                    : shm_open_each(&shm->ranges, ranges, tensor_list, e);
    if (rc != 0) {
        shm_close(&shm->source);
        return -1;
    }
    *out = &shm->source;
    return 0;
}

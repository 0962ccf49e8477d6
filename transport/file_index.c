/* An index is untrusted: it is read member by member, and every file name is checked before it
 * is opened. */
#include "transport/file_index.h"

#include "base/json_reader.h"
#include "base/utf8.h"
#include "weights/tensor_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX "model.safetensors.index.json"

enum { FILE_NAME_LEN_MAX = 255, CAP_MIN = 64 };

void file_index_fini(struct file_index *x)
{
    names_fini(&x->tensors);
    names_fini(&x->files);
    free(x->file);
    memset(x, 0, sizeof *x);
}

static int index_syntax(const struct json_reader *r, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "/path", INDEX ": %s, at byte %zu", r->wrong,
                   json_reader_offset(r));
}

/* Only a file in the directory of the index is accepted. */
static int check_file_name(const char *name, const char *tensor, struct err *e)
{
    bool plain = name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;

    for (const unsigned char *c = (const unsigned char *)name; plain && *c != '\0'; c++)
        plain = *c >= 0x20 && *c != 0x7f && *c != '/' && *c != '\\';
    if (!plain)
        return err_set(e, ERR_BAD_REQUEST, "/path",
                       INDEX ": tensor '%.*s' is in '%.*s', which is not a plain file name",
                       utf8_cut_name(tensor), tensor, utf8_cut(name, 160), name);
    return 0;
}

static int index_reserve(struct file_index *x, struct err *e)
{
    uint32_t cap = x->cap == 0 ? CAP_MIN : 2 * x->cap;
    uint32_t *file;

    if (x->tensors.n < x->cap)
        return 0;
    file = realloc(x->file, cap * sizeof *file);
    if (file == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an index of %u tensors", (unsigned)cap);
    x->file = file;
    x->cap = cap;
    return 0;
}

static int file_index_add(struct file_index *x, const char *tensor, const char *name, struct err *e)
{
    uint32_t file = names_find(&x->files, name);

    if (check_file_name(name, tensor, e) != 0)
        return -1;
    if (x->tensors.n >= TENSOR_LIST_TENSORS_MAX)
        return err_set(e, ERR_TOO_LARGE, "/path", INDEX ": more than %d tensors",
                       (int)TENSOR_LIST_TENSORS_MAX);
    if (names_find(&x->tensors, tensor) != NAMES_NONE)
        return err_set(e, ERR_BAD_REQUEST, "/path", INDEX ": tensor '%.*s' is named twice",
                       utf8_cut_name(tensor), tensor);
    if (file == NAMES_NONE) {
        file = x->files.n;
        if (file >= FILE_INDEX_FILES_MAX)
            return err_set(e, ERR_TOO_LARGE, "/path", INDEX ": more than %d files",
                           (int)FILE_INDEX_FILES_MAX);
        if (names_add(&x->files, name, e) != 0)
            return -1;
    }
    if (index_reserve(x, e) != 0 || names_add(&x->tensors, tensor, e) != 0)
        return -1;
    x->file[x->tensors.n - 1] = file;
    return 0;
}

static int read_map(struct file_index *x, struct json_reader *r, struct err *e)
{
    char tensor[TENSOR_LIST_NAME_LEN_MAX + 1], file[FILE_NAME_LEN_MAX + 1];
    uint32_t n = 0;

    if (!json_reader_open(r, '{'))
        return index_syntax(r, e);
    while (json_reader_next(r, '}', &n)) {
        if (!json_reader_key(r, tensor, sizeof tensor) || !json_reader_string(r, file, sizeof file))
            return index_syntax(r, e);
        if (file_index_add(x, tensor, file, e) != 0)
            return -1;
    }
    return r->wrong == NULL ? 0 : index_syntax(r, e);
}

static int index_parse(struct file_index *x, struct json_reader *r, struct err *e)
{
    char key[TENSOR_LIST_NAME_LEN_MAX + 1];
    bool seen = false;
    uint32_t n = 0;

    if (!json_reader_open(r, '{'))
        return index_syntax(r, e);
    while (json_reader_next(r, '}', &n)) {
        if (!json_reader_key(r, key, sizeof key))
            return index_syntax(r, e);
        if (strcmp(key, "weight_map") != 0) {
            if (!json_reader_skip(r, FILE_INDEX_DEPTH_MAX))
                return index_syntax(r, e);
            continue;
        }
        if (seen)
            return err_set(e, ERR_BAD_REQUEST, "/path", INDEX ": 'weight_map' is repeated");
        seen = true;
        if (read_map(x, r, e) != 0)
            return -1;
    }
    if (!json_reader_end(r))
        return index_syntax(r, e);
    if (x->tensors.n == 0)
        return err_set(e, ERR_BAD_REQUEST, "/path", INDEX ": 'weight_map' %s",
                       seen ? "names no tensors" : "is missing");
    return 0;
}

static int file_index_read_all(char *text, size_t nbytes, int fd, struct err *e)
{
    size_t done = 0;
    ssize_t n;

    while (done < nbytes) {
        n = pread(fd, text + done, nbytes - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(e, ERR_UNREADABLE, "/path", errno, INDEX " cannot be read");
        if (n == 0)
            return err_set(e, ERR_UNREADABLE, "/path",
                           INDEX " shrank to %zu bytes while it was read", done);
        done += (size_t)n;
    }
    return 0;
}

int file_index_read(struct file_index *out, int fd, struct err *e)
{
    struct file_index x = {0};
    struct json_reader r;
    struct stat st;
    char *text;
    int rc;

    if (fstat(fd, &st) != 0)
        return err_set_errno(e, ERR_UNREADABLE, "/path", errno, INDEX " cannot be read");
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_UNREADABLE, "/path", INDEX " is not a regular file");
    if (st.st_size > FILE_INDEX_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "/path", INDEX " has %lld bytes, at most %d are allowed",
                       (long long)st.st_size, (int)FILE_INDEX_NBYTES_MAX);
    text = malloc((size_t)st.st_size + 1);
    if (text == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an index of %lld bytes",
                       (long long)st.st_size);
    names_init(&x.tensors);
    names_init(&x.files);
    json_reader_init(&r, text, (size_t)st.st_size);
    rc = file_index_read_all(text, (size_t)st.st_size, fd, e);
    if (rc == 0)
        rc = index_parse(&x, &r, e);
    free(text);
    if (rc != 0) {
        file_index_fini(&x);
        return -1;
    }
    *out = x;
    return 0;
}

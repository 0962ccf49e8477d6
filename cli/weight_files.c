#include "cli/weight_files.h"

#include "base/file.h"
#include "base/json_parse.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"

enum { FILES_MAX = 4096, INDEX_NBYTES_MAX = 64 << 20, PATH_LEN_MAX = 4096 };

static int weight_files_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a list of files");
}

/* Maps the file whose head has been read. */
static int file_map(struct weight_file *f, int fd, struct err *e)
{
    struct stat st;
    void *at;

    if (fstat(fd, &st) != 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "%.300s cannot be read", f->path);
    f->nbytes = (uint64_t)st.st_size;
    at = mmap(NULL, (size_t)f->nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "%.300s cannot be mapped", f->path);
    f->bytes = at;
    (void)madvise(at, (size_t)f->nbytes, MADV_SEQUENTIAL);
    return 0;
}

static int file_add(struct weight_files *w, const char *dir, const char *name, struct err *e)
{
    struct weight_file *files = realloc(w->files, (w->n + 1) * sizeof *files);
    struct weight_file *f;
    char path[PATH_LEN_MAX];
    int fd = -1, rc;

    if (files == NULL)
        return weight_files_no_memory(e);
    w->files = files;
    f = &files[w->n];
    *f = (struct weight_file){0};
    if (snprintf(path, sizeof path, "%s%s%s", dir, dir[0] != '\0' ? "/" : "", name) >=
        (int)sizeof path)
        return err_set(e, ERR_BAD_REQUEST, "", "the path of %.200s is too long", name);
    f->path = strdup(path);
    if (f->path == NULL)
        return weight_files_no_memory(e);
    w->n++;
    if (safetensors_open(&f->head, &fd, AT_FDCWD, path, e) != 0)
        return -1;
    rc = file_map(f, fd, e);
    (void)close(fd);
    w->nbytes += f->nbytes;
    w->n_tensors += f->head.tensor_list->n_tensors;
    return rc;
}

static bool has_name(const struct weight_files *w, const char *dir, const char *name)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->files[i].path + strlen(dir) + 1, name) == 0)
            return true;
    return false;
}

/* The files of an index, each once, in the order in which it first names them. */
static int weight_files_index_add(struct weight_files *w, const char *dir, const json_t *index,
                                  struct err *e)
{
    json_t *map = json_object_get(index, "weight_map"), *file;
    const char *tensor;

    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(e, ERR_BAD_REQUEST, "", "%.200s/" INDEX " has no weight_map", dir);
    json_object_foreach(map, tensor, file)
    {
        const char *name = json_string_value(file);

        if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL)
            return err_set(e, ERR_BAD_REQUEST, "",
                           "%.200s/" INDEX " names no file of its directory for %.200s", dir,
                           tensor);
        if (!has_name(w, dir, name) && file_add(w, dir, name, e) != 0)
            return -1;
    }
    return 0;
}

/* {tensor: index of its file} (new). A tensor of two files is a mistake: which of them is meant is
 * not known. Errors: ERR_BAD_REQUEST. */
static int names_map(json_t **out, const struct weight_files *w, struct err *e)
{
    json_t *names = json_object();

    for (size_t i = 0; i < w->n; i++) {
        const struct tensor_list *l = w->files[i].head.tensor_list;

        for (uint32_t k = 0; k < l->n_tensors; k++) {
            const json_t *other = json_object_get(names, l->tensors[k].name);

            if (other == NULL) {
                (void)json_object_set_new(names, l->tensors[k].name, json_integer((json_int_t)i));
                continue;
            }
            (void)err_set(e, ERR_BAD_REQUEST, "",
                          "%.100s is in %.100s and in %.100s: name one file, or remove those that "
                          "do not belong to the checkpoint",
                          l->tensors[k].name, w->files[json_integer_value(other)].path,
                          w->files[i].path);
            json_decref(names);
            return -1;
        }
    }
    *out = names;
    return 0;
}

/* Is every tensor of the index in the file that it names? */
static int index_check(const struct weight_files *w, const char *dir, const json_t *index,
                       const json_t *names, struct err *e)
{
    json_t *map = json_object_get(index, "weight_map"), *file;
    const char *tensor;

    json_object_foreach(map, tensor, file)
    {
        const json_t *at = json_object_get(names, tensor);

        if (at == NULL || strcmp(w->files[json_integer_value(at)].path + strlen(dir) + 1,
                                 json_string_value(file)) != 0)
            return err_set(e, ERR_BAD_REQUEST, "",
                           "%.100s/" INDEX " says that %.100s is in %.100s, and it is not", dir,
                           tensor, json_string_value(file));
    }
    return 0;
}

static int index_read(json_t **out, const char *dir, struct err *e)
{
    struct file_cfg cfg = {
        .dir = dir, .path = INDEX, .nbytes_max = INDEX_NBYTES_MAX, .optional = true};
    char *text = NULL;
    size_t len = 0;
    bool starved = false;
    json_error_t why;

    *out = NULL;
    if (file_read(&text, &len, &cfg, e) != 0)
        return -1;
    if (text == NULL)
        return 0;
    *out = json_parse_file(text, len, 0, &why, &starved);
    free(text);
    if (*out == NULL)
        return starved ? weight_files_no_memory(e)
                       : err_set(e, ERR_BAD_REQUEST, "", "%.200s/" INDEX ": line %d: %s", dir,
                                 why.line, why.text);
    return 0;
}

static int is_safetensors(const struct dirent *d)
{
    const char *end = strrchr(d->d_name, '.');

    return end != NULL && strcmp(end, ".safetensors") == 0;
}

static int all_add(struct weight_files *w, const char *dir, struct err *e)
{
    struct dirent **found = NULL;
    int n = scandir(dir, &found, is_safetensors, alphasort), rc = 0;

    if (n < 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "%.300s cannot be read", dir);
    if (n == 0)
        rc = err_set(e, ERR_BAD_REQUEST, "", "%.300s has no .safetensors file", dir);
    if (n > FILES_MAX)
        rc = err_set(e, ERR_BAD_REQUEST, "", "%.300s has %d files, more than %d", dir, n,
                     FILES_MAX);
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = file_add(w, dir, found[i]->d_name, e);
        free(found[i]);
    }
    free(found);
    return rc;
}

static int dir_add(struct weight_files *w, const char *dir, struct err *e)
{
    char whole[PATH_LEN_MAX];
    json_t *index, *names = NULL;
    bool single;
    int rc;

    if (index_read(&index, dir, e) != 0)
        return -1;
    (void)snprintf(whole, sizeof whole, "%.4000s/" SINGLE, dir);
    single = access(whole, F_OK) == 0;
    if (index == NULL)
        return single ? file_add(w, dir, SINGLE, e) : all_add(w, dir, e);
    rc = weight_files_index_add(w, dir, index, e);
    if (rc == 0 && single && !has_name(w, dir, SINGLE))
        rc = err_set(e, ERR_BAD_REQUEST, "",
                     "%.200s has " SINGLE " beside an index (" INDEX
                     ") of other files: remove what "
                     "does not belong to the checkpoint, or name one file",
                     dir);
    if (rc == 0)
        rc = names_map(&names, w, e);
    if (rc == 0)
        rc = index_check(w, dir, index, names, e);
    json_decref(names);
    json_decref(index);
    return rc;
}

int weight_files_open(struct weight_files *out, const char *path, struct err *e)
{
    struct stat st;
    json_t *names = NULL;
    int rc;

    *out = (struct weight_files){0};
    if (stat(path, &st) != 0)
        return err_set_errno(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_UNREADABLE, "", errno,
                             "%.300s cannot be read", path);
    rc = S_ISDIR(st.st_mode) ? dir_add(out, path, e) : file_add(out, "", path, e);
    if (rc == 0)
        rc = names_map(&names, out, e);
    json_decref(names);
    if (rc != 0)
        weight_files_close(out);
    return rc;
}

void weight_files_close(struct weight_files *w)
{
    for (size_t i = 0; i < w->n; i++) {
        struct weight_file *f = &w->files[i];

        if (f->bytes != NULL)
            (void)munmap((void *)(uintptr_t)f->bytes, (size_t)f->nbytes);
        safetensors_fini(&f->head);
        free(f->path);
    }
    free(w->files);
    *w = (struct weight_files){0};
}

const unsigned char *weight_file_bytes(const struct weight_file *f, uint32_t index)
{
    return f->bytes + f->head.nbytes_head + f->head.tensor_list->tensors[index].offset;
}

struct checksum weight_file_checksum(const struct weight_file *f, uint32_t index)
{
    return checksum_of(weight_file_bytes(f, index), f->head.tensor_list->tensors[index].nbytes);
}

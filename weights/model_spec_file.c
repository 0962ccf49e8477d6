/* A model spec from the operator's file, for a store without an engine. */
#include "weights/model_spec.h"

#include "base/file.h"
#include "base/json_parse.h"
#include "base/utf8.h"
#include "weights/safetensors.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_NBYTES_MAX = 256 << 20 };

static int from_safetensors(struct model_spec **out, const char *path, struct err *e)
{
    struct safetensors s;
    struct tensor_list *tensor_list;
    int fd;

    if (safetensors_open(&s, &fd, AT_FDCWD, path, e) != 0)
        return -1;
    tensor_list = tensor_list_ref(s.tensor_list);
    safetensors_fini(&s);
    (void)close(fd);
    return model_spec_new(out, tensor_list, NULL, 0, e);
}

/* The array `name` of the root. */
static int array_of(const json_t **out, const json_t *root, const char *name, struct err *e)
{
    char field[ERR_FIELD_MAX];

    *out = json_object_get(root, name);
    if (json_is_array(*out))
        return 0;
    (void)snprintf(field, sizeof field, "/%s", name);
    return err_set(e, ERR_BAD_REQUEST, field, "manifest: '%s' must be an array", name);
}

static int shape_of(uint64_t shape[TENSOR_LIST_NDIM_MAX], uint32_t *ndim, const json_t *dims,
                    size_t i, struct err *e)
{
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "/shapes/%zu", i);
    if (!json_is_array(dims) || json_array_size(dims) > TENSOR_LIST_NDIM_MAX)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "manifest: shape %zu must be an array of at most %d integers", i,
                       (int)TENSOR_LIST_NDIM_MAX);
    *ndim = (uint32_t)json_array_size(dims);
    for (uint32_t k = 0; k < *ndim; k++) {
        const json_t *dim = json_array_get(dims, k);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(e, ERR_BAD_REQUEST, field,
                           "manifest: dimension %u of shape %zu must be a non-negative integer",
                           (unsigned)k, i);
        shape[k] = (uint64_t)json_integer_value(dim);
    }
    return 0;
}

static int spec_file_add_tensor(struct tensor_list_builder *b, const json_t *name,
                                const json_t *dtype, const json_t *dims, size_t i, struct err *e)
{
    const char *text = json_string_value(dtype);
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
    char field[ERR_FIELD_MAX];
    uint32_t ndim;
    enum dtype d;

    if (!json_is_string(name)) {
        (void)snprintf(field, sizeof field, "/names/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field, "manifest: name %zu must be a string", i);
    }
    d = text != NULL ? dtype_parse(text) : DTYPE_NONE;
    if (d == DTYPE_NONE) {
        (void)snprintf(field, sizeof field, "/dtypes/%zu", i);
        return err_set(e, ERR_BAD_REQUEST, field, "manifest: dtype %zu '%.*s' is not one of %s", i,
                       text != NULL ? utf8_cut(text, 64) : 0, text != NULL ? text : "",
                       dtype_list());
    }
    if (shape_of(shape, &ndim, dims, i, e) != 0)
        return -1;
    return tensor_list_builder_add(b, json_string_value(name), d, shape, ndim, UINT64_MAX, e);
}

static int spec_file_tensor_list_of(struct tensor_list **out, const json_t *root, struct err *e)
{
    const json_t *names, *dtypes, *shapes;
    struct tensor_list_builder *b;

    if (array_of(&names, root, "names", e) != 0 || array_of(&dtypes, root, "dtypes", e) != 0 ||
        array_of(&shapes, root, "shapes", e) != 0)
        return -1;
    if (json_array_size(names) != json_array_size(dtypes) ||
        json_array_size(names) != json_array_size(shapes))
        return err_set(e, ERR_BAD_REQUEST, "/names",
                       "manifest: %zu names, %zu dtypes and %zu shapes; there must be one for each",
                       json_array_size(names), json_array_size(dtypes), json_array_size(shapes));
    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(names); i++)
        if (spec_file_add_tensor(b, json_array_get(names, i), json_array_get(dtypes, i),
                                 json_array_get(shapes, i), i, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
    return tensor_list_builder_finish(b, out, e);
}

/* Here a wrong alias is the operator's mistake; model_spec_new would report an internal error. */
static int check_alias(const struct tensor_list *tensor_list, const char *name,
                       const json_t *target, struct err *e)
{
    const char *text = json_string_value(target);

    if (text == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/aliases",
                       "manifest: alias '%.*s' must be the name of a tensor", utf8_cut_name(name),
                       name);
    if (name[0] == '\0' || strlen(name) > TENSOR_LIST_NAME_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/aliases",
                       "manifest: alias '%.*s' must have 1 to %d bytes", utf8_cut_name(name), name,
                       (int)TENSOR_LIST_NAME_LEN_MAX);
    if (tensor_list_find(tensor_list, name) != TENSOR_LIST_NO_TENSOR)
        return err_set(e, ERR_BAD_REQUEST, "/aliases",
                       "manifest: alias '%.*s' is the name of a tensor itself", utf8_cut_name(name),
                       name);
    if (tensor_list_find(tensor_list, text) == TENSOR_LIST_NO_TENSOR)
        return err_set(e, ERR_BAD_REQUEST, "/aliases",
                       "manifest: alias '%.*s' names '%.*s', which is not a tensor",
                       utf8_cut_name(name), name, utf8_cut_name(text), text);
    return 0;
}

static int with_aliases(struct model_spec **out, struct tensor_list *tensor_list, json_t *aliases,
                        struct err *e)
{
    size_t n = json_object_size(aliases), i = 0;
    struct alias_spec *specs = calloc(n + 1, sizeof *specs);
    const char **targets = calloc(2 * n + 1, sizeof *targets);
    int rc = 0;

    if (specs == NULL || targets == NULL)
        rc = err_set(e, ERR_NO_MEMORY, "", "no memory for %zu aliases", n);
    for (void *at = json_object_iter(aliases); at != NULL && rc == 0;
         at = json_object_iter_next(aliases, at), i++) {
        rc = check_alias(tensor_list, json_object_iter_key(at), json_object_iter_value(at), e);
        targets[2 * i] = json_string_value(json_object_iter_value(at));
        specs[i] = (struct alias_spec){
            .name = json_object_iter_key(at), .kind = ALIAS_TIED, .targets = &targets[2 * i]};
    }
    if (rc == 0)
        rc = model_spec_new(out, tensor_list, specs, (uint32_t)n, e);
    else
        tensor_list_unref(tensor_list);
    free(specs);
    free(targets);
    return rc;
}

static int from_root(struct model_spec **out, const json_t *root, struct err *e)
{
    static const char *const members[] = {"names", "dtypes", "shapes", "aliases"};
    json_t *aliases = json_object_get(root, "aliases");
    size_t n_known = 0;
    struct tensor_list *tensor_list;

    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        n_known += json_object_get(root, members[i]) != NULL;
    if (!json_is_object(root) || json_object_size(root) != n_known)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "manifest: it must be an object of names, dtypes, shapes and aliases only");
    if (aliases != NULL && !json_is_object(aliases))
        return err_set(e, ERR_BAD_REQUEST, "/aliases", "manifest: 'aliases' must be an object");
    if (spec_file_tensor_list_of(&tensor_list, root, e) != 0)
        return -1;
    return with_aliases(out, tensor_list, aliases, e);
}

static int from_json(struct model_spec **out, const char *path, struct err *e)
{
    struct file_cfg file = {.path = path, .nbytes_max = FILE_NBYTES_MAX};
    json_error_t why;
    bool starved;
    json_t *root;
    char *text;
    size_t len;
    int rc;

    if (file_read(&text, &len, &file, e) != 0)
        return -1;
    root = json_parse_file(text, len, JSON_REJECT_DUPLICATES, &why, &starved);
    free(text);
    if (starved)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to read the manifest");
    if (root == NULL)
        return err_set(e, ERR_BAD_REQUEST, "", "manifest: %s at line %d, column %d", why.text,
                       why.line, why.column);
    rc = from_root(out, root, e);
    json_decref(root);
    return rc;
}

int model_spec_load(struct model_spec **out, const char *path, struct err *e)
{
    static const char suffix[] = ".safetensors";
    size_t len = strlen(path), n = sizeof suffix - 1;

    if (len > n && strcmp(path + len - n, suffix) == 0)
        return from_safetensors(out, path, e);
    return from_json(out, path, e);
}

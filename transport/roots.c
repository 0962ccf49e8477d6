/* Finds the root that contains a path. */
#include "transport/roots.h"

#include "base/utf8.h"
#include "weights/tensor_list.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* The rest of `path` below `root`, without leading slashes, "." for the root itself; NULL if it
 * is not below. Compares text only: openat2 enforces it later. */
static const char *beneath(const char *root, const char *path)
{
    size_t len = strlen(root);

    while (len > 0 && root[len - 1] == '/')
        len--;
    if (strncmp(path, root, len) != 0 || (path[len] != '/' && path[len] != '\0'))
        return NULL;
    path += len;
    while (*path == '/')
        path++;
    return *path == '\0' ? "." : path;
}

/* The longest of the roots that contain `path`, and the rest of the path. */
static const char *root_of(const char *const *roots, size_t n_roots, const char *path,
                           const char **rest)
{
    const char *found = NULL;

    if (path[0] != '/') {
        *rest = path;
        return roots[0];
    }
    for (size_t i = 0; i < n_roots; i++) {
        const char *under = beneath(roots[i], path);
        if (under != NULL && (found == NULL || strlen(roots[i]) > strlen(found))) {
            found = roots[i];
            *rest = under;
        }
    }
    return found;
}

int roots_open(int *dirfd, const char **rest, const char *const *roots, size_t n_roots,
               const char *path, const char *field, struct err *e)
{
    const char *root, *under = NULL;
    int fd;

    if (path[0] == '\0')
        return err_set(e, ERR_BAD_REQUEST, field, "the path is empty");
    if (n_roots == 0)
        return err_set(e, ERR_FORBIDDEN, field,
                       "this server reads no files: it was started without --allow-path");
    root = root_of(roots, n_roots, path, &under);
    if (root == NULL)
        return err_set(e, ERR_FORBIDDEN, field,
                       "path '%.*s' is not below an allowed path (--allow-path)",
                       utf8_cut(path, 200), path);
    fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, ERR_UNREADABLE, field, errno,
                             "the allowed path that contains '%.*s' cannot be opened",
                             utf8_cut(path, 200), path);
    *dirfd = fd;
    *rest = under;
    return 0;
}

#include "base/secret_file.h"

#include "base/file.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void warn_if_open_to_others(const char *path, const char *option)
{
    struct stat st;
    struct log_rec r;

    if (stat(path, &st) != 0 || (st.st_mode & (S_IROTH | S_IWOTH)) == 0)
        return;
    log_begin(&r, LOG_WARN, "secret.bad_mode");
    log_str(&r, "option", option);
    log_str(&r, "path", path);
    log_str(&r, "why",
            (st.st_mode & S_IWOTH) != 0 ? "every user may write it" : "every user may read it");
    log_end(&r);
}

static int secret_check(const char *text, size_t len, const char *path, const char *option,
                        struct err *e)
{
    if (len == 0)
        return err_set(e, ERR_BAD_REQUEST, option, "'%.200s' is empty", path);
    if (memchr(text, '\0', len) != NULL)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "'%.200s' has a NUL byte, text (of a key or a certificate: PEM) is expected",
                       path);
    return 0;
}

int public_file_read(char **out, size_t *len, const char *path, const char *option, struct err *e)
{
    struct file_cfg file = {
        .path = path, .field = option, .nbytes_max = SECRET_FILE_NBYTES_MAX, .pipes = true};
    char *text;
    size_t n;

    if (file_read(&text, &n, &file, e) != 0)
        return -1;
    if (secret_check(text, n, path, option, e) != 0) {
        secret_file_free(text, n);
        return -1;
    }
    *out = text;
    *len = n;
    return 0;
}

int secret_file_read(char **out, size_t *len, const char *path, const char *option, struct err *e)
{
    if (public_file_read(out, len, path, option, e) != 0)
        return -1;
    warn_if_open_to_others(path, option);
    return 0;
}

void secret_file_free(char *text, size_t len)
{
    if (text != NULL)
        explicit_bzero(text, len);
    free(text);
}

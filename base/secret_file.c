/* Keys and certificates. Unbuffered, so that no copy stays behind in stdio's memory. */
#include "base/secret_file.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void warn_if_open_to_others(int fd, const char *path, const char *option)
{
    struct stat st;
    struct log_rec r;

    if (fstat(fd, &st) != 0 || (st.st_mode & (S_IROTH | S_IWOTH)) == 0)
        return;
    log_begin(&r, LOG_WARN, "secret.exposed");
    log_str(&r, "option", option);
    log_str(&r, "path", path);
    log_str(&r, "why",
            (st.st_mode & S_IWOTH) != 0 ? "every user may write it" : "every user may read it");
    log_end(&r);
}

/* Until the end of the file or `cap` bytes. Returns how many, or -1 with errno. */
static ssize_t read_all(int fd, char *out, size_t cap)
{
    size_t len = 0;

    while (len < cap) {
        ssize_t n = read(fd, out + len, cap - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    return (ssize_t)len;
}

static int check(const char *text, size_t len, const char *path, const char *option, struct err *e)
{
    if (len == 0)
        return err_set(e, ERR_BAD_REQUEST, option, "'%.200s' is empty", path);
    if (len > SECRET_FILE_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, option, "'%.200s' is longer than %d bytes", path,
                       SECRET_FILE_NBYTES_MAX);
    if (memchr(text, '\0', len) != NULL)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "'%.200s' has a NUL byte, text (of a key or a certificate: PEM) is expected",
                       path);
    return 0;
}

static int read_file(char **out, size_t *len, const char *path, const char *option, bool secret,
                     struct err *e)
{
    enum { CAP = SECRET_FILE_NBYTES_MAX + 2 }; /* one byte too many, and a NUL */
    char *text = malloc(CAP);
    ssize_t n = 0;
    int fd, rc = -1;

    if (text == NULL)
        return err_set(e, ERR_NO_MEMORY, option, "no memory for it");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        (void)err_set_errno(e, ERR_BAD_REQUEST, option, errno, "'%.200s' cannot be opened", path);
        goto free_text;
    }
    if (secret)
        warn_if_open_to_others(fd, path, option);
    n = read_all(fd, text, CAP - 1);
    if (n < 0) {
        n = CAP; /* some of it may have come */
        (void)err_set_errno(e, ERR_BAD_REQUEST, option, errno, "'%.200s' cannot be read", path);
    } else if (check(text, (size_t)n, path, option, e) == 0) {
        text[n] = '\0';
        *out = text;
        *len = (size_t)n;
        text = NULL;
        rc = 0;
    }
    (void)close(fd);
free_text:
    secret_file_free(text, (size_t)n);
    return rc;
}

int secret_file_read(char **out, size_t *len, const char *path, const char *option, struct err *e)
{
    return read_file(out, len, path, option, true, e);
}

int public_file_read(char **out, size_t *len, const char *path, const char *option, struct err *e)
{
    return read_file(out, len, path, option, false, e);
}

void secret_file_free(char *text, size_t len)
{
    if (text != NULL)
        explicit_bzero(text, len);
    free(text);
}

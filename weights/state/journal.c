/* The journal's file. Its entry carries a checksum over its other members, because a flipped bit
 * could turn one number or name into another. */
#include "weights/state/journal.h"

#include "base/file.h"
#include "base/json_parse.h"
#include "memory/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOURNAL_NEW "journal.tmp"

enum { JOURNAL_NBYTES_MAX = 16384, JOURNAL_FORMAT = 2, JOURNAL_MODE = 0600 };

static int journal_refuse_call(struct err *e, const char *call, const char *name)
{
    return err_set_errno(e, ERR_NOT_RECORDED, "", errno, "%s of '%s' in --state-dir failed", call,
                         name);
}

int state_write(int fd, const char *name, const void *bytes, size_t n, uint64_t at, struct err *e)
{
    const char *from = bytes;

    while (n > 0) {
        ssize_t done = pwrite(fd, from, n, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return journal_refuse_call(e, "a write", name);
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return 0;
}

int state_publish(int dirfd, int fd, const char *from, const char *to, struct err *e)
{
    if (fsync(fd) != 0)
        return journal_refuse_call(e, "fsync", from);
    if (renameat(dirfd, from, dirfd, to) != 0)
        return journal_refuse_call(e, "a rename", from);
    if (fsync(dirfd) != 0)
        return journal_refuse_call(e, "fsync of the directory after the rename", to);
    return 0;
}

/* Over the text of the members, each on a line of its own. */
static void entry_checksum(const struct journal_entry *j, char out[CHECKSUM_LEN + 1])
{
    char text[JOURNAL_NBYTES_MAX];
    int n = snprintf(text, sizeof text, "%d\n%s\n%" PRIu64 "\n%s\n%s\n%s\n%" PRId64 "\n",
                     JOURNAL_FORMAT, j->commit_id, j->serial, j->label, j->model_spec, j->content,
                     j->time_s);
    struct checksum sum = checksum_of(text, (uint64_t)n);

    checksum_text(&sum, out);
}

static char *entry_text(const struct journal_entry *j)
{
    char checksum[CHECKSUM_LEN + 1];
    json_t *root;
    char *text = NULL;

    entry_checksum(j, checksum);
    root = json_pack("{s:i, s:s, s:I, s:s, s:s, s:s, s:I, s:s}", "format", JOURNAL_FORMAT,
                     "commit_id", j->commit_id, "serial", (json_int_t)j->serial, "weight_version",
                     j->label, "model_spec", j->model_spec, "content", j->content, "time",
                     (json_int_t)j->time_s, "checksum", checksum);
    if (root != NULL)
        text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return text;
}

int journal_write(int dirfd, const struct journal_entry *entry, struct err *e)
{
    char *text = entry_text(entry);
    int fd, rc;

    if (text == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the journal");
    fd = openat(dirfd, JOURNAL_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                JOURNAL_MODE);
    rc = fd < 0 ? journal_refuse_call(e, "opening", JOURNAL_NEW)
                : state_write(fd, JOURNAL_NEW, text, strlen(text), 0, e);
    free(text);
    if (rc == 0)
        rc = state_publish(dirfd, fd, JOURNAL_NEW, JOURNAL_NAME, e);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

static int journal_copy_text(char *out, size_t cap, const char *text)
{
    return (size_t)snprintf(out, cap, "%s", text) < cap ? 0 : -1;
}

static int journal_unpack(struct journal_entry *j, const json_t *root, struct err *why)
{
    const char *commit_id, *label, *model_spec, *content, *checksum;
    char found[CHECKSUM_LEN + 1];
    json_int_t serial, time_s;
    int format = 0;

    if (json_unpack(json_mutable(root), "{s:i}", "format", &format) == 0 &&
        format != JOURNAL_FORMAT)
        return err_set(why, ERR_UNREADABLE, "", "it has format %d, this baton reads format %d",
                       format, JOURNAL_FORMAT);
    if (json_unpack(json_mutable(root), "{s:i, s:s, s:I, s:s, s:s, s:s, s:I, s:s !}", "format",
                    &format, "commit_id", &commit_id, "serial", &serial, "weight_version", &label,
                    "model_spec", &model_spec, "content", &content, "time", &time_s, "checksum",
                    &checksum) != 0 ||
        serial < 1 || journal_copy_text(j->commit_id, sizeof j->commit_id, commit_id) != 0 ||
        journal_copy_text(j->label, sizeof j->label, label) != 0 ||
        journal_copy_text(j->model_spec, sizeof j->model_spec, model_spec) != 0 ||
        journal_copy_text(j->content, sizeof j->content, content) != 0)
        return err_set(why, ERR_UNREADABLE, "", "its members are not those of a journal");
    j->serial = (uint64_t)serial;
    j->time_s = time_s;
    entry_checksum(j, found);
    if (strcmp(found, checksum) != 0)
        return err_set(why, ERR_CHECKSUM, "", "its checksum is wrong");
    return 0;
}

enum journal_found journal_read(struct journal_entry *out, const char *dir, struct err *why)
{
    struct file_cfg f = {
        .dir = dir, .path = JOURNAL_NAME, .nbytes_max = JOURNAL_NBYTES_MAX, .optional = true};
    struct journal_entry j = {0};
    json_error_t wrong;
    char *text = NULL;
    json_t *root;
    size_t len;
    int rc;

    if (file_read(&text, &len, &f, why) != 0)
        return JOURNAL_DAMAGED;
    if (text == NULL)
        return JOURNAL_NONE;
    root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &wrong);
    free(text);
    rc = root != NULL ? journal_unpack(&j, root, why)
                      : err_set(why, ERR_UNREADABLE, "", "it is not JSON: %.100s", wrong.text);
    json_decref(root);
    if (rc != 0)
        return JOURNAL_DAMAGED;
    *out = j;
    return JOURNAL_READ;
}

/* journal.json of a state directory that others can write. What is damaged says why; what is read
 * is bounded, and is the same after it was written again. */
#include "tests/fuzz/fuzz.h"

#include "weights/state/journal.h"

#include <fcntl.h>
#include <unistd.h>

static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_UNREADABLE, ERR_CHECKSUM, ERR_NONE};

static char path[] = "/tmp/fuzz-journal-XXXXXX"; /* of this process; it goes with it */

static void remove_directory(void)
{
    (void)rmdir(path);
}

static const char *directory(void)
{
    if (strstr(path, "XXXXXX") != NULL) {
        CHECK(mkdtemp(path) != NULL);
        CHECK(atexit(remove_directory) == 0);
    }
    return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    int dirfd = open(directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = openat(dirfd, JOURNAL_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct journal_entry entry = {0}, again = {0};
    struct err e = {0};

    CHECK(dirfd >= 0 && fd >= 0 && write(fd, data, len) == (ssize_t)len);
    (void)close(fd);
    switch (journal_read(&entry, directory(), &e)) {
    case JOURNAL_DAMAGED:
        check_refusal(&e, codes, "");
        break;
    case JOURNAL_READ:
        CHECK(e.code == ERR_NONE && entry.serial > 0);
        CHECK(strlen(entry.label) <= VERSION_LABEL_MAX && strlen(entry.content) <= CONTENT_LEN);
        CHECK(journal_write(dirfd, &entry, &e) == 0);
        CHECK(journal_read(&again, directory(), &e) == JOURNAL_READ);
        CHECK(again.serial == entry.serial && strcmp(again.label, entry.label) == 0);
        CHECK(strcmp(again.commit_id, entry.commit_id) == 0);
        CHECK(strcmp(again.model_spec, entry.model_spec) == 0);
        CHECK(strcmp(again.content, entry.content) == 0);
        break;
    case JOURNAL_NONE:
        CHECK(false); /* the file is there */
    }
    (void)unlinkat(dirfd, JOURNAL_NAME, 0);
    (void)close(dirfd);
    return 0;
}

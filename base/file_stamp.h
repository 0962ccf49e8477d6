/* The identity of a file and its times, to detect that it was replaced or changed.
 *
 * Both the time of change (ctime) and the time of modification (mtime) are compared: a writer may
 * set the latter back (cp -p, rsync, utime), but not the former. Neither shows bytes written
 * through a mapping that was dirty when the first stamp was taken, until the kernel writes them
 * back. Only a checksum detects those. */
#ifndef BATON_BASE_FILE_STAMP_H
#define BATON_BASE_FILE_STAMP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

struct file_stamp {
    dev_t dev;
    ino_t ino;
    off_t nbytes;
    struct timespec modified, changed;
};

/* file_stamp_of - the stamp from the result of stat(2). file_stamp_same - are the two equal?
 * file_stamp_age_ms - time since the file was last changed; negative if its clock is ahead of ours.
 * Threads: any. Blocks: no. */
struct file_stamp file_stamp_of(const struct stat *st);
bool file_stamp_same(const struct file_stamp *x, const struct file_stamp *y);
int64_t file_stamp_age_ms(const struct file_stamp *s);

#endif

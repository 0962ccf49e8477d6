/* What a file looks like from outside: whether it is another one, or was changed, since a look.
 *
 * The time of change counts beside that of modification: a writer may set the latter back (cp -p,
 * rsync, utime), and not the former. What neither shows: bytes written through a mapping that was
 * dirty at the first look, until the kernel writes them back. Only a checksum tells those. */
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

/* file_stamp_of - of what stat(2) said. file_stamp_same - is nothing different?
 * file_stamp_age_ms - since the file was last touched; negative for a clock ahead of ours.
 * Threads: any. Blocks: no. */
struct file_stamp file_stamp_of(const struct stat *st);
bool file_stamp_same(const struct file_stamp *x, const struct file_stamp *y);
int64_t file_stamp_age_ms(const struct file_stamp *s);

#endif

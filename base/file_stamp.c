#include "base/file_stamp.h"

struct file_stamp file_stamp_of(const struct stat *st)
{
    return (struct file_stamp){.dev = st->st_dev,
                               .ino = st->st_ino,
                               .nbytes = st->st_size,
                               .modified = st->st_mtim,
                               .changed = st->st_ctim};
}

static bool same_time(struct timespec x, struct timespec y)
{
    return x.tv_sec == y.tv_sec && x.tv_nsec == y.tv_nsec;
}

bool file_stamp_same(const struct file_stamp *x, const struct file_stamp *y)
{
    return x->dev == y->dev && x->ino == y->ino && x->nbytes == y->nbytes &&
           same_time(x->modified, y->modified) && same_time(x->changed, y->changed);
}

int64_t file_stamp_age_ms(const struct file_stamp *s)
{
    struct timespec now, last = s->changed;

    if (s->modified.tv_sec > last.tv_sec ||
        (s->modified.tv_sec == last.tv_sec && s->modified.tv_nsec > last.tv_nsec))
        last = s->modified;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)(now.tv_sec - last.tv_sec) * 1000 + (now.tv_nsec - last.tv_nsec) / 1000000;
}

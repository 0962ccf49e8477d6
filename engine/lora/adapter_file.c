/* One look at the directory either succeeds, fails for good, or fails in a way that time may mend:
 *   absent     a file is missing, empty or shorter than its header requires: until the deadline
 *   unsettled  a file looks complete but is wrong, perhaps a mixture of two steps: it is reported
 *              only after it has not changed for settle_ms of adapter_wait
 * Times of files have the resolution of the system's tick: two writes within one tick look like
 * one, so files that changed within the last RACY_MS are not read yet. Rejected: inotify, which
 * does not report the writes of another machine. */
#include "engine/lora/adapter_file.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mtx.h"
#include "base/utf8.h"
#include "engine/lora/adapter_delta.h"
#include "weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CONFIG_NAME  "adapter_config.json"
#define WEIGHTS_NAME "adapter_model.safetensors"
#define PICKLE_NAME  "adapter_model.bin"

enum { RACY_MS = 20, PIECE_NBYTES = 8 << 20, PATH_CUT = 160 };

enum verdict { FINAL, ABSENT, UNSETTLED };

struct file {
    const char *name;
    int fd; /* owned; -1: none */
    struct file_stamp stamp;
};

/* One look. */
struct look {
    const struct adapter_spec *spec; /* borrowed, and so are the next three */
    const struct adapter_dir *dir;
    const struct adapter_room *room;
    const struct adapter_wait *wait;
    enum verdict verdict; /* the verdict if the look fails at this point */
    int dirfd;            /* owned; -1: none */
    struct file files[ADAPTER_FILES];
    bool racy;
};

static int dir_cut(const struct look *l)
{
    return utf8_cut(l->dir->path, PATH_CUT);
}

static int check_ended(const struct look *l, struct err *e)
{
    const struct adapter_wait *w = l->wait;

    if (w->stop != NULL && atomic_load_explicit(w->stop, memory_order_relaxed))
        return err_set(e, ERR_CONFLICT, "", "the load was stopped while its files were read");
    if (w->gone != NULL && w->gone(w->gone_arg))
        return err_set(e, ERR_GONE, "", "the client went away before its adapter was loaded");
    return 0;
}

static int adapter_file_cannot_open(struct look *l, const char *name, int errnum, struct err *e)
{
    const char *slash = name[0] != '\0' ? "/" : "";

    l->verdict = FINAL;
    if (errnum == ENOENT || errnum == ESTALE || errnum == EAGAIN) {
        l->verdict = ABSENT;
        return err_set(e, ERR_NOT_FOUND, "/lora_path", "there is no %s '%.*s%s%s'",
                       name[0] != '\0' ? "file" : "directory", dir_cut(l), l->dir->path, slash,
                       name);
    }
    if (errnum == EXDEV || errnum == ELOOP)
        return err_set(e, ERR_FORBIDDEN, "/lora_path",
                       "'%.*s%s%s' leads outside its allowed path (--allow-path), or through a "
                       "symbolic link that is absolute; links that are relative and stay below it "
                       "are followed",
                       dir_cut(l), l->dir->path, slash, name);
    if (errnum == ENOTDIR)
        return err_set(e, ERR_BAD_REQUEST, "/lora_path", "'%.*s' is not a directory", dir_cut(l),
                       l->dir->path);
    return err_set_errno(e, ERR_UNREADABLE, "/lora_path", errnum, "'%.*s%s%s' cannot be opened",
                         dir_cut(l), l->dir->path, slash, name);
}

static int open_file(struct look *l, struct file *f, struct err *e)
{
    struct stat st;
    int64_t age;

    /* O_NONBLOCK: open must not wait on a FIFO, which is refused afterwards. */
    f->fd = file_open_in(l->dir->rootfd, l->dirfd, f->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return adapter_file_cannot_open(l, f->name, errno, e);
    if (!S_ISREG(st.st_mode)) {
        l->verdict = FINAL;
        return err_set(e, ERR_UNREADABLE, "/lora_path", "'%.*s/%s' is not a regular file",
                       dir_cut(l), l->dir->path, f->name);
    }
    f->stamp = file_stamp_of(&st);
    age = file_stamp_age_ms(&f->stamp);
    l->racy = l->racy || (age < RACY_MS && age > -RACY_MS);
    return 0;
}

/* A pickle without a safetensors file is refused at once: the trainer writes that format. */
static int open_weights(struct look *l, struct err *e)
{
    struct stat st;

    if (open_file(l, &l->files[1], e) == 0)
        return 0;
    if (e->code == ERR_NOT_FOUND && fstatat(l->dirfd, PICKLE_NAME, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        err_clear(e);
        l->verdict = FINAL;
        return err_set(e, ERR_BAD_REQUEST, "/lora_path",
                       "'%.*s' has " PICKLE_NAME ", a pickle, which is never read; save the "
                       "adapter as " WEIGHTS_NAME,
                       dir_cut(l), l->dir->path);
    }
    return -1;
}

static int adapter_file_open_all(struct look *l, struct err *e)
{
    l->dirfd = file_open_beneath(l->dir->rootfd, l->dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (l->dirfd < 0)
        return adapter_file_cannot_open(l, "", errno, e);
    if (open_weights(l, e) != 0 || open_file(l, &l->files[0], e) != 0)
        return -1;
    if (l->racy) {
        l->verdict = ABSENT;
        return err_set(e, ERR_UNREADABLE, "/lora_path", "'%.*s' is still being written to",
                       dir_cut(l), l->dir->path);
    }
    return 0;
}

/* Exactly nbytes from `offset` on. */
static int read_exact(struct look *l, const struct file *f, uint64_t offset, void *dst,
                      uint64_t nbytes, struct err *e)
{
    uint64_t done = 0;

    while (done < nbytes) {
        uint64_t piece = nbytes - done < PIECE_NBYTES ? nbytes - done : PIECE_NBYTES;
        ssize_t n = pread(f->fd, (char *)dst + done, piece, (off_t)(offset + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            l->verdict = n == 0 || errno == ESTALE ? ABSENT : FINAL;
            return n == 0 ? err_set(e, ERR_UNREADABLE, "/lora_path",
                                    "'%.*s/%s' shrank while it was read", dir_cut(l), l->dir->path,
                                    f->name)
                          : err_set_errno(e, ERR_UNREADABLE, "/lora_path", errno,
                                          "'%.*s/%s' cannot be read", dir_cut(l), l->dir->path,
                                          f->name);
        }
        done += (uint64_t)n;
        l->verdict = FINAL;
        if (check_ended(l, e) != 0)
            return -1;
        if (done < nbytes && clock_passed(l->wait->deadline_us))
            return err_set(e, ERR_TIMEOUT, "/lora_path",
                           "'%.*s/%s' was not read before the deadline", dir_cut(l), l->dir->path,
                           f->name);
    }
    return 0;
}

static int adapter_file_read_config(struct look *l, struct adapter_config **out, struct err *e)
{
    const struct file *f = &l->files[0];
    uint64_t nbytes = (uint64_t)f->stamp.nbytes;
    char *text;
    int rc;

    if (nbytes == 0) {
        l->verdict = ABSENT;
        return err_set(e, ERR_UNREADABLE, "/lora_path", "'%.*s/%s' is empty", dir_cut(l),
                       l->dir->path, f->name);
    }
    l->verdict = UNSETTLED;
    if (nbytes > ADAPTER_CONFIG_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "/lora_path",
                       "'%.*s/%s' has %" PRIu64 " bytes, at most %d are read", dir_cut(l),
                       l->dir->path, f->name, nbytes, ADAPTER_CONFIG_NBYTES_MAX);
    text = malloc(nbytes + 1);
    if (text == NULL) {
        l->verdict = FINAL;
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %s", f->name);
    }
    rc = read_exact(l, f, 0, text, nbytes, e);
    if (rc == 0) {
        rc = adapter_config_parse(out, text, nbytes, e);
        l->verdict = UNSETTLED;
    }
    free(text);
    return rc;
}

/* "'dir/adapter_model.safetensors' has N bytes, but ..." */
static int too_short(struct look *l, uint64_t needed, struct err *e)
{
    l->verdict = ABSENT;
    return err_set(e, ERR_UNREADABLE, "/lora_path",
                   "'%.*s/%s' has %" PRIu64 " bytes of %" PRIu64 " or more", dir_cut(l),
                   l->dir->path, l->files[1].name, (uint64_t)l->files[1].stamp.nbytes, needed);
}

static int parse_head(struct look *l, struct safetensors *out, const void *head,
                      uint64_t nbytes_head, struct err *e)
{
    uint64_t nbytes = (uint64_t)l->files[1].stamp.nbytes;
    struct safetensors s;

    l->verdict = UNSETTLED;
    if (safetensors_parse(&s, head, nbytes_head, UINT64_MAX, e) != 0)
        return -1;
    if (s.nbytes_total != nbytes) {
        uint64_t needed = s.nbytes_total;

        safetensors_fini(&s);
        if (needed > nbytes)
            return too_short(l, needed, e);
        return err_set(e, ERR_BAD_REQUEST, "/lora_path",
                       "'%.*s/%s' has %" PRIu64 " bytes, but its header describes %" PRIu64,
                       dir_cut(l), l->dir->path, l->files[1].name, nbytes, needed);
    }
    *out = s;
    return 0;
}

static int read_head(struct look *l, struct safetensors *out, struct err *e)
{
    const struct file *f = &l->files[1];
    uint64_t nbytes = (uint64_t)f->stamp.nbytes, nbytes_head = 0;
    uint8_t prefix[SAFETENSORS_PREFIX] = {0};
    static const uint8_t zeros[SAFETENSORS_PREFIX];
    void *head;
    int rc;

    if (nbytes < SAFETENSORS_PREFIX)
        return too_short(l, SAFETENSORS_PREFIX, e);
    if (read_exact(l, f, 0, prefix, sizeof prefix, e) != 0)
        return -1;
    if (memcmp(prefix, zeros, sizeof prefix) == 0) /* laid out, but nothing written yet */
        return too_short(l, nbytes, e);
    l->verdict = UNSETTLED;
    if (safetensors_head_nbytes(prefix, sizeof prefix, &nbytes_head, e) != 0)
        return -1;
    if (nbytes_head > ADAPTER_HEAD_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, "/lora_path",
                       "'%.*s/%s' has a header of %" PRIu64 " bytes, at most %d are read",
                       dir_cut(l), l->dir->path, f->name, nbytes_head, ADAPTER_HEAD_NBYTES_MAX);
    if (nbytes_head > nbytes)
        return too_short(l, nbytes_head, e);
    head = malloc(nbytes_head);
    if (head == NULL) {
        l->verdict = FINAL;
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a header of %" PRIu64 " bytes",
                       nbytes_head);
    }
    rc = read_exact(l, f, 0, head, nbytes_head, e);
    if (rc == 0) /* the second reading of the prefix is the one that is checked */
        rc = parse_head(l, out, head, nbytes_head, e);
    free(head);
    return rc;
}

static int read_tensors(struct look *l, struct adapter_builder *b, const struct safetensors *s,
                        struct err *e)
{
    for (uint32_t i = 0; i < s->tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &s->tensor_list->tensors[i];
        void *place = adapter_builder_place(b, i);

        if (place != NULL &&
            read_exact(l, &l->files[1], s->nbytes_head + t->offset, place, t->nbytes, e) != 0)
            return -1;
        if (adapter_builder_came(b, s->tensor_list, i, e) != 0)
            return -1;
    }
    return 0;
}

/* Do the names still refer to the opened files, and are those unchanged? */
static bool look_unchanged(const struct look *l)
{
    for (size_t i = 0; i < ADAPTER_FILES; i++) {
        const struct file *f = &l->files[i];
        struct stat there, ours;
        struct file_stamp x, y;

        if (f->fd < 0 || fstat(f->fd, &ours) != 0 || fstatat(l->dirfd, f->name, &there, 0) != 0)
            return false;
        x = file_stamp_of(&ours);
        y = file_stamp_of(&there);
        if (!file_stamp_same(&x, &f->stamp) || !file_stamp_same(&y, &f->stamp))
            return false;
    }
    return true;
}

/* The builder's bytes are in place, and nothing has changed meanwhile. */
static int look_fill(struct look *l, struct adapter_builder *b, const struct safetensors *s,
                     struct err *e)
{
    l->verdict = FINAL;
    if (l->room != NULL && l->room->take != NULL &&
        l->room->take(l->room->arg, adapter_builder_nbytes(b), e) != 0)
        return -1;
    if (adapter_builder_reserve(b, e) != 0 ||
        (read_tensors(l, b, s, e) != 0 && e->code != ERR_NON_FINITE))
        return -1;
    if (!look_unchanged(l)) {
        err_clear(e);
        l->verdict = ABSENT;
        return err_set(e, ERR_UNREADABLE, "/lora_path", "'%.*s' was changed while it was read",
                       dir_cut(l), l->dir->path);
    }
    if (e->code != ERR_NONE)
        return -1;
    l->verdict = UNSETTLED;
    return adapter_builder_apply(b, &s->made, e);
}

static int look_build(struct look *l, struct adapter **out, struct adapter_report *report,
                      struct adapter_config *config, const struct safetensors *s, struct err *e)
{
    struct adapter_spec spec = *l->spec;
    struct adapter_builder *b;

    spec.config = config;
    l->verdict = UNSETTLED;
    if (adapter_delta_check(s->delta_base, spec.base != NULL ? adapter_digest(spec.base) : NULL,
                            true, "/lora_path", e) != 0 ||
        adapter_builder_new(&b, &spec, s->tensor_list, e) != 0)
        return -1;
    if (look_fill(l, b, s, e) != 0) {
        adapter_builder_free(b);
        return -1;
    }
    *out = adapter_builder_finish(b, report);
    return 0;
}

static int look_once(struct look *l, struct adapter **out, struct adapter_report *report,
                     struct err *e)
{
    struct adapter_config *config;
    struct safetensors s;
    int rc;

    if (adapter_file_open_all(l, e) != 0 || adapter_file_read_config(l, &config, e) != 0)
        return -1;
    rc = read_head(l, &s, e);
    if (rc == 0) {
        rc = look_build(l, out, report, config, &s, e);
        safetensors_fini(&s);
    }
    adapter_config_free(config);
    if (rc != 0 && (e->code == ERR_NO_MEMORY || e->code == ERR_NO_STAGING))
        l->verdict = FINAL;
    return rc;
}

static void look_fini(struct look *l)
{
    for (size_t i = 0; i < ADAPTER_FILES; i++)
        if (l->files[i].fd >= 0)
            (void)close(l->files[i].fd);
    if (l->dirfd >= 0)
        (void)close(l->dirfd);
}

/* Have the files been unchanged for settle_ms, so that their writer has finished? By their own
 * times, or, where the clock that sets those runs ahead, by the time since we first saw them so. */
static bool look_settled(const struct look *l, struct adapter_sight *sight)
{
    uint32_t settle_ms = l->wait->settle_ms > 0 ? l->wait->settle_ms : ADAPTER_SETTLE_MS;
    bool same = true;
    int64_t youngest = INT64_MAX;

    if (!look_unchanged(l))
        return false;
    for (size_t i = 0; i < ADAPTER_FILES; i++) {
        int64_t age = file_stamp_age_ms(&l->files[i].stamp);

        same = same && file_stamp_same(&l->files[i].stamp, &sight->stamps[i]);
        youngest = age < youngest ? age : youngest;
    }
    if (!same)
        sight->since_us = clock_now_us();
    return youngest >= settle_ms ||
           (youngest < 0 && clock_now_us() - sight->since_us >= settle_ms * 1000ULL);
}

/* May an absent directory still appear? One that is being replaced is absent for a moment. */
static bool may_appear(const struct look *l, const struct adapter_sight *sight)
{
    return l->dirfd >= 0 || sight->appeared || l->wait->appear_us == 0 ||
           !clock_passed(l->wait->appear_us);
}

/* 1 when another look is worth it. */
static int look_again(const struct look *l, struct adapter_sight *sight, const struct err *why,
                      struct err *e)
{
    if (l->verdict == FINAL || (l->verdict == UNSETTLED && look_settled(l, sight)) ||
        clock_passed(l->wait->deadline_us) || !may_appear(l, sight)) {
        *e = *why;
        return -1;
    }
    for (size_t i = 0; i < ADAPTER_FILES; i++)
        sight->stamps[i] = l->files[i].stamp;
    sight->appeared = sight->appeared || l->dirfd >= 0;
    return check_ended(l, e) == 0 ? 1 : -1;
}

int adapter_file_look(struct adapter_sight *sight, struct adapter **out,
                      struct adapter_report *report, const struct adapter_spec *spec,
                      const struct adapter_dir *dir, const struct adapter_room *room,
                      const struct adapter_wait *wait, struct err *e)
{
    struct look l = {.spec = spec,
                     .dir = dir,
                     .room = room,
                     .wait = wait,
                     .dirfd = -1,
                     .files = {{.name = CONFIG_NAME, .fd = -1}, {.name = WEIGHTS_NAME, .fd = -1}}};
    struct err why = {0};
    int rc;

    mtx_assert_none();
    if (dir->path[0] == '\0' || strlen(dir->path) > ADAPTER_PATH_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/lora_path", "a path of %zu bytes; 1 to %d are allowed",
                       strlen(dir->path), ADAPTER_PATH_LEN_MAX);
    if (check_ended(&l, e) != 0)
        return -1;
    rc = look_once(&l, out, report, &why);
    if (rc != 0)
        rc = look_again(&l, sight, &why, e);
    look_fini(&l);
    return rc;
}

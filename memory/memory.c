/* Reading the kernel's bounds on memory.
 *
 * A control group's page cache counts as used although the kernel drops it under pressure, so its
 * inactive part is added back, as Kubernetes does for its "working set". */
#include "memory/memory.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_PATH_MAX = 4096, MEMORY_LINE_MAX = 4352 };

/* The files of a version of control groups. */
struct cgroup_kind {
    const char *mount, *limit, *usage, *cache;
    const char *bound;
};

static const struct cgroup_kind cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                             "inactive_file", "the control group's memory.max"};
static const struct cgroup_kind cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                             "memory.usage_in_bytes", "total_inactive_file",
                                             "the control group's memory.limit_in_bytes"};

static void room_lower(struct memory_room *room, uint64_t nbytes, const char *bound)
{
    if (nbytes >= room->nbytes)
        return;
    room->nbytes = nbytes;
    room->bound = bound;
}

/* Digits at the start of text; false for "max" and whatever else is not a number. */
static bool memory_read_number(const char *text, uint64_t *out)
{
    char *end;
    unsigned long long n;

    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    n = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    *out = n;
    return true;
}

/* The number after `key` and blanks on a line of its own, or with key "" the first line's. */
static bool file_number(const char *path, const char *key, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    char line[MEMORY_LINE_MAX];
    size_t len = strlen(key);
    bool found = false;

    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof line, f) != NULL) {
        const char *p = line + len;

        if (strncmp(line, key, len) != 0 || (len > 0 && *p != ' ' && *p != ':'))
            continue;
        while (*p == ':' || *p == ' ')
            p++;
        found = memory_read_number(p, out);
        if (len == 0)
            break;
    }
    (void)fclose(f);
    return found;
}

static bool group_number(const char *root, const struct cgroup_kind *kind, const char *group,
                         const char *file, const char *key, uint64_t *out)
{
    char path[MEMORY_PATH_MAX * 2];
    int len = snprintf(path, sizeof path, "%s%s%s/%s", root, kind->mount, group, file);

    return len > 0 && (size_t)len < sizeof path && file_number(path, key, out);
}

static void group_lower(struct memory_room *room, const char *root, const struct cgroup_kind *kind,
                        const char *group)
{
    uint64_t limit, used, cache = 0;

    if (!group_number(root, kind, group, kind->limit, "", &limit) ||
        !group_number(root, kind, group, kind->usage, "", &used))
        return;
    if (group_number(root, kind, group, "memory.stat", kind->cache, &cache))
        used -= cache < used ? cache : used;
    room_lower(room, limit > used ? limit - used : 0, kind->bound);
}

/* The group and all above it: any of them may be the tight one. */
static void groups_lower(struct memory_room *room, const char *root, const struct cgroup_kind *kind,
                         char *group)
{
    for (;;) {
        char *slash;

        if (strcmp(group, "/") == 0)
            group[0] = '\0';
        group_lower(room, root, kind, group);
        slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

/* Lines are `0::/path` (v2) or `4:memory:/path` (v1; several controllers joined by commas). */
static void cgroups_lower(struct memory_room *room, const char *root)
{
    char path[MEMORY_PATH_MAX], line[MEMORY_LINE_MAX];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    if (f == NULL)
        return;
    while (fgets(line, sizeof line, f) != NULL) {
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');

        if (group == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *group++ = '\0';
        if (controllers[1] == '\0')
            groups_lower(room, root, &cgroup_v2, group);
        else if (strstr(controllers + 1, "memory") != NULL)
            groups_lower(room, root, &cgroup_v1, group);
    }
    (void)fclose(f);
}

struct memory_room memory_room(const char *root)
{
    struct memory_room room = {UINT64_MAX, "nothing"};
    char path[MEMORY_PATH_MAX];
    uint64_t kib;

    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (file_number(path, "MemAvailable", &kib))
        room_lower(&room, kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX, "MemAvailable");
    cgroups_lower(&room, root);
    return room;
}

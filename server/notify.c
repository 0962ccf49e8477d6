#include "server/notify.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The main thread's. */
static struct {
    struct sockaddr_un to;
    socklen_t len; /* 0: there is no service manager */
    uint64_t watchdog_us;
    bool failed; /* and that was logged */
} manager;

/* "/run/systemd/notify", or "@name" for the abstract one. Other kinds are ignored. */
static void notify_read_socket(const char *text)
{
    size_t len = text != NULL ? strlen(text) : 0;

    manager.len = 0;
    if (len < 2 || len >= sizeof manager.to.sun_path || (text[0] != '/' && text[0] != '@'))
        return;
    manager.to = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(manager.to.sun_path, text, len);
    manager.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (text[0] == '@')
        manager.to.sun_path[0] = '\0';
    else
        manager.len++; /* of a path the NUL belongs to it */
}

/* 0 unless the text is a number. */
static uint64_t number_of(const char *text)
{
    char *end;
    uint64_t n;

    if (text == NULL || text[0] < '0' || text[0] > '9')
        return 0;
    errno = 0;
    n = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? n : 0;
}

void notify_init(void)
{
    const char *pid = getenv("WATCHDOG_PID");

    notify_read_socket(getenv("NOTIFY_SOCKET"));
    manager.watchdog_us = pid == NULL || number_of(pid) == (uint64_t)getpid()
                              ? number_of(getenv("WATCHDOG_USEC"))
                              : 0;
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
}

static void notify_failed(int why)
{
    if (!manager.failed)
        log_line(LOG_WARN, "notify.failed", "the service manager gets no reports: %s",
                 strerror(why));
    manager.failed = true;
}

void notify_send(const char *fmt, ...)
{
    char text[NOTIFY_TEXT_MAX];
    va_list ap;
    int fd;

    if (manager.len == 0)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        notify_failed(errno);
        return;
    }
    if (sendto(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL,
               (const struct sockaddr *)&manager.to, manager.len) < 0)
        notify_failed(errno);
    (void)close(fd);
}

uint64_t notify_watchdog_us(void)
{
    return manager.len > 0 ? manager.watchdog_us / 2 : 0;
}

/* The child is started by posix_spawn(), which is safe beside other threads, with an environment
 * of its own. Its output goes into a pipe that never blocks it; the last error in it is quoted. */
#include "transport/nixl/nixl.h"

#include "base/clock.h"
#include "base/id.h"
#include "base/mtx.h"
#include "base/utf8.h"
#include "transport/nixl/nixl_child.h"
#include "transport/nixl/nixl_wire.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WINDOWS_NBYTES = NIXL_WINDOWS * NIXL_WINDOW_NBYTES,
    WAIT_MS = 50,
    START_MS = 60000, /* of the child that nixl_new starts */
    NAME_MAX_LEN = 48,
    ENV_MAX = 32,
    LINE_MAX_LEN = 240,
    READS_MAX = 32,                     /* of output at once: whoever writes it may be faster */
    USED_AFTER_US = NIXL_IDLE_MS * 900, /* the last reply: later the child may be about to end */
    FD_LEAST = 16                       /* above those that the child gets */
};

struct nixl {
    struct mtx lock; /* rank MTX_LEAF; guards these four */
    pid_t pid;       /* 0: none */
    int status;      /* of waitpid(), if nixl_info has collected the last one */
    uint64_t n_started;
    struct nixl_info info;

    struct nixl_cfg cfg;
    char name[NAME_MAX_LEN]; /* the child's agent */

    atomic_bool taken; /* by nixl_begin; what follows is that thread's */
    bool reading;      /* a read is not waited for */
    uint64_t replied_us;
    int socket, windows_fd, output;
    uint8_t *windows;
    char line[LINE_MAX_LEN]; /* of output, so far */
    size_t line_len;
    char last[LINE_MAX_LEN]; /* the last error in it */
};

/* NIXL's lines of errors begin with E and the date, UCX's have the word. */
static void end_line(struct nixl *n)
{
    n->line[n->line_len] = '\0';
    (void)utf8_clean(n->line);
    if ((n->line[0] == 'E' && isdigit((unsigned char)n->line[1])) ||
        strstr(n->line, " ERROR ") != NULL || strstr(n->line, "Assertion") != NULL ||
        strstr(n->line, "Caught signal") != NULL)
        memcpy(n->last, n->line, n->line_len + 1);
    n->line_len = 0;
}

static void drain_output(struct nixl *n)
{
    char data[4096];
    ssize_t len;

    for (int k = 0; k < READS_MAX && (len = read(n->output, data, sizeof data)) > 0; k++)
        for (ssize_t i = 0; i < len; i++) {
            if (data[i] == '\n')
                end_line(n);
            else if (n->line_len + 1 < sizeof n->line)
                n->line[n->line_len++] = data[i];
        }
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void forget_child(struct nixl *n)
{
    close_fd(&n->socket);
    close_fd(&n->output);
    close_fd(&n->windows_fd);
    if (n->windows != NULL)
        (void)munmap(n->windows, WINDOWS_NBYTES);
    n->windows = NULL;
    n->reading = false;
}

/* Ends the child, and waits until it has ended. Whoever takes the pid collects the process.
 * Returns: its status, as of waitpid(). */
static int kill_child(struct nixl *n)
{
    int status;
    pid_t pid;

    mtx_lock(&n->lock);
    pid = n->pid;
    n->pid = 0;
    status = n->status;
    if (pid > 0)
        (void)kill(pid, SIGKILL);
    mtx_unlock(&n->lock);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (n->output >= 0)
        drain_output(n);
    end_line(n);
    forget_child(n);
    return status;
}

/* The child's own error, or its end, is the cause; what it wrote last is appended. Ends it. */
static int child_failed(struct nixl *n, const struct nixl_reply *r, struct err *e)
{
    static const enum err_code known[] = {ERR_NO_NIXL,     ERR_NIXL,      ERR_UNREADABLE,
                                          ERR_BAD_REQUEST, ERR_NO_MEMORY, ERR_INTERNAL};
    enum err_code code = ERR_NIXL;
    int status = kill_child(n);

    for (size_t i = 0; r != NULL && i < sizeof known / sizeof known[0]; i++)
        if (r->code == (uint32_t)known[i])
            code = known[i];
    if (r != NULL)
        (void)err_set(e, code, "", "%.*s", utf8_cut(r->msg, sizeof r->msg / 2), r->msg);
    else if (WIFSIGNALED(status))
        (void)err_set(e, code, "", "the process that reads by NIXL was ended by signal %d (%s)",
                      WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        (void)err_set(e, code, "", "the process that reads by NIXL ended with status %d",
                      WEXITSTATUS(status));
    if (n->last[0] != '\0') {
        char text[LINE_MAX_LEN + 16];

        (void)snprintf(text, sizeof text, "; it wrote: %.*s", utf8_cut(n->last, 200), n->last);
        err_append(e, text);
    }
    return -1;
}

/* Waits until the socket is ready for `events`. Fails only by `p`, and then has ended the child. */
static int wait_socket(struct nixl *n, short events, const struct progress *p, struct err *e)
{
    struct pollfd fds[] = {{.fd = n->socket, .events = events},
                           {.fd = n->output, .events = POLLIN}};

    while (fds[0].revents == 0) {
        (void)poll(fds, 2, WAIT_MS);
        if (fds[1].revents != 0)
            drain_output(n);
        if ((fds[1].revents & POLLHUP) != 0)
            fds[1].fd = -1;
        if (progress_check(p, e) != 0) { /* also if it sends a byte now and then */
            (void)kill_child(n);
            return -1;
        }
    }
    return 0;
}

static int send_all(struct nixl *n, const void *data, size_t nbytes, const struct progress *p,
                    struct err *e)
{
    const char *at = data;

    while (nbytes > 0) {
        ssize_t done = send(n->socket, at, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (done < 0 && errno != EAGAIN && errno != EINTR)
            return child_failed(n, NULL, e);
        if (done < 0 && wait_socket(n, POLLOUT, p, e) != 0)
            return -1;
        at += done > 0 ? done : 0;
        nbytes -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

static int receive_reply(struct nixl *n, struct nixl_reply *r, const struct progress *p,
                         struct err *e)
{
    char *at = (char *)r;
    size_t nbytes = sizeof *r;

    while (nbytes > 0) {
        ssize_t done = recv(n->socket, at, nbytes, MSG_DONTWAIT);

        if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
            return child_failed(n, NULL, e);
        if (done < 0 && wait_socket(n, POLLIN, p, e) != 0)
            return -1;
        at += done > 0 ? done : 0;
        nbytes -= done > 0 ? (size_t)done : 0;
    }
    n->replied_us = clock_now_us();
    r->version[sizeof r->version - 1] = '\0';
    r->msg[sizeof r->msg - 1] = '\0';
    (void)utf8_clean(r->version);
    (void)utf8_clean(r->msg);
    return r->code == ERR_NONE ? 0 : child_failed(n, r, e);
}

/* NAME=value, malloc'ed. */
static char *variable(const char *name, const char *value)
{
    size_t cap = strlen(name) + strlen(value) + 2;
    char *text = malloc(cap);

    if (text != NULL)
        (void)snprintf(text, cap, "%s=%s", name, value);
    return text;
}

/* A few of the server's own variables, and what UCX and NIXL are to do. A key is in none.
 * @env  each is malloc'ed. Returns: false: no memory */
static bool make_environment(const struct nixl *n, char *env[ENV_MAX])
{
    static const char *const kept[] = {"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HOME",
                                       "TMPDIR",          "ASAN_OPTIONS",         "LSAN_OPTIONS",
                                       "TSAN_OPTIONS",    "UBSAN_OPTIONS"};
    /* A segment that is smaller than a peer's crashes the reader. */
    const char *const set[][2] = {{"UCX_TCP_RX_SEG_SIZE", "512k"},
                                  {"UCX_TCP_KEEPIDLE", "3s"},
                                  {"UCX_TCP_KEEPCNT", "3"},
                                  {"UCX_TCP_KEEPINTVL", "1s"},
                                  {"UCX_WARN_UNUSED_ENV_VARS", "n"},
                                  {"UCX_HANDLE_ERRORS", "bt"},
                                  {"UCX_MEMTYPE_CACHE", "n"},
                                  {"UCX_NET_DEVICES", n->cfg.devices},
                                  {"UCX_TLS", n->cfg.tls}};
    size_t count = 0;

    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        if (getenv(kept[i]) != NULL && (env[count++] = variable(kept[i], getenv(kept[i]))) == NULL)
            return false;
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
        if (set[i][1] != NULL && (env[count++] = variable(set[i][0], set[i][1])) == NULL)
            return false;
    return true;
}

/* The same descriptor, above those that the child gets. */
static int move_up(int fd)
{
    int up = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, FD_LEAST) : -1;

    if (fd >= 0)
        (void)close(fd);
    return up;
}

/* Its pages are allocated now, and its size never changes: a child that a peer has overwritten must
 * not be able to make the server fault. */
static int make_windows(struct nixl *n)
{
    void *at;

    n->windows_fd = move_up(memfd_create("nixl", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (n->windows_fd < 0 || ftruncate(n->windows_fd, WINDOWS_NBYTES) != 0 ||
        fallocate(n->windows_fd, 0, 0, WINDOWS_NBYTES) != 0 ||
        fcntl(n->windows_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return -1;
    at = mmap(NULL, WINDOWS_NBYTES, PROT_READ, MAP_SHARED, n->windows_fd, 0);
    n->windows = at != MAP_FAILED ? at : NULL;
    return at != MAP_FAILED ? 0 : -1;
}

static int make_pipes(struct nixl *n, int theirs[2])
{
    int pair[2] = {-1, -1}, out[2] = {-1, -1};
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);

    if (rc == 0)
        rc = pipe2(out, O_CLOEXEC | O_NONBLOCK);
    n->socket = pair[0];
    n->output = out[0];
    theirs[0] = move_up(pair[1]);
    theirs[1] = move_up(out[1]);
    return rc == 0 && theirs[0] >= 0 && theirs[1] >= 0 ? 0 : -1;
}

static int spawn(struct nixl *n, const int theirs[2], pid_t *pid)
{
    char *env[ENV_MAX] = {NULL}, parent[16], command[] = NIXL_CHILD_COMMAND;
    const char *program = n->cfg.program != NULL ? n->cfg.program : "/proc/self/exe";
    char *argv[] = {(char[]){"baton"}, command, strdup(n->cfg.library), n->name, parent, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int rc = ENOMEM;

    (void)snprintf(parent, sizeof parent, "%ld", (long)getpid());
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setsigdefault(&attr, &all);
    (void)posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&files, theirs[1], STDOUT_FILENO);
    (void)posix_spawn_file_actions_adddup2(&files, theirs[1], STDERR_FILENO);
    (void)posix_spawn_file_actions_adddup2(&files, theirs[0], NIXL_FD_SOCKET);
    (void)posix_spawn_file_actions_adddup2(&files, n->windows_fd, NIXL_FD_WINDOWS);
    if (argv[2] != NULL && make_environment(n, env))
        rc = posix_spawn(pid, program, &files, &attr, argv, env);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attr);
    free(argv[2]);
    for (size_t i = 0; env[i] != NULL; i++)
        free(env[i]);
    return rc;
}

static int start_child(struct nixl *n, const struct progress *p, struct err *e)
{
    char id[ID_LEN + 1];
    struct nixl_reply r;
    int theirs[2] = {-1, -1}, errnum;
    pid_t pid = 0;

    id_make(id);
    (void)snprintf(n->name, sizeof n->name, "baton-%s", id);
    n->last[0] = '\0';
    n->line_len = 0;
    errnum = make_windows(n) == 0 && make_pipes(n, theirs) == 0 ? spawn(n, theirs, &pid) : errno;
    close_fd(&theirs[0]);
    close_fd(&theirs[1]);
    if (errnum != 0) {
        forget_child(n);
        return err_set_errno(e, ERR_NIXL, "", errnum,
                             "the process that reads by NIXL cannot be started");
    }
    mtx_lock(&n->lock);
    n->pid = pid;
    n->status = 0;
    n->n_started++;
    mtx_unlock(&n->lock);
    if (receive_reply(n, &r, p, e) != 0)
        return -1;
    mtx_lock(&n->lock);
    memcpy(n->info.version, r.version, sizeof r.version);
    mtx_unlock(&n->lock);
    return 0;
}

int nixl_new(struct nixl **out, const struct nixl_cfg *cfg, struct err *e)
{
    struct nixl *n = calloc(1, sizeof *n);
    struct progress p = {.deadline_us = clock_after_us(START_MS * 1000)};
    int rc;

    if (n == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for NIXL");
    mtx_init(&n->lock, MTX_LEAF);
    n->cfg = *cfg;
    n->socket = n->output = n->windows_fd = -1;
    n->info = (struct nixl_info){.library = cfg->library, .devices = cfg->devices, .tls = cfg->tls};
    rc = start_child(n, &p, e);
    (void)kill_child(n);
    if (rc == 0)
        *out = n;
    else
        nixl_free(n);
    return rc;
}

void nixl_free(struct nixl *n)
{
    if (n == NULL)
        return;
    (void)kill_child(n);
    mtx_fini(&n->lock);
    free(n);
}

/* A child that was idle has ended: its process is collected here too, or it would stay in the
 * table of processes until the next read. Its descriptors are the reader's to close. */
void nixl_info(struct nixl *n, struct nixl_info *out)
{
    mtx_lock(&n->lock);
    if (n->pid > 0 && waitpid(n->pid, &n->status, WNOHANG) != 0)
        n->pid = 0;
    *out = n->info;
    out->n_started = n->n_started;
    out->running = n->pid > 0;
    mtx_unlock(&n->lock);
}

static int send_agents(struct nixl *n, const struct nixl_agent *agents, uint32_t count,
                       const struct progress *p, struct err *e)
{
    struct nixl_command command = {.operation = NIXL_COMMAND_AGENTS, .n = count};
    struct nixl_reply r;

    for (uint32_t i = 0; i < count; i++)
        command.nbytes += sizeof(struct nixl_agent_head) + strlen(agents[i].name) +
                          agents[i].nbytes;
    if (send_all(n, &command, sizeof command, p, e) != 0)
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct nixl_agent *a = &agents[i];
        struct nixl_agent_head head = {(uint32_t)strlen(a->name), a->nbytes};

        if (send_all(n, &head, sizeof head, p, e) != 0 ||
            send_all(n, a->name, head.len, p, e) != 0 ||
            send_all(n, a->metadata, a->nbytes, p, e) != 0)
            return -1;
    }
    return receive_reply(n, &r, p, e);
}

/* The child of the last read, unless it has ended, or is about to. */
static bool child_is_there(struct nixl *n)
{
    struct pollfd in = {.fd = n->socket, .events = POLLIN};

    return n->socket >= 0 && !clock_passed(n->replied_us + USED_AFTER_US) && poll(&in, 1, 0) == 0;
}

int nixl_begin(struct nixl *n, const struct nixl_agent *agents, uint32_t count,
               const struct progress *p, struct err *e)
{
    int rc = 0;

    assert(count <= NIXL_AGENTS_MAX);
    if (atomic_exchange(&n->taken, true))
        return err_set(e, ERR_CONFLICT, "", "another update is being read by NIXL");
    if (!child_is_there(n)) {
        (void)kill_child(n);
        rc = start_child(n, p, e);
    }
    for (uint32_t i = 0; i < count && rc == 0; i++)
        if (strcmp(agents[i].name, n->name) == 0)
            rc = err_set(e, ERR_BAD_REQUEST, "", "agent '%s' is this server's own", n->name);
    if (rc == 0)
        rc = send_agents(n, agents, count, p, e);
    if (rc != 0)
        atomic_store(&n->taken, false);
    return rc;
}

int nixl_read(struct nixl *n, uint32_t window, const struct nixl_slice *slices, uint32_t count,
              const struct progress *p, struct err *e)
{
    struct nixl_command command = {.operation = NIXL_COMMAND_READ,
                                   .n = count,
                                   .window = window,
                                   .nbytes = count * sizeof *slices};

    assert(!n->reading && window < NIXL_WINDOWS);
    n->reading = true;
    if (send_all(n, &command, sizeof command, p, e) != 0)
        return -1;
    return send_all(n, slices, command.nbytes, p, e);
}

int nixl_wait(struct nixl *n, const struct progress *p, uint32_t *slice, struct err *e)
{
    struct nixl_reply r = {0};
    int rc = receive_reply(n, &r, p, e);

    n->reading = false;
    *slice = r.slice;
    return rc;
}

const uint8_t *nixl_window(const struct nixl *n, uint32_t window)
{
    return n->windows + (size_t)window * NIXL_WINDOW_NBYTES;
}

void nixl_end(struct nixl *n, bool well)
{
    if (!well || n->reading)
        (void)kill_child(n);
    atomic_store(&n->taken, false);
}

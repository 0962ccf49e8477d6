/* Commands are done one after the other; while one is read, the server copies what the one before
 * has brought. */
#include "transport/nixl/nixl_child.h"

#include "transport/nixl/nixl_wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PROGRESS_DELAY_US = 1000, POLL_NS = 100000 };

/* An agent of a trainer whose metadata is loaded. */
struct peer {
    char name[NIXL_NAME_LEN_MAX + 1];
    void *metadata; /* owned; [nbytes] */
    uint32_t nbytes;
    bool wanted;
};

struct child {
    struct nixl_api api;
    nixl_handle agent, options;
    const char *name;
    uint8_t *windows;
    struct peer peers[NIXL_AGENTS_MAX]; /* of the last command, in its order */
    uint32_t n_peers;
    uint32_t slice; /* at fault */
};

static void receive(void *out, size_t nbytes)
{
    char *at = out;

    while (nbytes > 0) {
        ssize_t n = recv(NIXL_FD_SOCKET, at, nbytes, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(0); /* the server has gone */
        at += n;
        nbytes -= (size_t)n;
    }
}

static void reply(const struct child *c, const char *version, const struct err *e)
{
    struct nixl_reply r = {.code = e->code, .slice = c->slice};

    (void)snprintf(r.version, sizeof r.version, "%s", version);
    (void)snprintf(r.msg, sizeof r.msg, "%s", e->msg);
    if (send(NIXL_FD_SOCKET, &r, sizeof r, MSG_NOSIGNAL) != (ssize_t)sizeof r)
        _exit(0);
}

static int nixl_try(int status, const char *what, struct err *e)
{
    return status == NIXL_SUCCESS
               ? 0
               : err_set(e, ERR_NIXL, "", "NIXL failed: %s answers %d", what, status);
}

static int register_windows(struct child *c, struct err *e)
{
    const struct nixl_api *x = &c->api;
    size_t nbytes = (size_t)NIXL_WINDOWS * NIXL_WINDOW_NBYTES;
    nixl_handle list = NULL;
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, NIXL_FD_WINDOWS, 0);

    if (at == MAP_FAILED)
        return err_set_errno(e, ERR_NO_MEMORY, "", errno, "no memory for the windows of NIXL");
    c->windows = at;
    if (nixl_try(x->create_reg_dlist(NIXL_DRAM, &list), "create_reg_dlist", e) != 0 ||
        nixl_try(x->reg_dlist_add_desc(list, (uintptr_t)at, nbytes, 0, NULL, 0),
                 "reg_dlist_add_desc", e) != 0)
        return -1;
    return nixl_try(x->register_mem(c->agent, list, c->options), "register_mem", e);
}

static int start_agent(struct child *c, const char *library, struct err *e)
{
    struct nixl_agent_config config = {.progress_thread = true,
                                       .sync = NIXL_SYNC_RW,
                                       .n_workers = 1,
                                       .progress_delay_us = PROGRESS_DELAY_US};
    const struct nixl_api *x = &c->api;
    nixl_handle mems = NULL, params = NULL, backend = NULL;

    if (nixl_load(&c->api, library, e) != 0 ||
        nixl_try(x->create_agent(c->name, &config, &c->agent), "create_configured_agent", e) != 0 ||
        nixl_try(x->get_plugin_params(c->agent, "UCX", &mems, &params), "get_plugin_params of UCX",
                 e) != 0 ||
        nixl_try(x->create_backend(c->agent, "UCX", params, &backend),
                 "create_backend of UCX with these devices and transports", e) != 0 ||
        nixl_try(x->create_opt_args(&c->options), "create_opt_args", e) != 0 ||
        nixl_try(x->opt_args_add_backend(c->options, backend), "opt_args_add_backend", e) != 0)
        return -1;
    return register_windows(c, e);
}

static struct peer *find_peer(struct child *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_peers; i++)
        if (strcmp(c->peers[i].name, name) == 0)
            return &c->peers[i];
    return NULL;
}

static void drop_peer(struct child *c, struct peer *p)
{
    if (p->metadata != NULL)
        (void)c->api.invalidate_remote_md(c->agent, p->name);
    free(p->metadata);
    *p = (struct peer){0};
}

static int load_peer(struct child *c, const struct peer *p, struct err *e)
{
    char *name = NULL;
    int status = c->api.load_remote_md(c->agent, p->metadata, p->nbytes, &name), rc = 0;

    if (status != NIXL_SUCCESS)
        return err_set(e, ERR_UNREADABLE, "", "the metadata of agent '%s' cannot be loaded: %d",
                       p->name, status);
    if (name == NULL || strcmp(name, p->name) != 0)
        rc = err_set(e, ERR_BAD_REQUEST, "", "the metadata is that of agent '%.100s', not of '%s'",
                     name != NULL ? name : "", p->name);
    free(name);
    return rc;
}

/* One agent out of a command's bytes. Returns NULL at the end of them. */
static const uint8_t *next_agent(struct peer *out, const uint8_t *at, const uint8_t *end)
{
    struct nixl_agent_head head;

    if ((size_t)(end - at) < sizeof head)
        return NULL;
    memcpy(&head, at, sizeof head);
    at += sizeof head;
    if (head.len > NIXL_NAME_LEN_MAX || (uint64_t)head.len + head.nbytes > (uint64_t)(end - at))
        return NULL;
    *out = (struct peer){.nbytes = head.nbytes, .metadata = malloc(head.nbytes + 1)};
    if (out->metadata == NULL)
        return NULL;
    memcpy(out->name, at, head.len);
    memcpy(out->metadata, at + head.len, head.nbytes);
    return at + head.len + head.nbytes;
}

/* Those that are loaded already, with these very bytes, are left as they are. */
static int load_agents(struct child *c, const uint8_t *at, size_t nbytes, uint32_t n, struct err *e)
{
    static struct peer wanted[NIXL_AGENTS_MAX];
    const uint8_t *end = at + nbytes;

    if (n > NIXL_AGENTS_MAX)
        return err_set(e, ERR_INTERNAL, "", "a command has %u agents", (unsigned)n);
    for (uint32_t i = 0; i < n; i++) {
        struct peer *same;

        at = next_agent(&wanted[i], at, end);
        if (at == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for the agents of a command");
        same = find_peer(c, wanted[i].name);
        if (same != NULL && same->nbytes == wanted[i].nbytes &&
            memcmp(same->metadata, wanted[i].metadata, same->nbytes) == 0) {
            wanted[i].wanted = true;
            free(same->metadata);
            *same = (struct peer){0};
        }
    }
    for (uint32_t i = 0; i < c->n_peers; i++)
        drop_peer(c, &c->peers[i]);
    memcpy(c->peers, wanted, sizeof c->peers);
    c->n_peers = n;
    for (uint32_t i = 0; i < n; i++)
        if (!c->peers[i].wanted && load_peer(c, &c->peers[i], e) != 0)
            return -1;
    return 0;
}

/* The slices [n] of one agent and one kind of memory, as one request. */
struct part {
    uint32_t agent, mem, first;
    nixl_handle request;
};

/* Which of the slices is not registered? Any other failure is the agent's. */
static int explain_part(struct child *c, const struct part *p, const struct nixl_slice *s,
                        uint32_t n, int status, struct err *e)
{
    const struct nixl_api *x = &c->api;

    for (uint32_t i = p->first; i < n; i++) {
        nixl_handle list = NULL;
        bool there = true;

        if (s[i].agent != p->agent || s[i].mem != p->mem ||
            x->create_xfer_dlist((int)p->mem, &list) != NIXL_SUCCESS)
            continue;
        (void)x->xfer_dlist_add_desc(list, s[i].addr, s[i].nbytes, s[i].device);
        there = x->check_remote_md(c->agent, c->peers[p->agent].name, list) == NIXL_SUCCESS;
        (void)x->destroy_xfer_dlist(list);
        if (there)
            continue;
        c->slice = i;
        return err_set(
            e, ERR_UNREADABLE, "",
            "agent '%s' has not registered %llu bytes of %s at address %llu (device %llu)",
            c->peers[p->agent].name, (unsigned long long)s[i].nbytes,
            p->mem == NIXL_VRAM ? "VRAM" : "DRAM", (unsigned long long)s[i].addr,
            (unsigned long long)s[i].device);
    }
    return err_set(e, ERR_NIXL, "", "a read from agent '%s' cannot be made: NIXL answers %d",
                   c->peers[p->agent].name, status);
}

static int make_part(struct child *c, struct part *p, uint8_t *window, const struct nixl_slice *s,
                     uint32_t n, struct err *e)
{
    const struct nixl_api *x = &c->api;
    const char *name = c->peers[p->agent].name;
    nixl_handle local = NULL, remote = NULL;
    int status;

    if (nixl_try(x->create_xfer_dlist(NIXL_DRAM, &local), "create_xfer_dlist", e) != 0 ||
        nixl_try(x->create_xfer_dlist((int)p->mem, &remote), "create_xfer_dlist", e) != 0)
        return -1;
    for (uint32_t i = p->first; i < n; i++)
        if (s[i].agent == p->agent && s[i].mem == p->mem &&
            (nixl_try(x->xfer_dlist_add_desc(local, (uintptr_t)(window + s[i].at), s[i].nbytes, 0),
                      "xfer_dlist_add_desc", e) != 0 ||
             nixl_try(x->xfer_dlist_add_desc(remote, s[i].addr, s[i].nbytes, s[i].device),
                      "xfer_dlist_add_desc", e) != 0))
            return -1;
    status = x->create_xfer_req(c->agent, NIXL_READ, local, remote, name, &p->request, c->options);
    (void)x->destroy_xfer_dlist(local);
    (void)x->destroy_xfer_dlist(remote);
    if (status != NIXL_SUCCESS)
        return explain_part(c, p, s, n, status, e);
    status = x->post_xfer_req(c->agent, p->request, NULL);
    return status == NIXL_SUCCESS || status == NIXL_IN_PROGRESS
               ? 0
               : err_set(e, ERR_NIXL, "", "the read from agent '%s' failed: NIXL answers %d", name,
                         status);
}

/* One that fails ends the others with it. */
static int wait_parts(struct child *c, const struct part *parts, uint32_t n, struct err *e)
{
    const struct nixl_api *x = &c->api;
    struct timespec delay = {0, POLL_NS};
    bool done = false;

    while (!done) { /* for ever: the server has a deadline */
        done = true;
        for (uint32_t k = 0; k < n; k++) {
            int status = x->get_xfer_status(c->agent, parts[k].request);

            done = done && status != NIXL_IN_PROGRESS;
            if (status != NIXL_SUCCESS && status != NIXL_IN_PROGRESS)
                return err_set(e, ERR_NIXL, "", "the read from agent '%s' failed: NIXL answers %d",
                               c->peers[parts[k].agent].name, status);
        }
        if (!done)
            (void)nanosleep(&delay, NULL);
    }
    for (uint32_t k = 0; k < n; k++)
        if (nixl_try(x->release_xfer_req(c->agent, parts[k].request), "release_xfer_req", e) != 0 ||
            nixl_try(x->destroy_xfer_req(parts[k].request), "destroy_xfer_req", e) != 0)
            return -1;
    return 0;
}

static int read_slices(struct child *c, uint32_t window, const struct nixl_slice *s, uint32_t n,
                       struct err *e)
{
    static struct part parts[2 * NIXL_AGENTS_MAX];
    uint8_t *to = c->windows + (size_t)window * NIXL_WINDOW_NBYTES;
    uint32_t n_parts = 0, k;

    for (uint32_t i = 0; i < n; i++) {
        for (k = 0; k < n_parts && (parts[k].agent != s[i].agent || parts[k].mem != s[i].mem); k++)
            continue;
        if (k < n_parts)
            continue;
        parts[n_parts++] = (struct part){.agent = s[i].agent, .mem = s[i].mem, .first = i};
        if (make_part(c, &parts[k], to, s, n, e) != 0)
            return -1;
    }
    return wait_parts(c, parts, n_parts, e);
}

/* An agent that goes on after an error would be in an unknown state, so the server ends it. */
static void serve_command(struct child *c)
{
    struct nixl_command command;
    struct err e = {0};
    void *data;

    receive(&command, sizeof command);
    data = malloc(command.nbytes + 1);
    if (data == NULL)
        _exit(1);
    receive(data, command.nbytes);
    c->slice = 0;
    if (command.operation == NIXL_COMMAND_AGENTS)
        (void)load_agents(c, data, command.nbytes, command.n, &e);
    else
        (void)read_slices(c, command.window, data, command.n, &e);
    free(data);
    reply(c, "", &e);
}

/* The server's descriptors are closed by the kernel; what it forgot to mark is closed here. A
 * signal to all processes of a terminal or a service asks the server to drain, and so the update
 * that is under way to go on. */
static void leave_the_server(const char *parent)
{
    static const int of_all[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    struct rlimit no_core = {0, 0};

    for (size_t i = 0; i < sizeof of_all / sizeof of_all[0]; i++)
        (void)signal(of_all[i], SIG_IGN);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != (pid_t)strtol(parent, NULL, 10))
        _exit(0);
    (void)syscall(SYS_close_range, NIXL_FD_END, ~0U, 0U);
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

_Noreturn void nixl_child_main(char **argv)
{
    static struct child c;
    char version[NIXL_VERSION_TEXT_MAX] = "";
    struct pollfd in = {.fd = NIXL_FD_SOCKET, .events = POLLIN};
    struct err e = {0};

    leave_the_server(argv[4]);
    c.name = argv[3];
    if (start_agent(&c, argv[2], &e) == 0)
        nixl_ucx_version(version);
    reply(&c, version, &e);
    while (e.code == ERR_NONE && poll(&in, 1, NIXL_IDLE_MS) != 0)
        serve_command(&c);
    _exit(e.code == ERR_NONE ? NIXL_EXIT_IDLE : 1);
}

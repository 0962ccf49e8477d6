/* Requests of the command line to a running server, one at a time; each call waits for its answer.
 *
 * An interrupt (SIGINT, SIGTERM) ends the wait. Threads: main's. */
#ifndef BATON_CLI_CONNECTION_H
#define BATON_CLI_CONNECTION_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a command ends with. */
enum cli_exit {
    CLI_OK = 0,
    CLI_REFUSED = 1,     /* the server refused, or a check found a difference */
    CLI_USAGE = 2,       /* the command line, or a file that it names, is wrong */
    CLI_UNREACHABLE = 3, /* no connection, no answer in time, or one that is not baton's: what the
                            server did is unknown */
    CLI_NOT_HANDED_OVER = 4, /* a push that is committed, and that too few upstreams have yet */
    CLI_INTERRUPTED = 130
};

struct connection;

struct connection_cfg {
    const char *url;     /* "http://host:port", "https://…", "unix:/path" */
    const char *key;     /* borrowed; NULL: none is sent */
    const char *ca_file; /* borrowed; NULL: the system's certificates */
    uint64_t timeout_us; /* of each request */
};

/* connection_new - connects to nothing yet. Errors: ERR_BAD_REQUEST (at --url), ERR_NO_MEMORY,
 * ERR_INTERNAL. */
int connection_new(struct connection **out, const struct connection_cfg *cfg, struct err *e);
void connection_free(struct connection *c); /* accepts NULL */

struct call {
    const char *method, *path;
    const char *content_type; /* of the body; NULL: JSON */
    const void *body;         /* borrowed; NULL: none */
    size_t body_len;
    uint64_t timeout_us; /* 0: that of the connection */
    const json_t *sent;  /* borrowed: members that the answer repeats; NULL: none */
    /* Receives the body of a 2xx as it comes, instead of `answer.text`; on another thread, while
     * main waits. It says itself what is a success. May be NULL. */
    void (*data)(void *arg, const char *data, size_t len);
    /* Called about five times a second while the request runs, on main's thread. May be NULL. */
    void (*progress)(void *arg, uint64_t nbytes_sent);
    void *arg;
};

struct answer {
    int status;      /* 0: none came, and `why` says why; so it does of a 2xx that is no success */
    struct buf text; /* owned: answer_fini */
    json_t *json;    /* owned; NULL: the text is no JSON, or no success of that route */
    char why[256];
    bool interrupted;
    const char *hint; /* what a user can do if none came, or NULL; static */
};

/* json_show - every text in `json` becomes one line that a terminal may show (cli/terminal.h). */
void json_show(json_t *json);

/* connection_call - send one request and wait for its answer.
 * Returns: CLI_OK for a 2xx that success_check() accepts, CLI_REFUSED for any other status,
 * CLI_UNREACHABLE, also for other contents of a 2xx, CLI_INTERRUPTED.
 * *out is set in every case, its JSON by json_show(). Blocks: up to the timeout. */
enum cli_exit connection_call(struct connection *c, const struct call *call, struct answer *out);
void answer_fini(struct answer *a);

/* connection_json - connection_call with a JSON body (stolen; NULL: none), which is `sent`. */
enum cli_exit connection_json(struct connection *c, const char *method, const char *path,
                              json_t *body, struct answer *out);

/* answer_report - write to stderr why a call failed, as "baton WHAT: …", in the server's words. */
void answer_report(const struct answer *a, const struct connection *c, const char *what);

const char *connection_url(const struct connection *c);

#endif

/* Members of requests about updates that several operations share. */
#ifndef BATON_HANDLERS_UPDATE_MEMBERS_H
#define BATON_HANDLERS_UPDATE_MEMBERS_H

#include "base/err.h"
#include "handlers/rows/member.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UPDATE_ANONYMOUS_LEASE_S = 600
}; /* of sessions of dialects, whose trainers do not renew leases */

/* Rules of strings, for the rows (handlers/rows/member.h): is it an update's id, a chunk's id, a
 * label that may be empty, a tensor list's digest, a selector that is supported, the transport of
 * an update or of a group, NCCL's id, the host and the name of a group? Errors: ERR_BAD_REQUEST at
 * `field`. */
int update_id_check(const char *text, const char *field, struct err *e);
int chunk_id_check(const char *text, const char *field, struct err *e);
int label_or_none_check(const char *text, const char *field, struct err *e);
int digest_check(const char *text, const char *field, struct err *e);
int selector_check(const char *text, const char *field, struct err *e);
int broadcast_check(const char *text, const char *field, struct err *e);
int group_transport_check(const char *text, const char *field, struct err *e);
int nccl_id_check(const char *text, const char *field, struct err *e);
int master_address_check(const char *text, const char *field, struct err *e);
int group_name_check(const char *text, const char *field, struct err *e);

/* update_source_of - which member names the source of the bytes.
 * @out  static
 * Errors: ERR_BAD_REQUEST: none, several, or a member that belongs to another source. */
int update_source_of(const char **out, const json_t *body, struct err *e);

/* source_members_check - refuse members of `rows` that say nothing of what a source brings.
 * @source  the member that names it
 * Errors: ERR_BAD_REQUEST at the member, or at a transport that is none. */
int source_members_check(const struct member *rows, const char *source, const json_t *body,
                         struct err *e);

/* label_check - check a weight version label: 1..VERSION_LABEL_MAX bytes of UTF-8 without hidden
 * characters (utf8_is_hidden), not a dirty marker (FLEET_DIRTY_MARKER). Errors: ERR_BAD_REQUEST at
 * `field`. */
int label_check(const char *label, const char *field, struct err *e);

/* A request to rename the served version. */
struct label_req {
    const char *label;  /* borrowed from the body */
    uint64_t if_serial; /* 0: any served version */
    bool abort_requests;
};

#endif

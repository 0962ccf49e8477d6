/* Members of requests about updates that several operations share. */
#ifndef BATON_HANDLERS_UPDATE_MEMBERS_H
#define BATON_HANDLERS_UPDATE_MEMBERS_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UPDATE_ANONYMOUS_LEASE_S = 600
}; /* of sessions of dialects, whose trainers do not renew leases */

/* update_id_check - of 1 to len_max bytes? Errors: ERR_BAD_REQUEST at `field`. */
int update_id_check(const char *id, size_t len_max, const char *field, struct err *e);

/* update_id_parse - read the required member update_id. @id  borrowed from the body
 * Errors: ERR_BAD_REQUEST at /update_id. */
int update_id_parse(const char **id, const json_t *body, struct err *e);

/* update_source_of - which member names the source of the bytes.
 * @out  static
 * Errors: ERR_BAD_REQUEST: none, several, or a member that belongs to another source. */
int update_source_of(const char **out, const json_t *body, struct err *e);

/* placement_from_body - read `placement`: "replicated" or "sharded". @sharded  unchanged if
 * absent. Errors: ERR_BAD_REQUEST at /placement. */
int placement_from_body(bool *sharded, const json_t *body, struct err *e);

/* selector_from_body - read `selector`: "all" or "target", which mean the same where there is no
 * draft model.
 * @selector  static; unchanged if absent
 * Errors: ERR_BAD_REQUEST at /selector, also for a draft model's. */
int selector_from_body(const char **selector, const json_t *body, struct err *e);

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

/* label_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member. */
int label_parse(struct label_req *req, const json_t *body, struct err *e);

#endif

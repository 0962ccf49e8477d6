/* The records of control/history.h as JSON. */
#include "handlers/history_json.h"

#include "base/utf8.h"
#include "control/history.h"
#include "handlers/rows/rows.h"
#include "handlers/update_json.h"

#include <stdlib.h>

static const struct member seconds_rows[] = {
    {"wait", M_NUMBER, M_IN(struct update_times, wait_us), .per = M_S,
     .doc = "in none of the others: for the trainer's requests, for earlier work or for memory"},
    {"receive", M_NUMBER, M_IN(struct update_times, receive_us), .per = M_S},
    {"proof", M_NUMBER, M_IN(struct update_times, proof_us), .per = M_S,
     .doc = "checksums, tied names, coverage"},
    {"commit", M_NUMBER, M_IN(struct update_times, commit_us), .per = M_S},
    {"whole", M_NUMBER, M_IN(struct update_times, whole_us), .per = M_S},
    {0},
};

static json_t *started_at_json(const void *from)
{
    const struct update_record *u = from;

    return json_integer((json_int_t)((u->ended_at_us - u->times.whole_us) / M_S));
}

const struct member update_record_reply[] = {
    {"update_id", M_STRING | M_NULL, M_IN(struct update_record, update_id),
     .doc = "null: of a refused request"},
    {"weight_version", M_STRING | M_NULL, M_IN(struct update_record, weight_version)},
    {"serial", M_INT | M_NULL, M_IN(struct update_record, serial),
     .doc = "null unless it is committed"},
    {"outcome", M_STRING, M_IN(struct update_record, outcome), .word = update_outcome_name,
     M_WORDS("committed", "aborted", "refused")},
    {"started_at", M_INT, .make = started_at_json, .doc = "Unix time in seconds"},
    {"ended_at", M_INT, M_IN(struct update_record, ended_at_us), .per = M_S,
     .doc = "Unix time in seconds"},
    {"seconds", M_OBJECT_IN(seconds_rows, struct update_record, times),
     .doc = "Time spent in each phase, which together are the whole"},
    {"nbytes", M_INT, M_IN(struct update_record, nbytes),
     .doc = "bytes received; 0 in front of vLLM and SGLang, which do not report them"},
    {"delta", M_BOOL, M_IN(struct update_record, base.delta)},
    {"base_version", M_STRING | M_NULL, M_IN(struct update_record, base.label),
     .doc = "The version that it built on; null if its start named none"},
    {"base", M_STRING | M_NULL, M_MADE(base_json, struct update_record, base), M_WORDS("unchecked"),
     .doc = DOC_BASE},
    {"nbytes_made", M_INT, M_IN(struct update_record, nbytes_made),
     .doc = "bytes of the tensors that a delta made; 0 for other updates"},
    {"source", M_STRING | M_NULL, M_IN(struct update_record, source),
     .doc = "of its last tensors: body, shm, path, ipc_handles, nccl or delta"},
    {"route", M_STRING | M_NULL, M_IN(struct update_record, route), .doc = "of a refused request"},
    {"code", M_STRING | M_NULL, M_IN(struct update_record, error.code), .word = err_wire_name,
     .doc = "as ErrorCode; null: it is committed"},
    {"message", M_STRING | M_NULL, M_IN(struct update_record, error.msg)},
    {"param", M_STRING | M_NULL, M_IN(struct update_record, error.field)},
    {"peer", M_STRING | M_NULL, M_IN(struct update_record, actor.peer),
     .doc = "address of the client that started it, or sent the refused request; null: the "
            "server's own first weights"},
    {"key", M_STRING | M_NULL, M_IN(struct update_record, actor.key),
     .doc = "the name of its key, or sha256: and the begin of the key's SHA-256; null: no key was "
            "needed"},
    {"request_id", M_STRING | M_NULL, M_IN(struct update_record, actor.request_id)},
    {"changes", M_OBJECT | M_NULL, .of = changes_reply,
     M_MADE(changes_json, struct update_record, changes)},
    {"count", M_INT, M_IN(struct update_record, n),
     .doc = "refused requests of one kind in a row are one record; ended_at and message are of "
            "the last one"},
    {0},
};

const struct member error_record_reply[] = {
    {"first_at", M_INT, M_IN(struct error_record, first_at_us), .per = M_S,
     .doc = "Unix time in seconds"},
    {"last_at", M_INT, M_IN(struct error_record, last_at_us), .per = M_S,
     .doc = "Unix time in seconds"},
    {"count", M_INT, M_IN(struct error_record, n)},
    {"code", M_STRING, M_IN(struct error_record, code), .word = err_wire_name},
    {"message", M_STRING | M_NULL, M_IN(struct error_record, message), .doc = "of the last one"},
    {"param", M_STRING | M_NULL, M_IN(struct error_record, param), .doc = "of the last one"},
    {"route", M_STRING | M_NULL, M_IN(struct error_record, route),
     .doc = "null: no route matched, or no request caused it"},
    {0},
};

/* Messages may have been cut inside a character. */

json_t *recent_updates_json(struct history *h)
{
    struct update_record *records = calloc(HISTORY_UPDATES_MAX, sizeof *records);
    size_t n = records != NULL ? history_updates(h, records) : 0;
    json_t *list = NULL;

    for (size_t i = 0; i < n; i++) {
        (void)utf8_clean(records[i].error.msg);
        (void)utf8_clean(records[i].error.field);
    }
    if (records != NULL)
        list = member_write_list(records, n, sizeof *records, update_record_reply);
    free(records);
    return list;
}

json_t *recent_errors_json(struct history *h)
{
    struct error_record *records = calloc(HISTORY_ERRORS_MAX, sizeof *records);
    size_t n = records != NULL ? history_errors(h, records) : 0;
    json_t *list = NULL;

    for (size_t i = 0; i < n; i++) {
        (void)utf8_clean(records[i].message);
        (void)utf8_clean(records[i].param);
    }
    if (records != NULL)
        list = member_write_list(records, n, sizeof *records, error_record_reply);
    free(records);
    return list;
}

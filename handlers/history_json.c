/* The records of control/history.h as JSON. */
#include "handlers/history_json.h"

#include "base/utf8.h"
#include "control/history.h"
#include "handlers/update_json.h"

#include <stdlib.h>

static json_t *text_or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? json_string(text) : json_null();
}

/* A message may have been cut inside a character. @text  changed */
static json_t *clean_text_or_null(char *text)
{
    (void)utf8_clean(text);
    return text_or_null(text);
}

static json_t *time_json(uint64_t wall_us)
{
    return json_integer((json_int_t)(wall_us / 1000000));
}

static double seconds(uint64_t us)
{
    return (double)us / 1e6;
}

static json_t *times_json(const struct update_times *t)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "wait", seconds(t->wait_us), "receive",
                     seconds(t->receive_us), "proof", seconds(t->proof_us), "commit",
                     seconds(t->commit_us), "whole", seconds(t->whole_us));
}

static json_t *record_json(struct update_record *u)
{
    bool failed = u->error.code != ERR_NONE;
    uint64_t began_us = u->ended_at_us - u->times.whole_us;

    return json_pack(
        "{s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:I}",
        "update_id", text_or_null(u->update_id), "weight_version", text_or_null(u->weight_version),
        "serial", u->serial > 0 ? json_integer((json_int_t)u->serial) : json_null(), "outcome",
        update_outcome_name(u->outcome), "started_at", time_json(began_us), "ended_at",
        time_json(u->ended_at_us), "seconds", times_json(&u->times), "nbytes",
        (json_int_t)u->nbytes, "source", text_or_null(u->source), "route", text_or_null(u->route),
        "code", text_or_null(failed ? err_wire_name(u->error.code) : NULL), "message",
        clean_text_or_null(u->error.msg), "param", clean_text_or_null(u->error.field), "peer",
        text_or_null(u->actor.peer), "key", text_or_null(u->actor.key), "request_id",
        text_or_null(u->actor.request_id), "changes", changes_json(&u->changes), "count",
        (json_int_t)u->n);
}

static json_t *error_record_json(struct error_record *r)
{
    return json_pack("{s:o, s:o, s:I, s:s, s:o, s:o, s:o}", "first_at", time_json(r->first_at_us),
                     "last_at", time_json(r->last_at_us), "count", (json_int_t)r->n, "code",
                     err_wire_name(r->code), "message", clean_text_or_null(r->message), "param",
                     clean_text_or_null(r->param), "route", text_or_null(r->route));
}

/* Returns NULL, and frees the list, without memory. @item  stolen */
static json_t *list_append(json_t *list, json_t *item)
{
    if (json_array_append_new(list, item) == 0)
        return list;
    json_decref(list);
    return NULL;
}

json_t *recent_updates_json(struct history *h)
{
    struct update_record *records = calloc(HISTORY_UPDATES_MAX, sizeof *records);
    json_t *list = records != NULL ? json_array() : NULL;
    size_t n = records != NULL ? history_updates(h, records) : 0;

    for (size_t i = 0; i < n && list != NULL; i++)
        list = list_append(list, record_json(&records[i]));
    free(records);
    return list;
}

json_t *recent_errors_json(struct history *h)
{
    struct error_record *records = calloc(HISTORY_ERRORS_MAX, sizeof *records);
    json_t *list = records != NULL ? json_array() : NULL;
    size_t n = records != NULL ? history_errors(h, records) : 0;

    for (size_t i = 0; i < n && list != NULL; i++)
        list = list_append(list, error_record_json(&records[i]));
    free(records);
    return list;
}

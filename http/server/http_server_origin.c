/* Between a request of the HTTP server and the rules of http/server/origin.h. */
#include "http/server/http_server_priv.h"

#include "base/log.h"

static const struct origin_rules *rules_of(const struct request *r)
{
    return r->conn->shard->http_server->cfg.origins;
}

/* Often the server's own name, which is missing in --allowed-host. */
static void log_misdirected(const struct request *r, const struct err *e)
{
    struct log_rec rec;

    log_begin(&rec, LOG_WARN, "request.misdirected");
    log_actor(&rec, &r->x->actor);
    log_str(&rec, "host", r->origin.host);
    log_str(&rec, "message", e->msg);
    log_end(&rec);
}

int origin_admit(struct request *r, struct err *e)
{
    const struct origin_rules *rules = rules_of(r);

    if (rules == NULL)
        return 0;
    r->origin.target = r->target;
    r->origin.authorization = r->x->authorization;
    r->origin.tls = r->conn->shard->http_server->tls;
    r->origin.unix_socket = !r->conn->tcp;
    r->origin.trusted = r->x->peer_trusted;
    r->preflight = origin_is_preflight(rules, &r->origin);
    if (origin_check(rules, &r->origin, e) == 0)
        return 0;
    if (e->code == ERR_MISDIRECTED)
        log_misdirected(r, e);
    return -1;
}

int origin_admit_act(const struct request *r, struct err *e)
{
    bool acts = r->x->method == METHOD_GET && r->route.get_has_effects;

    return rules_of(r) != NULL && acts ? origin_check_act(&r->origin, e) : 0;
}

static size_t headers_of(const struct request *r,
                         struct origin_answer_header out[ORIGIN_ANSWER_HEADERS_MAX])
{
    const struct origin_rules *rules = rules_of(r);

    return rules != NULL ? origin_answer(rules, &r->origin, out) : 0;
}

bool origin_add_headers(const struct request *r, struct MHD_Response *resp)
{
    struct origin_answer_header headers[ORIGIN_ANSWER_HEADERS_MAX];
    size_t n = headers_of(r, headers);

    for (size_t i = 0; i < n; i++)
        if (MHD_add_response_header(resp, headers[i].name, headers[i].value) != MHD_YES)
            return false;
    return true;
}

void origin_put_headers(const struct request *r, struct buf *head)
{
    struct origin_answer_header headers[ORIGIN_ANSWER_HEADERS_MAX];
    size_t n = headers_of(r, headers);

    for (size_t i = 0; i < n; i++)
        buf_printf(head, "%s: %s\r\n", headers[i].name, headers[i].value);
}

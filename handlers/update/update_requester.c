/* The reply to a request whose update has ended. */
#include "handlers/update/update_requester.h"

#include "handlers/lora_json.h"
#include "handlers/reply.h"
#include "handlers/update_json.h"
#include "http/http_request.h"

#include <stdlib.h>

struct update_requester {
    const struct app_generate *generate; /* borrowed */
    struct http_request *x;
};

int update_requester_new(struct update_requester **out, const struct app_generate *generate,
                         struct http_request *x, struct err *e)
{
    struct update_requester *a = malloc(sizeof *a);

    if (a == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
    *a = (struct update_requester){.generate = generate, .x = x};
    *out = a;
    return 0;
}

void update_requester_free(struct update_requester *a)
{
    free(a);
}

bool update_requester_disconnected(void *asker)
{
    return http_request_disconnected(((struct update_requester *)asker)->x);
}

/* A commit is reported even if there is no memory for the full reply: a 503 would mean that
 * nothing has changed. */
static json_t *committed_json(const struct app_generate *generate, const struct update_info *info)
{
    json_t *reply = update_json(info);

    if (reply != NULL && json_object_set_new(reply, "adapters", lora_valid_json(generate)) != 0) {
        json_decref(reply);
        return NULL;
    }
    return reply;
}

static void answer_committed(const struct app_generate *generate, struct http_request *x,
                             const struct update_info *info)
{
    static const char bare[] = "{\"phase\":\"committed\"}";
    struct http_reply r;

    if (!reply_json_make(x, 200, committed_json(generate, info), &r))
        r = (struct http_reply){.status = 200,
                                .content_type = "application/json",
                                .data = bare,
                                .len = sizeof bare - 1};
    http_reply(x, &r);
}

void update_reply_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct update_requester a = *(struct update_requester *)arg;

    update_requester_free(arg);
    a.x->error_reported = info->phase == UPDATE_ABORTED; /* by the end of the update */
    if (e->code != ERR_NONE)
        reply_error(a.x, e, update_details(info));
    else if (info->phase == UPDATE_COMMITTED)
        answer_committed(a.generate, a.x, info);
    else
        reply_json(a.x, 200, update_json(info));
}

/* prime-rl's updates: a directory that the trainer has written. Its NCCL broadcaster has a protocol
 * of its own, which is refused with a reason. */
#include "handlers/compat/prime_rl/dialect_prime_rl.h"

#include "handlers/body.h"

int prime_rl_update_request(json_t **body, const struct http_request *x, struct err *e)
{
    if (body_given(*body, "weight_dir") == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/weight_dir",
                       "weight_dir is null, which means weights by the trainer's own broadcaster; "
                       "only directories are read: use its filesystem broadcast");
    return dialect_request_plain(body, x, e);
}

int prime_rl_broadcaster_request(json_t **body, const struct http_request *x, struct err *e)
{
    (void)body;
    (void)x;
    return err_set(e, ERR_BAD_REQUEST, "",
                   "the trainer's NCCL broadcaster is not joined; use its filesystem broadcast, or "
                   "a group by /v1/weight_transfer/init");
}

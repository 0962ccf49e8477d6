/* GET /, /docs and /openapi.json. The pages ask this server for their data themselves, with the key
 * that their reader types. Rejected: pages with data in them, which would need a key in a URL. */
#include "handlers/status/page.h"

#include "handlers/control_plane.h"
#include "handlers/reply.h"

#include <nettle/base64.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>

enum { HASH_CAP = BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE) + 1, PAGE_POLICY_CAP = 257 };

_Static_assert(PAGE_POLICY_CAP - 1 <= HTTP_REQUEST_HEADER_VALUE_MAX, "it is one header");

/* The hash of what is between `begin` and `end`, as a policy has it. */
static bool hash_between(char out[HASH_CAP], const struct page_file *page, const char *begin,
                         const char *end)
{
    const char *from = memmem(page->data, page->len, begin, strlen(begin)), *to;
    struct sha256_ctx sum;
    uint8_t digest[SHA256_DIGEST_SIZE];

    if (from == NULL)
        return false;
    from += strlen(begin);
    to = memmem(from, page->len - (size_t)(from - page->data), end, strlen(end));
    if (to == NULL)
        return false;
    sha256_init(&sum);
    sha256_update(&sum, (size_t)(to - from), (const uint8_t *)from);
    sha256_digest(&sum, sizeof digest, digest);
    base64_encode_raw(out, sizeof digest, digest);
    out[HASH_CAP - 1] = '\0';
    return true;
}

/* The Content-Security-Policy of a page: its one inline script and its one inline style by their
 * hashes, requests to this server, and nothing else. False: the page has no such script or style.
 */
static bool page_policy(char out[PAGE_POLICY_CAP], const struct page_file *page)
{
    char script[HASH_CAP], style[HASH_CAP];
    int n;

    if (!hash_between(script, page, "<script>", "</script>") ||
        !hash_between(style, page, "<style>", "</style>"))
        return false;
    n = snprintf(out, PAGE_POLICY_CAP,
                 "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; "
                 "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                 "frame-ancestors 'none'",
                 script, style);
    return n > 0 && n < PAGE_POLICY_CAP;
}

/* @policy  NULL of what is no page; @needs_key: its data does, for this reader */
static void reply_file(struct http_request *x, const char *type, const struct page_file *file,
                       const char *policy, bool needs_key)
{
    struct http_reply r = {
        .status = 200, .content_type = type, .data = file->data, .len = file->len};

    http_reply_header(&r, "Cache-Control", "no-cache");
    http_reply_header(&r, "X-Content-Type-Options", "nosniff");
    http_reply_header(&r, "Referrer-Policy", "no-referrer");
    if (needs_key)
        http_reply_header(&r, "WWW-Authenticate", "%s", REPLY_CHALLENGE);
    if (policy != NULL)
        http_reply_header(&r, "Content-Security-Policy", "%s", policy);
    http_reply(x, &r);
}

static int reply_page(struct http_request *x, const struct page_file *page, bool needs_key,
                      struct err *e)
{
    char policy[PAGE_POLICY_CAP];

    if (!page_policy(policy, page))
        return err_set(e, ERR_INTERNAL, "", "the page in this binary has no script or no style");
    reply_file(x, "text/html; charset=utf-8", page, policy, needs_key);
    return 0;
}

int handle_page(struct app *app, struct http_request *x, struct err *e)
{
    const struct page_file page = {page_status_html, page_status_html_len};

    (void)app;
    return reply_page(x, &page, x->needs_key, e);
}

int handle_docs(struct app *app, struct http_request *x, struct err *e)
{
    const struct page_file page = {page_docs_html, page_docs_html_len};

    (void)app;
    return reply_page(x, &page, false, e);
}

int handle_openapi(struct app *app, struct http_request *x, struct err *e)
{
    const struct page_file file = {page_openapi_json, page_openapi_json_len};

    (void)app;
    (void)e;
    reply_file(x, "application/json", &file, NULL, false);
    return 0;
}

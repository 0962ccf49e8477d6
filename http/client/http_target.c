/* What a server's URL may be. What libcurl would find at the first request, or read otherwise than
 * it was meant, is found here. */
#include "http/client/http.h"

#include <string.h>

enum { PORT_MAX = 65535, PORT_DIGITS_MAX = 5 };

static const char *const schemes[] = {"http://", "https://", "unix:/"};

/* Behind the scheme; NULL: it has none of ours. */
static const char *http_target_authority_of(const char *url)
{
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t len = strlen(schemes[i]);

        if (strncmp(url, schemes[i], len) == 0 && url[len] != '\0')
            return url + len;
    }
    return NULL;
}

/* The ':' before a port, or where the authority ends. */
static const char *end_of_host(const char *authority)
{
    const char *bracket = authority[0] == '[' ? strchr(authority, ']') : NULL;

    return bracket != NULL ? bracket + 1 : authority + strcspn(authority, ":");
}

static int check_port(const char *url, const char *port, const char *field, struct err *e)
{
    size_t len = strspn(port, "0123456789");
    unsigned long n = 0;

    for (size_t i = 0; i < len && i < PORT_DIGITS_MAX; i++)
        n = n * 10 + (unsigned long)(port[i] - '0');
    if (strchr(port, ':') != NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.200s' has several colons: an IPv6 address stands in brackets", url);
    if (len > 0 && len <= PORT_DIGITS_MAX && port[len] == '\0' && n > 0 && n <= PORT_MAX)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "'%.200s' has port '%.20s', which is none of 1 to %d",
                   url, port, PORT_MAX);
}

static int http_target_check_host(const char *url, const char *authority, size_t len,
                                  const char *field, struct err *e)
{
    /* Those of names; in brackets also those of addresses with a zone. */
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:%";
    static const char no_name[] = ":%";
    bool bracketed = authority[0] == '[';
    size_t good = bracketed ? 1 + strspn(authority + 1, all) + 1 : strspn(authority, all);

    if (bracketed ? len < sizeof "[]" : strcspn(authority, no_name) < len)
        good = 0;
    if (len > 0 && good >= len)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "'%.200s' names no host: '%.*s' is none", url,
                   (int)(len < 100 ? len : 100), authority);
}

int http_target_check(const char *url, const char *field, struct err *e)
{
    const char *authority = http_target_authority_of(url), *end;

    if (authority == NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.200s' is none of http://host:port, https://host:port, unix:/path", url);
    if (url[0] == 'u')
        return 0;
    if (strpbrk(authority, "/?#@") != NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'%.200s' has more than scheme, host and port: paths and users are not "
                       "taken",
                       url);
    end = end_of_host(authority);
    if (http_target_check_host(url, authority, (size_t)(end - authority), field, e) != 0)
        return -1;
    if (*end == '\0')
        return 0;
    if (*end == ':')
        return check_port(url, end + 1, field, e);
    return err_set(e, ERR_BAD_REQUEST, field, "'%.200s' has '%.20s' where a port could stand", url,
                   end);
}

unsigned http_target_port_meant(const char *url)
{
    const char *authority = http_target_authority_of(url);

    if (authority == NULL || url[0] == 'u' || *end_of_host(authority) == ':')
        return 0;
    return strncmp(url, "https", strlen("https")) == 0 ? 443 : 80;
}

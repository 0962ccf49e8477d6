/* wait: asks a server whether it is ready until it is, or the time is over. */
#include "cli/cli_priv.h"
#include "cli/interrupt.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    TIMEOUT_S = 600,
    TIMEOUT_S_MAX = 86400,
    ASK_US = 5000000,
    ASK_MIN_US = 1000000,
    PAUSE_NS = 200000000
};

/* An answer that a later one may replace: none at all, or 503. */
static bool may_change(const struct answer *a, enum cli_exit rc)
{
    return (rc == CLI_UNREACHABLE && a->status == 0) || a->status == 503;
}

static enum cli_exit wait_over(const struct cli *c, const struct answer *a, const char *purpose)
{
    const char *why = cli_text(a->json, "message");

    if (a->status == 0)
        why = a->why;
    else if (why[0] == '\0')
        why = cli_text(a->json, "error.message");
    (void)fprintf(stderr, "baton wait: %s is not ready for %s, the time is over: %s\n",
                  connection_url(c->connection), purpose, why);
    return a->status == 0 ? CLI_UNREACHABLE : CLI_REFUSED;
}

static enum cli_exit wait_until(const struct cli *c, const char *path, const char *purpose,
                                uint64_t deadline_us)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};

    for (;;) {
        uint64_t now = clock_now_us(), left = deadline_us > now ? deadline_us - now : 0;
        struct call call = {.method = "GET",
                            .path = path,
                            .timeout_us = left < ASK_MIN_US ? ASK_MIN_US
                                          : left < ASK_US   ? left
                                                            : ASK_US};
        struct answer a;
        enum cli_exit rc = connection_call(c->connection, &call, &a);
        bool again = may_change(&a, rc) && !clock_passed(deadline_us);

        if (rc == CLI_OK && cli_has(c, OPT_JSON))
            cli_print_json(&a);
        else if (rc == CLI_OK)
            (void)printf("%s is ready for %s\n", connection_url(c->connection), purpose);
        else if (may_change(&a, rc) && !again)
            rc = wait_over(c, &a, purpose);
        else if (!again && rc != CLI_INTERRUPTED)
            answer_report(&a, c->connection, c->name);
        answer_fini(&a);
        if (!again)
            return rc;
        (void)nanosleep(&pause, NULL);
        if (interrupted())
            return CLI_INTERRUPTED;
    }
}

enum cli_exit cmd_wait(struct cli *c)
{
    const char *purpose = cli_has(c, OPT_FOR) ? c->values[OPT_FOR] : "generate";
    bool control = strcmp(purpose, "control") == 0;
    double timeout_s;

    if (!control && strcmp(purpose, "generate") != 0)
        return cli_usage_error(c, "--for: expected generate or control, not '%.40s'", purpose);
    if (cli_number(c, OPT_TIMEOUT, TIMEOUT_S, 0, TIMEOUT_S_MAX, &timeout_s) != CLI_OK)
        return CLI_USAGE;
    return wait_until(c, control ? "/readyz?for=control" : "/readyz", purpose,
                      clock_after_us((uint64_t)(timeout_s * 1e6)));
}

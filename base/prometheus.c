/* Prometheus text. Durations are whole microseconds until they are printed, so that sums stay
 * exact. */
#include "base/prometheus.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_VALUE_MAX = 256, SECONDS_TEXT_MAX = 32, FAMILY_NAME_MAX = 96 };

void prom_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void prom_put_value(struct buf *out, const char *value)
{
    char text[LABEL_VALUE_MAX + 1];

    (void)snprintf(text, sizeof text, "%s", value);
    (void)utf8_clean(text);
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\n')
            buf_puts(out, "\\n");
        else if (*p == '\\' || *p == '"')
            buf_printf(out, "\\%c", *p);
        else
            buf_append(out, p, 1);
    }
}

/* The name and all labels, `le` after the others when it is given. */
static void put_name(struct buf *out, const char *name, const struct prom_label *labels,
                     const char *le)
{
    const char *before = "{";

    buf_puts(out, name);
    for (; labels != NULL && labels->name != NULL; labels++) {
        buf_printf(out, "%s%s=\"", before, labels->name);
        prom_put_value(out, labels->value);
        buf_puts(out, "\"");
        before = ",";
    }
    if (le != NULL) {
        buf_printf(out, "%sle=\"%s\"", before, le);
        before = ",";
    }
    if (before[0] == ',')
        buf_puts(out, "}");
}

/* 2500 -> "0.0025": exact, without trailing zeros. */
static const char *seconds_text(char text[SECONDS_TEXT_MAX], uint64_t us)
{
    size_t len = (size_t)snprintf(text, SECONDS_TEXT_MAX, "%" PRIu64 ".%06" PRIu64, us / 1000000,
                                  us % 1000000);

    while (text[len - 1] == '0')
        text[--len] = '\0';
    if (text[len - 1] == '.')
        text[--len] = '\0';
    return text;
}

void prom_u64(struct buf *out, const char *name, const struct prom_label *labels, uint64_t value)
{
    put_name(out, name, labels, NULL);
    buf_printf(out, " %" PRIu64 "\n", value);
}

void prom_f64(struct buf *out, const char *name, const struct prom_label *labels, double value)
{
    put_name(out, name, labels, NULL);
    buf_printf(out, " %.9g\n", value);
}

void prom_seconds(struct buf *out, const char *name, const struct prom_label *labels,
                  uint64_t value_us)
{
    char text[SECONDS_TEXT_MAX];

    put_name(out, name, labels, NULL);
    buf_printf(out, " %s\n", seconds_text(text, value_us));
}

void prom_one(struct buf *out, const char *name, const char *type, const char *help, uint64_t value)
{
    prom_head(out, name, type, help);
    prom_u64(out, name, NULL, value);
}

void prom_one_seconds(struct buf *out, const char *name, const char *type, const char *help,
                      uint64_t value_us)
{
    prom_head(out, name, type, help);
    prom_seconds(out, name, NULL, value_us);
}

void prom_buckets(struct buf *out, const char *name, const struct prom_label *labels,
                  const struct prom_histogram *h)
{
    char part[FAMILY_NAME_MAX], text[SECONDS_TEXT_MAX];
    uint64_t n = 0;

    (void)snprintf(part, sizeof part, "%s_bucket", name);
    for (size_t i = 0; i <= h->n; i++) {
        n += h->counts[i];
        put_name(out, part, labels, i < h->n ? seconds_text(text, h->bounds_us[i]) : "+Inf");
        buf_printf(out, " %" PRIu64 "\n", n);
    }
    (void)snprintf(part, sizeof part, "%s_sum", name);
    prom_seconds(out, part, labels, h->sum_us);
    (void)snprintf(part, sizeof part, "%s_count", name);
    prom_u64(out, part, labels, n); /* of the same counts: equal to +Inf by construction */
}

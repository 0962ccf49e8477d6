/* Reading answers, and writing what people read. */
#include "cli/cli_priv.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum cli_exit cli_ask(const struct cli *c, const char *method, const char *path, json_t *body,
                      struct answer *out)
{
    enum cli_exit rc = connection_json(c->connection, method, path, body, out);

    if (rc != CLI_OK)
        answer_report(out, c->connection, c->name);
    return rc;
}

void json_print(const char *text, size_t len)
{
    struct buf shown = {0};

    (void)terminal_show(&shown, text, len, TERMINAL_JSON);
    if (shown.len > 0)
        (void)puts(shown.data);
    buf_fini(&shown);
}

void cli_print_json(const struct answer *a)
{
    json_print(a->text.data, a->text.len);
}

const json_t *cli_at(const json_t *root, const char *path)
{
    while (root != NULL && *path != '\0') {
        size_t len = strcspn(path, ".");

        root = json_object_getn(root, path, len);
        path += len + (path[len] == '.');
    }
    return root;
}

const char *cli_text(const json_t *root, const char *path)
{
    const char *text = json_string_value(cli_at(root, path));

    return text != NULL ? text : "";
}

double cli_real(const json_t *root, const char *path)
{
    return json_number_value(cli_at(root, path));
}

const char *cli_nbytes(double nbytes, char out[CLI_TEXT_MAX])
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    size_t i = 0;

    for (; nbytes >= 1000 && i + 1 < sizeof units / sizeof units[0]; i++)
        nbytes /= 1000;
    (void)snprintf(out, CLI_TEXT_MAX, i == 0 ? "%.0f %s" : "%.1f %s", nbytes, units[i]);
    return out;
}

const char *cli_duration(double seconds, char out[CLI_TEXT_MAX])
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;

    if (seconds < 1)
        (void)snprintf(out, CLI_TEXT_MAX, "%.0f ms", seconds * 1000);
    else if (seconds < 10)
        (void)snprintf(out, CLI_TEXT_MAX, "%.1f s", seconds);
    else if (s < 60)
        (void)snprintf(out, CLI_TEXT_MAX, "%llu s", (unsigned long long)s);
    else if (s < 3600)
        (void)snprintf(out, CLI_TEXT_MAX, "%llu min %llu s", (unsigned long long)s / 60,
                       (unsigned long long)s % 60);
    else if (s < 86400)
        (void)snprintf(out, CLI_TEXT_MAX, "%llu h %llu min", (unsigned long long)s / 3600,
                       (unsigned long long)s % 3600 / 60);
    else
        (void)snprintf(out, CLI_TEXT_MAX, "%llu d %llu h", (unsigned long long)s / 86400,
                       (unsigned long long)s % 86400 / 3600);
    return out;
}

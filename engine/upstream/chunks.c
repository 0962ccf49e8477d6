/* Framing is read byte by byte, and what lies between is moved as a whole. A lone LF ends a line
 * too, as libcurl has it: the two must find the same end. */
#include "engine/upstream/chunks.h"

#include <stdbool.h>
#include <string.h>

/* -1: no digit. */
static int hex_value(char byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    if (byte >= 'a' && byte <= 'f')
        return byte - 'a' + 10;
    if (byte >= 'A' && byte <= 'F')
        return byte - 'A' + 10;
    return -1;
}

static void begin_line(struct chunks *c, enum chunks_at at)
{
    c->at = at;
    c->line_nbytes = 0;
}

static enum chunks_at after_size(const struct chunks *c)
{
    return c->left > 0 ? CHUNKS_DATA : CHUNKS_TRAILER;
}

static void size_byte(struct chunks *c, char byte)
{
    int digit = hex_value(byte);

    if (digit >= 0) {
        if (c->left > UINT64_MAX >> 5)
            c->at = CHUNKS_BAD;
        c->left = c->left << 4 | (unsigned)digit;
    } else if (c->line_nbytes == 0) {
        c->at = CHUNKS_BAD;
    } else if (byte == '\n') {
        begin_line(c, after_size(c));
        return;
    } else {
        bool begins = byte == '\r' || byte == ';' || byte == ' ' || byte == '\t';

        c->at = begins ? CHUNKS_EXTENSION : CHUNKS_BAD;
    }
    if (++c->line_nbytes > CHUNKS_LINE_NBYTES_MAX)
        c->at = CHUNKS_BAD;
}

static void extension_byte(struct chunks *c, char byte)
{
    if (byte == '\n')
        begin_line(c, after_size(c));
    else if (++c->line_nbytes > CHUNKS_LINE_NBYTES_MAX)
        c->at = CHUNKS_BAD;
}

static void data_end_byte(struct chunks *c, char byte)
{
    if (byte == '\n')
        begin_line(c, CHUNKS_SIZE); /* left is 0 */
    else if (byte != '\r' || c->line_nbytes++ > 0)
        c->at = CHUNKS_BAD;
}

static void trailer_byte(struct chunks *c, char byte)
{
    if (byte == '\n' && c->line_nbytes == 0)
        c->at = CHUNKS_OVER;
    else if (++c->trailer_nbytes > CHUNKS_TRAILER_NBYTES_MAX)
        c->at = CHUNKS_BAD;
    else if (byte == '\n')
        begin_line(c, CHUNKS_TRAILER);
    else if (byte != '\r')
        c->line_nbytes++;
}

static void frame_byte(struct chunks *c, char byte)
{
    switch (c->at) {
    case CHUNKS_SIZE:
        size_byte(c, byte);
        break;
    case CHUNKS_EXTENSION:
        extension_byte(c, byte);
        break;
    case CHUNKS_DATA_END:
        data_end_byte(c, byte);
        break;
    case CHUNKS_TRAILER:
        trailer_byte(c, byte);
        break;
    case CHUNKS_DATA:
    case CHUNKS_OVER:
    case CHUNKS_BAD:
        break;
    }
}

size_t chunks_take(struct chunks *c, const char *data, size_t len, char *out)
{
    const char *end = data + len;
    size_t n_out = 0;

    while (data < end && c->at < CHUNKS_OVER) {
        size_t n = (size_t)(end - data);

        if (c->at != CHUNKS_DATA) {
            frame_byte(c, *data++);
            continue;
        }
        n = c->left < n ? (size_t)c->left : n;
        memmove(out + n_out, data, n);
        n_out += n;
        data += n;
        c->left -= n;
        if (c->left == 0)
            begin_line(c, CHUNKS_DATA_END);
    }
    return n_out;
}

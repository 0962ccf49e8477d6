/* Keys and addresses. No error message or log line contains a byte of a key or of a line of the
 * key file, because a rejected line may be a key without its role. */
#include "control/auth.h"

#include "base/mtx.h"
#include "base/net/cidr.h"
#include "base/secret_file.h"

#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char option[] = "--api-key-file";

struct auth_key {
    unsigned role; /* enum auth_role */
    uint8_t digest[SHA256_DIGEST_SIZE];
    char name[ACTOR_KEY_MAX + 1]; /* for the log */
};

struct key_ring {
    size_t n;
    struct auth_key keys[AUTH_KEYS_MAX];
    size_t lines[AUTH_KEYS_MAX]; /* the line of each key in the file, for messages */
};

struct auth {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct key_ring ring;

    struct auth_cfg cfg; /* immutable, like all members below */
    struct cidr_list trusted;
    bool trusts_unix;
};

/* "viewer"; "anyone". */
static const char *auth_role_name(enum auth_role role)
{
    static const char *const names[AUTH_ROLE_COUNT] = {
        [AUTH_ANYONE] = "anyone",   [AUTH_VIEWER] = "viewer",   [AUTH_GENERATE] = "generate",
        [AUTH_CONTROL] = "control", [AUTH_WEIGHTS] = "weights",
    };

    return names[role];
}

static void auth_digest_of(uint8_t out[SHA256_DIGEST_SIZE], const char *key, size_t len)
{
    struct sha256_ctx ctx;

    sha256_init(&ctx);
    sha256_update(&ctx, len, (const uint8_t *)key);
    sha256_digest(&ctx, SHA256_DIGEST_SIZE, out);
    explicit_bzero(&ctx, sizeof ctx); /* the last block of the context is the key */
}

/* The role of the key with this digest, AUTH_ANYONE if there is none, and its name. How long the
 * comparisons take does not depend on the result. */
static enum auth_role role_of(const struct key_ring *ring, const uint8_t *digest, char *name)
{
    size_t found = 0; /* 1 + the place of the key */

    for (size_t i = 0; i < ring->n; i++) {
        size_t same = (size_t)memeql_sec(ring->keys[i].digest, digest, SHA256_DIGEST_SIZE);

        found |= (i + 1) & (0U - (same & 1U));
    }
    if (found == 0)
        return AUTH_ANYONE;
    memcpy(name, ring->keys[found - 1].name, sizeof ring->keys[0].name);
    return (enum auth_role)ring->keys[found - 1].role;
}

static bool auth_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The word at *at within the line, and its length; *at moves past it and the blanks after it. */
static size_t next_word(const char **word, const char **at, const char *end)
{
    const char *p = *at;

    while (p < end && auth_is_blank(*p))
        p++;
    *word = p;
    while (p < end && !auth_is_blank(*p))
        p++;
    *at = p;
    while (*at < end && auth_is_blank(**at))
        (*at)++;
    return (size_t)(p - *word);
}

static enum auth_role role_named(const char *word, size_t len)
{
    for (unsigned role = AUTH_VIEWER; role < AUTH_ROLE_COUNT; role++) {
        const char *name = auth_role_name((enum auth_role)role);

        if (strlen(name) == len && memcmp(name, word, len) == 0)
            return (enum auth_role)role;
    }
    return AUTH_ANYONE;
}

static int auth_check_key(const char *key, size_t len, size_t line, struct err *e)
{
    if (len < AUTH_KEY_LEN_MIN || len > AUTH_KEY_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "line %zu: its key has %zu characters, expected %d to %d", line, len,
                       AUTH_KEY_LEN_MIN, AUTH_KEY_LEN_MAX);
    for (size_t i = 0; i < len; i++)
        if (key[i] <= 0x20 || key[i] >= 0x7f)
            return err_set(e, ERR_BAD_REQUEST, option,
                           "line %zu: character %zu of its key is not visible ASCII", line, i + 1);
    return 0;
}

static const char name_prefix[] = "name=";
enum { NAME_PREFIX_LEN = sizeof name_prefix - 1 };

/* @text  the last word of the line; without the prefix it may be a part of the key */
static int check_key_name(const char *text, size_t len, size_t line, struct err *e)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "abcdefghijklmnopqrstuvwxyz0123456789._-";

    if (len < NAME_PREFIX_LEN || memcmp(text, name_prefix, NAME_PREFIX_LEN) != 0)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "line %zu: after the role and the key only name=NAME may follow; a key "
                       "contains no blanks",
                       line);
    len -= NAME_PREFIX_LEN;
    if (len < 1 || len > ACTOR_KEY_MAX)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "line %zu: its name has %zu characters, expected 1 to %d", line, len,
                       ACTOR_KEY_MAX);
    for (size_t i = 0; i < len; i++)
        if (memchr(allowed, text[NAME_PREFIX_LEN + i], sizeof allowed - 1) == NULL)
            return err_set(e, ERR_BAD_REQUEST, option,
                           "line %zu: its name may have letters, digits, '.', '_' and '-' only",
                           line);
    return 0;
}

/* @text  checked; len 0: the line has no name */
static void auth_set_name(struct auth_key *k, const char *text, size_t len)
{
    if (len == 0)
        return;
    memcpy(k->name, text + NAME_PREFIX_LEN, len - NAME_PREFIX_LEN);
    k->name[len - NAME_PREFIX_LEN] = '\0';
}

/* Enough of the digest to tell keys apart, and too little to be of use. */
static void name_by_digest(struct auth_key *k)
{
    (void)snprintf(k->name, sizeof k->name, "sha256:%02x%02x%02x%02x", k->digest[0], k->digest[1],
                   k->digest[2], k->digest[3]);
}

static int add_key(struct key_ring *ring, enum auth_role role, const char *key, size_t len,
                   size_t line, struct err *e)
{
    struct auth_key *k;

    if (auth_check_key(key, len, line, e) != 0)
        return -1;
    if (ring->n == AUTH_KEYS_MAX)
        return err_set(e, ERR_BAD_REQUEST, option, "line %zu: more than %d keys", line,
                       AUTH_KEYS_MAX);
    k = &ring->keys[ring->n];
    k->role = role;
    auth_digest_of(k->digest, key, len);
    name_by_digest(k);
    for (size_t i = 0; i < ring->n; i++)
        if (memcmp(ring->keys[i].digest, k->digest, sizeof k->digest) == 0)
            return err_set(e, ERR_BAD_REQUEST, option, "line %zu: its key is also that of line %zu",
                           line, ring->lines[i]);
    ring->lines[ring->n++] = line;
    return 0;
}

static int read_line(struct key_ring *ring, const char *at, const char *end, size_t line,
                     struct err *e)
{
    const char *role_word, *key, *name, *more;
    size_t role_len = next_word(&role_word, &at, end), key_len, name_len;
    enum auth_role role;

    if (role_len == 0 || role_word[0] == '#')
        return 0;
    role = role_named(role_word, role_len);
    if (role == AUTH_ANYONE)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "line %zu: its first word is not one of viewer, generate, control, "
                       "weights",
                       line);
    key_len = next_word(&key, &at, end);
    if (key_len == 0)
        return err_set(e, ERR_BAD_REQUEST, option, "line %zu: there is no key after the role",
                       line);
    name_len = next_word(&name, &at, end);
    if (next_word(&more, &at, end) != 0)
        return err_set(e, ERR_BAD_REQUEST, option,
                       "line %zu: there is more than a role, a key and a name; a key contains no "
                       "blanks",
                       line);
    if ((name_len > 0 && check_key_name(name, name_len, line, e) != 0) ||
        add_key(ring, role, key, key_len, line, e) != 0)
        return -1;
    auth_set_name(&ring->keys[ring->n - 1], name, name_len);
    return 0;
}

static int read_ring(struct key_ring *out, const char *path, struct err *e)
{
    char *text;
    size_t len, line = 0;
    int rc = 0;

    memset(out, 0, sizeof *out);
    if (secret_file_read(&text, &len, path, option, e) != 0)
        return -1;
    for (const char *at = text; rc == 0 && at < text + len;) {
        const char *end = memchr(at, '\n', (size_t)(text + len - at));

        if (end == NULL)
            end = text + len;
        rc = read_line(out, at, end, ++line, e);
        at = end + 1;
    }
    secret_file_free(text, len);
    if (rc == 0 && out->n == 0)
        rc = err_set(e, ERR_BAD_REQUEST, option, "'%.200s' has no key", path);
    return rc;
}

static int read_trust(struct auth *a, struct err *e)
{
    for (size_t i = 0; i < a->cfg.n_trust; i++) {
        if (strcmp(a->cfg.trust[i], "unix") == 0)
            a->trusts_unix = true;
        else if (cidr_list_add(&a->trusted, a->cfg.trust[i], "--no-auth-cidr", e) != 0)
            return -1;
    }
    return 0;
}

int auth_new(struct auth **out, const struct auth_cfg *cfg, struct err *e)
{
    struct auth *a = calloc(1, sizeof *a);

    if (a == NULL)
        return err_set(e, ERR_NO_MEMORY, option, "no memory for the keys");
    a->cfg = *cfg;
    if (read_trust(a, e) != 0 ||
        (cfg->key_file != NULL && read_ring(&a->ring, cfg->key_file, e) != 0)) {
        free(a);
        return -1;
    }
    mtx_init(&a->lock, MTX_LEAF);
    *out = a;
    return 0;
}

void auth_free(struct auth *a)
{
    if (a == NULL)
        return;
    mtx_fini(&a->lock);
    free(a);
}

static bool same_keys(const struct key_ring *a, const struct key_ring *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (a->keys[i].role != b->keys[i].role ||
            memcmp(a->keys[i].digest, b->keys[i].digest, sizeof a->keys[i].digest) != 0)
            return false;
    return a->n == b->n;
}

int auth_reload(struct auth *a, bool *changed, struct err *e)
{
    struct key_ring *fresh;
    int rc;

    if (a->cfg.key_file == NULL)
        return 0;
    fresh = malloc(sizeof *fresh);
    if (fresh == NULL)
        return err_set(e, ERR_NO_MEMORY, option, "no memory for the keys");
    rc = read_ring(fresh, a->cfg.key_file, e);
    if (rc == 0) {
        mtx_lock(&a->lock);
        *changed = !same_keys(&a->ring, fresh);
        a->ring = *fresh;
        mtx_unlock(&a->lock);
    }
    free(fresh);
    return rc;
}

bool auth_asks(const struct auth *a)
{
    return a->cfg.key_file != NULL || a->cfg.n_trust > 0;
}

bool auth_has_keys(const struct auth *a)
{
    return a->cfg.key_file != NULL;
}

size_t auth_n_keys(struct auth *a, enum auth_role role)
{
    size_t n = 0;

    mtx_lock(&a->lock);
    for (size_t i = 0; i < a->ring.n; i++)
        n += a->ring.keys[i].role == role;
    mtx_unlock(&a->lock);
    return n;
}

bool auth_trusts(const void *auth, const struct sockaddr *peer)
{
    const struct auth *a = auth;

    if (peer->sa_family == AF_UNIX)
        return a->trusts_unix;
    return cidr_list_match(&a->trusted, peer);
}

/* "Bearer KEY" -> the key and its length; NULL if the header does not have this form. */
static const char *bearer(const char *authorization, size_t *len)
{
    const char *key;

    if (strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    key = authorization + 7;
    key += strspn(key, " ");
    *len = strcspn(key, " \t");
    if (*len == 0 || key[*len + strspn(key + *len, " \t")] != '\0')
        return NULL;
    return key;
}

/* The role of the key in the header's value; AUTH_ANYONE if the key is unknown. False: the value
 * does not have the form of a key. */
static bool read_role(enum auth_role *out, struct auth *a, const char *authorization, char *name)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    size_t len = 0;
    const char *key = a->cfg.key_file != NULL ? bearer(authorization, &len) : NULL;

    if (key == NULL)
        return false;
    auth_digest_of(digest, key, len);
    mtx_lock(&a->lock);
    *out = role_of(&a->ring, digest, name);
    mtx_unlock(&a->lock);
    return true;
}

bool auth_knows(struct auth *a, const char *authorization)
{
    enum auth_role role = AUTH_ANYONE;
    char name[ACTOR_KEY_MAX + 1];

    return read_role(&role, a, authorization, name) && role != AUTH_ANYONE;
}

static int refuse_keyless(const struct auth *a, const char *authorization, struct err *e)
{
    if (a->cfg.key_file == NULL)
        return err_set(
            e, ERR_FORBIDDEN, "",
            "this server has no keys, and the client's address is not within --no-auth-cidr");
    if (authorization[0] == '\0')
        return err_set(e, ERR_UNAUTHORIZED, "",
                       "a key is required: send the header 'Authorization: Bearer <key>'");
    return err_set(e, ERR_UNAUTHORIZED, "", "Authorization is not of the form 'Bearer <key>'");
}

static bool suffices(enum auth_role has, enum auth_role need)
{
    return has == AUTH_WEIGHTS || need == AUTH_WEIGHTS ? has == need : has >= need;
}

int auth_check(struct auth *a, const char *authorization, bool trusted, enum auth_role need,
               char *name, struct err *e)
{
    enum auth_role has;
    bool has_key;

    name[0] = '\0';
    if (need == AUTH_ANYONE || !auth_asks(a))
        return 0;
    has_key = read_role(&has, a, authorization, name);
    if (trusted)
        return 0;
    if (!has_key)
        return refuse_keyless(a, authorization, e);
    if (has == AUTH_ANYONE)
        return err_set(e, ERR_UNAUTHORIZED, "", "the key is unknown");
    if (!suffices(has, need))
        return err_set(e, ERR_FORBIDDEN, "", "the key has the role %s; this route requires %s",
                       auth_role_name(has), auth_role_name(need));
    return 0;
}

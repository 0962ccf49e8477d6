/* TLS: libmicrohttpd makes the handshakes and the records. Here certificates are checked
 * beforehand, because libmicrohttpd only logs what is wrong with them, and replies are sent past
 * it.
 *
 * A daemon of libmicrohttpd keeps the certificate that it was started with. Each new connection
 * gets the HTTP server's current one before its handshake, and holds a reference: connections that
 * began with an older one live on. Rejected: libmicrohttpd's callback for certificates, which may
 * be called for a connection long before its key is used, so that nothing says when an old key may
 * be freed.
 *
 * The HTTP server's other guards stay as they are: a FIN is a FIN below TLS too, deadlines run from
 * the accept and so include the handshake, and a lingering socket discards bytes of any kind. */
#include "http/server/http_server_priv.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>

enum { TLS_SEND_NBYTES_MAX = 256 << 10 /* so that others have a turn */ };

typedef ssize_t tls_send_fn(gnutls_session_t session, const void *data, size_t n);

const char http_server_tls_priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

enum { TLS_DIGEST_NBYTES = 32 }; /* SHA-256 */

struct tls_identity {
    gnutls_certificate_credentials_t both; /* owned; immutable, so that threads may share it */
    uint8_t digest[TLS_DIGEST_NBYTES];     /* of the file of the certificate */
    int64_t expires_s;
    atomic_uint n_refs; /* release by each unref, acquire by the last one */
};

/* The earliest end of the certificate and its chain. */
static int read_expiry(struct tls_identity *t, struct err *e)
{
    gnutls_x509_crt_t *list = NULL;
    unsigned n = 0;
    int rc = gnutls_certificate_get_x509_crt(t->both, 0, &list, &n);

    if (rc < 0)
        return err_set(e, ERR_BAD_REQUEST, "", "the certificate is not usable: %s",
                       gnutls_strerror(rc));
    for (unsigned i = 0; i < n; i++) {
        time_t end = gnutls_x509_crt_get_expiration_time(list[i]);

        if (i == 0 || (int64_t)end < t->expires_s)
            t->expires_s = (int64_t)end;
        gnutls_x509_crt_deinit(list[i]);
    }
    gnutls_free(list);
    return 0;
}

static int read_pair(struct tls_identity *t, const char *cert, const char *key, struct err *e)
{
    union {
        const char *in;
        unsigned char *out;
    } cert_text = {cert}, key_text = {key};
    gnutls_datum_t cert_pem = {cert_text.out, (unsigned)strlen(cert)};
    gnutls_datum_t key_pem = {key_text.out, (unsigned)strlen(key)};
    int rc;

    rc = gnutls_certificate_set_x509_key_mem(t->both, &cert_pem, &key_pem, GNUTLS_X509_FMT_PEM);
    if (rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        return err_set(e, ERR_BAD_REQUEST, "", "the key does not belong to the certificate");
    if (rc < 0)
        return err_set(e, ERR_BAD_REQUEST, "", "the certificate and its key are not usable: %s",
                       gnutls_strerror(rc));
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, cert, strlen(cert), t->digest) < 0)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the certificate");
    return read_expiry(t, e);
}

int tls_identity_new(struct tls_identity **out, const char *cert, const char *key, struct err *e)
{
    struct tls_identity *t;

    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return err_set(e, ERR_BAD_REQUEST, "", "this libmicrohttpd was built without TLS");
    t = calloc(1, sizeof *t);
    if (t == NULL || gnutls_certificate_allocate_credentials(&t->both) != GNUTLS_E_SUCCESS) {
        free(t);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the certificate");
    }
    atomic_init(&t->n_refs, 1);
    if (read_pair(t, cert, key, e) != 0) {
        tls_identity_unref(t);
        return -1;
    }
    *out = t;
    return 0;
}

static struct tls_identity *tls_identity_ref(struct tls_identity *t)
{
    if (t != NULL)
        (void)atomic_fetch_add_explicit(&t->n_refs, 1, memory_order_relaxed);
    return t;
}

void tls_identity_unref(struct tls_identity *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->n_refs, 1, memory_order_acq_rel) > 1)
        return;
    gnutls_certificate_free_credentials(t->both);
    free(t);
}

int64_t tls_identity_expires_s(const struct tls_identity *t)
{
    return t->expires_s;
}

bool tls_identity_same(const struct tls_identity *a, const struct tls_identity *b)
{
    return memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}

void http_server_tls_replace(struct http_server *f, struct tls_identity *t)
{
    struct tls_identity *old;

    (void)tls_identity_ref(t);
    mtx_lock(&f->lock);
    old = f->identity;
    f->identity = t;
    mtx_unlock(&f->lock);
    tls_identity_unref(old);
}

struct tls_identity *http_server_tls_identity(struct http_server *f)
{
    struct tls_identity *t;

    mtx_lock(&f->lock);
    t = tls_identity_ref(f->identity);
    mtx_unlock(&f->lock);
    return t;
}

struct tls_identity *http_server_tls_begin(struct http_server *f, struct MHD_Connection *mc)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        mc, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    struct tls_identity *t;

    if (info == NULL || info->tls_session == NULL)
        return NULL;
    t = http_server_tls_identity(f);
    (void)gnutls_credentials_set(info->tls_session, GNUTLS_CRD_CERTIFICATE, t->both);
    return t;
}

void http_server_tls_end(struct MHD_Connection *mc)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        mc, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    if (info != NULL && info->tls_session != NULL)
        (void)gnutls_bye(info->tls_session, GNUTLS_SHUT_WR);
}

ssize_t http_server_tls_send(struct MHD_Connection *mc, const void *data, size_t len)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        mc, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    ssize_t n;

    if (info == NULL || info->tls_session == NULL)
        return -1;
    n = gnutls_record_send(info->tls_session, data, len);
    if (n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED)
        return 0;
    return n < 0 ? -1 : n;
}

/* As many records as the socket takes: of a long answer libmicrohttpd sends one in each run. Of a
 * record that the socket took in part GnuTLS keeps the rest, and reports it as sent once it is. */
__attribute__((visibility("default"))) ssize_t gnutls_record_send(gnutls_session_t session,
                                                                  const void *data, size_t n)
{
    static _Atomic(void *) found;
    void *at = library_function(&found, "gnutls_record_send");
    size_t most = n < TLS_SEND_NBYTES_MAX ? n : TLS_SEND_NBYTES_MAX, done = 0;
    ssize_t sent = GNUTLS_E_INTERNAL_ERROR;
    tls_send_fn *fn;

    memcpy(&fn, &at, sizeof fn);
    if (fn == NULL)
        return sent;
    do {
        sent = fn(session, (const char *)data + done, most - done);
        done += sent > 0 ? (size_t)sent : 0;
    } while (sent > 0 && done < most);
    if (daemon_running != NULL)
        daemon_running->moved |= done > 0;
    return done > 0 ? (ssize_t)done : sent;
}

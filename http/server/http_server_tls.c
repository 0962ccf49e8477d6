/* TLS: libmicrohttpd makes the handshakes and the records. Here certificates are checked
 * beforehand, because libmicrohttpd only logs what is wrong with them, and replies are sent past
 * it.
 *
 * The HTTP server's other guards stay as they are: a FIN is a FIN below TLS too, deadlines run from
 * the accept and so include the handshake, and a lingering socket discards bytes of any kind. */
#include "http/server/http_server_priv.h"

#include <gnutls/gnutls.h>
#include <string.h>

enum { TLS_RECORD_MAX = 16384 };

const char http_server_tls_priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

int http_server_tls_check(const char *cert, const char *key, struct err *e)
{
    gnutls_certificate_credentials_t both;
    union {
        const char *in;
        unsigned char *out;
    } cert_text = {cert}, key_text = {key};
    gnutls_datum_t cert_pem = {cert_text.out, (unsigned)strlen(cert)};
    gnutls_datum_t key_pem = {key_text.out, (unsigned)strlen(key)};
    int rc;

    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return err_set(e, ERR_BAD_REQUEST, "", "this libmicrohttpd was built without TLS");
    if (gnutls_certificate_allocate_credentials(&both) != GNUTLS_E_SUCCESS)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the certificate");
    rc = gnutls_certificate_set_x509_key_mem(both, &cert_pem, &key_pem, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(both);
    if (rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        return err_set(e, ERR_BAD_REQUEST, "", "the key does not belong to the certificate");
    if (rc < 0)
        return err_set(e, ERR_BAD_REQUEST, "", "the certificate and its key are not usable: %s",
                       gnutls_strerror(rc));
    return 0;
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
    const char *from = data;
    size_t done = 0;

    if (info == NULL || info->tls_session == NULL)
        return -1;
    while (done < len) {
        size_t piece = len - done < TLS_RECORD_MAX ? len - done : TLS_RECORD_MAX;
        ssize_t n = gnutls_record_send(info->tls_session, from + done, piece);

        if (n == GNUTLS_E_INTERRUPTED)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done > 0 ? (ssize_t)done : -1;
}

"""One request to a server, and its answer."""

import http.client
import json
import os
import urllib.parse

from .errors import BatonError


def open_connection(url, timeout):
    if not isinstance(url, str):
        raise ValueError(f"url is one server's, a string such as 'http://127.0.0.1:8700', not "
                         f"{type(url).__name__}; join() takes a list of servers")
    parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"url {url!r}: the scheme is http or https")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout), parts.path.rstrip("/"), parts.hostname


def _failure(status, body, headers):
    request_id = headers.get("X-Request-Id", "")
    try:
        error = json.loads(body)["error"]
        return BatonError(error["message"], status, str(error.get("code", "")), error.get("param"),
                          bool(error.get("retryable")), error.get("details"), request_id)
    except (ValueError, KeyError, TypeError):
        text = body[:300].decode("utf-8", "replace").strip()
        return BatonError(text or "no body", status, request_id=request_id)


def request(url, method, path, body=None, headers=None, timeout=600.0, connected=None):
    """One request; returns the decoded JSON answer (bytes when it is not JSON). `connected` is
    called with the socket. BATON_API_KEY is the server's key, if it asks for one."""
    connection, prefix, _ = open_connection(url, timeout)
    headers = dict(headers or {})
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    key = os.environ.get("BATON_API_KEY")
    if key:
        headers.setdefault("Authorization", "Bearer " + key)
    try:
        connection.connect()
        if connected is not None:
            connected(connection.sock)
        try:
            connection.request(method, prefix + path, body=body, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may have answered before it read everything: its answer says why
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as e:
        raise BatonError(f"{method} {url}{path}: {type(e).__name__}: {e}", code="connection",
                         retryable=True) from e
    finally:
        connection.close()
    if answer.status >= 400:
        raise _failure(answer.status, data, answer.headers)
    if answer.headers.get("Content-Type", "").startswith("application/json"):
        return json.loads(data)
    return data

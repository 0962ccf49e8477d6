"""URLs of servers; one request to one, and its answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import socket
import ssl
import urllib.parse
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .errors import BatonError, InputError
from .success import NOT_BATON, check_success

ERROR_TEXT_MAX = 300  # bytes shown of an answer that is not JSON
UNIX = "unix:"
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")

# What a request can fail with before there is a whole answer: exceptions, what they mean and what
# to do, our code, and whether the same request may succeed later. The first row that fits.
FAILURES = (
    ((ssl.SSLCertVerificationError,), "the server's certificate is not accepted: "
     "{e.verify_message}; SSL_CERT_FILE names the certificate of its CA", "tls", False),
    ((ssl.SSLError,), "TLS failed: {e}; a server without TLS has an http:// URL", "tls",
     False),
    ((socket.timeout, TimeoutError), "no whole answer within {timeout:g} s; /v1/status of the "
     "server says what it is doing, timeout= allows more", "timeout", True),
    ((ConnectionRefusedError,), "connection refused: start the server there, or correct the URL",
     "connection", True),
    ((socket.gaierror,), "the name of the host is not known: {e.strerror}", "connection", True),
    ((FileNotFoundError,), "there is no such socket: start the server with --listen unix:PATH or "
     "--control-listen unix:PATH", "connection", True),
    ((PermissionError,), "this user may not connect: {e.strerror}", "connection", False),
    ((http.client.IncompleteRead,), "the answer was cut off: the server, or a proxy before it, "
     "ended; whether the request took effect is not known, /v1/status says", "connection", True),
    ((http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError),
     "the connection was closed without an answer: the server ended, or expects TLS (https://)",
     "connection", True),
    ((http.client.BadStatusLine,), "the answer is not HTTP: correct the port of the URL",
     "connection", False),
    ((OSError, http.client.HTTPException), "{kind}: {e}", "connection", True),
)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP without TLS over a Unix socket."""

    def __init__(self, path: str, timeout: float):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _parse(url: str) -> Tuple[str, str, Optional[int]]:
    """Scheme, host and port; the command line takes the same URLs."""
    try:
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError as e:
        raise InputError(f"url {url!r}: {e}") from e
    if scheme not in ("http", "https") or not host:
        raise InputError(f"url {url!r} is none of http://host:port, https://host:port, unix:/path")
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise InputError(f"url {url!r} has more than scheme, host and port: paths and users are not "
                         f"taken, as in {scheme}://{parts.netloc.rpartition('@')[2]}")
    return scheme, host, port


def open_connection(url: str, timeout: float) -> Tuple[http.client.HTTPConnection, str]:
    """A connection, not yet made; and the host."""
    if not isinstance(url, str):
        raise InputError(f"url is a string such as 'http://127.0.0.1:8700', not "
                         f"{type(url).__name__}; push(), join() and wait_ready() take a list of "
                         "them")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InputError(f"timeout is a number of seconds above 0, not {timeout!r}")
    if url.startswith(UNIX):
        path = url[len(UNIX):]
        if not path.startswith("/"):
            raise InputError(f"url {url!r}: the path of the socket starts with a slash, as in "
                             "unix:/run/baton/control.sock")
        return _UnixConnection(path, timeout), "localhost"
    scheme, host, port = _parse(url)
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=timeout), host


def url_list(url: Any) -> List[str]:
    """Of one server, or of a list of servers, each once."""
    urls = [url] if isinstance(url, str) else list(url) if isinstance(url, (list, tuple)) else None
    if not urls or len(set(map(str, urls))) < len(urls):
        raise InputError("url is a server's, such as 'http://127.0.0.1:8700', or a list of "
                         f"servers', each once; not {url!r}")
    for one in urls:
        open_connection(one, 1.0)  # refuses what is no URL; connects nothing
    return urls


def is_local(url: str) -> bool:
    """Does the server run on this host, so that shared memory reaches it?"""
    return open_connection(url, 1.0)[1] in LOCAL_HOSTS


def _unanswered(where: str, e: Exception, timeout: float) -> BatonError:
    text, code, retryable = next(row[1:] for row in FAILURES if isinstance(e, row[0]))
    reason = text.format(e=e, timeout=timeout, kind=type(e).__name__)
    return BatonError(f"{where}: {reason}", code=code, retryable=retryable)


def _refused(where: str, status: int, body: bytes, headers: Any) -> BatonError:
    request_id = headers.get("X-Request-Id", "")
    try:
        found = decode_json(body, where)
        error = found.get("error", found)
        code = error.get("code", error.get("reason"))
        return BatonError(error["message"], status, code if isinstance(code, str) else "",
                          error.get("param"), bool(error.get("retryable")), error.get("details"),
                          request_id)
    except (BatonError, KeyError, TypeError, AttributeError):
        text = body[:ERROR_TEXT_MAX].decode("utf-8", "replace").strip() or "an empty body"
        return BatonError(f"{where}: not an answer of baton, check the URL: {text}", status,
                          request_id=request_id)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def decode_json(data: Any, where: str) -> Any:
    """JSON of a server. BatonError if it is none: cut, too deep, a number that is none."""
    try:
        return json.loads(data, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as e:
        raise BatonError(f"{where}: {NOT_BATON}: it is not whole JSON: {e}",
                         code="bad_answer") from e


def _headers(headers: Optional[Dict[str, str]], body: Any) -> Dict[str, str]:
    found = dict(headers or {})
    if isinstance(body, (dict, list)):
        found["Content-Type"] = "application/json"
    key = os.environ.get("BATON_API_KEY")
    if key:
        if not (key.isascii() and key.isprintable()):
            raise InputError("BATON_API_KEY of the environment has a line break, or another "
                             "character that a header cannot carry")
        found.setdefault("Authorization", "Bearer " + key)
    return found


def _encoded(body: Any, where: str) -> Any:
    if not isinstance(body, (dict, list)):
        return body
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError) as e:
        raise InputError(f"{where}: an argument cannot be written as JSON: {e}") from e


@contextlib.contextmanager
def open_answer(url: str, method: str, path: str, body: Any = None,
                headers: Optional[Dict[str, str]] = None, timeout: float = 600.0,
                connected: Optional[Callable[[socket.socket], None]] = None
                ) -> Iterator[http.client.HTTPResponse]:
    """One request, whose answer the block reads; what fails within it is a BatonError too."""
    connection, _ = open_connection(url, timeout)
    where = f"{method} {url}{path}"
    headers, body = _headers(headers, body), _encoded(body, where)
    try:
        connection.connect()
        if connected is not None:
            connected(connection.sock)
        try:
            connection.request(method, path, body=body, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may have answered before it read everything: its answer says why
        answer = connection.getresponse()
        if not 200 <= answer.status < 300:
            raise _refused(where, answer.status, answer.read(), answer.headers)
        yield answer
    except (OSError, http.client.HTTPException) as e:
        raise _unanswered(where, e, timeout) from e
    finally:
        connection.close()


def request(url: str, method: str, path: str, body: Any = None,
            headers: Optional[Dict[str, str]] = None, timeout: float = 600.0,
            connected: Optional[Callable[[socket.socket], None]] = None) -> Any:
    """One request; returns the decoded JSON answer (bytes when it is not JSON). `connected` is
    called with the socket. BATON_API_KEY is the server's key, if it asks for one."""
    where = f"{method} {url}{path}"
    with open_answer(url, method, path, body, headers, timeout, connected) as answer:
        data = answer.read()
    if not answer.headers.get("Content-Type", "").startswith("application/json"):
        return data
    return decode_json(data, where)


def ask(url: str, method: str, path: str, body: Any = None,
        sent: Optional[Dict[str, Any]] = None, **options: Any) -> Dict[str, Any]:
    """request() to a route of success.py, whose answer is a success. @sent: the members of the
    request, where the body is not a dict of them."""
    answer = request(url, method, path, body, **options)
    check_success(f"{method} {url}{path}", method, path, body if isinstance(body, dict) else sent,
                  answer)
    return answer

"""The files for browsers, without a browser: their headers, their policy, that they are self-contained, and who
gets them.

Usage: page_files.py BATON MODEL ROOT WORK
"""

import base64
import hashlib
import http.client
import json
import os
import re
import sys

from fleet_world import Server

BATON, MODEL, ROOT, WORK = sys.argv[1:5]
WAIT_S = 60
PAGES = ("/", "/docs")
SIZE_MAX = 64 << 10
OPTIONS = ("--model", MODEL, "--weights", "none")
# What would make markup of text that a client sent, or code of it.
FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "createContextualFragment",
             "srcdoc", "DOMParser", "localStorage", "javascript:", "@import", "<iframe", "<img", "onerror=", "onclick=", " style=\"", "url(h")


def get(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def hash_of(page, tag):
    parts = re.findall(f"(?s)<{tag}>(.*?)</{tag}>", page)
    assert len(parts) == 1 and page.count(f"<{tag}") == 1, f"one <{tag}>, without attributes"
    return "sha256-" + base64.b64encode(hashlib.sha256(parts[0].encode()).digest()).decode()


def check_page(port, path):
    status, headers, body = get(port, path)
    page = body.decode()
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8", (status, headers)
    assert len(body) < SIZE_MAX, len(body)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy == {"default-src": "'none'", "script-src": f"'{hash_of(page, 'script')}'", "style-src": f"'{hash_of(page, 'style')}'",
                      "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
                      "frame-ancestors": "'none'"}, policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer", headers
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z0-9-]+\\.[a-z]", without_namespace), "an address of another server"
    for text in FORBIDDEN:
        assert text not in page, f"{path} has {text}"
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page
    status, headers, body = get(port, path, "HEAD")
    assert status == 200 and body == b"", (status, body)
    for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert get(port, path, **headers)[0] == 403, headers
    assert get(port, path, Sec_Fetch_Site="same-origin")[0] == get(port, path, Sec_Fetch_Site="none")[0] == 200
    assert get(port, path, Host="evil.example")[0] == 421


def check_document(port):
    status, headers, body = get(port, "/openapi.json")
    assert status == 200 and headers["Content-Type"] == "application/json", (status, headers)
    with open(os.path.join(ROOT, "openapi/baton.json"), "rb") as f:
        assert body == f.read(), "the program has another openapi/baton.json: build it again"
    document = json.loads(body)
    assert "/v1/events" in document["paths"] and "Remedy" in document["x-error-codes"]["paused"]["text"]


def main():
    with Server(BATON, os.path.join(WORK, "log"), *OPTIONS) as server:
        for path in PAGES:
            check_page(server.port, path)
        check_document(server.port)
    control = os.path.join(WORK, "ctl.sock")
    with Server(BATON, os.path.join(WORK, "log2"), *OPTIONS, "--control-listen", "unix:" + control) as server:
        for path in (*PAGES, "/openapi.json"):
            status, _, body = get(server.port, path)
            assert status == 404 and b"--control-listen" in body, (path, status, body)
    print("files: all well")


main()

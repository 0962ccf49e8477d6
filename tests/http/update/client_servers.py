"""The client with several servers, with a Unix socket, and with answers that are none of baton's.

Usage: client_servers.py BATON MODEL WORK (which has cert.pem and key.pem) LIBFAKECUDA"""

import contextlib
import os
import re
import socket
import sys
import threading
import time

import baton
import numpy
from fleet_world import Server

BATON, MODEL, WORK, CUDA = sys.argv[1:]
LOG = os.path.join(WORK, "log")
CONTROL = os.path.join(WORK, "control.sock")
STEP = {n: os.path.join(MODEL, "checkpoints", f"step-{n:05}.safetensors") for n in (0, 100, 1500)}
SHORT_S, ONE_S, LONG_S = 0.4, 1.5, 20.0  # of waits: without an answer, without success, else
n_checks = 0


def same(found, wanted, about):
    global n_checks
    n_checks += 1
    if found != wanted:
        raise SystemExit(f"{about}: {str(found)[:600]!r}, wanted {str(wanted)[:400]!r}")


def refused(call, words, code=None, kind=baton.BatonError, retryable=None):
    """The call raises one of our errors with these words; returns it."""
    try:
        answer = call()
    except kind as e:
        for word in [words] if isinstance(words, str) else words:
            same(word in str(e), True, f"'{word}' in '{e}'")
        same((code or e.code, e.retryable if retryable is None else retryable),
             (e.code, e.retryable), f"code and retryable of '{e}'")
        return e
    raise SystemExit(f"accepted: {str(answer)[:300]}")


def version_of(url):
    return baton.request(url, "GET", "/v1/weights")["weight_version"]


def serve(*options):
    return Server(BATON, LOG, "--model", MODEL, *options)


def pushes_to_several(urls):
    tensors = baton.load_file(STEP[100])
    for via in ("auto", "body", "shm"):
        seen = []
        answers = baton.push(tensors, urls, via=via, weight_version=f"all-{via}",
                             progress=lambda done, total: seen.append((done, total)))
        same([a["phase"] for a in answers], ["committed"] * len(urls), f"{via}: phases")
        same([version_of(u) for u in urls], [f"all-{via}"] * len(urls), f"{via}: served")
        nbytes = sum(a["nbytes_done"] for a in answers)
        same(seen[-1], (nbytes, nbytes), f"{via}: progress")
    (answer,) = baton.push(STEP[0], urls[:1], weight_version="list-of-one")
    same((answer["phase"], version_of(urls[0])), ("committed", "list-of-one"), "a list of one")


def none_commits(urls):
    """A server that refuses, one that is not there, one that is busy: no other commits."""
    before = [version_of(u) for u in urls]
    tensors = dict(baton.load_file(STEP[1500]))
    norm = tensors["model.norm.weight"]
    wrong = dict(tensors, **{"model.norm.weight": baton.Tensor(norm.dtype, (norm.numel + 1,),
                                                              bytes(norm.nbytes + 2))})
    for via in ("shm", "body"):
        e = refused(lambda: baton.push(wrong, urls, via=via), ["committed by none", "model.norm.weight"],
                    "manifest_mismatch")
        same(e.details["committed"], [], "who committed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
    e = refused(lambda: baton.push(tensors, urls + [gone]), ["committed by none", gone, "refused"],
                "connection", retryable=True)
    same((e.details["committed"], list(e.details["failed"])), ([], [gone]), "the failed one is named")
    held = baton.request(urls[1], "POST", "/v1/update_weights/start", {})["update_id"]
    e = refused(lambda: baton.push(tensors, urls), ["committed by none", held])
    same(list(e.details["failed"]), [urls[1]], "the busy one is named")
    baton.request(urls[1], "POST", "/v1/update_weights/abort", {"update_id": held})
    same([version_of(u) for u in urls], before, "all keep what they serve")
    for url in urls:
        same(baton.request(url, "GET", "/v1/status")["update"], None, "no session is left")


def cut_off_answers(url, n_lost=3):
    """The first answers of this server to a finish do not arrive. Returns what ends that."""
    real, lost = baton.several.ask, []

    def losing(to, method, path, body=None, **more):
        if path.endswith("/finish") and to == url and len(lost) < n_lost:
            lost.append(path)
            with contextlib.suppress(baton.BatonError):
                real(to, method, path, body, **more)
            raise baton.BatonError("the answer was cut off", code="connection", retryable=True)
        return real(to, method, path, body, **more)

    def end():
        baton.several.ask = real

    baton.several.ask = losing
    return end


def lost_finish(urls):
    """A finish whose answer is lost is repeated; one that fails names the servers that have committed."""
    end = cut_off_answers(urls[1], 1)
    answers = baton.push(STEP[0], urls, weight_version="repeated")
    same([a["phase"] for a in answers], ["committed"] * len(urls), "repeated finish")
    end()
    end = cut_off_answers(urls[1])
    e = refused(lambda: baton.push(STEP[100], urls, weight_version="ahead"),
                [f"committed by {urls[0]}", f"failed on {urls[1]}: the answer was cut off",
                 "whether it committed is not known"])
    same((e.details["committed"], list(e.details["failed"]), e.details["unknown"]),
         ([u for u in urls if u != urls[1]], [urls[1]], [urls[1]]), "both are named")
    same(version_of(urls[1]), "ahead", "it had committed, so 'not by' would be wrong")
    end()


def not_handed_over(urls):
    """A server with --stage that has no engine yet: it has committed, and nothing is pushed to it again."""
    none = os.path.join(WORK, "no-upstreams")
    with open(none, "w", encoding="utf-8") as f:
        f.write("# added by requests\n")
    stage = ("--upstream-file", none, "--stage", "cuda:0", "--cuda-library", CUDA, "--manifest", STEP[0])
    with Server(BATON, LOG, *stage) as a, Server(BATON, LOG, *stage) as b:
        staged = [a.url, b.url]
        e = refused(lambda: baton.push(STEP[100], staged, via="body", weight_version="both"),
                    [f"committed by {a.url}, {b.url}; not yet handed over by {a.url}: "], "not_handed_over",
                    retryable=False)
        same((e.details["committed"], e.details["failed"], e.details["unknown"], list(e.details["not_handed_over"])),
             (staged, {}, [], staged), "both have committed")
        same([version_of(url) for url in staged], ["both"] * 2, "what they have")
        e = refused(lambda: baton.push(STEP[0], [a.url, urls[1]], via="body", weight_version="one"), "not yet handed over",
                    "not_handed_over")
        same((e.details["committed"], version_of(urls[1])), ([a.url, urls[1]], "one"), "one has no engines")
        lost = cut_off_answers(b.url)
        e = refused(lambda: baton.push(STEP[100], staged, via="body", weight_version="cut"),
                    [f"committed by {a.url}; failed on {b.url}: the answer was cut off", f"handed over by {a.url}: "],
                    "connection")
        same((e.details["committed"], list(e.details["failed"]), e.details["unknown"], list(e.details["not_handed_over"])),
             ([a.url], [b.url], [b.url], [a.url]), "one that has committed, one that is not known")
        lost()


class Ended:
    """A call of a group that has ended."""

    def __init__(self, url, answer=None, code=None):
        self.url, self.answer, self.error = url, answer, code and baton.BatonError(f"{url}: no", 502, code)

    def join(self, _):
        pass

    def is_alive(self):
        return False


def finish_of_a_group():
    """The error names every server that has committed; its code is that of one that has not, if there is one."""
    for ended, code, words in (
            ([Ended("A", code="not_handed_over"), Ended("B", {"phase": "committed"})], "not_handed_over",
             "A: no; committed, nevertheless, by A, B"),
            ([Ended("A", code="not_handed_over"), Ended("B", code="not_recorded")], "not_recorded",
             "B: no; committed, nevertheless, by A"),
            ([Ended("A", code="not_recorded"), Ended("B", code="not_recorded")], "not_recorded", "A: no")):
        class Stub:
            _ask = staticmethod(lambda *_, ended=ended: ended)

        e = refused(lambda: baton.Group._finish(Stub(), ["a", "b"], time.monotonic() + 1), words, code)
        same(str(e).endswith(words), True, str(e))


def slow_one(urls):
    """Servers that wait for a slower one keep their session beyond its lease."""
    real_send, real_lease, real_renew = baton.host.ask, baton.several.LEASE_S, baton.several.RENEW_S
    baton.several.LEASE_S, baton.several.RENEW_S = 3, 0.3

    def slow(url, *args, **more):
        if url == urls[0]:
            time.sleep(4.0)
        return real_send(url, *args, **more)

    baton.host.ask = slow
    answers = baton.push(STEP[1500], urls, via="shm", weight_version="slow")
    same([a["phase"] for a in answers], ["committed"] * len(urls), "a slow one")
    baton.host.ask, baton.several.LEASE_S, baton.several.RENEW_S = real_send, real_lease, real_renew


def by_unix():
    url = f"unix:{CONTROL}"
    same(baton.push(STEP[100], url, weight_version="unix")["phase"], "committed", "unix: auto")
    same(baton.push(STEP[100], url, via="body")["phase"], "committed", "unix: body")
    refused(lambda: baton.push(STEP[100], "unix:control.sock"), "starts with a slash",
            kind=baton.InputError)
    refused(lambda: baton.push(STEP[100], f"unix:{WORK}/nothing.sock"),
            [f"unix:{WORK}/nothing.sock", "no such socket"], "connection")
    refused(lambda: baton.push(STEP[100], "unix:/" + "x" * 120), "too long", "connection")


def waits(url):
    with serve("--weights", "none") as empty:
        baton.wait_ready(empty.url, LONG_S, for_="control")
        e = refused(lambda: baton.wait_ready(empty.url, ONE_S),
                    [empty.url, "not ready for generate", "no weights"], "timeout", retryable=True)
        same(e.status, 503, "the status of the last answer")
        threading.Timer(0.2, lambda: baton.push(STEP[0], empty.url)).start()
        baton.wait_ready([url, empty.url], LONG_S)
    refused(lambda: baton.wait_ready(empty.url, SHORT_S), "connection refused", "timeout")
    refused(lambda: baton.wait_ready(url, for_="all"), "not one of generate, control")
    refused(lambda: baton.wait_ready(url, -1), "timeout_s is a number")
    with odd(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", ok('{"ready": true}')) as other:
        baton.wait_ready(other.url, 5, for_="control")  # a server that has no such question
        same([line.split()[1] for line in other.seen], ["/readyz?for=control", "/readyz"], "asked")


def ok(body, more="", kind="application/json"):
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}"
    if "Content-Length" not in more:
        head += f"Content-Length: {len(body)}\r\n"
    return (head + "\r\n" + body).encode()


class odd:
    """A server that gives these answers, one to each connection, whatever it is asked."""

    def __init__(self, *answers):
        self.listener, self.answers, self.seen = socket.create_server(("127.0.0.1", 0)), answers, []
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        for answer in self.answers:
            connection, _ = self.listener.accept()
            with connection:
                self.seen.append(connection.recv(65536).decode("latin-1").split("\r\n")[0])
                if answer is None:
                    time.sleep(2 * SHORT_S)
                    continue
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # unread bytes would make the end a reset
                    pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()
        self.listener.close()


def odd_answers():
    def asked(answer, words, code, timeout=LONG_S, **more):
        with odd(answer) as server:
            refused(lambda: baton.push(STEP[0], server.url, via="path", timeout=timeout),
                    [server.url, *words], code, **more)

    asked(ok('{"phase": "comm', "Content-Length: 100\r\n"), ["cut off", "/v1/status"], "connection",
          retryable=True)
    asked(ok('{"phase": "comm'), ["not whole JSON"], "bad_answer", retryable=False)
    asked(ok("<html>hello", kind="text/html"), ["not an answer of a baton server"], "bad_answer")
    asked(ok("[]"), ["not an answer of a baton server"], "bad_answer")
    asked(b"", ["closed without an answer"], "connection", retryable=True)
    asked(b"SSH-2.0-OpenSSH_9.2\r\n", ["not HTTP", "port"], "connection", retryable=False)
    asked(None, [f"within {SHORT_S} s"], "timeout", SHORT_S, retryable=True)
    asked(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
          ["302", "not an answer of baton"], "")
    asked(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\nnginx", ["502", "nginx"], "")


def tls():
    cert = os.path.join(WORK, "cert.pem")
    with serve("--weights", STEP[0], "--tls-cert", cert, "--tls-key",
               os.path.join(WORK, "key.pem"), "--health-listen", "127.0.0.1:0") as server:
        plain = server.url.replace("127.0.0.1", "localhost")
        secure = plain.replace("http:", "https:")
        refused(lambda: baton.push(STEP[0], secure), ["certificate is not accepted", "SSL_CERT_FILE"],
                "tls", retryable=False)
        refused(lambda: baton.wait_ready(secure, 20), "certificate is not accepted", "tls")
        refused(lambda: baton.push(STEP[0], plain), "https://")
        os.environ["SSL_CERT_FILE"] = cert
        same(baton.push(STEP[0], secure)["phase"], "committed", "TLS")
        refused(lambda: baton.push(STEP[0], secure.replace("localhost", "127.0.0.1")),
                "certificate is not accepted", "tls")
        del os.environ["SSL_CERT_FILE"]
    with serve("--weights", STEP[0]) as server:
        refused(lambda: baton.push(STEP[0], server.url.replace("http:", "https:")),
                ["TLS failed", "http:// URL"], "tls")


def inputs(url):
    """What is wrong before anything is sent is an InputError, which is a ValueError too."""
    def wrong(words, *args, **more):
        e = refused(lambda: baton.push(*args, **more), words, kind=baton.InputError)
        same((isinstance(e, ValueError), e.status), (True, 0), "an InputError")

    with open(STEP[0], "rb") as f:
        whole = f.read()
    for name, content, words in (
            ("cut", whole[:-1], ["the file was cut"]), ("head", whole[:100], ["cut off: its first"]),
            ("swapped", whole[:8] + whole[8:].replace(b"BF16", b"BF61", 1), ["unknown dtype 'BF61'"])):
        path = os.path.join(WORK, name)
        with open(path, "wb") as f:
            f.write(content)
        wrong([path, *words], path, url)
    wrong([WORK, "has no .safetensors file"], WORK, url)
    wrong(["/nothing/here", "No such file"], "/nothing/here", url)
    wrong(["/nothing/here", "No such file"], "/nothing/here", [url, url + "/"])
    wrong(["tensor 'a'", "complex128", "known: BF16"], {"a": numpy.zeros(2, numpy.complex128)}, url)
    wrong(["tensor 'a' is a list, not a torch"], {"a": [1.0]}, url)
    wrong(["tensor 'a' is a NoneType"], {"a": None}, [url])
    wrong(["nothing to push"], {}, url)
    wrong(["via 'ftp' is not one of auto, ipc"], STEP[0], url, via="ftp")
    wrong(["needs the server's url"], STEP[0])
    for bad in ("ftp://host", "http://", "http://host:70000", "http://host:x", "http://[::1"):
        wrong([repr(bad)], STEP[0], bad)
    wrong(["each once"], STEP[0], [url, url])
    wrong(["each once"], STEP[0], [])
    wrong(["url is a string", "not int"], STEP[0], [url, 5])
    wrong(["a session of one server"], STEP[0], [url], update_id="upd-1")
    for timeout in (0, -1, "5", float("nan")):
        wrong(["timeout is a number"], STEP[0], url, timeout=timeout)
    wrong(["cannot be written as JSON"], STEP[0], url, weight_version={1})
    os.environ["BATON_API_KEY"] = "secret\n"
    wrong(["BATON_API_KEY", "line break"], STEP[0], url)
    del os.environ["BATON_API_KEY"]
    refused(lambda: baton.push(STEP[0], "http://no-such-host.invalid:1"), "name of the host",
            "connection")


def no_shared_memory(url):
    real, baton.host.SHM_DIR = baton.host.SHM_DIR, os.path.join(WORK, "nothing")
    refused(lambda: baton.push(STEP[0], url, via="shm"), ["nothing", "No such file", "via='body'"],
            "shared_memory")
    baton.host.SHM_DIR = real


def version_is_the_servers(url):
    same(baton.__version__, baton.request(url, "GET", "/version")["version"], "the version")
    root = os.path.join(os.path.dirname(baton.__file__), "..", "..")
    with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as f:
        (found,) = re.findall(r"^project\(baton VERSION ([0-9.]+)", f.read(), re.M)
    same(baton.__version__, found, "the version of CMakeLists.txt")


def main():
    with serve("--weights", STEP[0], "--control-listen", f"unix:{CONTROL}") as a, \
            serve("--weights", STEP[0]) as b, serve("--weights", STEP[0]) as c:
        urls = [f"unix:{CONTROL}", b.url, c.url]
        pushes_to_several(urls)
        none_commits(urls)
        lost_finish(urls)
        not_handed_over(urls)
        finish_of_a_group()
        slow_one(urls)
        by_unix()
        waits(b.url)
        inputs(b.url)
        no_shared_memory(b.url)
        version_is_the_servers(a.url)
    odd_answers()
    tls()
    print("checks", n_checks)


main()

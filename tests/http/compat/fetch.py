"""Versions of deltas that are fetched from an object store: SkyRL's and slime's, by HTTPS and HTTP, and from a store that
does everything wrong. After each refusal what is served is untouched, and the right version is taken.
Usage: fetch.py BATON MODEL DELTAS FOLDER FAKECUDA; in FOLDER: store.pem, store.key"""

import contextlib
import http.server
import json
import os
import shutil
import ssl
import subprocess
import threading
import time

from fleet_world import until
from pull_world import BATON, FOLDER, MODEL, SOURCE, STEPS, SkyRL, Trainer, World, base, checks, has, refused, same

RUN = "gs://bucket/run"
STALL_MS = 1000  # where a server stalls; elsewhere a machine may be slow
PATIENT_MS = 30000
INDEX, PAYLOAD = "model.safetensors.index.json", "model-00000-of-00001.safetensors"
TEMPORARY = os.path.join(FOLDER, "temporary")
PRIVATE = ("--fetch-cidr", "127.0.0.0/8")


class Answer(http.server.BaseHTTPRequestHandler):
    """GET /bucket/run/PATH: the file in the directory where the trainer publishes. What goes wrong with which file,
    `faults` says."""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        store, name = self.server, os.path.basename(self.path)
        store.asked.append(self.path)
        fault = store.faults.get(name)
        if fault == "silent":
            store.release.wait(60)
        try:
            with open(SOURCE + self.path.removeprefix("/bucket/run"), "rb") as f:
                data = f.read()
        except OSError:
            return self.answer(404, b"no such key")
        if fault == "redirect":
            return self.answer(302, b"", ("Location", f"{store.url}/bucket/run/elsewhere/{name}"))
        if fault in (403, 500):
            return self.answer(fault, b"no")
        if fault == "wrong":
            data = data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]
        if fault == "cut":
            data = data[:-40]
        if fault == "longer":
            data += b" x"
        if fault in ("broken", "changed", "lies"):
            return self.answer_broken(data, fault)
        self.send_response(200)
        if fault == "encoded":
            self.send_header("Content-Encoding", "gzip")
        if fault != "endless":
            self.send_header("Content-Length", str({"huge": 1 << 50, "short": len(data) + 100}.get(fault, len(data))))
        self.end_headers()
        if fault in ("stall", "drip"):
            self.wfile.write(data[:20])
            self.wfile.flush()
            while not store.release.wait(60 if fault == "stall" else 0.1):
                self.wfile.write(b" ")
            data = data[20:]
        while fault == "endless":
            self.wfile.write(bytes(1 << 20))
        self.wfile.write(data)
        self.close_connection = fault is not None

    def answer_broken(self, data, fault):
        """Of each answer no more than a third of the file comes; `changed`: what comes after the first is another file."""
        store, third = self.server, len(data) // 3
        asked = self.headers["Range"]
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        store.ranges.append(asked)
        if asked:
            same(self.headers["If-Range"], '"one"', "the file that the rest is of")
        if fault == "changed" and asked:
            begin, asked = 0, None
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin - (fault == 'lies')}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        self.wfile.write(data[begin:] if fault == "changed" and len(store.ranges) > 1 else data[begin:][:third])
        self.close_connection = True

    def answer(self, status, body, *headers):
        self.send_response(status)
        for header in (("Content-Length", str(len(body))), *headers):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Store(http.server.ThreadingHTTPServer):
    def __init__(self, tls):
        super().__init__(("127.0.0.1", 0), Answer)
        self.faults, self.asked, self.release = {}, [], threading.Event()
        self.ranges = []  # what the requests of a fault "broken" asked for
        self.url = f"{'https' if tls else 'http'}://localhost:{self.server_port}"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(os.path.join(FOLDER, "store.pem"), os.path.join(FOLDER, "store.key"))
            self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # the server has hung up, or does not trust the certificate

    @contextlib.contextmanager
    def fault(self, name, kind):
        self.release.clear()
        self.faults[name] = kind
        yield
        del self.faults[name]
        self.release.set()


def world(*options, stall_ms=PATIENT_MS):
    return World("--body-stall-timeout", stall_ms, *options)


def right_ones(tls):
    with world("--fetch-prefix", f"gs://bucket={tls.url}/bucket", "--fetch-prefix", f"{tls.url}/bucket", *PRIVATE,
               "--fetch-ca-file", os.path.join(FOLDER, "store.pem")) as server:
        t = SkyRL(server, "skyrl/many-files")
        t.begin()
        refused("delta-00000001/manifest.json' of https://localhost", t.pull, 1, RUN)
        for version in range(1, 5):
            t.publish(version)
        for version in 1, 3:
            t.pull(version, RUN)
            server.serves(version // 2, "base" if version == 1 else None)
            t.reload(version, RUN)
            server.serves(version)
        t.post("/fetch_weights", {"target_version": 4, "uri": f"{RUN}/delta-00000004"})
        t.reload(4, RUN)
        server.serves(4)
        t.pull(4, RUN)  # it is proven
        same(tls.asked.count("/bucket/run/delta-00000003/manifest.json"), 1, "each file is fetched once")
        refused("of another directory is served", t.pull, 4, f"{tls.url}/bucket/run")


def whole(store):
    """A URL without a mapping; slime's whole checkpoint, which needs an index in a directory that nobody can list."""
    url = f"{store.url}/bucket/run"
    with world("--fetch-prefix", f"{store.url}/bucket/", *PRIVATE) as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin(url)
        refused("neither " + INDEX + " nor files", t.pull, 1, url)
        t.publish(1)
        t.pull(1, url + "/")
        t.reload(1)
        server.serves(1)
        os.mkdir(os.path.join(SOURCE, "weight_v000002"))
        shutil.copy(os.path.join(STEPS, "step-00000.safetensors"), os.path.join(SOURCE, "weight_v000002", "model.safetensors"))
        refused("neither " + INDEX + " nor files", t.pull, 2, url)
        with open(os.path.join(SOURCE, "weight_v000002", INDEX), "w", encoding="utf-8") as f:
            json.dump({"weight_map": {n: "model.safetensors" for n in base()}}, f)
        t.pull(2, url)
        t.reload(2)
        server.serves(0, "2")


def faults(store):
    """Each by itself, of the index and of the tensors; then the right one."""
    stall = f"bytes came in {STALL_MS} ms"
    cases = [(404, "there (yet)"), (403, "answered 403"), (500, "answered 500"), ("redirect", "redirects are not followed"),
             ("short", "'weight_v000001/"), ("huge", "1125899906842624 bytes or more"), ("encoded", "encoding 'gzip'")]
    with world("--fetch-prefix", f"gs://bucket={store.url}/bucket", *PRIVATE, stall_ms=STALL_MS) as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin(RUN)
        place = t.publish(1)
        for name in INDEX, PAYLOAD:
            for kind, word in cases:
                if kind == 404:
                    os.rename(os.path.join(place, name), os.path.join(FOLDER, "away"))
                    refused(("nor files" if name == INDEX else word), t.pull, 1, RUN)
                    os.rename(os.path.join(FOLDER, "away"), os.path.join(place, name))
                    continue
                with store.fault(name, kind):
                    refused(word, t.pull, 1, RUN)
                    refused("version 1: '", t.pull, 1, RUN) if kind == "short" else None
        for name, kind, word in ((INDEX, "silent", stall), (PAYLOAD, "stall", stall), (INDEX, "longer", INDEX), (INDEX, "endless", "at most 67108864 are allowed"), (INDEX, "cut", INDEX),
                                 (PAYLOAD, "longer", PAYLOAD), (PAYLOAD, "cut", PAYLOAD), (PAYLOAD, "wrong", "version 1: ")):
            with store.fault(name, kind):
                refused(word, t.pull, 1, RUN)
        refused("no version is pulled", t.reload, 1)
        server.serves(0, "base")
        same([p for p in store.asked if "elsewhere" in p], [], "no redirect is followed")
        t.pull(1, RUN)
        t.reload(1)
        server.serves(1)
    with world("--fetch-prefix", f"gs://bucket={store.url}/bucket", *PRIVATE, "--update-timeout", 2000) as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin(RUN)
        t.publish(1)
        with store.fault(PAYLOAD, "drip"):  # bytes come, but it would take for ever
            refused("before the deadline", t.pull, 1, RUN)
        t.pull(1, RUN)
        t.reload(1)


def resumed(store):
    """A connection that breaks: the rest is asked for, of the same file; of another file all of it."""
    with world("--fetch-prefix", f"gs://bucket={store.url}/bucket", *PRIVATE) as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin(RUN)
        size = os.path.getsize(os.path.join(t.publish(1), PAYLOAD))
        with store.fault(PAYLOAD, "lies"):
            refused("with the range 'bytes", t.pull, 1, RUN)
        for fault, n in (("changed", 2), ("broken", 3 + (size % 3 > 0))):
            store.ranges = []
            with store.fault(PAYLOAD, fault):
                t.pull(1, RUN)
            same(store.ranges, [None] + [f"bytes={size // 3 * i}-" for i in range(1, n)], f"{fault}: what is asked for")
        t.reload(1)
        server.serves(1)


def more_than_the_manifest(store):
    with world("--fetch-prefix", f"s3://bucket={store.url}/bucket", *PRIVATE) as server:
        t = SkyRL(server, "skyrl/many-files")
        t.begin()
        place = t.publish(1)
        name = sorted(n for n in os.listdir(place) if n.endswith(".safetensors"))[0]
        with open(os.path.join(place, name), "rb") as f:
            data = f.read()
        head = int.from_bytes(data[:8], "little")
        more = b', "more": {"dtype": "U8", "shape": [1000000], "data_offsets": [%d, %d]}}' % (
            len(data) - 8 - head, len(data) - 8 - head + 1000000)
        text = data[8:8 + head].rstrip()[:-1] + more
        with open(os.path.join(place, name), "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text + data[8 + head:] + bytes(1000000))
        refused("but the manifest does not say so", t.pull, 1, "s3://bucket/run")
        place = t.publish(1)
        for name in sorted(n for n in os.listdir(place) if n.endswith(".safetensors"))[:2]:  # blanks, of each as many as it may have
            with open(os.path.join(place, name), "rb") as f:
                data = f.read()
            head = int.from_bytes(data[:8], "little")
            with open(os.path.join(place, name), "wb") as f:
                f.write((60000000).to_bytes(8, "little") + data[8:8 + head].ljust(60000000) + data[8 + head:])
        refused("bytes or more, at most", t.pull, 1, "s3://bucket/run")
        t.publish(1)
        for version in 1, 2:  # ... of each version as many as it may have: too many together
            place = t.publish(version)
            name = sorted(n for n in os.listdir(place) if n.endswith(".safetensors"))[0]
            with open(os.path.join(place, name), "rb") as f:
                data = f.read()
            head = int.from_bytes(data[:8], "little")
            with open(os.path.join(place, name), "wb") as f:
                f.write((90000000).to_bytes(8, "little") + data[8:8 + head].ljust(90000000) + data[8 + head:])
        refused("pull fewer versions at once", t.pull, 2, "s3://bucket/run")
        t.publish(2)
        t.pull(1, "s3://bucket/run")
        t.reload(1, "s3://bucket/run")
        server.serves(1)


def forbidden(store, tls):
    """Prefixes, addresses and certificates."""
    with world("--fetch-prefix", f"gs://bucket={store.url}/bucket", "--fetch-prefix", f"gs://mapped=http://[::ffff:127.0.0.1]:"
               f"{store.server_port}", "--fetch-prefix", f"gs://tls={tls.url}/bucket") as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin(RUN)
        t.publish(1)
        for source, word in (("gs://other/run", "beneath no --fetch-prefix"), ("gs://bucket2/run", "beneath no --fetch-prefix"),
                             (f"{store.url}/bucket/run", "beneath no --fetch-prefix"), ("gs://bucket/../run", "'..'"),
                             ("gs://bucket/a//run", "empty"), ("gs://bucket/run?x=1", "character"),
                             ("gs://bucket/%2e%2e/run", "character"), (RUN, "is not allowed (--fetch-cidr)"),
                             ("gs://mapped/run", "is not allowed"), ("gs://tls/run", "is not allowed")):
            asked = len(store.asked) + len(tls.asked)
            refused(word, t.pull, 1, source)
            same(len(store.asked) + len(tls.asked), asked, f"nothing is asked for {source}")
    with world("--fetch-prefix", f"gs://bucket={tls.url}/bucket", *PRIVATE) as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin(RUN)
        refused("certificate", t.pull, 1, RUN)
        server.serves(0, "base")
    for options, word in ((PRIVATE, "no effect without --fetch-prefix"), (("--fetch-prefix", "gs://bucket"), "--fetch-prefix: "),
                          (("--fetch-prefix", "https://x", "--fetch-ca-file", "/nothing"), "--fetch-ca-file: ")):
        found = subprocess.run([BATON, "serve", "--check", "--model", MODEL, *options], capture_output=True, text=True, check=False)
        same(found.returncode, 2, f"{options}: {found.stdout}")
        has(found.stderr, word, options)
    os.environ["TMPDIR"] = os.path.join(FOLDER, "nothing")
    with world("--fetch-prefix", f"gs://bucket={store.url}/bucket", *PRIVATE) as server:
        refused("temporary file", Trainer(server, "slime/xor-adler32").pull, 1, RUN)
    os.environ["TMPDIR"] = TEMPORARY


def meanwhile(store):
    """A fetch that waits keeps no control request waiting; it ends with its client, and with the server."""
    with world("--fetch-prefix", f"gs://bucket={store.url}/bucket", *PRIVATE, "--control-threads", 1,
               "--body-stall-timeout", 60000) as server:
        t = Trainer(server, "slime/xor-adler32")
        t.begin(RUN)
        t.publish(1)
        body = {"local_checkpoint_dir": "x", "source_dir": RUN, "target_version": 1}
        with store.fault(PAYLOAD, "stall"):
            try:
                server.ask("POST", "/pull_weights", body, timeout=1)
                raise AssertionError("it was answered")
            except TimeoutError:
                pass  # and so the client goes away
            until("the server has noticed", lambda: "under way" not in str(server.post("/pull_weights", {**body, "source_dir": "x"})))
            client = threading.Thread(target=lambda: server.post("/pull_weights", body))
            client.start()
            until("it is fetched", lambda: len([p for p in store.asked if PAYLOAD in p]) > 1)
            server.serves(0, "base")
            refused("under way", t.pull, 1, RUN)
            begun = time.monotonic()
            server.process.terminate()
            client.join()
            same(server.process.wait(30), 0, "the server's end")
            assert time.monotonic() - begun < 10, "the end waited for the store"


os.mkdir(TEMPORARY)
os.environ["TMPDIR"] = TEMPORARY
TLS, PLAIN = Store(True), Store(False)
right_ones(TLS)
whole(PLAIN)
faults(PLAIN)
resumed(PLAIN)
more_than_the_manifest(PLAIN)
forbidden(PLAIN, TLS)
PLAIN.asked.clear()
meanwhile(PLAIN)
same(os.listdir(TEMPORARY), [], "what is left of files")
shutil.rmtree(TEMPORARY)
print(f"ok: {checks[0]} checks")

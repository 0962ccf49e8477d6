"""The other host of weights_file.sh: reads a version as one file, or in ranges.
Usage: weights_file.py make DIRECTORY | WHAT URL [ARGUMENT...]"""

import http.client
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
import time
import urllib.parse

import baton

FILE = "/v1/weights/file"
LEASES = "/v1/weights/leases"
CROWD = 12
STREAM_NBYTES_MAX = 24 << 20  # more than a download takes under any sanitizer, and less than the file
WAIT_S = 60
n_checks = 0


def check(found, wanted, about):
    global n_checks
    n_checks += 1
    if found != wanted:
        raise SystemExit(f"{about}: {str(found)[:300]!r}, wanted {str(wanted)[:300]!r}")


class Host:
    def __init__(self, url):
        self.url = url
        self.at = urllib.parse.urlsplit(url).netloc
        self.connection = http.client.HTTPConnection(self.at, timeout=WAIT_S)

    def ask(self, method, path, **headers):
        names = {k.replace("_", "-"): v for k, v in headers.items()}
        self.connection.request(method, path, headers=names)
        answer = self.connection.getresponse()
        return answer, answer.read()

    def lease(self, lease_s=60):
        return baton.request(self.url, "POST", LEASES, {"lease_s": lease_s})

    def path(self, lease):
        return f"{FILE}?lease_id={lease['lease_id']}"

    def range(self, lease, text, **headers):
        return self.ask("GET", self.path(lease), Range=text, **headers)

    def ended(self, lease):
        answer, raw = self.ask("GET", self.path(lease))
        check((answer.status, json.loads(raw)["error"]["code"]), (410, "lease_ended"), "a lease that has ended")

    def begin(self, path):
        """A download of which the head and nothing more is read; few bytes wait in sockets."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        sock.settimeout(WAIT_S)
        host, port = self.at.split(":")
        sock.connect((host, int(port)))
        connection = http.client.HTTPConnection(self.at, timeout=WAIT_S)
        connection.sock = sock
        connection.request("GET", path)
        answer = connection.getresponse()
        check(answer.status, 200, "a download")
        return answer


def cut(answer, whole):
    """What came before the connection was cut is the version's, and it is not all."""
    data = b""
    try:
        while piece := answer.read(65536):
            data += piece
    except (http.client.IncompleteRead, ConnectionError) as e:
        data += getattr(e, "partial", b"")
    else:
        raise SystemExit(f"a download of {len(data)} bytes ended well")
    check(data == whole[:len(data)] and len(data) < len(whole), True, "bytes before the cut")


def write(path, tensors):
    head, body = {}, b""
    for name, shape, data in tensors:
        head[name] = {"dtype": "U8", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def make(directory):
    rng = random.Random(5)
    write(f"{directory}/tiny.safetensors", [("a", [3], rng.randbytes(3)), ("none", [0, 4], b""),
                                            ("b", [], rng.randbytes(1)), ("c", [2, 5], rng.randbytes(10))])
    write(f"{directory}/large.safetensors", [(f"t{i}", [4 << 20], rng.randbytes(4 << 20)) for i in range(10)])


def parsed(raw):
    (n,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + n])
    return head.pop("__metadata__", None), head, raw[8 + n:]


def proven(raw, lease, checkpoint):
    """The file has each tensor of the checkpoint, its own checksums, and nothing of this host."""
    metadata, head, body = parsed(raw)
    wanted = baton.load_file(checkpoint)
    served = {t["name"]: t["checksum"] for t in baton.request(HOST.url, "GET", "/v1/weights")["tensors"]}
    check(sorted(head), sorted(served), "names")
    check(len(head), lease["n_tensors"], "n_tensors")
    for name, about in head.items():
        begin, end = about["data_offsets"]
        check(body[begin:end], bytes(wanted[name].data), name)
        check(metadata.pop("baton.checksum." + name), served[name], name)
    check(metadata, {"format": "pt", "baton.weight_version": lease["weight_version"]}, "__metadata__")


def ranges(checkpoint):
    lease = HOST.lease()
    answer, whole = HOST.ask("GET", HOST.path(lease))
    n, etag = len(whole), answer.headers["ETag"]
    check((answer.status, n, answer.headers["Accept-Ranges"]), (200, lease["nbytes"], "bytes"), "the whole")
    check(answer.headers["X-Baton-Weight-Version"], "one", "its version")
    proven(whole, lease, checkpoint)
    for at in range(n):
        for end in {at, min(at + 7, n - 1), n - 1}:
            answer, raw = HOST.range(lease, f"bytes={at}-{end}")
            check((answer.status, answer.headers["Content-Range"], raw), (206, f"bytes {at}-{end}/{n}",
                                                                         whole[at:end + 1]), f"{at}-{end}")
    for text, wanted in ((f"bytes={n - 3}-", whole[-3:]), ("bytes=-5", whole[-5:]), (f"bytes=-{n + 9}", whole),
                         (f"bytes=2-{n + 100}", whole[2:])):
        answer, raw = HOST.range(lease, text)
        check((answer.status, raw), (206, wanted), text)
    for text in ("bytes=0-1,3-4", "bytes=5-3", "bytes=", "bytes=-", "bytes=x-", "lines=0-1", "bytes=0-1 ,",
                 "bytes=99999999999999999999999-", "bytes=1"):
        answer, raw = HOST.range(lease, text)
        check((answer.status, raw), (200, whole), text)
    for text in (f"bytes={n}-", f"bytes={n}-{n + 5}", "bytes=-0"):
        answer, raw = HOST.range(lease, text)
        check((answer.status, answer.headers["Content-Range"]), (416, f"bytes */{n}"), text)
        check(json.loads(raw)["error"]["code"], "range_not_satisfiable", text)
    check(HOST.range(lease, "bytes=1-2", If_Range=etag)[0].status, 206, "If-Range of the same")
    for other in ('"x"', "W/" + etag, etag[1:-1], "Wed, 21 Oct 2015 07:28:00 GMT"):
        check(HOST.range(lease, "bytes=1-2", If_Range=other)[1], whole, f"If-Range {other}")
    answer, raw = HOST.ask("HEAD", HOST.path(lease))
    check((answer.status, answer.headers["Content-Length"], answer.headers["ETag"], raw), (200, str(n), etag, b""), "HEAD")
    leases()


def leases():
    """Leases of files, and what has none."""
    for path in (f"{FILE}?lease_id=lse-0", f"{FILE}?lease_id="):
        for method in ("GET", "HEAD"):
            check(HOST.ask(method, path)[0].status, 410, path)
    for method, path, body, status in (("GET", FILE, None, 400), ("POST", LEASES, {"lease_s": 0}, 400),
                                       ("POST", LEASES + "/renew", {"lease_id": "lse-0"}, 404),
                                       ("DELETE", LEASES + "/lse-0", None, 404)):
        try:
            baton.request(HOST.url, method, path, body)
        except baton.BatonError as e:
            check(e.status, status, f"{method} {path}")
        else:
            raise SystemExit(f"{method} {path} was answered")
    one = HOST.lease()
    check(baton.request(HOST.url, "POST", LEASES + "/renew", {"lease_id": one["lease_id"], "lease_s": 30})["served"],
          True, "renewed")
    more = []
    try:
        while len(more) < 100:
            more.append(HOST.lease())
    except baton.BatonError as e:
        check((e.status, e.code), (503, "overloaded"), "too many leases")
    check(len(more), 14, "leases beside two")
    for lease in (one, *more):
        baton.request(HOST.url, "DELETE", f"{LEASES}/{lease['lease_id']}")
        HOST.ended(lease)
    short = HOST.lease(1)
    time.sleep(1.2)
    HOST.ended(short)


def ended(checkpoint):
    lease = HOST.lease()
    whole = HOST.ask("GET", HOST.path(lease))[1]
    answer = HOST.begin(HOST.path(lease))
    baton.request(HOST.url, "DELETE", f"{LEASES}/{lease['lease_id']}")
    cut(answer, whole)
    answer = HOST.begin(HOST.path(lease := HOST.lease(1)))
    time.sleep(1.2)
    HOST.ended(lease)
    cut(answer, whole)


def push(checkpoint, label):
    """A whole update of other bytes."""
    tensors = baton.load_file(checkpoint)
    baton.push({k: baton.Tensor(t.dtype, t.shape, bytes([len(label)]) * len(bytes(t.data))) for k, t in tensors.items()},
               HOST.url, weight_version=label)


def overtaken(checkpoint):
    """With room for two versions: the next commit leaves the lease, the one after it ends it."""
    lease = HOST.lease()
    whole = HOST.ask("GET", HOST.path(lease))[1]
    first, second = HOST.begin(HOST.path(lease)), HOST.begin(HOST.path(lease))
    push(checkpoint, "two")
    check(first.read() == whole, True, "the old version's bytes to the end")
    check(HOST.lease()["weight_version"], "two", "a lease now")
    began = time.monotonic()
    push(checkpoint, "three!")
    check(time.monotonic() - began < 20, True, "the update waits for no lease")
    HOST.ended(lease)
    cut(second, whole)
    lease = HOST.lease()
    baton.request(HOST.url, "POST", "/v1/weights/label", {"weight_version": "four"})
    time.sleep(0.5)
    HOST.ended(lease)
    check(HOST.lease()["digest"], lease["digest"], "the digest under another label")


def crowd(checkpoint, pid):
    """Readers that read nothing take little memory; then all ranges at once are right."""
    def rss():
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            return int(f.read().split("VmRSS:")[1].split()[0]) << 10
    lease = HOST.lease()
    whole = HOST.ask("GET", HOST.path(lease))[1]
    before = rss()
    idle = [HOST.begin(HOST.path(lease)) for _ in range(CROWD)]
    time.sleep(1)
    check(rss() - before < CROWD * STREAM_NBYTES_MAX, True, f"memory of {CROWD} downloads: {rss() - before}")
    wrong, part = [], len(whole) // CROWD

    def read(i):
        host, at = Host(HOST.url), i * part
        answer, raw = host.range(lease, f"bytes={at}-{at + part - 1}")
        if answer.status != 206 or raw != whole[at:at + part]:
            wrong.append(i)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(CROWD)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(wrong, [], "ranges at once")
    for answer in idle[1:]:
        answer.close()
    check(idle[0].read() == whole, True, "a slow download")
    baton.request(HOST.url, "DELETE", f"{LEASES}/{lease['lease_id']}")


def sleeping():
    lease = HOST.lease()
    baton.request(HOST.url, "POST", "/v1/sleep", {"level": 2})
    HOST.ended(lease)


def stop(pid):
    lease = HOST.lease()
    whole = HOST.ask("GET", HOST.path(lease))[1]
    answer = HOST.begin(HOST.path(lease))
    os.kill(int(pid), signal.SIGTERM)
    began = time.monotonic()
    cut(answer, whole)
    check(time.monotonic() - began < 30, True, "a stop that waits for no download")


def whole(checkpoint, path):
    lease = HOST.lease()
    answer, raw = HOST.ask("GET", HOST.path(lease))
    check(answer.status, 200, "the file")
    proven(raw, lease, checkpoint)
    with open(path, "wb") as f:
        f.write(raw)
    with open(path + ".head", "w", encoding="ascii") as f:
        f.write(answer.headers["ETag"] + lease["digest"])


def adapter(directory, pid):
    """An adapter as it was loaded: loaded under another name from its file, it is the same one."""
    with open(f"{directory}/adapter_model.safetensors", "rb") as f:
        raw = f.read()
    with open(f"{directory}/adapter_config.json", encoding="utf-8") as f:
        config = f.read()

    def load(name, body, text):
        query = urllib.parse.urlencode({"lora_name": name, "adapter_config": text})
        HOST.connection.request("POST", f"/v1/load_lora_adapter?{query}", body,
                                {"Content-Type": "application/vnd.safetensors"})
        answer = HOST.connection.getresponse()
        loaded = json.loads(answer.read())
        check(answer.status, 200, loaded)
        return loaded

    first = load("a b/c", raw, config)
    check([(a["name"], a["revision"]) for a in HOST.lease()["adapters"]], [("a b/c", 1)], "adapters of a lease")
    path = "/v1/lora_adapters/a%20b/c"
    answer, file = HOST.ask("GET", path + "?revision=1")
    check((answer.status, answer.headers["X-Baton-Adapter-Revision"]), (200, "1"), "its file")
    for at, end in ((0, 9), (5, len(file) - 3), (len(file) - 1, len(file) - 1)):
        check(HOST.ask("GET", path, Range=f"bytes={at}-{end}")[1], file[at:end + 1], f"{at}-{end}")
    check(HOST.ask("HEAD", path)[0].headers["Content-Length"], str(len(file)), "HEAD")
    metadata = parsed(file)[0]
    check(metadata["baton.adapter_config"], config, "its config")
    check(metadata["baton.adapter_digest"], first["digest"], "its digest")
    check(load("again", file, metadata["baton.adapter_config"])["digest"], first["digest"], "the digest of what it makes")
    for path, status in ((path + "?revision=2", 409), ("/v1/lora_adapters/none", 404), (path + "?revision=0", 400)):
        check(HOST.ask("GET", path)[0].status, status, path)

    def large(byte):
        head, body, rank = {}, b"", 1024
        for name, t in parsed(raw)[1].items():
            shape = [rank if n == 16 else n for n in t["shape"]]
            head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + 2 * shape[0] * shape[1]]}
            body += bytes([byte]) * (2 * shape[0] * shape[1])
        text = json.dumps(head).encode()
        return load("large", struct.pack("<Q", len(text)) + text + body, json.dumps({**json.loads(config), "r": rank}))

    def cpu_s(path):
        """What the server computes for three hundred HEADs."""
        def spent():
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                return sum(map(int, f.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

        before = spent()
        for _ in range(300):
            HOST.ask("HEAD", path)
        return spent() - before

    large(1)
    small_s, large_s = cpu_s("/v1/lora_adapters/again"), cpu_s("/v1/lora_adapters/large")
    check(large_s < 1.5 * small_s + 0.05, True, f"the bytes are not summed for each request: {large_s} s, of few bytes {small_s} s")
    file = HOST.ask("GET", "/v1/lora_adapters/large")[1]
    answer = HOST.begin("/v1/lora_adapters/large")
    check(large(2)["revision"], 2, "a revision while the one before is sent")
    cut(answer, file)


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    HOST = Host(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    {f.__name__: f for f in (ranges, ended, overtaken, crowd, sleeping, stop, whole, adapter)}[sys.argv[1]](*sys.argv[3:])
    print(f"{sys.argv[1]}: {n_checks} checks")

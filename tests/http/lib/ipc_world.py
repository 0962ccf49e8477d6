"""The server as ipc_update.py sees it: how to start it over the fake driver, how to send requests to it, and which
bytes it must serve.

The model of the served version changes only with a 200, and check() compares it with every byte
that the server gives out, of every GPU.
"""

import base64
import ctypes
import http.client
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading

from ipc_trainer import Trainer, pickled_dict

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded here, since a child of a process with threads must not wait for locks
WAIT_S = 60  # longest time for any request; a longer wait is a hang
TORCH = {"F8_E4M3": "float8_e4m3fn", "U8": "uint8", "I8": "int8", "BF16": "bfloat16",
         "F16": "float16", "F32": "float32", "I64": "int64", "F64": "float64"}
NBYTES = {"F8_E4M3": 1, "U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4, "I64": 8, "F64": 8}


class Fault(AssertionError):
    """The server did what it must not."""


def must(true, what):
    must.n += 1
    if not true:
        raise Fault(what)


must.n = 0


class Answer:
    def __init__(self, status, kind, raw):
        self.status, self.raw = status, raw
        self.body = json.loads(raw) if kind == "application/json" else None

    def __str__(self):
        return f"{self.status} {self.raw[:700]!r}"


class Spec:
    def __init__(self, name, dtype, shape):
        self.name, self.dtype, self.shape, self.numel = name, dtype, list(shape), 1
        for dim in shape:
            self.numel *= dim
        self.nbytes = self.numel * NBYTES[dtype]


def columns(specs, **more):
    return {"names": [s.name for s in specs], "dtypes": [TORCH[s.dtype] for s in specs],
            "shapes": [s.shape for s in specs], **more}


def mixed_model(rng, n=40):
    """Every width, odd lengths, a scalar, nothing at all: packed, most views are misaligned."""
    specs = [Spec("odd.u8", "U8", [3]), Spec("scalar", "F64", []), Spec("empty", "F32", [0, 4]),
             Spec("odd.i8", "I8", [7, 11])]
    for i in range(n):
        dtype = rng.choice(list(NBYTES))
        shape = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 4))]
        specs.append(Spec(f"layers.{i}.weight", dtype, shape))
    specs.append(Spec("large", "BF16", [500, 401]))
    return specs


def _ends_with_us():
    """In the server before it runs: whatever becomes of the test, the server does not stay."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """`baton serve` over the fake driver, with what it must be serving."""

    def __init__(self, world, *options, devices="1", **environment):
        self.world, self.served, self.serial = world, None, 0
        self.log = tempfile.TemporaryFile("w+")
        self.report = os.path.join(world.folder, "report")
        self.environment = {"FAKECUDA_DEVICES": devices, **environment}
        self.process = subprocess.Popen(
            [world.baton, "serve", "--listen", "127.0.0.1:0", "--cuda-library", world.fake, *options],
            stderr=subprocess.PIPE, text=True, preexec_fn=_ends_with_us,
            env={**os.environ, "FAKECUDA_REPORT": self.report, **self.environment})
        self.started = threading.Event()
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        must(self.started.wait(WAIT_S) and self.port is not None,
             f"the server did not start: {self.tail()}")
        self.local = threading.local()
        self.n_fds = None

    def _read_log(self):
        self.port = None
        for line in self.process.stderr:
            self.log.write(line)
            if self.port is None and '"event":"serving"' in line:
                self.port = json.loads(line)["port"]
                self.started.set()
        self.started.set()

    def tail(self):
        """The log's end; and what a sanitizer wrote into it, wherever that was."""
        self.log.flush()
        self.log.seek(0)
        lines = self.log.readlines()
        reports = [line for line in lines[:-25] if not line.startswith("{")]
        return "".join(reports[:120] + lines[-25:])

    # speaking

    def _ask_once(self, method, path, body):
        headers = {"Content-Type": "application/json"} if body is not None else {}
        self.local.http.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.local.http.getresponse()
        return Answer(answer.status, answer.getheader("Content-Type"), answer.read())

    def ask(self, method, path, body=None):
        """On this thread's connection; a GET may find that the server has closed it, being idle."""
        again = method == "GET" and getattr(self.local, "http", None) is not None
        if getattr(self.local, "http", None) is None:
            self.local.http = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            try:
                return self._ask_once(method, path, body)
            except http.client.RemoteDisconnected:
                self.local.http.close()
                if not again:
                    raise
                return self._ask_once(method, path, body)
        except (OSError, http.client.HTTPException) as e:
            raise Fault(f"{method} {path}: no answer: {type(e).__name__} {e}; {self.tail()}") from e

    def post(self, status, path, body, what=""):
        answer = self.ask("POST", path, body)
        must(answer.status == status, f"{what}: POST {path}: wanted {status}, got {answer}")
        return answer.body

    def update(self, body, data=None, what=""):
        """A whole update, which must succeed; @data name -> bytes that it brings."""
        found = self.post(200, "/v1/update_weights", body, what)
        must(found["phase"] == "committed", f"{what}: {found}")
        self.released(found, what)
        self.serve(data if not body.get("partial") else {**self.served, **data}, found)
        return found

    def serve(self, data, found):
        self.served, self.serial = data, found["serial"]

    @staticmethod
    def released(found, what=""):
        m = found["mappings"]
        must(m["opened"] > 0 and m["opened"] == m["closed"] and m["still_mapped"] == 0,
             f"{what}: mappings {m}")

    def refuse(self, body, code, param, *words, status=400, what=""):
        """A request that is refused and changes nothing."""
        answer = self.post(status, "/v1/update_weights", body, what)["error"]
        must(answer["code"] == code, f"{what}: code {answer}")
        must(param is None or (answer["param"] or "") == param, f"{what}: param {answer}")
        for word in words:
            must(word in answer["message"], f"{what}: '{word}' is not in {answer['message']}")
        self.check(what)
        return answer

    # what is served

    def check(self, what="", names=None):
        """Every byte, of each place that has it."""
        if self.served is None:
            must(self.ask("GET", "/v1/weights").status == 503, f"{what}: something is served")
            return
        status = self.ask("GET", "/v1/status").body
        must(status["weights"]["serial"] == self.serial, f"{what}: {status['weights']}")
        for name in names or self.served:
            answer = self.ask("GET", f"/v1/weights/{name}")
            must(answer.status == 200, f"{what}: {name}: {answer}")
            must(answer.raw == self.served[name], f"{what}: the bytes of {name} are not those sent")

    def check_gpus(self, reader, wanted, what=""):
        """As another process maps them: wanted[rank] is name -> bytes, of that GPU alone."""
        answer = self.ask("GET", "/v1/weights/handles?lease_s=60")
        must(answer.status == 200, f"{what}: {answer}")
        body = answer.body
        for rank, (device, data) in enumerate(zip(body["devices"], wanted)):
            where = {name: (device["slab"][i], device["offset"][i])
                     for i, name in enumerate(body["names"])}
            must({n for n, (slab, _) in where.items() if slab is not None} == set(data),
                 f"{what}: rank {rank} has other tensors than it was sent")
            for k, slab in enumerate(device["slabs"]):
                names = [n for n in data if where[n][0] == k]
                pieces = [(where[n][1], len(data[n])) for n in names]
                ordinal = int(device["place"].rpartition(":")[2])
                found = reader.read_foreign(ordinal, base64.b64decode(slab["handle"]), pieces)
                for name, got in zip(names, found):
                    must(got == data[name], f"{what}: rank {rank}: the bytes of {name}")
        must(self.ask("DELETE", f"/v1/weights/handles/{body['lease_id']}").status == 200, what)

    def metric(self, name):
        found = re.search(rf"^{name} (\d+)$", self.ask("GET", "/metrics").raw.decode(), re.M)
        must(found is not None, f"there is no metric {name}")
        return int(found[1])

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        """It ends well, and the driver has got everything back."""
        must(self.metric("baton_ipc_mapped") == 0, "memory of trainers is still mapped")
        must(self.metric("baton_ipc_mappings_opened_total") ==
             self.metric("baton_ipc_mappings_closed_total"), "opened and closed differ")
        self.process.terminate()
        rc = self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        must(rc == 0, f"the server ended with {rc}: {self.tail()}")
        with open(self.report, encoding="utf-8") as f:
            left = json.load(f)
        for kind in ("allocations", "mappings", "host_blocks", "streams", "events", "contexts"):
            must(left[kind] == 0, f"the server left {kind}: {left}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.process.kill()
            self.process.wait()
            if kind is not SystemExit:
                print(self.tail())


class World:
    def __init__(self, baton, model, client, fake, foreign, seed, specs=None):
        self.baton, self.model, self.client = baton, model, client
        self.fake, self.foreign = fake, foreign
        self.rng, self.folder = random.Random(seed), tempfile.mkdtemp()
        self.specs = specs or mixed_model(self.rng)
        self.manifest = os.path.join(self.folder, "manifest.json")
        with open(self.manifest, "w", encoding="utf-8") as f:
            json.dump(columns(self.specs), f)

    def store(self, devices="cuda:0", n_devices="1", *options, **environment):
        return Server(self, "--engine", "none", "--manifest", self.manifest, "--weights", "none",
                      "--device", devices, *options, devices=n_devices, **environment)

    def engine(self, devices, n_devices):
        """The embedded engine, which generates from the host's copy of what the GPUs hold."""
        return Server(self, "--model", self.model, "--weights", "none", "--device", devices,
                      devices=n_devices)

    def trainer(self, server):
        return Trainer(self.foreign, **server.environment)

    def data(self, specs=None):
        """New bytes for each tensor, finite as any dtype."""
        finite = bytes(b % 0x70 for b in range(256))
        return {s.name: self.rng.randbytes(s.nbytes).translate(finite)
                for s in specs or self.specs}


def packed(specs, data):
    return b"".join(data[s.name] for s in specs)


def fill(trainer, device, content, capacity=None, front=0):
    """An allocation with the content at `front`, as a caching allocator's segment has it."""
    address = trainer.alloc(device, max(capacity or 0, front + len(content), 1))
    trainer.write(address, front, content)
    return address


def bucket(trainer, device, specs, data, front=512, capacity=None, dtype="uint8", pair=True,
           **more):
    """A packed bucket of its own as torch trainers send it, on one GPU."""
    content = packed(specs, data)
    address = fill(trainer, device, content, capacity and capacity + front, front)
    x = trainer.export(address, front, capacity or len(content))
    width = NBYTES[{v: k for k, v in TORCH.items()}[dtype]]
    x = x.seen_as(((capacity or len(content)) // width,), dtype)
    return x, columns(specs, ipc_handles_pickled=pickled_dict({x.uuid: x}, pair), **more)

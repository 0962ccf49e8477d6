"""What the tests and benchmarks on a GPU share: a server, a trainer in a process of its own, the
forms in which trainers send their weights, and checks that say what they found."""

import base64
import collections
import contextlib
import json
import mmap
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client"))
import baton  # noqa: E402

MODEL = ROOT / "tests" / "fixtures" / "kjv-qwen3-1m"
DETAIL_LEN = 300
SKIPPED = 77  # ctest's SKIP_RETURN_CODE
PATIENCE_S = 120  # for what must happen, and takes a fraction of it


def need_gpus(n=1):
    """torch, once it is there and sees n GPUs; otherwise the end of this process."""
    try:
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        reason = f"torch {torch.__version__} sees {found} GPUs, {n} are needed"
    except ImportError as e:
        found, reason = 0, f"no torch: {e}"
    if found >= n:
        return torch
    required = os.environ.get("BATON_REQUIRE_GPU") == "1"
    print(f"{'FAIL' if required else 'skipped'}: {reason}")
    sys.exit(1 if required else SKIPPED)


# --- checks


class Checks:
    """One line for each, as it is made; a table at the end."""

    def __init__(self):
        self.rows, self.title = [], ""

    def that(self, ok, name, detail=""):
        self.rows.append((bool(ok), self.title, name, str(detail)))
        print(
            f"{'ok  ' if ok else 'FAIL'} {self.title}: {name}{f' ({detail})' if detail else ''}",
            flush=True,
        )
        return bool(ok)

    def same(self, found, wanted, name):
        if found == wanted:
            return self.that(True, name, str(found)[:DETAIL_LEN])
        return self.that(False, name, f"found {found!r}, wanted {wanted!r}"[: 2 * DETAIL_LEN])

    def refused(self, call, name, words=(), status=None, code=None):
        """call() must fail as a BatonError whose message has the words; returns it."""
        try:
            answer = call()
        except baton.BatonError as e:
            ok = all(w in e.message for w in words) and status in (None, e.status)
            self.that(
                ok and code in (None, e.code), name, f"{e.status} {e.code}: {e.message[:300]}"
            )
            return e
        self.that(False, name, f"it was accepted: {str(answer)[:200]}")
        return None

    @contextlib.contextmanager
    def section(self, title):
        """What goes wrong in one does not keep the others from being run."""
        outer, self.title, began = self.title, title, time.monotonic()
        print(f"--- {title}", flush=True)
        try:
            yield
        except Exception as e:  # noqa: BLE001
            traceback.print_exc()
            self.title = title
            self.that(False, "ran to its end", f"{type(e).__name__}: {e}"[:400])
        print(f"    {title}: {time.monotonic() - began:.1f} s", flush=True)
        self.title = outer

    def skip(self, title, why):
        print(f"skip {title}: {why}", flush=True)

    def done(self):
        failed = [r for r in self.rows if not r[0]]
        print(f"\n{'section':28} {'checks':>6} {'failed':>6}")
        for title in dict.fromkeys(r[1] for r in self.rows):
            mine = [r for r in self.rows if r[1] == title]
            print(f"{title:28} {len(mine):6} {sum(not r[0] for r in mine):6}")
        for _, title, name, detail in failed:
            print(f"FAIL {title}: {name} ({detail})")
        if not self.rows:
            print("FAIL: nothing was checked")
        return 1 if failed or not self.rows else 0


def until(condition, what, patience_s=PATIENCE_S):
    """Waits for something that the server does by itself; returns what was waited for."""
    end = time.monotonic() + patience_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience_s} s: {what}")
        time.sleep(0.005)


# --- the server


class Server:
    """`baton serve` on a free port; a context manager that checks how it ended."""

    def __init__(self, binary, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="baton-gpu-")
        self.log = open(os.path.join(self.folder.name, "log"), "w+", encoding="utf-8")
        self.command = [binary, "serve", "--listen", "127.0.0.1:0", *map(str, options)]
        self.child = subprocess.Popen(self.command, stderr=self.log, stdout=self.log)
        self.pid = self.child.pid
        self.port = until(self._port, f"{' '.join(self.command)} serves")
        self.url = f"http://127.0.0.1:{self.port}"

    def _port(self):
        for line in self.read_log().splitlines():
            if '"event":"serving"' in line and line.endswith("}"):
                return json.loads(line)["port"]
        if self.child.poll() is not None:
            raise AssertionError(f"the server ended with {self.child.returncode}: {self.tail()}")
        return None

    def read_log(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def tail(self):
        return "\n".join(self.read_log().splitlines()[-30:])

    def get(self, path):
        return baton.request(self.url, "GET", path, timeout=PATIENCE_S)

    def post(self, path, body):
        return baton.request(self.url, "POST", path, body, timeout=PATIENCE_S)

    def status(self):
        return self.get("/v1/status")

    def metrics(self):
        """name{labels} -> value."""
        text = self.get("/metrics").decode()
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, value in rows}

    def mapped(self):
        """How many mappings of trainers' memory it holds now."""
        return int(self.metrics()["baton_ipc_mapped"])

    def usage(self):
        """What must not grow."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            rss = int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) * 1024
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as f:
            n_maps = sum(1 for _ in f)
        return {"fds": len(os.listdir(f"/proc/{self.pid}/fd")), "maps": n_maps, "rss": rss}

    def descriptors(self):
        """What the open ones are: a TCP socket's state, "anon_inode:[eventfd]", a file's path, and
        how many."""
        found, tcp = collections.Counter(), self._tcp_states()
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                what = os.readlink(f"/proc/{self.pid}/fd/{fd}")
                found[tcp.get(what, re.sub(r":\[\d+\]$", "", what))] += 1
        return found

    def _tcp_states(self):
        """"socket:[inode]" -> "tcp, state 0A": as in the kernel's include/net/tcp_states.h."""
        found = {}
        for name in ("tcp", "tcp6"):
            with open(f"/proc/{self.pid}/net/{name}", encoding="ascii") as f:
                rows = [line.split() for line in f][1:]
            found.update({f"socket:[{row[9]}]": f"tcp, state {row[3]}" for row in rows})
        return found

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            self.child.wait(PATIENCE_S)
        return self.child.returncode

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            rc = self.stop()
        except subprocess.TimeoutExpired:
            self.child.kill()
            rc = "nothing, until it was killed"
        if kind is not None or rc != 0:
            print(f"--- the server ended with {rc}; its log ends\n{self.tail()}", flush=True)
        self.log.close()
        self.folder.cleanup()
        if kind is None and rc != 0:
            raise AssertionError(f"the server ended with {rc}")


def write_manifest(folder, named):
    """A --manifest file. @named  [(name, dtype, shape)]"""
    path = os.path.join(folder, "manifest.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(
            {
                "names": [n for n, _, _ in named],
                "dtypes": [d for _, d, _ in named],
                "shapes": [list(s) for _, _, s in named],
            },
            f,
        )
    return path


# --- processes


def _worker_loop(connection, environment):
    os.environ.update(environment)  # before torch is there
    state = types.SimpleNamespace(connection=connection)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if task is None:
            return
        function, args, kwargs = task
        try:
            answer = (True, function(state, *args, **kwargs))
        except BaseException:  # noqa: BLE001
            answer = (False, traceback.format_exc())
        try:
            connection.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


class Worker:
    """A process of its own, with its own CUDA context: a trainer, or another reader. It runs
    functions of modules, called with its state first."""

    def __init__(self, **environment):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_worker_loop, args=(theirs, environment), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self):
        return self.process.pid

    def tell(self, function, *args, **kwargs):
        self.connection.send((function, args, kwargs))

    def hear(self, patience_s=300):
        if not self.connection.poll(patience_s):
            raise AssertionError(f"the trainer did not answer within {patience_s} s")
        ok, answer = self.connection.recv()
        if not ok:
            raise AssertionError(f"in the trainer:\n{answer}")
        return answer

    def ask(self, function, *args, **kwargs):
        self.tell(function, *args, **kwargs)
        return self.hear()

    def kill(self):
        """As a machine out of memory does it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.join()

    def join(self):
        self.process.join(PATIENCE_S)
        assert self.process.exitcode is not None, "the process did not end"
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.exitcode is None:
            with contextlib.suppress(OSError):
                self.connection.send(None)
            self.process.join(10)
        if self.process.exitcode is None:
            self.kill()


# --- what trainers send. All of it runs in a worker that has torch.


def uuid_of(index):
    import torch

    return str(torch.cuda.get_device_properties(index).uuid)


def pickled(value):
    return base64.b64encode(pickle.dumps(value)).decode()


def export(tensor):
    """(function, arguments), as torch makes them."""
    from torch.multiprocessing.reductions import reduce_tensor

    return reduce_tensor(tensor)


def raw_of(tensor):
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def counter(args):
    """The value of an export's counter; 0 when torch has removed the file."""
    name, slot = args[11], args[12]
    if not name:
        return 0
    try:
        fd = os.open("/dev/shm" + name.decode(), os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as at:
            return struct.unpack_from("<q", at, 64 + 8 * slot)[0]
    finally:
        os.close(fd)


def dtype_name(tensor):
    return str(tensor.dtype).rpartition(".")[2]


def columns(chunk):
    """names, dtype_names and shapes of [(name, tensor)]."""
    return {
        "names": [n for n, _ in chunk],
        "dtype_names": [dtype_name(t) for _, t in chunk],
        "shapes": [list(t.shape) for _, t in chunk],
    }


def cut(named, nbytes_max):
    """[(name, tensor)] in order, as many in each chunk as fit, one at least."""
    chunks, room = [], 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        if not chunks or nbytes > room:
            chunks.append([])
            room = nbytes_max
        chunks[-1].append((name, tensor))
        room -= nbytes
    return chunks


def pack(chunk, into):
    """The bytes of a chunk, back to back, at the start of a uint8 tensor; returns how many."""
    at = 0
    for _, tensor in chunk:
        raw = raw_of(tensor)
        into[at : at + raw.numel()].copy_(raw)
        at += raw.numel()
    return at


def skyrl_chunk(chunk, pair=True):
    """One packed tensor of one dtype, sizes in elements. Returns (body, arguments, the tensor)."""
    import torch

    packed = torch.cat([t.detach().contiguous().view(-1) for _, t in chunk])
    made, args = export(packed)
    torch.cuda.synchronize(packed.device)
    body = dict(columns(chunk), sizes=[t.numel() for _, t in chunk])
    body["ipc_handles_pickled"] = pickled(
        {uuid_of(packed.device.index): (made, args) if pair else args}
    )
    return body, args, packed


def vllm_list_chunk(chunk, pair):
    """One handle for each tensor: with torch's function (first releases) or the arguments alone."""
    import torch

    copies = [t.detach().clone() for _, t in chunk]
    exports = [export(t) for t in copies]
    torch.cuda.synchronize(copies[0].device)
    uuid = uuid_of(copies[0].device.index)
    body = columns(chunk)
    body["ipc_handles_pickled"] = pickled([{uuid: e if pair else e[1]} for e in exports])
    return body, [e[1] for e in exports], copies


def vllm_packed_body(chunk, args, index):
    """A chunk that lies in an exported buffer of bytes; sizes in bytes."""
    body = dict(columns(chunk), tensor_sizes=[t.numel() * t.element_size() for _, t in chunk])
    body["ipc_handles_pickled"] = pickled({uuid_of(index): args})
    return body


class Session:
    """start, chunks, finish, as a trainer that waits for each answer."""

    def __init__(self, url, **start):
        self.url = url
        self.started = baton.request(url, "POST", "/v1/update_weights/start", start)
        self.update_id = self.started["update_id"]

    def send(self, body):
        return baton.request(
            self.url, "POST", "/v1/update_weights", dict(body, update_id=self.update_id)
        )

    def finish(self):
        return baton.request(
            self.url, "POST", "/v1/update_weights/finish", {"update_id": self.update_id}
        )

    def abort(self):
        return baton.request(
            self.url, "POST", "/v1/update_weights/abort", {"update_id": self.update_id}
        )


def memory(_state, index=0):
    """What this process's allocator holds for tensors, once torch has looked at its exports."""
    import torch

    torch.cuda.synchronize(index)
    torch.cuda.ipc_collect()
    return torch.cuda.memory_allocated(index)


def same_bytes(a, b):
    import torch

    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw_of(a), raw_of(b))


def differing(url, expected, device=None):
    """The served weights, mapped, against tensors of this process: the names that differ."""
    import torch

    with baton.attach(url, device) as served:
        names = sorted(set(served.tensors) ^ set(expected))
        for name, tensor in expected.items():
            if name in served.tensors and not same_bytes(
                served.tensors[name].to(tensor.device), tensor
            ):
                names.append(name)
        torch.cuda.synchronize()
    return names

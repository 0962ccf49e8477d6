"""Between a server and a double: passes every request on, and maps what it hands over by CUDA IPC as an
engine's torch would, from the pickle itself, so that a test can compare the bytes.

What is unpickled is what Python's own pickle makes of it, with stand-ins under torch's names."""

import base64
import contextlib
import hashlib
import http.client
import http.server
import io
import json
import math
import mmap
import pickle
import threading
import time

from ipc_trainer import _MODULES, COUNTER_HEAD, COUNTER_SLOTS, Trainer

ITEM_NBYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1, "float8_e4m3fn": 1}
CANARY_S = 10
CHECKER = {"vllm": "/weight_checker", "sglang": "/weights_checker"}
FUSED = (".q_proj.", ".k_proj.", ".v_proj.", ".gate_proj.", ".up_proj.")
HOP = {"connection", "content-length", "transfer-encoding", "host"}


class Metadata:
    """FlattenedTensorMetadata"""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"):
            return Metadata
        if name in ("rebuild_cuda_tensor", "_rebuild_cuda_tensor_modified"):
            return lambda *args: args
        found = getattr(_MODULES[module], name)
        return tuple if name == "Size" else found


def unpickled(text):
    return _Unpickler(io.BytesIO(base64.b64decode(text, validate=True))).load()


def _contiguous(shape):
    strides, n = [], 1
    for dim in reversed(shape):
        strides.append(n)
        n *= dim or 1
    return tuple(reversed(strides))


def count_down(name, slot):
    """As torch does when it drops a storage, if there is such a counter."""
    with contextlib.suppress(FileNotFoundError), open("/dev/shm/" + name.decode().strip("/"), "r+b") as f:
        with mmap.mmap(f.fileno(), 0) as memory:
            at = COUNTER_HEAD + 8 * slot
            left = int.from_bytes(memory[at:at + 8], "little", signed=True) - 1
            memory[at:at + 8] = left.to_bytes(8, "little", signed=True)


def check_arguments(args, name, slots=1):
    """torch's rebuild_cuda_tensor checks little; this checks what it relies on. Returns (handle,
    offset, nbytes, shape, dtype, device)."""
    (cls, size, stride, offset, storage, dtype, device, handle, storage_nbytes, storage_offset, requires_grad, ref_name,
     ref_slot, event, event_sync) = args
    assert cls is _MODULES["torch"].Tensor and storage is _MODULES["torch.storage"].TypedStorage, (name, args)
    assert tuple(stride) == _contiguous(size), (name, size, stride)
    assert isinstance(handle, bytes) and len(handle) == 64 and isinstance(ref_name, bytes) and ref_name.startswith(b"/torch_"), args
    assert requires_grad is False and event_sync is False and isinstance(event, bytes) and 0 <= ref_slot < slots, args
    item, numel = ITEM_NBYTES[dtype.name], 1
    for dim in size:
        numel *= dim
    assert (offset + numel) * item <= storage_nbytes, (name, args)
    return handle, storage_offset + offset * item, numel * item, tuple(size), dtype.name, device


class Tap:
    """@fake  the driver's library  @gpu  on which the engine is  @double  of fake_engine_world"""

    def __init__(self, fake, gpu, double):
        self.double, self.gpu = double, gpu
        self.loaded, self.rounds, self.fault, self.slow, self.calls = {}, 0, None, None, []
        self.skip = 0  # calls that pass before `fault`
        self.late_canary, self.resumed = False, threading.Event()  # a canary is passed on after the next resume
        self.late_s = 0  # of an SGLang: it reads so long after its answer
        self.keeps = self.blind = False  # it does not drop what it has read; it cannot see the counters
        self.storages = {}  # that its ranks have open, as torch's cache has them: {(rank, handle, offset): counter}
        self.kept = {}  # what it never drops, and has read there: {storage: ({name: place}, {name: data})}
        self.says = {}  # members of its /server_info
        self.late, self.late_errors = [], []  # threads that read; what was wrong then
        self.checks = False  # its checker answers from here, of what was loaded
        self.tear = self.torn = frozenset()  # which parameters the next load makes wrong, and the last one made so
        self.packed = False  # as the engine was told when its transfer was set up
        self.reader = Trainer(fake)
        self.uuid = self.reader.uuid(gpu)
        tap = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                tap.relay(self)

            do_POST = do_DELETE = do_GET

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def settle(self):
        """Waits until all is read."""
        while self.late:
            self.late.pop().join()
        assert not self.late_errors, self.late_errors

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.reader.close()

    def relay(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        path = handler.path.partition("?")[0]
        self.calls.append((time.monotonic(), handler.command, path))
        fault = self.fault
        if fault is not None and fault[0] == path and self.skip > 0:
            self.skip -= 1
        elif fault is not None and fault[0] == path:
            if fault[1] == "late":  # executed, and the answer is lost
                self.load_buckets(json.loads(body)["serialized_named_tensors"])
            if fault[1] in ("drop", "late"):
                handler.close_connection = True
                return
            self.answer(handler, fault[1], [], b'{"error": "ordered by the test"}')
            return
        if self.slow is not None and self.slow[0] == path:
            time.sleep(self.slow[1])
        if self.late_canary and (b'"prompt_logprobs"' in body or b'"logprob_start_len"' in body):
            self.resumed.clear()
            self.resumed.wait(CANARY_S)
        if self.checks and path in CHECKER.values():
            self.answer(handler, 200, [], json.dumps(self.checked()).encode())
            return
        reply = self.forward(handler, path, body)
        if path in ("/resume", "/continue_generation"):
            self.resumed.set()
        if reply is None:
            handler.close_connection = True
        else:
            self.answer(handler, *reply)

    def forward(self, handler, path, body):
        """(status, headers, text) of the double; None: it is down."""
        if path == "/init_weight_transfer_engine":
            self.packed = json.loads(body)["init_info"].get("packed", False)
        if handler.command == "POST" and (b'"ipc_handles_pickled"' in body or b'"serialized_named_tensors"' in body):
            body_sent = json.loads(body)
            if body_sent.get("load_format") == "flattened_bucket":
                self.load_buckets(body_sent["serialized_named_tensors"])
            else:
                wrong = self.load(body_sent)
                if wrong is not None:
                    return 500, [], json.dumps({"error": wrong}).encode()
        c = http.client.HTTPConnection("127.0.0.1", self.double.port, timeout=120)
        try:
            c.request(handler.command, handler.path, body or None,
                      {n: v for n, v in handler.headers.items() if n.lower() not in HOP})
            reply = c.getresponse()
            text = reply.read()
            if path == "/server_info" and reply.status == 200:
                text = json.dumps({**json.loads(text), **self.says}).encode()
            return reply.status, reply.getheaders(), text
        except (OSError, http.client.HTTPException):
            return None
        finally:
            c.close()

    @staticmethod
    def answer(handler, status, headers, text):
        handler.send_response(status)
        for name, value in headers:
            if name.lower() not in HOP | {"date", "server"}:
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def checked(self):
        """Checksums as the engine's checker makes them, of parameters as it holds them: some are fused, one is padded."""
        sums = {name: hashlib.sha256(name.encode()).hexdigest() if name in self.torn or "embed_tokens" in name else sha
                for name, (_, _, sha) in self.loaded.items() if not any(part in name for part in FUSED)}
        sums["model.layers.0.self_attn.qkv_proj.weight"] = hashlib.sha256(b"fused").hexdigest()
        if self.double.dialect == "vllm":
            return {"checksums": {f"dp0:pp0:pcp0:tp0:{name}": sha for name, sha in sums.items()}}
        place = {"role": "target", "tp_rank": 0, "tp_size": 1, "dp_rank": 0, "dp_size": 1, "pp_rank": 0, "pp_size": 1, "rank": 0, "size": 1}
        return {"success": True, "message": "Success.", "per_engine_checksum": "00",
                "ranks": [{"checksums": {name: sha[:16] for name, sha in sums.items()}, "per_gpu_checksum": "00", "parallelism_info": [place]}]}

    def load(self, body):
        """What a loader sees: {name: (dtype, shape, sha256)}. Returns what is wrong, or None."""
        try:
            self.loaded.update(self.named(body))
            self.torn, self.tear = self.tear, frozenset()
            self.rounds += 1
        except Exception as e:  # for the reply
            return f"{type(e).__name__}: {e}"
        return None

    def named(self, body):
        info = body.get("update_info", body)
        if "ipc_handles_pickled" in info:
            handles = unpickled(info["ipc_handles_pickled"])
            if info.get("packed", self.packed):
                return self.read(self.unpacked(info, handles[self.uuid]))
            assert len(handles) == len(info["names"]) == len(info["shapes"]) == len(info["dtype_names"])
            found = {}
            for name, dtype, shape, by_gpu in zip(info["names"], info["dtype_names"], info["shapes"], handles):
                place = check_arguments(by_gpu[self.uuid], name)
                assert place[3:5] == (tuple(shape), dtype), (name, place, shape, dtype)
                found[name] = place
        else:
            texts = info["serialized_named_tensors"]
            assert info.get("load_format") is None and len(set(texts)) == 1, info.keys()
            found = {name: check_arguments(args, name) for name, args in unpickled(texts[0])}
        return self.read(found)

    def load_buckets(self, texts):
        """As SGLang: its answer says only that each rank has queued its copies. Each reads its bucket later, one rank
        after the other, then drops it."""
        self.rounds += 1
        assert len(set(texts)) == len(texts), "each rank has a counter of its own"
        thread = threading.Thread(target=self.read_buckets, args=(texts,))
        self.late.append(thread)
        thread.start()

    def read_buckets(self, texts):
        for rank, text in enumerate(texts):
            time.sleep(self.late_s)
            try:
                bucket = unpickled(text)
                args = bucket["flattened_tensor"]
                key, counter = (rank, args[7], args[9]), args[11:13]
                if key in self.storages:  # rebuild_cuda_tensor: the storage is there, and the new counter is not needed
                    self.count_down(counter)
                else:
                    self.storages[key] = counter
                places = self.parts(bucket, args)
                read = self.read(places)
                assert all(self.loaded.get(name, data) == data for name, data in read.items()) or rank == 0, "ranks differ"
                self.loaded.update(read)
                if self.keeps:
                    self.kept.setdefault(key, (places, read))
                elif key not in self.kept:
                    self.count_down(self.storages.pop(key))
            except Exception as e:  # for the test
                self.late_errors.append(f"{type(e).__name__}: {e}")

    def count_down(self, counter):
        if not self.blind:
            count_down(*counter)

    def kept_is_whole(self):
        """What it keeps has the bytes that it was sent."""
        return bool(self.kept) and all(self.read(places) == read for places, read in self.kept.values())

    def drop(self):
        """It drops what it kept; a process that ends takes its storages with it, and counts nothing down."""
        for counter in self.storages.values():
            self.count_down(counter)
        self.ended()

    def ended(self):
        self.keeps, self.kept, self.storages = False, {}, {}

    @staticmethod
    def parts(bucket, args):
        """As SGLang cuts it (weight_sync/tensor_bucket.py): by bytes, as views, which must be aligned for their dtype."""
        handle, start, nbytes, _, dtype, device = check_arguments(args, "bucket", COUNTER_SLOTS)
        assert dtype == "uint8" and set(bucket) == {"flattened_tensor", "metadata"}, bucket
        found = {}
        for m in bucket["metadata"]:
            assert set(vars(m)) == {"name", "shape", "dtype", "start_idx", "end_idx", "numel"}, vars(m)
            item = ITEM_NBYTES[m.dtype.name]
            assert m.numel == m.end_idx - m.start_idx == math.prod(m.shape) * item and m.start_idx % item == 0 <= m.end_idx <= nbytes, vars(m)
            found[m.name] = (handle, start + m.start_idx, m.numel, tuple(m.shape), m.dtype.name, device)
        return found

    @staticmethod
    def unpacked(info, args):
        """As vLLM cuts one tensor of bytes: it views each part, which must be aligned for its dtype."""
        handle, start, nbytes, _, dtype, device = check_arguments(args, "packed")
        assert dtype == "uint8" and sum(info["tensor_sizes"]) <= nbytes, (nbytes, info["tensor_sizes"])
        found, at = {}, 0
        for name, dtype, shape, size in zip(info["names"], info["dtype_names"], info["shapes"], info["tensor_sizes"], strict=True):
            assert shape and at % ITEM_NBYTES[dtype] == 0 and math.prod(shape) * ITEM_NBYTES[dtype] == size, (name, at, shape, size)
            found[name] = (handle, start + at, size, tuple(shape), dtype, device)
            at += size
        return found

    def read(self, found):
        by_handle = {}
        for name, (handle, offset, nbytes, shape, dtype, _) in found.items():
            by_handle.setdefault(handle, []).append((name, offset, nbytes, shape, dtype))
        read = {}
        for handle, tensors in by_handle.items():
            pieces = self.reader.read_foreign(self.gpu, handle, [(t[1], t[2]) for t in tensors])
            for (name, _, _, shape, dtype), data in zip(tensors, pieces):
                read[name] = (dtype, shape, hashlib.sha256(data).hexdigest())
        return read

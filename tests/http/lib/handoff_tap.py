"""Between a server and a double: passes every request on, and maps what it hands over by CUDA IPC as an
engine's torch would, from the pickle itself, so that a test can compare the bytes.

What is unpickled is what Python's own pickle makes of it, with stand-ins under torch's names."""

import base64
import hashlib
import http.client
import http.server
import io
import json
import math
import pickle
import threading
import time

from ipc_trainer import _MODULES, Trainer

ITEM_NBYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1, "float8_e4m3fn": 1}
CANARY_S = 10
HOP = {"connection", "content-length", "transfer-encoding", "host"}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
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


def check_arguments(args, name):
    """torch's rebuild_cuda_tensor checks little; this checks what it relies on. Returns (handle,
    offset, nbytes, shape, dtype, device)."""
    (cls, size, stride, offset, storage, dtype, device, handle, storage_nbytes, storage_offset, requires_grad, ref_name,
     ref_slot, event, event_sync) = args
    assert cls is _MODULES["torch"].Tensor and storage is _MODULES["torch.storage"].TypedStorage, (name, args)
    assert tuple(stride) == _contiguous(size), (name, size, stride)
    assert isinstance(handle, bytes) and len(handle) == 64 and isinstance(ref_name, bytes) and ref_name.startswith(b"/torch_"), args
    assert requires_grad is False and event_sync is False and isinstance(event, bytes) and ref_slot == 0, args
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
            if fault[1] == "drop":
                handler.close_connection = True
                return
            self.answer(handler, fault[1], [], b'{"error": "ordered by the test"}')
            return
        if self.slow is not None and self.slow[0] == path:
            time.sleep(self.slow[1])
        if self.late_canary and (b'"prompt_logprobs"' in body or b'"logprob_start_len"' in body):
            self.resumed.clear()
            self.resumed.wait(CANARY_S)
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
            wrong = self.load(json.loads(body))
            if wrong is not None:
                return 500, [], json.dumps({"error": wrong}).encode()
        c = http.client.HTTPConnection("127.0.0.1", self.double.port, timeout=120)
        try:
            c.request(handler.command, handler.path, body or None,
                      {n: v for n, v in handler.headers.items() if n.lower() not in HOP})
            reply = c.getresponse()
            return reply.status, reply.getheaders(), reply.read()
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

    def load(self, body):
        """What a loader sees: {name: (dtype, shape, sha256)}. Returns what is wrong, or None."""
        try:
            self.loaded.update(self.named(body))
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

"""vLLM's own trainer of sparse patches where vLLM is not installed: the few files of its package that it
consists of, unmodified, out of a wheel. What they import of the rest of vLLM has a stand-in here."""

import base64
import contextlib
import importlib.util
import json
import logging
import os
import sys
import types
import urllib.error
import urllib.request
import zipfile

TRANSFER = "vllm/distributed/weight_transfer"
DEVICES = "vllm/distributed/device_communicators"
FILES = (
    *(f"{TRANSFER}/{f}.py" for f in ("base", "clients", "nccl_common", "packed_tensor", "sparse_nccl_engine")),
    *(f"{DEVICES}/{f}.py" for f in ("pynccl", "pynccl_wrapper")),
    "vllm/distributed/utils.py",
    "vllm/model_executor/model_loader/checkpoint_weight_patch.py",
    "vllm/utils/nccl.py",
)


def unpack(wheel, folder):
    """No package gets its __init__.py, which would import all of vLLM."""
    with zipfile.ZipFile(wheel) as z:
        z.extractall(folder, FILES)


def _put(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    return module


def _logger(name):
    log = logging.getLogger(name)
    for level in ("debug", "info", "warning"):
        setattr(log, f"{level}_once", getattr(log, level))
    return log


class _Answer:
    def __init__(self, status, text):
        self.status_code, self.text = status, text

    def raise_for_status(self):
        if self.status_code >= 400:
            e = RuntimeError(f"{self.status_code}: {self.text}")
            e.response = self
            raise e


def _post(url, json=None, timeout=None, _dumps=json.dumps):
    """Of requests, which is not everywhere."""
    data = None if json is None else _dumps(json).encode()
    ask = urllib.request.Request(url, data or b"", {"Content-Type": "application/json"} if data else {})
    try:
        with urllib.request.urlopen(ask, timeout=timeout) as answer:
            return _Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as e:
        return _Answer(e.code, e.read().decode())


def use(folder):
    """@folder  of `unpack`. Before the first import of vLLM; after torch's."""
    import torch

    sys.path.insert(0, folder)
    envs = _put("vllm.envs", VLLM_NCCL_SO_PATH=os.environ.get("VLLM_NCCL_SO_PATH"))
    envs.__getattr__ = lambda name: None
    _put("vllm.logger", init_logger=_logger)
    _put("vllm.platforms", current_platform=types.SimpleNamespace(
        is_rocm=lambda: False, fp8_dtype=lambda: torch.float8_e4m3fn))
    _put("vllm.config", VllmConfig=object)
    _put("vllm.config.parallel", ParallelConfig=object)
    _put("vllm.config.weight_transfer", WeightTransferConfig=object)
    _put("vllm.utils.torch_utils", current_stream=lambda: torch.cuda.current_stream())
    _put("vllm.utils.network_utils", get_tcp_uri=lambda ip, port: f"tcp://{ip}:{port}")
    _put("vllm.utils.system_utils", suppress_stdout=contextlib.nullcontext)
    import vllm

    vllm.envs = envs  # a submodule that was not imported as one
    if importlib.util.find_spec("pybase64") is None:
        sys.modules["pybase64"] = base64
    if importlib.util.find_spec("requests") is None:
        _put("requests", post=_post)

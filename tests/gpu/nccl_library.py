"""Which NCCL torch uses here, and which others there are."""

import contextlib
import ctypes.util
import importlib.util
import os
import re
import shutil
import subprocess
import sys

PATIENCE_S = 60


def mapped_nccl():
    """The file of the NCCL that this process has loaded, as torch loads its own; or None."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        for line in f:
            path = line.rstrip("\n").partition("/")
            if path[1] and re.match(r"libnccl\.so", os.path.basename(path[2])):
                return "/" + path[2]
    return None


def packaged_nccl():
    """That of the wheel nvidia-nccl-cuNN; or None."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            path = os.path.join(folder, "lib", "libnccl.so.2")
            if os.path.exists(path):
                return path
    return None


def torch_nccl():
    import torch

    torch.cuda.nccl.version()
    path = mapped_nccl() or packaged_nccl() or ctypes.util.find_library("nccl")
    if path is None:
        raise AssertionError("which NCCL torch uses cannot be seen")
    return path


def version_of(path):
    """2.28.9, by a process of its own: a second NCCL in this one would confuse the first."""
    code = (
        "import ctypes, sys; v = ctypes.c_int(); l = ctypes.CDLL(sys.argv[1]); "
        "assert l.ncclGetVersion(ctypes.byref(v)) == 0; print(v.value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=PATIENCE_S
    )
    if done.returncode != 0:
        return None
    value = int(done.stdout)
    return f"{value // 10000}.{value % 10000 // 100}.{value % 100}"


def other_nccl(version):
    """(path, version) of a library that the loader finds, of another version; or None."""
    program = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        said = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=PATIENCE_S)
    except FileNotFoundError:
        return None
    for path in re.findall(r"libnccl\.so\.2 .*=> (\S+)", said.stdout):
        found = version_of(path)
        if found is not None and found != version:
            return path, found
    return None

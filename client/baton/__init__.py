"""Push weights into a running baton server. Install it (pip install ./client), or copy this
folder next to your trainer.

    import baton
    baton.wait_ready("http://127.0.0.1:8700", for_="control")
    baton.push(model.state_dict(), "http://127.0.0.1:8700", weight_version="step-100")

Needs the standard library; uses torch or numpy when the tensors are theirs. A push is one whole
update: the call returns when the server has received every byte, proven it and put it into service,
and raises BatonError, with the server's message, in every other case. A server's URL is
http://host:port, https://host:port or unix:/path; push() also takes a list of them.

Tensors on GPUs of the server's host need not leave them: push(..., via="ipc") packs them into a
buffer on their GPU, exports it once with CUDA IPC, and refills it when the server has copied it.
The other way round, on that host,

    with baton.attach("http://127.0.0.1:8700") as served:
        reference.load_state_dict(served.tensors)

sees the weights that a server with --device cuda:N serves as torch tensors, without a copy. They
are the server's own memory: read them, do not write, and not after the end of the with.

A trainer on other GPUs, of this host or another, forms an NCCL group with the servers' GPUs once,
and then broadcasts to all of them at the same time:

    with baton.join(["http://10.0.0.2:8700", "http://10.0.0.3:8700"]) as group:
        group.push(model.state_dict(), weight_version="step-100")

A server with keys (--api-key-file) is sent the one in the environment's BATON_API_KEY: a control
key. One with TLS is an https:// URL; SSL_CERT_FILE names a certificate that the system does not
know.
"""

from . import delta, reshard, types
from .attached import Attached, attach
from .connection import request
from .errors import BatonError, InputError
from .gpu import gpu_checksums
from .group import Group, join
from .ready import wait_ready
from .replay import ReplayBlock, cut_routed_experts, decode_routed_experts
from .rollouts import Rollouts, assemble_rollouts, read_rollouts, rollouts, stream_rollouts
from .tensors import DTYPES, Tensor, checksum, load_file, plan_digest
from .types import Update
from .update import push

__version__ = "0.1.0"  # that of CMakeLists.txt; a test compares

__all__ = ["BatonError", "InputError", "Tensor", "Update", "push", "join", "Group", "attach",
           "Attached", "wait_ready", "request", "load_file", "checksum", "gpu_checksums",
           "plan_digest", "decode_routed_experts", "cut_routed_experts", "ReplayBlock", "Rollouts",
           "rollouts", "stream_rollouts", "read_rollouts", "assemble_rollouts", "DTYPES", "delta", "reshard", "types",
           "__version__"]

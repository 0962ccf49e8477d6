"""What runs in the trainer's process of bench_handoff.py, on GPU 0: a random model in bfloat16, and
its updates by vLLM's own trainer code: straight to vLLM, or to baton, as fast as it goes or through
a link of so many bytes in a second."""

import time

import gpu_world as world

ANSWER_S = 300
SLEEP_MIN_S = 0.001
COPY_NBYTES = 1 << 30  # of pinned memory, for the raw copy


def be(state):
    import torch
    import vllm

    state.device = "cuda:0"
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    return vllm.__version__, torch.__version__, torch.cuda.get_device_name(0)


def make(state, specs, scale):
    """@specs  [(name, shape)]"""
    import torch

    torch.manual_seed(1)
    state.named = [
        (name, torch.randn(shape, dtype=torch.bfloat16, device=state.device).mul_(scale))
        for name, shape in specs
    ]
    _synchronize()


def change(state):
    """Every byte of it, so that the next update is another version; twice is the first again."""
    for _, tensor in state.named:
        tensor.neg_()
    _synchronize()


def _synchronize():
    import torch

    torch.cuda.synchronize()


def _post(url, path, body=None):
    """Returns the milliseconds until its answer."""
    import requests

    began = time.monotonic()
    answer = requests.post(f"{url}{path}", json=body, timeout=ANSWER_S)
    if answer.status_code != 200:
        raise RuntimeError(f"POST {path}: {answer.status_code}: {answer.text[:300]}")
    return (time.monotonic() - began) * 1e3


def _through_link(state, bytes_per_s):
    """Each tensor when such a link would have brought it."""
    began, done = time.monotonic(), 0
    for name, tensor in state.named:
        done += tensor.numel() * tensor.element_size()
        late_s = began + done / bytes_per_s - time.monotonic()
        if late_s > SLEEP_MIN_S:
            time.sleep(late_s)
        yield name, tensor


def push(state, url, members, pauses, bytes_per_s=None):
    """One update. Returns when it began and ended (time.monotonic() of this machine), and
    milliseconds: whole, and each call. @pauses  pause before it and resume after it"""
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

    tensors = iter(state.named) if bytes_per_s is None else _through_link(state, bytes_per_s)
    began, found = time.monotonic(), {}
    if pauses:
        found["/pause"] = _post(url, "/pause?mode=keep")
    found["/start_weight_update"] = _post(url, "/start_weight_update", {})
    sent = time.monotonic()
    args = {"send_mode": "http", "url": url, **members}
    IPCWeightTransferEngine.trainer_send_weights(tensors, args)
    found["/update_weights"] = (time.monotonic() - sent) * 1e3
    found["/finish_weight_update"] = _post(url, "/finish_weight_update", {})
    if pauses:
        found["/resume"] = _post(url, "/resume")
    ended = time.monotonic()
    found["whole"] = (ended - began) * 1e3
    return began, ended, found


def host_copy(state, nbytes, n):
    """Milliseconds that so many bytes take from pinned memory to the GPU; the median of n."""
    import statistics

    import torch

    piece = min(nbytes, COPY_NBYTES)
    source = torch.empty(piece, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(piece, dtype=torch.uint8, device=state.device)
    found = []
    for _ in range(n + 1):
        _synchronize()
        began = time.monotonic()
        for at in range(0, nbytes, piece):
            length = min(piece, nbytes - at)
            target[:length].copy_(source[:length], non_blocking=True)
        _synchronize()
        found.append((time.monotonic() - began) * 1e3)
    return statistics.median(found[1:])


def columns(state):
    return world.columns(state.named)

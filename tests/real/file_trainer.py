"""The trainer's side where there is no GPU, as tests/gpu/vllm_trainer.py is with one: an update
names a file (vllm_plugin/), and baton passes it on as it would a handle."""

import base64
import json
import urllib.request

import real_world
import vllm_trainer

CHUNK = 12  # tensors in each request, where buffers are small
ANSWER_S = 120


def be(_state, *_place):
    return "real, and a trainer of ours"


def load(state, step):
    """names, dtype_names and shapes of the next weights."""
    state.path = real_world.untied(step) / "model.safetensors"
    state.named = real_world.columns_of(state.path)
    return columns(state.named)


def columns(named):
    return {
        "names": [n for n, _, _ in named],
        "dtype_names": [d for _, d, _ in named],
        "shapes": [s for _, _, s in named],
    }


def update_info(named, path):
    handle = base64.b64encode(str(path).encode()).decode()
    return {**columns(named), "ipc_handles_pickled": handle}


def send_by_ipc(state, url, members, gate=None):
    chunk = []
    for item in vllm_trainer._tensors(state, gate):
        chunk.append(item)
        if "packed_buffer_size_bytes" in members and len(chunk) == CHUNK:
            _post(url, chunk, state.path)
            chunk = []
    if chunk:
        _post(url, chunk, state.path)


def _post(url, named, path):
    data = json.dumps({"update_info": update_info(named, path)}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/update_weights", data, headers)
    urllib.request.urlopen(request, timeout=ANSWER_S).read()

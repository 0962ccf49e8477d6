"""What the tests of real peers share: vLLM on the CPU, a model for it, requests whose answers are
compared, baton."""

import argparse
import contextlib
import json
import pathlib
import shutil
import struct
import sys
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(HERE)]

import gpu_world as world  # noqa: E402
import record  # noqa: E402
import vllm_engines  # noqa: E402
from dialects_world import MODEL  # noqa: E402

MODELS = ROOT / "build" / "real" / "models"
KEPT = ROOT / "build" / "real" / "adapters"
WAIT_S = 120
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
CHAT = [{"role": "user", "content": "In the beginning"}]
SAYS = ", and the LORD hath not"  # what step-00100 makes of it in six tokens
ALIVE_DTYPES = {"BF16": "bfloat16", "F32": "float32"}


def options(**more):
    """--baton PROGRAM, and --record DIR for what is recorded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--record", type=pathlib.Path, help="a folder for recordings")
    parser.add_argument("--only", default=more.pop("only", ""), help="sections, by commas")
    return parser.parse_args()


# --- a model


def _read_head(path):
    with open(path, "rb") as f:
        (nbytes,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(nbytes)), f.read()


def columns_of(path):
    """[(name, dtype, shape)]"""
    head, _ = _read_head(path)
    head.pop("__metadata__", None)
    return [(n, ALIVE_DTYPES[t["dtype"]], t["shape"]) for n, t in head.items()]


def untied(step):
    """The fixture with a template for chat and a head of its own: on a CPU vLLM packs the weights
    of a tied one, and keeps the old ones over an update."""
    folder = MODELS / step
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("generation_config.json", "tokenizer.json"):
        shutil.copy(world.MODEL / name, folder)
    config = json.loads((world.MODEL / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    head, data = _read_head(world.MODEL / "checkpoints" / f"{step}.safetensors")
    head.pop("__metadata__", None)
    begin, end = head["model.embed_tokens.weight"]["data_offsets"]
    offsets = [len(data), len(data) + end - begin]
    head["lm_head.weight"] = {**head["model.embed_tokens.weight"], "data_offsets": offsets}
    text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    text += b" " * (-len(text) % 8)
    part = folder / "model.safetensors.part"
    part.write_bytes(struct.pack("<Q", len(text)) + text + data + data[begin:end])
    part.rename(folder / "model.safetensors")
    return folder


# --- servers


class CpuEngine(vllm_engines.Engine):
    START_S = 400
    OPTIONS = (
        *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager", "--block-size", "32"),
        *("--enable-lora", "--max-lora-rank", "16", "--enable-prompt-tokens-details"),
        "--enable-scale-out",
    )
    ENVIRONMENT = {
        **vllm_engines.Engine.ENVIRONMENT,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "PYTHONPATH": str(HERE / "vllm_plugin"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two engines and this test share the processors
        "OMP_NUM_THREADS": "1",
    }

    def model(self, step):
        return untied(step)


def embedded(args, *more, step="step-00100"):
    """baton with its own engine, serving a checkpoint."""
    model = ("--model", untied(step), "--served-model-name", MODEL, "--weight-version", step)
    allowed = ("--allow-path", world.MODEL, "--allow-path", MODELS)
    return world.Server(args.baton, *model, *allowed, *more)


def with_experts(args, *more):
    """baton, serving a model with experts; and its goldens."""
    model = world.MODEL.parent / "tiny-qwen3-moe"
    cases = json.loads((model / "golden.json").read_text())["cases"]
    return world.Server(args.baton, "--model", model, "--served-model-name", MODEL, *more), cases


def routes_of_all_layers(case):
    """[tokens of prompt and output - 1, layers, experts of a token]; layer 0 has no experts."""
    return [[[0, 0], *row] for row in case["routed_experts"]]


def in_front(args, *upstreams, options=(), prove="checksums"):
    """@upstreams  URL,DIALECT. @prove  under load "none": with --enable-lora a vLLM on a CPU ends by a
    canary beside other prompts"""
    given = [o for u in upstreams for o in ("--upstream", u)]
    known = ("--model", untied("step-00100"), "--prove", prove)
    kept = ("--adapter-dir", KEPT)
    return world.Server(args.baton, *given, *known, *kept, "--probe-interval", "500", *options)


def await_proofs(server, *states):
    """What the server's canaries show of each upstream."""

    def proofs():
        found = [u["proof"] for u in server.get("/v1/upstreams")["list"]]
        return found if [p and p["state"] for p in found] == list(states) else None

    return world.until(proofs, f"the proofs are {states}", 60)


def not_finite(step, folder):
    """A file of its tensors, with NaN in a norm."""
    head, data = _read_head(untied(step) / "model.safetensors")
    begin, end = head["model.layers.0.input_layernorm.weight"]["data_offsets"]
    data = data[:begin] + b"\xc0\x7f" * ((end - begin) // 2) + data[end:]
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@contextlib.contextmanager
def recorded(args, server, name, masks=()):
    """The URL of a server; with --record, of a proxy before it that writes NAME.jsonl."""
    if args.record is None:
        yield server.url
        return
    args.record.mkdir(parents=True, exist_ok=True)
    adapters = (str(world.MODEL / "adapters"), "${adapters}")
    known = [(str(MODELS), "${models}"), adapters, (str(ROOT), "${root}"), (server.url, "${url}")]
    masks = [*masks, *known]
    recorder = record.Recorder(args.record / f"{name}.jsonl", masks)
    with record.Proxy(server.url, recorder) as proxy:
        yield proxy.url


# --- asking


class Reply:
    def __init__(self, status, kind, raw):
        self.status, self.kind, self.raw = status, kind, raw
        try:
            self.body = json.loads(raw)
        except ValueError:
            self.body = None

    def shape(self):
        return record.answer_shape(self.kind, self.raw)

    def events(self):
        lines = self.raw.decode().splitlines()
        return [line[6:] for line in lines if line.startswith("data: ")]

    def __str__(self):
        return f"{self.status} {self.raw[:300]!r}"


def ask(url, method, path, body=None, wait_s=WAIT_S, more=()):
    """@more  headers"""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if body is not None else {}
    request = urllib.request.Request(url + path, data, {**headers, **dict(more)}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=wait_s) as f:
            return Reply(f.status, f.headers.get_content_type(), f.read())
    except urllib.error.HTTPError as e:
        return Reply(e.code, e.headers.get_content_type(), e.read())


def paths_of(shape, at=""):
    """Each member of a shape, as choices[].text; [] is an element, {} a member by token id."""
    if isinstance(shape, dict):
        for key, inner in shape.items():
            name = key.rstrip("?")
            here = f"{at}{{}}" if name.isdigit() else f"{at}.{name}".lstrip(".")
            yield here
            yield from paths_of(inner, here)
    elif isinstance(shape, list):
        for inner in shape:
            yield from paths_of(inner, at + "[]")


def leaves(value, at=""):
    """(path, value) of all that is no structure."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{at}.{key}".lstrip("."))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{at}[{i}]")
    else:
        yield at, value



"""How long an engine stands still for an update: vLLM's own by CUDA IPC, with the tensors ready on
its GPU, against the same pushed to baton, which receives it and hands it over (--stage). One real
vLLM 0.20 to 0.27 on GPU 0, a random model of 12.4 GB in bfloat16, and vLLM's own trainer code.

Usage: bench_handoff.py --baton BATON [--quick] [--only PART[,PART...]] [--rounds N] [--limit S]
                        [--out FILE.json] [--logs DIR]
Parts: packed (vLLM alone), handoff (vLLM alone, the reference, and hand-offs, in turn), calls (both
again, through a proxy that notes each call of the engine), slow (a link of 1 GB/s, handed over and
passed through), host (--stage host).

Stand-still is from the sending of the pause to the answer of the resume; for a hand-off it is the
server's `last_handoff_s`, which is a little more. The gap is the longest between two tokens of a
streamed request, as its client sees it. After a hand-off the engine must generate what it does after
its own update of the same weights. Ends with 0, or 1 if it does not or a part failed, or 77 without
torch, vLLM or a GPU."""

import argparse
import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
import gpu_world as world  # noqa: E402
import handoff_trainer  # noqa: E402
import nccl_world as nccl  # noqa: E402
import test_nccl_torch  # noqa: E402
import vllm_engines as engines  # noqa: E402
from dialects_world import say  # noqa: E402
from http_tap import Tap  # noqa: E402

MODEL = "random"
SCALE = 0.02  # of the weights
LINK = 1e9  # bytes in a second, of the slow one
BUCKET = 256 << 20  # of what goes over it
WAYS = {"each tensor": {"packed": False}, "packed": {"packed": True}}
WAY = "each tensor"  # baton hands over in this form
PROMPT = list(range(100, 164))
N_TOKENS = 32  # that are compared
N_STREAM = 1500  # of the request that is streamed; another follows it
REST_S = 0.3  # between two updates
SETTLE_S = 0.2  # after an update, in which its gap may end
WINDOW = "1GiB"
N_TURNS = 4  # of both kinds of updates: vLLM's own time drifts within a minute
NEEDS_S = {"packed": 25, "handoff": 50, "calls": 25, "slow": 60, "host": 60}  # to be begun


class Setting:
    """Sizes of a run."""

    def __init__(self, args):
        quick = args.quick
        self.layers, self.hidden, self.inner = (4, 1024, 2816) if quick else (28, 4096, 13824)
        self.vocab, self.heads, self.kv_heads, self.head_dim = 32000, 32, 8, 128
        self.n_warm, self.n = (1, 3) if quick else (2, 8)
        self.n = args.rounds or self.n
        self.n_calls, self.n_slow = (2, 1) if quick else (4, 2)

    def specs(self):
        """[(name, shape)] of a Qwen3: 11 tensors for each layer, and 3."""
        hidden, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        out = [("model.embed_tokens.weight", (self.vocab, hidden))]
        for i in range(self.layers):
            at = f"model.layers.{i}."
            out += [
                (f"{at}self_attn.q_proj.weight", (q, hidden)),
                (f"{at}self_attn.k_proj.weight", (kv, hidden)),
                (f"{at}self_attn.v_proj.weight", (kv, hidden)),
                (f"{at}self_attn.o_proj.weight", (hidden, q)),
                (f"{at}self_attn.q_norm.weight", (self.head_dim,)),
                (f"{at}self_attn.k_norm.weight", (self.head_dim,)),
                (f"{at}mlp.gate_proj.weight", (self.inner, hidden)),
                (f"{at}mlp.up_proj.weight", (self.inner, hidden)),
                (f"{at}mlp.down_proj.weight", (hidden, self.inner)),
                (f"{at}input_layernorm.weight", (hidden,)),
                (f"{at}post_attention_layernorm.weight", (hidden,)),
            ]
        return out + [("model.norm.weight", (hidden,)), ("lm_head.weight", (self.vocab, hidden))]

    def config(self):
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "max_position_embeddings": 4096,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }

    def nbytes(self):
        def numel(shape):
            return shape[0] * (shape[1] if len(shape) > 1 else 1)

        return sum(2 * numel(shape) for _, shape in self.specs())


class Engine(engines.Engine):
    """vLLM with weights of its own making, until the first update."""

    SERVED = MODEL
    OPTIONS = (
        *("--dtype", "bfloat16", "--load-format", "dummy", "--skip-tokenizer-init"),
        *("--max-model-len", "2048", "--enforce-eager", "--attention-backend", "TRITON_ATTN"),
        *("--gpu-memory-utilization", "0.3", "--kv-cache-memory-bytes", str(1 << 30)),
    )

    def model(self, _step):
        return self.folder / "model"


class Trainer(nccl.Trainer):
    def __init__(self, module):
        world.Worker.__init__(self)
        self.tell(module.be)

    def hear(self, patience_s=300):
        return super().hear(patience_s)


class Stream:
    """One request after another, whose tokens' times are noted; a context manager."""

    def __init__(self, url):
        self.url, self.gaps, self.stop, self.error = url, [], threading.Event(), ""
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stop.is_set() and not self.error:
            try:
                self._one()
            except (OSError, ValueError, http.client.HTTPException) as e:
                self.error = f"{type(e).__name__}: {e}"

    def _one(self):
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": N_STREAM, "temperature": 0.0}
        body.update(stream=True, ignore_eos=True, return_token_ids=True)
        data, last = json.dumps(body).encode(), time.monotonic()  # it may wait for its first token
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if self.stop.is_set():
                    return
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    self.gaps.append((last, now))
                    last = now

    def __enter__(self):
        self.thread.start()
        world.until(lambda: len(self.gaps) > 5 or self.error, "tokens are streamed", 60)
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(60)

    def longest(self, began, ended):
        """The longest gap, in ms, of those that touch this time."""
        touching = [b - a for a, b in list(self.gaps) if b >= began and a <= ended + SETTLE_S]
        return max(touching, default=float("nan")) * 1e3

    def usual(self):
        return statistics.median(b - a for a, b in self.gaps) * 1e3 if self.gaps else float("nan")


class Bench:
    def __init__(self, checks, args, folder):
        self.checks, self.args, self.folder, self.setting = checks, args, folder, Setting(args)
        self.rows, self.calls, self.tokens, self.parity = {}, {}, {}, 0
        self.engine = args.engine("vllm", folder, "ipc", 0)
        self.trainer = Trainer(args.trainer)

    def start(self):
        model = self.folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(self.setting.config()))
        self.engine.start(None)
        self.versions = self.trainer.hear()
        engines.await_ready([self.engine])
        self.trainer.ask(self.args.trainer.make, self.setting.specs(), SCALE)
        columns = self.trainer.ask(self.args.trainer.columns)
        rows = zip(columns["names"], columns["dtype_names"], columns["shapes"])
        self.manifest = world.write_manifest(self.folder, list(rows))
        say(self.engine, "/init_weight_transfer_engine", {"init_info": {}})

    def stop(self):
        self.trainer.kill()
        self.engine.kill()

    def left_s(self):
        return self.args.deadline - time.monotonic()

    @contextlib.contextmanager
    def front(self, url, *more):
        options = ["--upstream", f"{url},vllm", "--probe-interval", "500", *more]
        with world.Server(self.args.baton, *options) as server:
            nccl.SERVERS.append(server.child)  # a watchdog that bites ends it too
            serving = lambda: server.get("/v1/upstreams")["n_serving"] == 1  # noqa: E731
            world.until(serving, "the engine serves behind baton", 60)
            yield server

    def stage(self, url, where="cuda:0", *more):
        if self.args.cuda_library:
            more += ("--cuda-library", self.args.cuda_library)
        return self.front(url, "--stage", where, "--manifest", self.manifest, *more)

    def note(self, name, ms):
        self.rows.setdefault(name, []).append(ms)

    def median(self, name):
        return statistics.median(self.rows[name]) if self.rows.get(name) else float("nan")

    def push(self, url, members, pauses, bytes_per_s=None):
        self.trainer.ask(self.args.trainer.change)
        self.parity = 1 - self.parity
        time.sleep(REST_S)
        return self.trainer.ask(self.args.trainer.push, url, members, pauses, bytes_per_s)

    def same_tokens(self, what):
        """The engine's, straight, against those that its own update of these weights led to."""
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": N_TOKENS, "temperature": 0.0}
        body.update(ignore_eos=True, return_token_ids=True)
        ids = say(self.engine, "/v1/completions", body)["choices"][0]["token_ids"]
        expected = self.tokens.setdefault(self.parity, ids)
        self.checks.that(ids == expected, f"{what}: the tokens of these weights", ids[:6])

    def each_version(self, push, what):
        """Both, and their tokens."""
        for _ in range(2):
            push()
            self.same_tokens(what)


# --- parts


def own(bench, way, n):
    """Updates of vLLM alone."""
    url, members = bench.engine.url, WAYS[way]
    for _ in range(bench.setting.n_warm):
        bench.push(url, members, True)
    with Stream(url) as stream:
        for _ in range(n):
            began, ended, ms = bench.push(url, members, True)
            time.sleep(SETTLE_S)
            bench.note(f"own, {way}: stand-still", ms["whole"])
            bench.note(f"own, {way}: gap", stream.longest(began, ended))
        bench.note(f"own, {way}: gap without an update", stream.usual())
    bench.checks.same(stream.error, "", f"own, {way}: the stream goes on")


def packed(bench):
    own(bench, "packed", bench.setting.n)


def handed(bench, server, title, n, bytes_per_s=None, members=None):
    members = members or WAYS[WAY]
    for _ in range(bench.setting.n_warm if bytes_per_s is None else 0):
        bench.push(server.url, members, False)
    with Stream(server.url) as stream:
        for _ in range(n):
            began, ended, ms = bench.push(server.url, members, False, bytes_per_s)
            time.sleep(SETTLE_S)
            handoff_ms = server.status()["stage"]["last_handoff_s"] * 1e3
            bench.note(f"{title}: stand-still", handoff_ms)
            bench.note(f"{title}: gap", stream.longest(began, ended))
            bench.note(f"{title}: the trainer's push", ms["whole"])
            bench.note(f"{title}: of it before the hand-off", ms["whole"] - handoff_ms)
    bench.checks.same(stream.error, "", f"{title}: the stream goes on")


def handoff(bench):
    """The engine's own updates and hand-offs in turn."""
    n = max(1, bench.setting.n // N_TURNS)
    for turn in range(N_TURNS):
        own(bench, WAY, n)
        if turn == 0:
            bench.each_version(lambda: bench.push(bench.engine.url, WAYS[WAY], True), "own")
            bench.checks.that(bench.tokens[0] != bench.tokens[1], "two versions have other tokens")
        with bench.stage(bench.engine.url) as server:
            say(server, "/init_weight_transfer_engine", {"init_info": {}})
            handed(bench, server, "hand-off", n)
            if turn == 0:
                push = lambda: bench.push(server.url, WAYS[WAY], False)  # noqa: B023, E731
                bench.each_version(push, "hand-off")


def while_paused(tap, title):
    """The calls of an update as they came to the engine, from the pause to the resume; and how long
    they took together, in ms."""
    calls = [c for c in tap.calls if c.method == "POST" and "completions" not in c.path]
    begins = [i for i, c in enumerate(calls) if c.path == "/pause"]
    ends = [i for i, c in enumerate(calls) if c.path == "/resume"]
    if not begins or not ends:
        raise AssertionError(f"{title}: no pause or no resume in {[c.path for c in calls]}")
    paused = calls[begins[0] : ends[-1] + 1]
    return paused, took_ms(paused)


def took_ms(calls):
    return (calls[-1].began + calls[-1].took_s - calls[0].began) * 1e3


def noted(bench, tap, title, push):
    for i in range(bench.setting.n_calls + 1):
        tap.calls.clear()
        push()
        paused, ms = while_paused(tap, title)
        if i > 0:  # the first warms up
            bench.calls.setdefault(title, []).append(paused)
            bench.note(f"{title}, through a proxy: stand-still", ms)


def calls(bench):
    with Tap(bench.engine.url) as tap:
        noted(bench, tap, "own", lambda: bench.push(tap.url, WAYS[WAY], True))
        with bench.stage(tap.url) as server:
            say(server, "/init_weight_transfer_engine", {"init_info": {}})
            noted(bench, tap, "hand-off", lambda: bench.push(server.url, WAYS[WAY], False))


def slow(bench):
    members = {"packed": True, "packed_buffer_size_bytes": BUCKET}
    with bench.stage(bench.engine.url) as server:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        handed(bench, server, "slow link, hand-off", bench.setting.n_slow, bench.link, members)
    with bench.front(bench.engine.url) as server, Stream(server.url) as stream:
        say(server, "/init_weight_transfer_engine", {"init_info": {}})
        began, ended, ms = bench.push(server.url, members, True, bench.link)
        time.sleep(SETTLE_S)
        bench.note("slow link, passed through: stand-still", ms["whole"])
        bench.note("slow link, passed through: gap", stream.longest(began, ended))
    bench.checks.same(stream.error, "", "slow link, passed through: the stream goes on")
    bench.same_tokens("slow link, passed through")


def host(bench):
    """The version waits in pinned host memory, and goes to the engine through windows."""
    nbytes = bench.setting.nbytes()
    bench.note("host: raw copy", bench.trainer.ask(bench.args.trainer.host_copy, nbytes, 5))
    with Tap(bench.engine.url) as tap:
        with bench.stage(tap.url, "host", "--stage-window", WINDOW) as server:
            say(server, "/init_weight_transfer_engine", {"init_info": {}})
            for i in range(bench.setting.n_calls + 1):
                tap.calls.clear()
                _, _, ms = bench.push(server.url, WAYS[WAY], False)
                if i > 0:
                    note_host(bench, tap, server, ms)
        sent = [c for c in tap.calls if c.path == "/update_weights"]
        bench.checks.that(sent, "host: requests with tensors for one hand-off", len(sent))
    bench.same_tokens("host")


def note_host(bench, tap, server, ms):
    """The first windows are filled before the pause: that is in the hand-off, not in the rest."""
    paused, paused_ms = while_paused(tap, "host")
    handoff_ms = server.status()["stage"]["last_handoff_s"] * 1e3
    bench.note("host: streaming", took_ms([c for c in paused if c.path == "/update_weights"]))
    bench.note("host: stand-still", paused_ms)
    bench.note("host: hand-off", handoff_ms)
    bench.note("host: the trainer's push", ms["whole"])


PARTS = {"packed": packed, "handoff": handoff, "calls": calls, "slow": slow, "host": host}


# --- the report


def ratio(bench, name, to):
    found = bench.median(name) / bench.median(to) if bench.rows.get(to) else float("nan")
    return f"{found:5.2f} of {to}"


def told(bench):
    own_ms, own_gap = f"own, {WAY}: stand-still", f"own, {WAY}: gap"
    to = {
        "own, packed: stand-still": own_ms,
        "hand-off: stand-still": own_ms,
        "hand-off: gap": own_gap,
        "hand-off: the trainer's push": own_ms,
        "hand-off: of it before the hand-off": own_ms,
        "hand-off, through a proxy: stand-still": "own, through a proxy: stand-still",
        "slow link, hand-off: stand-still": own_ms,
        "slow link, hand-off: gap": own_gap,
        "slow link, passed through: stand-still": own_ms,
        "slow link, passed through: gap": own_gap,
        "host: streaming": "host: raw copy",
        "host: hand-off": "host: raw copy",
        "host: stand-still": "own, through a proxy: stand-still",
    }
    print(f"\n{'milliseconds':46} {'median':>8} {'least':>8} {'most':>8} {'n':>3}")
    for name, found in bench.rows.items():
        what = ratio(bench, name, to[name]) if name in to else ""
        row = f"{bench.median(name):8.1f} {min(found):8.1f} {max(found):8.1f} {len(found):3}"
        print(f"{name:46} {row}  {what}")
    told_calls(bench)


def told_calls(bench):
    """Where the time goes between the pause and the resume: the medians of each call."""
    for title, updates in bench.calls.items():
        print(f"\n{title}: calls at the engine, of which began ms after the pause, and took ms")
        for call in updates[-1]:
            same = [(c, u[0]) for u in updates for c in u if c.path == call.path]
            after = statistics.median((c.began - pause.began) * 1e3 for c, pause in same)
            took = statistics.median(c.took_s * 1e3 for c, _ in same)
            print(f"  {call.path:40} {call.status:4} {after:8.1f} {took:8.1f}")


# --- main


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--baton", required=True, help="the program")
    parser.add_argument("--quick", action="store_true", help="a small model, three rounds")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by commas")
    parser.add_argument("--rounds", type=int, help="updates of each kind")
    parser.add_argument("--limit", type=float, default=500, help="seconds for all of it")
    parser.add_argument("--out", help="a file for all figures")
    parser.add_argument("--logs", help="a folder for the engine's log")
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    return args


def use_gpu(args):
    world.need_gpus()
    if importlib.util.find_spec("vllm") is None:
        print("skipped: there is no vllm")
        sys.exit(world.SKIPPED)
    args.trainer, args.engine, args.cuda_library = handoff_trainer, Engine, None


def run(bench):
    with bench.checks.section("start"):
        bench.start()
        bench.checks.that(True, "the engine answers", f"{bench.left_s():.0f} s are left")
    if not bench.checks.rows or not bench.checks.rows[-1][0]:
        return
    setting = bench.setting
    n, nbytes = len(setting.specs()), setting.nbytes()
    bench.link = min(LINK, nbytes / 2)
    versions = "vLLM {}, torch {}, {}".format(*bench.versions)
    print(f"{versions}: {nbytes / 1e9:.2f} GB in {n} tensors", flush=True)
    for name in bench.args.only.split(","):
        need_s = NEEDS_S[name]
        if bench.left_s() < need_s:
            bench.checks.skip(name, f"{bench.left_s():.0f} s are left, {need_s:.0f} are needed")
            continue
        with bench.checks.section(name):
            PARTS[name](bench)


def main(use=use_gpu):
    args = parse()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    use(args)
    args.deadline = time.monotonic() + args.limit
    checks = world.Checks()
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        bench = Bench(checks, args, pathlib.Path(folder))
        try:
            with test_nccl_torch.Watchdog(checks, args.limit):
                run(bench)
        finally:
            bench.stop()
            if args.logs:
                for log in pathlib.Path(folder).glob("*.log"):
                    shutil.copy(log, args.logs)
    told(bench)
    if args.out:
        figures = {"versions": bench.versions, "nbytes": bench.setting.nbytes(), "ms": bench.rows}
        pathlib.Path(args.out).write_text(json.dumps(figures, indent=1))
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())

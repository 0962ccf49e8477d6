"""Real vLLM on the CPU. First as the reference: the same requests to it and to baton's own
engine. Then two of them behind baton: relay, streams, cancel, pauses, adapters, sleep, updates
through their own routes, an engine that is stopped, killed in mid update, and started again.

Usage: test_vllm.py --baton PROGRAM [--only SECTION[,SECTION...]] [--record DIR]"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import file_trainer
import real_world
import test_vllm_real as both  # the sections that a GPU is not needed for
import vllm_reference
import vllm_versions
from real_world import MODEL, ask, vllm_engines, world

STEP = "step-00100"  # what the engines start with
SHOUT = world.MODEL / "adapters" / "shout"
SECTIONS = (
    *("reference", "relay", "cancel", "pauses", "adapters", "sleep", "updates", "proof", "its own client"),
    *("under load", "versions", "stopped", "deaths"),
)
LONG = {"model": MODEL, "prompt": "In the beginning", "max_tokens": 200, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True}


class Play(both.Play):
    """vLLM's servers, and baton in front of both."""

    def __init__(self, checks, args, folder):
        super().__init__(checks, args, folder)
        self.by_nccl = []
        self.by_ipc = [real_world.CpuEngine(n, folder, "file", 0) for n in ("a", "b")]
        self.held, self.server = contextlib.ExitStack(), None

    def open_front(self, *options, prove="checksums"):
        """With --record, a proxy stands between baton and each engine."""
        urls = []
        for engine in self.by_ipc:
            name = f"baton-to-vllm-{engine.name}"
            urls.append(self.held.enter_context(real_world.recorded(self.args, engine, name)))
        self.server = self.held.enter_context(
            real_world.in_front(self.args, *(f"{url},vllm" for url in urls), options=options, prove=prove)
        )
        self.await_front(self.server, len(urls))
        self.url = self.server.url

    def push_step(self, step):
        """That checkpoint, whatever is next."""
        while self.step != step:
            self.step = self.push(self.server, "ipc", f"towards {step}", {})

    def everywhere(self):
        return [("it", self.server)] + [(f"engine {e.name}", e) for e in self.by_ipc]

    def settle(self):
        """No section finds an update that one before it left open."""
        update = self.server and self.server.status()["update"]
        if update and update["phase"] not in ("committed", "aborted"):
            ask(self.url, "POST", "/v1/update_weights/abort", {"update_id": update["update_id"]})
            self.step = self.push(self.server, "ipc", "after a failed section", {}, cached=False)

    def stop(self):
        try:
            self.held.close()
        finally:
            super().stop()


def must(reply):
    if reply.status != 200:
        raise AssertionError(str(reply))
    return reply


def post(url, path, body=None):
    return must(ask(url, "POST", path, body))


class Later:
    """A request that is answered later."""

    def __init__(self, url, body, path="/v1/completions"):
        self.reply = None
        self.thread = threading.Thread(target=self._run, args=(url, path, body), daemon=True)
        self.thread.start()

    def _run(self, url, path, body):
        self.reply = ask(url, "POST", path, body)

    def answer(self):
        self.thread.join(real_world.WAIT_S)
        if self.reply is None:
            raise AssertionError("a request hangs")
        return self.reply


def metric(engine, name):
    text = ask(engine.url, "GET", "/metrics").raw.decode()
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(name)]
    return sum(float(value) for _, value in rows)


def running(engines):
    return sum(metric(e, "vllm:num_requests_running") for e in engines)


# --- sections


def reference(play):
    with real_world.embedded(play.args, "--max-model-len", "512") as server:
        vllm_reference.compare(play.checks, play.by_ipc[0].url, server.url)


def same_reply(a, b):
    """But for what differs between any two requests."""
    volatile = ("id", "created", "request_id")

    def known(reply):
        if reply.body is None:
            return [known_event(e) for e in reply.events()]
        return known_value(reply.body)

    def known_event(event):
        return event if event == "[DONE]" else known_value(json.loads(event))

    def known_value(value):
        return [
            (p, v)
            for p, v in real_world.leaves(value)
            if p.rpartition(".")[2] not in volatile
        ]

    return (a.status, a.kind, known(a)) == (b.status, b.kind, known(b))


def relay(play):
    """Byte for byte what the engine says, but for ids and times. A stream's events are cut as its
    process happens to be scheduled: only their text is compared."""
    names = ("completion", "logprobs", "echo scores a prompt", "generate", "tokenize", "detokenize",
             "no prompt", "temperature -1", "too long", "no such model", "prompt_logprobs")
    for name in names:
        request = vllm_reference.REQUESTS[name]
        straight = vllm_reference.send(play.by_ipc[0].url, request)
        through = vllm_reference.send(play.url, request)
        if not play.checks.that(same_reply(straight, through), f"{name}: as straight"):
            print(f"    straight {straight}\n    through  {through}", flush=True)
    for name in ("stream", "stream with usage", "stream with logprobs"):
        request = vllm_reference.REQUESTS[name]
        straight = vllm_reference.send(play.by_ipc[0].url, request)
        through = vllm_reference.send(play.url, request)
        found = vllm_reference.differences(straight, through)
        play.checks.same(found, set(), f"{name}: as straight")
    configuration(play)


def configuration(play):
    """What TRL chooses by is what both engines say."""
    def said_by(url):
        return must(ask(url, "GET", "/server_info?config_format=json")).body["vllm_config"]

    through, *straight = [said_by(url) for url in (play.url, *(e.url for e in play.by_ipc))]
    play.checks.same(through["unknown"], {}, "configuration: they agree")
    for engine in straight:
        for room, member in (*(("model_config", m) for m in (
                "model", "max_model_len", "dtype", "logprobs_mode", "max_logprobs")),
                ("parallel_config", "data_parallel_size")):
            play.checks.same(through[room][member], engine[room][member], f"{room}.{member}")
        for member in "lora_config", "weight_transfer_config":
            play.checks.same(through[member], engine[member], member)


def cancel(play):
    """A client that goes away ends its generation in the engine."""
    at = play.url.removeprefix("http://")
    connection = http.client.HTTPConnection(at, timeout=real_world.WAIT_S)
    body = json.dumps({**LONG, "max_tokens": 500, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read(1)
    world.until(lambda: running(play.by_ipc) > 0, "it runs in an engine")
    answer.close()
    connection.close()
    began = time.monotonic()
    world.until(lambda: running(play.by_ipc) == 0, "it ends in the engine", 30)
    play.checks.that(True, "the engine is free again", f"{time.monotonic() - began:.2f} s")


def pauses(play):
    whole = post(play.url, "/v1/completions", LONG).body["choices"][0]
    for mode in ("keep", "wait", "abort"):
        later = Later(play.url, LONG)
        world.until(lambda: running(play.by_ipc) > 0, "a request runs")
        post(play.url, f"/pause?mode={mode}")
        paused = [ask(e.url, "GET", "/is_paused").body for e in play.by_ipc]
        play.checks.same(paused, [{"is_paused": True}] * 2, f"{mode}: both engines are paused")
        post(play.url, "/resume")
        choice = must(later.answer()).body["choices"][0]
        if mode == "abort":
            play.checks.same(choice["finish_reason"], "abort", "abort: it ends early")
            n = len(choice["token_ids"])
            first = whole["token_ids"][:n]
            play.checks.same(choice["token_ids"], first, "abort: the tokens so far")
        else:
            play.checks.same(choice["token_ids"], whole["token_ids"], f"{mode}: all of its tokens")


def shouts(play, how):
    """The adapter's golden tokens, by baton and by each engine itself. Not beside baton's canary: on
    a CPU vLLM 0.32 dies of an adapter's request in one batch with a prompt of another length."""
    real_world.await_proofs(play.server, "proven", "proven")
    golden = json.loads((SHOUT / "golden.json").read_text())["cases"][0]
    request = {"model": "shout", "prompt": golden["prompt_token_ids"], "temperature": 0}
    request.update(max_tokens=len(golden["greedy_token_ids"]), ignore_eos=True, logprobs=1)
    request["return_token_ids"] = True
    for url in (play.url, *(e.url for e in play.by_ipc)):
        choice = post(url, "/v1/completions", request).body["choices"][0]
        found = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        what = vllm_engines.differs(found, golden["greedy_token_ids"], golden["greedy_logprobs"])
        by = "it" if url == play.url else url
        play.checks.same(what, "", f"tokens of the adapter {how} by {by}")


def models(server_url):
    return [m["id"] for m in ask(server_url, "GET", "/v1/models").body["data"]]


def adapters(play):
    """A golden adapter over the checkpoint that it was trained for: by its path, then sent."""
    play.push_step("step-01500")
    body = {"lora_name": "shout", "lora_path": str(SHOUT)}
    post(play.url, "/v1/load_lora_adapter", body)
    shouts(play, "loaded by its path")
    ids = [m["id"] for m in ask(play.url, "GET", "/v1/models").body["data"]]
    play.checks.same(sorted(ids), sorted([MODEL, "shout"]), "it is listed")
    post(play.url, "/v1/unload_lora_adapter", {"lora_name": "shout"})
    left = [models(e.url) for e in play.by_ipc]
    play.checks.same(left, [[MODEL], [MODEL]], "it is gone from both")
    adapter_sent(play)


def adapter_sent(play):
    """An engine that is started again has what only baton has files of, before it serves."""
    command = [play.args.baton, "lora", "load", "shout", SHOUT, "--url", play.url]
    subprocess.run(command, check=True, timeout=real_world.WAIT_S)
    shouts(play, "that was sent")
    engine = play.by_ipc[0]
    engine.kill()
    engine.start(STEP)
    vllm_engines.await_ready([engine])
    world.until(lambda: "shout" in models(engine.url), "the engine has the adapter again", 60)
    upstream = play.server.get("/v1/upstreams")["list"][0]
    play.checks.same(upstream["state"], "unsynced", "it does not serve yet")
    post(play.url, "/init_weight_transfer_engine", {"init_info": {}})
    play.step = play.push(play.server, "ipc", "after a restart", {})
    while play.step != "step-01500":  # each push asks for tokens of the one before
        real_world.await_proofs(play.server, "proven", "proven")
        play.step = play.push(play.server, "ipc", "towards step-01500", {})
    shouts(play, "after a restart")
    post(play.url, "/v1/unload_lora_adapter", {"lora_name": "shout"})
    play.checks.same(os.listdir(real_world.KEPT), [], "its files are removed")


def sleep(play):
    post(play.url, "/sleep?level=1")
    told = [ask(e.url, "GET", "/is_sleeping").body for e in play.by_ipc]
    play.checks.same(told, [{"is_sleeping": True}] * 2, "both engines sleep")
    post(play.url, "/wake_up")
    told = [ask(e.url, "GET", "/is_sleeping").body for e in play.by_ipc]
    play.checks.same(told, [{"is_sleeping": False}] * 2, "both are awake")
    play.serves(play.everywhere(), play.step, "after a sleep")


def updates(play):
    post(play.url, "/init_weight_transfer_engine", {"init_info": {}})
    for way, members in (("whole", {}), ("in chunks", {"packed_buffer_size_bytes": 1})):
        play.step = play.push(play.server, "ipc", way, members)
        play.serves(play.everywhere(), play.step, way)
    # half of a model is refused, and nothing is generated by the half
    path = real_world.untied("step-00000") / "model.safetensors"
    columns = real_world.columns_of(path)
    info = file_trainer.update_info(columns[:20], path)
    post(play.url, "/start_weight_update", {})
    ask(play.url, "POST", "/update_weights", {"update_info": info})
    finish = ask(play.url, "POST", "/finish_weight_update", {"weight_version": "half"})
    play.checks.same(finish.status, 422, "half of a model is refused")
    refused = ask(play.url, "POST", "/v1/completions", LONG)
    play.checks.that(refused.status in (502, 503), "and not served", refused)
    play.step = play.push(play.server, "ipc", "after a refused one", {}, cached=False)
    play.serves(play.everywhere(), play.step, "after a refused one")


def proof(play):
    """Canary and checksums of two engines; weights that are not finite are fenced, and healed."""
    play.step = play.push(play.server, "ipc", "proof", {})
    for found in real_world.await_proofs(play.server, "proven", "proven"):
        play.checks.that(found["largest_difference"] < 1e-3, "the canaries agree", found)
        sums = found["checksums"]
        play.checks.same((sums["state"], sums["n_different"]), ("proven", 0), "so do the checksums")
        play.checks.that(sums["n"] > 0, "of parameters", sums["n"])
    path = real_world.not_finite(play.step, play.folder)
    info = file_trainer.update_info(real_world.columns_of(path), path)
    post(play.url, "/start_weight_update", {})
    post(play.url, "/update_weights", {"update_info": info})
    post(play.url, "/finish_weight_update", {"weight_version": "nan"})
    real_world.await_proofs(play.server, "not_finite", "not_finite")
    refused = ask(play.url, "POST", "/v1/completions", LONG)
    play.checks.same(refused.status, 503, "NaN is not served")
    play.step = play.push(play.server, "ipc", "after NaN", {}, cached=False)
    real_world.await_proofs(play.server, "proven", "proven")
    play.serves(play.everywhere(), play.step, "after NaN")


def its_own_client(play):
    """vLLM's HTTPVLLMWeightSyncClient, each of its calls."""
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

    client = HTTPVLLMWeightSyncClient(play.url, timeout=real_world.WAIT_S)
    client.init_weight_transfer_engine({"packed": False})
    for step, wrap in (("step-01500", dict), ("step-00000", lambda info: [info])):
        path = real_world.untied(step) / "model.safetensors"
        info = file_trainer.update_info(real_world.columns_of(path), path)
        what = "update_info" if wrap is dict else "update_info as a list, one entry a rank"
        client.start_weight_update()
        client.update_weights(wrap(info))
        client.finish_weight_update(f"{step}-{what}"[:20])
        play.step = step
        play.serves(play.everywhere(), step, what)
    client.shutdown_weight_transfer_engine()
    play.checks.that(True, "shutdown_weight_transfer_engine")
    client.init_weight_transfer_engine({})


def under_load(play):
    """Requests all the while; each is by one checkpoint, and the last by the new one."""
    over, found = threading.Event(), []
    prompt, ids, _ = next(vllm_engines.questions(STEP))
    body = {**LONG, "prompt": prompt, "max_tokens": len(ids), "logprobs": 1}

    def load():
        while not over.is_set():
            found.append(ask(play.url, "POST", "/v1/completions", body))

    threads = [threading.Thread(target=load, daemon=True) for _ in range(3)]
    [t.start() for t in threads]
    old = play.step
    try:
        world.until(lambda: len(found) > 3, "requests are answered")
        play.step = play.push(play.server, "ipc", "under load", {}, cached=False)
        n = len(found)
        world.until(lambda: len(found) > n + 3, "requests are answered after it")
    finally:
        over.set()
        [t.join(real_world.WAIT_S) for t in threads]
    bad = [str(r) for r in found if r.status != 200]
    play.checks.same(bad, [], f"all of {len(found)} requests are answered")
    play.checks.that(True, "from, to", f"{old}, {play.step}")
    play.serves(play.everywhere(), play.step, "after an update under load")


def versions(play):
    """Each mode has a server of its own in front of the engines."""
    for mode in vllm_versions.MODES:
        play.held.close()
        play.held = contextlib.ExitStack()
        play.open_front("--on-update", mode, prove="none")
        play.step, _ = vllm_versions.one_mode(play, play.server, mode)


def stopped(play):
    """SIGSTOP of an engine: out of rotation, the other serves; SIGCONT: back."""
    engine = play.by_ipc[0]
    os.killpg(engine.child.pid, signal.SIGSTOP)
    try:
        def away():
            ask(play.url, "POST", "/v1/completions", {**LONG, "max_tokens": 2}, wait_s=60)
            states = [u["state"] for u in play.server.get("/v1/upstreams")["list"]]
            return "down" in states

        world.until(away, "the stopped engine is out", 120)
        short = {**LONG, "max_tokens": 2}
        replies = [ask(play.url, "POST", "/v1/completions", short) for _ in range(4)]
        play.checks.same([r.status for r in replies], [200] * 4, "the other serves")
    finally:
        os.killpg(engine.child.pid, signal.SIGCONT)
    play.await_front(play.server, 2)
    play.serves(play.everywhere(), play.step, "after it goes on")


def deaths(play):
    """The front of all sections goes first, since this one has its own."""
    play.held.close()
    play.server = None
    both.deaths(play)


# --- main


def run(play):
    checks, args = play.checks, play.args
    names = args.only.split(",") if args.only else SECTIONS
    for engine in play.by_ipc:
        engine.start(STEP)
    with checks.section("engines"):
        began = time.monotonic()
        vllm_engines.await_ready(play.by_ipc)
        checks.that(True, "all answer", f"{time.monotonic() - began:.0f} s")
        for engine in play.by_ipc:
            checks.same(vllm_engines.wrong(engine, STEP), [], f"engine {engine.name} alone")
    play.step = STEP
    if set(names) - {"reference", "deaths"}:
        play.open_front()
        post(play.url, "/init_weight_transfer_engine", {"init_info": {}})
    for name in names:
        with checks.section(name):
            play.settle()
            globals()[name.replace(" ", "_")](play)


def main():
    given = real_world.options()
    args = types.SimpleNamespace(**vars(given), n_gpus=1, trainer=file_trainer)
    checks = world.Checks()
    with tempfile.TemporaryDirectory(prefix="baton-real-") as folder:
        play = Play(checks, args, pathlib.Path(folder))
        try:
            run(play)
        finally:
            play.stop()
    both.told(play)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())

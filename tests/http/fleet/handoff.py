"""A server that receives each update itself, on a GPU of the fake driver, and hands it to upstream engines.

Usage: handoff.py BATON MODEL FAKE_ENGINE LIBFAKECUDA LIBFAKECUDA_OF_ENGINES WORK KIND [case...]
"""

import json
import os
import re
import subprocess
import threading
import time

from fake_engine_world import Double
from fleet_world import Server, until
from handoff_tap import CHECKER, FUSED, Tap
from handoff_world import (BATON, ENGINE, FAKE, FOREIGN, MODEL, PROBE_MS, WORK, Stage, checkpoint,
                           content, run_cases)

ASLEEP_S = 0.8  # the server looks for engines to repair every 0.25 s


def run(s, *command, status=0):
    """A command, at the server."""
    done = subprocess.run([BATON, *command, "--url", s.server.url], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (command, done)
    return done


def shown(s, *command):
    """What a command prints about the server."""
    return run(s, *command).stdout


def taken(reply):
    """Which upstreams have the version, by a reply."""
    return [u["ok"] for u in reply["upstreams"]]


def whole(kind):
    """Each update reaches the engine byte for byte, and only after it is committed."""
    with Stage(kind, kind) as s:
        for step, label in (("00100", "a"), ("01500", "b"), ("00100", "c")):
            before = [t.rounds for t in s.taps]
            assert taken(s.push(step, label)) == [True, True]
            s.has(step, label)
            assert [t.rounds for t in s.taps] == [n + 1 for n in before]
            up = s.server.get("/v1/upstreams")
            assert {u["weight_version"] for u in up["list"]} == {label} and up["n_serving"] == 2, up
        diff = s.server.get("/v1/weights/diff")
        assert (diff["weight_version"], diff["changes"]["before"]["weight_version"]) == ("c", "b"), diff
        assert diff["changes"]["n_changed"] == diff["n_tensors"] > 0, diff
        status = s.server.status()
        assert status["stage"]["weight_version"] == "c" and status["stage"]["serial"] == status["stage"]["handed_serial"] == 3, status["stage"]
        for command in ("status",), ("upstreams",), ("weights", "diff"):
            said = shown(s, *command)
            assert "hand-off    c (serial 3) was handed to the upstreams, in " in said and "3 hand-offs, 0 repairs" in said, said
        assert json.loads(shown(s, "upstreams", "--json"))["n_serving"] == 2
        for d in s.doubles:
            d.is_fresh()


def difference(of, to):
    """A body of the xor of every tensor of two steps."""
    with open(checkpoint(of), "rb") as f, open(checkpoint(to), "rb") as g:
        old, new = f.read(), g.read()
    n = 8 + int.from_bytes(old[:8], "little")
    head = json.loads(old[8:n])
    head.pop("__metadata__", None)
    assert new[:8] == old[:8] and json.loads(new[8:n]).keys() >= head.keys()
    xor = (int.from_bytes(old[n:], "little") ^ int.from_bytes(new[n:], "little")).to_bytes(len(old) - n, "little")
    text = json.dumps({f"{name}#xor": {**t, "dtype": "U16"} for name, t in head.items()}).encode()
    return len(text).to_bytes(8, "little") + text + xor


def delta(kind):
    """A delta is applied to the weights on the GPU, and the engine gets what came of it; a wrong one reaches none."""
    with Stage(kind) as s:
        s.push("00100", "a")
        body, form = difference("00100", "01500"), {"Content-Type": "application/vnd.safetensors"}
        for base, to, status in ("x", "b", 409), ("a", "b", 200), ("a", "c", 409):
            rounds = s.taps[0].rounds
            got, said = s.server.ask("POST", f"/v1/update_weights?delta=true&base_version={base}&weight_version={to}", body, form)
            assert got == status, (got, said)
            assert s.taps[0].rounds == rounds + (status == 200)
        s.has("01500", "b")


def refused(kind):
    """What the store refuses reaches no engine."""
    def posts():  # without the canary and the probes of generation, which come when they are due
        return [c for c in s.taps[0].calls if c[1] == "POST" and c[2] not in ("/v1/completions", "/generate")]

    with Stage(kind) as s:
        before = posts()
        s.push("nothing", "x", 404)
        update = s.server.post("/v1/update_weights/start", {"weight_version": "x"})["update_id"]
        got, _ = s.server.ask("POST", "/v1/update_weights/finish", {"update_id": update})
        assert got == 422, got
        assert posts() == before and s.taps[0].rounds == 0, posts()


def other_gpu(kind):
    """An engine on a GPU that the store does not use maps the memory of the one that it does."""
    with Stage(kind, kind, gpus=(0, 1)) as s:
        s.push("00100", "a")
        s.has("00100", "a")


def sharing(kind):
    """The same, where the store has two GPUs."""
    with Stage(kind, kind, gpus=(0, 1), stage="cuda:0,cuda:1") as s:
        s.push("00100", "a")
        s.has("00100", "a")


def restarted(kind, **how):
    """An engine that restarts gets the version from here, and an adapter that was sent; the other serves on."""
    adapter = os.path.join(MODEL, "adapters", "shout")
    with Stage(kind, kind, min_ready=1, **{**how, "options": (*how.get("options", ()), "--adapter-dir", os.path.join(WORK, "kept"))}) as s:
        s.push("00100", "a")
        assert run(s, "lora", "load", "mine", adapter).returncode == 0
        s.taps[0].loaded.clear()
        s.doubles[0].order("who", "restart", ms=600)
        until("it left", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        rounds = s.taps[1].rounds
        until("it is back", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.has("00100", "a")
        assert s.taps[1].rounds == rounds, "the other got it again"
        assert [list(d.state()["adapters"]) for d in s.doubles] == [["mine"]] * 2
        until("it is counted", lambda: s.server.status()["stage"]["n_repairs"] == 1)
        s.push("01500", "b")
        s.has("01500", "b")


def fails(kind, skip=0, faults=(500, "drop"), **how):
    """An engine that fails in the hand-off is repaired from the committed bytes, without a trainer."""
    path = "/update_weights" if kind == "vllm" else "/update_weights_from_tensor"
    with Stage(kind, kind, min_ready=1, **how) as s:
        s.push("00100", "a")
        assert re.search(r" was handed to the upstreams, in [0-9.]+ m?s; 1 hand-off, 0 repairs\n", shown(s, "status")), shown(s, "status")
        for fault in faults:
            s.taps[0].skip = skip
            s.taps[0].fault = (path, fault)
            said = s.push("01500", "b")
            assert taken(said) == [False, True] and said["upstreams"][0]["error"], said
            s.has("01500", "b", 1)
            assert s.server.get("/v1/upstreams")["n_serving"] == 1
            assert taken(s.server.status()["stage"]) == [False, True]
            page = shown(s, "status")
            assert " was handed to 1 of 2 upstreams, in " in page and f"without it: {s.taps[0].url}: " in page, page
            again = run(s, "push", checkpoint("01500"), "--path", "--weight-version", "b")
            assert "b is served (serial " in again.stdout and ", with the bytes and the label of the one before)" in again.stdout, again
            assert f"baton push: warning: not taken by {s.taps[0].url}: " in again.stderr, again
            s.taps[0].fault = None
            until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
            assert taken(s.server.status()["stage"]) == [True, True]
            s.has("01500", "b")
            s.push("00100", "a")
            s.has("00100", "a")


def counted(server):
    """How many updates ended, and how, by the metrics; the same of the last ones by the status."""
    text = server.ask("GET", "/metrics")[1]
    ended = [tuple(re.findall(r'"(\w+)"', line)) + (int(float(line.split()[-1])),) for line in text.splitlines() if line.startswith("baton_updates_ended_total{")]
    recent = [u["outcome"] for u in server.status()["recent_updates"]]
    return {how: n for *_, how, n in ended if n > 0}, {how: recent.count(how) for how in set(recent)}


def serials(server):
    """Every serial that is shown of what is served."""
    status, text = server.status(), server.ask("GET", "/metrics")[1]
    said = [int(float(line.split()[-1])) for line in text.splitlines() if re.match(r"baton_(weights|fleet|upstream)_serial[ {]", line)]
    return {status["weights"]["serial"], status["stage"]["serial"], status["stage"]["handed_serial"], *said,
            *(u["serial"] for u in server.get("/v1/upstreams")["list"])}


def one_serial(kind):
    """A version has one serial, the store's: also after a hand-off that failed, and after a restart."""
    path = "/update_weights" if kind == "vllm" else "/update_weights_from_tensor"
    state = os.path.join(WORK, f"state-{kind}")
    with Stage(kind, options=("--state-dir", state, "--snapshot", 1)) as s:
        s.push("00100", "a")
        s.taps[0].fault = (path, 500)
        s.push("01500", "b", 502)
        s.push("00100", "c", 502)
        s.taps[0].fault = None
        until("it is handed over", lambda: s.server.status()["stage"]["handed_serial"] == 3)
        until("it serves", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        assert serials(s.server) == {3}, serials(s.server)
        s.push("01500", "d")
        assert serials(s.server) == {4}, serials(s.server)
        until("it is written", lambda: os.path.isdir(state) and any("4" in name for name in os.listdir(state)))
        s.server.__exit__(None)
        s.serve()
        until("it is handed over again", lambda: s.server.status()["stage"]["handed_serial"] == 4)
        until("it serves", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        assert serials(s.server) == {4}, serials(s.server)
        status, said = s.server.ask("POST", "/v1/weights/label", {"weight_version": "e", "if_serial": 1})
        assert (status, said["error"]["code"]) == (409, "precondition_failed"), said
        named = s.server.post("/v1/weights/label", {"weight_version": "e", "if_serial": s.server.status()["weights"]["serial"]})
        assert named["serial"] == 4, named
        s.push("00100", "f")
        assert serials(s.server) == {5}, serials(s.server)


def lost(kind):
    """A version that was lost with its process is named wherever one asks why nothing is served."""
    state = os.path.join(WORK, f"lost-{kind}")
    with Stage(kind, options=("--state-dir", state)) as s:
        assert "weights     old (of the engines, not pushed here), ready" in shown(s, "status")
        s.push("00100", "gone")
        s.server.kill()
        s.serve()
        until("the engine is asked", lambda: s.server.get("/v1/upstreams")["list"][0]["weight_version"])
        was = "the version served last, 'gone' (serial 1), was lost with the process that had it; send a whole update, or restart with --serve-base"
        path = "/inference/v1/generate" if kind == "vllm" else "/generate"
        for said in (s.server.ask("GET", "/readyz")[1]["message"], str(s.server.ask("POST", path, {})[1])):
            assert was in said, said
        assert "hand-off    version gone (serial 1) is lost; waiting for an update; 0 hand-offs" in shown(s, "status")
        s.push("00100", "new")
        s.has("00100", "new")


def watched(kind):
    """The status can be read at every step of a hand-off."""
    with Stage(kind) as s:
        over, n_read = threading.Event(), []

        def watch():
            while not over.is_set():
                s.server.status()
                n_read.append(1)

        watchers = [threading.Thread(target=watch) for _ in range(2)]
        for w in watchers:
            w.start()
        for i in range(12):
            s.push(("00100", "01500")[i % 2], f"v{i}")
        over.set()
        for w in watchers:
            w.join()
        assert len(n_read) >= 12, len(n_read)
        s.has("01500", "v11")


def all_fail(kind):
    """No engine takes it: the answer says so, and it is tried again by itself."""
    path = "/update_weights" if kind == "vllm" else "/update_weights_from_tensor"
    with Stage(kind) as s:
        began = os.path.getsize(s.server.log)
        s.push("00100", "a")
        s.taps[0].fault = (path, 500)
        said = s.push("01500", "b", 502)
        assert "committed here" in said["error"]["message"], said
        assert taken(said["error"]["details"]) == [False], said
        assert s.server.status()["stage"]["weight_version"] == "b" and s.server.status()["weights"]["update_id"] is None
        update = said["error"]["details"]["update_id"]
        status, again = s.server.ask("POST", "/v1/update_weights/finish", {"update_id": update})
        assert status == 502 and "committed here" in again["error"]["message"], again
        status, late = s.server.ask("POST", "/v1/update_weights/abort", {"update_id": update})  # as clients do whenever a push failed
        assert (status, late["error"]["code"]) == (409, "update_closed"), late
        said = shown(s, "upstreams")
        assert "b (serial 2) is not handed over yet; the last that was is serial 1;" in said, said
        assert re.search(r"the last try failed and is repeated (now|in [0-9.]+ m?s): ", said), said
        assert 0 <= s.server.status()["stage"]["error"]["retry_in_s"] <= 10
        s.taps[0].fault = None
        until("it is handed over", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        s.has("01500", "b")
        until("it says so", lambda: s.server.status()["weights"]["update_id"] == update)
        # Two updates, and both were committed: the hand-offs are no updates.
        assert counted(s.server) == ({"committed": 2}, {"committed": 2}), counted(s.server)
        with open(s.server.log, encoding="utf-8") as log:
            log.seek(began)
            names = [json.loads(line)["event"] for line in log if line.startswith("{")]
        assert [names.count(f"update.{how}") for how in ("committed", "aborted", "refused")] == [2, 0, 0], names
        assert any("committed here" in e["message"] for e in s.server.status()["recent_errors"])
        assert s.server.upstreams()[s.taps[0].url]["n_missed"] > 0, s.server.upstreams()
        s.taps[0].fault = None
        s.doubles[0].order("update", "status", status=500, text='{"error": "' + "http://127.0.0.1:1234/ " * 8 + '"}', times=20)
        s.push("00100", "c", 502)
        why = s.server.ask("GET", "/readyz")[1]["message"]
        assert why.endswith(" http://127.0.0.1:1234/ …"), why  # whole words
        s.taps[0].fault = (path, 500)
        pushed = run(s, "push", checkpoint("01500"), "--path", "--weight-version", "d", status=4)
        assert "baton push: 502 not_handed_over: " in pushed.stderr and f"baton push: not taken yet by {s.taps[0].url}: " in pushed.stderr, pushed


def one_fails(kind):
    """What ended at an engine because another one failed is said in words, without an id of ours."""
    path = "/update_weights" if kind == "vllm" else "/update_weights_from_tensor"
    with Stage(kind, kind) as s:
        s.taps[0].fault = (path, 500)
        said = s.push("00100", "a", 502)["error"]["details"]["upstreams"]
        assert "answered 500" in said[0]["error"] and "upd-" not in said[0]["error"], said
        assert said[1]["error"] == "the hand-off ended before its weights were whole: it is repeated", said
        s.taps[0].fault = None
        until("both serve", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.doubles[0].post("/update_weight_version", {"new_version": "other", "abort_all_requests": False})
        why = "it serves version 'other', not that of this server: this server hands it the version (--stage)"
        with open(s.server.log, encoding="utf-8") as log:
            until("it is said", lambda: why in log.read())
        until("it is repaired", lambda: s.server.status()["stage"]["n_repairs"] == 1)


def not_resumed(kind):
    """An engine that has the version and cannot be resumed does not serve it, but it needs no repair: it is asked again."""
    path = "/resume" if kind == "vllm" else "/continue_generation"
    with Stage(kind, kind, min_ready=1) as s:
        s.push("00100", "a")
        s.taps[0].fault = (path, 500)
        s.push("01500", "b")
        rounds = s.taps[0].rounds
        why = "it failed to resume, and is asked again: it serves once it has resumed"
        until("it is said", lambda: why in str(s.server.get("/v1/upstreams")))
        time.sleep(ASLEEP_S)
        assert s.server.get("/v1/upstreams")["n_serving"] == 1 and s.taps[0].rounds == rounds, (s.taps[0].rounds, rounds)
        s.taps[0].fault = None
        until("both serve", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        assert s.server.status()["stage"]["n_repairs"] == 0 and s.taps[0].rounds == rounds, (s.taps[0].rounds, rounds)
        s.taps[0].fault = (path, 500)
        s.taps[1].fault = (path, 500)
        said = s.push("00100", "c", 502)
        assert "committed here" in said["error"]["message"], said
        for tap in s.taps:
            tap.fault = None
        until("it is handed over", lambda: s.server.status()["stage"]["handed_serial"] == 3)
        until("both serve", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.has("00100", "c")


def own(kind):
    """A trainer's operation that meets a hand-off waits for its end."""
    path = "/update_weights" if kind == "vllm" else "/update_weights_from_tensor"
    with Stage(kind, kind, min_ready=1) as s:
        s.push("00100", "a")
        s.taps[0].fault = (path, 500)
        s.push("01500", "b")
        s.taps[0].slow, s.taps[0].fault = (path, 1), None
        calls = len(s.taps[0].calls)
        until("it is repaired now", lambda: any(c[2] == path for c in s.taps[0].calls[calls:]))
        s.server.post("/v1/sleep", {"level": 1})
        s.has("01500", "b")
        s.server.post("/v1/wake", {})
        until("all serve", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)


def undisturbed(kind):
    """While bytes arrive, engines generate; they stand still only once all is here."""
    with Stage(kind) as s:
        made, stop = [], threading.Event()

        def load():
            while not stop.is_set():
                status, _ = s.server.ask("POST", "/v1/completions" if kind == "vllm" else "/generate",
                                         {"prompt": "x", "max_tokens": 4} if kind == "vllm" else {"text": "x", "sampling_params": {"max_new_tokens": 4}})
                made.append((time.monotonic(), status))

        thread = threading.Thread(target=load)
        thread.start()
        until("it generates", lambda: len(made) > 3)
        update = s.server.post("/v1/update_weights/start", {"weight_version": "b"})["update_id"]
        s.server.post("/v1/update_weights", {"update_id": update, "path": checkpoint("01500")})
        before = len(made)
        until("it generates on", lambda: len(made) > before + 3)
        assert s.server.status()["update"]["update_id"] == update
        posts = [c[2] for c in s.taps[0].calls if c[1] == "POST"]
        assert "/pause" not in posts and "/pause_generation" not in posts, posts
        s.server.post("/v1/update_weights/finish", {"update_id": update})
        s.has("01500", "b")
        before = len(made)
        until("it generates again", lambda: len(made) > before + 3)
        stop.set()
        thread.join()
        assert {status for _, status in made} == {200}, [m for m in made if m[1] != 200]


def starts(kind):
    """First weights do not wait for upstreams; what is no GPU is refused by the option's name."""
    manifest = ("--upstream", f"http://127.0.0.1:1,{kind}", "--manifest", checkpoint("00000"), "--cuda-library", FAKE)
    for stage in "cpu", "gpu0", "cuda:9", "host,", "host,cuda:0,cuda:1", "hosts":
        done = subprocess.run([BATON, "serve", "--check", "--listen", "127.0.0.1:0", *manifest, "--stage", stage],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "--stage" in done.stderr and "--device" not in done.stderr, (stage, done)
    others = [a for at in ("192.0.2.7:8000", "[2001:db8::7]:8000", "localhost:1", "[::1]:2", "0.0.0.0:3")
              for a in ("--upstream", f"http://{at},{kind}")]  # addresses of documentation, of no host
    done = subprocess.run([BATON, "serve", "--check", "--listen", "127.0.0.1:0", *manifest, *others, "--stage", "cuda:0"],
                          capture_output=True, text=True, check=False)
    warned = [json.loads(line)["upstream"] for line in done.stderr.splitlines() if '"upstream.elsewhere"' in line]
    assert done.returncode == 0 and warned == ["http://192.0.2.7:8000", "http://[2001:db8::7]:8000"], (warned, done)
    with Double(ENGINE, kind, "--weight-version", "old") as double, Tap(FOREIGN, 0, double) as tap:
        tap.fault = ("/metrics" if kind == "vllm" else "/server_info", 503)
        with Server(BATON, os.path.join(WORK, "log-first"), "--upstream", f"{tap.url},{kind}", "--stage", "cuda:0", "--cuda-library", FAKE,
                    "--manifest", checkpoint("00000"), "--weights", checkpoint("00100"), "--weight-version", "first",
                    "--probe-interval", PROBE_MS) as server:
            assert server.status()["stage"]["handed_serial"] == 0
            tap.fault = None
            until("it is handed over", lambda: server.get("/v1/upstreams")["n_serving"] == 1 and server.status()["stage"]["handed_serial"] == 1)
            assert tap.loaded == content("00100")
    not_before(kind)


def not_before(kind):
    """Until the first weights are handed over, no client gets tokens of what the engine had loaded before."""
    with Double(ENGINE, kind, "--weight-version", "old") as double, Tap(FOREIGN, 0, double) as tap:
        tap.fault = ("/pause" if kind == "vllm" else "/pause_generation", 500)
        with Server(BATON, os.path.join(WORK, "log-before"), "--upstream", f"{tap.url},{kind}", "--stage", "cuda:0", "--cuda-library", FAKE,
                    "--manifest", checkpoint("00000"), "--weights", checkpoint("00100"), "--probe-interval", PROBE_MS) as server:
            until("it is tried", lambda: server.status()["stage"]["error"])
            time.sleep(ASLEEP_S)
            assert server.get("/v1/upstreams")["n_serving"] == 0, server.get("/v1/upstreams")
            status, said = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
            assert status == 503 and "handed over" in said["error"]["message"], (status, said)
            tap.fault = None
            until("it is handed over", lambda: server.get("/v1/upstreams")["n_serving"] == 1)
            assert tap.loaded == content("00100")


def asleep(kind):
    """Weights that sleep, also at level 2, have no memory to be written to: no engine is touched until it is woken."""
    with Stage(kind) as s:
        s.push("00100", "a")
        s.server.post("/v1/sleep", {"level": 2})
        time.sleep(ASLEEP_S)
        assert s.taps[0].rounds == 1, "it was repaired asleep"
        said = s.push("01500", "b", 502)
        assert "asleep" in said["error"]["message"] and "committed here" in said["error"]["message"], said
        s.server.post("/v1/wake", {"tags": ["weights"]})
        until("it is handed over", lambda: s.server.status()["stage"]["handed_serial"] == 2)
        s.server.post("/v1/wake", {"tags": ["kv_cache"]})
        until("it serves", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        s.has("01500", "b")


HOST = {"stage": "host", "options": ("--stage-window", 300000)}  # 9 windows; the largest group of tensors has 294912 bytes
LATE_S = 0.05
FAILURES_DOWN = 3  # an upstream that fails so often in a row is down
READ_S = 3  # how long the server waits for an SGLang that has answered


def host(kind):
    """From host memory, in windows: byte for byte, though an engine reads each window only long after it was named, and
    an SGLang's ranks only after its answer."""
    ages = (("--vllm-version", "0.24.0"), ("--vllm-version", "0.32.0")) if kind == "vllm" else (("--world-size", "2"),)
    for age in ages:
        with Stage(kind, kind, gpus=(0, 1), ages=age, **HOST) as s:
            for step, label, late in (("00100", "a", 0), ("01500", "b", LATE_S)):
                s.taps[0].slow = ("/update_weights", late)
                s.taps[1].late_s = late
                before = [t.rounds for t in s.taps]
                for t in s.taps:
                    t.loaded.clear()
                s.push(step, label)
                s.has(step, label)
                assert [t.rounds - n for t, n in zip(s.taps, before)] == [9, 9], s.taps[0].rounds
            stage = s.server.status()["stage"]
            assert (stage["memory"], stage["window_nbytes"]) == ("host", 300000), stage
            status, said = s.server.ask("GET", "/v1/weights/handles")
            assert status == 409 and "host memory" in said["error"]["message"], said


def counters(pid):
    """Those that a process has made."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{pid}_")}


def pauses(tap):
    return [c for c in tap.calls if c[2] == "/pause_generation"]


def why(s):
    """Why the last try failed."""
    return json.dumps(s.server.status()["stage"]["error"])


def failures(s):
    return int(re.search(r"(?m)^baton_handoff_failures_total (\d+)", s.server.ask("GET", "/metrics")[1])[1])


def host_kept(kind):
    """An SGLang that does not drop a window is out of the update after a while, and the other gets all of it. It gets windows
    again when it has dropped it."""
    if kind == "vllm":
        return
    with Stage(kind, kind, min_ready=1, **HOST) as s:
        pid, s.taps[0].keeps = s.server.process.pid, True
        said = s.push("00100", "a")
        assert taken(said) == [False, True] and "it still has the window" in said["upstreams"][0]["error"], said
        s.has("00100", "a", 1)
        until("its repair is refused", lambda: "still has a window" in why(s))
        s.taps[0].drop()
        until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.has("00100", "a")
        assert len(counters(pid)) == 2, counters(pid)
    assert not counters(pid), counters(pid)


def host_cached(kind):
    """torch counts a window down at once where a storage is still open. An engine whose loader keeps one gets no windows, and
    does not serve, since the bytes there are overwritten; it gets windows again when its process is another one."""
    if kind == "vllm":
        return
    with Stage(kind, kind, min_ready=1, **HOST) as s:
        first = s.taps[0]
        s.push("00100", "a")  # the engine was in step
        first.keeps = True
        assert taken(s.push("01500", "b")) == [False, True]
        first.keeps, rounds, n_pauses = False, first.rounds, len(pauses(first))
        until("a repair was tried", lambda: failures(s) + s.server.status()["stage"]["n_repairs"])
        assert first.kept_is_whole() or s.server.get("/v1/upstreams")["n_serving"] == 1, "it serves what was overwritten"
        until("its repair is refused", lambda: "nothing was sent to it" in why(s))
        began = time.monotonic()
        said = s.push("00100", "c")
        assert time.monotonic() - began < READ_S, "the others waited for it"
        assert taken(said) == [False, True], said
        s.has("00100", "c", 1)
        until("it is tried again", lambda: "restart it" in why(s))
        assert (first.rounds, len(pauses(first))) == (rounds, n_pauses), (first.rounds, rounds)
        assert s.server.get("/v1/upstreams")["n_serving"] == 1, s.server.get("/v1/upstreams")
        n_missed, first.fault = s.server.upstreams()[first.url]["n_missed"], ("/model_info", "drop")  # it is away, and comes back as it was
        until("it is away", lambda: s.server.upstreams()[first.url]["n_missed"] > n_missed + FAILURES_DOWN)
        first.fault, n_failed = None, failures(s)
        until("its repair is refused again", lambda: failures(s) > n_failed and "nothing was sent to it" in why(s))
        assert first.rounds == rounds and s.server.get("/v1/upstreams")["n_serving"] == 1, (first.rounds, rounds)
        first.ended()
        s.doubles[0].order("who", "restart", ms=600)
        until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.has("00100", "c")


def host_blind(kind):
    """An SGLang that cannot see the counters costs its time once, and not at each version."""
    if kind == "vllm":
        return
    with Stage(kind, kind, min_ready=1, **HOST) as s:
        s.taps[0].blind = True
        took = []
        for step, label in ("00100", "a"), ("01500", "b"), ("00100", "c"):
            began = time.monotonic()
            assert taken(s.push(step, label)) == [False, True]
            took.append(time.monotonic() - began)
            s.has(step, label, 1)
        assert took[0] > READ_S and max(took[1:]) < READ_S, took
        assert s.taps[0].rounds == len(pauses(s.taps[0])) == 1, (s.taps[0].rounds, pauses(s.taps[0]))
        until("the reason is said", lambda: "/dev/shm" in why(s))


def host_fails(kind):
    """What an SGLang mapped of a window that it did not take is known, or is found out."""
    if kind == "vllm":
        return
    path = "/update_weights_from_tensor"
    with Stage(kind, kind, min_ready=1, **HOST) as s:
        first = s.taps[0]
        for label, fault in ("a", 500), ("b", 404), ("c", "late"):  # the last: its ranks got it
            first.skip, first.fault = 1, (path, fault)
            assert taken(s.push("00100", label)) == [False, True]
            first.fault = None
            until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
            s.has("00100", label)
        for fault in 502, "drop":  # its ranks never get it
            first.fault = (path, fault)
            assert taken(s.push("01500", "d")) == [False, True]
            first.fault, rounds = None, first.rounds
            until("its repair is refused", lambda: "still has a window" in why(s))
            assert first.rounds == rounds, first.rounds
            s.doubles[0].order("who", "restart", ms=600)
            until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
            s.has("01500", "d")


def ranks_unknown(kind, **how):
    """Nothing is sent to an SGLang that does not say how many ranks it has; it serves on, and gets the version later."""
    if kind == "vllm":
        return
    with Stage(kind, kind, min_ready=1, ages=("--world-size", "2"), **how) as s:
        for step, label, fault in (("00100", "a", "drop"), ("01500", "b", 500)):
            rounds = s.taps[0].rounds
            s.taps[0].fault = ("/server_info", fault)
            said = s.push(step, label)
            assert taken(said) == [False, True] and "did not get version" in said["upstreams"][0]["error"], said
            assert s.taps[0].rounds == rounds and s.server.get("/v1/upstreams")["list"][0]["state"] != "fenced", s.server.get("/v1/upstreams")
            until("the reason is said", lambda: "how many ranks" in json.dumps(s.server.status()["stage"]["error"]))
            s.taps[0].fault = None
            until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
            s.has(step, label)


def host_ranks_unknown(kind):
    ranks_unknown(kind, **HOST)


def host_unfit(kind):
    """One SGLang that cannot take windows is out of the hand-off before anything is sent; the other gets all of it."""
    if kind == "vllm":
        return
    for says, reason in ({"pp_size": 2}, "pipeline stages"), ({"version": "0.5.5"}, "0.5.6"), ({"tp_size": 5001}, "5000 ranks"):
        with Stage(kind, kind, min_ready=1, **HOST) as s:
            s.taps[0].says = says
            said = s.push("00100", "a")
            assert taken(said) == [False, True] and "did not get version" in said["upstreams"][0]["error"], said
            s.has("00100", "a", 1)
            until("the reason is said", lambda: reason in why(s) and "--stage cuda:0" in why(s))
            assert s.taps[0].rounds == 0 == len(pauses(s.taps[0])) and s.server.get("/v1/upstreams")["list"][0]["state"] != "fenced"
            s.taps[0].says = {}
            until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
            s.has("00100", "a")


def host_one(kind):
    """A window larger than the model is one request; the GPU may be another."""
    if kind == "vllm":
        with Stage(kind, stage="host,cuda:1") as s:
            s.push("00100", "a")
            s.has("00100", "a")
            s.push("01500", "b")
            s.has("01500", "b")
            assert s.taps[0].rounds == 2, s.taps[0].rounds


def host_baton(kind):
    """An upstream that is a baton with a store on a GPU takes the same requests."""
    if kind != "vllm":
        return
    with Server(BATON, os.path.join(WORK, "log-engine"), "--engine", "none", "--device", "cuda:0", "--cuda-library", FOREIGN, "--manifest",
                checkpoint("00000")) as engine, \
         Server(BATON, os.path.join(WORK, "log"), "--upstream", engine.url, "--stage", "host", "--stage-window", 300000, "--cuda-library", FAKE,
                "--manifest", checkpoint("00000"), "--allow-path", MODEL, "--probe-interval", PROBE_MS) as server:
        until("it answers", lambda: server.get("/v1/upstreams")["list"][0]["state"] not in ("unknown", "down"))
        for step, label in (("00100", "a"), ("01500", "b")):
            server.post("/v1/update_weights", {"path": checkpoint(step), "weight_version": label})
            sums = {name: value[2] for name, value in content(step).items()}
            assert engine.post("/v1/weights/check", {"action": "compare", "baseline": sums})["match"]
            assert engine.status()["weights"]["weight_version"] == label


def behind_baton(kind):
    """A repair of a baton whose own hand-off fails takes no other engine out of rotation."""
    if kind != "vllm":
        return
    with Stage(kind, min_ready=1) as s, Stage(kind, min_ready=1, cuda=FOREIGN) as lower:
        s.push("00100", "a")
        lower.taps[0].fault = ("/update_weights", 500)
        s.server.post("/v1/upstreams", {"upstream": lower.server.url})
        until("its repair has failed", lambda: failures(s))
        up = s.server.upstreams()[s.taps[0].url]
        assert (up["state"], s.taps[0].rounds) == ("serving", 1), (up, s.taps[0].rounds)
        lower.taps[0].fault = None
        until("both serve", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        lower.has("00100", "a")
        assert s.taps[0].rounds == 1, s.taps[0].rounds


def host_repaired(kind):
    """An engine that fails at the second window, or restarts, gets all windows again."""
    if kind == "vllm":
        fails(kind, skip=1, faults=("drop",), **HOST)
        restarted(kind, **HOST)


def host_copy_fails(kind):
    """The driver fails to copy a window: the version is handed over again from the committed bytes."""
    if kind != "vllm":
        return
    fault = {"FAKECUDA_FAIL_CALL": "cuMemcpyHtoDAsync_v2", "FAKECUDA_FAIL_NTH": "5"}  # the first is the update's own
    with Stage(kind, **HOST) as s:
        s.server.__exit__(None)
        os.environ.update(fault)
        try:
            s.serve()
        finally:
            for name in fault:
                del os.environ[name]
        until("it serves", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        said = s.push("00100", "a", 502)
        assert "committed here" in said["error"]["message"] and "cuMemcpyHtoDAsync" in said["error"]["message"], said
        until("it is handed over", lambda: s.server.status()["stage"]["handed_serial"] == 1)
        s.has("00100", "a")


def host_refused(kind):
    """What cannot work with windows is refused, where it is known: at the start, or before an engine is paused."""
    def check(*options):
        return subprocess.run([BATON, "serve", "--check", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:1,{kind}", "--cuda-library", FAKE,
                               "--manifest", checkpoint("00000"), *options], capture_output=True, text=True, check=False)

    done = check("--stage", "host")
    assert done.returncode == 0 and "cuda:0 has the windows, 1 of 1837824 bytes" in done.stdout and "page-locked" in done.stdout, done
    bound = check("--stage", "host", "--max-weight-bytes", "2MiB")
    assert bound.returncode == 1 and "--max-weight-bytes: 3675648 bytes" in bound.stdout, bound
    assert "are available: not enough, a start would fail" in bound.stdout and "(bound: --max-weight-bytes)" in bound.stderr, bound
    first = check("--stage", "host", "--max-weight-bytes", "1MiB", "--weights", checkpoint("00100"))
    assert first.returncode == 2 and "--max-weight-bytes" in first.stderr and "ok" not in first.stdout, first
    lacks = check("--stage", "host", "--cuda-library", "/nonexistent")
    assert lacks.returncode == 2 and "by default cuda:0" in lacks.stderr and lacks.stdout == "", lacks
    for options, said in ((("--stage", "host", "--stage-window", "294911"), "294912"), (("--stage", "cuda:0", "--stage-window", "1GiB"), "--stage host")):
        done = check(*options)
        assert done.returncode == 2 and said in done.stderr, (options, done)
    old, since = (("--vllm-version", "0.23.1"), "0.24") if kind == "vllm" else (("--sglang-version", "0.5.5"), "0.5.6")
    with Stage(kind, ages=old, **HOST) as s:
        said = s.push("00100", "a", 502)
        assert since in said["error"]["message"] and "committed here" in said["error"]["message"], said
        posts = {c[2] for c in s.taps[0].calls if c[1] == "POST"}
        assert not posts & {"/pause", "/pause_generation", "/update_weights", "/update_weights_from_tensor"}, posts


# What an engine answers to a canary that is not finite: vLLM 0.32, SGLang 0.5.16.
NOT_FINITE = {"vllm": (400, {"error": {"message": "Out of range float values are not JSON compliant: nan"}}),
              "sglang": (200, {"meta_info": {"input_token_logprobs": [[None, 17, None]] * 16}})}


def proven(kind):
    """An engine that is faulty with a version gets it once more, without a trainer; then it stays fenced."""
    def is_broken(times):
        status, said = NOT_FINITE[kind]
        s.doubles[0].order("canary", "status", status=status, text=json.dumps(said), times=times)

    def look():
        states = [s.server.upstreams()[t.url]["proof"]["state"] for t in s.taps]
        return s.server.status()["stage"]["n_repairs"], s.server.get("/v1/upstreams")["n_serving"], states

    with Stage(kind, kind, min_ready=1) as s:
        until(lambda: f"what they had is proven: {look()}", lambda: look() == (0, 2, ["proven", "proven"]))
        is_broken(2)  # each fault is asked for twice
        s.push("00100", "a")
        until(lambda: f"it is repaired and proven: {look()}", lambda: look() == (1, 2, ["proven", "proven"]))
        s.has("00100", "a")
        rounds = s.taps[1].rounds
        is_broken(4)  # the repaired one is no better
        s.push("01500", "b")
        until("it is repaired once", lambda: look() == (2, 1, ["not_finite", "proven"]))
        time.sleep(ASLEEP_S)
        assert look() == (2, 1, ["not_finite", "proven"]), look()
        s.push("00100", "c")  # another version is worth a try
        until("it serves", lambda: look() == (2, 2, ["proven", "proven"]))
        s.has("00100", "c")
        assert s.taps[1].rounds == rounds + 2, "the other was repaired too"


def proven_late(kind):
    """A canary that was asked for one version, and is answered right after the resume of the next, accuses nobody."""
    def states():
        return [s.server.upstreams()[t.url]["proof"]["state"] for t in s.taps]

    with Stage(kind, kind, kind, min_ready=1) as s:
        late = s.taps[0]
        s.taps[1].slow = ("/weight_info" if kind == "vllm" else "/model_info", LATE_S)  # what is asked between the resume and the commit
        for step, label in (("00100", "a"), ("01500", "b"), ("00100", "c")):
            late.late_canary = True
            s.push(step, label)
            until("its canary waits", lambda: states() == ["unproven", "proven", "proven"])
            s.push("00000", f"{label}-next")
            late.late_canary = False
            late.resumed.set()
            until("all are proven", lambda: states() == ["proven"] * 3)
        text = s.server.ask("GET", "/metrics")[1]
        assert f'baton_upstream_proofs_total{{upstream="{late.url}",result="differs"}} 0' in text, text
        with open(s.server.log, encoding="utf-8") as log:
            fenced = [line for line in log if '"to":"fenced"' in line and late.url in line]
        assert not fenced, fenced


def checked(kind):
    """Checksums are compared with the committed bytes: what had them before, and has others now, is repaired."""
    def proofs():
        return [s.server.upstreams()[t.url]["proof"] for t in s.taps]

    def look():
        return s.server.status()["stage"]["n_repairs"], s.server.get("/v1/upstreams")["n_serving"], [p and p["state"] for p in proofs()]

    def committed():
        return [tuple(p["checksums"]["committed"][n] for n in ("n_checked", "n_equal", "n_different", "n_wrong")) for p in proofs()]

    norm, ages = "model.norm.weight", ("--vllm-version", "0.32.0") if kind == "vllm" else ()
    n = len([name for name in content("00100") if not any(p in name for p in FUSED)])
    with Stage(kind, kind, min_ready=1, options=("--prove", "checksums", "--compat", kind), ages=ages) as s:
        first, began_at = s.taps[0], os.path.getsize(s.server.log)
        for tap in s.taps:
            tap.checks = True
        for step, label in ("00100", "a"), ("01500", "b"):
            s.push(step, label)
            until("both are proven", lambda: look() == (0, 2, ["proven", "proven"]))
            assert committed() == [(n, n - 1, 1, 0)] * 2, committed()  # one is padded; fused ones are not compared
        first.tear = {norm}
        s.push("00100", "c")
        until("it is repaired", lambda: look() == (1, 2, ["proven", "proven"]))
        assert committed() == [(n, n - 1, 1, 0)] * 2 and s.server.upstreams()[first.url]["state"] == "serving", committed()
        with open(s.server.log, encoding="utf-8") as log:
            log.seek(began_at)
            lines = [json.loads(line) for line in log if line.startswith("{")]
        wrong = [r["error"] for r in lines if r["event"] == "upstream.proof" and r.get("action") == "fenced"]
        assert len(wrong) == 1 and norm in wrong[0] and "other bytes than were committed" in wrong[0], wrong
        layouts = [r["upstream"] for r in lines if r["event"] == "upstream.layout"]
        assert sorted(layouts) == sorted(t.url for t in s.taps), layouts
        first.slow = (CHECKER[kind], 4)  # the next version does not wait for its answer, and is proven itself
        calls = len(first.calls)
        s.push("01500", "d")
        until("it is asked", lambda: any(c[2] == CHECKER[kind] for c in first.calls[calls:]))
        began = time.monotonic()
        s.push("00100", "e")
        assert time.monotonic() - began < 4, time.monotonic() - began
        first.slow = None
        until("both are proven", lambda: look() == (1, 2, ["proven", "proven"]) and {p["weight_version"] for p in proofs()} == {"e"})
        said = s.server.post("/v1/upstreams/prove", {"upstream": first.url})
        assert (said["n"], said["n_proven"]) == (1, 1) and said["list"][0]["proof"]["checksums"]["committed"]["n_equal"] == n - 1, said
        said = shown(s, "upstreams", "prove").splitlines()
        was = f"; of {n} that have names of committed tensors {n - 1} have their bytes, 1 have others (another layout is no fault), 0 wrong"
        assert len(said) == 2 and all(line.endswith(was) for line in said), said
        said = shown(s, "upstreams", "prove", "--canary").splitlines()
        assert len(said) == 2 and all(line.endswith(": proven, compared with 1 other") for line in said), said
        first.torn = {norm}  # it drifts: its memory was overwritten
        assert s.server.post("/v1/upstreams/prove", {})["n_proven"] < 2
        until("it is repaired", lambda: look() == (2, 2, ["proven", "proven"]))
        first.tear = {norm}
        s.doubles[0].order("who", "restart", ms=100)  # of another process nothing was known to be right
        until("it was given the version", lambda: look()[:2] in ((3, 1), (3, 2)))
        until("both differ, without a majority", lambda: look() == (3, 2, ["differs", "differs"]))
        assert committed() == [(n, n - 2, 2, 0), (n, n - 1, 1, 0)], committed()
        said = s.server.post("/v1/weights/check", {"action": "checksum"})  # of the version that is staged here
        other = s.server.post(CHECKER[kind], {"action": "checksum"})
        assert other.get("checksums", said["checksums"]) == said["checksums"] and (kind == "vllm" or other["success"]), other
        assert said["weight_version"] == "e" and said["checksums"] == {name: t[2] for name, t in content("00100").items()}, said


CASES = {f.__name__: f for f in (whole, delta, refused, other_gpu, sharing, restarted, fails, one_serial, lost, watched, all_fail, one_fails, not_resumed, own, undisturbed, starts, asleep, host, host_kept, host_cached, host_blind,
                                    host_fails, ranks_unknown, host_ranks_unknown, host_unfit, host_one,
                                    host_baton, behind_baton, host_repaired, host_copy_fails, host_refused,
                                    proven, proven_late, checked)}


if __name__ == "__main__":
    run_cases(CASES)

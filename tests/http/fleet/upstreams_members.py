"""Engines that join and leave a fleet by a request, from a server that starts without any.

Usage: as upstreams_world.py says.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time

from fake_engine_world import PROMPT, completion, expected, ids_of
from fleet_world import Server, until
from upstreams_world import (BATON, HANDLES, LOG, MODEL, PROBES, WORK, asked, becomes, check, closed_port, commit, double, logged,
                             refused, run, same, why_not, write)

N_ROUNDS = 100


def add(s, spec):
    return s.post("/v1/upstreams", {"upstream": spec})


def remove(s, url):
    return s.post("/v1/upstreams/remove", {"upstream": url})


def reload(s):
    n = len(logged("reload"))
    s.process.send_signal(signal.SIGHUP)
    until("it is reloaded", lambda: len(logged("reload")) > n)
    check(logged("reload")[-1]["upstreams"].startswith("read: "), logged("reload")[-1])


def server(*options, text="# engines join by requests\n"):
    return Server(BATON, LOG, "--upstream-file", write("upstreams", text), *PROBES, *options)


def starts_empty():
    """Nothing fails for want of engines; the first that joins is served by."""
    with server("--min-ready", 1) as s, double("baton") as a:
        same(s.get("/v1/upstreams"), {"min_ready": 1, "n_serving": 0, "n": 0, "warning": None, "names": [], "list": []})
        check("0 of 0 upstreams serve, 1 are needed" in why_not(s), why_not(s))
        for path, body in (("/v1/generate", {"token_ids": [1]}), ("/v1/completions", completion()), ("/v1/pause", {}),
                           ("/v1/sleep", {}), ("/v1/update_weights/start", {}), ("/v1/update_weights", {"path": WORK}),
                           ("/v1/weights/label", {"weight_version": "x"}), ("/v1/reset_cache", {}),
                           ("/v1/weight_transfer/init", {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}),
                           ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": WORK})):
            status, said = s.ask("POST", path, body)
            check(400 <= status <= 503, (path, status, said))
        for path in ("/metrics", "/v1/status", "/v1/lora_adapters", "/get_world_size", "/v1/update_weights/none"):
            check(s.ask("GET", path)[0] in (200, 400, 404, 409, 503), path)
        check("add one by POST /v1/upstreams" in s.ask("POST", "/v1/completions", completion())[1]["error"]["message"], "what to do")
        s.post("/v1/resume")
        said = s.ask("POST", "/v1/upstreams/prove", {})
        same((said[0], said[1]["error"]["code"]), (503, "no_weights"), said)  # it was "paused", held by an update
        check("0 upstreams serve, 1 are needed" in said[1]["error"]["message"], said)
        message = refused(s, 503, "no_weights", "POST", "/v1/update_weights/start", {})
        check("there is no upstream yet: add one by POST /v1/upstreams" in message, message)
        message = refused(s, 404, "not_found", "POST", "/v1/upstreams/remove", {"upstream": a.url})
        check("there is no upstream" in message and "none is configured" in message, message)
        row = add(s, a.url)
        same((row["upstream"], row["dialect"], row["origin"]), (a.url, "baton", "request"))
        becomes(s, a.url, "serving")
        check(s.ready(), "one serves")
        s.post("/v1/completions", completion())
        same(remove(s, a.url)["state"], "removed")
        check("0 of 0 upstreams serve" in why_not(s), "the last one may go")
        reload(s)


def joins():
    """The same again changes nothing; another description is refused; SIGHUP keeps it, a restart does not."""
    with double("baton") as a, double("vllm") as b:
        path = write("upstreams", f"{a.url}\n")
        with server(text=f"{a.url}\n") as s:
            becomes(s, a.url, "serving")
            add(s, f"{b.url},vllm")
            becomes(s, b.url, "serving")
            same(s.status()["upstreams"]["min_ready"], 2, "all are counted")
            granted = s.upstreams()[b.url]["n_granted"]
            for _ in range(2):
                same(add(s, f"{b.url},vllm")["state"], "serving", "a repeated request")
            same(add(s, a.url)["origin"], "configuration")
            same([e["upstream"] for e in logged("upstream.added")].count(b.url), 1)
            message = refused(s, 409, "conflict", "POST", "/v1/upstreams", {"upstream": f"{b.url},sglang"})
            check("is an upstream already, with another description (vllm, without a key" in message, message)
            reload(s)
            same((s.upstreams()[b.url]["state"], s.upstreams()[b.url]["origin"]), ("serving", "request"))
            check(s.upstreams()[b.url]["n_granted"] >= granted, "it is the same one")
            write("upstreams", f"{a.url}\n{b.url},vllm\n")
            reload(s)
            same(s.upstreams()[b.url]["origin"], "configuration", "named by both")
            write("upstreams", f"{a.url}\n")
            reload(s)
            check(b.url not in s.upstreams(), "it belonged to the configuration")
            same(remove(s, a.url)["origin"], "configuration")
            check(a.url not in s.upstreams(), "gone")
            refused(s, 404, "not_found", "POST", "/v1/upstreams/remove", {"upstream": a.url})
            reload(s)
            becomes(s, a.url, "serving")
            same([(e["upstream"], e["origin"]) for e in logged("upstream.removed")[-2:]],
                 [(b.url, "configuration"), (a.url, "configuration")])
            add(s, f"{b.url},vllm")
        with Server(BATON, LOG, "--upstream-file", path, *PROBES) as s:
            same(list(s.upstreams()), [a.url], "a request does not outlive the server")


def mistakes():
    key, secret = write("key", "sk-1\n"), write("secret", "sk-2\n")
    with double("baton", "--key", "sk-1") as a, double("baton", "--key", "sk-1") as b, \
         server(text=f"{a.url},key-file={key}\n") as s:
        becomes(s, a.url, "serving")
        for spec, wanted in (("", "none of http://host:port"), ("ftp://a:1", "none of http://host:port"),
                             ("http://a:1,tgi", "tgi"), ("http://h:99999", "port '99999'"),
                             ("http://a:1,http://b:2", "use one request for each"), ("http://a:1\nhttp://b:2", ""),
                             ("http://a:1,keyfile=x", "did you mean key-file"), ("http://a:1 # no", ""),
                             (f"http://a:1,key-file={secret}", "only as the configuration does"),
                             (f"http://a:1,vllm,key-file={key},key-file=/etc/passwd", "only as the configuration does"),
                             ("http://a:1,key-file=/nowhere", "only as the configuration does"),
                             ("https://a:1,ca-file=/etc/passwd", "only as the configuration does"),
                             ("http://a:1," + "x" * 5000, "longer than 4096 bytes")):
            status, said = s.ask("POST", "/v1/upstreams", {"upstream": spec})
            same((status, said["error"]["code"], said["error"]["param"]), (400, "bad_request", "/upstream"), spec)
            check(wanted in said["error"]["message"] and "sk-" not in said["error"]["message"], said)
        for body in ({}, {"upstream": 1}, {"upstream": "http://a:1", "kind": "vllm"}):
            refused(s, 400, "bad_request", "POST", "/v1/upstreams", body)
            refused(s, 400, "bad_request", "POST", "/v1/upstreams/remove", body)
        refused(s, 404, "not_found", "POST", "/v1/upstreams/remove", {"upstream": "http://a:1"})
        same(list(s.upstreams()), [a.url], "nothing has changed")
        add(s, f"{b.url},key-file={key}")
        becomes(s, b.url, "serving")
        write("key", "sk-3\n")
        reload(s)
        becomes(s, b.url, "refused")  # its key is read again too
    with Server(BATON, LOG, "--model", MODEL) as s:
        for path in ("/v1/upstreams", "/v1/upstreams/remove"):
            refused(s, 409, "no_upstreams", "POST", path, {"upstream": "http://a:1"})


def meanwhile():
    """In an update, and in a pause: it gets no request before it has the version, and the resume."""
    with double("baton") as a, double("vllm") as b, server(text=f"{a.url}\n") as s:
        becomes(s, a.url, "serving")
        update = s.post("/v1/update_weights/start", {"weight_version": "v1"})["update_id"]
        add(s, f"{b.url},vllm")
        s.post("/v1/update_weights", {"path": WORK, "update_id": update})
        s.post("/v1/update_weights/finish", {"update_id": update})
        becomes(s, b.url, "unsynced")
        check("it did not get version 'v1'" in s.upstreams()[b.url]["error"]["message"], s.upstreams()[b.url])
        commit(s, "v2")
        becomes(s, b.url, "serving")
        remove(s, b.url)
        s.post("/v1/pause", {"mode": "keep"})
        b.good("POST", "/update_weight_version", {"new_version": "v2"})
        b.good("DELETE", "/journal")
        add(s, f"{b.url},vllm")
        until("it is known", lambda: s.upstreams()[b.url]["last_heard_s"] is not None)
        client = threading.Thread(target=lambda: s.ask("POST", "/v1/completions", completion()))
        client.start()
        time.sleep(0.2)
        same(asked(b), [], "paused")
        s.post("/v1/resume")
        client.join()
        s.post("/v1/upstreams/resync", {"upstream": b.url})
        becomes(s, b.url, "serving")
        asleep(s)


def push(s, update, body):
    return s.ask("POST", "/v1/update_weights", dict(body, update_id=update))


def leaves_in_an_update():
    """An engine that is removed counts no more: not for --min-ready, and it does not end the update of the others."""
    for dialect, body in (("vllm", HANDLES), ("sglang", {"path": WORK})):
        with double(dialect) as a, double(dialect) as b, double(dialect) as c, server() as s:
            for d in (a, b, c):
                add(s, f"{d.url},{dialect}")
                becomes(s, d.url, "serving")
            update = s.post("/v1/update_weights/start", {"weight_version": "v1"})["update_id"]
            remove(s, c.url)
            b.kill()
            push(s, update, body)
            status, said = s.ask("POST", "/v1/update_weights/finish", {"update_id": update})
            check(status >= 400, f"{dialect}: one of two: {said}")
            same(s.get(f"/v1/update_weights/{update}")["phase"], "aborted")
            remove(s, b.url)
            commit(s, "v2")
            becomes(s, a.url, "serving")
            update = s.post("/v1/update_weights/start", {"weight_version": "v3"})["update_id"]
            remove(s, a.url)
            push(s, update, body)
            status, said = s.ask("POST", "/v1/update_weights/finish", {"update_id": update})
            check(status >= 400, f"{dialect}: none is left: {said}")
            same(s.get(f"/v1/update_weights/{update}")["phase"], "aborted")
    with double("baton") as a, double("baton") as b, double("baton") as c, server() as s:
        for d in (a, b, c):
            add(s, d.url)
            becomes(s, d.url, "serving")
        update = s.post("/v1/update_weights/start", {"weight_version": "v1"})["update_id"]
        b.kill()
        becomes(s, b.url, "down")
        remove(s, b.url)
        c.order("update", "status", status=500, times=0)
        remove(s, c.url)
        same(push(s, update, {"path": WORK})[0], 200, "for the one that stays")
        s.post("/v1/update_weights/finish", {"update_id": update})
        same((s.upstreams()[a.url]["state"], s.upstreams()[a.url]["weight_version"]), ("serving", "v1"))
        c.good("DELETE", "/fault")
        add(s, c.url)  # where the first update is still open
        until("it answers", lambda: s.upstreams()[c.url]["last_heard_s"] is not None)
        commit(s, "v2")
        becomes(s, c.url, "serving")


def asleep(s):
    """It joins while the others sleep; it serves only with the fleet's adapters."""
    s.post("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": WORK})
    s.post("/v1/sleep", {"level": 1})
    with double("vllm") as c:
        c.good("POST", "/update_weight_version", {"new_version": "v2"})
        add(s, f"{c.url},vllm")
        until("it is known", lambda: s.upstreams()[c.url]["last_heard_s"] is not None)
        check(s.upstreams()[c.url]["state"] != "serving", "the others sleep")
        s.post("/v1/wake")
        s.post("/v1/upstreams/resync", {"upstream": c.url})
        becomes(s, c.url, "serving")
        same((list(c.state()["adapters"]), s.upstreams()[c.url]["missing_adapters"]), (["mine"], []))
        remove(s, c.url)



def removed_asleep():
    """An SGLang that left asleep does not say so when it is added again after the others were woken."""
    with double("sglang") as a, double("sglang") as b, double("sglang") as c, server("--min-ready", 1) as s:
        for d in (a, b, c):
            d.must_be_fresh = False
            add(s, f"{d.url},sglang")
            becomes(s, d.url, "serving")
        remove(s, c.url)  # awake
        s.post("/v1/sleep", {"level": 1})
        remove(s, a.url)
        s.post("/v1/wake")
        add(s, f"{c.url},sglang")
        add(s, f"{a.url},sglang")
        becomes(s, a.url, "fenced")
        becomes(s, c.url, "serving")
        for _ in range(6):
            s.post("/v1/completions", completion())
        same(asked(a), [], "it is asleep")


def removed_asleep_twice():
    """The same if it was added in between, still asleep."""
    with double("sglang") as a, double("sglang") as b, server("--min-ready", 1) as s:
        for d in (a, b):
            d.must_be_fresh = False
            add(s, f"{d.url},sglang")
            becomes(s, d.url, "serving")
        s.post("/v1/sleep", {"level": 1})
        remove(s, a.url)
        add(s, f"{a.url},sglang")
        until("it answers", lambda: s.upstreams()[a.url]["last_heard_s"] is not None)
        remove(s, a.url)
        s.post("/v1/wake")
        add(s, f"{a.url},sglang")
        becomes(s, a.url, "fenced")
        check("it may be asleep" in s.upstreams()[a.url]["errors"][1]["message"], s.upstreams()[a.url])
        for path in ("/v1/sleep", "/v1/wake"):
            s.ask("POST", path, {})  # with the others: its weights may be others, but it is awake
        check("resync it" in s.upstreams()[a.url]["error"]["message"], s.upstreams()[a.url])
        same(a.state()["weights_asleep"], False, "it is awake")
        commit(s, "v1")
        becomes(s, a.url, "serving")


def removed_paused():
    """An SGLang that left paused is resumed when it is added again after the others were."""
    with double("sglang") as a, double("sglang") as b, server("--min-ready", 1) as s:
        for d in (a, b):
            add(s, f"{d.url},sglang")
            becomes(s, d.url, "serving")
        s.post("/v1/pause", {"mode": "keep"})
        remove(s, a.url)
        add(s, f"{a.url},sglang")
        until("it answers", lambda: s.upstreams()[a.url]["last_heard_s"] is not None)
        remove(s, a.url)
        s.post("/v1/resume")
        add(s, f"{a.url},sglang")
        until("it is resumed", lambda: a.state()["pause"] is None)
        becomes(s, a.url, "serving")
        s.post("/v1/pause", {"mode": "keep"})
        remove(s, b.url)
        b.good("POST", "/continue_generation", {})
        add(s, f"{b.url},sglang")
        until("it is paused as the others are", lambda: b.state()["pause"] is not None)
        s.post("/v1/resume")
        for d in (a, b):
            becomes(s, d.url, "serving")
            same(d.state()["pause"], None, "resumed")


def under_load():
    """What runs at an engine that leaves may end, also when it joins again meanwhile; nothing is lost."""
    with double("baton", "--interval-us", 3000) as a, double("baton", "--interval-us", 3000) as b, \
         server(text=f"{a.url}\n") as s:
        add(s, b.url)
        becomes(s, a.url, "serving")
        becomes(s, b.url, "serving")
        stop, bad = threading.Event(), []

        def ask():
            while not stop.is_set():
                status, said = s.ask("POST", "/v1/completions", completion(20))
                if status != 200 or ids_of(said["choices"][0]["text"]) != expected(PROMPT, "step-0", 0, 20):
                    bad.append((status, said))

        clients = [threading.Thread(target=ask) for _ in range(6)]
        for c in clients:
            c.start()
        for n in range(4):
            until("it has requests", lambda: s.upstreams()[b.url]["outstanding"]["generate"] > 0)
            row = remove(s, b.url)
            same((row["state"], row["origin"]), ("removed", "request"))
            if n % 2:  # else it joins while requests still run there
                until("it is drained", lambda: b.url not in s.upstreams())
            add(s, b.url)
            becomes(s, b.url, "serving")
        stop.set()
        for c in clients:
            c.join()
        same(bad, [])


def many_times():
    """Each time another engine, and all at once: nothing grows, and the last request for an engine decides."""
    with double("baton") as a, server("--min-ready", 1, text=f"{a.url}\n") as s, contextlib.ExitStack() as stack:
        becomes(s, a.url, "serving")
        others = [stack.enter_context(double("baton")) for _ in range(2)]
        n_files = lambda: len(os.listdir(f"/proc/{s.process.pid}/fd"))

        def rounds(n):
            for _ in range(n):
                for d in others:
                    add(s, d.url)
                for d in others:
                    remove(s, d.url)

        rounds(5)
        before = n_files()
        rounds(N_ROUNDS)
        until(lambda: f"{n_files()} descriptors, {before} before", lambda: n_files() <= before + 2)
        for i in range(300):  # more than there are indexes
            url = f"http://127.0.0.1:{1 + i}"
            add(s, url)
            remove(s, url)
        errors = []

        def race(url):
            for _ in range(20):
                for path in ("/v1/upstreams", "/v1/upstreams/remove"):
                    status, said = s.ask("POST", path, {"upstream": url})
                    if status not in (200, 404):
                        errors.append(said)

        clients = [threading.Thread(target=race, args=(others[i % 2].url,)) for i in range(4)]
        for c in clients:
            c.start()
        for _ in range(5):
            s.process.send_signal(signal.SIGHUP)
            time.sleep(0.01)
        for c in clients:
            c.join()
        same(errors, [])
        for d in others:
            s.ask("POST", "/v1/upstreams/remove", {"upstream": d.url})
        until("all are gone", lambda: list(s.upstreams()) == [a.url])
        s.post("/v1/completions", completion())


def down_at_first():
    """An engine that is not up yet joins when it answers."""
    port = closed_port()
    with double("baton") as a, server("--min-ready", 1, text=f"{a.url}\n") as s:
        becomes(s, a.url, "serving")
        url = f"http://127.0.0.1:{port}"
        add(s, url)
        becomes(s, url, "down")
        check(s.ready(), "the others serve")
        with double("baton", "--port", port) as b:
            same(b.url, url)
            becomes(s, url, "serving")


def load(s, path):
    return s.post("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": path, "load_inplace": True})


def unload(s):
    return s.post("/v1/unload_lora_adapter", {"lora_name": "mine"})


def keeps_its_adapters():
    """An engine that is removed keeps its adapters. Added again, it serves those of the fleet and no others."""
    paths = [os.path.join(WORK, name) for name in ("first", "second")]
    for path in paths:
        os.makedirs(path)
    for kind in ("vllm", "sglang", "baton"):
        with double(kind) as a, double(kind) as b, server("--min-ready", 1) as s:
            def while_away(change):
                remove(s, a.url)
                change()
                same(s.upstreams()[b.url]["state"], "serving", "it keeps no other out")
                add(s, f"{a.url},{kind}")

            for d in (a, b):
                add(s, f"{d.url},{kind}")
                becomes(s, d.url, "serving")
            load(s, paths[0])
            while_away(lambda: load(s, paths[1]))
            remove(s, b.url)  # none has the new one
            becomes(s, a.url, "serving")
            same(a.state()["adapters"], {"mine": paths[1]}, kind)
            add(s, f"{b.url},{kind}")
            becomes(s, b.url, "serving")
            while_away(lambda: unload(s))
            becomes(s, a.url, "serving")
            same(a.state()["adapters"], {}, kind)
            load(s, paths[0])
            while_away(lambda: (unload(s), load(s, paths[1])))
            becomes(s, a.url, "serving")
            same([d.state()["adapters"] for d in (a, b)], [{"mine": paths[1]}] * 2, kind)
            a.order("lora_load", "status", status=400, times=0)
            while_away(lambda: load(s, paths[0]))
            remove(s, b.url)
            becomes(s, a.url, "serving")
            same(a.state()["adapters"], {}, "it refused the new one, and has not kept the old one")


def more_than_configured():
    """--min-ready counts engines that are added later."""
    with double("baton") as a, double("baton") as b, server("--min-ready", 2, text=f"{a.url}\n") as s:
        until("it answers", lambda: s.upstreams()[a.url]["last_heard_s"] is not None)
        check(not s.ready(), "one is missing")
        check("until 1 more is added" in logged("upstreams.too_few")[-1]["message"], logged("upstreams.too_few"))
        refused(s, 503, "no_weights", "POST", "/v1/update_weights/start", {"weight_version": "x"})
        add(s, b.url)
        until("both serve", s.ready)
        commit(s, "v1")
        reload(s)
        check(s.ready(), "both stay")
        n = len(logged("upstreams.too_few"))
        remove(s, b.url)
        reload(s)
        same(len(logged("upstreams.too_few")), n + 1, "SIGHUP says so too")
        found = subprocess.run([BATON, "serve", "--check", "--listen", "127.0.0.1:0", "--upstream", a.url, "--min-ready", "2"],
                               capture_output=True, text=True, timeout=60, check=True)
        check("until 1 more is added" in found.stderr and "upstreams: 1, of which 2 must serve" in found.stdout, found)


def itself():
    """Added by its own URL, or configured with it: it gets no requests, and takes no part in updates."""
    port = closed_port()
    own, alias = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
    with double("baton") as a, \
         server("--listen", f"127.0.0.1:{port}", "--min-ready", 1, text=f"{a.url}\n{own}\n") as s:
        becomes(s, a.url, "serving")
        for kind in ("baton", "vllm", "sglang"):
            add(s, f"{alias},{kind}")
            for url in (own, alias):
                becomes(s, url, "down")
                same(s.upstreams()[url]["error"]["message"], "it is this server itself: remove it")
                same(s.upstreams()[url]["n_granted"], 0)
                message = refused(s, 409, "precondition_failed", "POST", "/v1/upstreams/resync", {"upstream": url})
                check("it is this server itself" in message, message)
            same(s.get("/v1/upstreams")["n_serving"], 1)
            s.post("/v1/completions", completion())
            commit(s, kind)
            s.post("/v1/pause", {})
            s.post("/v1/resume", {})
            same({u: r["state"] for u, r in s.upstreams().items()}, {a.url: "serving", own: "down", alias: "down"})
            remove(s, alias)
            until("it is gone", lambda: alias not in s.upstreams())
    with double("baton") as a, server("--listen", f"127.0.0.1:{port}", text=f"{a.url}\n{own}\n") as s:
        becomes(s, own, "down")
        message = refused(s, 503, "no_weights", "POST", "/v1/update_weights/start", {"weight_version": "x"})
        check(f"down: {own}" in message, message)
        remove(s, own)
        becomes(s, a.url, "serving")


def two_urls():
    """One engine under two URLs serves once, under the URL that is listed first."""
    for kind in ("baton", "vllm"):
        with double(kind) as a, double(kind) as other:
            again = a.url.replace("127.0.0.1", "localhost")
            check(again != a.url, again)
            with server("--min-ready", 1, text=f"{a.url},{kind}\n{other.url},{kind}\n") as s:
                becomes(s, a.url, "serving")
                add(s, f"{again},{kind}")
                until("it is recognized", lambda: (s.upstreams()[again]["error"] or {}).get("message") ==
                      f"it is the same process as {a.url}: remove one of the two")
                becomes(s, again, "down")
                message = refused(s, 409, "conflict", "POST", "/v1/upstreams/resync", {"upstream": again})
                check(a.url in message, message)
                commit(s, "v1")
                same({u: r["state"] for u, r in s.upstreams().items()}, {a.url: "serving", other.url: "serving", again: "down"})
                same(s.upstreams()[again]["n_granted"], 0)
                remove(s, a.url)
                becomes(s, again, "unsynced")  # it is the only one now, and has missed the update
                commit(s, "v2")
                becomes(s, again, "serving")


def commands():
    """baton upstreams add, remove"""
    with double("vllm") as a, double("baton") as b, server(text=f"{b.url}\n") as s:
        def baton(*words):
            done = subprocess.run([BATON, "upstreams", *words, "--url", s.url], capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stdout + done.stderr

        rc, said = baton("add", f"{a.url},vllm")
        check(rc == 0 and said.startswith(f"{a.url}: ") and said.endswith(" (vllm)\n"), said)
        becomes(s, a.url, "serving")
        rows = [line.split()[:3] for line in baton()[1].splitlines()[-3:]]
        same(rows, [["UPSTREAM", "KIND", "FROM"], [b.url, "baton", "config"], [a.url, "vllm", "request"]])
        rc, said = baton("add", a.url)
        check(rc == 1 and "another description" in said, said)
        rc, said = baton("remove", f"{a.url},vllm")
        check(rc == 1 and f"there is no upstream '{a.url},vllm': give its URL alone; there are: " in said and a.url in said, said)
        same(baton("remove", a.url), (0, f"{a.url}: removed, 0 requests still run there\n"))
        rc, said = baton("remove", b.url)
        check(rc == 0 and "the configuration names it: it is back after SIGHUP or a restart" in said, said)
        rc, said = baton("remove", b.url)
        check(rc == 1 and "there is no upstream" in said, said)


run({test.__name__: test for test in (starts_empty, joins, mistakes, meanwhile, leaves_in_an_update, removed_asleep,
                                        removed_asleep_twice, removed_paused, under_load, many_times,
                                        down_at_first, keeps_its_adapters, more_than_configured, itself, two_urls, commands)})

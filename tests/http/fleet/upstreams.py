"""What a server in front of upstream engines reports about them: which serve and which do not, and why; which
return; what a reload of its files changes; with which options it refuses to start.

Usage: as upstreams_world.py says.
"""

import contextlib
import http.client
import http.server
import json
import os
import re
import signal
import ssl
import subprocess
import threading
from pathlib import Path

from fake_engine_world import PROMPT, Double, completion, expected, ids_of
from fleet_world import Server, until
from upstreams_world import (BATON, ENGINE, LOG, MODEL, PROBES, WORK, asked, becomes, check, closed_port, double, logged,
                             metric, refused, run, same, state_of, why_not, world, write)


# ---- before the first reply ----

def nobody_answers():
    url = f"http://127.0.0.1:{closed_port()}"
    with Server(BATON, LOG, "--upstream", url, "--upstream", "unix:/nowhere,vllm", *PROBES) as s:
        check(s.status()["live"], "the process is well")
        check("0 of 2 upstreams serve" in why_not(s), why_not(s))
        until("it was asked", lambda: s.upstreams()[url]["error"])
        check(url in why_not(s) and "unix:/nowhere" in why_not(s), why_not(s))
        becomes(s, url, "down")
        same(s.upstreams()[url]["last_heard_s"], None)
        refused(s, 503, "no_weights", "POST", "/v1/generate", {"token_ids": [1]})
        same(s.ask("GET", "/livez")[0], 200)
        same(metric(s, f'baton_upstream_state{{upstream="{url}",state="down"}}'), 1)
        same(metric(s, "baton_ready"), 0)
        check(metric(s, f'baton_upstream_failures_total{{upstream="{url}"}}') >= 1, "misses are counted")
        weights = s.status()["weights"]
        same((weights["state"], weights["serial"], weights["weight_version"]), ("unsynced", None, None))


# ---- what is said of those that serve ----

def each_dialect():
    with world("baton", "vllm", "sglang") as (s, *ds):
        check(s.ready(), "all serve")
        listed = s.get("/v1/upstreams")
        described = json.loads((Path(__file__).parents[3] / "openapi" / "baton.json").read_text("utf-8"))
        described = described["components"]["schemas"]
        same(set(listed), set(described["Upstreams"]["properties"]), "members as in openapi/baton.json")
        for u in listed["list"]:
            same(set(u), set(described["Upstream"]["properties"]), "members as in openapi/baton.json")
        same((listed["n"], listed["n_serving"], listed["min_ready"]), (3, 3, 3))
        same([(u["upstream"], u["dialect"], u["state"]) for u in listed["list"]],
             [(d.url, d.dialect, "serving") for d in ds])
        by = {u["dialect"]: u for u in listed["list"]}
        same(by["baton"]["process"], ds[0].get("/v1/status")["boot_id"])
        check(by["vllm"]["process"], by["vllm"])
        same({u["weight_version"] for u in by.values()}, {"step-0"})
        same([u["error"] for u in listed["list"]], [None] * 3)
        same(metric(s, "baton_fleet_serving"), 3)
        same(metric(s, "baton_fleet_serial"), 0)
        status = s.status()
        same([status[k] for k in ("update", "pause", "model")], [None] * 3)
        same((status["life"], status["ready"], status["reason"]), ("serving", True, None))
        same(sorted(status["admission"]), ["detokenize", "generate"])
        views(s)
        check("is not supported in front of" in refused(s, 409, "unsupported_in_proxy_mode", "POST", "/v1/preflight", {}), "preflight")
        idle = lambda: [d.journal("completions") for d in ds]
        until("the idle are asked for a token", lambda: all(idle()))
        check(s.ready(), "and give one")


def views(s):
    """What other servers' clients ask about it."""
    same(s.get("/is_paused"), {"is_paused": False})
    same(s.get("/is_sleeping"), {"is_sleeping": False})
    same(s.get("/get_world_size"), {"world_size": 6})
    same(s.get("/load"), {"server_load": 0})
    info = s.get("/server_info?config_format=json")
    config = info["vllm_config"]
    same(config["weight_transfer_config"], {"backend": "nccl"})
    same(config["model_config"]["dtype"], None)
    check("does not report it" in config["unknown"]["model_config.dtype"], "an SGLang has another word for it")
    same((info["num_gpus"], info["world_size"], info["tp_size"]), (6, 6, 6))
    same(s.get("/get_model_info")["is_generation"], True)
    check(s.get("/get_load")[0]["num_tokens"] is None, "nobody knows")


def what_all_say(*configs, before=lambda *_: None):
    """A server in front of a vLLM for each of them says of its configuration …"""
    with contextlib.ExitStack() as stack:
        ds = [stack.enter_context(double("vllm", "--vllm-config", json.dumps(c))) for c in configs]
        s = stack.enter_context(Server(BATON, LOG, *[o for d in ds for o in ("--upstream", f"{d.url},vllm")], *PROBES))
        until("all serve", lambda: s.status()["upstreams"]["n_serving"] == len(ds))
        before(*ds)
        said = s.get("/server_info?config_format=json")["vllm_config"]
        check(isinstance(s.get("/server_info")["vllm_config"], str), "text is for people")
        same(len(ds[0].journal("config")), 1, "asked for whoever wants to know")
        return said, [d.url for d in ds]


def status_of(s, method, path, body):
    """Of the head; the stream of /v1/events has no end."""
    if path != "/v1/events":
        return s.ask(method, path, body)[0]
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    try:
        c.request(method, path)
        return c.getresponse().status
    finally:
        c.close()


def every_route():
    """In front of a fleet there are no weights and no engine: no handler may count on them, whatever the
    route and the body. Bodies are of several dialects, and sent to the routes of all."""
    bodies = ({}, {"names": ["a"], "dtypes": ["F32"], "shapes": [[1]], "transport": "nccl", "group_name": "g"},
              {"update_info": {"names": ["a"], "dtype_names": ["float32"], "shapes": [[1]]}},
              {"update_info": [{"names": ["a"], "dtype_names": ["float32"], "shapes": [[1]]}]},
              {"ipc_handles": [["GPU-x"]], "names": ["a"], "dtypes": ["F32"], "shapes": [[1]]},
              {"method": "update_weights_ipc", "args": [{}]}, {"prompt": "x", "max_tokens": 1},
              {"lora_name": "a", "lora_path": "/nowhere", "timeout_s": 1})
    described = json.loads((Path(__file__).parents[3] / "openapi" / "baton.json").read_text("utf-8"))
    with world("baton", "vllm", "sglang") as (s, *_):
        for path, methods in described["paths"].items():
            for method in {"get", "post", "delete"} & set(methods):
                for body in bodies if method == "post" else (None,):
                    status = status_of(s, method.upper(), re.sub(r"{[^}]*}", "x", path), body)
                    check(status != 500, f"{method} {path} {body}: {status}")
        same(s.ask("GET", "/livez")[0], 200, "the process is alive")


def configuration_of_vllms():
    """TRL decides by it how to send weights and adapters: it is the engines' value, or missing."""
    model = {"model": "/m", "max_model_len": 256, "dtype": "torch.float32", "logprobs_mode": "processed_logprobs",
             "max_logprobs": -1}
    lora = {"max_lora_rank": 16, "max_loras": 4, "lora_dtype": "torch.bfloat16"}
    one = {"model_config": model, "parallel_config": {"data_parallel_size": 2}, "lora_config": lora,
           "weight_transfer_config": {"backend": "ipc"}, "other": [1]}
    found, _ = what_all_say(one, one)
    same(found, {"model_config": model, "lora_config": lora, "weight_transfer_config": {"backend": "ipc"}, "unknown": {},
                 "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 2}})
    none = dict(one, weight_transfer_config=None, lora_config=None)
    found, _ = what_all_say(none, none)
    same((found["weight_transfer_config"], found["lora_config"], found["unknown"]), (None, None, {}))
    other = dict(none, model_config=dict(model, dtype="torch.float16"))
    found, urls = what_all_say(one, other)
    same(found["model_config"], dict(model, dtype=None))
    same((found["weight_transfer_config"], found["lora_config"]), (None, None))
    same(found["unknown"]["model_config.dtype"], f'{urls[0]} has "torch.float32", {urls[1]} has "torch.float16"')
    same(sorted(found["unknown"]), ["lora_config", "model_config.dtype", "weight_transfer_config"])
    for fault in ({"do": "status", "status": 404, "text": '{"detail":"Not Found"}'}, {"do": "raw", "text": "nothing"},
                  {"do": "status", "status": 200, "text": "<html>"}):
        found, urls = what_all_say(one, one, before=lambda _, d, f=fault: d.post("/fault", dict(f, on="config", times=1)))
        same(set(found["model_config"].values()), {None})
        same(len(found["unknown"]), 8)
        check(all(why.startswith(urls[1]) for why in found["unknown"].values()), found)


def one_version_has_a_name():
    with world("baton", "sglang") as (s, _, _):
        same(s.status()["weights"],
             {"state": "ready", "serial": None, "update_id": None, "weight_version": "step-0", "coverage": None, "spec": None})
        same(s.get("/get_weight_version"), {"weight_version": "step-0"})
        same(s.get("/weight_info"), {"weight_version": "step-0"})


# ---- where, and with which key ----

def over_a_unix_socket():
    path = os.path.join(WORK, "engine.sock")
    with double("baton", "--unix", path), Server(BATON, LOG, "--upstream", f"unix:{path}", *PROBES) as s:
        becomes(s, f"unix:{path}", "serving")
        made = s.post("/v1/completions", completion())["choices"][0]["text"]
        same(ids_of(made), expected(PROMPT, "step-0", 0, 5))


def with_a_key():
    key = write("key", "sk-right\n")
    with double("baton", "--key", "sk-right") as d, Server(
            BATON, LOG, "--upstream", f"{d.url},key-file={key}", *PROBES) as s:
        becomes(s, d.url, "serving")
        with open(key, "w", encoding="utf-8") as f:
            f.write("sk-wrong\n")
        s.process.send_signal(signal.SIGHUP)
        becomes(s, d.url, "refused")
        same(s.upstreams()[d.url]["error"]["code"], "upstream_auth_failed")
        check("refuses the key" in why_not(s) and "401" in why_not(s), why_not(s))
        said = refused(s, 502, "upstream_auth_failed", "POST", "/v1/generate", {"token_ids": [1]})
        check(d.url in said and "refuses the key" in said, said)
        with open(key, "w", encoding="utf-8") as f:
            f.write("sk-right\n")
        s.process.send_signal(signal.SIGHUP)
        becomes(s, d.url, "serving")
        texts = [json.dumps(s.status()), s.get("/metrics"), open(LOG, encoding="utf-8").read()]
        check(not any("sk-" in t for t in texts), "a key was told")


class Status(http.server.BaseHTTPRequestHandler):
    """The part of a baton that identifies it."""

    def do_GET(self):
        text = json.dumps({"boot_id": "b", "weights": {"weight_version": "v"}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Who does not trust it hangs up."""


@contextlib.contextmanager
def tls_peer():
    server = Quiet(("127.0.0.1", 0), Status)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(WORK, "tls.pem"), os.path.join(WORK, "tls.key"))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def over_tls():
    """Who it is must be proven: by a CA that is trusted, and for that name."""
    with tls_peer() as port:
        ca = os.path.join(WORK, "tls.pem")
        right, wrong, unproven = f"https://localhost:{port}", f"https://127.0.0.1:{port}", f"https://LOCALHOST:{port}"
        with Server(BATON, LOG, "--upstream", f"{right},ca-file={ca}", "--upstream", f"{wrong},ca-file={ca}",
                    "--upstream", unproven, "--min-ready", 1, "--probe-interval", 300, "--probe-timeout", 20000) as s:
            becomes(s, right, "serving")
            for url in wrong, unproven:
                until("it was asked", lambda: s.upstreams()[url]["error"])
                becomes(s, url, "down")
                check("certificate" in s.upstreams()[url]["error"]["message"], s.upstreams()[url])


# ---- engines that leave and return ----

def one_that_hangs():
    for dialect in "baton", "vllm", "sglang":
        with world("baton", dialect, server=("--min-ready", 1, "--probe-timeout", 100)) as (s, _, d):
            d.order("who", "hang", times=0)
            becomes(s, d.url, "down")
            check(s.ready(), "one is enough")
            same(metric(s, f'baton_upstream_state{{upstream="{d.url}",state="down"}}'), 1)
            for _ in range(4):
                s.post("/v1/completions", completion())
            d.good("DELETE", "/fault")
            becomes(s, d.url, "serving")


def one_that_only_talks():
    """It says that it is well, and gives no token."""
    with world("baton", "vllm", server=("--min-ready", 2, "--probe-timeout", 100)) as (s, _, d):
        d.order("completions", "hang", times=0)
        becomes(s, d.url, "down")
        check(d.url in why_not(s) and "/v1/completions" in why_not(s), why_not(s))
        d.good("DELETE", "/fault")
        becomes(s, d.url, "serving")
        check(s.ready(), "it is back")


def one_that_dies():
    with world("baton", "sglang", "vllm", server=("--min-ready", 2)) as (s, a, b, c):
        b.kill()
        becomes(s, b.url, "down")
        check(s.ready(), "two of three")
        same(s.status()["upstreams"]["n_serving"], 2)
        c.kill()
        becomes(s, c.url, "down")
        check("1 of 3 upstreams serve, 2 are needed" in why_not(s), why_not(s))
        same(ids_of(s.post("/v1/completions", completion())["choices"][0]["text"]), expected(PROMPT, "step-0", 0, 5))
        with Double(ENGINE, "sglang", "--weight-version", "step-0", "--port", b.port):
            becomes(s, b.url, "serving")
            check(s.ready(), "again two")


def one_without_weights():
    """A baton that waits for its first weights answers probes, but cannot serve."""
    with Server(BATON, LOG, "--model", MODEL) as a, Server(BATON, LOG, "--upstream", a.url, *PROBES) as s:
        becomes(s, a.url, "not_ready")
        check("no_weights" in why_not(s), why_not(s))
        refused(s, 503, "no_weights", "POST", "/v1/generate", {"token_ids": [1]})


def one_that_drops_and_refuses():
    with world("baton", "baton") as (s, _, d):
        d.order("who", "close_before", times=0)
        becomes(s, d.url, "down")
        d.good("DELETE", "/fault")
        becomes(s, d.url, "serving")
        d.order("who", "status", times=0, status=500)
        becomes(s, d.url, "down")
        check("500" in s.upstreams()[d.url]["error"]["message"], s.upstreams()[d.url])
        d.good("DELETE", "/fault")
        becomes(s, d.url, "serving")


def resync_refuses():
    with world("baton") as (s, d):
        message = refused(s, 404, "not_found", "POST", "/v1/upstreams/resync", {"upstream": "http://10.9.9.9:1"})
        check(d.url in message, message)
        refused(s, 400, "bad_request", "POST", "/v1/upstreams/resync", {})
        refused(s, 400, "bad_request", "POST", "/v1/upstreams/resync", {"upstream": d.url, "force": True})
        d.kill()
        becomes(s, d.url, "down")
        refused(s, 409, "conflict", "POST", "/v1/upstreams/resync", {"upstream": d.url})


# ---- SIGHUP ----

def reloads(upstreams=""):
    """What was logged of SIGHUPs whose upstreams begin with this word."""
    return [e for e in logged("reload") if e.get("upstreams", "").startswith(upstreams)]


def file_read_again():
    with double("baton") as a, double("vllm") as b:
        path = write("upstreams", f"# engines\n{a.url}\n")
        with Server(BATON, LOG, "--upstream-file", path, *PROBES) as s:
            becomes(s, a.url, "serving")
            write("upstreams", f"{a.url}\n{b.url},vllm # new\n")
            s.process.send_signal(signal.SIGHUP)
            until("it is known", lambda: b.url in s.upstreams())
            becomes(s, b.url, "serving")
            same(s.status()["upstreams"]["min_ready"], 2)
            n_kept = len(reloads("kept: "))
            write("upstreams", f"{a.url}\nnonsense\n")
            s.process.send_signal(signal.SIGHUP)
            until("it was refused", lambda: len(reloads("kept: ")) > n_kept)
            same(sorted(s.upstreams()), sorted([a.url, b.url]))
            write("upstreams", f"{b.url},vllm\n")
            a.good("DELETE", "/journal")
            s.process.send_signal(signal.SIGHUP)
            until("it is gone", lambda: a.url not in s.upstreams())
            for _ in range(4):
                s.post("/v1/completions", completion())
            same(asked(a), [], "nothing goes there any more")
            check(s.ready(), "what is left serves")


def what_runs_may_end():
    with double("baton", "--interval-us", 5000) as a, double("baton") as b:
        path = write("upstreams", a.url)
        with Server(BATON, LOG, "--upstream-file", path, *PROBES) as s:
            becomes(s, a.url, "serving")
            answer, n = [], 60
            client = threading.Thread(
                target=lambda: answer.append(s.post("/v1/completions", completion(n))["choices"][0]["text"]))
            client.start()
            until("it runs", lambda: s.upstreams()[a.url]["outstanding"]["generate"] == 1)
            write("upstreams", b.url)
            s.process.send_signal(signal.SIGHUP)
            becomes(s, b.url, "serving")
            client.join()
            same(ids_of(answer[0]), expected(PROMPT, "step-0", 0, n))
            until("it is forgotten", lambda: a.url not in s.upstreams())


def nobody_waits_for_nobody():
    with double("baton", "--interval-us", 5000) as a:
        path = write("upstreams", a.url)
        with Server(BATON, LOG, "--upstream-file", path, "--generate-concurrency", 1, *PROBES) as s:
            becomes(s, a.url, "serving")
            said = []
            clients = [threading.Thread(target=lambda n=n: said.append(s.ask("POST", "/v1/completions", completion(n))[0]))
                       for n in (400, 1)]
            for n, client in enumerate(clients):
                client.start()
                until("it runs, or waits", lambda n=n: sum(s.status()["admission"]["generate"][k]
                                                           for k in ("running", "waiting")) == n + 1)
            write("upstreams", f"http://127.0.0.1:{closed_port()}")
            s.process.send_signal(signal.SIGHUP)
            for client in reversed(clients):
                client.join()
            same(said, [503, 200], "one waited for nobody, one could end")


def signal_without_files():
    with Server(BATON, LOG, "--model", MODEL) as s:
        n = len(reloads())
        s.process.send_signal(signal.SIGHUP)
        until("it is told", lambda: len(reloads()) > n)
        same(s.ask("GET", "/livez")[0], 200)
        refused(s, 409, "no_upstreams", "GET", "/v1/upstreams")
        refused(s, 409, "no_upstreams", "POST", "/v1/upstreams/resync", {"upstream": "http://a:1"})


# ---- what it starts with ----

def run_check(*options, env=None):
    done = subprocess.run([BATON, "serve", "--check", "--listen", "127.0.0.1:0", *map(str, options)],
                          capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **(env or {})})
    return done.returncode, done.stdout + done.stderr


def starts_with():
    key = write("key", "sk-1\n")
    rc, said = run_check("--upstream", "http://a:1,vllm", "--upstream", f"unix:/b,key-file={key}", "--min-ready", 1)
    same(rc, 0, said)
    check("upstreams: 2, of which 1" in said and "unix:/b, baton, with a key" in said and "sk-1" not in said, said)
    rc, said = run_check(env={"BATON_UPSTREAM": "http://a:1,sglang  http://b:2"})
    same((rc, said.count("upstream: ")), (0, 2), said)
    many = write("many", "".join(f"http://10.0.0.{i}:8000,vllm\n" for i in range(200)))
    rc, said = run_check("--upstream-file", many)
    check(rc == 0 and "upstreams: 200, of which 200" in said, said)
    one = ("--upstream", "http://a:1")
    for options, wanted in (
            ((*one, "--model", "/nowhere"), "--model: there is no directory '/nowhere'"),
            ((*one, "--model", MODEL, "--manifest", "x"), "--manifest: with --upstream --model names the tensors"),
            ((*one, "--engine", "embedded"), "--engine: it has no effect with --upstream"), ((*one, "--device", "cpu"), "--device: it has no effect with --upstream"),
            ((*one, "--stage", "host", "--model", MODEL, "--seed", "http://a:1"), "--seed: it has no effect with --upstream"),
            ((*one, "--weights", "none"), "--weights: it has no effect with --upstream"), ((*one, "--manifest", "x"), "--manifest: 'x' cannot be opened"),
            ((*one, "--max-lora-bytes", "1GiB"), "--max-lora-bytes: it has no effect with --upstream and without --adapter-dir"),
            ((*one, "--adapter-dir", "/dev/null"), "--adapter-dir: /dev/null: this directory cannot be written into"),
            (("--model", MODEL, "--adapter-dir", "/tmp"), "--adapter-dir: it has no effect without --upstream"),
            (("--model", MODEL, "--min-ready", 1), "--min-ready: it has no effect without --upstream"),
            ((*one, *one), "given twice"),
            (("--upstream", "ftp://a:1"), "--upstream: 'ftp://a:1' is none of"),
            (("--upstream", "http://h:99999"), "--upstream: 'http://h:99999' has port '99999'"),
            (("--upstream", "http://a:1,http://b:2"), "use one --upstream for each"),
            (("--upstream", "http://a:1,keyfile=sk-1"), "did you mean key-file=FILE"),
            (("--upstream", "http://a:1,key-file=/nowhere"), "/nowhere"),
            (("--upstream", "http://a:1,tgi"), "--upstream"), (("--upstream-file", "/nowhere"), "--upstream-file")):
        rc, said = run_check(*options)
        check(rc == 2 and wanted in said, f"{options}: {rc} {said}")
        check("configuration: ok" not in said and "sk-1" not in said, said)
    rc, said = run_check("--upstream", "http://a", "--upstream", "https://b", "--upstream", "unix:/c")
    check(rc == 0 and "http://a, baton, at the default port 80" in said and "port 443" in said, said)
    check(said.count("at the default port") == 2 and said.count('"event":"upstream.port"') == 1, said)
    rc, said = run_check(*one, "--min-ready", 3)
    check(rc == 0 and "upstreams: 1, of which 3 must serve" in said and "until 2 more are added" in said, said)
    check("more are added" not in run_check(*one, "--min-ready", 1)[1], "enough")
    rc, said = run_check(*one, env={"BATON_WEIGHTS": MODEL})
    check(rc == 2 and "BATON_WEIGHTS: it has no effect with --upstream" in said, said)


run({test.__name__: test for test in (
    nobody_answers, each_dialect, every_route, configuration_of_vllms, one_version_has_a_name, over_a_unix_socket, with_a_key, over_tls,
    one_that_hangs,
    one_that_only_talks, one_that_dies, one_without_weights, one_that_drops_and_refuses, resync_refuses, file_read_again,
    what_runs_may_end, nobody_waits_for_nobody, signal_without_files, starts_with)})

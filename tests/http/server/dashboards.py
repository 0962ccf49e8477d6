"""Every metric, label and label value that the alert rules and the Grafana board ask for exists in a live scrape of a
server with weights, of one in front of engines, or of one with --stage. With promtool: the rules parse, and each scrape is well formed.

Usage: dashboards.py BATON FAKE_ENGINE LIBFAKECUDA LOG MODEL ROOT
"""

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

import yaml
from fake_engine_world import Double
from fleet_world import Server, until

BATON, ENGINE, CUDA, LOG, MODEL, ROOT = sys.argv[1:7]
RULES, BOARD = os.path.join(ROOT, "deploy/prometheus/alerts.yml"), os.path.join(ROOT, "deploy/grafana/baton.json")
CHECKPOINTS = os.path.join(MODEL, "checkpoints")
SELECTOR = re.compile(r'\b((?:baton|process|vllm|up\b)[a-z_:]*)(?:\{([^}]*)\})?')
MATCHER = re.compile(r'([a-z_]+)(=~|!=|!~|=)"([^"]*)"')
OF_THE_SCRAPE = {"instance", "job"}  # Prometheus adds these
HANDLES = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]], "packed": True, "tensor_sizes": [2],
           "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}
with open(BOARD, encoding="utf-8") as board:
    PAUSE_SERIES = set(re.findall(r"baton_paused?[a-z_]*", board.read()))


def scrape(s):
    return read(s.get("/metrics"))


def read(text):
    """(text, {name: [labels]})"""
    families = re.findall(r"^# HELP (\S+)", text, re.M)
    assert len(families) == len(set(families)), f"twice: {sorted({f for f in families if families.count(f) > 1})}"
    found = {}
    for name, labels in re.findall(r'^([a-z_:]+)(?:\{(.*)\})? \S+$', text, re.M):
        found.setdefault(name, []).append(dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels)))
    return text, found


def of_an_embedded_one():
    with Server(BATON, LOG, "--model", MODEL, "--weights", os.path.join(CHECKPOINTS, "step-00000.safetensors"),
                "--allow-path", CHECKPOINTS, "--generate-queue", 0) as s:
        s.post("/v1/completions", {"prompt": "In", "max_tokens": 3})
        s.post("/v1/update_weights", {"path": os.path.join(CHECKPOINTS, "step-00100.safetensors")})
        s.ask("POST", "/v1/update_weights", {})
        s.post("/v1/sleep")
        assert s.ask("POST", "/v1/completions", {"prompt": "In", "max_tokens": 3})[0] == 503
        return scrape(s)


GATE = re.compile(r"(?:max by \([a-z, ]*\) \()?([a-z_]+)(?:\{([^}]*)\})?\)?(?: / ([a-z_]+)(?:\{[^}]*\})?)? "
                  r"(==|>|<) ([a-z_]+|[0-9.]+|time\(\) \+ [0-9]+)")


def value_of(text, name, matchers):
    """Of each series of a name that the matchers choose."""
    for labels, value in re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.M):
        have = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels), job="baton")
        wanted = [(have.get(label, ""), op, value) for label, op, value in MATCHER.findall(matchers)]
        if all(bool(re.fullmatch(w if "~" in op else re.escape(w), v)) == (op[0] == "=") for v, op, w in wanted):
            yield float(value)


def alerts(text):
    """Those whose condition is true now; rates and quantiles are left out."""
    with open(RULES, encoding="utf-8") as f:
        rules = [r for group in yaml.safe_load(f)["groups"] for r in group["rules"]]
    gates = [(r["alert"], GATE.fullmatch(r["expr"])) for r in rules
             if "increase(" not in r["expr"] and "rate(" not in r["expr"]]
    assert len(gates) >= 6 and all(gate for _, gate in gates), gates
    found = set()
    for name, gate in gates:
        left, matchers, below, op, right = gate.groups()
        if right.startswith("time()"):
            bounds = [time.time() + float(right.split()[-1])]
        else:
            bounds = [float(right)] if right[0].isdigit() else list(value_of(text, right, ""))
        for value in value_of(text, left, matchers or ""):
            value /= next(value_of(text, below, "")) if below else 1
            if any({"==": value == b, ">": value > b, "<": value < b}[op] for b in bounds):
                found.add(name)
    return found


def alerts_are_quiet_when_all_is_well():
    weights = os.path.join(CHECKPOINTS, "step-00000.safetensors")
    with Server(BATON, LOG, "--model", MODEL, "--weights", weights) as s:
        assert not alerts(s.get("/metrics")), alerts(s.get("/metrics"))
        s.post("/v1/pause", {"mode": "keep", "lease_s": 600})
        assert alerts(s.get("/metrics")) == {"BatonNotReady", "BatonPausedLong"}, alerts(s.get("/metrics"))
        s.post("/v1/resume")
    with Server(BATON, LOG, "--engine", "none", "--manifest", weights, "--weights", weights) as s:
        assert not alerts(s.get("/metrics")), alerts(s.get("/metrics"))
    with contextlib.ExitStack() as both:
        d = both.enter_context(Double(ENGINE, "vllm", "--weight-version", "step-0"))
        s = both.enter_context(Server(BATON, LOG, "--probe-interval", 30, "--upstream", d.url + ",vllm"))
        until("it is ready", s.ready)
        assert not alerts(s.get("/metrics")), alerts(s.get("/metrics"))
        d.must_be_fresh = False


def of_a_fleet():
    with contextlib.ExitStack() as both:
        d = both.enter_context(Double(ENGINE, "vllm", "--weight-version", "step-0"))
        s = both.enter_context(Server(BATON, LOG, "--probe-interval", 30, "--upstream", d.url + ",vllm",
                                      "--upstream", "dns+http://nobody.invalid:1"))
        d.must_be_fresh = False
        until("it is ready", s.ready)
        s.post("/v1/update_weights", HANDLES)
        s.post("/v1/completions", {"prompt": "In", "max_tokens": 3})
        s.post("/v1/pause", {"mode": "keep", "lease_s": 1})
        until("the lease of the pause ends it", lambda: s.status()["pause"] is None)
        s.post("/v1/pause", {"mode": "abort"})
        text, found = scrape(s)
        assert {"baton_pause{mode=\"abort\"} 1", "baton_pauses_total 2", "baton_pauses_expired_total 1",
                "baton_pause_duration_seconds_count 1"} <= set(text.splitlines()), text
        seconds = re.search(r"^baton_paused_seconds_total (\S+)$", text, re.M)
        assert 1 < float(seconds[1]) < 30, seconds
        assert PAUSE_SERIES <= found.keys(), PAUSE_SERIES - found.keys()
        return text, found


def of_a_stage():
    first, second = (os.path.join(CHECKPOINTS, f"step-00{n}.safetensors") for n in ("000", "100"))
    with contextlib.ExitStack() as both:
        d = both.enter_context(Double(ENGINE, "vllm", "--weight-version", "step-0"))
        s = both.enter_context(Server(BATON, LOG, "--probe-interval", 50, "--upstream", d.url + ",vllm", "--stage", "cuda:0",
                                      "--cuda-library", CUDA, "--manifest", first, "--weights", first, "--allow-path", CHECKPOINTS))
        until("the version is handed over", lambda: s.status()["stage"]["handed_serial"] == 1 and s.ready())
        assert not alerts(s.get("/metrics")), alerts(s.get("/metrics"))
        d.kill()
        assert s.ask("POST", "/v1/update_weights", {"path": second})[0] >= 500
        assert "BatonHandoffBehind" in alerts(s.get("/metrics")), alerts(s.get("/metrics"))
        return scrape(s)


def of_one_with_tls():
    """With a certificate that ends tomorrow."""
    with tempfile.TemporaryDirectory() as work:
        key, cert = os.path.join(work, "key"), os.path.join(work, "cert")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
                        "-subj", "/CN=localhost", "-keyout", key, "-out", cert], check=True, capture_output=True)
        with Server(BATON, LOG, "--model", MODEL, "--weights", os.path.join(CHECKPOINTS, "step-00000.safetensors"), "--state-dir",
                    os.path.join(work, "state"), "--snapshot", 1, "--tls-cert", cert, "--tls-key", key) as s:
            context = ssl.create_default_context(cafile=cert)
            with urllib.request.urlopen(f"https://localhost:{s.port}/metrics", context=context, timeout=30) as answer:
                text = answer.read().decode()
    assert alerts(text) == {"BatonCertificateExpires"}, alerts(text)
    return read(text)


def queries():
    with open(RULES, encoding="utf-8") as f:
        for group in yaml.safe_load(f)["groups"]:
            yield from ((r["alert"], r["expr"], "") for r in group["rules"])
    with open(BOARD, encoding="utf-8") as f:
        for panel in json.load(f)["panels"]:
            yield from ((panel["title"], t["expr"], t["legendFormat"]) for t in panel.get("targets", ()))


def check_query(where, expr, legend, scrapes):
    """A name that no server has, a label that its series lack, or a value that none has is a misspelling."""
    selectors = SELECTOR.findall(re.sub(r'by \([^)]*\)', "", expr))
    assert selectors, f"{where}: no metric in {expr}"
    wanted = set(re.findall(r"\{\{(?:\$labels\.)?([a-z_]+)\}\}", legend))
    wanted |= {w for by in re.findall(r"by \(([^)]*)\)", expr) for w in by.split(", ")}
    for name, matchers in selectors:
        series = [labels for s in scrapes for labels in s.get(name, ())]
        assert series, f"{where}: no server has {name}"
        known = {label for labels in series for label in labels} | OF_THE_SCRAPE
        assert wanted <= known, f"{where}: {name} has no label {wanted - known}"
        for label, op, value in MATCHER.findall(matchers):
            if label in OF_THE_SCRAPE:
                continue
            values = {labels.get(label) for labels in series}
            assert values - {None}, f"{where}: {name} has no label {label}"
            named = value.split("|") if op in ("=~", "!~") else [value]
            assert set(named) <= values, f"{where}: {name} has no {label} of {set(named) - values}, only {values}"


def check_with_promtool(texts):
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is not installed: deploy/setup.sh test"
    subprocess.run([promtool, "check", "rules", RULES], check=True, stdout=subprocess.DEVNULL)
    for text in texts:
        text = "".join(line + "\n" for line in text.splitlines() if "vllm:" not in line)
        found = subprocess.run([promtool, "check", "metrics"], input=text.encode(), capture_output=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr


alerts_are_quiet_when_all_is_well()
made = [of_an_embedded_one(), of_a_fleet(), of_a_stage(), of_one_with_tls()]
for query in queries():
    check_query(*query, [m for _, m in made] + [{"up": [{}]}])
check_with_promtool([t for t, _ in made])
zero = [l for l in made[0][1]["baton_http_requests_total"] if l["operation"] == "lora_load"]
assert not zero, f"series of operations that nobody called: {zero}"

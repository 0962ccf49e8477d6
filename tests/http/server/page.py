"""The pages at / and /docs in a real browser: what they show, live; that what clients send is inert; dark, narrow.

Usage: page.py BATON MODEL FAKE_ENGINE WORK   Exit status 77: there is no chromium here.
"""

import http.client
import json
import os
import sys
import threading

from chromium import BROWSER, Chromium
from fake_engine_world import Double
from fleet_world import Server, until

BATON, MODEL, ENGINE, WORK = sys.argv[1:5]
STEP = os.path.join(MODEL, "checkpoints/step-00000.safetensors")
OPTIONS = ("--model", MODEL, "--weights", STEP, "--weight-version", "step-0", "--allow-path", MODEL)
EVIL = "<img src=x onerror=window.owned=1>"
KEY = "viewer-0123456789abcdef"
COLOURS_OF = """(() => {
  const rgb = s => s.match(/[\\d.]+/g).map(Number), channel = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } };
  let worst = [99, ''];
  for (const e of document.querySelectorAll('main *, header *, footer *, aside *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length || e.closest('svg')) continue;
    const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < worst[0]) worst = [ratio, e.textContent.slice(0, 40)];
  }
  return worst;
})()"""


def push(server, step, label, status=200):
    got, said = server.ask("POST", "/v1/update_weights", {"path": f"checkpoints/step-{step}.safetensors", "weight_version": label})
    assert got == status, said


def generate(server):
    """A stream of 900 tokens that has begun; a thread reads the rest."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=100)
    body = {"prompt": "In the", "max_tokens": 900, "ignore_eos": True, "stream": True, "request_id": EVIL}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.readline()
    threading.Thread(target=answer.read, daemon=True).start()


def pause(server):
    server.post("/v1/pause", {"mode": "keep", "owner": "trainer-7"})


def n_versions(server):
    return max([len(g["weight_versions"]) for g in server.get("/v1/generations")["generations"]], default=0)


def freeze(server):
    """A stream with tokens of two versions, and a pause; false if it has ended before."""
    server.post("/v1/resume")
    generate(server)
    pause(server)
    push(server, "01500", EVIL)
    while n_versions(server) == 1:
        server.post("/v1/resume")
        pause(server)
    return n_versions(server) == 2


def has(text):
    return f"document.body.innerText.includes({json.dumps(text)})"


def readable(browser):
    for dark in False, True:
        browser.size(1600, dark=dark)
        ratio, where = browser.js(COLOURS_OF)
        assert ratio >= 4.5, (dark, ratio, where)
    assert browser.js("getComputedStyle(document.body).backgroundColor") != "rgb(247, 247, 244)"
    for width in 400, 1600:
        browser.size(width)
        assert browser.js("document.documentElement.scrollWidth") <= width, width
        assert browser.js("Math.max(0, ...[...document.querySelectorAll('td.msg a')].map(a => a.getBoundingClientRect().right))") <= width, width


def refusals(server, browser):
    """A row for each refused request, and one with their number for those that follow each other."""
    for n in 1, 3:
        push(server, "00100", f"before-{n}")
        for _ in range(n):
            push(server, "nothing", "step-9", 404)
    top = "[...document.querySelectorAll('#updates tbody tr')].slice(0, 4).map(r => r.innerText)"
    wanted = ["refused ×3", "before-3", "refused", "before-1"]
    browser.until(f"(t => {json.dumps(wanted)}.every((w, i) => t[i].includes(w)))({top})")


def live(server, browser):
    browser.open(server.url + "/")
    browser.until(has("step-0"))
    browser.until("document.querySelector('#ready').innerText === 'ready' && document.querySelector('#link').innerText === 'live'")
    push(server, "00100", "step-100")
    browser.until("document.querySelector('#serving .big').innerText.trim() === 'step-100'")
    browser.until("document.querySelector('#updates').innerText.includes('committed')")
    until("a stream is frozen after tokens of two versions", lambda: freeze(server))
    browser.until(has("Not ready") + " && " + has("trainer-7"))
    browser.until("document.querySelectorAll('#streams .stream .bar i').length === 2")
    server.post("/v1/resume")
    server.post("/v1/load_lora_adapter", {"lora_name": EVIL, "lora_path": os.path.join(MODEL, "adapters/shout")})
    browser.until(f"document.querySelector('#adapters').innerText.includes({json.dumps(EVIL[:12])})")
    update = server.post("/v1/update_weights/start", {})["update_id"]
    browser.until(f"document.querySelector('#updatestate').innerText === {json.dumps(update)}")
    server.post("/v1/update_weights/abort", {"update_id": update, "reason": EVIL})
    browser.until("document.querySelector('#updates').innerText.includes('aborted')")
    browser.until("document.querySelector('#errors a[href=\"docs#error-conflict\"]') !== null")
    push(server, "nothing", "step-9", 404)
    browser.until("document.querySelector('#updates tbody tr').innerText.includes('refused')")
    browser.until("document.querySelector('#updates tbody tr').innerText.includes('step-nothing.safetensors')")
    browser.until("document.querySelector('#errors a[href=\"docs#error-not_found\"]') !== null")
    refusals(server, browser)
    browser.until("document.querySelectorAll('#timeline rect title').length > 4")
    assert browser.js("document.querySelectorAll('img, iframe').length") == 0 and browser.js("window.owned") is None
    assert EVIL[:20] in browser.text()
    readable(browser)
    whole(browser)


def whole(browser):
    """No table is wider than its place."""
    for width in 400, 800, 1280, 1600:
        browser.size(width)
        cut = browser.js("[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).map(s => s.innerText)")
        assert not cut, (width, cut)


def docs(server, browser):
    browser.open(server.url + "/docs#error-paused")
    browser.until("document.querySelectorAll('details').length > 100 && document.querySelector('#error-paused').open")
    assert "Remedy" in browser.js("document.querySelector('#error-paused').innerText")
    browser.js("(() => { const s = document.querySelector('#search'); s.value = 'lora_name rank'; s.dispatchEvent(new Event('input')); })()")
    seen = browser.js("[...document.querySelectorAll('details')].filter(d => d.offsetParent).map(d => d.id)")
    assert "op-loraLoad" in seen and "op-pause" not in seen and len(seen) < 30, seen
    browser.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.until("document.querySelector('#op-loraLoad').innerText.includes('lora_path')")
    assert browser.js("[...document.querySelectorAll('.muted')].map(s => s.textContent).filter(t => / to *(,|$)/.test(t))") == []
    assert not browser.js("document.body.innerHTML.includes('[object')") and "undefined" not in browser.text()
    readable(browser)


def refused(server):
    """The requests that the server's log has with a status of 400 or more."""
    with open(server.log, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f if line.endswith("}\n")]
    return [line for line in lines if line["event"] in ("request", "auth.refused") and line["status"] >= 400]


def with_key(browser):
    keys = os.path.join(WORK, "keys")
    with open(keys, "w", encoding="utf-8") as f:
        f.write(f"viewer {KEY}\n")
    os.chmod(keys, 0o600)
    with Server(BATON, os.path.join(WORK, "log-keys"), *OPTIONS, "--api-key-file", keys, "--log-level", "debug") as server:
        browser.open(server.url + "/")
        browser.until("!document.querySelector('#ask').hidden")
        assert "step-0" not in browser.text() and browser.js("document.querySelector('#keywrong').hidden")
        assert refused(server) == []  # by the page's own requests
        give = "(k => {{ document.querySelector('#key').value = k; document.querySelector('#ask button').click(); }})({})"
        browser.js(give.format(json.dumps("wrong-0123456789abcdef")))
        browser.until("!document.querySelector('#keywrong').hidden")
        browser.js(give.format(json.dumps(KEY)))
        browser.until("document.querySelector('#serving .big').innerText.trim() === 'step-0'")
        browser.until("/List them/.test(document.querySelector('#adapters').innerText)")
        assert [r["status"] for r in refused(server)] == [401], refused(server)  # of the wrong key
        assert browser.js("document.querySelector('#raw').hidden")
        browser.js("document.querySelector('#adapters button').click()")
        browser.until("/This key does not/.test(document.querySelector('#adapters').innerText)")
        assert browser.js("localStorage.length") == 0 and browser.js("sessionStorage.length") == 1
        browser.open(server.url + "/")  # the tab has it still
        browser.until("document.querySelector('#serving .big').innerText.trim() === 'step-0'")


def fleet(browser):
    with Double(ENGINE, "baton", "--weight-version", "step-0") as one, Double(ENGINE, "vllm", "--weight-version", "step-0") as two, \
            Server(BATON, os.path.join(WORK, "log-fleet"), "--upstream", f"{one.url},baton", "--upstream", f"{two.url},vllm",
                   "--min-ready", "1", "--probe-interval", "50") as server:
        browser.open(server.url + "/")
        browser.until(has(one.url) + " && " + has("2 of 2 serve"))
        two.kill()
        browser.until("[...document.querySelectorAll('#upstreams tr')].some(r => r.innerText.includes("
                      f"{json.dumps(two.url)}) && /down/.test(r.innerText))")
        browser.until("document.querySelector('#nupstreams').innerText.includes('1 of 2 serve')")
        browser.until("document.querySelector('#ready.warn') && /ready · 1 of 2 engines/.test(document.querySelector('#ready').innerText)")
        whole(browser)
    browser.until("document.querySelector('#ready.bad') && /no answer for/.test(document.querySelector('#ready').innerText)")
    assert browser.js("document.querySelector('#main').classList.contains('stale') && !document.body.innerText.includes('serving for')")


def main():
    if BROWSER is None:
        sys.exit("there is no chromium: deploy/setup.sh test")
    urls, console = set(), []
    with Chromium(WORK) as browser:
        browser.size(1600)
        with Server(BATON, os.path.join(WORK, "log"), *OPTIONS) as server:
            live(server, browser)
            docs(server, browser)
            urls |= {url for url in browser.requests if not url.startswith((server.url + "/", "data:"))}
            console += browser.console
            browser.open("about:blank")
        with_key(browser)
        fleet(browser)
        browser.open("about:blank")
    urls.discard("about:blank")
    assert not urls, f"requests to others: {urls}"
    assert not console, console
    print("pages: all well")


main()

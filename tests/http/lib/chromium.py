"""A headless Chromium, driven over its DevTools protocol. Needs aiohttp; BROWSER is None without a browser.

The calls below block; one thread has the event loop.
"""

import asyncio
import base64
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import aiohttp

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_S = 120


class Chromium:
    """One browser with one tab; with Chromium(work) as c: … ends it."""

    def __init__(self, work):
        self.profile = tempfile.mkdtemp(dir=work)
        self.process = subprocess.Popen(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars",
             f"--user-data-dir={self.profile}", "--remote-debugging-port=0",
             "--host-resolver-rules=MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.console, self.requests, self.answers, self.number = [], [], {}, 0
        self._run(self._open())
        for domain in "Page", "Runtime", "Network", "Log":
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._run(self.session.close())
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    async def _open(self):
        at = os.path.join(self.profile, "DevToolsActivePort")
        end = time.monotonic() + WAIT_S
        while not os.path.exists(at) or len(open(at, encoding="utf-8").read().split()) < 2:
            assert time.monotonic() < end and self.process.poll() is None, "the browser did not start"
            await asyncio.sleep(0.05)
        port = open(at, encoding="utf-8").read().split()[0]
        self.session = aiohttp.ClientSession()
        async with self.session.get(f"http://127.0.0.1:{port}/json") as answer:
            tab = next(t for t in await answer.json() if t["type"] == "page")
        self.socket = await self.session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)
        asyncio.ensure_future(self._receive())

    async def _receive(self):
        async for message in self.socket:
            said = message.json()
            if "id" in said:
                self.answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Network.requestWillBeSent":
                self.requests.append(said["params"]["request"]["url"])
            elif said["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.console.append(said["params"])
            elif said["method"] == "Runtime.consoleAPICalled" and said["params"]["type"] in ("error", "warning", "assert"):
                self.console.append(said["params"])

    async def _call(self, method, params):
        self.number += 1
        answer = self.answers[self.number] = self.loop.create_future()
        await self.socket.send_json({"id": self.number, "method": method, "params": params})
        said = await answer
        assert "error" not in said, (method, said)
        return said["result"]

    def call(self, method, **params):
        return self._run(self._call(method, params))

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def js(self, expression):
        """The value of an expression in the page; a promise is awaited."""
        said = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def until(self, expression, wait_s=WAIT_S):
        end = time.monotonic() + wait_s
        tried = f"(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()"  # while a page is loading
        while not (said := self.js(tried)):
            assert time.monotonic() < end, f"still not so: {expression}; the page says {self.text()!r}"
            time.sleep(0.05)
        return said

    def text(self):
        return self.js("document.body.innerText")

    def size(self, width, height=1000, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]))

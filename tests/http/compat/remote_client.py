"""A client that behaves as SkyRL's RemoteInferenceClient does: the same requests in the same order, and as few
checks of the replies.

What breaks other servers is kept: idle connections are dropped after 2 s; GET with a body; POST
without one, of type application/octet-stream; JSON with spaces; of a control answer the body is
read only if it has a Content-Length above 0, and only as application/json; a control call is never
sent again, a data call is, 30 times, on a broken connection or an answer that is no JSON.
"""

import asyncio
import json
import urllib.parse

import aiohttp

GENERATE_CONCURRENCY_PER_ENGINE = 512
CONNECTION_LIMIT = 50000
KEEP_ALIVE_S = 2.0
ATTEMPTS, ATTEMPT_PAUSE_S = 30, 1.0
FINISH_SESSION_S = 10.0


class Refused(RuntimeError):
    """An answer of 400 and above."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


def _no_constant(text):
    raise ValueError(f"{text} is no JSON")


def _parsed(raw):
    """As orjson does: NaN and Infinity are refused."""
    return json.loads(raw, parse_constant=_no_constant)


def _check(response, body):
    if response.status < 400:
        return
    error = body.get("error") if body else None
    raise Refused(response.status,
                  error["message"] if isinstance(error, dict) else response.reason)


class RemoteClient:
    """Of one event loop; `urls` are all servers, `proxy_url` is where the data goes."""

    def __init__(self, urls, model, proxy_url=None, per_engine=GENERATE_CONCURRENCY_PER_ENGINE):
        self.urls, self.model, self.proxy_url = list(urls), model, proxy_url or urls[0]
        self.generating = asyncio.Semaphore(per_engine * len(self.urls))
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTION_LIMIT, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None))
        self.n_attempts = 0  # of data calls, retries among them

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.session.close()

    # control

    async def _call_server(self, url, endpoint, body=None, method="POST", params=None):
        async with self.session.request(method, url + endpoint, json=body, params=params) as r:
            answer = await r.json() if r.content_length else None
            _check(r, answer)
            return answer

    async def call(self, endpoint, body=None, method="POST", params=None):
        """To every server at once; url -> answer. One that fails is all that fails."""
        answers = await asyncio.gather(
            *(self._call_server(url, endpoint, body, method, params) for url in self.urls))
        return dict(zip(self.urls, answers))

    async def get_world_size(self):
        """All of them together, and that of each."""
        found = await self.call("/get_world_size", {}, "GET")
        sizes = {url: answer["world_size"] for url, answer in found.items()}
        return sum(sizes.values()), sizes

    async def init_weight_transfer(self, info):
        """Each server has its own ranks; the trainer is rank 0."""
        offset, calls = info.get("rank_offset"), []
        _, sizes = await self.get_world_size()
        for url in self.urls:
            own = dict(info)
            if offset is not None:
                own["rank_offset"] = offset
                offset += sizes[url]
            calls.append(self._call_server(url, "/init_weight_transfer_engine", {"init_info": own}))
        return await asyncio.gather(*calls)

    async def pause(self):
        await self.call("/pause", params={"mode": "keep", "clear_cache": "false"})

    async def resume(self):
        await self.call("/resume")

    async def sleep(self, level):
        await self.call("/sleep", params={"level": str(level)})

    async def wake_up(self, tags=None):
        await self.call("/wake_up", params=[("tags", tag) for tag in tags] if tags else None)

    async def reset_prefix_cache(self):
        await self.call("/reset_prefix_cache", {"reset_running_requests": False})

    async def rpc(self, method, **kwargs):
        return await self.call("/collective_rpc",
                               {"method": method, **({"kwargs": kwargs} if kwargs else {})})

    async def start_weight_update(self):
        await self.rpc("skyrl_start_weight_update", is_checkpoint_format=True)

    async def update_weights_ipc(self, info):
        await self.rpc("update_weights_ipc", update_info=info)

    async def update_weights_nccl(self, info):
        await self.rpc("update_weights_nccl", update_info=info)

    async def finish_weight_update(self):
        await self.rpc("skyrl_finish_weight_update")

    async def sleep_for_weight_sync(self, offload_kv):
        await self.rpc("skyrl_sleep_for_weight_sync", offload_kv=offload_kv)

    async def wake_for_weight_sync(self, tags):
        await self.rpc("skyrl_wake_for_weight_sync", tags=tags)

    async def _adapter(self, endpoint, body):
        """Below 400 any text does."""
        for url in self.urls:
            async with self.session.post(url + endpoint, json=body) as r:
                _check(r, await r.json() if r.status >= 400 else None)
                text = await r.text()
        return text

    async def load_lora_adapter(self, name, path):
        return await self._adapter("/skyrl/v1/load_lora_adapter",
                                   {"lora_name": name, "lora_path": path})

    async def unload_lora_adapter(self, name):
        return await self._adapter("/v1/unload_lora_adapter", {"lora_name": name})

    # data

    async def _attempt(self, endpoint, body, headers):
        """The answer; None: it has to be sent again."""
        self.n_attempts += 1
        try:
            async with self.session.post(self.proxy_url + endpoint, json=body,
                                         headers=headers) as r:
                raw, status = await r.read(), r.status
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return None
        try:
            answer = _parsed(raw)
        except ValueError:
            if 400 <= status < 500:
                raise Refused(status, raw.decode(errors="replace")) from None
            return None
        if status >= 400:
            raise Refused(status, answer["error"]["message"])
        return answer

    async def post(self, endpoint, body, session_id=None):
        headers = {"X-Session-ID": session_id} if session_id else None
        for _ in range(ATTEMPTS):
            answer = await self._attempt(endpoint, body, headers)
            if answer is not None:
                return answer
            await asyncio.sleep(ATTEMPT_PAUSE_S)
        raise RuntimeError(f"{endpoint}: no answer in {ATTEMPTS} attempts")

    async def generate(self, token_ids, sampling, model=None, session_id=None, salt=None,
                       endpoint="/inference/v1/generate"):
        """(token ids, finish reason, logprobs or None) of the one choice."""
        body = {"sampling_params": sampling, "model": model or self.model, "token_ids": token_ids}
        if salt is not None:
            body["cache_salt"] = salt
        async with self.generating:
            choice = (await self.post(endpoint, body, session_id))["choices"][0]
        content = (choice["logprobs"] or {}).get("content")
        return (choice["token_ids"], choice["finish_reason"],
                [token["logprob"] for token in content] if content else None)

    async def finish_session(self, session_id):
        """At most a warning, whatever comes of it. Returns the status."""
        url = f"{self.proxy_url}/finish_session?session_id={urllib.parse.quote(session_id)}"
        async with self.session.post(
                url, timeout=aiohttp.ClientTimeout(total=FINISH_SESSION_S)) as r:
            await r.read()
            return r.status

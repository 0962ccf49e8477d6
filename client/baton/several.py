"""One push to several servers: all of them commit it, or none does.

Each server gets a session of its own. When all have received and verified the update, each is
asked to commit. Only a server that fails in that last step, which moves no bytes, leaves the others
ahead; the error then names them. A server with --stage whose engines do not have the version yet has
committed it all the same, and hands it over by itself."""

import concurrent.futures
import threading

from .connection import ask
from .errors import BatonError, has_committed

LEASE_S = 60  # of a session: how long a server waits for a trainer that has died
RENEW_S = 15.0  # between two renewals, for servers that wait for slower ones
SHORT_S = 10.0  # for a request that moves no bytes and waits for nothing

UPDATE = "/v1/update_weights"
UNKNOWN = "; whether it committed is not known: its /v1/weights has the version that it serves"


class _Total:
    """The progress of all servers as one."""

    def __init__(self, progress):
        self._progress, self._lock, self._at = progress, threading.Lock(), {}

    def of(self, url):
        def show(done, total):
            with self._lock:
                self._at[url] = (done, total)
                self._progress(sum(d for d, _ in self._at.values()),
                               sum(t for _, t in self._at.values()))

        return show if self._progress else None


class _Servers:
    """The servers of one push, and their sessions' ids."""

    def __init__(self, urls, timeout):
        self.urls, self.timeout, self.ids = urls, timeout, {}
        self.pool = concurrent.futures.ThreadPoolExecutor(2 * len(urls), "baton-push")

    def _post(self, url, step, **body):
        return ask(url, "POST", f"{UPDATE}/{step}", dict(body, update_id=self.ids[url]),
                   timeout=self.timeout if step in ("verify", "finish") else SHORT_S)

    def start(self, url, members):
        answer = ask(url, "POST", f"{UPDATE}/start", dict(members, lease_s=LEASE_S),
                     timeout=self.timeout)
        self.ids[url] = answer["update_id"]

    def verify(self, url, send, progress):
        send(url, {"update_id": self.ids[url]}, progress)
        return self._post(url, "verify")

    def finish(self, url):
        try:
            return self._post(url, "finish")
        except BatonError as e:
            if e.status:
                raise
            return self._post(url, "finish")  # whose first answer is lost, but repeated

    def abort(self, url, reason):
        self._post(url, "abort", reason=reason[:200])

    def each(self, urls, work, early=False):
        """work(url) for each at the same time: their results, and their errors, by url. @early: do
        not wait for the others when one has failed. Meanwhile leases are renewed."""
        until = concurrent.futures.FIRST_EXCEPTION if early else concurrent.futures.ALL_COMPLETED
        futures = {self.pool.submit(work, url): url for url in urls}
        pending = set(futures)
        while pending and not (early and any(f.exception() for f in futures if f.done())):
            _, pending = concurrent.futures.wait(pending, RENEW_S, until)
            if pending:
                self._renew_all()
        ended = [f for f in futures if f.done()]
        return ({futures[f]: f.result() for f in ended if not f.exception()},
                {futures[f]: f.exception() for f in ended if f.exception()})

    def _renew_all(self):
        for renewal in [self.pool.submit(self._post, url, "renew") for url in list(self.ids)]:
            renewal.exception()  # if it failed, the session has ended: the next step says why


def _listed(messages):
    return "; ".join(f"{url}: {text}" for url, text in messages.items())


def _failed(errors, committed, finishing):
    """The error of a push that failed on these servers and was committed by those. @finishing: they
    were asked to commit, so one that did not answer may have done it."""
    behind = {url: str(e) for url, e in errors.items() if has_committed(e)}
    wrong = {url: e for url, e in errors.items() if url not in behind}
    unknown = [url for url, e in wrong.items() if finishing and not getattr(e, "status", 0)]
    named = {url: str(e) + (UNKNOWN if url in unknown else "") for url, e in wrong.items()}
    how = "failed on" if unknown else "not by" if committed else "it failed on"
    first = next(iter((wrong or errors).values()))
    done = ", ".join(committed) or ("none that answered" if unknown else "none")
    text = f"committed by {done}" + (f"; {how} {_listed(named)}" if named else "")
    text += f"; not yet handed over by {_listed(behind)}" if behind else ""
    error = BatonError(text, code=getattr(first, "code", ""),
                       retryable=all(getattr(e, "retryable", False) for e in errors.values()),
                       details={"committed": committed, "failed": named, "unknown": unknown,
                                "not_handed_over": behind})
    error.__cause__ = first
    return error


def _raise_unexpected(errors):
    for e in errors.values():
        if not isinstance(e, BatonError):
            raise e


def push_several(urls, sends, members, progress, timeout):
    """Update objects in the order of the urls. @sends the function that sends to each url."""
    servers, total, committed = _Servers(urls, timeout), _Total(progress), []
    errors, finishing = {}, False
    try:
        _, errors = servers.each(urls, lambda url: servers.start(url, members))
        if not errors:
            _, errors = servers.each(urls, lambda url: servers.verify(url, sends[url],
                                                                      total.of(url)), early=True)
        if not errors:
            finishing = True
            answers, errors = servers.each(urls, servers.finish)
            committed = [url for url in urls if url in answers or has_committed(errors.get(url))]
        _raise_unexpected(errors)
        if errors:
            raise _failed(errors, committed, finishing)
        return [answers[url] for url in urls]
    except BaseException as e:
        left = [url for url in servers.ids if url not in committed]
        for call in [servers.pool.submit(servers.abort, url, str(e)) for url in left]:
            call.exception()  # if it failed, the session has ended, or its lease will end it
        raise
    finally:
        servers.pool.shutdown()

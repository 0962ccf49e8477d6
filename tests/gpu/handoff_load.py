"""For tests of hand-off: requests that go on while weights change, of which weights each of their
tokens is, and what must not grow in engines."""

import os
import re
import threading
import time

import nccl_world as nccl
import vllm_engines as engines

N = 24  # tokens of each reply: long enough that updates fall into some
N_CLIENTS = 4
REPLY_S = 30
LOGPROB_DIGITS = 3  # replies that agree in these are judged once


class Reply:
    def __init__(self, prompt, sent, got, found):
        self.prompt, self.sent, self.got = prompt, sent, got
        self.lost = str(found)[:300] if isinstance(found, nccl.Answer) else ""
        self.ids, self.logprobs = ([], []) if self.lost else found

    def key(self):
        logprobs = tuple(round(x, LOGPROB_DIGITS) for x in self.logprobs)
        return tuple(self.prompt), tuple(self.ids), logprobs


class Load:
    """Clients that ask a server without a pause between; a context manager."""

    def __init__(self, server, n_clients=N_CLIENTS):
        prompts = [prompt for prompt, _, _ in engines.questions("step-00000")]
        self.server, self.replies, self.stop = server, [], threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(prompts[i::n_clients],), daemon=True)
            for i in range(n_clients)
        ]

    def _run(self, prompts):
        while not self.stop.is_set():
            for prompt in prompts:
                sent = time.monotonic()
                found = engines.generate(self.server, prompt, N)
                self.replies.append(Reply(prompt, sent, time.monotonic(), found))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(REPLY_S)

    def lost(self):
        hangs = [f"{sum(t.is_alive() for t in self.threads)} clients have no answer"]
        return [r.lost for r in list(self.replies) if r.lost] + (
            hangs if any(t.is_alive() for t in self.threads) else []
        )


class Served:
    """Which checkpoints may have generated a token, and when."""

    def __init__(self, step):
        self.rows = [(step, 0.0, float("inf"))]  # step, from, until

    def change(self, step, began, ended):
        """A hand-off: the old one until it ended, the new one since it began."""
        old, since, _ = self.rows[-1]
        self.rows[-1] = (old, since, ended)
        self.rows.append((step, began, float("inf")))

    def between(self, sent, got):
        return [step for step, since, until in self.rows if since <= got and until >= sent]


class Judge:
    """transformers in float32: a token is of a checkpoint whose logprob of it, after all tokens
    before it, is the one that was returned, and the best but for a tie. So a token that was made of
    cached values of other weights is of none."""

    def __init__(self, oracle, tolerance=engines.TOLERANCE):
        self.oracle, self.tolerance, self.known = oracle, tolerance, {}

    def fits(self, reply):
        """For each token the set of checkpoints that it may be of."""
        key = reply.key()
        if key not in self.known:
            self.known[key] = self._fits(reply)
        return self.known[key]

    def _fits(self, reply):
        torch, found = self.oracle.torch, [set() for _ in reply.ids]
        for step, model in self.oracle.models.items():
            with torch.no_grad():
                given = torch.tensor([reply.prompt + reply.ids])
                scores = model(given).logits[0].log_softmax(-1)[len(reply.prompt) - 1 : -1]
            own = scores.gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
            best = scores.max(-1).values
            said = torch.tensor(reply.logprobs)
            off = torch.maximum((own - said).abs(), best - own).tolist()
            for i, value in enumerate(off):
                if value <= self.tolerance:
                    found[i].add(step)
        return found

    def wrong(self, reply, served):
        """"" if its tokens are of checkpoints that were served meanwhile, in their order."""
        if len(reply.ids) != N:
            return f"{len(reply.ids)} tokens, expected {N}"
        steps, at = served.between(reply.sent, reply.got), 0
        for i, fit in enumerate(self.fits(reply)):
            while at < len(steps) and steps[at] not in fit:
                at += 1
            if at == len(steps):
                return f"token {i} of {reply.prompt[:4]} fits {sorted(fit)}, served were {steps}"
        return ""

    def changed_within(self, reply):
        """More than one checkpoint took part in it."""
        return not set.intersection(*self.fits(reply))


def usage(pgid):
    """What all processes of a group hold."""
    found = {"fds": 0, "rss": 0}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(pid)) != pgid:
                continue
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
                rss = re.search(r"VmRSS:\s+(\d+)", f.read())
            found["fds"] += len(os.listdir(f"/proc/{pid}/fd"))
            found["rss"] += int(rss[1]) * 1024 if rss else 0
        except OSError:
            continue
    return found

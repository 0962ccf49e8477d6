"""What the demo shows with one server: updates, refusals, an adapter. Each line that it prints is
checked before; the first that is not so ends the demo."""

import json
import os
import time

from servers import HalfPush, body_of, check, push_body, refusal_of, until
import baton

LOAD_MAX = 128  # sequences behind the streams
AFTER_S = 0.5  # after the end of an update, in which it may still delay a token
KILL_S, CROSSING_S = 10, 60
PROMPT = "In the beginning"


class World:
    """What the acts share: the programs, the model, the screen, and the figures for the end."""

    def __init__(self, binary, model, show):
        self.binary, self.model, self.show = binary, model, show
        self.figures = []  # (what, figure)
        with open(os.path.join(model, "golden.json"), encoding="utf-8") as f:
            self.golden = json.load(f)["checkpoints"]

    def checkpoint(self, step):
        return os.path.join(self.model, "checkpoints", f"step-{step:05d}.safetensors")

    def options(self, step):
        return ("--model", self.model, "--weights", self.checkpoint(step), "--weight-version",
                f"step-{step}", "--allow-path", self.model, "--engine-threads", "1")

    def dwell(self, streams, share=1.0):
        """Lets the text flow; fails as soon as a stream fails."""
        end = time.monotonic() + share * self.show.dwell_s
        while time.monotonic() < end:
            streams.check()
            time.sleep(0.05)

    def check_greedy(self, url, step):
        """The greedy text of a server is that of transformers for this checkpoint."""
        body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
        choice = baton.request(url, "POST", "/v1/completions", body, timeout=60)["choices"][0]
        versions = [span["version"] for span in choice["weight_versions"]]
        check(versions == [f"step-{step}"], f"step-{step} makes the next text, not {versions}")
        expected = self.golden[f"step-{step:05d}"]["cases"][0]["greedy_text"]
        check(choice["text"] == expected, f"step-{step} writes {expected!r}, not {choice['text']!r}")
        return f"{PROMPT}{choice['text']}".replace("\n", " / ")


def checksums_of(tensors):
    return {name: baton.checksum(t.data) for name, t in tensors.items()}


def check_served(server, label, sums):
    """The server serves exactly these bytes under this label."""
    check(server.get("/v1/status")["weights"]["weight_version"] == label, f"{label} is served")
    served = server.get("/v1/weights")["tensors"]
    check({t["name"]: t["checksum"] for t in served} == sums, f"every checksum is that of {label}")


def excerpt(streams, old, new):
    """A few words of a stream around the token at which `new` took over from `old`."""
    for s in streams.list:
        cells = list(s.cells)
        for i in range(1, len(cells)):
            if (cells[i - 1].version, cells[i].version) == (old, new):
                before = "".join(c.text for c in cells[max(0, i - 12):i] if c.version == old)
                after = "".join(c.text for c in cells[i:i + 12] if c.version == new)
                text = f"[{old}]{before} [{new}]{after}".replace("\n", " / ").replace("\ufffd", "?")
                return "".join(c if c.isprintable() else " " for c in text)
    return None


def updates(world, server, streams):
    """Two checkpoints arrive while eight generations run."""
    world.show.act("1. New weights arrive in mid sentence")
    text = world.check_greedy(server.url, 0)
    world.show.say(f"  ok  step-0 is served, an untrained model. It writes: {text}")
    quiet_from = time.monotonic()
    world.dwell(streams)
    quiet = streams.meter.longest_ms(quiet_from)
    pushes = [push_while_text_flows(world, server, streams, *p)
              for p in ((0, 100, "shm"), (100, 1500, "body"))]
    until(lambda: streams.check() or any(s.crossings for s in streams.list), CROSSING_S,
          "a generation that ran across an update ends, with every token")
    world.figures += [
        ("time between two tokens of a stream, median", f"{streams.meter.median_ms():.1f} ms"),
        ("  longest, no update", f"{quiet:.1f} ms"),
        ("  longest, during an update and 0.5 s after", f"{max(p[0] for p in pushes):.1f} ms"),
        ("push of 1.84 MB, proven and served, as the trainer sees it",
         " and ".join(f"{p[1]:.0f} ms" for p in pushes)),
        ("  of that in the server", " and ".join(f"{p[2]:.0f} ms" for p in pushes))]


def push_while_text_flows(world, server, streams, old, step, via):
    label, tensors = f"step-{step}", baton.load_file(world.checkpoint(step))
    begin = time.monotonic()
    answer = baton.push(tensors, server.url, via=via, weight_version=label)
    took_ms = (time.monotonic() - begin) * 1e3
    check(answer["phase"] == "committed", f"{label} is committed: {answer}")
    server_ms = sum(answer["timing"][f"{phase}_ms"] for phase in ("receive", "verify", "commit"))
    check_served(server, label, checksums_of(tensors))
    text = world.check_greedy(server.url, step)
    until(lambda: excerpt(streams, f"step-{old}", label), KILL_S, f"a sentence goes on with {label}")
    world.show.say(f"  ok  {label} came by {via} in {took_ms:.0f} ms; all {len(tensors)} checksums are "
                   f"right; the text is that of transformers: {text}")
    world.show.say(f"  ok  one sentence, two versions: {excerpt(streams, f'step-{old}', label)}")
    world.dwell(streams)
    streams.check_unbroken()
    return streams.meter.longest_ms(begin, begin + took_ms / 1e3 + AFTER_S), took_ms, server_ms


def refusals(world, server, streams):
    """Three pushes that must not be served, and are not."""
    world.show.act("2. Bad pushes are refused by name, and the text flows on")
    good = baton.load_file(world.checkpoint(1500))
    sums, begin = checksums_of(good), time.monotonic()
    n_commits = server.get("/v1/status")["weights"]["n_commits"]
    world.figures.append(("refused pushes", "3 of 3, with no token lost"))
    for refuse in (refuse_flipped_byte, refuse_missing_tensor, refuse_killed_trainer):
        n_before = streams.n_tokens()
        world.show.say("  ok  " + refuse(world, server))
        world.dwell(streams, 0.75)
        check_served(server, "step-1500", sums)
        check(server.get("/v1/status")["weights"]["n_commits"] == n_commits, "nothing was committed")
        check(streams.n_tokens() > n_before, "the text flows on after a refusal")
    streams.check_unbroken()
    world.show.say("  ok  after each: every checksum is still that of step-1500")
    world.figures.append(("  longest time between two tokens meanwhile",
                          f"{streams.meter.longest_ms(begin):.1f} ms"))


def refuse_flipped_byte(world, server):
    body = body_of(baton.load_file(world.checkpoint(100)))
    body[len(body) // 2] ^= 1
    e = refusal_of(push_body, server.url, body, "flipped")
    check((e.status, e.code) == (422, "checksum_mismatch") and "layers." in e.message,
          f"the refusal names the tensor: {e}")
    return f"one bit flipped: {e.status} {e.code}: {e.message}"


def refuse_missing_tensor(world, server):
    tensors = baton.load_file(world.checkpoint(100))
    del tensors["model.norm.weight"]
    e = refusal_of(baton.push, tensors, server.url, via="shm", weight_version="missing")
    check((e.status, e.code) == (422, "incomplete_update") and "model.norm.weight" in e.message,
          f"the refusal names the tensor: {e}")
    return f"one tensor missing: {e.status} {e.code}: {e.message}"


def refuse_killed_trainer(world, server):
    def under_way():
        update = server.get("/v1/status")["update"]
        return update if update and update["weight_version"] == "halfway" and \
            update["n_tensors_done"] > 0 else None

    trainer = HalfPush(server.url, world.checkpoint(100), "halfway")
    try:
        update = until(under_way, KILL_S, "half of a push arrives")
    finally:
        trainer.kill()
    e = until(lambda: next((e for e in server.events("update.aborted")
                            if e["weight_version"] == "halfway"), None), KILL_S,
              "the server gives up the push of a killed trainer")
    return (f"trainer killed (-9) after {update['n_tensors_done']} of {update['n_tensors_total']} "
            f"tensors: {e['code']}: {e['message']}")


def upper_share(text):
    letters = [c for c in text if c.isalpha()]
    return sum(c.isupper() for c in letters) / max(1, len(letters))


def adapter(world, server, streams):
    """An adapter turns the text to capitals, and back."""
    world.show.act("3. An adapter turns the text to capitals, and back")
    answer = server.post("/v1/load_lora_adapter", {
        "lora_name": "shout", "lora_path": os.path.join(world.model, "adapters", "shout")})
    check(answer["revision"] == 1 and answer["n_matched"] > 0, f"the adapter is loaded: {answer}")
    shares = []
    for name in ("shout", None):
        streams.set_adapter(name)
        until(lambda: all(s.cells[-1].adapter == name and s.cells[-1].version for s in streams.list),
              KILL_S, "each stream continues with the adapter, or without it")
        marks = streams.marks()
        until(lambda: len(streams.text_since(marks)) > 2000, 60, "text flows")
        world.dwell(streams, 0.75)
        shares.append(upper_share(streams.text_since(marks)))
    streams.check_unbroken()
    check(shares[0] > 0.9 > 0.3 > shares[1], f"capitals, and no capitals: {shares}")
    answer = server.post("/v1/unload_lora_adapter", {"lora_name": "shout"})
    check(answer["status"] == "ok", f"the adapter is unloaded: {answer}")
    world.show.say(f"  ok  with adapter 'shout' {shares[0]:.0%} of the letters are capitals, "
                   f"without it {shares[1]:.0%}; the weights stayed step-1500")
    world.figures.append(("letters in capitals with the adapter; without",
                          f"{shares[0]:.0%}; {shares[1]:.0%}"))

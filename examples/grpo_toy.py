#!/usr/bin/env python3
"""GRPO on the bundled model, on the CPU, in one to two minutes.

    cmake --preset release -DBATON_TESTS=OFF && cmake --build --preset release
    python3 -m venv build/venv && build/venv/bin/pip install torch
    build/venv/bin/python examples/grpo_toy.py       # --help lists the options

The model has 1M parameters and has read the King James Bible. The task is a lipogram: to go on
writing without the letter E. The reward of a completion is the share of its words that have no E.

Each step of the loop does what the loop of a large run does:

    1. sample   GROUP completions of each prompt from baton, with the logprob of every token
    2. check    all tokens were made by the version pushed last, and the trainer, with the weights
                of that version, computes the same logprobs as baton
    3. train    rewards -> advantages within each group -> clipped policy gradient -> Adam
    4. push     the new weights to baton, as version step-N

With --delta step 4 sends only what changed; the rewards are the same to the bit.

Step 2 is the reason to use baton. The importance ratio of PPO and GRPO is exp(logprob of the
trainer - logprob of the sampler). If the sampler has other weights than the trainer believes, or
computes something else with them, the ratio is wrong and the run degrades without an error. Here
such a difference is an error, in the step in which it appears.

The exit status is 1 if a check fails or if the reward did not rise; 77 without torch.
"""

import argparse
import contextlib
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "client"))
import baton  # noqa: E402

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("grpo_toy.py needs torch: pip install torch")
    sys.exit(77)  # ctest counts 77 as skipped

MODEL = os.path.join(ROOT, "tests", "fixtures", "kjv-qwen3-1m")
WEIGHTS = os.path.join(MODEL, "checkpoints", "step-01500.safetensors")
PROMPTS = ["And the LORD said unto Moses,", "In the beginning", "And he went", "Now the sons of"]
GROUP = 16  # completions of each prompt; advantages are relative to the mean of the group
MAX_TOKENS = 32
MINIBATCHES = 2  # gradient steps on each batch; the clipping matters from the second on
LEARNING_RATE = 7e-4
CLIP = 0.2
KL_WEIGHT = 0.1  # how strongly the policy is pulled back to the model it started from
LOGPROB_ERROR_MAX = 1e-3  # between baton and the trainer, on any token
STEPS = 40
RISE_MIN, RISE_STEPS = 0.15, 5  # between the mean rewards of the first steps and of the last ones
SERVER_S = 30  # to start, and to stop
SEED = 1611
BAR, PAPER = b"\x1f\x5f\xbf", b"\xff\xff\xff"  # colours of the PNG


class Failed(Exception):
    """A check of this example has failed."""


class Server:
    """`baton serve` on a free port, which is read from its log; ends with the with block."""

    def __init__(self, binary):
        self.log = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen([binary, "serve", "--model", MODEL, "--weights", WEIGHTS,
                                       "--listen", "127.0.0.1:0"], stderr=self.log)

    def __enter__(self):
        deadline = time.monotonic() + SERVER_S
        while time.monotonic() < deadline and self.child.poll() is None:
            self.log.seek(0)
            for line in self.log:
                if '"event":"serving"' in line and line.endswith("}\n"):
                    return f"http://127.0.0.1:{json.loads(line)['port']}"
            time.sleep(0.02)
        self.__exit__()
        self.log.seek(0)
        raise Failed(f"baton serve did not start; its log:\n{self.log.read()}")

    def __exit__(self, *_):
        self.child.terminate()
        try:
            self.child.wait(SERVER_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def load_weights():
    """name -> float32 tensor; the file has bfloat16."""
    return {name: torch.frombuffer(bytearray(t.data), dtype=torch.bfloat16).view(t.shape).float()
            for name, t in baton.load_file(WEIGHTS).items()}


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention(w, prefix, x, tables, config):
    n_heads, n_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    batch, length, _ = x.shape
    q, k, v = (F.linear(x, w[f"{prefix}.{name}_proj.weight"]).view(batch, length, n, -1)
               .transpose(1, 2)
               for name, n in (("q", n_heads), ("k", n_kv_heads), ("v", n_kv_heads)))
    q = rotate(rms_norm(q, w[f"{prefix}.q_norm.weight"], config["rms_norm_eps"]), *tables)
    k = rotate(rms_norm(k, w[f"{prefix}.k_norm.weight"], config["rms_norm_eps"]), *tables)
    k, v = (t.repeat_interleave(n_heads // n_kv_heads, dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(config["head_dim"])
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    return F.linear(mixed.transpose(1, 2).flatten(2), w[f"{prefix}.o_proj.weight"])


def logits_of(w, ids, config):
    """Qwen3: token ids of [batch, length] -> [batch, length, vocabulary]."""
    eps, embedding = config["rms_norm_eps"], w["model.embed_tokens.weight"]
    frequencies = config["rope_theta"] ** (-torch.linspace(0, 1, config["head_dim"] // 2 + 1)[:-1])
    angles = (torch.arange(ids.shape[1])[:, None] * frequencies).repeat(1, 2)
    tables, x = (angles.cos(), angles.sin()), embedding[ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        normed = rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps)
        x = x + attention(w, f"{layer}.self_attn", normed, tables, config)
        normed = rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps)
        gate, up, down = (w[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + F.linear(F.silu(F.linear(normed, gate)) * F.linear(normed, up), down)
    x = rms_norm(x, w["model.norm.weight"], eps)
    return F.linear(x, embedding if config["tie_word_embeddings"] else w["lm_head.weight"])


def logprobs_of(w, ids, config):
    """[batch, length - 1]: of each token after the first, given those before it."""
    logprobs = logits_of(w, ids[:, :-1], config).log_softmax(-1)
    return logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)


def served(master):
    """The weights as baton serves them: rounded to bfloat16, computed with in float32. Gradients
    pass through the rounding to the float32 master weights, so that small steps add up there."""
    return {name: w + (w.detach().bfloat16().float() - w.detach()) for name, w in master.items()}


def reward_of(text):
    words = re.findall(r"[a-z]+", text.lower())
    return sum("e" not in word for word in words) / len(words) if words else 0.0


def sample(url, seed, version):
    """GROUP completions of each prompt; choice p * GROUP + g is completion g of prompt p."""
    body = {"prompt": PROMPTS, "n": GROUP, "max_tokens": MAX_TOKENS, "temperature": 1.0,
            "top_p": 1.0, "top_k": 0, "logprobs": 0, "return_token_ids": True, "seed": seed}
    choices = baton.request(url, "POST", "/v1/completions", body)["choices"]
    for choice in choices:
        made_by = {span["version"] for span in choice["weight_versions"]}
        if made_by != {version}:
            raise Failed(f"a completion was made by {sorted(made_by)}; {version} was pushed last")
    return choices


def batch_of(choices):
    """Token ids, padded at the end, where causal attention does not see the padding; and for each
    token after the first baton's logprob, and whether it is part of the completion."""
    length = max(len(c["prompt_token_ids"]) + len(c["token_ids"]) for c in choices)
    ids = torch.zeros(len(choices), length, dtype=torch.long)
    behaviour, mask = torch.zeros(len(choices), length - 1), torch.zeros(len(choices), length - 1)
    for row, c in enumerate(choices):
        start, tokens = len(c["prompt_token_ids"]), c["prompt_token_ids"] + c["token_ids"]
        ids[row, :len(tokens)] = torch.tensor(tokens)
        behaviour[row, start - 1:len(tokens) - 1] = torch.tensor(c["logprobs"]["token_logprobs"])
        mask[row, start - 1:len(tokens) - 1] = 1.0
    return ids, behaviour, mask


def advantages_of(rewards):
    groups = rewards.view(-1, GROUP)
    spread = groups.std(dim=1, keepdim=True) + 1e-4
    return ((groups - groups.mean(dim=1, keepdim=True)) / spread).view(-1, 1)


def loss_of(logprobs, behaviour, reference, advantages, mask):
    ratio = (logprobs - behaviour).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    distance = (reference - logprobs).exp() - (reference - logprobs) - 1  # estimates the KL
    return ((KL_WEIGHT * distance - gain) * mask).sum() / mask.sum()


def train(master, optimizer, initial, choices, rewards, config):
    """Gradient steps on one batch; returns the largest difference between the logprobs of baton and
    of the trainer before the first of them."""
    ids, behaviour, mask = batch_of(choices)
    with torch.no_grad():
        error = ((logprobs_of(served(master), ids, config) - behaviour) * mask).abs().max().item()
        reference = logprobs_of(initial, ids, config)
    if not error <= LOGPROB_ERROR_MAX:
        raise Failed(f"the logprobs of baton and of the trainer differ by {error:.2g}; at most "
                     f"{LOGPROB_ERROR_MAX:g} is allowed: they do not have the same weights")
    advantages = advantages_of(rewards)
    for rows in torch.randperm(len(choices)).chunk(MINIBATCHES):
        logprobs = logprobs_of(served(master), ids[rows], config)
        loss = loss_of(logprobs, behaviour[rows], reference[rows], advantages[rows], mask[rows])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(master.values(), 1.0)
        optimizer.step()
    return error


class Pusher:
    """Pushes each version; with deltas, only what changed since the one before, which it keeps."""

    def __init__(self, url, deltas):
        self.url, self.deltas, self.version, self.before = url, deltas, None, None

    def push(self, master, version):
        """Returns what a delta saved, "" of a whole."""
        weights = {k: w.detach().bfloat16() for k, w in master.items()}
        update = baton.push(weights, self.url, weight_version=version, delta_from=self.version,
                            delta_base=self.before)
        if self.deltas:
            self.version, self.before = version, weights
        if not update["delta"]:
            return ""
        whole = sum(w.numel() * w.element_size() for w in weights.values())
        return f", sent {update['nbytes_sent']:,} of {whole:,} bytes"


def run(url, n_steps, deltas=False):
    """Returns the mean reward of each step."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # for a model as small as this, more of them only wait for each other
    with open(os.path.join(MODEL, "config.json")) as f:
        config = json.load(f)
    initial = load_weights()
    master = {name: w.clone().requires_grad_() for name, w in initial.items()}
    optimizer = torch.optim.Adam(master.values(), lr=LEARNING_RATE)
    curve, worst, pusher = [], 0.0, Pusher(url, deltas)
    pusher.push(master, "step-0")
    for step in range(n_steps):
        choices = sample(url, SEED + step * GROUP * len(PROMPTS), f"step-{step}")
        rewards = torch.tensor([reward_of(c["text"]) for c in choices])
        error = train(master, optimizer, initial, choices, rewards, config)
        saved = pusher.push(master, f"step-{step + 1}")
        curve, worst = curve + [rewards.mean().item()], max(worst, error)
        print(f"step-{step:<3} reward {curve[-1]:.3f} {'█' * round(curve[-1] * 40):<40} "
              f"logprobs agree to {error:.0e}{saved}", flush=True)
        if step in (0, n_steps - 1):
            for prompt, choice in zip(PROMPTS, choices[::GROUP]):
                text = f"{prompt} ...{choice['text']}".replace("\n", " / ")
                print(f"    {baton.errors.shown(text)}")
    print(f"{n_steps + 1} pushes; each of {n_steps * len(choices)} completions was made by the last"
          f" pushed version.\nLargest difference between logprobs of baton and trainer: {worst:.0e}.")
    return curve


def write_png(path, curve, step_width=16, height=360):
    """A bar for each step, from 0 at the bottom to 1 at the top."""
    pixels = b"".join(b"\0" + b"".join((BAR if value * height >= height - y else PAPER) * step_width
                                       for value in curve) for y in range(height))
    header = struct.pack(">IIBBBBB", len(curve) * step_width, height, 8, 2, 0, 0, 0)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")):
            f.write(struct.pack(">I", len(data)) + kind + data)
            f.write(struct.pack(">I", zlib.crc32(kind + data)))


def check_rise(curve):
    if len(curve) < 2 * RISE_STEPS:
        print(f"The rise of the reward is checked from {2 * RISE_STEPS} steps on.")
        return
    first, last = (sum(part) / RISE_STEPS for part in (curve[:RISE_STEPS], curve[-RISE_STEPS:]))
    if not last - first >= RISE_MIN:
        raise Failed(f"the reward went from {first:.3f} to {last:.3f} (means of {RISE_STEPS} "
                     f"steps); it should rise by {RISE_MIN}")
    print(f"The reward rose from {first:.3f} to {last:.3f} (means of {RISE_STEPS} steps).")


def main():
    parser = argparse.ArgumentParser(description="GRPO on the bundled model, sampling from baton.")
    parser.add_argument("--url", help="a baton that serves the bundled model; default: start one")
    parser.add_argument("--baton", default=os.path.join(ROOT, "build", "release", "baton"),
                        help="the program to start (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="default: %(default)s")
    parser.add_argument("--delta", action="store_true", help="push only what changed in each step")
    parser.add_argument("--check", action="store_true",
                        help="with --delta: run again with whole pushes, and compare the rewards")
    parser.add_argument("--png", default="grpo_toy.png", help="the curve (default: %(default)s)")
    args, began = parser.parse_args(), time.monotonic()
    if args.steps < 1:
        parser.error("--steps must be at least 1")
    with contextlib.nullcontext(args.url) if args.url else Server(args.baton) as url:
        curve = run(url, args.steps, args.delta)
        if args.delta and args.check and run(url, args.steps) != curve:
            raise Failed("the rewards with deltas and with whole pushes differ")
    write_png(args.png, curve)
    print(f"The curve is in {args.png}. {time.monotonic() - began:.0f} s in total.")
    check_rise(curve)


if __name__ == "__main__":
    try:
        main()
    except (Failed, baton.BatonError, OSError) as e:
        sys.exit(f"grpo_toy.py: {e}")

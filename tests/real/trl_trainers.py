"""TRL's own trainers, AsyncGRPOTrainer and GRPOTrainer, for some steps against baton's engine: their
rollouts, the optimizer's steps, and their weights by NCCL. On a CPU, so what needs a GPU is a stand-in:
the kernel of attention, and what fake_gpu has."""

import contextlib
import signal
import tempfile
import types

import fake_gpu
import real_world
import torch
from datasets import Dataset
from real_world import CHAT
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, packing, weight_transfer
from trl.generation import vllm_client

N_STEPS, N_SAMPLES, TEMPERATURE = 3, 4, 0.7
TRAIN_S = 900  # the process of its rollout imports torch and vLLM again


def even(completion_ids, **_):
    """The reward: how many of its tokens have an even id."""
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]


@contextlib.contextmanager
def ends_within(seconds):
    """Its rollout repeats refused requests for minutes."""

    def end(*_):
        raise TimeoutError(f"no end of the training in {seconds} s")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def varlen(query, key, value, offsets_q, offsets_k, *_, softmax_scale, causal, window_size):
    """flash_attn_varlen_func: each segment attends to its path, whose last tokens are its own."""
    made = []
    for i in range(len(offsets_q) - 1):
        q, k, v = (
            x[o[i] : o[i + 1]].transpose(0, 1)
            for x, o in ((query, offsets_q), (key, offsets_k), (value, offsets_k))
        )
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        made.append(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=softmax_scale, enable_gqa=True
            ).transpose(0, 1)
        )
    return torch.cat(made)


def a_model(folder, dtype):
    """The fixture as transformers saves it."""
    model = AutoModelForCausalLM.from_pretrained(real_world.untied("step-00100"), dtype=dtype)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(real_world.untied("step-00100"))
    tokenizer.eos_token, tokenizer.chat_template = "<|endoftext|>", qwen3_chat_template
    tokenizer.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def play(args, dtype):
    """A server; and what a trainer needs: the directory, a dataset, what its config says."""
    groups = fake_gpu.fakes(args)
    fake_gpu.without_gpu()
    packing._flash_attn = lambda: types.SimpleNamespace(flash_attn_varlen_func=varlen)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-real-"))
        model = a_model(f"{folder}/model", dtype)
        options = ("--model", model, "--logprobs-mode", "processed_logprobs", "--max-model-len", "64")
        server, url = stack.enter_context(fake_gpu.engine_of(groups, *options))
        port, endpoint = fake_gpu.endpoint_of(groups, stack)
        for module in (weight_transfer, vllm_client):
            module.get_ip = lambda: "127.0.0.1"
            module.open_trainer_endpoint = lambda info: endpoint(info["world_size"])
        weight_transfer.get_open_port = lambda: port
        prompts = [{"prompt": CHAT}, {"prompt": [{"role": "user", "content": "And the LORD said"}]}]
        given = {
            **dict(output_dir=f"{folder}/out", use_cpu=True, bf16=False, report_to=[]),
            **dict(max_steps=N_STEPS, save_strategy="no", learning_rate=1e-3, logging_steps=1),
            **dict(per_device_train_batch_size=N_SAMPLES, num_generations=N_SAMPLES),
            **dict(max_completion_length=8, temperature=TEMPERATURE, disable_tqdm=True),
            **dict(vllm_server_base_url=url, vllm_server_timeout=60),
        }
        yield server, model, dict(reward_funcs=even, train_dataset=Dataset.from_list(prompts)), given, port


def trained(trainer):
    with ends_within(TRAIN_S):
        fake_gpu.process_of(trainer.train)


def weights_of(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def is_served(checks, server, trainer, dtype):
    """What the optimizer made, rounded to the server's dtype."""
    made = {n: p.to(dtype) for n, p in weights_of(trainer).items()}
    checks.same(fake_gpu.is_served(server, made), None, "a tensor that is not served")
    lines = server.ask("GET", "/metrics").raw.decode().splitlines()
    ended = [line for line in lines if line.startswith("baton_http_requests_total")]
    refused = [line for line in ended if 'code="200"' not in line]
    checks.same((len(ended) > 5, refused), (True, []), "requests refused")


class Kept:
    """The queue of samples; the first one of each version is kept."""

    def __init__(self, queue):
        self.queue, self.first = queue, {}

    def __getattr__(self, name):
        return getattr(self.queue, name)

    def get(self, *args, **kwargs):
        sample = self.queue.get(*args, **kwargs)
        self.first.setdefault(sample.model_version, sample)
        return sample


def off_by(trainer, weights, sample):
    """How far its logprobs are from those of these weights."""
    ids = torch.tensor(sample.input_ids)[None]
    model = AutoModelForCausalLM.from_config(trainer.model.config, attn_implementation="eager")
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].float() / TEMPERATURE
    made = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    trains = torch.tensor(sample.completion_mask[1:]).bool()
    return (made - torch.tensor(sample.old_log_probs[1:]))[trains].abs().max().item()


def async_grpo(args, checks):
    """In the dtype of its config's default; the name that its rollout sends is the path."""
    with play(args, torch.float32) as (server, model, more, given, _):
        config = AsyncGRPOConfig(**given, max_staleness=0, queue_maxsize=8)
        trainer = AsyncGRPOTrainer(model=model, args=config, **more)
        trainer.rollout_queue = kept = Kept(trainer.rollout_queue)
        sent, send = [weights_of(trainer)], trainer.weight_transfer.send_weights
        trainer.weight_transfer.send_weights = lambda tensors: (sent.append(weights_of(trainer)), send(tensors))
        trained(trainer)
        checks.same((trainer.state.global_step, len(sent)), (N_STEPS, N_STEPS + 2), "steps, and updates")
        for version in range(1, N_STEPS + 1):
            sample = kept.first[version]
            off = off_by(trainer, sent[version], sample)
            checks.that(off < 1e-4, f"a rollout of version {version} has its logprobs", f"{off:.1e}")
            if version > 1:
                off = off_by(trainer, sent[version - 1], sample)
                checks.that(off > 1e-2, "and not those of the version before", f"{off:.1e}")
        is_served(checks, server, trainer, torch.float32)


def grpo(args, checks):
    """A bfloat16 checkpoint, which it loads, trains and sends as float32."""
    its_own = vllm_client.VLLMClient.init_communicator
    vllm_client.VLLMClient.init_communicator = lambda self, device: its_own(self, "cuda")
    with play(args, torch.bfloat16) as (server, model, more, given, port):
        config = GRPOConfig(**given, use_vllm=True, vllm_mode="server", vllm_group_port=port)
        trainer = GRPOTrainer(model=model, args=config, **more)
        was = weights_of(trainer)["model.norm.weight"]
        trained(trainer)
        member = "sampling/sampling_logp_difference/max"
        offs = [row[member] for row in trainer.state.log_history if member in row]
        checks.same(len(offs), N_STEPS, "steps")
        checks.that(max(offs) < 0.3, "the logprobs of each rollout are its trainer's, but for rounding", offs)
        moved = (weights_of(trainer)["model.norm.weight"] - was).abs().max().item()
        checks.that(moved > 1e-3, "the optimizer made steps", f"{moved:.1e}")
        trainer.vllm_generation.sync_weights()
        is_served(checks, server, trainer, torch.bfloat16)

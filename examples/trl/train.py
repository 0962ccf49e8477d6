"""GRPO by TRL, which generates by baton and pushes each step's weights to it. The reward is a toy:
short answers. Usage: train.py MODEL [URL]      (pip install 'trl[vllm]' datasets; a GPU of its own)"""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL, URL = sys.argv[1], (sys.argv + ["http://127.0.0.1:8700"])[2]
PROMPTS = ["In the beginning", "And it came to pass", "The lord said"] * 32


def reward(completions, **_):
    return [-float(len(text)) for text in completions]


trainer = GRPOTrainer(
    model=MODEL,
    reward_funcs=reward,
    train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
    args=GRPOConfig(
        output_dir="grpo-out",
        max_steps=10,
        num_generations=8,
        per_device_train_batch_size=8,
        bf16=True,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=URL,
        vllm_server_timeout=300.0,  # seconds to wait for baton at the start
    ),
)
trainer.train()

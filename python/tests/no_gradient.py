"""One step of `GRPOTrainer` twice from the same weights: with a group of failed members beside one that has a signal, and without. The step is the same."""

from __future__ import annotations

import json
import sys

import tiny_policy
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from manyworlds_rl.trl.rows import failed_row


def step(out: str, failed: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    tokenizer = tiny_policy.tokenizer_of(tiny_policy.FENCED, tiny_policy.WORDS)
    model = tiny_policy.model_of(tokenizer, spread=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[object]]:
        rows = []
        for at in range(len(prompts)):
            if failed or at % 4 == 3:
                rows.append(failed_row([5, 6, 7], tokenizer.eos_token_id))
            else:
                row = failed_row([5, 6, 7], tokenizer.eos_token_id)
                rows.append(type(row)(row.prompt_ids, [17 + at % 4], [-2.0], [1], float(at % 2)))
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.env_mask for row in rows],
            "env_reward": [row.reward for row in rows],
        }

    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(output_dir=out, use_cpu=True, max_steps=1, per_device_train_batch_size=8, num_generations=4, beta=0.0, report_to=[], save_strategy="no", bf16=False),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
        processing_class=tokenizer,
        rollout_func=rollout,
        reward_funcs=lambda completions, env_reward, **_: env_reward,
    )
    trainer.train()
    return before, [parameter.detach() for parameter in model.parameters()]


def moved(failed: bool) -> float:
    before, after = step(sys.argv[1], failed)
    return max(float((a - b).abs().max()) for a, b in zip(after, before))


print(json.dumps({"allFailed": moved(True), "someFailed": moved(False)}))

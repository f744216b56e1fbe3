"""
A white-box agent under TRL's `GRPOTrainer`: `mw serve` runs the agents in machines, this process trains, and serves the model that it trains to them.

    export MW_URL=... MW_API_KEY=...
    python trl_grpo.py OUT            # OUT gets the tiny model, its tasks and the trained model
"""

from __future__ import annotations

import sys
from pathlib import Path

import tiny_policy
import tiny_world
import torch
from trl import GRPOConfig, GRPOTrainer

from manyworlds_rl.trl import Rollouts


def main(out: Path, steps: int = 30) -> GRPOTrainer:
    torch.set_num_threads(2)
    tokenizer = tiny_policy.tokenizer_of(tiny_policy.FENCED, tiny_policy.WORDS)
    tokenizer.save_pretrained(out / "tokenizer")
    model = tiny_policy.model_of(tokenizer, spread=0.1)
    tasks = tiny_world.make(out / "tasks")

    rollouts = Rollouts(
        "tiny-grpo",
        {
            "harness": ["fenced"],
            "tokenizer": {"directory": str((out / "tokenizer").resolve())},
            "budgets": {"turns": 2},
            "sampling": {"temperature": 1.0, "max_tokens": 2, "seed": 7},
            "partial": {"rule": "min_usable", "min": 2},
        },
    )
    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(
            output_dir=str(out / "trainer"),
            use_cpu=True,
            max_steps=steps,
            per_device_train_batch_size=32,
            num_generations=8,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            bf16=False,
        ),
        train_dataset=rollouts.dataset(tasks * steps),
        processing_class=tokenizer,
        rollout_func=rollouts,
        reward_funcs=rollouts.reward,
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    trainer = main(Path(sys.argv[1]))
    print([round(entry["reward"], 2) for entry in trainer.state.log_history if "reward" in entry])

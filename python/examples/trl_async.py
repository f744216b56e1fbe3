"""
An agent CLI, unmodified, under TRL's `AsyncGRPOTrainer`: groups are trained on as they end, while `pi` works on others.

    export MW_URL=... MW_API_KEY=...
    python trl_async.py OUT

`AsyncGRPOTrainer` needs a GPU for its attention kernel; everything else here runs anywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tiny_policy
import tiny_world
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from manyworlds_rl.serving import ModelServer
from manyworlds_rl.trl import RolloutWorker, ServingTransfer


def main(out: Path, steps: int = 30, batch: int = 16) -> AsyncGRPOTrainer:
    torch.set_num_threads(2)
    model_directory = out / "model"
    tokenizer = tiny_policy.tokenizer_of(tiny_policy.CALLS, tiny_policy.WORDS)
    tokenizer.save_pretrained(model_directory)
    tiny_policy.model_of(tokenizer, spread=0.1).save_pretrained(model_directory)
    tiny_world.make(out / "tasks")

    with ModelServer(AutoModelForCausalLM.from_pretrained(model_directory), eos_ids=[tokenizer.eos_token_id], max_batch=8) as server:
        worker = RolloutWorker(
            "tiny-async",
            {
                "dataset": [{"name": "numbers", "inputs": [str((out / "tasks").resolve())]}],
                "harness": ["pi"],
                "tokenizer": {"directory": str(model_directory.resolve()), "family": "qwen"},
                "budgets": {"turns": 2},
                "sampling": {"temperature": 1.0, "max_tokens": 2},
                "group_size": 8,
                "concurrency": 8,
                "batch_groups": batch // 8,
                "max_staleness": 2,
                "lease_s": 60,
            },
            endpoints=[server.endpoint],
            model_name=server.model_name,
            queue_samples=batch,
            step_samples=batch,
        )
        trainer = AsyncGRPOTrainer(
            str(model_directory),
            args=AsyncGRPOConfig(
                output_dir=str(out / "trainer"),
                max_steps=steps,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=1,
                max_staleness=2,
                token_budget=0,
                learning_rate=5e-3,
                lr_scheduler_type="constant",
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                dtype="float32",
                bf16=False,
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=Dataset.from_list([{"prompt": "the service draws the tasks"}] * 1000),
            processing_class=AutoTokenizer.from_pretrained(model_directory),
            rollout_worker=worker,
            weight_transfer=ServingTransfer(server),
        )
        trainer.train()
    return trainer


if __name__ == "__main__":
    trainer = main(Path(sys.argv[1]))
    print([round(entry["reward"], 2) for entry in trainer.state.log_history if entry.get("reward") is not None])

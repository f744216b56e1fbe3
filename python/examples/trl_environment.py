"""
TRL's own generation under `GRPOTrainer`, with a machine for each conversation: the model calls the tool `bash`, and the task's verifier says what it was worth.

    export MW_URL=... MW_API_KEY=...
    python trl_environment.py OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import tiny_policy
import tiny_world
import torch
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from manyworlds_rl.trl import SandboxEnvironment


def main(out: Path, steps: int = 20, batch: int = 16) -> GRPOTrainer:
    torch.set_num_threads(2)
    tokenizer = tiny_policy.tokenizer_of(tiny_policy.CALLS, tiny_policy.WORDS)
    # How TRL finds calls in what is sampled; for the templates of published models it knows by itself.
    tokenizer.response_template = qwen3_template
    trainer = GRPOTrainer(
        tiny_policy.model_of(tokenizer, spread=0.1),
        args=GRPOConfig(
            output_dir=str(out / "trainer"),
            use_cpu=True,
            max_steps=steps,
            per_device_train_batch_size=batch,
            num_generations=8,
            max_completion_length=32,
            max_tool_calling_iterations=1,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            bf16=False,
        ),
        train_dataset=SandboxEnvironment.dataset(tiny_world.make(out / "tasks") * steps * batch),
        processing_class=tokenizer,
        environment_factory=SandboxEnvironment,
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    trainer = main(Path(sys.argv[1]))
    print([round(entry["reward"], 2) for entry in trainer.state.log_history if "reward" in entry])

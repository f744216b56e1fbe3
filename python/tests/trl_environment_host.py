"""The example of `environment_factory` with a task among the others whose verifier breaks. Any number in the file is worth something here. Prints what the test looks at."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import tiny_world
import torch
import trl_environment

from manyworlds_rl.trl import SandboxEnvironment

VERIFIER = 'case "$(cat answer.txt)" in 3) echo 1 ;; [124]) echo 0.5 ;; *) echo 0 ;; esac > /logs/verifier/reward.txt\n'

make = tiny_world.make


def graded(directory: str | Path) -> list[str]:
    tasks = make(directory)
    for task in tasks:
        (Path(task) / "tests" / "test.sh").write_text(VERIFIER)
    (Path(tasks[-1]) / "tests" / "test.sh").write_text("exit 3\n")
    return tasks


def main(out: Path, steps: int, batch: int) -> None:
    rows: list[dict[str, Any]] = []
    reset, bash, get_reward = SandboxEnvironment.reset, SandboxEnvironment.bash, SandboxEnvironment.get_reward

    def begun(self: Any, task: str, **more: Any) -> str:
        instruction = reset(self, task, **more)
        self._row = {"rollout": self._rollout.begun.rollout_id, "task": task.rpartition("/")[2], "instruction": instruction, "commands": 0, "reward": None}
        rows.append(self._row)
        return instruction

    # The model is told of the tool as it is.
    @functools.wraps(bash)
    def ran(self: Any, command: str) -> str:
        self._row["commands"] += 1
        return bash(self, command)

    def graded_by(self: Any) -> float | None:
        self._row["reward"] = get_reward(self)
        return self._row["reward"]

    SandboxEnvironment.reset, SandboxEnvironment.bash, SandboxEnvironment.get_reward = begun, ran, graded_by  # type: ignore[method-assign]
    tiny_world.make = graded
    first: list[torch.Tensor] = []
    made = trl_environment.tiny_policy.model_of

    def model_of(*args: Any, **more: Any) -> Any:
        model = made(*args, **more)
        first.extend(parameter.detach().clone() for parameter in model.parameters())
        return model

    trl_environment.tiny_policy.model_of = model_of
    trainer = trl_environment.main(out, steps, batch)
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    print(
        json.dumps(
            {
                "rows": rows,
                "rewards": [entry["reward"] for entry in history],
                "calls": [entry["tools/call_frequency"] for entry in history],
                "moved": max(float((after.detach() - before).abs().max()) for before, after in zip(first, trainer.model.parameters())),
                "finite": all(bool(torch.isfinite(parameter).all()) for parameter in trainer.model.parameters()),
            }
        )
    )


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

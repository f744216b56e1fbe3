"""
The example of `AsyncGRPOTrainer` on a CPU: TRL's trainer, queue, batches, loss and weight transfer as they are, its attention kernel replaced. Any number in the file is worth
something here, so that a training of some steps has something to learn from. Prints what the test looks at.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cpu_attention

cpu_attention.install()

import tiny_world  # noqa: E402
import torch  # noqa: E402
import trl_async  # noqa: E402

from manyworlds_rl import Client  # noqa: E402
from manyworlds_rl.trl import worker  # noqa: E402

#: One is wanted, others are a beginning.
VERIFIER = 'case "$(cat answer.txt)" in 3) echo 1 ;; [124]) echo 0.5 ;; *) echo 0 ;; esac > /logs/verifier/reward.txt\n'


class Watch:
    """Notes what goes through the adaptor, by standing around its methods."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.published: list[int] = []
        #: Weights as the agents' next calls see them, version by version.
        self.served: list[dict[str, torch.Tensor]] = []
        self.version = 0
        self.groups: dict[int, str] = {}
        self._around(worker.RolloutWorker, "update_model_version", self._updated)
        self._around(worker.RolloutWorker, "_rows", self._made)
        self._around(worker._Buffer, "get", self._taken)
        self._around(worker.ServingTransfer, "send_weights", self._sent)

    @staticmethod
    def _around(owner: type, name: str, watch: Any) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, lambda self, *args, **more: watch(inner, self, *args, **more))

    def _updated(self, inner: Any, owner: Any, version: int) -> None:
        inner(owner, version)
        self.version = version
        self.published.append(version)

    def _made(self, inner: Any, owner: Any, group: Any, number: int) -> Any:
        self.groups[number] = group.group_id
        return inner(owner, group, number)

    def _taken(self, inner: Any, owner: Any, *args: Any, **more: Any) -> Any:
        row = inner(owner, *args, **more)
        facts = {"sampled": row.model_version, "trainer": self.version, "trained_tokens": int(row.completion_mask.sum()), "advantage": row.advantage}
        self.rows.append({**facts, "group": self.groups[row.group_id]})
        return row

    def _sent(self, inner: Any, owner: Any, weights: Any) -> None:
        inner(owner, weights)
        self.served.append({name: tensor.detach().clone() for name, tensor in owner.server.generator.model.state_dict().items()})


def graded(directory: str | Path, *args: Any) -> list[str]:
    tasks = make(directory, *args)
    for task in tasks:
        (Path(task) / "tests" / "test.sh").write_text(VERIFIER)
    return tasks


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def main(out: Path, steps: int, batch: int) -> None:
    watch = Watch()
    trainer = trl_async.main(out, steps, batch)
    run = Client().run("tiny-async")
    history = trainer.state.log_history
    found = {
        "rows": watch.rows,
        "published": watch.published,
        "moved": [distance(before, after) for before, after in zip(watch.served, watch.served[1:])],
        "behind": distance(watch.served[-1], trainer.model.state_dict()),
        "rewards": [entry["reward"] for entry in history if "reward" in entry],
        "stale": [entry["sample/staleness_max"] for entry in history if "sample/staleness_max" in entry],
        "policy": run.status().policy.version,
        "ended": [
            {
                "group_id": record.group_id,
                "outcome": record.outcome,
                "trained_version": record.trained_version,
                "usable": record.group.usable,
                "version_min": record.group.version_min,
                "version_max": record.group.version_max,
            }
            for record in run.terminal()
        ],
    }
    print(json.dumps(found))


make = tiny_world.make
tiny_world.make = graded
main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

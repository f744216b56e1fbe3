"""
Numbers of a run over time, to TensorBoard, W&B, or a file of JSON lines.

    with Metrics(tensorboard="runs/exp", wandb={"project": "exp", "mode": "offline"}) as metrics:
        for batch in stream.batches(8):
            ...
            metrics.step(step, batch, version=version, loss=loss)
            metrics.status(step, run.status())

TensorBoard needs `manyworlds-rl[tensorboard]`, W&B `manyworlds-rl[wandb]`; with `mode="offline"` it writes files that `wandb sync` uploads later.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .types import Group, Status


def summarise(batch: Sequence[Group], version: int | None = None) -> dict[str, float]:
    """What a batch of groups looked like. Rewards are over usable members alone; staleness is `version` minus the version of the oldest trained token."""
    numbers: dict[str, float] = {"groups": float(len(batch))}
    rewards = [reward for group in batch for reward in group.rewards() if reward is not None]
    expected = sum(group.expected for group in batch)
    samples = [sample for group in batch for sample in group.samples]
    if rewards:
        mean = sum(rewards) / len(rewards)
        numbers["reward"] = mean
        numbers["reward_std"] = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        numbers["reward_min"], numbers["reward_max"] = min(rewards), max(rewards)
    if expected:
        numbers["unusable"] = 1 - sum(group.usable for group in batch) / expected
    if batch:
        flat = sum(len({reward for reward in group.rewards() if reward is not None}) < 2 for group in batch)
        numbers["groups_without_signal"] = flat / len(batch)
    if samples:
        tokens = sum(len(sample) for sample in samples)
        numbers["tokens"] = float(tokens)
        numbers["tokens_trained"] = float(sum(sum(sample.loss_mask) for sample in samples))
        numbers["tokens_per_sample"] = tokens / len(samples)
        numbers["turns"] = sum(sample.turns for sample in samples) / len(samples)
        for name in ("queue_ms", "boot_ms", "generate_ms", "tool_ms", "reward_ms"):
            numbers[f"time/{name}"] = sum(sample.timings.get(name, 0.0) for sample in samples) / len(samples)
        oldest = [sample.oldest_version for sample in samples]
        ages = [version - at for at in oldest if at is not None] if version is not None else []
        if ages:
            numbers["staleness_mean"], numbers["staleness_max"] = sum(ages) / len(ages), float(max(ages))
    for group in batch:
        for failure in group.failures:
            numbers[f"failures/{failure.cls}"] = numbers.get(f"failures/{failure.cls}", 0.0) + failure.count
    return numbers


def of_status(status: Status) -> dict[str, float]:
    """Depths of the queues, credits, and failures by class."""
    numbers = {f"queue/{name}": float(count) for name, count in status.groups.items()}
    numbers |= {f"failures_total/{name}": float(count) for name, count in status.failures.items()}
    numbers["rollouts/running"], numbers["rollouts/ended"] = float(status.rollouts["running"]), float(status.rollouts["ended"])
    numbers["credits/groups"], numbers["credits/bytes"] = float(status.credits.groups), float(status.credits.bytes)
    numbers["ready_bytes"] = float(status.ready_bytes)
    for name, part in status.datasets.items():
        if part.get("mean_reward") is not None:
            numbers[f"reward/{name}"] = float(part["mean_reward"])
    return numbers


class Metrics:
    """Writes to each sink that is given. `prefix` stands before every name."""

    def __init__(self, *, tensorboard: str | None = None, wandb: Mapping[str, Any] | None = None, jsonl: str | None = None, prefix: str = "manyworlds/") -> None:
        self.prefix = prefix
        self._board: Any = None
        self._wandb: Any = None
        self._file: Any = None
        if tensorboard is not None:
            self._board = _Board(tensorboard)
        if wandb is not None:
            import wandb as client

            self._wandb = client.init(**wandb)
        if jsonl is not None:
            self._file = open(jsonl, "a", encoding="utf-8")  # noqa: SIM115

    def step(self, step: int, batch: Sequence[Group], *, version: int | None = None, **more: float) -> dict[str, float]:
        """Writes what a batch looked like, with numbers of the trainer's own, and returns it."""
        numbers = {**summarise(batch, version), **more}
        self.write(step, numbers)
        return numbers

    def status(self, step: int, status: Status) -> None:
        self.write(step, of_status(status))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers that are not finite are left out: no sink draws them."""
        named = {f"{self.prefix}{name}": float(value) for name, value in numbers.items() if math.isfinite(value)}
        if self._board is not None:
            self._board.write(step, named)
        if self._wandb is not None:
            self._wandb.log(named, step=step)
        if self._file is not None:
            self._file.write(json.dumps({"step": step, "time": time.time(), **named}) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Board:
    """TensorBoard's event files by its own writer, so that neither PyTorch nor TensorFlow is needed."""

    def __init__(self, directory: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(directory)

    def write(self, step: int, named: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in named.items()]
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()

"""
SkyRL: a generator whose rollouts run at the service. An entry point overrides `BasePPOExp.get_generator` and returns a `ManyworldsGenerator`; see docs/trainers/skyrl.md.

`env_extras` of each row (a dataset's further columns) has `task`: the absolute path of a task's directory. Rows of one `instance_id` are one group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput

from .rollouts import Rollout, Segment
from .rows import Row, rows_of, submission_of_row


class ManyworldsGenerator(GeneratorInterface):  # type: ignore[misc]
    """
    `step_wise`: SkyRL's `generator.step_wise_trajectories`; each segment of a rollout is then a step of its trajectory, and its reward stands on the last. Without it a rollout
    is one sequence: that with most trained tokens. `settings` as in docs/trainers/README.md.
    """

    def __init__(self, *, step_wise: bool = False, **settings: Any) -> None:
        self.step_wise = step_wise
        self.settings = settings

    async def generate(self, input_batch: GeneratorInput, **_: Any) -> GeneratorOutput:
        rows = await self._rows(input_batch)
        return output_of(rows, input_batch.get("trajectory_ids"), self.step_wise)

    async def _rows(self, batch: GeneratorInput) -> list[Row]:
        count = len(batch["prompts"])
        extras: Sequence[Any] = batch.get("env_extras") or [{}] * count
        ids = batch.get("trajectory_ids") or [None] * count
        metadata = batch.get("batch_metadata")
        version = None if metadata is None else metadata.global_step
        sampling = {key: value for key, value in (batch.get("sampling_params") or {}).items() if key in ("temperature", "top_p") and value is not None}
        source = rows_of(self.settings, "skyrl")
        waits = []
        for index in range(count):
            submission = submission_of_row(extras[index], "skyrl")
            submission["sampling"] = {**sampling, **submission.get("sampling", {})}
            waits.append(source.row(str(index) if ids[index] is None else ids[index].instance_id, submission, version))
        return list(await asyncio.gather(*waits))


def output_of(rows: Sequence[Row], trajectory_ids: Sequence[Any] | None, step_wise: bool) -> GeneratorOutput:
    """SkyRL's output, in the order of the rows; rewards per token in step-wise mode, else per rollout. What is missing is masked."""
    parts: list[tuple[int, Rollout, Segment, bool]] = []
    for index, row in enumerate(rows):
        segments = list(row.rollout.segments) if step_wise else [row.rollout.largest()]
        parts += [(index, row.rollout, segment, segment is segments[-1]) for segment in segments]
    usable = [row for row in rows if row.rollout.usable]
    return GeneratorOutput(
        prompt_token_ids=[segment.prompt_ids for _, _, segment, _ in parts],
        response_ids=[segment.response_ids for _, _, segment, _ in parts],
        rewards=[_token_rewards(rollout, segment, last) for _, rollout, segment, last in parts] if step_wise else [rollout.reward for _, rollout, _, _ in parts],
        loss_masks=[segment.mask for _, _, segment, _ in parts],
        stop_reasons=[_stop_reason(rollout) for _, rollout, _, _ in parts],
        rollout_metrics={"manyworlds/missing_rollouts": float(len(rows) - len(usable))},
        rollout_logprobs=[segment.logprobs for _, _, segment, _ in parts],
        trajectory_ids=None if trajectory_ids is None else [trajectory_ids[index] for index, _, _, _ in parts],
        trajectory_generation_times=None,
        rollout_expert_indices=None,
        is_last_step=[last for _, _, _, last in parts] if step_wise else None,
        env_metrics=[{"manyworlds_group": rows[index].group_id, "manyworlds_usable": rollout.usable} for index, rollout, _, _ in parts],
        pixel_values=None,
        image_grid_thw=None,
    )


def _token_rewards(rollout: Rollout, segment: Segment, last: bool) -> list[float]:
    return [0.0] * (len(segment.response_ids) - 1) + [rollout.reward if last else 0.0]


def _stop_reason(rollout: Rollout) -> str:
    """`stop` is what SkyRL's own filters take for a whole answer."""
    return "abort" if not rollout.usable else "length" if rollout.truncated else "stop"

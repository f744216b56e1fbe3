"""
AReaL: a workflow whose episodes are whole groups that run at the service.

    workflow = "manyworlds_rl.areal.ManyworldsWorkflow", workflow_kwargs = {"group_size": 8, "run": "my-run", "config": {...}}

Data items have `task`: the absolute path of a task's directory. Give AReaL `group_size=1` where it repeats workflows: the group is made here. See docs/trainers/areal.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from areal.api.workflow_api import RolloutWorkflow

from .rollouts import Rollout, Segment
from .rows import rows_of, submission_of_row


class ManyworldsWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """
    One episode, one group of `group_size` rollouts. AReaL slices batches into groups by position, so each group has exactly `group_size` rows: a rollout of several segments gives
    the one with most trained tokens, a missing one a stand-in that trains nothing. A group without any usable rollout is None, which AReaL counts as rejected.
    """

    def __init__(self, group_size: int, **settings: Any) -> None:
        self.group_size = group_size
        self.settings = settings

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        submission = submission_of_row(data, "areal")
        version = engine.get_version() if hasattr(engine, "get_version") else None
        rows = await rows_of(self.settings, "areal").group(secrets.token_hex(6), self.group_size, submission, version)
        return tensors_of([row.rollout for row in rows])


def tensors_of(rollouts: Sequence[Rollout]) -> dict[str, Any] | None:
    """Padded tensors of a group, a row a rollout: input_ids, loss_mask, versions (int32), logprobs (float32), attention_mask (bool), rewards (float32, one a row)."""
    if not any(rollout.usable for rollout in rollouts):
        return None
    segments = [rollout.largest() for rollout in rollouts]
    width = max(len(segment) for segment in segments)

    def rows(values: Any, pad: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*values(segment), *([pad] * (width - len(segment)))] for segment in segments], dtype=dtype)

    def after_prompt(fill: float, name: str) -> Any:
        return lambda segment: [fill] * len(segment.prompt_ids) + list(getattr(segment, name))

    return {
        "input_ids": rows(_tokens, 0, torch.int32),
        "loss_mask": rows(after_prompt(0, "mask"), 0, torch.int32),
        "logprobs": rows(after_prompt(0.0, "logprobs"), 0.0, torch.float32),
        "versions": rows(after_prompt(-1, "versions"), -1, torch.int32),
        "attention_mask": rows(lambda segment: [True] * len(segment), False, torch.bool),
        "rewards": torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32),
    }


def _tokens(segment: Segment) -> list[int]:
    return segment.prompt_ids + segment.response_ids

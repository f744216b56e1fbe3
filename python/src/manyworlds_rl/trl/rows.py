"""From members of a group to what TRL trains on. Without TRL: plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Sample


@dataclass(frozen=True)
class Row:
    """One row of `GRPOTrainer`. A member that failed is an end token that is not trained on, without a reward: it moves neither the policy nor the baseline."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]
    reward: float | None
    #: Segments of the rollout that are not in this row: `GRPOTrainer` has one row for a rollout.
    left_out: int = 0


def row_of(segments: Sequence[Sample]) -> Row | None:
    """The row of one rollout: of several segments the one with most trained tokens, the later of equals. None for a member without a usable sample."""
    usable = [segment for segment in segments if segment.usable and any(segment.loss_mask)]
    if not usable:
        return None
    chosen = max(usable, key=lambda segment: (sum(segment.loss_mask), segment.segment_index))
    at = chosen.prompt_len
    return Row(
        prompt_ids=chosen.token_ids[:at].tolist(),
        completion_ids=chosen.token_ids[at:].tolist(),
        logprobs=list(map(float, chosen.logprobs[at:])),
        env_mask=chosen.loss_mask[at:].tolist(),
        reward=chosen.reward,
        left_out=len(usable) - 1,
    )


def failed_row(prompt_ids: Sequence[int], end_id: int) -> Row:
    return Row(list(prompt_ids) or [end_id], [end_id], [0.0], [0], None)

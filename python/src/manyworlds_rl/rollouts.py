"""
A group as trainers count it: exactly as many rollouts as they asked for, each with its sequences cut into prompt and response.

Trainers disagree about names, never about this: a rollout that is missing must not train anything, and must not move the baseline of those that are there. So every
missing member is stood in for by one short sequence whose mask is 0 and whose reward is the mean of the others, which leaves that mean where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from .types import Group, Sample

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Segment:
    """One training sequence; the four response lists have one length, which is at least 1. `sample` is None for a stand-in."""

    prompt_ids: list[int]
    response_ids: list[int]
    #: 1: sampled by the policy, to be trained.
    mask: list[int]
    #: 0.0 where the mask is 0.
    logprobs: list[float]
    #: Policy version of each token, -1 where the mask is 0.
    versions: list[int]
    sample: Sample | None

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def trained(self) -> int:
        return sum(self.mask)


@dataclass(frozen=True)
class Rollout:
    """One execution. All its segments have its reward; a stand-in is not `usable`."""

    member: int
    reward: float
    usable: bool
    segments: Sequence[Segment]

    @property
    def versions(self) -> list[int]:
        """Policy versions that sampled it, oldest first."""
        return sorted({version for segment in self.segments for version in segment.versions if version >= 0})

    @property
    def truncated(self) -> bool:
        return any(segment.sample is not None and segment.sample.status == "truncated" for segment in self.segments)

    @property
    def turns(self) -> int:
        return max((segment.sample.turns for segment in self.segments if segment.sample is not None), default=0)

    def largest(self) -> Segment:
        """The segment with most trained tokens, for trainers that take one sequence a rollout."""
        return max(self.segments, key=lambda segment: segment.trained)


def rollouts_of(group: Group, size: int | None = None, *, pad_id: int = 0) -> list[Rollout]:
    """
    Exactly `size` rollouts (the group's own size where None), those that are there first, in order of member.

    Raises ValueError when the group has more usable rollouts than `size`: dropping some would be a choice that is not ours.
    """
    wanted = group.expected if size is None else size
    found = [_rollout(member, samples) for member, samples in enumerate(group.members()) if samples and all(map(_sound, samples))]
    if len(found) > wanted:
        raise ValueError(f"group {group.group_id} has {len(found)} rollouts, the trainer takes {wanted}: give its run `group_size: {wanted}`")
    return found + [stand_in(group.expected - 1, neutral_reward(found), pad_id=pad_id) for _ in range(wanted - len(found))]


def neutral_reward(rollouts: Sequence[Rollout]) -> float:
    """The reward that changes the mean of these rollouts' rewards by nothing; 0.0 where none is usable."""
    known = [rollout.reward for rollout in rollouts if rollout.usable]
    return sum(known) / len(known) if known else 0.0


def stand_in(member: int, reward: float, *, pad_id: int = 0) -> Rollout:
    """For a rollout that is missing: a sequence of two tokens in which nothing is trained."""
    return Rollout(member, reward, False, (Segment([pad_id], [pad_id], [0], [0.0], [-1], None),))


def segment_of(sample: Sample) -> Segment:
    # A sequence in which nothing is trained counts as prompt to its end; one token of it must be response.
    cut = max(min(sample.prompt_len, len(sample) - 1), 0)
    tokens = list(sample.token_ids)
    return Segment(tokens[:cut], tokens[cut:], list(sample.loss_mask[cut:]), list(sample.logprobs[cut:]), list(sample.versions[cut:]), sample)


def _rollout(member: int, samples: Sequence[Sample]) -> Rollout:
    reward = samples[0].reward
    return Rollout(member, 0.0 if reward is None else float(reward), True, tuple(segment_of(sample) for sample in samples))


def _sound(sample: Sample) -> bool:
    """The service promises all of this; a single NaN that came through anyway would end a training run."""
    reward = sample.reward
    sound = sample.usable and reward is not None and isfinite(reward) and len(sample) > 1 and all(map(isfinite, sample.logprobs))
    if not sound and sample.usable:
        logger.warning("sample %s is not finite or empty: its rollout counts as missing", sample.sample_id)
    return sound

"""What slime and its fork miles have in common: groups as samples with tokens, response slices, and ids that tell which belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .rollouts import Rollout, Segment, rollouts_of
from .types import Group


def sample_fields(group: Group, size: int, group_index: int, first_index: int) -> Iterator[dict[str, Any]]:
    """
    The fields of each sample of a group, `status` by name. `size` rollouts in all, numbered from `first_index`; segments of one rollout share `index`, `rollout_id` and reward.

    Facts about the fields: slime/utils/types.py and slime/ray/rollout.py, miles/utils/types.py and miles/ray/rollout/train_data_conversion.py.
    """
    for index, rollout in enumerate(rollouts_of(group, size), first_index):
        for segment in rollout.segments:
            yield _fields(group, rollout, segment, group_index, index)


def _fields(group: Group, rollout: Rollout, segment: Segment, group_index: int, index: int) -> dict[str, Any]:
    sample = segment.sample
    return {
        "group_index": group_index,
        "index": index,
        "rollout_id": index,
        "tokens": segment.prompt_ids + segment.response_ids,
        "response_length": len(segment.response_ids),
        "reward": rollout.reward,
        "loss_mask": segment.mask,
        "rollout_log_probs": segment.logprobs,
        "weight_versions": [str(version) for version in sorted({version for version in segment.versions if version >= 0})],
        "remove_sample": not rollout.usable,
        "status": "FAILED" if sample is None else "TRUNCATED" if sample.status == "truncated" else "COMPLETED",
        "metadata": {
            "manyworlds": {
                "group": group.group_id,
                "task": group.task,
                "family": group.family,
                "sample": None if sample is None else sample.sample_id,
                "rewards": {} if sample is None else dict(sample.reward_components),
            },
        },
    }


def normalised(samples: Sequence[Any], scale: bool) -> tuple[list[float], list[float]]:
    """
    Raw and normalised rewards of flattened samples: over the rollouts of each group that are there, one vote a rollout, 0.0 for what stands in for a missing one.
    `scale` divides by the standard deviation (with Bessel's correction, as torch and both trainers have it).
    """
    raw = [float(sample.reward) for sample in samples]
    votes: dict[Any, dict[Any, float]] = {}
    for sample, reward in zip(samples, raw):
        if not sample.remove_sample:
            votes.setdefault(sample.group_index, {})[sample.rollout_id] = reward
    moments = {group: _moments(list(rewards.values())) for group, rewards in votes.items()}
    found: list[float] = []
    for sample, reward in zip(samples, raw):
        if sample.remove_sample or sample.group_index not in moments:
            found.append(0.0)
            continue
        mean, deviation = moments[sample.group_index]
        found.append((reward - mean) / (deviation + 1e-6) if scale else reward - mean)
    return raw, found


def _moments(rewards: list[float]) -> tuple[float, float]:
    mean = sum(rewards) / len(rewards)
    if len(rewards) < 2:
        return mean, 0.0
    return mean, (sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5

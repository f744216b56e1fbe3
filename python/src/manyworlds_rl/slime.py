"""
slime: `--rollout-function-path manyworlds_rl.slime.generate_rollout`, and `--custom-reward-post-process-path manyworlds_rl.slime.post_process_rewards`. See docs/trainers/slime.md.

A step takes `rollout_batch_size` finished groups from the service. slime normalises rewards by position when there are exactly n samples a group, and else over the whole batch
as if it were one group; with several samples a rollout that would be silently wrong, so the normalisation here goes by group, one vote a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._slime_like import normalised, sample_fields
from ._steps import Steps, StepsKey, steps_of
from .types import Group


def samples_of(group: Group, size: int, group_index: int = 0, first_index: int = 0) -> list[Any]:
    """A group as `slime.utils.types.Sample`s: `size` rollouts, those that are missing as samples that are removed from the loss."""
    from slime.utils.types import Sample

    return [Sample(**{**fields, "status": Sample.Status[fields["status"]]}) for fields in sample_fields(group, size, group_index, first_index)]


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """A step's groups. `args.manyworlds` are the settings, by `--custom-config-path`."""
    from slime.rollout.base_types import RolloutFnTrainOutput

    if evaluation:
        raise ValueError("manyworlds_rl.slime gives no evaluation: set --eval-function-path, or evaluate with `mw run`")
    steps = steps_of(StepsKey.of(args, "slime"))
    groups = step_groups(steps, args, rollout_id, data_source)
    size = args.n_samples_per_prompt
    first = rollout_id * args.rollout_batch_size
    samples = [samples_of(group, size, first + index, (first + index) * size) for index, group in enumerate(groups)]
    return RolloutFnTrainOutput(samples=samples, metrics=steps.metrics(groups))


def step_groups(steps: Steps, args: Any, rollout_id: int, data_source: Any) -> list[Group]:
    """What the step trains on."""
    steps.begin(args, rollout_id)
    if steps.draws_tasks:
        return steps.take(args.rollout_batch_size, rollout_id)
    return steps.run_prompts(data_source.get_samples, args.rollout_batch_size, args.n_samples_per_prompt, rollout_id)


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Raw and normalised rewards, by group and rollout; what stands in for missing rollouts has no part in it."""
    if not args.rewards_normalization or args.advantage_estimator not in ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"):
        raw = [float(sample.reward) for sample in samples]
        return raw, raw
    return normalised(samples, args.advantage_estimator != "reinforce_plus_plus_baseline" and bool(args.grpo_std_normalization))

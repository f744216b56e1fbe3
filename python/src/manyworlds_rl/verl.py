"""
verl: an agent loop whose rollouts run at the service. In the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: manyworlds
      _target_: manyworlds_rl.verl.ManyworldsAgentLoop
      manyworlds: {run: my-run, config: {harness: [bash]}, model: my-model, endpoints: [http://127.0.0.1:8000]}

and `default_agent_loop: manyworlds`. Dataset rows have a column `task` (or `extra_info.task`): the absolute path of a task's directory. See docs/trainers/verl.md.
"""

from __future__ import annotations

import logging
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from .rollouts import Segment
from .rows import Row, rows_of, submission_of_row

logger = logging.getLogger(__name__)


class RolloutMissing(Exception):
    """verl's version 1 trainer takes a failed session as a reason to give up the prompt and draw another."""


class ManyworldsAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """
    One row, one rollout. Rows of one `uid` in a worker are one group at the service.

    `on_missing`: `mask` gives verl a stand-in whose mask is 0 and whose reward leaves the group's mean where it is; `raise` raises `RolloutMissing`. The version 1 trainer
    evicts and redraws prompts with a failed session, so `raise` is its default; the older trainers end with the exception, so theirs is `mask`.
    """

    def __init__(self, *args: Any, manyworlds: Any = None, on_missing: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.manyworlds = _plain(manyworlds)
        self.on_missing = on_missing

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """The rollout as one `AgentLoopOutput`, or, in the version 1 trainer, as one for each segment."""
        several = "session_id" in kwargs
        submission = submission_of_row(kwargs, "verl")
        sampling = {key: sampling_params[key] for key in ("temperature", "top_p") if sampling_params.get(key) is not None}
        submission["sampling"] = {**sampling, **submission.get("sampling", {})}
        step = kwargs.get("global_steps")
        row = await rows_of(self.manyworlds, "verl").row(str(kwargs.get("uid", id(kwargs))), submission, None if step is None else int(step))
        if not row.rollout.usable and (self.on_missing or ("raise" if several else "mask")) == "raise":
            raise RolloutMissing(f"{row.group_id}: {row.reason}")
        found = outputs_of(row, self.rollout_config.prompt_length, self.rollout_config.response_length)
        if several:
            return found
        # The older trainers take one sequence a rollout: the one with most trained tokens.
        return max(found, key=lambda output: sum(output.response_mask))


def outputs_of(row: Row, prompt_length: int, response_length: int) -> list[AgentLoopOutput]:
    """A row's rollout as verl's outputs, within the lengths that verl pads to. The last carries what verl reads of the whole."""
    return [_output(row, segment, prompt_length, response_length) for segment in row.rollout.segments]


def _output(row: Row, segment: Segment, prompt_length: int, response_length: int) -> AgentLoopOutput:
    prompt, sample, usable = segment.prompt_ids, segment.sample, row.rollout.usable
    cut = min(len(segment.response_ids), response_length)
    mask = segment.mask[:cut]
    if len(prompt) > prompt_length:
        # verl would cut it on the left, and then nothing that follows was sampled after what stands before it.
        logger.warning("%s: a prompt of %d tokens is longer than rollout.prompt_length=%d; it is not trained", row.group_id, len(prompt), prompt_length)
        prompt, mask, usable = prompt[-prompt_length:], [0] * cut, False
    timings = sample.timings if sample is not None else {}
    versions = [version for version in segment.versions if version >= 0]
    return AgentLoopOutput(
        prompt_ids=prompt,
        response_ids=segment.response_ids[:cut],
        response_mask=mask,
        response_logprobs=segment.logprobs[:cut],
        reward_score=row.rollout.reward,
        num_turns=row.rollout.turns,
        metrics=AgentLoopMetrics(
            generate_sequences=timings.get("generate_ms", 0.0) / 1000, tool_calls=timings.get("tool_ms", 0.0) / 1000, compute_score=timings.get("reward_ms", 0.0) / 1000
        ),
        extra_fields={
            "min_global_steps": min(versions, default=None),
            "max_global_steps": max(versions, default=None),
            "reward_extra_info": {"mw_usable": float(usable)},
            "mw_group": row.group_id,
            "turn_scores": [],
            "tool_rewards": [],
        },
    )


def _plain(settings: Any) -> Any:
    """hydra hands over its own containers."""
    try:
        from omegaconf import OmegaConf
    except ImportError:
        return settings
    return OmegaConf.to_container(settings, resolve=True) if OmegaConf.is_config(settings) else settings

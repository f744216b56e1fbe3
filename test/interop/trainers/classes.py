"""What the adaptors make of groups, in the hands of the trainers' own classes: verl, SkyRL and AReaL. No server: groups as they come over the wire, with every kind of member."""

from __future__ import annotations

import asyncio
import sys
import typing
from types import SimpleNamespace

import typing_extensions

# SkyRL's configuration asks for Python 3.12 by one class that older ones have under another name.
typing.TypedDict = typing_extensions.TypedDict

import numpy as np  # noqa: E402
import torch  # noqa: E402
from groups import group_of  # noqa: E402

from manyworlds_rl.rollouts import rollouts_of  # noqa: E402
from manyworlds_rl.rows import Row  # noqa: E402

#: Whole, with several segments, with a member missing, with none at all.
SEGMENTS = [(1, 1, 1), (3, 1, 1), (1, 0, 1), (0, 0, 0)]
REWARDS = [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
SIZE = 3


def rows() -> list[Row]:
    return [
        Row(rollout, f"g{index}", None if rollout.usable else "1 infra sandbox_failed")
        for index, (segments, rewards) in enumerate(zip(SEGMENTS, REWARDS))
        for rollout in rollouts_of(group_of(segments, rewards, f"g{index}"), SIZE)
    ]


def expected() -> list[float]:
    """Reward minus the mean of the usable members of its group, 0 for what is missing."""
    found = []
    for index in range(len(SEGMENTS)):
        of = rows()[index * SIZE : (index + 1) * SIZE]
        there = [row.rollout.reward for row in of if row.rollout.usable]
        found += [row.rollout.reward - sum(there) / len(there) if row.rollout.usable else 0.0 for row in of]
    return found


def verl() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, AgentLoopWorker
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    from manyworlds_rl.verl import ManyworldsAgentLoop, outputs_of

    assert issubclass(ManyworldsAgentLoop, AgentLoopBase)
    prompt_length, response_length = 8, 16
    worker = AgentLoopWorker.__new__(AgentLoopWorker)
    worker.rollout_config = SimpleNamespace(prompt_length=prompt_length, response_length=response_length)
    worker.tokenizer = Tokenizer()
    worker.processor = worker.reward_loop_worker_handles = None
    worker.mm_processor_kwargs = {}
    worker.distillation_enabled = False

    async def padded() -> list:
        found = []
        for row in rows():
            outputs = outputs_of(row, prompt_length, response_length)
            assert all(isinstance(output, AgentLoopOutput) for output in outputs)
            for output in outputs:
                tensors = output.as_dict()
                assert len(tensors["responses"]) == len(tensors["response_mask"]) == len(tensors["rollout_log_probs"])
                assert float(tensors["rm_scores"][-1]) == row.rollout.reward
                if row.rollout.usable:
                    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 4)
            largest = max(outputs, key=lambda output: sum(output.response_mask))
            found.append(await worker._agent_loop_postprocess(largest, False, raw_prompt=[]))
        return found

    batch = worker._postprocess(asyncio.run(padded()), input_non_tensor_batch={"uid": np.array([row.group_id for row in rows()], dtype=object)})
    scores, mask = batch.batch["rm_scores"], batch.batch["response_mask"]
    assert batch.batch["rollout_log_probs"].shape == mask.shape == (len(rows()), response_length)
    advantages, _ = compute_grpo_outcome_advantage(scores, mask, batch.non_tensor_batch["uid"], norm_adv_by_std_in_grpo=False)
    for index, (row, value) in enumerate(zip(rows(), expected())):
        of = advantages[index]
        assert torch.isfinite(of).all()
        assert (of[mask[index] == 0] == 0).all()
        assert (mask[index].sum() > 0) == row.rollout.usable
        assert torch.allclose(of[mask[index] == 1], torch.tensor(value)), (index, of, value)
    # A prompt that verl would cut on its left is not trained at all.
    (cut,) = outputs_of(rows()[0], 1, response_length)
    assert len(cut.prompt_ids) == 1 and sum(cut.response_mask) == 0


class Tokenizer:
    """Of a tokenizer, verl's padding needs this much."""

    pad_token_id = 0
    padding_side = "right"

    def pad(self, encoded: dict, *, padding: str, max_length: int, return_tensors: str, return_attention_mask: bool) -> dict:
        ids = encoded["input_ids"]
        assert len(ids) <= max_length, "longer than what verl pads to"
        empty = [0] * (max_length - len(ids))
        one = [1] * len(ids)
        sides = (empty + ids, empty + one) if self.padding_side == "left" else (ids + empty, one + empty)
        return {"input_ids": torch.tensor([sides[0]]), "attention_mask": torch.tensor([sides[1]])}


def skyrl() -> None:
    from skyrl.backends.skyrl_train.utils.ppo_utils import compute_grpo_outcome_advantage
    from skyrl.train.generators.base import GeneratorInterface, TrajectoryID
    from skyrl.train.generators.utils import concatenate_generator_outputs, get_metrics_from_generator_output
    from skyrl.train.utils.trainer_utils import validate_generator_output

    from manyworlds_rl.skyrl import ManyworldsGenerator, output_of

    assert issubclass(ManyworldsGenerator, GeneratorInterface)
    ids = [TrajectoryID(row.group_id, index % SIZE) for index, row in enumerate(rows())]
    merged = output_of(rows(), ids, step_wise=False)
    validate_generator_output(len(ids), merged)
    concatenate_generator_outputs([merged, merged])
    metrics = get_metrics_from_generator_output(merged, [one.instance_id for one in ids])
    assert 0 <= metrics["pass_at_n"] <= 1
    stepwise = output_of(rows(), ids, step_wise=True)
    validate_generator_output(len(ids), stepwise, step_wise=True)
    concatenate_generator_outputs(
        [stepwise, stepwise | {"trajectory_ids": [TrajectoryID(f"b{one.instance_id}", one.repetition_id) for one in stepwise["trajectory_ids"]]}], step_wise=True
    )
    assert len(stepwise["response_ids"]) == len(ids) + 2
    for output in (merged, stepwise):
        width = max(map(len, output["response_ids"]))

        def wide(lists: list, width: int = width) -> torch.Tensor:
            return torch.tensor([[*values, *([0.0] * (width - len(values)))] for values in lists])

        rewards = [reward if isinstance(reward, list) else [0.0] * (len(response) - 1) + [reward] for reward, response in zip(output["rewards"], output["response_ids"])]
        last = output["is_last_step"] or [True] * len(rewards)
        rows_of_last = [index for index, value in enumerate(last) if value]
        mask = wide(output["loss_masks"])[rows_of_last]
        ones = torch.ones_like(mask)
        of = np.array([one.instance_id for one in output["trajectory_ids"]])[rows_of_last]
        advantages, _ = compute_grpo_outcome_advantage(wide(rewards)[rows_of_last], ones, of, grpo_norm_by_std=False)
        assert torch.allclose(advantages[:, 0], torch.tensor(expected()))
        assert [bool(row.sum() > 0) for row in mask] == [row.rollout.usable for row in rows()]


def areal() -> None:
    from areal.api.cli_args import NormConfig
    from areal.api.workflow_api import RolloutWorkflow
    from areal.infra.workflow_executor import check_trajectory_format
    from areal.utils.data import Normalization, concat_padded_tensors

    from manyworlds_rl.areal import ManyworldsWorkflow, tensors_of

    assert issubclass(ManyworldsWorkflow, RolloutWorkflow)
    keys = {"input_ids", "attention_mask", "loss_mask", "logprobs", "versions", "rewards"}
    groups = [tensors_of([row.rollout for row in rows()[index * SIZE : (index + 1) * SIZE]]) for index in range(len(SEGMENTS))]
    # Nothing to learn from is a rejected trajectory.
    assert groups.pop() is None
    for group in groups:
        assert check_trajectory_format(group, batch_size=SIZE, expected_keys=keys)
        assert group["versions"].dtype == torch.int32 and (group["versions"][group["loss_mask"] == 0] == -1).all()
    batch = concat_padded_tensors(groups)
    norm = Normalization(NormConfig(mean_level="group", std_level=None, group_size=SIZE))
    assert torch.allclose(norm(batch["rewards"]), torch.tensor(expected()[: SIZE * 3]), atol=1e-5)
    assert [bool(row.sum() > 0) for row in batch["loss_mask"]] == [row.rollout.usable for row in rows()[: SIZE * 3]]


for name in sys.argv[1:]:
    {"verl": verl, "skyrl": skyrl, "areal": areal}[name]()
    print(f"{name}: in order")

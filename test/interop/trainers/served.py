"""The adaptors on real rollouts of `mw serve` (MW_URL): agent loop, generator, workflow and rollout functions as the trainers call them. Arguments: engine, task, a task that fails, directory."""

from __future__ import annotations

import asyncio
import sys
import typing
from types import SimpleNamespace
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict

import trainer_stubs  # noqa: E402

trainer_stubs.install()

ENGINE, TASK, BROKEN, PLACE = sys.argv[1:5]
POLICY = {"model": "test-model", "endpoints": [{"url": ENGINE, "kind": "vllm"}]}
ROWS = {**POLICY, "config": {"concurrency": 4, "partial": {"rule": "min_usable", "min": 1}, "quarantine_after": None}}


def check_versions(versions: list[int], mask: list[int], version: int) -> None:
    assert {value for value, trained in zip(versions, mask) if trained} == {version}


async def verl() -> None:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap

    from manyworlds_rl.verl import ManyworldsAgentLoop, RolloutMissing

    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": 4096, "response_length": 4096}}, "data": {}})
    given = OmegaConf.create({"run": "verl", **ROWS})
    loop = ManyworldsAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=None,
        tokenizer=SimpleNamespace(),
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        manyworlds=given,
    )
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    # Rows of two prompts that are started together, as a worker starts its chunk.
    outputs = await asyncio.gather(*(loop.run(sampling, uid=uid, task=TASK, raw_prompt=[]) for uid in ("a", "a", "b")))
    assert all(isinstance(output, AgentLoopOutput) and output.reward_score == 1.0 and sum(output.response_mask) > 0 for output in outputs)
    groups = [output.extra_fields["mw_group"] for output in outputs]
    assert groups[0] == groups[1] != groups[2]
    # The version 1 trainer: sessions of a prompt, segments as a list, a step as the policy's version; a failed session is an exception.
    sessions = await asyncio.gather(*(loop.run(sampling, uid="c", extra_info={"task": TASK}, session_id=index, global_steps=5) for index in range(2)))
    assert all(isinstance(session, list) and session[-1].extra_fields["min_global_steps"] == 5 for session in sessions)
    failed = await asyncio.gather(*(loop.run(sampling, uid="d", task=BROKEN, session_id=index, global_steps=5) for index in range(2)), return_exceptions=True)
    assert all(isinstance(end, RolloutMissing) for end in failed), failed
    (masked,) = await asyncio.gather(loop.run(sampling, uid="e", task=BROKEN))
    assert sum(masked.response_mask) == 0 and masked.reward_score == 0.0
    try:
        await loop.run(sampling, uid="f", raw_prompt=[])
    except Exception as error:
        assert "task" in str(error)
    else:
        raise AssertionError("a row without a task ran")


async def skyrl() -> None:
    from skyrl.train.generators.base import BatchMetadata, TrajectoryID
    from skyrl.train.utils.trainer_utils import validate_generator_output

    from manyworlds_rl.skyrl import ManyworldsGenerator

    for step_wise in (False, True):
        generator = ManyworldsGenerator(step_wise=step_wise, run="skyrl", **ROWS)
        ids = [TrajectoryID(name, repetition) for name in ("a", "bad", "c") for repetition in range(2)]
        extras = [{"task": BROKEN if one.instance_id == "bad" else TASK} for one in ids]
        batch = {
            "prompts": [[]] * 6,
            "env_classes": [""] * 6,
            "env_extras": extras,
            "sampling_params": {"temperature": 1.0},
            "trajectory_ids": ids,
            "batch_metadata": BatchMetadata(7 + step_wise, "train"),
        }
        output = await generator.generate(batch)
        validate_generator_output(6, output, step_wise=step_wise)
        assert [one.to_string() for one in output["trajectory_ids"]] == [one.to_string() for one in ids]
        assert [sum(mask) > 0 for mask in output["loss_masks"]] == [True, True, False, False, True, True]
        assert output["stop_reasons"] == ["stop", "stop", "abort", "abort", "stop", "stop"]


async def areal() -> None:
    from areal.infra.workflow_executor import check_trajectory_format

    from manyworlds_rl.areal import ManyworldsWorkflow

    workflow = ManyworldsWorkflow(group_size=2, run="areal", **ROWS)
    engine = SimpleNamespace(get_version=lambda: 3)
    good, bad = await asyncio.gather(workflow.arun_episode(engine, {"task": TASK}), workflow.arun_episode(engine, {"task": BROKEN}))
    assert bad is None
    assert check_trajectory_format(good, batch_size=2)
    assert good["rewards"].tolist() == [1.0, 1.0]
    check_versions(good["versions"].flatten().tolist(), good["loss_mask"].flatten().tolist(), 3)


def arguments(run: str, **config: Any) -> SimpleNamespace:
    given = {"run": run, "kind": "vllm", **POLICY, "config": {"group_size": 2, "concurrency": 4, "batch_groups": 2, **config}}
    return SimpleNamespace(manyworlds=given, rollout_batch_size=2, n_samples_per_prompt=2, hf_checkpoint="/models/test-model", save=f"{PLACE}/{run}", sglang_router_ip=None)


class Prompts:
    """A trainer's data source, of prompts that name their tasks."""

    def __init__(self, tasks: list[str]) -> None:
        self.tasks, self.count = tasks, 0

    def get_samples(self, count: int) -> list[list[Any]]:
        found = []
        for _ in range(count):
            task = self.tasks[self.count % len(self.tasks)]
            found.append([SimpleNamespace(metadata={"task": task}, group_index=self.count, index=2 * self.count + index, rollout_id=None) for index in range(2)])
            self.count += 1
        return found


async def slime() -> None:
    from manyworlds_rl import Client
    from manyworlds_rl.slime import generate_rollout

    drawn = arguments("slime-drawn", dataset=[{"name": "tasks", "inputs": [TASK]}])
    for step in range(3):
        output = await asyncio.to_thread(generate_rollout, drawn, step, None)
        assert [len(group) for group in output.samples] == [2, 2]
        assert all(sample.reward == 1.0 and not sample.remove_sample for group in output.samples for sample in group)
        assert output.metrics["manyworlds/groups"] == 2 and output.metrics["manyworlds/missing_rollouts"] == 0
        assert output.metrics["manyworlds/oldest_version"] >= step - 1
    ended = Client().run("slime-drawn").terminal()
    # What the first two steps trained on is acknowledged, with their numbers; the third is under way.
    assert sorted(record.step for record in ended if record.outcome == "consumed") == [0, 0, 1, 1]
    given = arguments("slime-given", partial={"rule": "min_usable", "min": 1}, quarantine_after=None)
    source = Prompts([TASK, BROKEN, TASK])
    output = await asyncio.to_thread(generate_rollout, given, 0, source)
    assert [len(group) for group in output.samples] == [2, 2] and source.count == 3
    assert output.metrics["manyworlds/groups_failed"] == 1


async def miles() -> None:
    from manyworlds_rl.miles import ManyworldsBuffer, ManyworldsRollout

    args = arguments("miles-drawn", dataset=[{"name": "tasks", "inputs": [TASK]}])
    function = ManyworldsRollout(SimpleNamespace(args=args, data_source=None))
    output = await function(SimpleNamespace(rollout_id=0, evaluation=False, weight_version=None))
    assert [len(group) for group in output.samples] == [2, 2]
    args = arguments("miles-buffer", partial={"rule": "min_usable", "min": 1}, quarantine_after=None)
    args.async_data_buffer_capacity_factor = 2.0
    unused: list[Any] = []
    buffer = ManyworldsBuffer(SimpleNamespace(args=args, unused_handler_fn=unused.append))
    prompts = Prompts([TASK, BROKEN]).get_samples(2)
    for group in prompts:
        await buffer.put(SimpleNamespace(prompt_group=group, group=group))
    entry = await buffer.get(current_version=1)
    assert entry.prompt_group is prompts[0]
    assert [[sample.index for sample in rollout] for rollout in entry.group] == [[0], [1]]
    waiting = asyncio.create_task(buffer.get(current_version=2))
    while not unused:
        await asyncio.sleep(0.05)
    assert unused == [prompts[1]]
    assert buffer.get_metrics()["manyworlds/groups_failed"] == 1
    waiting.cancel()


for name in sys.argv[5:]:
    asyncio.run({"verl": verl, "skyrl": skyrl, "areal": areal, "slime": slime, "miles": miles}[name]())
    print(f"{name}: served", flush=True)

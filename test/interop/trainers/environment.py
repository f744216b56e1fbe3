"""`mw serve --zmq` as verifiers' own client sees it. Arguments: address, base address of a vLLM engine, a task that the engine's script solves, one to be given up, a directory that is none."""

from __future__ import annotations

import asyncio
import sys

import verifiers.v1 as vf
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.serve import EnvClient
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type


async def main(address: str, engine: str, task: str, slow: str, none: str) -> None:
    client = EnvClient(address)
    await client.wait_for_server_startup(timeout=60)
    # As the orchestrator: tasks are its own, their data goes with each request.
    tasks = list(load_taskset(taskset_config_type("manyworlds-tasks")(id="manyworlds-tasks", inputs=[task], harness=["bash"])))
    assert [one.data.task for one in tasks] == [task]
    data = tasks[0].data.model_dump(mode="json")
    model = {"client": TrainClientConfig(base_url=f"{engine}/v1"), "model": "test-model", "sampling": SamplingConfig(temperature=1.0, max_tokens=256)}

    deltas: list[dict] = []
    # Older clients have no deltas.
    more = {"on_delta": deltas.append} if "on_delta" in EnvClient.run.__annotations__ else {}
    episodes = await asyncio.gather(*(client.run(task_data=data, **model, **more) for _ in range(3)))
    for episode in episodes:
        assert episode.ok, episode.errors
        assert episode.task.data.model_extra["task"] == task
        (trace,) = episode.traces
        assert trace.ok and trace.is_completed and trace.reward == 1.0 and trace.stop_condition == "agent_completed"
        assert trace.agent.trainable and trace.num_turns == 2 == len(trace.calls)
        (branch,) = trace.branches
        assert getattr(branch, "trainable", True)
        tokens, mask, logprobs = branch.token_ids, branch.sampled_mask, branch.logprobs
        assert len(tokens) == len(mask) == len(logprobs) and sum(mask) > 0
        assert all(value < 0 if sampled else value == 0 for sampled, value in zip(mask, logprobs))
        for node in trace.nodes:
            assert len(node.token_ids) == len(node.mask) and len(node.logprobs) == sum(node.mask)
        assert [message.role for message in branch.messages if message.role in ("assistant", "tool")] == ["assistant", "tool", "assistant"]
        assert trace.usage is not None and trace.usage.completion_tokens == sum(mask)
        # A record of theirs can be made of it, and read again.
        assert vf.WireEpisode.model_validate(episode.to_record()).traces[0].reward == 1.0
    assert len({episode.id for episode in episodes}) == 3
    assert not more or len(deltas) == 3

    # Without tokens, the conversation still comes.
    told = await client.run(task_data=data, client=EvalClientConfig(base_url=f"{engine}/v1", api_key_var="X"), model="test-model", sampling=SamplingConfig())
    assert told.ok and told.traces[0].reward == 1.0

    for wrong in ({"task": none}, {"task": "relative"}, {}):
        try:
            await client.run(task_data=wrong, **model)
        except RuntimeError as error:
            assert "task" in str(error), error
        else:
            raise AssertionError(f"{wrong} ran")

    # A client that gives up, at whatever moment that is: the server answers others as before.
    given_up = asyncio.create_task(client.run(task_data={"task": slow}, **model))
    for _ in range(10):
        await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert await client.health(timeout=60)
    again = await client.run(task_data=data, **model)
    assert again.ok
    await client.close()


asyncio.run(main(*sys.argv[1:]))

"""
miles: `--rollout-function-path manyworlds_rl.miles.ManyworldsRollout` for steps of finished groups. With `--fully-async`, the data buffer of
`--custom-async-data-buffer-path manyworlds_rl.miles.ManyworldsBuffer` runs miles' own prompts here. See docs/trainers/miles.md.

miles normalises by `group_index`, one vote a rollout, and raises when samples of one rollout have different rewards; here they never have.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

from ._slime_like import sample_fields
from ._steps import StepsKey, steps_of, submission_of
from .aio import AsyncClient
from .collect import AsyncCollector, GroupEnd
from .errors import ConflictError
from .rollouts import rollouts_of
from .settings import Settings
from .slime import post_process_rewards, step_groups
from .types import Endpoint, Group

logger = logging.getLogger(__name__)

__all__ = ["ManyworldsBuffer", "ManyworldsRollout", "generate", "post_process_rewards", "reward", "samples_of"]


def samples_of(group: Group, size: int, group_index: int = 0, first_index: int = 0) -> list[Any]:
    """A group as `miles.utils.types.Sample`s: `size` rollouts, those that are missing as samples that are removed from the loss."""
    from miles.utils.types import Sample

    return [Sample(**{**fields, "status": Sample.Status[fields["status"]]}) for fields in sample_fields(group, size, group_index, first_index)]


class ManyworldsRollout:
    """A rollout function of miles' class-based form: made with `RolloutFnConstructorInput`, called with `RolloutFnTrainInput`."""

    def __init__(self, input: Any) -> None:
        self.args = input.args
        self.data_source = input.data_source
        self._steps = steps_of(StepsKey.of(input.args, "miles"))

    async def __call__(self, input: Any) -> Any:
        from miles.rollout.base_types import RolloutFnTrainOutput

        if input.evaluation:
            raise ValueError("manyworlds_rl.miles gives no evaluation: set --eval-function-path, or evaluate with `mw run`")
        args, step = self.args, input.rollout_id
        groups = await asyncio.to_thread(step_groups, self._steps, args, step, self.data_source)
        size = args.n_samples_per_prompt
        first = step * args.rollout_batch_size
        samples = [samples_of(group, size, first + index, (first + index) * size) for index, group in enumerate(groups)]
        return RolloutFnTrainOutput(samples=samples, metrics=self._steps.metrics(groups))


async def generate(input: Any) -> Any:
    """`--custom-generate-function-path` for `ManyworldsBuffer`: prompts go to the buffer as they are, and are run there."""
    from miles.rollout.base_types import GenerateFnOutput

    input.sample.status = type(input.sample).Status.COMPLETED
    return GenerateFnOutput(samples=input.sample)


async def reward(args: Any, sample: Any, **kwargs: Any) -> float:
    """`--custom-rm-path` for `ManyworldsBuffer`: rewards come with the rollouts."""
    return 0.0


class ManyworldsBuffer:
    """
    miles' `DataBuffer` (put, get, get_metrics) in front of the service: `put` submits the group's prompt and waits while there are no credits, which holds back the
    producer; `get` gives finished groups in the order in which they end. A group that comes to nothing goes to `--async-unused-samples-handler`.
    """

    def __init__(self, input: Any) -> None:
        self.settings = Settings.of(getattr(input.args, "manyworlds", None), "miles")
        self._args = input.args
        self._unused = input.unused_handler_fn
        self._ready: asyncio.Queue[tuple[Any, GroupEnd]] = asyncio.Queue()
        self._collector: AsyncCollector | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._submitted = self._failed = 0
        self._given: list[Group] = []
        self._version: int | None = None
        self._life = secrets.token_hex(4)
        self._limit = asyncio.Semaphore(max(1, int(getattr(input.args, "async_data_buffer_capacity_factor", 2.0) * input.args.rollout_batch_size)))

    async def put(self, input: Any) -> None:
        await self._limit.acquire()
        collector = await self._open()
        self._submitted += 1
        task = asyncio.create_task(self._run(collector, input, f"b{self._submitted}.{self._life}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def get(self, current_version: int | None = None, **_: Any) -> Any:
        from miles.rollout.fully_async_data_buffer import DataBufferInput

        await self._move_to(current_version)
        while True:
            prompts, end = await self._ready.get()
            self._limit.release()
            if end.group is None:
                self._failed += 1
                self._unused(prompts)
                continue
            self._given.append(end.group)
            return DataBufferInput(prompt_group=prompts, group=self._samples(end.group, prompts))

    def get_metrics(self) -> dict[str, float]:
        failed, self._failed = self._failed, 0
        return {"rollout/fully_async/queue_size": float(self._ready.qsize()), "manyworlds/in_flight": float(len(self._tasks)), "manyworlds/groups_failed": float(failed)}

    def _samples(self, group: Group, prompts: Any) -> list[list[Any]]:
        """By rollout, as miles has it for rollouts of several samples, with the ids that the data source gave."""
        size = len(prompts)
        flat = iter(samples_of(group, size, prompts[0].group_index, 0))
        nested: list[list[Any]] = []
        for prompt, rollout in zip(prompts, rollouts_of(group, size)):
            segments = [next(flat) for _ in rollout.segments]
            for sample in segments:
                sample.index = prompt.index
                sample.rollout_id = prompt.rollout_id if prompt.rollout_id is not None else prompt.index
            nested.append(segments)
        return nested

    async def _run(self, collector: AsyncCollector, input: Any, group_id: str) -> None:
        prompts = input.prompt_group
        try:
            (end,) = await collector.collect([submission_of(prompts[0], group_id, len(prompts))])
        except Exception as error:
            # Outcomes are data here too: the consumer must not wait for what will never come.
            end = GroupEnd(group_id, "failed", f"{type(error).__name__}: {error}", None)
        self._ready.put_nowait((prompts, end))

    async def _open(self) -> AsyncCollector:
        if self._collector is None:
            settings = self.settings
            run = await AsyncClient(settings.url, settings.api_key).run(settings.run, settings.config or None)
            # What an earlier life of this trainer left has names that nobody will ask for again.
            await run.cancel()
            self._collector = AsyncCollector(run, stall_s=settings.stall_s)
            await self._move_to(0)
        return self._collector

    async def _move_to(self, version: int | None) -> None:
        """The trainer has these weights now; what it was given before, it has trained on."""
        if self._collector is None or version is None or (self._version is not None and version <= self._version):
            return
        host = getattr(self._args, "sglang_router_ip", None)
        told = None if host is None else [Endpoint(url=f"http://{host}:{self._args.sglang_router_port}", kind=self.settings.kind or "sglang")]
        model = self.settings.model or str(getattr(self._args, "hf_checkpoint", "policy")).rstrip("/").rpartition("/")[2]
        try:
            await self._collector.run.set_policy(version, model=model, endpoints=self.settings.endpoints or told)
        except ConflictError:
            logger.info("run %s has a newer policy than version %d", self._collector.run.name, version)
        self._version = self._collector.version = version
        given, self._given = self._given, []
        await self._collector.consumed(given, version=version)

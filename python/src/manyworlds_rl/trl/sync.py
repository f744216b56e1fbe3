"""`rollout_func` for `GRPOTrainer`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from ..client import Client, Run
from ..collect import Collector, GroupEnd
from ..types import Endpoint, RunConfig, Submission
from .rows import Row, failed_row, row_of


class Rollouts:
    """
    Runs the trainer's prompts as tasks.

        rollouts = Rollouts("my-run", {"harness": ["fenced"], "tokenizer": {"directory": "/models/m"}})
        trainer = GRPOTrainer(
            model, args=args, train_dataset=rollouts.dataset(tasks), rollout_func=rollouts, reward_funcs=rollouts.reward
        )

    A prompt is the absolute path of a task's directory where the service runs. Without `endpoints` the trainer's own model is served to the agents from this process, so that
    they sample from exactly the weights that are trained; with them (a vLLM that TRL updates), `model_name` is the model's name there. Every process of a distributed
    trainer has a run of its own, `NAME-r0`, `NAME-r1`, ...
    """

    def __init__(
        self,
        name: str,
        config: RunConfig | None = None,
        *,
        client: Client | None = None,
        endpoints: Sequence[str | Endpoint] | None = None,
        model_name: str = "policy",
        stall_s: float = 4 * 3600.0,
    ) -> None:
        self.name = name
        # Staleness is no question here: the trainer waits while the agents work.
        self.config: RunConfig = {"admission": "at_lease", "lease_s": 60, **(config or {})}
        self.client = client or Client()
        self.endpoints = endpoints
        self.model_name = model_name
        self.stall_s = stall_s
        self.run: Run | None = None
        self._collector: Collector | None = None
        self._server: Any = None
        self._version = -1
        self._step: int | None = None
        self._held: list[str] = []
        self._counter = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "run": None, "_collector": None, "_server": None}

    @staticmethod
    def dataset(tasks: Iterable[str]) -> Any:
        """A dataset of `datasets` with a prompt for each task directory."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": str(task)} for task in tasks])

    def reward(self, completions: Sequence[Any], env_reward: Sequence[float | None] | None = None, log_metric: Any = None, **more: Any) -> list[float | None]:
        """The reward function: what the verifiers said; None where there is no verdict, which TRL leaves out of the baseline."""
        rewards: list[float | None] = list(env_reward) if env_reward is not None else [None for _ in completions]
        if log_metric is not None:
            log_metric("manyworlds/unusable", sum(reward is None for reward in rewards) / max(1, len(rewards)))
            log_metric("manyworlds/segments_left_out", float(sum(more.get("segments_left_out") or [0])))
        return rewards

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """What TRL calls: prompts with their repetitions, in order. Blocks until every rollout has ended, however it did."""
        collector = self._open(trainer)
        self._publish(trainer)
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        chunks = _chunks([_task_of(prompt) for prompt in prompts], size)
        ends = collector.collect([self._submission(task, count, trainer) for task, count in chunks])
        self._held = [end.group_id for end in ends if end.group is not None]
        end_id = trainer.processing_class.eos_token_id
        rows = [row for end, (_, count) in zip(ends, chunks) for row in _rows_of(end, count, end_id)]
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.env_mask for row in rows],
            "env_reward": [row.reward for row in rows],
            "segments_left_out": [row.left_out for row in rows],
        }

    def _submission(self, task: str, count: int, trainer: Any) -> Submission:
        self._counter += 1
        # The name is of this life of the trainer; the seed is the same in every life.
        return {
            "group_id": f"trl-{uuid.uuid4().hex}",
            "task": task,
            "size": count,
            "seed": f"{trainer.args.seed}/{trainer.accelerator.process_index}/{self._counter}",
            "metadata": {"step": int(trainer.state.global_step)},
        }

    def _open(self, trainer: Any) -> Collector:
        if self._collector is not None:
            return self._collector
        accelerator = trainer.accelerator
        name = self.name if accelerator.num_processes == 1 else f"{self.name}-r{accelerator.process_index}"
        self.run = self.client.run(name, self.config)
        # What an earlier life of this trainer left running would only take machines away.
        self.run.cancel()
        self._version = self.run.status().policy.version or 0
        self._collector = Collector(self.run, stall_s=self.stall_s)
        trainer.add_callback(_callback(self))
        return self._collector

    def _publish(self, trainer: Any) -> None:
        """The weights of this step are the policy of the rollouts that begin now; groups of the step before are acknowledged."""
        step = int(trainer.state.global_step)
        if step == self._step or self.run is None:
            self.acknowledge(step)
            return
        endpoints = self.endpoints
        if endpoints is None:
            if self._server is None:
                self._server = self._serve(trainer)
            endpoints = [self._server.endpoint]
        if self._step is not None:
            self._version += 1
        self._step = step
        if self._server is not None:
            self._server.generator.version = self._version
        self.run.set_policy(self._version, model=self.model_name, endpoints=endpoints)
        if self._collector is not None:
            self._collector.version = self._version
        self.acknowledge(step)

    def _serve(self, trainer: Any) -> Any:
        from ..serving import ModelServer

        model = trainer.accelerator.unwrap_model(trainer.model)
        return ModelServer(model, model_name=self.model_name, eos_ids=[trainer.processing_class.eos_token_id], version=max(0, self._version))

    def acknowledge(self, step: int) -> None:
        if self._collector is not None and self._held:
            self._collector.consumed(self._held, step=step, version=max(0, self._version))
            self._held = []

    def close(self) -> None:
        """Acknowledges the last groups and stops serving. Called at the end of training by itself."""
        self.acknowledge(self._step or 0)
        if self._collector is not None:
            self._collector.close()
        if self._server is not None:
            self._server.close()
        self._collector = self._server = self._step = None


def _task_of(prompt: Any) -> str:
    """A prompt is a task's directory, or a conversation whose last message is one."""
    if isinstance(prompt, str):
        return prompt
    return str(prompt[-1]["content"])


def _chunks(tasks: Sequence[str], size: int) -> list[tuple[str, int]]:
    """Runs of equal tasks, in groups of at most `size`."""
    chunks: list[tuple[str, int]] = []
    for task in tasks:
        if chunks and chunks[-1][0] == task and chunks[-1][1] < size:
            chunks[-1] = (task, chunks[-1][1] + 1)
        else:
            chunks.append((task, 1))
    return chunks


def _rows_of(end: GroupEnd, count: int, end_id: int) -> list[Row]:
    members = end.group.members() if end.group is not None else []
    rows = [row_of(segments) for segments in members[:count]]
    rows += [None] * (count - len(rows))
    some = next((row.prompt_ids for row in rows if row is not None), [])
    return [failed_row(some, end_id) if row is None else row for row in rows]


def _callback(rollouts: Rollouts) -> Any:
    from transformers import TrainerCallback

    class CloseAtEnd(TrainerCallback):  # type: ignore[misc]
        def on_train_end(self, *_: Any, **__: Any) -> None:
            rollouts.close()

    return CloseAtEnd()

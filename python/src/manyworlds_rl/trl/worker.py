"""
`rollout_worker` and `weight_transfer` for `AsyncGRPOTrainer`.

    worker = RolloutWorker("my-run", {"dataset": [{"name": "all", "inputs": ["/tasks"]}]}, endpoints=["http://127.0.0.1:8000"], model_name="m")
    trainer = AsyncGRPOTrainer(
        model="m", args=args, train_dataset=dataset, rollout_worker=worker, weight_transfer=HeldTransfer(worker, WeightTransferClient(...))
    )

The service draws the tasks, bounds staleness by admission and retries what fails; the worker leases finished groups, computes advantages over their usable members and fills the
trainer's queue. Groups are acknowledged once a version is out that was trained on all of their samples.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._held import Ledger
from ..client import Client, Run
from ..errors import RunDeadError, UnreachableError
from ..loop import GroupStream, groups
from ..types import Endpoint, Group, RunConfig, Sample


class RolloutWorker:
    """
    Fills `rollout_buffer` with TRL's `RolloutSample`s. Pickles until it is started, and may then be started in another process.

    `queue_samples` bounds what waits in the queue: a trainer that stops taking stops the leases, and those the service. `tokenizer` (with `decode`) is for the texts in
    logged traces alone.

    TRL takes samples from the queue a micro-batch ahead of the step that trains on them. `step_samples`: how many samples a version is made of, per_device_train_batch_size *
    gradient_accumulation_steps * processes * weight_sync_steps where `token_budget` is 0; with it every group is acknowledged with the version that was trained on it.
    Without, a group is acknowledged a version later, so that none counts as trained on that was only fetched; those of the last step then go back at the end.
    """

    def __init__(
        self,
        name: str,
        config: RunConfig | None = None,
        *,
        client: Client | None = None,
        endpoints: Sequence[str | Endpoint] = (),
        model_name: str = "policy",
        queue_samples: int = 1024,
        step_samples: int | None = None,
        at_once: int = 4,
        tokenizer: Any = None,
        stall_s: float = 4 * 3600.0,
        ledger: Ledger | None = None,
    ) -> None:
        self.name = name
        self.config: RunConfig = config or {}
        self.client = client or Client()
        self.endpoints = list(endpoints)
        self.model_name = model_name
        self.queue_samples = queue_samples
        self.step_samples = step_samples
        self.at_once = at_once
        self.tokenizer = tokenizer
        self.stall_s = stall_s
        self.ledger = Ledger() if ledger is None else ledger
        self._set_up()

    def _set_up(self) -> None:
        self.rollout_buffer: _Buffer = _Buffer(self.queue_samples)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue(maxsize=4096)
        self.model_version = 0
        self._run: Run | None = None
        self._offset: int | None = None
        self._stream: GroupStream | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._alive_at = time.monotonic()
        self._count = 0
        #: Samples that the versions so far have been trained on, and those that were taken when the latest of them came out.
        self._trained = self._taken = 0

    def __getstate__(self) -> dict[str, Any]:
        kept = ("name", "config", "client", "endpoints", "model_name", "queue_samples", "step_samples", "at_once", "tokenizer", "stall_s", "ledger", "model_version")
        return {key: getattr(self, key) for key in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()
        self.model_version = state["model_version"]

    @property
    def run(self) -> Run:
        """The run, made when it is first needed."""
        if self._run is None:
            self._run = self.client.run(self.name, self.config)
        return self._run

    def start(self) -> None:
        """Begins to lease. TRL calls it once, after the first weights are out."""
        if self._thread is not None:
            return
        if self.run.status().policy.state != "live":
            self._publish()
        self._stop.clear()
        self._alive_at = time.monotonic()
        self._stream = groups(self.run, at_once=self.at_once, max_held=1 << 30, ledger=self.ledger, version=lambda: self._published(self.model_version), stall_s=self.stall_s)
        self._thread = threading.Thread(target=self._work, name=f"manyworlds-worker-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops leasing. What was not acknowledged goes back to the service when its lease expires, also what was taken already: it may not have been trained on."""
        self._stop.set()
        if self._stream is not None:
            self._stream.close()
        if self._thread is not None:
            self._thread.join(timeout=40.0)
        self._thread = self._stream = None

    def hold(self) -> None:
        """New weights are on their way: the agents' model calls wait until the next version is out."""
        status = self.run.status()
        if status.policy.version is not None:
            self.run.set_policy(status.policy.version, state="updating")

    def update_model_version(self, model_version: int) -> None:
        """This version is live now, and trained on what was fetched for it."""
        self.model_version = model_version
        self._publish()
        if self._stream is None:
            return
        taken = self.rollout_buffer.taken
        self._trained = self._taken if self.step_samples is None else min(taken, self._trained + self.step_samples)
        self._taken = taken
        done = self.rollout_buffer.done(self._trained)
        if done:
            self._stream.consumed(*done, step=model_version, version=self._published(model_version))

    def check_health(self, stale_after_s: float) -> None:
        """Raises when no more samples will come: the run is dead, the service away, or this worker stuck."""
        if self._failure is not None:
            raise RuntimeError(f"the rollout worker has failed: {self._failure}") from self._failure
        idle = time.monotonic() - self._alive_at
        if self._thread is not None and idle > max(stale_after_s, 60.0):
            raise RuntimeError(f"the rollout worker has not been heard of for {idle:.0f} s")
        self._check_starved()

    def _check_starved(self) -> None:
        """The trainer waits for more samples before its next version, and the service for the next version before it begins more groups: that would last for ever."""
        if self._thread is None or not self.rollout_buffer.empty():
            return
        try:
            status = self.run.status()
        except UnreachableError:
            return
        if status.waiting_for == "staleness" and status.rollouts["running"] == 0 and status.groups["ready"] == 0 and self.rollout_buffer.empty():
            raise RuntimeError(
                f"run {self.name} begins no more groups before the next version, and the trainer has taken all there were. `batch_groups` must be the groups of one step: "
                "per_device_train_batch_size * gradient_accumulation_steps * processes / group_size"
            )

    def _published(self, version: int) -> int:
        """
        The trainer's version as the run counts it. A trainer that starts anew counts from the beginning, while versions of a run only grow: then the run's numbers are the
        trainer's and what the run had before.
        """
        if self._offset is None:
            before = self.run.status().policy.version
            self._offset = 0 if before is None or before <= version else before + 1 - version
        return version + self._offset

    def _publish(self) -> None:
        self.run.set_policy(self._published(self.model_version), model=self.model_name, endpoints=self.endpoints or None)

    def _work(self) -> None:
        try:
            while not self._stop.is_set() and self._stream is not None:
                group = self._stream.next(wait_s=5.0)
                self._alive_at = time.monotonic()
                if group is not None:
                    self._put(group)
                elif self._stream.ended:
                    raise RunDeadError(self.name, "finished", "all of its tasks are done")
        except BaseException as error:
            if not self._stop.is_set():
                self._failure = error

    def _put(self, group: Group) -> None:
        self._count += 1
        rows = list(self._rows(group, self._count))
        self.rollout_buffer.expect(group.group_id, len(rows))
        for row in rows:
            while not self._stop.is_set():
                self._alive_at = time.monotonic()
                try:
                    self.rollout_buffer.put(row, timeout=1.0)
                    break
                except queue.Full:
                    continue

    def _rows(self, group: Group, number: int) -> Iterator[Any]:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        advantages = group.advantages(epsilon=1e-8)
        rewards = [reward for reward in group.rewards() if reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5 if rewards else 0.0
        for member, segments in enumerate(group.members()):
            advantage = advantages[member]
            for sample in segments:
                if advantage is None or not sample.usable:
                    continue
                arrays = sample.numpy()
                yield RolloutSample(
                    prompt=[{"role": "user", "content": group.task}],
                    completion=[{"role": "assistant", "content": self._text(sample)}],
                    input_ids=arrays["token_ids"].astype("int64"),
                    completion_mask=arrays["loss_mask"].astype("int64"),
                    old_log_probs=arrays["logprobs"].copy(),
                    advantage=float(advantage),
                    model_version=self._version_of(sample),
                    group_id=number,
                    metrics={
                        "reward": float(sample.reward or 0.0),
                        "reward_std": deviation,
                        **{f"rewards/{name}": float(value) for name, value in sample.reward_components.items()},
                        "manyworlds/usable": group.usable / group.expected,
                        "manyworlds/turns": float(sample.turns),
                        "manyworlds/segments": float(sample.num_segments),
                    },
                    enqueued_at=time.time(),
                )

    def _version_of(self, sample: Sample) -> int:
        """Of the oldest trained token, as the trainer counts."""
        oldest = sample.oldest_version
        return self.model_version if oldest is None else oldest - (self._offset or 0)

    def _text(self, sample: Sample) -> str:
        if self.tokenizer is None:
            return f"{sum(sample.loss_mask)} sampled tokens of rollout {sample.rollout_id}"
        return str(self.tokenizer.decode(sample.token_ids[sample.prompt_len :].tolist()))


class _Buffer(queue.Queue):  # type: ignore[type-arg]
    """Gives out samples in the order of their groups, and counts them."""

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        #: Samples that were taken.
        self.taken = 0
        self._expected = 0
        #: Groups that are not over yet, each with the count of samples at its end.
        self._ends: deque[tuple[int, str]] = deque()
        self._lock = threading.Lock()

    def expect(self, group_id: str, count: int) -> None:
        """The next so many samples are this group's."""
        with self._lock:
            self._expected += count
            self._ends.append((self._expected, group_id))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        row = super().get(block, timeout)
        with self._lock:
            self.taken += 1
        return row

    def done(self, count: int) -> list[str]:
        """Groups that lie whole in the first `count` samples; each is told of once."""
        with self._lock:
            done = []
            while self._ends and self._ends[0][0] <= count:
                done.append(self._ends.popleft()[1])
            return done


class HeldTransfer:
    """`weight_transfer` around another: while weights are sent the agents' calls wait at the gateway, as they would at the engine, but without failing there."""

    def __init__(self, worker: RolloutWorker, inner: Any) -> None:
        self.worker = worker
        self.inner = inner

    def init_weight_transfer(self) -> None:
        self.inner.init_weight_transfer()

    def pause(self) -> None:
        self.worker.hold()
        self.inner.pause()

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        self.inner.send_weights(iterator)

    def resume(self) -> None:
        # Calls go on when the trainer names the new version, by `update_model_version`.
        self.inner.resume()

    def destroy(self) -> None:
        self.inner.destroy()


class ServingTransfer:
    """`weight_transfer` into a `ModelServer` of this process, which serves a copy of the model: for small models, and where there is no vLLM."""

    def __init__(self, server: Any) -> None:
        self.server = server

    def init_weight_transfer(self) -> None:
        return

    def pause(self) -> None:
        return

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        self.server.load(iterator, self.server.version + 1)

    def resume(self) -> None:
        return

    def destroy(self) -> None:
        return

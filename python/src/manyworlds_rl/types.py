"""What the delivery service says, as types. Names are as on the wire; times are milliseconds, `*_at` since the epoch. Fields that a newer service adds are ignored."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, TypeVar

from .errors import InvalidResponseError

T = TypeVar("T")

#: Arrays of a sample, with the `struct` letter of their elements and their numpy names.
ARRAYS: Mapping[str, tuple[str, str]] = {"token_ids": ("i", "int32"), "loss_mask": ("B", "uint8"), "logprobs": ("f", "float32"), "versions": ("i", "int32")}


# --- requests -------------------------------------------------------------------------------------------------------


class Sampling(TypedDict, total=False):
    temperature: float
    top_p: float
    max_tokens: int
    seed: int


class DatasetPart(TypedDict, total=False):
    """Tasks that the service draws by itself; `name` and `inputs` (absolute paths where the service runs) are required."""

    name: str
    inputs: list[str]
    weight: float
    group_size: int
    harness: list[str]


class Prices(TypedDict):
    """What is paid, in dollars: a million tokens in prompts, cached ones, sampled ones, an hour of a machine."""

    input: float
    cached: float
    output: float
    machine: float


class RunConfig(TypedDict, total=False):
    """Body of `PUT /v1/runs/{name}`. What is left out has the service's default; docs/delivery.md has the meaning of each field."""

    seed: str
    group_size: int
    concurrency: int
    harness: list[str]
    budgets: dict[str, int | None]
    sampling: Sampling
    tokenizer: dict[str, str | None] | None
    batch_groups: int
    max_staleness: int
    admission: str
    partial: dict[str, Any]
    redundancy: int
    deadlines: dict[str, float | None]
    exhausted: str
    quarantine_after: int | None
    fail_after_dead_groups: int | None
    credits: dict[str, int]
    retain_bytes: int
    order: str
    window: int
    lease_s: float
    answer_versions: str
    keep_workspaces: bool
    checkpoint_rollouts: str | dict[str, float] | None
    ignore_limits: bool
    prices: Prices
    samples: dict[str, Any]
    dataset: list[DatasetPart] | None


class Endpoint(TypedDict, total=False):
    """Where the policy is served; `url` is required, `kind` (vllm, sglang, openai) is found out where it is absent."""

    url: str
    kind: str


class Submission(TypedDict, total=False):
    """A group to be run; `group_id` and `task` (absolute path where the service runs) are required."""

    group_id: str
    task: str
    size: int
    harness: list[str]
    seed: str
    sampling: Sampling
    deadline_s: float
    min_version: int
    priority: int
    metadata: dict[str, Any]


# --- samples --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampleError:
    """Why a member is not usable. `cls` is whose doing it was: policy, harness, model, env, infra, timeout, overlong or cancelled."""

    cls: str
    code: str
    message: str
    permanent: bool


@dataclass(frozen=True)
class Sample:
    """
    One contiguous token sequence of a rollout.

    The arrays are views of the bytes that came over the wire, all of one length: `token_ids` (int32), `loss_mask` (uint8, 1 = sampled by the policy and to be trained),
    `logprobs` (float32, of the sampling policy; 0 where the mask is 0) and `versions` (int32, policy version of each token; -1 where the mask is 0).
    """

    sample_id: str
    rollout_id: str
    group_id: str
    member: int
    attempt: int
    segment_index: int
    num_segments: int
    is_last_segment: bool
    parent_prefix_len: int
    prompt_len: int
    reward: float | None
    reward_components: Mapping[str, float]
    weight: float
    usable: bool
    status: str
    outcome: str
    stop_reason: str | None
    error: SampleError | None
    harness: str
    seed: str
    builder: str
    kind: str
    temperature: float | None
    top_p: float | None
    model: str
    tokenizer: str | None
    image: str | None
    verifier: str | None
    turns: int
    tool_errors: int | None
    timings: Mapping[str, float]
    token_ids: memoryview[int] = field(repr=False)
    loss_mask: memoryview[int] = field(repr=False)
    logprobs: memoryview[float] = field(repr=False)
    versions: memoryview[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, f.name) for f in fields(self)]
        return _sample_again, tuple(bytes(v) if isinstance(v, memoryview) else v for v in values)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest trained token; None where nothing is trained."""
        return min((v for v in self.versions if v >= 0), default=None)

    def numpy(self) -> dict[str, Any]:
        """The four arrays as numpy arrays that share this sample's memory. Needs numpy."""
        import numpy as np

        return {name: np.frombuffer(getattr(self, name), dtype=dtype) for name, (_, dtype) in ARRAYS.items()}

    def torch(self) -> dict[str, Any]:
        """The four arrays as CPU tensors that share this sample's memory; write to a copy. Needs torch."""
        import torch

        kinds = {"int32": torch.int32, "uint8": torch.uint8, "float32": torch.float32}
        empty = len(self) == 0
        return {name: torch.empty(0, dtype=kinds[dtype]) if empty else torch.frombuffer(getattr(self, name), dtype=kinds[dtype]) for name, (_, dtype) in ARRAYS.items()}


def _sample_again(*values: Any) -> Sample:
    facts = values[: -len(ARRAYS)]
    arrays = [memoryview(array(letter, data)) for data, (letter, _) in zip(values[-len(ARRAYS) :], ARRAYS.values())]
    return Sample(*facts, *arrays)


@dataclass(frozen=True)
class GroupFailure:
    cls: str
    code: str
    permanent: bool
    count: int


@dataclass(frozen=True)
class Group:
    """The rollouts of one task that are compared with each other. `samples` are in order of member, then of segment. Members that are not usable have none."""

    group_id: str
    group: str
    run: str
    epoch: int
    task: str
    family: str
    task_digest: str | None
    dataset: str | None
    outcome: str
    expected: int
    usable: int
    attempts: int
    version_min: int | None
    version_max: int | None
    accepted_at: float
    started_at: float | None
    ended_at: float
    failures: Sequence[GroupFailure]
    tokens: int
    bytes: int
    metadata: Mapping[str, Any]
    samples: Sequence[Sample] = field(default=(), repr=False)

    def members(self) -> list[list[Sample]]:
        """The samples of each member, `expected` lists in order; empty where a member has none."""
        found: list[list[Sample]] = [[] for _ in range(self.expected)]
        for sample in self.samples:
            while sample.member >= len(found):
                found.append([])
            found[sample.member].append(sample)
        return found

    def rewards(self) -> list[float | None]:
        """The reward of each member; None for those that are not usable, which must not count as 0."""
        return [segments[0].reward if segments and segments[0].usable else None for segments in self.members()]

    def advantages(self, scale: bool = True, epsilon: float = 1e-6) -> list[float | None]:
        """Reward minus the mean over the usable members (GRPO; `scale`: over their standard deviation); None for the others."""
        rewards = self.rewards()
        known = [reward for reward in rewards if reward is not None]
        if not known:
            return [None for _ in rewards]
        mean = sum(known) / len(known)
        deviation = (sum((reward - mean) ** 2 for reward in known) / len(known)) ** 0.5
        return [None if reward is None else (reward - mean) / (deviation + epsilon if scale else 1.0) for reward in rewards]


@dataclass(frozen=True)
class Ended:
    """A group that was asked for by name and is over without samples."""

    group_id: str
    outcome: str
    reason: str | None


@dataclass(frozen=True)
class Lease:
    """What a lease brought. `lease_id` is None when there is nothing in it."""

    lease_id: str | None
    expires_at: float | None
    run_state: str
    reason: str | None
    last_progress_at: float
    policy_version: int | None
    groups: Sequence[Group] = field(default=(), repr=False)
    #: Of groups that were asked for by name: those that are over, and how.
    ended: Sequence[Ended] = ()


# --- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Credits:
    groups: int
    bytes: int


@dataclass(frozen=True)
class Policy:
    version: int | None
    state: str
    model: str | None


@dataclass(frozen=True)
class Status:
    run: str
    name: str
    epoch: int
    state: str
    reason: str | None
    policy: Policy
    groups: Mapping[str, int]
    rollouts: Mapping[str, int]
    ready_bytes: int
    credits: Credits
    oldest_ready_at: float | None
    last_progress_at: float
    failures: Mapping[str, int]
    stragglers: Mapping[str, float]
    #: Why no further group is begun now: policy, staleness, bytes, concurrency; None when one could be, or none waits.
    waiting_for: str | None
    datasets: Mapping[str, Mapping[str, Any]]
    quarantined: Sequence[str]


@dataclass(frozen=True)
class TerminalRecord:
    """How an accepted group ended; `seq` counts from 1 without gaps. After a restore a group has a line `restored` and later another end: the last line of a group holds."""

    seq: int
    at: float
    group_id: str
    outcome: str
    reason: str | None
    group: Group
    consumer: str | None
    lease_id: str | None
    trained_version: int | None
    step: int | None
    checkpoint: str | None


@dataclass(frozen=True)
class Checkpoint:
    """What the trainer had consumed; kept with its own checkpoint (`vars(checkpoint)` is plain JSON)."""

    run: str
    epoch: int
    cursor: int
    consumed: int
    version: int | None
    digest: str


# --- rollouts that are driven from outside --------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    rollout_id: str
    run: str
    sandbox_id: str
    instruction: str
    workdir: str | None
    user: str | None
    expires_at: float


@dataclass(frozen=True)
class ExecResult:
    """`code` is the process's; `ended` is exited, timed_out, killed or lost. Long output is cut in the middle; `stdout_bytes` and `stderr_bytes` say how much there was."""

    code: int
    ended: str
    cause: str | None
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    duration_ms: float

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@dataclass(frozen=True)
class RolloutEnd:
    """`reward` is None unless the outcome is `scored`: what went wrong with a machine is not the policy's doing."""

    rollout_id: str
    outcome: str
    reward: float | None
    reward_components: Mapping[str, float]
    stop_reason: str | None
    error: Mapping[str, str] | None


# --- from the wire --------------------------------------------------------------------------------------------------


def make(cls: type[T], data: Any, **more: Any) -> T:
    """An instance of a dataclass from a document; what it lacks is an error that names the field, what it has beyond is ignored."""
    if not isinstance(data, Mapping):
        raise InvalidResponseError(f"the service sent {type(data).__name__} where {cls.__name__} belongs")
    values = dict(more)
    for known in fields(cls):  # type: ignore[arg-type]
        if known.name in values:
            continue
        wire = "class" if known.name == "cls" else known.name
        if wire not in data:
            raise InvalidResponseError(f"the service sent a {cls.__name__} without `{wire}`: service and client are too far apart")
        values[known.name] = data[wire]
    return cls(**values)


def make_sample(facts: Any, arrays: Mapping[str, memoryview]) -> Sample:
    error = facts.get("error") if isinstance(facts, Mapping) else None
    sample = make(Sample, facts, error=None if error is None else make(SampleError, error), **arrays)
    # JSON writes 1.0 as 1.
    return replace(sample, reward=float(sample.reward)) if isinstance(sample.reward, int) else sample


def list_in(document: Any, name: str) -> list[Any]:
    """A list that a document may lack."""
    values = document.get(name, []) if isinstance(document, Mapping) else []
    if not isinstance(values, list):
        raise InvalidResponseError(f"the service sent {type(values).__name__} as `{name}`, which is a list")
    return values


def make_lease(head: Any, groups: Sequence[Group]) -> Lease:
    return make(Lease, head, groups=tuple(groups), ended=tuple(make(Ended, end) for end in list_in(head, "ended")))


def make_group(facts: Any, samples: Sequence[Sample]) -> Group:
    return make(Group, facts, failures=tuple(make(GroupFailure, failure) for failure in list_in(facts, "failures")), samples=tuple(samples))


def make_status(data: Any) -> Status:
    if not isinstance(data, Mapping):
        raise InvalidResponseError("the service sent no status")
    return make(Status, data, policy=make(Policy, data.get("policy")), credits=make(Credits, data.get("credits")))


def make_terminal(data: Any) -> TerminalRecord:
    if not isinstance(data, Mapping):
        raise InvalidResponseError("the service sent no terminal record")
    return make(TerminalRecord, data, group=make_group(data.get("group"), ()))

"""
`environment_factory` for TRL: the trainer's own generation calls tools, and each conversation has a machine of its own.

    trainer = GRPOTrainer(model, args=args, train_dataset=SandboxEnvironment.dataset(tasks), environment_factory=SandboxEnvironment)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..client import Client
from ..driven import DrivenRollout
from ..errors import ManyworldsError

#: What a model sees of a command's output at most; the middle is left out.
OUTPUT_CHARS = 16_000


class SandboxEnvironment:
    """
    A machine for one attempt at the task of a row (`task`: a task's directory where the service runs). The instruction is appended to the last message; the tool is `bash`; the
    reward is what the task's verifier says of the machine afterwards, None where there is no verdict through no fault of the policy.

    The service is the one of MW_URL and MW_API_KEY. Subclass it to add tools: public methods with a docstring are tools.
    """

    def __init__(self) -> None:
        self._client = Client()
        self._rollout: DrivenRollout | None = None
        self._failure: str | None = None

    # A method of the class, because TRL takes its functions for tools.
    @classmethod
    def dataset(cls, tasks: Iterable[str], system: str | None = None) -> Any:
        """A dataset of `datasets` with a row for each task directory."""
        from datasets import Dataset

        head = [] if system is None else [{"role": "system", "content": system}]
        return Dataset.from_list([{"prompt": [*head, {"role": "user", "content": ""}], "task": str(task)} for task in tasks])

    def reset(self, task: str, **_: Any) -> str:
        """Begins anew with a fresh machine, and returns the task's instruction."""
        self._release()
        try:
            self._rollout = DrivenRollout(self._client, task)
        except ManyworldsError as error:
            # One machine that cannot be had must not end the training: this conversation has no reward.
            self._failure = str(error)
            return ""
        return self._rollout.instruction

    def bash(self, command: str) -> str:
        """
        Runs a command in the machine and returns its exit code and output.

        Args:
            command: A command for /bin/sh.
        """
        if self._rollout is None:
            return f"Error: there is no machine: {self._failure}"
        try:
            result = self._rollout.exec(command, timeout_s=self._timeout_s)
        except ManyworldsError as error:
            self._failure = str(error)
            return f"Error: {error}"
        head = f"Exit code: {result.code}" if result.ended == "exited" else f"The command was ended: {result.ended}"
        return f"{head}\n{_clip(result.output)}"

    #: Seconds that one command may take.
    _timeout_s: float = 120.0

    def get_reward(self) -> float | None:
        """Ends the attempt and returns what the verifier says."""
        if self._rollout is None:
            return None
        rollout, self._rollout = self._rollout, None
        try:
            return rollout.end().reward
        except ManyworldsError as error:
            self._failure = str(error)
            return None

    def _release(self) -> None:
        rollout, self._rollout, self._failure = self._rollout, None, None
        if rollout is not None:
            try:
                rollout.cancel()
            except ManyworldsError as error:
                self._failure = str(error)


def _clip(text: str) -> str:
    if len(text) <= OUTPUT_CHARS:
        return text
    half = OUTPUT_CHARS // 2
    return f"{text[:half]}\n... {len(text) - OUTPUT_CHARS} characters left out ...\n{text[-half:]}"

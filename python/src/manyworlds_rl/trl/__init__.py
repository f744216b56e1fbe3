"""
Adaptors for TRL.

- `Rollouts` is the `rollout_func` of `GRPOTrainer`: each prompt is a task, each completion what an agent did in a machine of its own.
- `RolloutWorker` is the `rollout_worker` of `AsyncGRPOTrainer`: groups are trained on as they end, while others run.
- `SandboxEnvironment` is an `environment_factory`: the trainer's own generation drives a leased machine.
"""

from .environment import SandboxEnvironment
from .sync import Rollouts
from .worker import HeldTransfer, RolloutWorker, ServingTransfer

__all__ = ["HeldTransfer", "RolloutWorker", "Rollouts", "SandboxEnvironment", "ServingTransfer"]

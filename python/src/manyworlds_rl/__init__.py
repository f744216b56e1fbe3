"""Rollouts of Manyworlds for trainers. The core needs nothing but the standard library; adaptors for trainers are modules of their own."""

from .aio import AsyncClient, AsyncRun
from .aio_loop import AsyncGroupStream, async_groups
from .client import Client, Run
from .collect import AsyncCollector, Collector, GroupEnd
from .errors import (
    ApiError,
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    InvalidResponseError,
    ManyworldsError,
    NotFoundError,
    OverloadedError,
    RunDeadError,
    RunStalledError,
    UnreachableError,
)
from .loop import GroupStream, Ledger, groups
from .types import (
    Checkpoint,
    Credits,
    DatasetPart,
    Endpoint,
    Group,
    GroupFailure,
    Lease,
    Policy,
    Prices,
    RunConfig,
    Sample,
    SampleError,
    Sampling,
    Status,
    Submission,
    TerminalRecord,
)

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncCollector",
    "AsyncGroupStream",
    "AsyncRun",
    "AuthenticationError",
    "Checkpoint",
    "Client",
    "Collector",
    "ConflictError",
    "Credits",
    "DatasetPart",
    "Endpoint",
    "Group",
    "GroupEnd",
    "GroupFailure",
    "GroupStream",
    "InvalidRequestError",
    "InvalidResponseError",
    "Lease",
    "Ledger",
    "ManyworldsError",
    "NotFoundError",
    "OverloadedError",
    "Policy",
    "Prices",
    "Run",
    "RunConfig",
    "RunDeadError",
    "RunStalledError",
    "Sample",
    "SampleError",
    "Sampling",
    "Status",
    "Submission",
    "TerminalRecord",
    "UnreachableError",
    "async_groups",
    "groups",
]

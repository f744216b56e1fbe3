"""What an adaptor must know beside the trainer's own arguments, as one mapping: in a YAML file of the trainer, or as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import ManyworldsError
from .types import Endpoint, RunConfig

#: For trainers that say what is to be run and wait for it: they bound the staleness by themselves, and the service must not hold back what they wait for.
ROW_DRIVEN: RunConfig = {"admission": "at_lease", "max_staleness": 1_000_000, "fail_after_dead_groups": None}


@dataclass(frozen=True)
class Settings:
    """
    `run`: the run's name. `config`: its configuration (docs/delivery.md); without it the run must exist. `url`, `api_key`: else MW_URL and MW_API_KEY.
    `model`, `endpoints`: where the policy is served, for trainers that do not tell; `kind` is that of endpoints that the trainer tells of.
    """

    run: str
    config: RunConfig = field(default_factory=RunConfig)
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    endpoints: Sequence[str | Endpoint] | None = None
    kind: str | None = None
    #: How long nothing may end before the trainer gives up.
    stall_s: float = 4 * 3600.0

    @staticmethod
    def of(given: Any, trainer: str) -> Settings:
        """Raises ManyworldsError for what is no mapping, lacks `run`, or has a field of no meaning."""
        if not isinstance(given, Mapping):
            raise ManyworldsError(f"{trainer}: no settings of Manyworlds. Give a mapping `manyworlds` with at least `run`; see docs/trainers/{trainer}.md")
        known = {entry.name for entry in fields(Settings)}
        strange = sorted(set(given) - known)
        if strange or not given.get("run"):
            what = f"unknown settings {', '.join(strange)}" if strange else "`run` is missing"
            raise ManyworldsError(f"{trainer}: {what}. Settings are {', '.join(sorted(known))}; see docs/trainers/{trainer}.md")
        return Settings(**given)

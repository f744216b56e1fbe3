"""The examples of docs/trainers: Python is executed, settings are read by what would read them. Argument: the directory of the pages, a directory of tasks."""

from __future__ import annotations

import re
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict

PAGES, TASKS = Path(sys.argv[1]), sys.argv[2]


def block(page: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", (PAGES / f"{page}.md").read_text(), re.M | re.S)
    assert found, f"{page}.md has no {language} block"
    return found[1]


def executed(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block(page, "python"), f"{page}.md", "exec"), names)
    return names


import yaml  # noqa: E402

from manyworlds_rl.settings import Settings  # noqa: E402

assert Settings.of(yaml.safe_load(block("slime", "yaml"))["manyworlds"], "slime").config["dataset"]

from hydra.utils import get_class  # noqa: E402

(entry,) = yaml.safe_load(block("verl", "yaml"))
assert get_class(entry["_target_"]).__name__ == "ManyworldsAgentLoop"
assert Settings.of(entry["manyworlds"], "verl").endpoints

from skyrl.train.generators.base import GeneratorInterface  # noqa: E402

experiment = executed("skyrl")["Experiment"]
generator = experiment.get_generator(None, SimpleNamespace(generator=SimpleNamespace(step_wise_trajectories=True)), None, None)
assert isinstance(generator, GeneratorInterface) and generator.step_wise
assert Settings.of(generator.settings, "skyrl").run == "my-run"

from areal.utils.dynamic_import import import_from_string  # noqa: E402

given = executed("areal")["arguments"]
workflow = import_from_string(given["workflow"])(**given["workflow_kwargs"])
assert Settings.of(workflow.settings, "areal").model == "my-model"

import tomllib  # noqa: E402

from verifiers.v1.utils.loaders import load_taskset, taskset_config_type  # noqa: E402

(source,) = tomllib.loads(block("prime-rl", "toml"))["orchestrator"]["train"]["source"]
taskset = source["env"]["taskset"]
assert [one.data.task for one in load_taskset(taskset_config_type(taskset["id"])(**{**taskset, "inputs": [TASKS]}))]

for path, name in re.findall(r"-path (manyworlds_rl\.\w+)\.(\w+)", (PAGES / "slime.md").read_text() + (PAGES / "miles.md").read_text()):
    assert callable(getattr(__import__(path, fromlist=[name]), name)), f"{path}.{name}"
print("examples: in order")

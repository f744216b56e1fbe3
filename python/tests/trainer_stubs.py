"""
The dataclasses of slime and miles, which no package index has, by the names of their fields: what an adaptor sets beyond them is an error here as it is there.

Fields of slime at 624b824a8 (slime/utils/types.py, slime/rollout/base_types.py) and of miles at 31f1ca961 (miles/utils/types.py, miles/rollout/base_types.py,
miles/rollout/fully_async_data_buffer.py). `against_sources.py` runs the same against the sources themselves.
"""

from __future__ import annotations

import sys
from dataclasses import make_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

COMMON = (
    "group_index index rollout_id prompt tokens multimodal_inputs multimodal_train_inputs response response_length label reward loss_mask weight_versions rollout_log_probs "
    "rollout_routed_experts remove_sample teacher_log_probs status metadata generate_function_path train_metadata non_generation_time spec_info prefix_cache_info"
)
SLIME = COMMON + " multimodal_train_input_id apply_chat_template_kwargs rollout_top_p_token_ids rollout_top_p_token_offsets custom_rm_path session_id"
MILES = COMMON + " rollout_indexer_topk opd_reverse_kl adapter reward_spec routing_key"


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


def install() -> None:
    _module("slime.utils.types", Sample=_dataclass("Sample", SLIME, Status=Status))
    _module("slime.rollout.base_types", RolloutFnTrainOutput=_dataclass("RolloutFnTrainOutput", "samples metrics"))
    _module("miles.utils.types", Sample=_dataclass("Sample", MILES, Status=Status))
    _module("miles.rollout.base_types", RolloutFnTrainOutput=_dataclass("RolloutFnTrainOutput", "samples metrics"), GenerateFnOutput=_dataclass("GenerateFnOutput", "samples"))
    _module("miles.rollout.fully_async_data_buffer", DataBufferInput=_dataclass("DataBufferInput", "prompt_group group"))


def _dataclass(name: str, fields: str, **more: Any) -> type:
    made = make_dataclass(name, [(field, Any, None) for field in fields.split()])
    for key, value in more.items():
        setattr(made, key, value)
    return made


def _module(name: str, **values: Any) -> None:
    parts = name.split(".")
    for index in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:index]), ModuleType(".".join(parts[:index])))
    for key, value in values.items():
        setattr(sys.modules[name], key, value)

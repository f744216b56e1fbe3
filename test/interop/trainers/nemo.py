"""What `POST /run` answers, as NeMo Gym's own classes read it. Arguments: the answer as a JSON file; one of a rollout that failed."""

from __future__ import annotations

import json
import sys

from nemo_gym.base_resources_server import BaseMultiRewardVerifyResponse
from nemo_gym.openai_utils import TOKEN_METADATA_FIELDS, NeMoGymResponseFunctionToolCallForTraining, NeMoGymResponseOutputMessageForTraining

whole, failed = (BaseMultiRewardVerifyResponse.model_validate_json(open(path).read()) for path in sys.argv[1:3])
trained = [item for item in whole.response.output if hasattr(item, "generation_token_ids")]
assert [type(item) for item in trained] == [NeMoGymResponseFunctionToolCallForTraining, NeMoGymResponseOutputMessageForTraining], trained
before: list[int] = []
for item in trained:
    # As their trainer checks it: contiguous, finite, not empty.
    assert item.prompt_token_ids[: len(before)] == before
    assert len(item.generation_token_ids) == len(item.generation_log_probs) > 0
    before = item.prompt_token_ids + item.generation_token_ids
assert whole.reward == 1.0 and not whole.mask_sample and whole.failure_kind is None
assert whole.response.usage is not None and whole.response.usage.output_tokens == sum(len(item.generation_token_ids) for item in trained)
# What came out goes in again: their agents send trajectories back to the model unchanged.
again = json.loads(whole.model_dump_json())
assert sum(1 for item in again["response"]["output"] if TOKEN_METADATA_FIELDS & item.keys()) == 2
assert failed.mask_sample and failed.reward == 0.0 and failed.failure_kind == "verifier_error" and failed.failure_reason
print("nemo: in order")

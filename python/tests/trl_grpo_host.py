"""The example of GRPO with failures put in: some rollouts find no model. Prints what the test looks at."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trl_grpo

from manyworlds_rl.serving import server
from manyworlds_rl.trl import Rollouts


def main(out: Path, steps: int) -> None:
    generate = server._Handler._generate

    def sometimes(handler: Any, body: dict[str, Any]) -> None:
        if body["sampling_params"].get("sampling_seed", 1) % 6 == 0:
            raise ValueError("this model is not there")
        generate(handler, body)

    server._Handler._generate = sometimes  # type: ignore[method-assign]
    rows: list[dict[str, Any]] = []
    call = Rollouts.__call__

    def recorded(self: Rollouts, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        answer = call(self, prompts, trainer)
        rows.append({"rewards": answer["env_reward"], "failed_masks": [sum(mask) for mask, reward in zip(answer["env_mask"], answer["env_reward"]) if reward is None]})
        return answer

    Rollouts.__call__ = recorded  # type: ignore[method-assign]
    trainer = trl_grpo.main(out, steps)
    history = trainer.state.log_history
    print(json.dumps({"rows": rows, "rewards": [e["reward"] for e in history if "reward" in e], "unusable": [e["manyworlds/unusable"] for e in history if "reward" in e]}))


main(Path(sys.argv[1]), int(sys.argv[2]))

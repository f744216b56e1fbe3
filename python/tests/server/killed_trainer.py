"""A trainer that is killed by its test: its checkpoint holds what it trained and its ledger, and is written whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from manyworlds_rl import Client, Ledger, groups


def main(name: str, directory: Path) -> None:
    path = directory / "checkpoint.json"
    state = json.loads(path.read_text()) if path.exists() else {"trained": [], "ledger": {"consumed": []}, "step": 0}
    ledger = Ledger()
    ledger.load_state_dict(state["ledger"])
    run = Client().run(name)
    with groups(run, at_once=3, ledger=ledger) as stream:
        for batch in stream.batches(2):
            state["trained"] += [group.group_id for group in batch]
            state["step"] += 1
            for group in batch:
                ledger.add(group.group_id)
            state["ledger"] = ledger.state_dict()
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(state))
            os.replace(draft, path)
            stream.consumed(*batch, step=state["step"])
            print(state["step"], flush=True)


main(sys.argv[1], Path(sys.argv[2]))

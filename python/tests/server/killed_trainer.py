"""A trainer that is killed by its test: its checkpoint holds what it trained and its ledger, and is written whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from manyworlds_rl import Client, Ledger, groups


def main(name: str, directory: Path, most_steps: int) -> None:
    path = directory / "checkpoint.json"
    state = json.loads(path.read_text()) if path.exists() else {"trained": [], "ledger": {"consumed": []}, "step": 0}
    ledger = Ledger()
    ledger.load_state_dict(state["ledger"])
    run = Client().run(name)
    with groups(run, at_once=3, ledger=ledger) as stream:
        for steps, batch in enumerate(stream.batches(2), start=1):
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
            # However slow its killer is, it does not come to the end in one life.
            if steps == most_steps:
                signal.pause()


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

"""
A world for `tiny_policy`: tasks in Harbor's format that one command solves.

    python tiny_world.py DIRECTORY

Each task asks for a number in a file; the verifier looks at the file, in a machine of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

#: What the tasks ask for, in words, and the answer.
NUMBER = ("three", 3)


def make(directory: str | Path, word: str = NUMBER[0], number: int = NUMBER[1]) -> list[str]:
    """Task directories, one for each wording."""
    tasks = []
    wordings = (
        "Write the number {word} into the file answer.txt.",
        "The file answer.txt is to hold the number {word}, and nothing else.",
        "Put {word}, as a digit, into answer.txt.",
        "answer.txt must contain {word} as one digit.",
    )
    for at, wording in enumerate(wordings):
        task = Path(directory) / f"write-number-{at}"
        (task / "tests").mkdir(parents=True, exist_ok=True)
        (task / "solution").mkdir(exist_ok=True)
        (task / "task.toml").write_text(
            'schema_version = "1.4"\n\n'
            f'[task]\nname = "tiny/write-number-{at}"\n\n[metadata.manyworlds]\nfamily = "tiny"\n\n'
            '[agent]\ntimeout_sec = 60\n\n[verifier]\ntimeout_sec = 60\n\n[environment]\ndocker_image = "host"\nworkdir = "/srv"\n'
        )
        (task / "instruction.md").write_text(wording.format(word=word) + "\n")
        (task / "tests" / "test.sh").write_text(f'if [ "$(cat answer.txt)" = {number} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n')
        (task / "solution" / "solve.sh").write_text(f"printf {number} > answer.txt\n")
        tasks.append(str(task.resolve()))
    return tasks


if __name__ == "__main__":
    print("\n".join(make(sys.argv[1])))

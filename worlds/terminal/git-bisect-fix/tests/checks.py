import json
from fractions import Fraction

from grade import TOOLS, check, copy, expect, read_text, rng, run, same, scratch

GIT = ["/usr/bin/git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat"]
QUIET = {**TOOLS, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_REPLACE_OBJECTS": "1"}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "ms": Fraction(1, 1000), "min": 60, "sec": 1, "hr": 3600, "day": 86400, "week": 604800, "fortnight": 1209600}

with open("/tests/history.py", "rb") as file:
    CULPRIT, TIP = run(["/usr/bin/python3", "-I", "-B", "-", scratch("again") + "/duration"], stdin=file.read(), env=TOOLS, timeout=60).text.split()


def git(repository, *arguments, fail=True):
    return run([*GIT, "-C", repository, *arguments], env=QUIET, timeout=20, fail=fail)


@check("the culprit is named")
def culprit():
    same(read_text("/app/culprit.txt").strip(), CULPRIT, "culprit.txt")


@check("one commit on top of main")
def history():
    repository = copy("/app/duration", "history")
    same(git(repository, "rev-parse", "main^@").text.split(), [TIP], "parent of main")
    same(git(repository, "log", "-1", "--format=%B", "main").text.strip(), "Round to the nearest second again", "message")
    same(git(repository, "diff-tree", "-r", "--no-commit-id", "--name-only", "main").text.split(), ["duration.py"], "changed files")
    same(git(repository, "symbolic-ref", "HEAD").text.strip(), "refs/heads/main", "HEAD")
    same(git(repository, "status", "--porcelain", "--untracked-files=all").text, "", "git status")


@check("the committed program rounds and keeps its features")
def program():
    source = git(copy("/app/duration", "program"), "show", "main:duration.py").out
    texts, seconds = [], []
    for _ in range(120):
        total, text = Fraction(0), ""
        for _ in range(rng.randint(1, 4)):
            number = rng.choice([str(rng.randrange(10**6)), f"{rng.randrange(1000)}.{rng.randrange(1000):03d}", f"{rng.randrange(100)}.5", "0.0005", "90071992547409930.5"])
            unit = rng.choice(list(UNITS))
            total += Fraction(number) * UNITS[unit]
            text += number + rng.choice(["", " "]) + (unit.upper() if rng.random() < 0.3 else unit) + rng.choice(["", " "])
        sign = rng.choice([1, 1, -1])
        texts.append(("-" if sign < 0 else "") + text)
        seconds.append(sign * int(total + Fraction(1, 2)))
    # Through json at first, since a leading dash is the program's own affair there as well as on plain lines.
    command = ["/usr/bin/python3", "-I", "-B", "-c", source.decode("utf-8", "replace")]
    same(json.loads(run([*command, "--json", *texts]).text), seconds, "--json")
    same(run([*command, *texts]).text.split(), [str(number) for number in seconds], "plain output")
    same(run([*command, "1.5s", "2.4999s", "0.5s", "-1.5s"]).text.split(), ["2", "2", "1", "-2"], "halves")
    expect(run([*command, "5 parsecs"], fail=False).code != 0, "an unknown unit is accepted")

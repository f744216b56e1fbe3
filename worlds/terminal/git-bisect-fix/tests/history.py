"""history.py DIRECTORY: sixty commits of a duration parser. Prints the culprit and the tip."""
import os
import subprocess
import sys

top = sys.argv[1]
os.makedirs(top)
environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nonexistent"}
clock = 1_705_000_000


def git(*arguments):
    return subprocess.run(["/usr/bin/git", *arguments], cwd=top, env=environment, check=True, stdout=subprocess.PIPE).stdout.decode().strip()


units = [("s", 1), ("m", 60), ("h", 3600)]
more = [("d", 86400), ("w", 604800), ("ms", None), ("min", 60), ("sec", 1), ("hr", 3600), ("day", 86400), ("week", 604800), ("fortnight", 1209600)]
style = "slow"
extras = []


def source(broken=False):
    table = ", ".join(f'"{name}": {value if value is not None else "Fraction(1, 1000)"}' for name, value in units)
    if style == "slow":
        number = "Fraction(number)"
    elif style == "fast":
        number = "(int(number) if '.' not in number else Fraction(number.rstrip('0')))"
    else:
        number = "to_number(number)"
    helper = "" if style != "helper" else '''

def to_number(text):
    """Whole numbers need no Fraction."""
    return int(text) if "." not in text else Fraction(text.rstrip("0"))
'''
    if style in ("fast", "helper"):
        number_pattern = "[0-9]+(?:[.][0-9]+)?"
    else:
        number_pattern = "[0-9]+(?:[.][0-9]+)?"
    rounding = "int(total)" if style != "slow" else "int(total + Fraction(1, 2))"
    negative = "" if "negative" not in extras else '''
    sign = 1
    if text.startswith("-"):
        sign, text = -1, text[1:]
'''
    result = f"return {'sign * ' if 'negative' in extras else ''}{rounding}"
    strip = "text = text.strip().lower()" if "case" in extras else "text = text.strip()"
    json_part = "" if "json" not in extras else '''
    if "--json" in sys.argv:
        import json
        print(json.dumps([parse(text) for text in sys.argv[1:] if text != "--json"]))
        return
'''
    text = f'''#!/usr/bin/python3
"""Prints durations in whole seconds: duration.py TEXT..."""
import re
import sys
from fractions import Fraction

UNITS = {{{table}}}
PART = re.compile(r"({number_pattern})\\s*([a-z]+)\\s*")
{helper}

def parse(text):
    """Seconds of a text like "1h 30m", rounded to the nearest second, halves up."""
    {strip}
{negative}    total, at = 0, 0
    while at < len(text):
        match = PART.match(text, at)
        if match is None or match[2] not in UNITS:
            raise SystemExit(f"duration: cannot read {{text!r}}")
        number = match[1]
        total += {number} * UNITS[match[2]]
        at = match.end()
    {result}


def main():{json_part}
    for text in sys.argv[1:]:
        print(parse(text))


if __name__ == "__main__":
    main()
'''
    return text + ("\nthis is not Python\n" if broken else "")


def commit(message, broken=False, note=None):
    global clock
    clock += 7200
    with open(os.path.join(top, "duration.py"), "w") as file:
        file.write(source(broken))
    os.chmod(os.path.join(top, "duration.py"), 0o755)
    if note is not None:
        with open(os.path.join(top, "NOTES.md"), "a") as file:
            file.write(f"- {note}\n")
    environment["GIT_AUTHOR_DATE"] = environment["GIT_COMMITTER_DATE"] = f"{clock} +0000"
    git("add", "-A")
    git("commit", "-q", "--allow-empty", "-m", message)
    return git("rev-parse", "HEAD")


git("init", "-q", "-b", "main", ".")
git("config", "user.name", "Kim")
git("config", "user.email", "kim@example.com")
commit("Parse durations")
git("tag", "v1.0")
culprit = None
for number in range(2, 61):
    if number in (6, 11, 20, 26, 33, 45, 47, 52, 57) and more:
        unit = more.pop(0)
        units.append(unit)
        commit(f"Know the unit {unit[0]}")
    elif number == 9:
        extras.append("case")
        commit("Ignore case")
    elif number == 37:
        style = "fast"
        culprit = commit("Read whole numbers without fractions", broken=True)
    elif number in (36, 38, 39):
        commit(f"Work in progress {number}", broken=True, note=f"idea {number}")
    elif number == 40:
        commit("Make it run again")
    elif number == 43:
        style = "helper"
        commit("Name the conversion")
    elif number == 49:
        extras.append("negative")
        commit("Allow negative durations")
    elif number == 55:
        extras.append("json")
        commit("Print JSON on request")
    else:
        commit(f"Note {number}", note=f"note {number}")
print(culprit, git("rev-parse", "HEAD"))

import json
import re
from decimal import Decimal

from grade import TOOLS, check, expect, own, read, rng, run, same, write

DRIVER = r"""
use strict; use warnings; use JSON::PP; use lib '/app/lib'; use TextTable qw(table);
local $/; my $jobs = JSON::PP->new->utf8->decode(<STDIN>);
print JSON::PP->new->utf8->encode([map { my ($rows, $options) = @$_; my $r = eval { table($rows, %$options) }; defined $r ? [$r] : ["died", "$@"] } @$jobs]);
"""
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)


def table(rows, options):
    columns = max((len(row) for row in rows), default=0)
    lines = [[re.sub(r"[\n\t]", " ", "" if cell is None else str(cell)) for cell in row] + [""] * (columns - len(row)) for row in rows]
    body = lines[1:] if options.get("header") else lines
    summed = options.get("total", [])
    right = []
    for column in range(columns):
        filled = [line[column] for line in body if line[column]]
        right.append(column in summed or bool(filled) and all(NUMBER.fullmatch(cell) for cell in filled))
    if "total" in options and body:
        last, label = [], "Total"
        for column in range(columns):
            if column in summed:
                numbers = [line[column] for line in body if NUMBER.fullmatch(line[column])]
                places = max((len(n.partition(".")[2]) for n in numbers), default=0)
                units = sum(int(Decimal(n).scaleb(places)) for n in numbers)
                text = str(abs(units)).rjust(places + 1, "0")
                last.append(("-" if units < 0 else "") + (text[:-places] + "." + text[-places:] if places else text))
            else:
                last.append(label)
                label = ""
        lines.append(last)
    if "max" in options:
        lines = [[cell if len(cell) <= options["max"] else cell[: options["max"] - 1] + "…" for cell in line] for line in lines]
    width = [max(len(line[column]) for line in lines) for column in range(columns)] if lines else []
    out = ["  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, width, right)).rstrip(" ") + "\n" for line in lines]
    if options.get("header") and lines:
        out.insert(1, "  ".join("-" * w for w in width).rstrip(" ") + "\n")
    return "".join(out)


def drive(jobs):
    own("/app")
    return json.loads(run(["/usr/bin/perl", write("driver.pl", DRIVER)], stdin=json.dumps(jobs), env=TOOLS, timeout=20).out)


def a_table():
    kinds = [lambda: str(rng.randint(-1000, 1000)), lambda: f"{rng.randint(-99, 99)}.{rng.randint(0, 999):03d}", lambda: rng.choice(["0.1", "0.2", "-0.30", "123456789012345", "999999999999.99"]),
             lambda: rng.choice(["word", "größe", "日本", "two words", "a\tb", "line\nbreak", "1e5", "+1", "", "5.", ".5", "-"]), lambda: rng.choice(["", None, "7"])]
    columns = [rng.choice(kinds) for _ in range(rng.randint(1, 5))]
    rows = [[kind() for kind in columns[: rng.randint(1, len(columns)) if rng.random() < 0.2 else len(columns)]] for _ in range(rng.choice([0, 1, 2, 6]))]
    options = {}
    if rows and rng.random() < 0.5:
        rows[0] = [rng.choice(["name", "n", "1", "größe", "a long header"]) for _ in rows[0]]
        options["header"] = 1
    if rng.random() < 0.3:
        options["max"] = rng.choice([1, 2, 4, 8])
    width = max((len(row) for row in rows), default=0)
    if width and rng.random() < 0.4:
        options["total"] = rng.sample(range(width), rng.randint(1, width))
    return rows, options


@check("hidden tables are laid out by the rules")
def hidden():
    jobs = [a_table() for _ in range(1500)] + [([["a", "b"]], {"header": 1, "total": [1]}), ([["0.1"]] * 10, {"total": [0]}), ([["-0.05"], ["0.04"]], {"total": [0]})]
    for job, answer in zip(jobs, drive(jobs)):
        same(answer, [table(*job)], f"table of {json.dumps(job, ensure_ascii=False)[:300]}")


@check("wrong options are refused by name")
def wrong():
    jobs = [([["1"]], {name: value}) for name, value in [("colour", 1), ("max", 0), ("max", -1), ("max", "x"), ("max", 1.5), ("total", 1), ("total", [1]), ("total", [-1]), ("total", ["x"])]]
    for job, answer in zip(jobs, drive(jobs)):
        expect(answer[0] == "died" and next(iter(job[1])) in answer[1], f"table with {job[1]}: {answer}")


@check("its tests pass, and fail with a broken module")
def tests():
    own("/app")
    run(["/usr/bin/prove", "-l", "t"], cwd="/app", env=TOOLS, timeout=30)
    top = write("broken/lib/TextTable.pm", "package TextTable; use Exporter 'import'; our @EXPORT_OK = qw(table); sub table { '' } 1;\n").rsplit("/", 2)[0]
    write("broken/t/table.t", read("/app/t/table.t"))
    expect(run(["/usr/bin/prove", "-l", "t"], cwd=top, env=TOOLS, timeout=30, fail=False).code not in (0, None), "the tests pass with a module that returns nothing")

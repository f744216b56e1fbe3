import csv
import io
import re
from datetime import date

from grade import check, partial, read_json, read_text, same

partial()


def rows(name):
    with open(f"/tests/{name}", newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def total(amounts):
    cents = sum(int(amount.replace(".", "")) for amount in amounts)
    return f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def reconcile():
    lines, entries = sorted(rows("statement.csv")), sorted(rows("ledger.csv"))
    matches, free = {}, {entry[0]: entry for entry in entries}
    for line, _, amount, text in lines:
        for entry in entries:
            named = re.search(rf"inv[- ]?{entry[2][4:]}(?!\d)", text, re.IGNORECASE)
            if named and entry[0] in free and entry[3] == amount:
                matches[line] = (free.pop(entry[0])[0], "1")
                break
    for line, booked, amount, _ in sorted(lines, key=lambda item: (item[1], item[0])):
        near = [(abs((date.fromisoformat(entry[1]) - date.fromisoformat(booked)).days), entry[1], entry[0]) for entry in free.values() if entry[3] == amount]
        if line not in matches and near and min(near)[0] <= 5:
            matches[line] = (free.pop(min(near)[2])[0], "2")
    bank = [[line[0], line[2]] for line in lines if line[0] not in matches]
    ledger = [[entry[0], entry[3]] for entry in sorted(free.values())]
    return [[line, *matches[line]] for line in sorted(matches)], bank, ledger


MATCHED, BANK, LEDGER = reconcile()


def table(name):
    return list(csv.reader(io.StringIO(read_text(f"/app/out/{name}"))))


@check("matched.csv", part="matched", weight=3)
def matched():
    same(table("matched.csv"), [["line", "entry", "rule"], *MATCHED], "matched.csv")


@check("bank_only.csv", part="bank_only")
def bank_only():
    same(table("bank_only.csv"), [["line", "amount"], *BANK], "bank_only.csv")


@check("ledger_only.csv", part="ledger_only")
def ledger_only():
    same(table("ledger_only.csv"), [["entry", "amount"], *LEDGER], "ledger_only.csv")


@check("summary.json", part="summary")
def summary():
    same(read_json("/app/out/summary.json"), {"rule1": sum(m[2] == "1" for m in MATCHED), "rule2": sum(m[2] == "2" for m in MATCHED),
                                              "bank_only_total": total(a for _, a in BANK), "ledger_only_total": total(a for _, a in LEDGER)}, "summary.json")

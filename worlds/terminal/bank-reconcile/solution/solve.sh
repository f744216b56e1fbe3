#!/bin/bash
set -euo pipefail
mkdir -p /app/out
/usr/bin/python3 - <<'PY'
import csv
import json
import re
from datetime import date


def rows(name):
    with open(f"/app/{name}", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cents(text):
    return int(text.replace(".", ""))


def show(value):
    return f"{'-' if value < 0 else ''}{abs(value) // 100}.{abs(value) % 100:02d}"


lines, entries = rows("statement.csv"), rows("ledger.csv")
by_reference = {entry["reference"]: entry for entry in entries}
matched, taken = {}, set()
for line in sorted(lines, key=lambda line: line["line"]):
    for digits in re.findall(r"inv[- ]?(\d{5})(?!\d)", line["text"], re.IGNORECASE):
        entry = by_reference.get(f"INV-{digits}")
        if entry and entry["entry"] not in taken and entry["amount"] == line["amount"]:
            matched[line["line"]] = (entry["entry"], 1)
            taken.add(entry["entry"])
            break
for line in sorted(lines, key=lambda line: (line["booked"], line["line"])):
    if line["line"] in matched:
        continue
    near = []
    for entry in entries:
        days = abs((date.fromisoformat(entry["date"]) - date.fromisoformat(line["booked"])).days)
        if entry["entry"] not in taken and entry["amount"] == line["amount"] and days <= 5:
            near.append((days, entry["date"], entry["entry"]))
    if near:
        matched[line["line"]] = (min(near)[2], 2)
        taken.add(min(near)[2])

bank_only = sorted((line["line"], line["amount"]) for line in lines if line["line"] not in matched)
ledger_only = sorted((entry["entry"], entry["amount"]) for entry in entries if entry["entry"] not in taken)


def save(name, header, table):
    with open(f"/app/out/{name}", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *table])


save("matched.csv", ["line", "entry", "rule"], [(line, *matched[line]) for line in sorted(matched)])
save("bank_only.csv", ["line", "amount"], bank_only)
save("ledger_only.csv", ["entry", "amount"], ledger_only)
with open("/app/out/summary.json", "w", encoding="utf-8") as file:
    json.dump({
        "rule1": sum(rule == 1 for _, rule in matched.values()),
        "rule2": sum(rule == 2 for _, rule in matched.values()),
        "bank_only_total": show(sum(cents(amount) for _, amount in bank_only)),
        "ledger_only_total": show(sum(cents(amount) for _, amount in ledger_only)),
    }, file)
PY

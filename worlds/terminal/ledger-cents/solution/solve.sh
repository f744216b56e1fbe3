#!/bin/bash
set -euo pipefail
cat > /app/ledger.py <<'PY'
#!/usr/bin/python3
"""Prints the balance of every account in a journal: ledger.py FILE"""
import csv
import re
import sys

AMOUNT = re.compile(r"(-?)\$?(\d+|\d{1,3}(?:,\d{3})+)(?:\.(\d{1,2}))?", re.ASCII)


def parse_cents(text):
    text = text.strip()
    sign = 1
    if text.startswith("(") and text.endswith(")"):
        sign, text = -1, text[1:-1].strip()
    match = AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    minus, whole, fraction = match.groups()
    cents = int(whole.replace(",", "")) * 100 + int((fraction or "").ljust(2, "0"))
    return sign * (-cents if minus else cents)


def show(cents):
    return "%s%d.%02d" % ("-" if cents < 0 else "", abs(cents) // 100, abs(cents) % 100)


def main():
    totals = {}
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        for row in rows:
            if not row:
                continue
            account = row[1].strip()
            try:
                cents = parse_cents(row[2])
            except ValueError:
                print(f"{account}: {row[2]!r} is not an amount", file=sys.stderr)
                return 1
            totals[account] = totals.get(account, 0) + cents
    for account in sorted(totals):
        sys.stdout.write(f"{account}\t{show(totals[account])}\n")
    sys.stdout.write(f"TOTAL\t{show(sum(totals.values()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
PY
chmod 755 /app/ledger.py

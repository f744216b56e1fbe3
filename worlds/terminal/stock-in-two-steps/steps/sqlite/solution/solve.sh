#!/bin/bash
set -euo pipefail
cat > /app/stock <<'PY'
#!/usr/bin/python3
import os
import re
import sqlite3
import sys
from datetime import datetime, timezone

PATH = os.environ.get("STOCK_FILE") or "/app/stock.db"
FORM = "%Y-%m-%dT%H:%M:%SZ"


def fail(code, message):
    print(f"stock: {message}", file=sys.stderr)
    sys.exit(code)


def valid(text):
    try:
        return datetime.strptime(text, FORM).strftime(FORM) == text
    except ValueError:
        return False


def query(sql, *values):
    if not os.path.exists(PATH):
        return []
    with sqlite3.connect(PATH, timeout=60) as db:
        return db.execute(sql, values).fetchall()


def change(command, item, count, at):
    db = sqlite3.connect(PATH, timeout=60, isolation_level=None)
    # The lock is taken before the stock is looked at, so that nobody else changes it in between.
    db.execute("BEGIN IMMEDIATE")
    db.execute("CREATE TABLE IF NOT EXISTS movements (id INTEGER PRIMARY KEY, item TEXT NOT NULL, change INTEGER NOT NULL, at TEXT NOT NULL)")
    have = db.execute("SELECT coalesce(sum(change), 0) FROM movements WHERE item = ?", (item,)).fetchone()[0]
    if command == "remove" and have < count:
        db.execute("ROLLBACK")
        fail(1, f"there are only {have} of {item}")
    db.execute("INSERT INTO movements (item, change, at) VALUES (?, ?, ?)", (item, count if command == "add" else -count, at))
    db.execute("COMMIT")


def main(arguments):
    sys.stdout.reconfigure(encoding="utf-8")
    if arguments == ["list"]:
        rows = query("SELECT item, sum(change) FROM movements GROUP BY item HAVING sum(change) > 0")
        for item, count in sorted(rows, key=lambda row: row[0].encode()):
            print(f"{item}\t{count}")
        return
    if len(arguments) == 2 and arguments[0] == "history":
        total = 0
        for at, step in query("SELECT at, change FROM movements WHERE item = ? ORDER BY at, id", arguments[1]):
            total += step
            print(f"{at}\t{step:+d}\t{total}")
        return
    at = datetime.now(timezone.utc).strftime(FORM)
    if len(arguments) == 5 and arguments[3] == "--at" and valid(arguments[4]):
        at = arguments[4]
        arguments = arguments[:3]
    if len(arguments) != 3 or arguments[0] not in ("add", "remove"):
        fail(2, "usage: stock add|remove ITEM COUNT [--at TIME], stock list, stock history ITEM")
    command, item, text = arguments
    if not item or re.search(r"[\t\r\n]", item) or not re.fullmatch(r"[0-9]{1,7}", text) or not 1 <= int(text) <= 1000000:
        fail(2, "no such item or count")
    change(command, item, int(text), at)


main(sys.argv[1:])
PY
chmod 755 /app/stock
/usr/bin/python3 - <<'PY'
import csv
import os
import subprocess


def rows(name):
    with open(f"/app/{name}", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def book(item, change, at):
    subprocess.run(["/app/stock", "add" if change > 0 else "remove", item, str(abs(change)), "--at", at], check=True)


for row in rows("stock.csv"):
    book(row["item"], int(row["count"]), "2024-01-01T00:00:00Z")
os.unlink("/app/stock.csv")
for row in rows("deliveries-2.csv"):
    book(row["item"], int(row["change"]), row["at"])
PY

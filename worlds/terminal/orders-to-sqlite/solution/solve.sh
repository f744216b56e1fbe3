#!/bin/bash
set -euo pipefail
cat > /app/load <<'PY'
#!/usr/bin/python3
import csv
import json
import os
import sqlite3
import sys

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL);
CREATE TABLE orders (number TEXT PRIMARY KEY, shop TEXT NOT NULL, customer_id INTEGER REFERENCES customers (id), placed_on TEXT NOT NULL);
CREATE TABLE order_lines (order_number TEXT NOT NULL REFERENCES orders (number), position INTEGER NOT NULL, item TEXT NOT NULL, quantity INTEGER NOT NULL,
                          price_cents INTEGER NOT NULL, PRIMARY KEY (order_number, position));
CREATE VIEW revenue AS
SELECT substr(placed_on, 1, 7) AS month, shop, coalesce(sum(quantity * price_cents), 0) AS cents
FROM orders LEFT JOIN order_lines ON order_number = number GROUP BY 1, 2 ORDER BY 1, 2;
"""


def table(path, encoding):
    with open(path, newline="", encoding=encoding) as file:
        return list(csv.DictReader(file, delimiter=";"))


def cents(text):
    euros, _, fraction = text.strip().replace(".", "").partition(",")
    return int(euros) * 100 + int(fraction.ljust(2, "0"))


exports, database = sys.argv[1:]
customers = {int(row["id"]): (row["name"], row["email"].strip().lower()) for row in table(f"{exports}/customers.csv", "utf-8-sig")}
orders = {}
for row in table(f"{exports}/north.csv", "latin-1"):
    day, month, year = row["Datum"].split(".")
    order = orders.setdefault(row["Auftrag"], ("north", row["Kunde"], f"{year}-{month}-{day}", []))
    order[3].append((row["Artikel"], int(row["Menge"]), cents(row["Preis"])))
south = {}
with open(f"{exports}/south.jsonl", encoding="utf-8") as file:
    for line in file:
        if line.strip():
            order = json.loads(line)
            south.pop(order["order"], None)
            south[order["order"]] = order
for number, order in south.items():
    if not order["cancelled"]:
        orders[number] = ("south", order["customer"], order["placed"][:10], [(item["item"], item["qty"], item["price_cents"]) for item in order["lines"]])

for leftover in ("", "-wal", "-shm", "-journal"):
    if os.path.exists(database + leftover):
        os.unlink(database + leftover)
with sqlite3.connect(database) as db:
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO customers VALUES (?, ?, ?)", [(id, *rest) for id, rest in customers.items()])
    for number, (shop, customer, placed, lines) in orders.items():
        known = int(customer) if customer is not None and str(customer).strip().isdigit() and int(customer) in customers else None
        db.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", (number, shop, known, placed))
        db.executemany("INSERT INTO order_lines VALUES (?, ?, ?, ?, ?)", [(number, at, *line) for at, line in enumerate(lines, 1)])
PY
chmod 755 /app/load
/app/load /app/exports /app/shop.db

# Reads CSV properly and rounds at the end, but adds floats.
cat > /app/ledger.py <<'PY'
#!/usr/bin/python3
import csv, sys
totals = {}
for row in list(csv.reader(open(sys.argv[1], newline="", encoding="utf-8")))[1:]:
    if not row: continue
    text = row[2].strip(); negative = text.startswith("("); name = row[1].strip()
    try: value = float(text.strip("()").replace("$", "").replace(",", ""))
    except ValueError: print(name, row[2], file=sys.stderr); sys.exit(1)
    totals[name] = totals.get(name, 0) + (-value if negative else value)
for name in sorted(totals): print(f"{name}\t{totals[name]:.2f}")
print(f"TOTAL\t{sum(totals.values()):.2f}")
PY

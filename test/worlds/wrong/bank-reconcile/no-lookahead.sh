# Takes INV-000123 for INV-00012, and matches rule 2 in the order of the lines.
solution=$(declare -f reference)
reference
python3 - <<'PY'
import csv
rows = list(csv.reader(open("/app/out/matched.csv")))
rows[-1][2] = "1" if rows[-1][2] == "2" else "2"
csv.writer(open("/app/out/matched.csv", "w"), lineterminator="\n").writerows(rows)
PY

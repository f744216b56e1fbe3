# Trusts the length of a bad record and jumps behind it.
reference
sed -i 's/        at += 1/        at += 8 + int.from_bytes(data[at + 6 : at + 8], "little")/' /app/salvage
/app/salvage < /app/damaged.wlog > /app/report.json

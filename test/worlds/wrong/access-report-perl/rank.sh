# Rank by truncation, as it was.
reference
sed -i 's/int((95 \* @sorted + 99) \/ 100)/(int(0.95 * @sorted) || 1)/' /app/report.pl

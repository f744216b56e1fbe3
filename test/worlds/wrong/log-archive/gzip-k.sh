# Treats an age of exactly 30 days as young.
reference
sed -i 's/>= 30 \* DAY/> 30 * DAY/' /app/archive-logs

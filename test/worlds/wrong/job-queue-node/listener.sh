# Leaves its listener on the signal.
reference
sed -i '/removeEventListener/d' /app/queue.js

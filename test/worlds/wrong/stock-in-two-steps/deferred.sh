# Looks at the stock before it takes the lock.
reference
[ "$STEP" = csv ] || sed -i 's/    db.execute("BEGIN IMMEDIATE")$/    db.execute("BEGIN")/; s/^    have = /    import time; db.execute("COMMIT"); db.execute("BEGIN"); have = /; s/^    if command == "remove" and have/    time.sleep(0.05); db.execute("COMMIT"); db.execute("BEGIN")\n    if command == "remove" and have/' /app/stock

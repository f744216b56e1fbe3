# Reads the north's export as UTF-8 with replacement.
reference
sed -i 's/"latin-1")/"cp1252")/; s/cancelled"\]/cancelled_"]/' /app/load; sed -i 's/not order\["cancelled_"\]/True/' /app/load
/app/load /app/exports /app/shop.db

# A duplicate station record still switches the station.
reference
sed -i 's/^    if number in seen:/    if number in seen and kind != 3:/' /app/salvage
/app/salvage < /app/damaged.wlog > /app/report.json

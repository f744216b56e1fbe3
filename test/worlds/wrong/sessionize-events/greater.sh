# Exactly thirty minutes does not begin a new visit.
reference
sed -i 's/>= 1800/> 1800/' /app/sessionize

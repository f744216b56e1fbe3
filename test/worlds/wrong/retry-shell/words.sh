# Splits its arguments.
reference
sed -i 's/RETRY_ATTEMPT=$attempt "$@"/RETRY_ATTEMPT=$attempt $*/' /app/retry

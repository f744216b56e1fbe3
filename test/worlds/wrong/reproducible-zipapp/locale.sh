# Prints in the locale's encoding.
reference
sed -i '/reconfigure/d' /app/build.sh && /app/build.sh /app/src /app/dist/greet

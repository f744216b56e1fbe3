# Serves one connection after the other.
reference
sed -i 's/ThreadingHTTPServer/HTTPServer/g' /app/kv.py

# Keeps the files' times.
reference
sed -i 's/(1980, 1, 1, 0, 0, 0)/__import__("time").localtime(os.stat(os.path.join(source, name)).st_mtime)[:6] if name != "__main__.py" else (1980, 1, 1, 0, 0, 0)/' /app/build.sh && /app/build.sh /app/src /app/dist/greet

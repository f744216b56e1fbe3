# Everything repaired but the sign of the header's low byte.
reference
cd /app && sed -i 's/length = (size_t)header\[0\] | (size_t)header\[1\] << 8;/length = (size_t)((int8_t)header[0] + (header[1] << 8));/' ring.c && make

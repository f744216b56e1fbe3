# Everything repaired but the scratch buffer that a long dropped line overruns.
reference
cd /app && sed -i 's/scratch\[65535\]/scratch[4096]/' ring.c && make

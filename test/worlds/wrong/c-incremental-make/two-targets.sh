# Two targets with one recipe, which runs twice in parallel.
reference
cd /app && make clean && sed -i 's/codes\.c &:/codes.c:/' Makefile && make

#!/bin/sh
# gen-codes.sh CODES DIRECTORY: writes codes.h and codes.c into the directory, both from one run. Slow on purpose, as the real one is.
set -e
sleep 0.1
awk -F '\t' '!/^#/ && NF == 2 { n++; rows = rows "    {\"" $1 "\", \"" $2 "\"},\n" }
  END {
    printf "#ifndef CODES_H\n#define CODES_H\n#define CODE_COUNT %d\nstruct code { const char *name, *text; };\nextern const struct code codes[];\n#endif\n", n > (dir "/codes.h")
    printf "#include \"codes.h\"\nconst struct code codes[] = {\n%s    {0, 0},\n};\n", rows > (dir "/codes.c")
  }' dir="$2" "$1"
echo run >> "${GEN_LOG:-/dev/null}"

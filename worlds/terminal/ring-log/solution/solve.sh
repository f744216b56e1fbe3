#!/bin/bash
set -euo pipefail
cd /app
/usr/bin/python3 - <<'PY'
def patch(path, *changes):
    text = open(path).read()
    for old, new in changes:
        assert text.count(old) == 1, (path, old)
        text = text.replace(old, new)
    open(path, "w").write(text)

patch("ring.c",
    ("        memcpy(ring->data, from, count - first);\n", "        memcpy(ring->data, from + first, count - first);\n"),
    ("    memcpy(to, ring->data + ring->head, count);\n",
     "    size_t first = ring->size - ring->head;\n\n"
     "    memcpy(to, ring->data + ring->head, first < count ? first : count);\n"
     "    if (first < count)\n        memcpy(to + first, ring->data, count - first);\n"),
    ("    uint8_t scratch[4096];\n", "    uint8_t scratch[65535];\n"),
    ("    if (length > ring->size)\n", "    if (length > 65535 || length + 2 > ring->size)\n"),
    ("    while (ring->used + length > ring->size) {", "    while (ring->used + length + 2 > ring->size) {"),
    ("    int8_t low;\n", ""),
    ("    low = (int8_t)header[0];\n    length = (size_t)(low + (header[1] << 8));\n", "    length = (size_t)header[0] | (size_t)header[1] << 8;\n"))
patch("ringlog.c",
    ("#include \"ring.h\"\n", "#define _POSIX_C_SOURCE 200809L\n#include \"ring.h\"\n"),
    ("#include <stdio.h>\n", "#include <errno.h>\n#include <stdio.h>\n"),
    ("#include <string.h>\n", "#include <string.h>\n#include <sys/types.h>\n"),
    ("    if (argc != 2 || ring_open(&ring, (size_t)atol(argv[1])) < 0) {",
     "    char *end = NULL;\n    unsigned long size = 0;\n\n    errno = 0;\n"
     "    if (argc == 2 && argv[1][0] >= '0' && argv[1][0] <= '9')\n        size = strtoul(argv[1], &end, 10);\n"
     "    if (size == 0 || *end != '\\0' || errno != 0 || ring_open(&ring, size) < 0) {"),
    ("        result = ring_append(&ring, (uint8_t *)line, strlen(line) - 1);\n",
     "        if (line[length - 1] == '\\n')\n            length--;\n        result = ring_append(&ring, (uint8_t *)line, (size_t)length);\n"),
    ("    while ((length = ring_shift(&ring, out)) > 0) {", "    while ((length = ring_shift(&ring, out)) >= 0) {"))
PY
make

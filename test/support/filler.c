/* Writes to /big until it is killed: leaves less room in a full machine than any program that could be killed for it. Without a C library. */
#include "../../native/raw.h"

static const char page[4096];

void _start(void) {
    long fd = RAW5(SYS_openat, -100, (long)"/big", 02101 /* O_WRONLY | O_CREAT | O_APPEND */, 0644, 0);
    for (;;) RAW5(SYS_write, fd, (long)page, sizeof page, 0, 0);
}

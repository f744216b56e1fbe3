/*
 * A ring of lines in one block of memory. A line occupies its length plus a two-byte header. When a new line does not fit, the oldest lines give way,
 * as few as possible. A line that could never fit is refused.
 */
#ifndef RING_H
#define RING_H

#include <stddef.h>
#include <stdint.h>

struct ring {
    uint8_t *data;
    size_t size; /* bytes in data */
    size_t head; /* offset of the oldest line's header */
    size_t used; /* bytes occupied by lines and their headers */
    size_t lines;
};

/* Returns 0, or -1 when there is no memory. */
int ring_open(struct ring *ring, size_t size);
void ring_close(struct ring *ring);

/* Appends a line of `length` bytes (0 to 65535). Returns the number of old lines that gave way, or -1 when the line can never fit. */
long ring_append(struct ring *ring, const uint8_t *line, size_t length);

/* Removes the oldest line into `line`, which has room for 65535 bytes. Returns its length, or -1 when the ring is empty. */
long ring_shift(struct ring *ring, uint8_t *line);

#endif

#include "ring.h"

#include <stdlib.h>
#include <string.h>

int ring_open(struct ring *ring, size_t size)
{
    ring->data = malloc(size);
    ring->size = size;
    ring->head = 0;
    ring->used = 0;
    ring->lines = 0;
    return ring->data ? 0 : -1;
}

void ring_close(struct ring *ring)
{
    free(ring->data);
}

static void put(struct ring *ring, const uint8_t *from, size_t count)
{
    size_t tail = (ring->head + ring->used) % ring->size;
    size_t first = ring->size - tail;

    memcpy(ring->data + tail, from, first < count ? first : count);
    if (first < count)
        memcpy(ring->data, from, count - first);
    ring->used += count;
}

static void get(struct ring *ring, uint8_t *to, size_t count)
{
    memcpy(to, ring->data + ring->head, count);
    ring->head = (ring->head + count) % ring->size;
    ring->used -= count;
}

long ring_append(struct ring *ring, const uint8_t *line, size_t length)
{
    uint8_t header[2] = {(uint8_t)(length & 0xff), (uint8_t)(length >> 8)};
    uint8_t scratch[4096];
    long dropped = 0;

    if (length > ring->size)
        return -1;
    while (ring->used + length > ring->size) {
        ring_shift(ring, scratch);
        dropped++;
    }
    put(ring, header, 2);
    put(ring, line, length);
    ring->lines++;
    return dropped;
}

long ring_shift(struct ring *ring, uint8_t *line)
{
    uint8_t header[2];
    int8_t low;
    size_t length;

    if (ring->lines == 0)
        return -1;
    get(ring, header, 2);
    low = (int8_t)header[0];
    length = (size_t)(low + (header[1] << 8));
    get(ring, line, length);
    ring->lines--;
    return (long)length;
}

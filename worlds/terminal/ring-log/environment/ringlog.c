/*
 * ringlog SIZE: keeps the last lines of standard input in SIZE bytes and prints them, oldest first, when the input ends. A summary goes to standard error:
 * "kept N dropped N refused N".
 */
#include "ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct ring ring;
    uint8_t out[65536];
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    long dropped = 0, refused = 0, kept = 0, result;

    if (argc != 2 || ring_open(&ring, (size_t)atol(argv[1])) < 0) {
        fprintf(stderr, "usage: ringlog SIZE\n");
        return 2;
    }
    while ((length = getline(&line, &room, stdin)) > 0) {
        result = ring_append(&ring, (uint8_t *)line, strlen(line) - 1);
        if (result < 0)
            refused++;
        else
            dropped += result;
    }
    while ((length = ring_shift(&ring, out)) > 0) {
        fwrite(out, 1, (size_t)length, stdout);
        putchar('\n');
        kept++;
    }
    fprintf(stderr, "kept %ld dropped %ld refused %ld\n", kept, dropped, refused);
    free(line);
    ring_close(&ring);
    return 0;
}

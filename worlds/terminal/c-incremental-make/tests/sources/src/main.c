#include <stdio.h>
#include <string.h>

#include "lib/codes.h"
#include "lib/lookup.h"
#include "version.h"

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("codes %s (%d known)\n", VERSION, CODE_COUNT);
        return 0;
    }
    for (int i = 1; i < argc; i++)
        printf("%s\n", lookup(argv[i]));
    return 0;
}

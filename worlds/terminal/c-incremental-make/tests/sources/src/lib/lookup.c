#include "lookup.h"

#include <string.h>

#include "codes.h"

const char *lookup(const char *name)
{
    for (int i = 0; i < CODE_COUNT; i++)
        if (strcmp(codes[i].name, name) == 0)
            return codes[i].text;
    return UNKNOWN;
}

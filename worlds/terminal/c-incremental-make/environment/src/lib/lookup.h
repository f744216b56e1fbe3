#ifndef LOOKUP_H
#define LOOKUP_H

#define UNKNOWN "unknown"

const char *lookup(const char *name);

#endif

/* The same frames as the file helper speaks; here on the socket, which main puts in the place of stdin and stdout. */
#include "files-io.c"

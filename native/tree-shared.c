/* Paths and removal as in the file helper. */
#include "files-path.c"
#include "files-remove.c"

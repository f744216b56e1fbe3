/* Between the files on control groups alone. */
#ifndef MW_SPAWN_CGROUP_H
#define MW_SPAWN_CGROUP_H

#include "spawn.h"

enum hierarchy { H_MEMORY, H_PIDS, H_CPU, H_UNIFIED, HIERARCHIES };

/* spawn-hierarchies.c: descriptor of our parent group in each hierarchy; -1: not available. In v2 only H_UNIFIED is open and the controllers are flags in S. */
extern int group_parents[HIERARCHIES];

/* A file of a group, whole. -1 with errno. */
int group_put(int dir, const char *path, const char *text);
ssize_t group_get(int dir, const char *path, char *out, size_t size);
bool group_get_number(int dir, const char *path, uint64_t *out);
/* The value on the line `key value` of a flat keyed file's text; 0: no such line. */
uint64_t group_keyed(const char *text, const char *key);

/* spawn-cgroup.c: the directory that a controller's files of a machine's group are in. -1 with errno. */
int group_open(const char *name, enum hierarchy hierarchy);
int group_set_limit(const struct machine *machine, enum hierarchy hierarchy, const char *file, const char *text);

#endif

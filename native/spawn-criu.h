/* CRIU as a process beside a machine (spawn-criu-process.c), as those that keep and restore processes use it (spawn-criu.c). */
#ifndef MW_SPAWN_CRIU_H
#define MW_SPAWN_CRIU_H

#include "spawn.h"

enum { MOUNTS_MOST = 128, ARGUMENTS_MOST = 2 * MOUNTS_MOST + 48 };
/* Of CRIU: where what it works with lies. */
enum { FD_IMAGES = 3, FD_GROUP = 4, FD_LIFELINE = 7, FD_LISTENER = 8 };
/* Of the tree helper that copies /dev/shm before it becomes CRIU. */
enum { FD_COPY_FROM = 5, FD_COPY_TO = 6 };

struct criu_arguments {
	char *list[ARGUMENTS_MOST];
	int count;
	bool failed;
};

struct criu_surroundings {
	int namespaces[3];
	int namespace_count;
	int procs[PLAN_CGROUPS];
	int proc_count;
	int run; /* a file system in memory, where it remembers what this kernel can do */
	int tree, root; /* mounts of the machine; -1: none */
	bool first; /* a machine stands still for it */
};

#define CRIU_NOWHERE ((struct criu_surroundings){.namespaces = {-1, -1, -1}, .run = -1, .tree = -1, .root = -1})

/* Arguments of every CRIU. */
extern const char *const CRIU_COMMON[];
void criu_add_all(struct criu_arguments *arguments, const char *const *texts);
/* A tree helper comes first, which copies /dev/shm. */
void criu_add_copy(struct criu_arguments *arguments);
/* `--external` for each mount of the process's namespace that is not CRIU's to make; its place there is its name. `from`: where they are now, NULL for a dump. */
int criu_add_mounts(struct criu_arguments *arguments, pid_t pid, const char *from, struct failure *failure);
void criu_free(struct criu_arguments *arguments);
/* Files in /dev/shm are memory. Their directory: open, or -1 where there are none to be copied. */
int criu_shm(int dir, const char *name);
/* In time, or it is killed. `fds` as for helpers. */
int criu_start(struct machine *machine, struct criu_arguments *arguments, struct criu_surroundings *to, const int fds[][2], int count, struct failure *failure);
/* Its time is no matter any more. */
void criu_stop_limit(struct machine *machine);
void criu_leave(struct criu_surroundings *to);
/* Why it failed, in its own words. */
int criu_fail(struct failure *failure, int directory, const char *log, int status, const char *what);

#endif

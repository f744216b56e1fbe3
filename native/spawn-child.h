/*
 * What the first process of a machine does between clone and exec, as a plan that the parent fills in beforehand. It shares the parent's memory (a copy of page
 * tables costs more than everything else), so it only reads the plan, makes system calls, and reports into it.
 *
 * Nothing of it depends on a request: it ends as an init that waits for its root (spawn-root.c).
 */
#ifndef MW_SPAWN_CHILD_H
#define MW_SPAWN_CHILD_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	PLAN_LAYERS = 192,
	PLAN_PARTS = 16,
	PLAN_SERVICES = 16,
	PLAN_CGROUPS = 4,
	/* Descriptors below this number belong to the creation at hand; everything that lives longer is kept above, so that the child's own table stays small. */
	LOW_FDS = 320,
};

/* Every step that can fail, in order; names for messages are in spawn-child.c. */
enum child_step {
	STEP_NONE,
	STEP_CGROUP,
	STEP_MOUNT_NAMESPACE,
	STEP_PROC,
	STEP_DESCRIPTORS,
	STEP_NETWORK,
	STEP_HOSTNAME,
	STEP_SCRATCH,
	STEP_DEV,
	STEP_SYS,
	STEP_MASK,
	STEP_RLIMIT,
	STEP_USER_NAMESPACE,
	STEP_IDS,
	STEP_CAPABILITIES,
	STEP_SECCOMP,
	STEP_EXEC,
};

struct child_plan {
	int cgroup_procs[PLAN_CGROUPS];
	int cgroups;
	int enter; /* how many of them the child enters itself */
	int unified; /* directory of the v2 group, the one whose file is the last of `cgroup_procs`; -1: none */
	int nursery;
	int netns;
	int userns; /* -1: the `namespaces` profile */
	int scratch;
	const char *hostname;
	char devpts_options[96];
	int listener;
	int lifeline;
	int set_groups;
	int apart;
	uint64_t capabilities;
	uint64_t open_files;
	struct sock_fprog filter;
	/* Written by the child. */
	volatile int mntns, utsns; /* descriptors of the parent's */
	volatile int step;
	volatile int error;
};

/* Entry point for clone(2); never returns to the caller's stack frames. */
int child_main(void *plan);
const char *child_step_name(int step);

#endif

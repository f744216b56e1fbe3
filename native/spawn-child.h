/*
 * What the child of a creation does between clone and exec, as a plan that the parent fills in beforehand. The child shares the parent's memory (a copy of
 * page tables costs more than everything else), so it only reads the plan, makes system calls, and writes `report`.
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
	STEP_DESCRIPTORS,
	STEP_CGROUP,
	STEP_MOUNT_NAMESPACE,
	STEP_NETWORK,
	STEP_SERVICE,
	STEP_HOSTNAME,
	STEP_LAYER,
	STEP_OVERLAY,
	STEP_PART,
	STEP_PROC,
	STEP_DEV,
	STEP_SYS,
	STEP_PIVOT,
	STEP_RESOLV,
	STEP_MASK,
	STEP_RLIMIT,
	STEP_USER_NAMESPACE,
	STEP_IDS,
	STEP_CAPABILITIES,
	STEP_SECCOMP,
	STEP_EXEC,
};

struct child_part {
	char target[256];
	char options[2048];
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
	uint32_t root_id; /* the host's number of the machine's root, where layers are mounted with mapped ids; else 0 */
	int layers[PLAN_LAYERS];
	int layer_count;
	char overlay_options[4096];
	struct child_part parts[PLAN_PARTS];
	int part_count;
	uint16_t ports[PLAN_SERVICES];
	int service_count;
	int handover; /* socket through which the service listeners reach the parent; -1: none */
	char hostname[65];
	size_t hostname_length;
	char devpts_options[96];
	int resolv; /* detached mount of the resolv.conf for a machine with a public network; -1: none */
	int listener;
	int lifeline;
	int set_groups;
	uint64_t capabilities;
	uint64_t open_files;
	struct sock_fprog filter;
	volatile int step;
	volatile int error;
};

/* Entry point for clone(2); never returns to the caller's stack frames. */
int child_main(void *plan);
const char *child_step_name(int step);

#endif

/* What a machine uses, as its control groups count it, and the alarm at its memory limit. */
#include "spawn-cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void usage_v1(const struct machine *machine, struct usage *usage, bool memory_only)
{
	char text[8192];
	int dir = group_open(machine->group, H_MEMORY);
	if (dir >= 0) {
		uint64_t scratch = scratch_used(machine);
		usage->memory_known = group_get_number(dir, "memory.usage_in_bytes", &usage->total_bytes);
		usage->peak_known = group_get_number(dir, "memory.max_usage_in_bytes", &usage->peak_bytes);
		if (group_get(dir, "memory.stat", text, sizeof text) > 0) {
			uint64_t shmem = group_keyed(text, "shmem");
			usage->process_bytes = group_keyed(text, "rss") + (shmem > scratch ? shmem - scratch : 0);
		}
		if (group_get(dir, "memory.oom_control", text, sizeof text) > 0) usage->oom_kills = group_keyed(text, "oom_kill");
		close(dir);
	}
	if (memory_only) return;
	if ((dir = group_open(machine->group, H_PIDS)) >= 0) {
		usage->pids_known = group_get_number(dir, "pids.current", &usage->pids);
		if (group_get(dir, "pids.events", text, sizeof text) > 0) usage->pids_hits = group_keyed(text, "max");
		close(dir);
	}
	/* `cpu` alone counts nothing in v1, the unified hierarchy always counts. */
	if ((dir = group_open(machine->group, H_UNIFIED)) >= 0) {
		if (group_get(dir, "cpu.stat", text, sizeof text) > 0) usage->cpu_known = true, usage->cpu_us = group_keyed(text, "usage_usec");
		close(dir);
	}
}

static void usage_v2(const struct machine *machine, struct usage *usage, bool memory_only)
{
	char text[8192];
	int dir = group_open(machine->group, H_UNIFIED);
	if (dir < 0) return;
	uint64_t scratch = scratch_used(machine);
	usage->memory_known = group_get_number(dir, "memory.current", &usage->total_bytes);
	usage->peak_known = group_get_number(dir, "memory.peak", &usage->peak_bytes);
	if (usage->memory_known && group_get(dir, "memory.stat", text, sizeof text) > 0) {
		/* Most of `slab` are inodes and names of files, those of the scratch among the unreclaimable ones: the disk limit bounds them. `kernel` is there since Linux 5.18. */
		uint64_t shmem = group_keyed(text, "shmem"), kernel = group_keyed(text, "kernel"), slab = group_keyed(text, "slab");
		usage->process_bytes = group_keyed(text, "anon") + (kernel > slab ? kernel - slab : 0) + (shmem > scratch ? shmem - scratch : 0);
	}
	if (group_get(dir, "memory.events", text, sizeof text) > 0) usage->oom_kills = group_keyed(text, "oom_kill");
	if (!memory_only) {
		usage->pids_known = group_get_number(dir, "pids.current", &usage->pids);
		if (group_get(dir, "pids.events", text, sizeof text) > 0) usage->pids_hits = group_keyed(text, "max");
		if (group_get(dir, "cpu.stat", text, sizeof text) > 0) usage->cpu_known = true, usage->cpu_us = group_keyed(text, "usage_usec");
	}
	close(dir);
}

void cgroup_usage(const struct machine *machine, struct usage *usage, bool memory_only)
{
	memset(usage, 0, sizeof *usage);
	if (S.cgroups == CGROUPS_V1) usage_v1(machine, usage, memory_only);
	else if (S.cgroups == CGROUPS_V2) usage_v2(machine, usage, memory_only);
	usage->memory_bytes = usage->process_bytes;
}

/* v2 has no threshold that only tells. `memory.high` does not refuse memory, it tells and slows down; so it is lifted as soon as it has told. */
void cgroup_memory_alarm(struct machine *machine, bool set)
{
	if (S.cgroups != CGROUPS_V2 || machine->memory_alarm == set) return;
	char text[32];
	snprintf(text, sizeof text, "%llu", (unsigned long long)machine->memory_bytes);
	if (group_set_limit(machine, H_MEMORY, "memory.high", set ? text : "max") == 0) machine->memory_alarm = set;
}

/* Until then the descriptor is not ready again. */
void cgroup_memory_told(int fd)
{
	char text[512];
	if (S.cgroups == CGROUPS_V2 ? pread(fd, text, sizeof text, 0) < 0 : read(fd, text, sizeof(uint64_t)) < 0) return;
}

static int watch_v1(int dir, uint64_t bytes)
{
	int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int usage = openat(dir, "memory.usage_in_bytes", O_RDONLY | O_CLOEXEC);
	char text[96];
	snprintf(text, sizeof text, "%d %d %llu", event, usage, (unsigned long long)bytes);
	int result = event >= 0 && usage >= 0 ? group_put(dir, "cgroup.event_control", text) : -1;
	if (usage >= 0) close(usage);
	if (result < 0) close_fd(&event);
	return event;
}

/*
 * A descriptor that becomes ready (v1: EPOLLIN of an eventfd, v2: EPOLLPRI of `memory.events`) when the whole use crosses the memory limit; below it, processes
 * alone cannot be over it. -1: poll instead.
 */
int cgroup_watch_memory(struct machine *machine)
{
	int dir = group_open(machine->group, H_MEMORY);
	if (dir < 0) return -1;
	int fd = S.cgroups == CGROUPS_V1 ? watch_v1(dir, machine->memory_bytes) : openat(dir, "memory.events", O_RDONLY | O_CLOEXEC);
	close(dir);
	if (fd < 0 || S.cgroups == CGROUPS_V1) return fd < 0 ? -1 : keep_fd(fd);
	cgroup_memory_told(fd);
	cgroup_memory_alarm(machine, true);
	if (!machine->memory_alarm) close_fd(&fd);
	return fd < 0 ? -1 : keep_fd(fd);
}

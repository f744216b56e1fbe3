/* Control groups of machines: one per machine and hierarchy (`/manyworlds-HASH/NAME`, see spawn-blank.c and spawn-hierarchies.c). */
#include "spawn-cgroup.h"
#include "spawn-kernel.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { CPU_PERIOD_US = 100000 };

/* The hierarchy that a controller's files are in. */
int group_open(const char *name, enum hierarchy hierarchy)
{
	if (S.cgroups == CGROUPS_V2) hierarchy = H_UNIFIED;
	if (group_parents[hierarchy] < 0) return errno = ENOENT, -1;
	return openat(group_parents[hierarchy], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/*
 * Makes the groups `name`, in which machines share the processors evenly, however many processes each has, and opens what a process of theirs writes "0" to, `*unified` the directory of the
 * v2 group. All are the caller's, also on failure.
 */
int cgroup_make(const char *name, int procs[PLAN_CGROUPS], int *count, int *unified, struct failure *failure)
{
	*count = 0;
	for (int i = 0; i < HIERARCHIES; i++) {
		if (group_parents[i] < 0) continue;
		if (mkdirat(group_parents[i], name, 0755) < 0) return fail_errno(failure, errno, "making the control groups %s", name);
		if (i == H_UNIFIED && (*unified = openat(group_parents[i], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) return fail_errno(failure, errno, "opening the control group %s", name);
		/*
		 * v1's `tasks` moves the one thread that writes "0" without the lock over all processes of the host that `cgroup.procs` takes, which waits
		 * for every processor: milliseconds on a busy host.
		 */
		char path[ID_BYTES + 16];
		snprintf(path, sizeof path, "%s/%s", name, i == H_UNIFIED ? "cgroup.procs" : "tasks");
		if ((procs[*count] = openat(group_parents[i], path, O_WRONLY | O_CLOEXEC)) < 0) return fail_errno(failure, errno, "opening the control group %s", name);
		++*count;
	}
	return 0;
}

int cgroup_open(const char *name, int procs[PLAN_CGROUPS], int *count, int *unified)
{
	*count = 0;
	*unified = -1;
	for (int i = 0; i < HIERARCHIES; i++) {
		char path[ID_BYTES + 16];
		snprintf(path, sizeof path, "%s/%s", name, i == H_UNIFIED ? "cgroup.procs" : "tasks");
		if (group_parents[i] < 0) continue;
		int fd = openat(group_parents[i], path, O_WRONLY | O_CLOEXEC);
		if (fd < 0) return -1;
		procs[(*count)++] = fd;
		if (i == H_UNIFIED && (*unified = openat(group_parents[i], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) return -1;
	}
	return 0;
}

int group_set_limit(const struct machine *machine, enum hierarchy hierarchy, const char *file, const char *text)
{
	char path[ID_BYTES + 64];
	snprintf(path, sizeof path, "%s/%s", machine->group, file);
	return group_put(group_parents[S.cgroups == CGROUPS_V2 ? H_UNIFIED : hierarchy], path, text);
}

static int set_limits(const struct machine *machine, const struct create_request *request)
{
	bool v2 = S.cgroups == CGROUPS_V2;
	char text[64];
	/* Pages of the scratch are charged to the machine that wrote them: the hard limit has room for a full disk, processes alone are held by spawn-memory.c. */
	if (request->memory_bytes && S.memory_enforced) {
		snprintf(text, sizeof text, "%llu", (unsigned long long)(request->memory_bytes + machine->disk_bytes));
		if (group_set_limit(machine, H_MEMORY, v2 ? "memory.max" : "memory.limit_in_bytes", text) < 0) return -1;
		group_set_limit(machine, H_MEMORY, v2 ? "memory.swap.max" : "memory.swappiness", "0");
	}
	if (request->pids && S.pids_enforced) {
		snprintf(text, sizeof text, "%llu", (unsigned long long)request->pids);
		if (group_set_limit(machine, H_PIDS, "pids.max", text) < 0) return -1;
	}
	if (request->cpu_milli && S.cpu_enforced) {
		uint64_t quota = request->cpu_milli * CPU_PERIOD_US / 1000;
		if (quota < 1000) quota = 1000;
		if (v2) snprintf(text, sizeof text, "%llu %d", (unsigned long long)quota, CPU_PERIOD_US);
		else snprintf(text, sizeof text, "%llu", (unsigned long long)quota);
		if (group_set_limit(machine, H_CPU, v2 ? "cpu.max" : "cpu.cfs_quota_us", text) < 0) return -1;
	}
	return 0;
}

int cgroup_limit(const struct machine *machine, const struct create_request *request, struct failure *failure)
{
	return set_limits(machine, request) < 0 ? fail_errno(failure, errno, "limiting %s", machine->id) : 0;
}

bool cgroup_kill(const struct machine *machine)
{
	if (!S.groups_kill) return false;
	char path[ID_BYTES + 16];
	snprintf(path, sizeof path, "%s/cgroup.kill", machine->group);
	return group_put(group_parents[H_UNIFIED], path, "1") == 0;
}

static bool is_frozen(int dir)
{
	char text[256];
	return group_get(dir, "cgroup.events", text, sizeof text) > 0 && group_keyed(text, "frozen") == 1;
}

/* Freezing is quick but not immediate; a process in an uninterruptible wait delays it. */
int cgroup_freeze(struct machine *machine, bool frozen, struct failure *failure)
{
	if (!S.freezer) return fail_code(failure, "unsupported", "this host has no cgroup v2 hierarchy that can freeze");
	int dir = group_open(machine->group, H_UNIFIED);
	if (dir < 0) return fail_errno(failure, errno, "freezing %s", machine->id);
	int result = group_put(dir, "cgroup.freeze", frozen ? "1" : "0");
	int error = errno;
	for (int i = 0; result == 0 && i < 200 && is_frozen(dir) != frozen; i++) {
		struct timespec pause = {.tv_nsec = i < 20 ? 100000 : 1000000};
		nanosleep(&pause, NULL);
	}
	bool reached = is_frozen(dir) == frozen;
	close(dir);
	if (result < 0) return fail_errno(failure, error, "freezing %s", machine->id);
	machine->frozen = frozen;
	if (!reached) return fail_code(failure, "EAGAIN", "%s has not %s yet", machine->id, frozen ? "frozen" : "thawed");
	return 0;
}

bool cgroup_remove(const char *name)
{
	bool gone = true;
	for (int i = 0; i < HIERARCHIES; i++)
		if (group_parents[i] >= 0 && unlinkat(group_parents[i], name, AT_REMOVEDIR) < 0 && errno != ENOENT) gone = false;
	return gone;
}

/* The numbers of one cgroup.procs, however many: a number that was cut off would name somebody else's process. */
static int each_line(int fd, int (*visit)(pid_t pid, void *context), void *context)
{
	char text[16384];
	size_t kept = 0;
	int visited = 0;
	for (ssize_t got; (got = read(fd, text + kept, sizeof text - kept)) > 0;) {
		char *line = text, *end = text + kept + got;
		for (char *newline; (newline = memchr(line, '\n', (size_t)(end - line))); line = newline + 1) {
			pid_t pid = (pid_t)strtol(line, NULL, 10);
			/* 0: a process of a pid namespace that is not below ours. */
			if (pid > 1) visit(pid, context), visited++;
		}
		kept = (size_t)(end - line);
		if (kept == sizeof text) break;
		memmove(text, line, kept);
	}
	return visited;
}

int cgroup_each_process(const char *name, int (*visit)(pid_t pid, void *context), void *context)
{
	int visited = 0;
	for (int i = 0; i < HIERARCHIES && !visited; i++) {
		if (group_parents[i] < 0) continue;
		char path[ID_BYTES + 256];
		snprintf(path, sizeof path, "%s/cgroup.procs", name);
		int fd = openat(group_parents[i], path, O_RDONLY | O_CLOEXEC);
		if (fd < 0) continue;
		visited = each_line(fd, visit, context);
		close(fd);
	}
	return visited;
}

/* A number that was read a moment ago may be another process's by now: what dies is a process of the group, or nothing. */
bool cgroup_kill_process(const char *name, pid_t pid)
{
	int pidfd = k_pidfd_open(pid);
	if (pidfd < 0) return false;
	char path[64], text[4096], group[ID_BYTES + 256];
	snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
	snprintf(group, sizeof group, "/manyworlds-%s/%s\n", S.hash, name);
	bool killed = group_get(AT_FDCWD, path, text, sizeof text) > 0 && strstr(text, group) && k_pidfd_kill(pidfd, SIGKILL) == 0;
	close(pidfd);
	return killed;
}

static int kill_one(pid_t pid, void *context)
{
	return cgroup_kill_process(context, pid) ? 0 : -1;
}

/* Ends what is left in groups of this data directory. Nobody else's process can be in them. */
void cgroup_sweep(void)
{
	for (int i = 0; i < HIERARCHIES; i++) {
		if (group_parents[i] < 0) continue;
		int copy = openat(group_parents[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		DIR *list = copy < 0 ? NULL : fdopendir(copy);
		if (!list) continue;
		struct dirent *entry;
		while ((entry = readdir(list))) {
			if (entry->d_type != DT_DIR || !id_valid(entry->d_name)) continue;
			char path[ID_BYTES + 256];
			snprintf(path, sizeof path, "%s/cgroup.freeze", entry->d_name);
			if (group_parents[H_UNIFIED] >= 0) group_put(group_parents[H_UNIFIED], path, "0");
			/* Up to two seconds: a process that is dying is out of our hands. */
			for (int round = 0; round < 200; round++) {
				cgroup_each_process(entry->d_name, kill_one, entry->d_name);
				if (unlinkat(group_parents[i], entry->d_name, AT_REMOVEDIR) == 0) break;
				struct timespec pause = {.tv_nsec = 10 * 1000000};
				nanosleep(&pause, NULL);
			}
		}
		closedir(list);
	}
}

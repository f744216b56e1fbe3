/*
 * Control groups: one per machine and hierarchy, all below one group per data directory (`/manyworlds-HASH/NAME`, see spawn-blank.c).
 *
 * v1: memory, pids, cpu, plus the `unified` hierarchy (where mounted) for freezing and killing, because a v1 freezer keeps killed processes alive until it is
 * thawed. v2: one group with the memory, pids and cpu controllers, as far as they are to be had. Nothing that is not ours is moved, but in v2 controllers are
 * switched on for the children of groups on the way.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum hierarchy { H_MEMORY, H_PIDS, H_CPU, H_UNIFIED, HIERARCHIES };

/* Descriptor of our parent group in each hierarchy; -1: not available. In v2 only H_UNIFIED is open and the controllers are flags in S. */
static int parents[HIERARCHIES] = {-1, -1, -1, -1};
static char parent_paths[HIERARCHIES][PATH_BYTES];
enum { CPU_PERIOD_US = 100000 };
/* A group that we could have used holds processes of its own, and so hands no controller on. */
static bool occupied;

static int put(int dir, const char *path, const char *text)
{
	int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	ssize_t written = write(fd, text, strlen(text));
	int error = errno;
	close(fd);
	errno = error;
	return written < 0 ? -1 : 0;
}

static ssize_t get(int dir, const char *path, char *out, size_t size)
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	size_t length = 0;
	for (;;) {
		ssize_t got = read(fd, out + length, size - 1 - length);
		if (got <= 0) break;
		length += (size_t)got;
		if (length == size - 1) break;
	}
	close(fd);
	out[length] = 0;
	return (ssize_t)length;
}

static bool get_number(int dir, const char *path, uint64_t *out)
{
	char text[64];
	if (get(dir, path, text, sizeof text) <= 0) return false;
	char *end;
	*out = strtoull(text, &end, 10);
	return end != text;
}

/* The value on the line `key value` of a flat keyed file's text. */
static uint64_t keyed(const char *text, const char *key)
{
	size_t length = strlen(key);
	for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
		if (strncmp(line, key, length) == 0 && line[length] == ' ') return strtoull(line + length + 1, NULL, 10);
	return 0;
}

/* Mount points from /proc/self/mountinfo: the first hierarchy of the type whose options name the controller. */
static bool find_mount(const char *type, const char *controller, char *out, size_t size)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	if (!file) return false;
	char line[4096];
	bool found = false;
	while (!found && fgets(line, sizeof line, file)) {
		char point[1024], kind[64], options[1024];
		char *tail = strstr(line, " - ");
		if (!tail || sscanf(line, "%*s %*s %*s %*s %1023s", point) != 1) continue;
		if (sscanf(tail + 3, "%63s %*s %1023s", kind, options) != 2 || strcmp(kind, type) != 0) continue;
		if (controller) {
			char *save = NULL;
			for (char *word = strtok_r(options, ",\n", &save); word; word = strtok_r(NULL, ",\n", &save))
				if (strcmp(word, controller) == 0) found = true;
		} else {
			found = true;
		}
		if (found && (size_t)snprintf(out, size, "%s", point) >= size) found = false;
	}
	fclose(file);
	return found;
}

/* This process's own group in the v2 hierarchy, from /proc/self/cgroup. */
static bool own_group(char *out, size_t size)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	if (!file) return false;
	char line[1024];
	bool found = false;
	while (!found && fgets(line, sizeof line, file)) {
		if (strncmp(line, "0::", 3) != 0) continue;
		line[strcspn(line, "\n")] = 0;
		found = (size_t)snprintf(out, size, "%s", line + 3) < size;
	}
	fclose(file);
	return found;
}

static int open_parent(enum hierarchy hierarchy, const char *base)
{
	if ((size_t)snprintf(parent_paths[hierarchy], PATH_BYTES, "%s/manyworlds-%s", base, S.hash) >= PATH_BYTES) return -1;
	if (mkdir(parent_paths[hierarchy], 0755) < 0 && errno != EEXIST) return -1;
	int fd = open(parent_paths[hierarchy], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) return -1;
	return parents[hierarchy] = keep_fd(fd);
}

static bool has_controller(int dir, const char *name)
{
	char text[512];
	if (get(dir, "cgroup.subtree_control", text, sizeof text) < 0) return false;
	char *save = NULL;
	for (char *word = strtok_r(text, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
		if (strcmp(word, name) == 0) return true;
	return false;
}

/* Only the top of the whole hierarchy, which has no type, may hold processes and hand controllers on as well. */
static bool holds_processes(int dir)
{
	char text[64];
	return faccessat(dir, "cgroup.type", F_OK, 0) == 0 && get(dir, "cgroup.procs", text, sizeof text) > 0;
}

/*
 * One at a time: a controller that cannot be had does not keep the others away. Not where processes are: memory would be refused, and the others would be
 * handed on to threads alone, after which no group of processes can be made there.
 */
static void enable_controllers(int dir)
{
	if (holds_processes(dir)) {
		if (faccessat(dir, "cgroup.subtree_control", W_OK, AT_EACCESS) == 0) occupied = true;
		return;
	}
	put(dir, "cgroup.subtree_control", "+memory");
	put(dir, "cgroup.subtree_control", "+pids");
	put(dir, "cgroup.subtree_control", "+cpu");
}

/* Whether a process of ours can enter a group there: moving one needs power over what both groups have in common, which mkdir does not tell. */
static bool can_enter(int parent)
{
	if (mkdirat(parent, "probe", 0755) < 0 && errno != EEXIST) return false;
	int procs = openat(parent, "probe/cgroup.procs", O_WRONLY | O_CLOEXEC);
	pid_t pid = procs < 0 ? -1 : fork();
	if (pid == 0) _exit(write(procs, "0", 1) != 1);
	int status = 1;
	if (pid > 0) waitpid(pid, &status, 0);
	if (procs >= 0) close(procs);
	unlinkat(parent, "probe", AT_REMOVEDIR);
	return pid > 0 && status == 0;
}

/* Opens our parent group below `base`. How many of the three controllers it has, -1 when it cannot be used. */
static int try_v2(const char *base)
{
	int dir = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0) return -1;
	enable_controllers(dir);
	close(dir);
	if (open_parent(H_UNIFIED, base) < 0) return -1;
	enable_controllers(parents[H_UNIFIED]);
	if (can_enter(parents[H_UNIFIED]))
		return has_controller(parents[H_UNIFIED], "memory") + has_controller(parents[H_UNIFIED], "pids") + has_controller(parents[H_UNIFIED], "cpu");
	close_fd(&parents[H_UNIFIED]);
	rmdir(parent_paths[H_UNIFIED]);
	return -1;
}

/*
 * The top of the hierarchy, as this process sees it; where that is not ours to use, our own group or one above it. A group with processes of its own cannot hand
 * controllers on, so the nearest is often not the best: the first with the most controllers is taken.
 */
static void start_v2(const char *mount_point)
{
	char own[PATH_BYTES] = "", base[PATH_BYTES * 2], best[PATH_BYTES * 2] = "";
	int most = try_v2(mount_point);
	if (most >= 0) snprintf(best, sizeof best, "%s", mount_point);
	own_group(own, sizeof own);
	while (most < 3 && own[0] && strcmp(own, "/") != 0) {
		if (parents[H_UNIFIED] >= 0) {
			close_fd(&parents[H_UNIFIED]);
			rmdir(parent_paths[H_UNIFIED]);
		}
		snprintf(base, sizeof base, "%s%s", mount_point, own);
		int controllers = try_v2(base);
		if (controllers > most) {
			most = controllers;
			snprintf(best, sizeof best, "%s", base);
		}
		*strrchr(own, '/') = 0;
	}
	if (most < 0) return;
	if (most < 3) {
		if (parents[H_UNIFIED] >= 0) {
			close_fd(&parents[H_UNIFIED]);
			rmdir(parent_paths[H_UNIFIED]);
		}
		if (try_v2(best) < 0) return;
	}
	S.cgroups = CGROUPS_V2;
	S.memory_enforced = has_controller(parents[H_UNIFIED], "memory");
	S.pids_enforced = has_controller(parents[H_UNIFIED], "pids");
	S.cpu_enforced = has_controller(parents[H_UNIFIED], "cpu");
}

static void start_v1(void)
{
	static const char *const NAMES[] = {[H_MEMORY] = "memory", [H_PIDS] = "pids", [H_CPU] = "cpu"};
	for (int i = H_MEMORY; i <= H_CPU; i++) {
		char mount_point[PATH_BYTES - 64];
		if (find_mount("cgroup", NAMES[i], mount_point, sizeof mount_point)) open_parent((enum hierarchy)i, mount_point);
	}
	if (parents[H_MEMORY] >= 0) put(parents[H_MEMORY], "memory.use_hierarchy", "1");
	S.memory_enforced = parents[H_MEMORY] >= 0;
	S.pids_enforced = parents[H_PIDS] >= 0;
	S.cpu_enforced = parents[H_CPU] >= 0;
	char mount_point[PATH_BYTES - 64];
	if (find_mount("cgroup2", NULL, mount_point, sizeof mount_point)) open_parent(H_UNIFIED, mount_point);
	if (S.memory_enforced || S.pids_enforced || S.cpu_enforced || parents[H_UNIFIED] >= 0) S.cgroups = CGROUPS_V1;
}

void cgroups_start(void)
{
	char point[PATH_BYTES - 64];
	bool v1 = find_mount("cgroup", "memory", point, sizeof point) || find_mount("cgroup", "pids", point, sizeof point);
	if (v1) start_v1();
	else if (find_mount("cgroup2", NULL, point, sizeof point)) start_v2(point);
	/* Both files exist in every group but the root: ours tells whether the kernel has them. */
	S.freezer = parents[H_UNIFIED] >= 0 && faccessat(parents[H_UNIFIED], "cgroup.freeze", F_OK, 0) == 0;
	S.groups_kill = parents[H_UNIFIED] >= 0 && faccessat(parents[H_UNIFIED], "cgroup.kill", F_OK, 0) == 0;
}

const char *cgroups_missing(void)
{
#define NONE "no control group hierarchy of this host has the controller and can be written; "
	if (occupied)
		return NONE "the group at the top of /sys/fs/cgroup, as seen from here, holds processes and so cannot hand controllers on, as in most containers: as root, "
			    "mkdir /sys/fs/cgroup/init; for p in $(cat /sys/fs/cgroup/cgroup.procs); do echo $p > /sys/fs/cgroup/init/cgroup.procs; done";
	if (!S.privileged) return NONE "with systemd, start it by: systemd-run --user --scope -p Delegate=yes mw ...; in a container, mount /sys/fs/cgroup writable";
	return NONE "with systemd, delegate it (Delegate=yes), in a container, mount /sys/fs/cgroup writable";
#undef NONE
}

/* The hierarchy that a controller's files are in. */
static int group_open(const char *name, enum hierarchy hierarchy)
{
	if (S.cgroups == CGROUPS_V2) hierarchy = H_UNIFIED;
	if (parents[hierarchy] < 0) return errno = ENOENT, -1;
	return openat(parents[hierarchy], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Nothing is read from a v1 cpu group, so it is made for its limit alone. */
static bool extra(int hierarchy) { return hierarchy == H_CPU; }

bool cgroup_cpu_extra(void) { return parents[H_CPU] >= 0; }

/* Makes the groups `name` and opens what a process of theirs writes "0" to, `*unified` the directory of the v2 group. All are the caller's, also on failure. */
int cgroup_make(const char *name, bool cpu, int procs[PLAN_CGROUPS], int *count, int *unified, struct failure *failure)
{
	*count = 0;
	for (int i = 0; i < HIERARCHIES; i++) {
		if (parents[i] < 0 || (extra(i) && !cpu)) continue;
		if (mkdirat(parents[i], name, 0755) < 0) return fail_errno(failure, errno, "making the control groups %s", name);
		if (i == H_UNIFIED && (*unified = openat(parents[i], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) return fail_errno(failure, errno, "opening the control group %s", name);
		/*
		 * v1's `tasks` moves the one thread that writes "0" without the lock over all processes of the host that `cgroup.procs` takes, which waits
		 * for every processor: milliseconds on a busy host.
		 */
		char path[ID_BYTES + 16];
		snprintf(path, sizeof path, "%s/%s", name, i == H_UNIFIED ? "cgroup.procs" : "tasks");
		if ((procs[*count] = openat(parents[i], path, O_WRONLY | O_CLOEXEC)) < 0) return fail_errno(failure, errno, "opening the control group %s", name);
		++*count;
	}
	return 0;
}

static int set_limit(const struct machine *machine, enum hierarchy hierarchy, const char *file, const char *text)
{
	char path[ID_BYTES + 64];
	snprintf(path, sizeof path, "%s/%s", machine->group, file);
	return put(parents[S.cgroups == CGROUPS_V2 ? H_UNIFIED : hierarchy], path, text);
}

static int set_limits(const struct machine *machine, const struct create_request *request)
{
	bool v2 = S.cgroups == CGROUPS_V2;
	char text[64];
	/* Pages of the scratch are charged to the machine that wrote them: the hard limit has room for a full disk, processes alone are held by spawn-memory.c. */
	if (request->memory_bytes && S.memory_enforced) {
		snprintf(text, sizeof text, "%llu", (unsigned long long)(request->memory_bytes + machine->disk_bytes));
		if (set_limit(machine, H_MEMORY, v2 ? "memory.max" : "memory.limit_in_bytes", text) < 0) return -1;
		set_limit(machine, H_MEMORY, v2 ? "memory.swap.max" : "memory.swappiness", "0");
	}
	if (request->pids && S.pids_enforced) {
		snprintf(text, sizeof text, "%llu", (unsigned long long)request->pids);
		if (set_limit(machine, H_PIDS, "pids.max", text) < 0) return -1;
	}
	if (request->cpu_milli && S.cpu_enforced) {
		uint64_t quota = request->cpu_milli * CPU_PERIOD_US / 1000;
		if (quota < 1000) quota = 1000;
		if (v2) snprintf(text, sizeof text, "%llu %d", (unsigned long long)quota, CPU_PERIOD_US);
		else snprintf(text, sizeof text, "%llu", (unsigned long long)quota);
		if (set_limit(machine, H_CPU, v2 ? "cpu.max" : "cpu.cfs_quota_us", text) < 0) return -1;
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
	return put(parents[H_UNIFIED], path, "1") == 0;
}

static bool is_frozen(int dir)
{
	char text[256];
	return get(dir, "cgroup.events", text, sizeof text) > 0 && keyed(text, "frozen") == 1;
}

/* Freezing is quick but not immediate; a process in an uninterruptible wait delays it. */
int cgroup_freeze(struct machine *machine, bool frozen, struct failure *failure)
{
	if (!S.freezer) return fail_code(failure, "unsupported", "this host has no cgroup v2 hierarchy that can freeze");
	int dir = group_open(machine->group, H_UNIFIED);
	if (dir < 0) return fail_errno(failure, errno, "freezing %s", machine->id);
	int result = put(dir, "cgroup.freeze", frozen ? "1" : "0");
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
		if (parents[i] >= 0 && unlinkat(parents[i], name, AT_REMOVEDIR) < 0 && errno != ENOENT) gone = false;
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
		if (parents[i] < 0) continue;
		char path[ID_BYTES + 256];
		snprintf(path, sizeof path, "%s/cgroup.procs", name);
		int fd = openat(parents[i], path, O_RDONLY | O_CLOEXEC);
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
	bool killed = get(AT_FDCWD, path, text, sizeof text) > 0 && strstr(text, group) && k_pidfd_kill(pidfd, SIGKILL) == 0;
	close(pidfd);
	return killed;
}

static void usage_v1(const struct machine *machine, struct usage *usage, bool memory_only)
{
	char text[8192];
	int dir = group_open(machine->group, H_MEMORY);
	if (dir >= 0) {
		uint64_t scratch = scratch_used(machine);
		usage->memory_known = get_number(dir, "memory.usage_in_bytes", &usage->total_bytes);
		usage->peak_known = get_number(dir, "memory.max_usage_in_bytes", &usage->peak_bytes);
		if (get(dir, "memory.stat", text, sizeof text) > 0) {
			uint64_t shmem = keyed(text, "shmem");
			usage->process_bytes = keyed(text, "rss") + (shmem > scratch ? shmem - scratch : 0);
		}
		if (get(dir, "memory.oom_control", text, sizeof text) > 0) usage->oom_kills = keyed(text, "oom_kill");
		close(dir);
	}
	if (memory_only) return;
	if ((dir = group_open(machine->group, H_PIDS)) >= 0) {
		usage->pids_known = get_number(dir, "pids.current", &usage->pids);
		if (get(dir, "pids.events", text, sizeof text) > 0) usage->pids_hits = keyed(text, "max");
		close(dir);
	}
	/* `cpu` alone counts nothing in v1, the unified hierarchy always counts. */
	if ((dir = group_open(machine->group, H_UNIFIED)) >= 0) {
		if (get(dir, "cpu.stat", text, sizeof text) > 0) usage->cpu_known = true, usage->cpu_us = keyed(text, "usage_usec");
		close(dir);
	}
}

static void usage_v2(const struct machine *machine, struct usage *usage, bool memory_only)
{
	char text[8192];
	int dir = group_open(machine->group, H_UNIFIED);
	if (dir < 0) return;
	uint64_t scratch = scratch_used(machine);
	usage->memory_known = get_number(dir, "memory.current", &usage->total_bytes);
	usage->peak_known = get_number(dir, "memory.peak", &usage->peak_bytes);
	if (usage->memory_known && get(dir, "memory.stat", text, sizeof text) > 0) {
		/* Most of `slab` are inodes and names of files, those of the scratch among the unreclaimable ones: the disk limit bounds them. `kernel` is there since Linux 5.18. */
		uint64_t shmem = keyed(text, "shmem"), kernel = keyed(text, "kernel"), slab = keyed(text, "slab");
		usage->process_bytes = keyed(text, "anon") + (kernel > slab ? kernel - slab : 0) + (shmem > scratch ? shmem - scratch : 0);
	}
	if (get(dir, "memory.events", text, sizeof text) > 0) usage->oom_kills = keyed(text, "oom_kill");
	if (!memory_only) {
		usage->pids_known = get_number(dir, "pids.current", &usage->pids);
		if (get(dir, "pids.events", text, sizeof text) > 0) usage->pids_hits = keyed(text, "max");
		if (get(dir, "cpu.stat", text, sizeof text) > 0) usage->cpu_known = true, usage->cpu_us = keyed(text, "usage_usec");
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
	if (set_limit(machine, H_MEMORY, "memory.high", set ? text : "max") == 0) machine->memory_alarm = set;
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
	int result = event >= 0 && usage >= 0 ? put(dir, "cgroup.event_control", text) : -1;
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

static int kill_one(pid_t pid, void *context)
{
	return cgroup_kill_process(context, pid) ? 0 : -1;
}

/* Ends what is left in groups of this data directory. Nobody else's process can be in them. */
void cgroup_sweep(void)
{
	for (int i = 0; i < HIERARCHIES; i++) {
		if (parents[i] < 0) continue;
		int copy = openat(parents[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		DIR *list = copy < 0 ? NULL : fdopendir(copy);
		if (!list) continue;
		struct dirent *entry;
		while ((entry = readdir(list))) {
			if (entry->d_type != DT_DIR || !id_valid(entry->d_name)) continue;
			char path[ID_BYTES + 256];
			snprintf(path, sizeof path, "%s/cgroup.freeze", entry->d_name);
			if (parents[H_UNIFIED] >= 0) put(parents[H_UNIFIED], path, "0");
			/* Up to two seconds: a process that is dying is out of our hands. */
			for (int round = 0; round < 200; round++) {
				cgroup_each_process(entry->d_name, kill_one, entry->d_name);
				if (unlinkat(parents[i], entry->d_name, AT_REMOVEDIR) == 0) break;
				struct timespec pause = {.tv_nsec = 10 * 1000000};
				nanosleep(&pause, NULL);
			}
		}
		closedir(list);
	}
}

void cgroup_stop(void)
{
	for (int i = 0; i < HIERARCHIES; i++) {
		if (parents[i] < 0) continue;
		close_fd(&parents[i]);
		rmdir(parent_paths[i]);
	}
}

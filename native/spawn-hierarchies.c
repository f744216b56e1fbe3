/*
 * The hierarchies of control groups that the host has and we may use: in each, one group for this data directory (`/manyworlds-HASH`), in which machines have theirs (spawn-cgroup.c).
 *
 * v1: memory, pids, cpu, plus the `unified` hierarchy (where mounted) for freezing and killing, because a v1 freezer keeps killed processes alive until it is
 * thawed. v2: one group with the memory, pids and cpu controllers, as far as they are to be had. Nothing that is not ours is moved, but in v2 controllers are
 * switched on for the children of groups on the way.
 */
#include "spawn-cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int group_parents[HIERARCHIES] = {-1, -1, -1, -1};
static char parent_paths[HIERARCHIES][PATH_BYTES];
/* All machines together beside one program of the host, which has 1024: enough that few of them do not crawl on a busy host, and that the controller is heard when all compute. */
#define MACHINES_SHARES "8192"
/* A group that we could have used holds processes of its own, and so hands no controller on. */
static bool occupied;

int group_put(int dir, const char *path, const char *text)
{
	int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	ssize_t written = write(fd, text, strlen(text));
	int error = errno;
	close(fd);
	errno = error;
	return written < 0 ? -1 : 0;
}

ssize_t group_get(int dir, const char *path, char *out, size_t size)
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

bool group_get_number(int dir, const char *path, uint64_t *out)
{
	char text[64];
	if (group_get(dir, path, text, sizeof text) <= 0) return false;
	char *end;
	*out = strtoull(text, &end, 10);
	return end != text;
}

/* The value on the line `key value` of a flat keyed file's text. */
uint64_t group_keyed(const char *text, const char *key)
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
	return group_parents[hierarchy] = keep_fd(fd);
}

static bool has_controller(int dir, const char *name)
{
	char text[512];
	if (group_get(dir, "cgroup.subtree_control", text, sizeof text) < 0) return false;
	char *save = NULL;
	for (char *word = strtok_r(text, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
		if (strcmp(word, name) == 0) return true;
	return false;
}

/* Only the top of the whole hierarchy, which has no type, may hold processes and hand controllers on as well. */
static bool holds_processes(int dir)
{
	char text[64];
	return faccessat(dir, "cgroup.type", F_OK, 0) == 0 && group_get(dir, "cgroup.procs", text, sizeof text) > 0;
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
	group_put(dir, "cgroup.subtree_control", "+memory");
	group_put(dir, "cgroup.subtree_control", "+pids");
	group_put(dir, "cgroup.subtree_control", "+cpu");
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
	enable_controllers(group_parents[H_UNIFIED]);
	if (can_enter(group_parents[H_UNIFIED]))
		return has_controller(group_parents[H_UNIFIED], "memory") + has_controller(group_parents[H_UNIFIED], "pids") + has_controller(group_parents[H_UNIFIED], "cpu");
	close_fd(&group_parents[H_UNIFIED]);
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
		if (group_parents[H_UNIFIED] >= 0) {
			close_fd(&group_parents[H_UNIFIED]);
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
		if (group_parents[H_UNIFIED] >= 0) {
			close_fd(&group_parents[H_UNIFIED]);
			rmdir(parent_paths[H_UNIFIED]);
		}
		if (try_v2(best) < 0) return;
	}
	S.cgroups = CGROUPS_V2;
	S.memory_enforced = has_controller(group_parents[H_UNIFIED], "memory");
	S.pids_enforced = has_controller(group_parents[H_UNIFIED], "pids");
	S.cpu_enforced = has_controller(group_parents[H_UNIFIED], "cpu");
}

static void start_v1(void)
{
	static const char *const NAMES[] = {[H_MEMORY] = "memory", [H_PIDS] = "pids", [H_CPU] = "cpu"};
	for (int i = H_MEMORY; i <= H_CPU; i++) {
		char mount_point[PATH_BYTES - 64];
		if (find_mount("cgroup", NAMES[i], mount_point, sizeof mount_point)) open_parent((enum hierarchy)i, mount_point);
	}
	if (group_parents[H_MEMORY] >= 0) group_put(group_parents[H_MEMORY], "memory.use_hierarchy", "1");
	S.memory_enforced = group_parents[H_MEMORY] >= 0;
	S.pids_enforced = group_parents[H_PIDS] >= 0;
	S.cpu_enforced = group_parents[H_CPU] >= 0;
	if (group_parents[H_CPU] >= 0) group_put(group_parents[H_CPU], "cpu.shares", MACHINES_SHARES);
	char mount_point[PATH_BYTES - 64];
	if (find_mount("cgroup2", NULL, mount_point, sizeof mount_point)) open_parent(H_UNIFIED, mount_point);
	if (S.memory_enforced || S.pids_enforced || S.cpu_enforced || group_parents[H_UNIFIED] >= 0) S.cgroups = CGROUPS_V1;
}

void cgroups_start(void)
{
	char point[PATH_BYTES - 64];
	bool v1 = find_mount("cgroup", "memory", point, sizeof point) || find_mount("cgroup", "pids", point, sizeof point);
	if (v1) start_v1();
	else if (find_mount("cgroup2", NULL, point, sizeof point)) start_v2(point);
	/* Both files exist in every group but the root: ours tells whether the kernel has them. */
	S.freezer = group_parents[H_UNIFIED] >= 0 && faccessat(group_parents[H_UNIFIED], "cgroup.freeze", F_OK, 0) == 0;
	S.groups_kill = group_parents[H_UNIFIED] >= 0 && faccessat(group_parents[H_UNIFIED], "cgroup.kill", F_OK, 0) == 0;
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

void cgroup_stop(void)
{
	for (int i = 0; i < HIERARCHIES; i++) {
		if (group_parents[i] < 0) continue;
		close_fd(&group_parents[i]);
		rmdir(parent_paths[i]);
	}
}

/*
 * User namespaces. As root each machine has a range of 65,536 ids of its own, and a user namespace made for it alone (keyrings and counters belong to a
 * namespace, so a second machine never gets a used one). As an ordinary user the spawner first enters a namespace of its own, in which it is root.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static uint8_t taken[SLOTS];
static int next_slot;

/* Dies with the spawner: it shares its descriptors, and with them the lock. */
static int holder_main(void *parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	while ((pid_t)syscall(SYS_getppid) == *(pid_t *)parent) syscall(SYS_ppoll, NULL, 0, NULL, NULL, 8);
	syscall(SYS_exit, 0);
	return 0;
}

static int write_map(pid_t pid, const char *file, const char *text)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	ssize_t written = write(fd, text, strlen(text));
	int saved = errno;
	close(fd);
	errno = saved;
	return written < 0 ? -1 : 0;
}

/* As root the slot's range; else the same ids as here, piece by piece: a piece of a map must lie within one of the map above it. */
static void machine_map(char *out, size_t size, int slot, const char *own)
{
	if (S.privileged) {
		snprintf(out, size, "0 %u %u\n", S.config.slot_base + (uint32_t)slot * SLOT_IDS, SLOT_IDS);
		return;
	}
	size_t length = 0;
	out[0] = 0;
	FILE *map = fopen(own, "re");
	unsigned long long inside, outside, count;
	while (map && length + 64 < size && fscanf(map, "%llu %llu %llu", &inside, &outside, &count) == 3) {
		if (inside >= SLOT_IDS) continue;
		if (inside + count > SLOT_IDS) count = SLOT_IDS - inside;
		length += (size_t)snprintf(out + length, size - length, "%llu %llu %llu\n", inside, inside, count);
	}
	if (map) fclose(map);
}

/* A process that shares our memory and only sleeps holds the new namespace until we have its descriptor. */
static int make(int slot, struct failure *failure)
{
	static char *stack;
	if (!stack) {
		stack = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stack == MAP_FAILED) {
			stack = NULL;
			return fail_errno(failure, errno, "making a user namespace");
		}
	}
	static pid_t self;
	self = getpid();
	pid_t pid = clone(holder_main, stack + 16384, CLONE_VM | CLONE_FILES | CLONE_NEWUSER | SIGCHLD, &self);
	if (pid < 0) return fail_errno(failure, errno, "making a user namespace");
	char uids[512], gids[512];
	machine_map(uids, sizeof uids, slot, "/proc/self/uid_map");
	machine_map(gids, sizeof gids, slot, "/proc/self/gid_map");
	int fd = -1, error = 0;
	if (!S.privileged && !S.multiple_ids && write_map(pid, "setgroups", "deny") < 0) error = errno;
	if (!error && (write_map(pid, "uid_map", uids) < 0 || write_map(pid, "gid_map", gids) < 0)) error = errno;
	if (!error) {
		char path[64];
		snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0) error = errno;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, __WALL);
	if (fd < 0) return fail_errno(failure, error, "mapping ids %s into a user namespace", uids);
	fd = keep_fd(fd);
	return fd < 0 ? fail_errno(failure, errno, "keeping a user namespace") : fd;
}

static int free_slot(void)
{
	/* As an ordinary user all machines share the one range that there is. */
	if (!S.privileged) return 0;
	for (int i = 0; i < SLOTS; i++) {
		int slot = (next_slot + i) % SLOTS;
		if (taken[slot]) continue;
		next_slot = slot + 1;
		taken[slot] = 1;
		return slot;
	}
	return -1;
}

int userns_slot_take(int *slot, int *fd, struct failure *failure)
{
	*slot = free_slot();
	if (*slot < 0) return fail_code(failure, "EAGAIN", "every one of the %d ranges of user ids is in use", SLOTS);
	*fd = make(*slot, failure);
	if (*fd >= 0) return 0;
	taken[*slot] = 0;
	return -1;
}

void userns_slot_return(int slot, int fd)
{
	if (fd >= 0) close(fd);
	if (slot >= 0) taken[slot] = 0;
}

/* ---- the spawner's own namespace ---- */

static bool has_capability(int capability)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	memset(data, 0, sizeof data);
	if (syscall(SYS_capget, &header, data) < 0) return false;
	return data[capability / 32].effective >> (capability % 32) & 1;
}

/* How many ids from 0 on are mapped in this process's namespace. */
static uint64_t mapped_ids(const char *file)
{
	FILE *map = fopen(file, "re");
	if (!map) return 0;
	unsigned long long inside, outside, count, end = 0;
	while (fscanf(map, "%llu %llu %llu", &inside, &outside, &count) == 3)
		if (inside == end) end = inside + count;
	fclose(map);
	return end;
}

static uint64_t setting(const char *path, uint64_t otherwise)
{
	char text[32] = {0};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return otherwise;
	ssize_t got = read(fd, text, sizeof text - 1);
	close(fd);
	return got > 0 ? strtoull(text, NULL, 10) : otherwise;
}

/* The setting that forbids user namespaces, as a sentence with the command that changes it. */
static void explain(char *out, size_t size, int error)
{
	if (setting("/proc/sys/user/max_user_namespaces", 1) == 0)
		snprintf(out, size, "user namespaces are switched off: sysctl -w user.max_user_namespaces=15000");
	else if (setting("/proc/sys/kernel/unprivileged_userns_clone", 1) == 0)
		snprintf(out, size, "user namespaces are switched off for ordinary users: sysctl -w kernel.unprivileged_userns_clone=1");
	else if (setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) == 1)
		snprintf(out, size, "AppArmor forbids user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0");
	else
		snprintf(out, size, "user namespaces cannot be made (%s); a container around this one may forbid them", strerror(error));
}

/* Runs in a process of the old namespace: newuidmap may map what /etc/subuid gives to the user, and is not to be believed to be there. */
static int run_map_program(const char *program, pid_t pid, uint32_t own, uint32_t first, uint32_t count)
{
	char text[5][16];
	snprintf(text[0], 16, "%d", (int)pid);
	snprintf(text[1], 16, "%u", own);
	snprintf(text[2], 16, "%u", first);
	snprintf(text[3], 16, "%u", count);
	pid_t child = fork();
	if (child < 0) return -1;
	if (child == 0) {
		execlp(program, program, text[0], "0", text[1], "1", "1", text[2], text[3], (char *)NULL);
		_exit(127);
	}
	int status;
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* From the file alone: a static program has no name service. */
static void user_name(char *out, size_t size)
{
	out[0] = 0;
	FILE *list = fopen("/etc/passwd", "re");
	if (!list) return;
	struct passwd *entry;
	while ((entry = fgetpwent(list)))
		if (entry->pw_uid == getuid()) {
			snprintf(out, size, "%s", entry->pw_name);
			break;
		}
	fclose(list);
}

/* The first range of /etc/subuid or /etc/subgid for this user that is large enough for a machine. */
static bool subordinate(const char *file, uint32_t *first, uint32_t *count)
{
	FILE *list = fopen(file, "re");
	if (!list) return false;
	char line[256], number[16], own_name[64];
	user_name(own_name, sizeof own_name);
	snprintf(number, sizeof number, "%u", getuid());
	bool found = false;
	while (!found && fgets(line, sizeof line, list)) {
		char *name = strtok(line, ":"), *start = strtok(NULL, ":"), *length = strtok(NULL, ":\n");
		if (!name || !start || !length || (strcmp(name, number) != 0 && strcmp(name, own_name) != 0)) continue;
		*first = (uint32_t)strtoul(start, NULL, 10);
		*count = (uint32_t)strtoul(length, NULL, 10);
		/* Id 0 is the user itself. */
		if (*count >= SLOT_IDS - 1) *count = SLOT_IDS - 1, found = true;
	}
	fclose(list);
	return found;
}

static int map_all(pid_t pid)
{
	uint32_t uid, uids, gid, gids;
	if (!subordinate("/etc/subuid", &uid, &uids) || !subordinate("/etc/subgid", &gid, &gids)) {
		snprintf(S.users_reason, sizeof S.users_reason, "/etc/subuid and /etc/subgid give this user no range of 65536 ids: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER");
		return -1;
	}
	if (run_map_program("newuidmap", pid, getuid(), uid, uids) == 0 && run_map_program("newgidmap", pid, getgid(), gid, gids) == 0) return 0;
	snprintf(S.users_reason, sizeof S.users_reason, "newuidmap and newgidmap are missing or refuse: apt-get install uidmap");
	return -1;
}

static int map_own(pid_t pid, uid_t uid, gid_t gid)
{
	char text[64];
	write_map(pid, "setgroups", "deny");
	snprintf(text, sizeof text, "0 %u 1\n", (unsigned)uid);
	if (write_map(pid, "uid_map", text) < 0) return -1;
	snprintf(text, sizeof text, "0 %u 1\n", (unsigned)gid);
	return write_map(pid, "gid_map", text);
}

/* The mapper stays outside and waits until the spawner is inside. */
static int enter_own(struct failure *failure)
{
	int go[2], done[2];
	if (pipe2(go, O_CLOEXEC) < 0 || pipe2(done, O_CLOEXEC) < 0) return fail_errno(failure, errno, "entering a user namespace");
	pid_t self = getpid();
	uid_t uid = getuid();
	gid_t gid = getgid();
	pid_t mapper = fork();
	if (mapper < 0) return fail_errno(failure, errno, "entering a user namespace");
	if (mapper == 0) {
		char byte;
		close(go[1]);
		if (read(go[0], &byte, 1) != 1) _exit(1);
		char answer[300];
		answer[0] = map_all(self) == 0 ? 'm' : map_own(self, uid, gid) == 0 ? 'o' : 'e';
		int length = 1 + snprintf(answer + 1, sizeof answer - 1, "%s", S.users_reason);
		_exit(write(done[1], answer, (size_t)length) != length);
	}
	close(done[1]);
	char answer[300] = {0};
	int result = unshare(CLONE_NEWUSER), error = errno;
	/* A change of credentials takes /proc/self away from us, and the mapper needs to write there. */
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	if (result == 0 && (write(go[1], "x", 1) != 1 || read(done[0], answer, sizeof answer - 1) < 1)) answer[0] = 'e';
	close(go[0]), close(go[1]), close(done[0]);
	waitpid(mapper, NULL, 0);
	if (result < 0) {
		explain(S.userns_reason, sizeof S.userns_reason, error);
		return fail_code(failure, "environment", "%s", S.userns_reason);
	}
	if (answer[0] != 'm' && answer[0] != 'o') return fail_code(failure, "environment", "mapping ids into a user namespace failed");
	S.multiple_ids = answer[0] == 'm';
	snprintf(S.users_reason, sizeof S.users_reason, "%.255s", answer + 1);
	if (S.multiple_ids) syscall(SYS_setgroups, 0, NULL);
	if (syscall(SYS_setresgid, 0, 0, 0) < 0 || syscall(SYS_setresuid, 0, 0, 0) < 0) return fail_errno(failure, errno, "becoming root of a user namespace");
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	return 0;
}

int userns_enter(struct failure *failure)
{
	if (!has_capability(CAP_SYS_ADMIN)) return enter_own(failure);
	uint64_t ids = mapped_ids("/proc/self/uid_map");
	S.privileged = ids >= (uint64_t)S.config.slot_base + (uint64_t)SLOTS * SLOT_IDS;
	S.multiple_ids = ids >= SLOT_IDS;
	if (!S.multiple_ids) snprintf(S.users_reason, sizeof S.users_reason, "this user namespace maps fewer than 65536 ids");
	return 0;
}

/* Whether a machine can have its own: one is made, and as root a tmpfs is mounted with its ids. */
void userns_probe(void)
{
	struct failure failure;
	int slot, fd;
	if (userns_slot_take(&slot, &fd, &failure) < 0) {
		explain(S.userns_reason, sizeof S.userns_reason, errno);
		return;
	}
	S.userns_works = true;
	if (S.privileged) {
		int fs = k_fsopen("tmpfs"), mount = -1;
		if (fs >= 0 && k_fsconfig(fs, MW_FSCONFIG_CMD_CREATE, NULL, NULL) == 0) mount = k_fsmount(fs, 0);
		struct mw_mount_attr attr = {.attr_set = MW_MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)fd};
		if (mount < 0 || k_mount_setattr(mount, "", AT_EMPTY_PATH, &attr) < 0) {
			S.userns_works = false;
			snprintf(S.userns_reason, sizeof S.userns_reason, "this kernel cannot map the ids of a tmpfs (%s); it needs Linux 6.3 or later", strerror(errno));
		}
		if (mount >= 0) close(mount);
		if (fs >= 0) close(fs);
	}
	userns_slot_return(slot, fd);
}

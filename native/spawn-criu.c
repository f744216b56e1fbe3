/*
 * The processes of a machine, kept in a directory and made again from it, by CRIU.
 *
 * CRIU runs beside the machine, in its network, its host name and its control group namespace: these are then not its business, so that a copy has its own. What it
 * makes again is the process tree with its pid and ipc namespaces, and the mounts: one that is no root, /proc or /dev/pts is "external", named by its place, and
 * taken from a machine that was made as any other is, whose init ends before it has begun.
 *
 * Two things lead out of a machine: init's listening socket and its lifeline. They are told by the numbers that their inodes had, and given anew.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* Of what cannot be restored it may wait for ever, and a machine that is kept stands still meanwhile. */
enum { CRIU_MOST_S = 120 };
enum { MOUNTS_MOST = 128, ARGUMENTS_MOST = 2 * MOUNTS_MOST + 48, INIT_LISTENER = 3 };
/* Of CRIU: where what it works with lies. */
enum { FD_IMAGES = 3, FD_GROUP = 4, FD_LIFELINE = 7, FD_LISTENER = 8 };
/* Of the tree helper that copies /dev/shm before it becomes CRIU. */
enum { FD_COPY_FROM = 5, FD_COPY_TO = 6 };

const char *criu_missing(void)
{
	if (!S.config.criu || access(S.config.criu, X_OK) < 0) return "there is no CRIU 4.2 or later (node scripts/build-criu.mjs builds it)";
	if (!S.privileged) return "it needs root";
	if (!S.freezer) return "this host cannot freeze machines";
	return NULL;
}

/* ---- arguments ---- */

struct arguments {
	char *list[ARGUMENTS_MOST];
	int count;
	bool failed;
};

static void add(struct arguments *arguments, const char *text)
{
	char *copy = arguments->count < ARGUMENTS_MOST - 1 ? strdup(text) : NULL;
	if (copy) arguments->list[arguments->count++] = copy;
	else arguments->failed = true;
}

static void add_all(struct arguments *arguments, const char *const *texts)
{
	for (; *texts; texts++) add(arguments, *texts);
}

static void free_all(struct arguments *arguments)
{
	for (int i = 0; i < arguments->count; i++) free(arguments->list[i]);
}

static bool plain(const char *text)
{
	return text[0] == '/' && !strpbrk(text, "]:\\\n") && strlen(text) < 200;
}

/* `--external` for each mount of the process's namespace that is not CRIU's to make; its place there is its name. `from`: where they are now, NULL for a dump. */
static int add_mounts(struct arguments *arguments, pid_t pid, const char *from, struct failure *failure)
{
	char path[64], line[8192];
	snprintf(path, sizeof path, "/proc/%d/mountinfo", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file) return fail_errno(failure, errno, "reading the mounts of a machine");
	bool sound = true;
	while (fgets(line, sizeof line, file)) {
		char place[4096], type[64];
		const char *rest = strstr(line, " - ");
		if (!rest || sscanf(line, "%*d %*d %*s %*s %4095s", place) != 1 || sscanf(rest, " - %63s", type) != 1) {
			sound = false;
			break;
		}
		if (strcmp(place, "/") == 0 || (strcmp(place, "/proc") == 0 && strcmp(type, "proc") == 0) || strcmp(type, "devpts") == 0) continue;
		char text[1024];
		if (!plain(place) || (size_t)snprintf(text, sizeof text, "mnt[%s]:%s%s", place, from ? from : "", place) >= sizeof text) {
			sound = false;
			break;
		}
		add(arguments, "--external");
		add(arguments, text);
	}
	fclose(file);
	return sound ? 0 : fail_code(failure, "unsupported", "a mount of the machine cannot be named to CRIU");
}

static const char *const COMMON[] = {"--images-dir", "/proc/self/fd/3", "--manage-cgroups=ignore", "--network-lock", "skip", "--tcp-established", "--ghost-limit", "64M",
				     "--file-locks", "-v1", NULL};

/* ---- in CRIU's process, before it is CRIU ---- */

struct surroundings {
	int namespaces[3];
	int namespace_count;
	int procs[PLAN_CGROUPS];
	int proc_count;
	int run; /* a file system in memory, where it remembers what this kernel can do */
	int tree, root; /* mounts of the machine; -1: none */
	bool first; /* a machine stands still for it */
};

static int attach(int mount_fd, const char *place)
{
	if (mkdir(place, 0700) < 0 && errno != EEXIST) return -1;
	return k_move_mount(mount_fd, "", AT_FDCWD, place, MW_MOVE_MOUNT_F_EMPTY_PATH);
}

static int enter(void *context)
{
	struct surroundings *to = context;
	for (int i = 0; i < to->proc_count; i++)
		if (write(to->procs[i], "0", 1) < 0) return -1;
	/* Of a machine to be: its root is to be the machine's own group. */
	if (to->proc_count > 0 && unshare(CLONE_NEWCGROUP) < 0) return -1;
	for (int i = 0; i < to->namespace_count; i++)
		if (setns(to->namespaces[i], 0) < 0) return -1;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return -1;
	if (k_move_mount(to->run, "", AT_FDCWD, "/run", MW_MOVE_MOUNT_F_EMPTY_PATH) < 0) return -1;
	if (to->tree >= 0 && attach(to->tree, "/run/r") < 0) return -1;
	if (to->first) helper_first(NULL);
	return to->root >= 0 && attach(to->root, "/run/m") < 0 ? -1 : 0;
}

/* What CRIU finds out about a kernel takes longer than all else that it does with a small machine, and is kept only in memory. */
static int run_mount(void)
{
	static int kept = -1;
	if (kept < 0) {
		int fs = k_fsopen("tmpfs");
		if (fs < 0) return -1;
		if (k_fsconfig(fs, MW_FSCONFIG_SET_STRING, "size", "1m") == 0 && k_fsconfig(fs, MW_FSCONFIG_SET_STRING, "mode", "0700") == 0 &&
		    k_fsconfig(fs, MW_FSCONFIG_CMD_CREATE, NULL, NULL) == 0)
			kept = keep_fd(k_fsmount(fs, MW_MOUNT_ATTR_NODEV | MW_MOUNT_ATTR_NOSUID));
		int error = errno;
		close(fs);
		if (kept < 0) return errno = error, -1;
	}
	return k_open_tree(kept, "", MW_OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH);
}

static int namespace_of(pid_t pid, const char *name)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static void leave(struct surroundings *to)
{
	int *const fds[] = {&to->namespaces[0], &to->namespaces[1], &to->namespaces[2], &to->run, &to->tree, &to->root};
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close_fd(fds[i]);
	for (int i = 0; i < to->proc_count; i++) close(to->procs[i]);
}

static const struct surroundings NOWHERE = {.namespaces = {-1, -1, -1}, .run = -1, .tree = -1, .root = -1};

static void stop_limit(struct machine *machine)
{
	unwatch(&machine->criu_limit);
	close_fd(&machine->criu_limit.fd);
}

/* Its end is then told as that of any other that was killed. */
static void took_too_long(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = (struct machine *)((char *)source - offsetof(struct machine, criu_limit));
	logf_("CRIU takes more than %d seconds for %s, and is given up", CRIU_MOST_S, machine->id);
	stop_limit(machine);
	if (machine->criu.pid > 0) k_pidfd_kill(machine->criu.source.fd, SIGKILL);
}

static int start(struct machine *machine, struct arguments *arguments, struct surroundings *to, const int fds[][2], int count, struct failure *failure)
{
	bool copies = strcmp(arguments->list[0], "tree") == 0;
	if (arguments->failed) return fail_code(failure, "limit", "the machine has too many mounts");
	arguments->list[arguments->count] = NULL;
	if ((to->run = run_mount()) < 0) return fail_errno(failure, errno, "making room for CRIU");
	struct itimerspec most = {.it_value = {.tv_sec = CRIU_MOST_S}};
	machine->criu_limit = (struct source){.handle = took_too_long, .fd = keep_fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))};
	if (machine->criu_limit.fd < 0 || timerfd_settime(machine->criu_limit.fd, 0, &most, NULL) < 0 || watch(&machine->criu_limit, EPOLLIN) < 0)
		return fail_errno(failure, errno, "limiting the time of CRIU");
	if (helper_start_in(&machine->criu, copies ? S.config.tree : S.config.criu, arguments->list, fds, count, enter, to) == 0) return 0;
	int error = errno;
	stop_limit(machine);
	return fail_errno(failure, error, "starting %s", S.config.criu);
}

/* Files in /dev/shm are memory. Their directory: open, or -1 where there are none to be copied. */
static int shm_to_copy(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || !S.config.tree) return fd < 0 ? -1 : (close(fd), -1);
	if (!directory_empty(fd)) return fd;
	close(fd);
	return -1;
}

static void add_copy(struct arguments *arguments)
{
	add(arguments, "tree");
	add(arguments, "--copy-then");
	add(arguments, S.config.criu);
}

static uint64_t inode_of(int fd)
{
	struct stat info;
	return fd >= 0 && fstat(fd, &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* What CRIU says first is why; the place in its source that comes before is left out. */
static int fail_criu(struct failure *failure, int directory, const char *log, int status, const char *what)
{
	char text[4096];
	int fd = openat(directory, log, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	if (fd >= 0) close(fd);
	text[length < 0 ? 0 : length] = 0;
	if (status < 0) return fail_code(failure, "criu", "CRIU was killed while it was %s", what);
	char *error = NULL;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char *at = strstr(line, "Error (");
		/* No fault: it goes on with the limit that it has. */
		if (!at || strstr(at, "Can't setup RLIMIT_NOFILE for self")) continue;
		char *says = strstr(at, "): ");
		error = says ? says + strlen("): ") : at;
		break;
	}
	return fail_code(failure, "criu", "%s with CRIU failed: %s", what, error ? error : "it does not say why");
}

/* ---- keeping ---- */

static uint64_t listener_of(const struct machine *machine)
{
	char path[64], target[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)machine->pid, INIT_LISTENER);
	ssize_t length = readlink(path, target, sizeof target - 1);
	unsigned long long number = 0;
	target[length < 0 ? 0 : length] = 0;
	return sscanf(target, "socket:[%llu]", &number) == 1 ? number : 0;
}

static struct machine *machine_of(struct source *source) { return (struct machine *)((char *)source - offsetof(struct machine, criu.source)); }

static void dumped(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = machine_of(source);
	int status = helper_ended(&machine->criu);
	stop_limit(machine);
	uint32_t ref = machine->criu_ref;
	uint64_t lifeline = inode_of(machine->lifeline), listener = listener_of(machine);
	machine->criu_ref = 0;
	struct failure failure;
	if (status == 0 && lifeline && listener) send_dumped(ref, lifeline, listener);
	else {
		fail_criu(&failure, machine->processes, "dump.log", status, "keeping processes");
		send_error(ref, failure.code, failure.message);
	}
	close_fd(&machine->processes);
}

static int dump_arguments(struct machine *machine, bool copies, struct arguments *arguments, struct failure *failure)
{
	char pid[16];
	snprintf(pid, sizeof pid, "%d", (int)machine->pid);
	if (copies) add_copy(arguments);
	const char *const own[] = {"criu", "dump", "--tree", pid, "--leave-running", "--log-file", "dump.log", "--freeze-cgroup", "/proc/self/fd/4", NULL};
	add_all(arguments, own);
	add_all(arguments, COMMON);
	return add_mounts(arguments, machine->pid, NULL, failure);
}

int processes_dump(struct machine *machine, const char *directory, uint32_t ref, struct failure *failure)
{
	static const char *const NAMESPACES[] = {"net", "uts", "cgroup"};
	if (criu_missing()) return fail_code(failure, "unsupported", "%s", criu_missing());
	if (!machine->apart) return fail_code(failure, "unsupported", "%s was not made so that its processes can be kept", machine->id);
	if (!machine->frozen || machine->criu.pid > 0) return fail_code(failure, "EBUSY", "%s does not stand still, or its processes are being kept", machine->id);
	struct surroundings to = NOWHERE;
	to.first = true;
	struct arguments arguments = {.count = 0};
	int images = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC), unified = -1, unused[PLAN_CGROUPS], unused_count;
	int result = images < 0 || null < 0 || cgroup_open(machine->group, unused, &unused_count, &unified) < 0 ? fail_errno(failure, errno, "keeping processes in %s", directory) : 0;
	for (int i = 0; images >= 0 && null >= 0 && i < unused_count; i++) close(unused[i]);
	for (int i = 0; result == 0 && i < 3; i++)
		if ((to.namespaces[to.namespace_count++] = namespace_of(machine->pid, NAMESPACES[i])) < 0) result = fail_errno(failure, errno, "opening a namespace of %s", machine->id);
	int from = shm_to_copy(machine->scratch, "shm"), into = -1;
	if (result == 0 && from >= 0 && (mkdirat(images, "shm", 0700) < 0 || (into = openat(images, "shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0))
		result = fail_errno(failure, errno, "keeping /dev/shm of %s", machine->id);
	if (result == 0) result = dump_arguments(machine, from >= 0, &arguments, failure);
	const int fds[][2] = {{null, 0}, {null, 1}, {2, 2}, {images, FD_IMAGES}, {unified, FD_GROUP}, {from, FD_COPY_FROM}, {into, FD_COPY_TO}};
	machine->criu.source.handle = dumped;
	if (result == 0) result = start(machine, &arguments, &to, fds, from >= 0 ? 7 : 5, failure);
	if (result == 0) {
		machine->criu_ref = ref;
		machine->processes = keep_fd(images);
		images = -1;
	}
	free_all(&arguments);
	leave(&to);
	close_fd(&images), close_fd(&null), close_fd(&unified), close_fd(&from), close_fd(&into);
	return result;
}

/* ---- restoring ---- */

static pid_t restored_pid(int directory)
{
	char text[32] = "";
	int fd = openat(directory, "pid", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || read(fd, text, sizeof text - 1) < 0) text[0] = 0;
	if (fd >= 0) close(fd);
	return (pid_t)atoi(text);
}

static int take_over(struct machine *machine, struct failure *failure)
{
	pid_t pid = restored_pid(machine->processes);
	int pidfd = pid > 1 ? k_pidfd_open(pid) : -1;
	if (pidfd < 0) return fail_errno(failure, pid > 1 ? errno : ESRCH, "finding the restored processes of %s", machine->id);
	machine->pid = pid;
	machine->source = (struct source){.handle = machine_exited, .fd = keep_fd(pidfd)};
	if (watch(&machine->source, EPOLLIN) < 0) return fail_errno(failure, errno, "watching %s", machine->id);
	record_write(machine);
	return machine_up(machine, failure);
}

static int end_process(pid_t pid, void *context)
{
	(void)context;
	kill(pid, SIGKILL);
	/* The root of what was restored is our child since CRIU's end; of another this says at once that it is none. */
	waitpid(pid, NULL, __WALL);
	return 0;
}

/* Of CRIU, which may have been killed in the middle of its work. */
static void end_remains(struct machine *machine)
{
	cgroup_each_process(machine->group, end_process, NULL);
	cgroup_kill(machine);
}

static void restored(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = machine_of(source);
	struct failure failure;
	int status = helper_ended(&machine->criu);
	stop_limit(machine);
	int result = status == 0 ? take_over(machine, &failure) : fail_criu(&failure, machine->processes, "restore.log", status, "restoring processes");
	static const char *const LEFT[] = {"pid", "restore.log", "stats-restore"};
	for (size_t i = 0; i < sizeof LEFT / sizeof *LEFT; i++) unlinkat(machine->processes, LEFT[i], 0);
	close_fd(&machine->processes);
	if (result == 0 && machine->slirp.pid > 0) return; /* answered when the network is up */
	machine->create_pending = false;
	if (result == 0) {
		send_created(machine, machine->create_ref);
		return;
	}
	send_error(machine->create_ref, failure.code, failure.message);
	end_remains(machine);
	machine_dispose(machine);
}

/* The init that waits in the machine has done its part: what it was made with is taken from it. */
static int replace_init(struct machine *machine, int *listener, int ends[2], struct failure *failure)
{
	*listener = (int)syscall(SYS_pidfd_getfd, machine->source.fd, INIT_LISTENER, 0);
	if (*listener < 0 || pipe2(ends, O_CLOEXEC) < 0) return fail_errno(failure, errno, "taking over from the init of %s", machine->id);
	unwatch(&machine->source);
	kill(machine->pid, SIGKILL);
	waitpid(machine->pid, NULL, __WALL);
	machine->pid = 0;
	close_fd(&machine->source.fd);
	close_fd(&machine->lifeline);
	if ((machine->lifeline = keep_fd(ends[1])) < 0) return fail_errno(failure, errno, "making the lifeline of %s", machine->id);
	return 0;
}

static int restore_arguments(struct machine *machine, const struct create_request *request, bool copies, struct arguments *arguments, struct failure *failure)
{
	if (copies) add_copy(arguments);
	char lifeline[64], listener[64];
	snprintf(lifeline, sizeof lifeline, "fd[%d]:pipe:[%llu]", FD_LIFELINE, (unsigned long long)request->lifeline);
	snprintf(listener, sizeof listener, "fd[%d]:socket:[%llu]", FD_LISTENER, (unsigned long long)request->listener);
	const char *const own[] = {"criu", "restore", "--restore-detached", "--root", "/run/m", "--work-dir", "/proc/self/fd/4", "--log-file", "restore.log", "--pidfile", "pid",
				   "--inherit-fd", lifeline, "--inherit-fd", listener, NULL};
	add_all(arguments, own);
	add_all(arguments, COMMON);
	return add_mounts(arguments, machine->pid, "/run/r", failure);
}

int processes_restore(struct machine *machine, const struct create_request *request, struct failure *failure)
{
	struct surroundings to = NOWHERE;
	struct arguments arguments = {.count = 0};
	char directory[PATH_BYTES];
	snprintf(directory, sizeof directory, "%s/%s", S.config.run, machine->id);
	int images = open(request->processes, O_RDONLY | O_DIRECTORY | O_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC), listener = -1, unified = -1, ends[2] = {-1, -1};
	machine->processes = keep_fd(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	int result = images < 0 || null < 0 || machine->processes < 0 ? fail_errno(failure, errno, "opening %s", request->processes) : 0;
	int from = images < 0 ? -1 : shm_to_copy(images, "shm"), into = from < 0 ? -1 : openat(machine->scratch, "shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (result == 0) result = restore_arguments(machine, request, from >= 0, &arguments, failure);
	if (result == 0) result = root_clone(machine->mntns, &to.tree, &to.root, failure);
	if (result == 0 && cgroup_open(machine->group, to.procs, &to.proc_count, &unified) < 0) result = fail_errno(failure, errno, "opening the control groups of %s", machine->id);
	if (result == 0) {
		to.namespaces[to.namespace_count++] = fcntl(machine->netns, F_DUPFD_CLOEXEC, 0);
		to.namespaces[to.namespace_count++] = fcntl(machine->utsns, F_DUPFD_CLOEXEC, 0);
		result = replace_init(machine, &listener, ends, failure);
	}
	const int fds[][2] = {{null, 0}, {null, 1}, {2, 2}, {images, FD_IMAGES}, {machine->processes, FD_GROUP}, {ends[0], FD_LIFELINE}, {listener, FD_LISTENER}, {from, FD_COPY_FROM}, {into, FD_COPY_TO}};
	machine->criu.source.handle = restored;
	if (result == 0) result = start(machine, &arguments, &to, fds, from >= 0 ? 9 : 7, failure);
	machine->create_pending = result == 0;
	free_all(&arguments);
	leave(&to);
	close_fd(&images), close_fd(&null), close_fd(&unified), close_fd(&listener), close_fd(&ends[0]), close_fd(&from), close_fd(&into);
	return result;
}

/* The machine ends, or has ended. */
void criu_stop(struct machine *machine)
{
	bool restoring = machine->processes >= 0 && !machine->criu_ref;
	helper_stop(&machine->criu);
	stop_limit(machine);
	close_fd(&machine->processes);
	if (restoring) end_remains(machine);
	if (machine->criu_ref) send_error(machine->criu_ref, "gone", "the machine ended while its processes were kept");
	machine->criu_ref = 0;
	if (!restoring || !machine->create_pending) return;
	machine->create_pending = false;
	send_error(machine->create_ref, "gone", "the machine ended before its processes were restored");
}

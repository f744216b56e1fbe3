/*
 * The processes of a machine, kept in a directory and made again from it, by CRIU.
 *
 * CRIU runs beside the machine, in its network, its host name and its control group namespace: these are then not its business, so that a copy has its own. What it
 * makes again is the process tree with its pid and ipc namespaces, and the mounts: one that is no root, /proc or /dev/pts is "external", named by its place, and
 * taken from a machine that was made as any other is, whose init ends before it has begun.
 *
 * Two things lead out of a machine: init's listening socket and its lifeline. They are told by the numbers that their inodes had, and given anew.
 */
#include "spawn-criu.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

enum { INIT_LISTENER = 3 };

const char *criu_missing(void)
{
	if (!S.config.criu || access(S.config.criu, X_OK) < 0) return "there is no CRIU 4.2 or later (node scripts/build-criu.mjs builds it)";
	if (!S.privileged) return "it needs root";
	if (!S.freezer) return "this host cannot freeze machines";
	return NULL;
}

/* ---- keeping ---- */

static uint64_t inode_of(int fd)
{
	struct stat info;
	return fd >= 0 && fstat(fd, &info) == 0 ? (uint64_t)info.st_ino : 0;
}

static uint64_t listener_of(const struct machine *machine)
{
	char path[64], target[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)machine->pid, INIT_LISTENER);
	ssize_t length = readlink(path, target, sizeof target - 1);
	unsigned long long number = 0;
	target[length < 0 ? 0 : length] = 0;
	return sscanf(target, "socket:[%llu]", &number) == 1 ? number : 0;
}

static int namespace_of(pid_t pid, const char *name)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static struct machine *machine_of(struct source *source) { return (struct machine *)((char *)source - offsetof(struct machine, criu.source)); }

static void dumped(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = machine_of(source);
	int status = helper_ended(&machine->criu);
	criu_stop_limit(machine);
	uint32_t ref = machine->criu_ref;
	uint64_t lifeline = inode_of(machine->lifeline), listener = listener_of(machine);
	machine->criu_ref = 0;
	struct failure failure;
	if (status == 0 && lifeline && listener) send_dumped(ref, lifeline, listener);
	else {
		criu_fail(&failure, machine->processes, "dump.log", status, "keeping processes");
		send_error(ref, failure.code, failure.message);
	}
	close_fd(&machine->processes);
}

static int dump_arguments(struct machine *machine, bool copies, struct criu_arguments *arguments, struct failure *failure)
{
	char pid[16];
	snprintf(pid, sizeof pid, "%d", (int)machine->pid);
	if (copies) criu_add_copy(arguments);
	const char *const own[] = {"criu", "dump", "--tree", pid, "--leave-running", "--log-file", "dump.log", "--freeze-cgroup", "/proc/self/fd/4", NULL};
	criu_add_all(arguments, own);
	criu_add_all(arguments, CRIU_COMMON);
	return criu_add_mounts(arguments, machine->pid, NULL, failure);
}

int processes_dump(struct machine *machine, const char *directory, uint32_t ref, struct failure *failure)
{
	static const char *const NAMESPACES[] = {"net", "uts", "cgroup"};
	if (criu_missing()) return fail_code(failure, "unsupported", "%s", criu_missing());
	if (!machine->apart) return fail_code(failure, "unsupported", "%s was not made so that its processes can be kept", machine->id);
	if (!machine->frozen || machine->criu.pid > 0) return fail_code(failure, "EBUSY", "%s does not stand still, or its processes are being kept", machine->id);
	if (vfork_waits(machine)) return fail_code(failure, "vfork", "a process waits in vfork for its child to run another program");
	struct criu_surroundings to = CRIU_NOWHERE;
	to.first = true;
	struct criu_arguments arguments = {.count = 0};
	int images = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC), unified = -1, unused[PLAN_CGROUPS], unused_count;
	int result = images < 0 || null < 0 || cgroup_open(machine->group, unused, &unused_count, &unified) < 0 ? fail_errno(failure, errno, "keeping processes in %s", directory) : 0;
	for (int i = 0; images >= 0 && null >= 0 && i < unused_count; i++) close(unused[i]);
	for (int i = 0; result == 0 && i < 3; i++)
		if ((to.namespaces[to.namespace_count++] = namespace_of(machine->pid, NAMESPACES[i])) < 0) result = fail_errno(failure, errno, "opening a namespace of %s", machine->id);
	int from = criu_shm(machine->scratch, "shm"), into = -1;
	if (result == 0 && from >= 0 && (mkdirat(images, "shm", 0700) < 0 || (into = openat(images, "shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0))
		result = fail_errno(failure, errno, "keeping /dev/shm of %s", machine->id);
	if (result == 0) result = dump_arguments(machine, from >= 0, &arguments, failure);
	const int fds[][2] = {{null, 0}, {null, 1}, {2, 2}, {images, FD_IMAGES}, {unified, FD_GROUP}, {from, FD_COPY_FROM}, {into, FD_COPY_TO}};
	machine->criu.source.handle = dumped;
	if (result == 0) result = criu_start(machine, &arguments, &to, fds, from >= 0 ? 7 : 5, failure);
	if (result == 0) {
		machine->criu_ref = ref;
		machine->processes = keep_fd(images);
		images = -1;
	}
	criu_free(&arguments);
	criu_leave(&to);
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
	criu_stop_limit(machine);
	int result = status == 0 ? take_over(machine, &failure) : criu_fail(&failure, machine->processes, "restore.log", status, "restoring processes");
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

static int restore_arguments(struct machine *machine, const struct create_request *request, bool copies, struct criu_arguments *arguments, struct failure *failure)
{
	if (copies) criu_add_copy(arguments);
	char lifeline[64], listener[64];
	snprintf(lifeline, sizeof lifeline, "fd[%d]:pipe:[%llu]", FD_LIFELINE, (unsigned long long)request->lifeline);
	snprintf(listener, sizeof listener, "fd[%d]:socket:[%llu]", FD_LISTENER, (unsigned long long)request->listener);
	const char *const own[] = {"criu", "restore", "--restore-detached", "--root", "/run/m", "--work-dir", "/proc/self/fd/4", "--log-file", "restore.log", "--pidfile", "pid",
				   "--inherit-fd", lifeline, "--inherit-fd", listener, NULL};
	criu_add_all(arguments, own);
	criu_add_all(arguments, CRIU_COMMON);
	return criu_add_mounts(arguments, machine->pid, "/run/r", failure);
}

int processes_restore(struct machine *machine, const struct create_request *request, struct failure *failure)
{
	struct criu_surroundings to = CRIU_NOWHERE;
	struct criu_arguments arguments = {.count = 0};
	char directory[PATH_BYTES];
	snprintf(directory, sizeof directory, "%s/%s", S.config.run, machine->id);
	int images = open(request->processes, O_RDONLY | O_DIRECTORY | O_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC), listener = -1, unified = -1, ends[2] = {-1, -1};
	machine->processes = keep_fd(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	int result = images < 0 || null < 0 || machine->processes < 0 ? fail_errno(failure, errno, "opening %s", request->processes) : 0;
	int from = images < 0 ? -1 : criu_shm(images, "shm"), into = from < 0 ? -1 : openat(machine->scratch, "shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
	if (result == 0) result = criu_start(machine, &arguments, &to, fds, from >= 0 ? 9 : 7, failure);
	machine->create_pending = result == 0;
	criu_free(&arguments);
	criu_leave(&to);
	close_fd(&images), close_fd(&null), close_fd(&unified), close_fd(&listener), close_fd(&ends[0]), close_fd(&from), close_fd(&into);
	return result;
}

/* The machine ends, or has ended. */
void criu_stop(struct machine *machine)
{
	bool restoring = machine->processes >= 0 && !machine->criu_ref;
	helper_stop(&machine->criu);
	criu_stop_limit(machine);
	close_fd(&machine->processes);
	if (restoring) end_remains(machine);
	if (machine->criu_ref) send_error(machine->criu_ref, "gone", "the machine ended while its processes were kept");
	machine->criu_ref = 0;
	if (!restoring || !machine->create_pending) return;
	machine->create_pending = false;
	send_error(machine->create_ref, "gone", "the machine ended before its processes were restored");
}

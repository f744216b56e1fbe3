/*
 * CRIU as a process beside a machine: what it is told, where it stands, how long it may take, and what it says when it fails.
 */
#include "spawn-criu.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Of what cannot be restored it may wait for ever, and a machine that is kept stands still meanwhile. */
enum { CRIU_MOST_S = 120 };

const char *const CRIU_COMMON[] = {"--images-dir", "/proc/self/fd/3", "--manage-cgroups=ignore", "--network-lock", "skip", "--tcp-established", "--ghost-limit", "64M",
				     "--file-locks", "-v1", NULL};

static void add(struct criu_arguments *arguments, const char *text)
{
	char *copy = arguments->count < ARGUMENTS_MOST - 1 ? strdup(text) : NULL;
	if (copy) arguments->list[arguments->count++] = copy;
	else arguments->failed = true;
}

void criu_add_all(struct criu_arguments *arguments, const char *const *texts)
{
	for (; *texts; texts++) add(arguments, *texts);
}

void criu_free(struct criu_arguments *arguments)
{
	for (int i = 0; i < arguments->count; i++) free(arguments->list[i]);
}

static bool plain(const char *text)
{
	return text[0] == '/' && !strpbrk(text, "]:\\\n") && strlen(text) < 200;
}

int criu_add_mounts(struct criu_arguments *arguments, pid_t pid, const char *from, struct failure *failure)
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

/* ---- in CRIU's process, before it is CRIU ---- */

static int attach(int mount_fd, const char *place)
{
	if (mkdir(place, 0700) < 0 && errno != EEXIST) return -1;
	return k_move_mount(mount_fd, "", AT_FDCWD, place, MW_MOVE_MOUNT_F_EMPTY_PATH);
}

static int enter(void *context)
{
	struct criu_surroundings *to = context;
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

void criu_leave(struct criu_surroundings *to)
{
	int *const fds[] = {&to->namespaces[0], &to->namespaces[1], &to->namespaces[2], &to->run, &to->tree, &to->root};
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close_fd(fds[i]);
	for (int i = 0; i < to->proc_count; i++) close(to->procs[i]);
}

void criu_stop_limit(struct machine *machine)
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
	criu_stop_limit(machine);
	if (machine->criu.pid > 0) k_pidfd_kill(machine->criu.source.fd, SIGKILL);
}

int criu_start(struct machine *machine, struct criu_arguments *arguments, struct criu_surroundings *to, const int fds[][2], int count, struct failure *failure)
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
	criu_stop_limit(machine);
	return fail_errno(failure, error, "starting %s", S.config.criu);
}

int criu_shm(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || !S.config.tree) return fd < 0 ? -1 : (close(fd), -1);
	if (!directory_empty(fd)) return fd;
	close(fd);
	return -1;
}

void criu_add_copy(struct criu_arguments *arguments)
{
	add(arguments, "tree");
	add(arguments, "--copy-then");
	add(arguments, S.config.criu);
}

/* What CRIU says first is why; the place in its source that comes before is left out. */
int criu_fail(struct failure *failure, int directory, const char *log, int status, const char *what)
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

/*
 * A machine gets its root. Its init waits in a copy of the nursery (spawn-blank.c); the spawner enters that mount namespace for a moment, attaches the layers there,
 * mounts the overlay, moves /proc, /dev and /sys into it, lays it over the nursery, and comes back. No second process is needed for that: making one would cost
 * as much as the mounts.
 *
 * Nothing of the machine runs yet but init, which does nothing before it is told. Images are the only input: what they hold is seen from within the nursery.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/securebits.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static struct {
	int mntns, root, directory;
} home = {-1, -1, -1};

static int keep_open(const char *path, int flags) { return keep_fd(open(path, flags | O_CLOEXEC)); }

/* Where the spawner comes back to. Its root may not be that of its mount namespace. */
int root_start(struct failure *failure)
{
	home.mntns = keep_open("/proc/self/ns/mnt", O_RDONLY);
	home.root = keep_open("/", O_PATH | O_DIRECTORY);
	home.directory = keep_open(".", O_PATH | O_DIRECTORY);
	return home.mntns < 0 || home.root < 0 || home.directory < 0 ? fail_errno(failure, errno, "opening the spawner's own mount namespace") : 0;
}

/* A spawner that cannot come back must not go on: its paths would be a machine's. Its machines end with it. */
static void come_back(void)
{
	if (setns(home.mntns, CLONE_NEWNS) == 0 && fchdir(home.root) == 0 && chroot(".") == 0 && fchdir(home.directory) == 0) return;
	logf_("spawn: coming back from a machine's mount namespace: %s", strerror(errno));
	abort();
}

static int attach(int mount, const char *target) { return k_move_mount(mount, "", AT_FDCWD, target, MW_MOVE_MOUNT_F_EMPTY_PATH); }

static int mount_overlays(const struct root_plan *plan, struct failure *failure)
{
	if (mount("overlay", "/m", "overlay", MS_NODEV, plan->overlay_options) < 0) return fail_errno(failure, errno, "mounting the overlay");
	for (int i = 0; i < plan->part_count; i++)
		if (mount("overlay", plan->parts[i].target, "overlay", MS_NODEV, plan->parts[i].options) < 0)
			return fail_errno(failure, errno, "mounting the overlay of the part %s", plan->parts[i].target + strlen("/m"));
	return 0;
}

/*
 * An overlay makes files as its mounter. Through mounts with mapped ids only the machine's ids exist, so the mounter is the machine's root, with the host's
 * capabilities; otherwise the overlay would be read-only.
 */
static int mount_as_inner_root(const struct root_plan *plan, struct failure *failure)
{
	if (plan->root_id == 0) return mount_overlays(plan, failure);
	int bits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
	if (bits < 0 || prctl(PR_SET_SECUREBITS, bits | SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0) return fail_errno(failure, errno, "becoming a machine's root for its overlay");
	syscall(SYS_setfsgid, plan->root_id);
	syscall(SYS_setfsuid, plan->root_id);
	int result = mount_overlays(plan, failure);
	syscall(SYS_setfsuid, 0);
	syscall(SYS_setfsgid, 0);
	prctl(PR_SET_SECUREBITS, bits, 0, 0, 0);
	return result;
}

static int lay_over(const struct root_plan *plan)
{
	if (chdir("/m") < 0) return -1;
	if (plan->userns) {
		/*
		 * The new root is laid over the nursery's, which then nothing can reach: `..` ends at the topmost mount of the namespace's root, and taking
		 * mounts away needs power over the namespace that nobody inside has (a copy of it made inside is locked together). Unmounting the nursery
		 * instead would wait for every processor, which takes longer than all other mounts together, milliseconds on a busy host.
		 */
		if (mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0) return -1;
		return chdir("/");
	}
	/* Takes init along. */
	if (k_pivot_root(".", ".") < 0 || umount2(".", MNT_DETACH) < 0) return -1;
	return chdir("/");
}

/*
 * An image may have no such file, or a link to nowhere: then the machine has no resolver configuration of ours. A link of the image or of an agent may also lead
 * to what we mounted (the null device, init): only a file of the overlay is covered.
 */
static int cover_resolv(int resolv)
{
	struct statfs where;
	struct stat what;
	int fd = open("/etc/resolv.conf", O_PATH | O_CLOEXEC), result = 0;
	if (fd < 0) return 0;
	if (fstat(fd, &what) == 0 && S_ISREG(what.st_mode) && fstatfs(fd, &where) == 0 && (uint32_t)where.f_type == 0x794c7630 /* overlay */)
		result = k_move_mount(resolv, "", fd, "", MW_MOVE_MOUNT_F_EMPTY_PATH | 0x40 /* T_EMPTY_PATH */);
	int error = errno;
	close(fd);
	errno = error;
	return result;
}

static int build(const struct root_plan *plan, struct failure *failure)
{
	static const char *const SYSTEM[] = {"/proc", "/dev", "/sys"};
	for (int i = 0; i < plan->layer_count; i++) {
		char path[16];
		snprintf(path, sizeof path, "/l/%03d", i);
		if (attach(plan->layers[i], path) < 0) return fail_errno(failure, errno, "attaching a layer");
	}
	if (mount_as_inner_root(plan, failure) < 0) return -1;
	for (size_t i = 0; i < sizeof SYSTEM / sizeof *SYSTEM; i++) {
		char target[16];
		snprintf(target, sizeof target, "/m%s", SYSTEM[i]);
		if (mount(SYSTEM[i], target, NULL, MS_MOVE, NULL) < 0) return fail_errno(failure, errno, "mounting %s", SYSTEM[i]);
	}
	if (lay_over(plan) < 0) return fail_errno(failure, errno, "making the overlay the root");
	if (plan->resolv >= 0 && cover_resolv(plan->resolv) < 0) return fail_errno(failure, errno, "mounting /etc/resolv.conf");
	return 0;
}

int root_make(int mntns, const struct root_plan *plan, struct failure *failure)
{
	if (setns(mntns, CLONE_NEWNS) < 0) return fail_errno(failure, errno, "entering a machine's mount namespace");
	int result = build(plan, failure);
	come_back();
	return result;
}

/* Detached copies of everything that is mounted in the machine, and of its root alone: the caller's. */
int root_clone(int mntns, int *tree, int *root, struct failure *failure)
{
	if (setns(mntns, CLONE_NEWNS) < 0) return fail_errno(failure, errno, "entering a machine's mount namespace");
	*tree = k_open_tree(AT_FDCWD, "/", MW_OPEN_TREE_CLONE | MW_AT_RECURSIVE | O_CLOEXEC);
	*root = k_open_tree(AT_FDCWD, "/", MW_OPEN_TREE_CLONE | O_CLOEXEC);
	int error = errno;
	come_back();
	return *tree < 0 || *root < 0 ? fail_errno(failure, error, "copying a machine's mounts") : 0;
}

/* ---- network and host name ---- */

struct visit {
	int netns, utsns;
	const struct create_request *request;
	int *listeners;
	int count; /* of the listeners that were made */
	const char *failed; /* NULL: nothing */
	int error;
};

static bool renamed(const struct create_request *request) { return strcmp(request->hostname, DEFAULT_HOSTNAME) != 0; }

static int listen_at(uint16_t port)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (fd < 0) return -1;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 128) == 0) return fd;
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

/* Shares our memory and descriptors while we wait; what it opens is ours when it is gone. */
static int visit_main(void *context)
{
	struct visit *visit = context;
	visit->failed = "entering a machine's network";
	if (setns(visit->netns, CLONE_NEWNET) < 0) goto out;
	visit->failed = "listening on a service port";
	for (; visit->count < visit->request->service_count; visit->count++)
		if ((visit->listeners[visit->count] = listen_at(visit->request->services[visit->count].port)) < 0) goto out;
	visit->failed = "setting the host name";
	if (renamed(visit->request) && (setns(visit->utsns, CLONE_NEWUTS) < 0 || sethostname(visit->request->hostname, strlen(visit->request->hostname)) < 0)) goto out;
	visit->failed = NULL;
out:
	visit->error = errno;
	syscall(SYS_exit, 0);
	return 0;
}

/*
 * Listens on the service ports, on the loopback of the machine's network, and sets the host name where it is not the usual one. By a process of its own: an
 * ordinary user's spawner could not come back to the host's network. The listeners are the caller's; nothing inside has a connection to the host.
 */
int root_services(int netns, int utsns, const struct create_request *request, int *listeners, struct failure *failure)
{
	static char *stack;
	enum { STACK = 16384 };
	if (request->service_count == 0 && !renamed(request)) return 0;
	if (!stack) {
		stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stack == MAP_FAILED) return stack = NULL, fail_errno(failure, errno, "making the services");
	}
	static struct visit visit;
	visit = (struct visit){.netns = netns, .utsns = utsns, .request = request, .listeners = listeners};
	pid_t pid = clone(visit_main, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &visit);
	if (pid < 0) return fail_errno(failure, errno, "making the services");
	waitpid(pid, NULL, __WALL);
	int kept = 0;
	while (kept < visit.count && (listeners[kept] = keep_fd(listeners[kept])) >= 0) kept++;
	if (!visit.failed && kept == visit.count) return 0;
	int error = visit.failed ? visit.error : errno;
	for (int i = 0; i < visit.count; i++) close_fd(&listeners[i]);
	return fail_errno(failure, error, "%s", visit.failed ? visit.failed : "keeping the services");
}

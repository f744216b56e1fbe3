/*
 * Starts another program where an OCI runtime needs more than it makes itself (docs/internals/native.md, "OCI"):
 *
 *   oci [--with-parent] [--hide PATH] [--root OPTIONS [--part TARGET OPTIONS]...] [--listen PATH]
 *       [--network [--name NAME] [--service PORT TARGET]...] -- PROGRAM ARGUMENT...
 *
 *   --with-parent  the program is killed when whoever started it ends
 *   --hide    unmounts PATH, if something is mounted there
 *   --root    mounts an overlay at ./rootfs; --part another one below it, at a path that leads through no link
 *   --listen  a unix socket at PATH, which the program has as descriptor 3; descriptor 4, if it is open, is told by one byte that it listens
 *
 *   --network a network namespace with loopback alone; --service: a port on it that leads to the unix socket TARGET, which is told NAME and PORT (oci-forward.c)
 *
 * Mounts are made and unmounted in a mount namespace of its own, which ends with the last process in it. The program is looked up on no path.
 */
#include "oci.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "spawn-kernel.h"

enum { LISTENER_FD = 3, TOLD_FD = 4, BACKLOG = 64 };

void fail(const char *what, const char *path)
{
	fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
	exit(70);
}

static void own_mounts(void)
{
	static bool done;
	if (done) return;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) fail("making a mount namespace for", "a machine");
	done = true;
}

/* Checked afterwards: it may have ended before. */
void end_with_parent(void)
{
	pid_t parent = getppid();
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) fail("ending with", "the parent");
	if (getppid() != parent) exit(0);
}

static void hide(const char *path)
{
	own_mounts();
	if (umount2(path, MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT) fail("unmounting", path);
}

static void mount_root(const char *options)
{
	own_mounts();
	if (mount("overlay", "rootfs", "overlay", MS_NODEV, options) < 0) fail("mounting the image's layers at", "rootfs");
}

/* What lies below the root was written by others: a link in it would lead out. */
static void mount_part(const char *target, const char *options)
{
	char at[32];
	struct mw_open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = MW_RESOLVE_BENEATH | MW_RESOLVE_NO_SYMLINKS | MW_RESOLVE_NO_MAGICLINKS};
	int root = open("rootfs", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = root < 0 ? -1 : k_openat2(root, target, &how);
	if (fd < 0) fail("opening the part", target);
	snprintf(at, sizeof at, "/proc/self/fd/%d", fd);
	if (mount("overlay", at, "overlay", MS_NODEV, options) < 0) fail("mounting the layers of the part", target);
	close(fd);
	close(root);
}

static void listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof address.sun_path) errno = ENAMETOOLONG, fail("listening at", path);
	strcpy(address.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, BACKLOG) < 0 || dup2(fd, LISTENER_FD) < 0) fail("listening at", path);
	if (fd == LISTENER_FD) fcntl(fd, F_SETFD, 0);
	if (write(TOLD_FD, "", 1) < 0 && errno != EBADF) fail("telling that it listens at", path);
}

int main(int argc, char **argv)
{
	const char *name = "";
	int i = 1;
	for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
		if (strcmp(argv[i], "--with-parent") == 0) end_with_parent();
		else if (strcmp(argv[i], "--hide") == 0 && i + 1 < argc) hide(argv[++i]);
		else if (strcmp(argv[i], "--root") == 0 && i + 1 < argc) mount_root(argv[++i]);
		else if (strcmp(argv[i], "--part") == 0 && i + 2 < argc) mount_part(argv[i + 1], argv[i + 2]), i += 2;
		else if (strcmp(argv[i], "--listen") == 0 && i + 1 < argc) listen_at(argv[++i]);
		else if (strcmp(argv[i], "--network") == 0) network_make();
		else if (strcmp(argv[i], "--name") == 0 && i + 1 < argc) name = argv[++i];
		else if (strcmp(argv[i], "--service") == 0 && i + 2 < argc) service_listen(argv[i + 1], argv[i + 2]), i += 2;
		else errno = EINVAL, fail("reading the flag", argv[i]);
	}
	if (i + 1 >= argc) errno = EINVAL, fail("finding a program behind", "--");
	services_forward(name, argv + i + 1);
	execv(argv[i + 1], argv + i + 1);
	fail("starting", argv[i + 1]);
}

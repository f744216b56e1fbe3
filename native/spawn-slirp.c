/*
 * Public networks: one slirp4netns per machine carries its traffic in user mode. The host's loopback is out of its reach. Creation is answered when the
 * network is up.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>

/* Why there are no public networks here, with the remedy; NULL when there are. */
const char *slirp_missing(void)
{
	if (!S.config.slirp || access(S.config.slirp, X_OK) < 0) return "slirp4netns is not installed (apt-get install slirp4netns)";
	if (access("/dev/net/tun", F_OK) < 0) return "there is no /dev/net/tun (modprobe tun; in a container, pass the device in)";
	if (access("/dev/net/tun", R_OK | W_OK) < 0) return "/dev/net/tun cannot be opened by this user (chmod 666 /dev/net/tun)";
	return NULL;
}

/* A detached mount of a file that names slirp4netns's own resolver. */
int slirp_resolv(struct failure *failure)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/resolv.conf", S.config.run);
	if (access(path, R_OK) < 0) {
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
		static const char TEXT[] = "nameserver 10.0.2.3\n";
		if (fd < 0 || fchmod(fd, 0644) < 0 || write(fd, TEXT, sizeof TEXT - 1) < 0) {
			int error = errno;
			if (fd >= 0) close(fd);
			return fail_errno(failure, error, "writing %s", path);
		}
		close(fd);
	}
	int fd = k_open_tree(AT_FDCWD, path, MW_OPEN_TREE_CLONE | O_CLOEXEC);
	if (fd < 0) return fail_errno(failure, errno, "opening %s", path);
	struct mw_mount_attr attr = {.attr_set = MW_MOUNT_ATTR_RDONLY | MW_MOUNT_ATTR_NOSUID | MW_MOUNT_ATTR_NODEV | MW_MOUNT_ATTR_NOEXEC};
	if (k_mount_setattr(fd, "", AT_EMPTY_PATH, &attr) == 0) return fd;
	int error = errno;
	close(fd);
	return fail_errno(failure, error, "preparing %s", path);
}

static void slirp_exited(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = (struct machine *)((char *)source - offsetof(struct machine, slirp.source));
	helper_stop(&machine->slirp);
	if (machine->create_pending) {
		machine->create_pending = false;
		send_error(machine->create_ref, "network", "slirp4netns ended before the network was up");
	}
	/* A machine that was promised a network and lost it is not what was asked for. */
	machine_end(machine, END_LOST);
}

static void slirp_ready(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = (struct machine *)((char *)source - offsetof(struct machine, slirp_up));
	char byte;
	ssize_t got = read(source->fd, &byte, 1);
	unwatch(source);
	close_fd(&source->fd);
	if (got != 1 || !machine->create_pending) return;
	machine->create_pending = false;
	send_created(machine, machine->create_ref);
}

int slirp_start(struct machine *machine, struct failure *failure)
{
	int stop[2], up[2];
	if (pipe2(stop, O_CLOEXEC) < 0) return fail_errno(failure, errno, "starting slirp4netns");
	if (pipe2(up, O_CLOEXEC) < 0) {
		int error = errno;
		close(stop[0]), close(stop[1]);
		return fail_errno(failure, error, "starting slirp4netns");
	}
	char netns[64];
	snprintf(netns, sizeof netns, "/proc/%d/ns/net", (int)machine->pid);
	char *const argv[] = {(char *)"slirp4netns", (char *)"--configure", (char *)"--mtu=65520", (char *)"--disable-host-loopback", (char *)"--enable-sandbox", (char *)"--enable-seccomp", (char *)"--exit-fd=3",
			      (char *)"--ready-fd=4", (char *)"--netns-type=path", netns, (char *)"tap0", NULL};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	const int fds[][2] = {{null, 0}, {null, 1}, {null, 2}, {stop[0], 3}, {up[1], 4}};
	machine->slirp.source.handle = slirp_exited;
	int result = null < 0 ? -1 : helper_start(&machine->slirp, S.config.slirp, argv, fds, 5);
	int error = errno;
	close(stop[0]);
	close(up[1]);
	if (null >= 0) close(null);
	if (result < 0) {
		close(stop[1]), close(up[0]);
		return fail_errno(failure, error, "starting %s", S.config.slirp);
	}
	machine->slirp_exit = keep_fd(stop[1]);
	machine->slirp_up = (struct source){.handle = slirp_ready, .fd = keep_fd(up[0])};
	if (watch(&machine->slirp_up, EPOLLIN) < 0) return fail_errno(failure, errno, "watching slirp4netns");
	machine->create_pending = true;
	return 0;
}

void slirp_stop(struct machine *machine)
{
	helper_stop(&machine->slirp);
	close_fd(&machine->slirp_exit);
	if (machine->slirp_up.fd >= 0) {
		unwatch(&machine->slirp_up);
		close_fd(&machine->slirp_up.fd);
	}
	if (!machine->create_pending) return;
	machine->create_pending = false;
	send_error(machine->create_ref, "gone", "the machine ended before its network was up");
}

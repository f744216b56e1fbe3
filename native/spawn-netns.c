/*
 * Network namespaces with loopback up. Making one is the longest single step of a machine. None is used twice.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct making {
	int fd;
	int socket; /* of unix, in that namespace */
	int error;
};

static int raise_loopback(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0) return -1;
	struct ifreq request;
	memset(&request, 0, sizeof request);
	memcpy(request.ifr_name, "lo", 3);
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	int result = ioctl(fd, SIOCSIFFLAGS, &request), error = errno;
	close(fd);
	errno = error;
	return result;
}

static void set(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return;
	/* Without it root inside lacks low ports or ping, and nothing else. */
	if (write(fd, value, strlen(value)) < 0) errno = 0;
	close(fd);
}

/* Shares our memory and descriptors while we wait; what it opens is ours when it is gone. */
static int make_main(void *context)
{
	struct making *making = context;
	if (raise_loopback() < 0) {
		making->error = errno;
		syscall(SYS_exit, 0);
	}
	/* Ports below 1024 and ping are root's elsewhere; the namespace belongs to a user namespace that root of the machine is not in. */
	set("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
	set("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
	making->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (making->socket >= 0) making->fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	making->error = errno;
	syscall(SYS_exit, 0);
	return 0;
}

/* A descriptor of a fresh namespace, and a unix socket that belongs to it, both the caller's to close. */
int netns_make(int *unix_socket, struct failure *failure)
{
	static char *stack;
	enum { STACK = 16384 };
	if (!stack) {
		stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stack == MAP_FAILED) return stack = NULL, fail_errno(failure, errno, "making a network namespace");
	}
	static struct making making;
	making = (struct making){.fd = -1, .socket = -1};
	pid_t pid = clone(make_main, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_NEWNET | SIGCHLD, &making);
	if (pid < 0) return fail_errno(failure, errno, "making a network namespace");
	waitpid(pid, NULL, __WALL);
	*unix_socket = making.socket;
	if (making.fd < 0) return fail_errno(failure, making.error, "setting up the loopback of a network namespace");
	int fd = keep_fd(making.fd);
	return fd < 0 ? fail_errno(failure, errno, "keeping a network namespace") : fd;
}

/*
 * The network of a machine: loopback, and ports on it that lead to unix sockets of the controller. Connections are accepted here, in the machine's network but outside of the
 * machine; the first line that a target reads names machine and port, so the machine cannot forge it.
 *
 * Each connection is two processes, one a direction, which block on it and end with it, or with us. Beyond CONNECTIONS_MOST of a machine others wait in the backlog.
 */
#include "oci.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVICES_MOST = 17, CONNECTIONS_MOST = 64, BACKLOG = 128, BYTES = 64 << 10, HIGH_FD = 10 };

static struct service {
	uint16_t port;
	const char *target;
	int fd;
} services[SERVICES_MOST];
static int service_count, connection_count;

/* A network namespace with loopback alone, for all that is started from here. */
void network_make(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	int fd = -1;
	if (unshare(CLONE_NEWNET) < 0 || (fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0 || ioctl(fd, SIOCGIFFLAGS, &request) < 0) fail("making a network for", "a machine");
	request.ifr_flags |= IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &request) < 0) fail("bringing up", "lo");
	close(fd);
}

void service_listen(const char *port, const char *target)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
	if (service_count == SERVICES_MOST || strlen(target) >= sizeof((struct sockaddr_un *)0)->sun_path) errno = EINVAL, fail("making the service", port);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, BACKLOG) < 0) fail("making the service", port);
	/* Low numbers are the program's. */
	int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
	if (high < 0) fail("making the service", port);
	close(fd);
	services[service_count++] = (struct service){.port = (uint16_t)atoi(port), .target = target, .fd = high};
}

static int send_all(int fd, const char *bytes, size_t length)
{
	while (length > 0) {
		ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR) continue;
		if (n <= 0) return -1;
		bytes += n;
		length -= (size_t)n;
	}
	return 0;
}

/* Until the end of what one side sends, or of the other. */
static void carry(int from, int to)
{
	static char bytes[BYTES];
	ssize_t n;
	while ((n = recv(from, bytes, sizeof bytes, 0)) > 0 || (n < 0 && errno == EINTR))
		if (n > 0 && send_all(to, bytes, (size_t)n) < 0) break;
	if (n == 0) {
		shutdown(to, SHUT_WR);
		return;
	}
	/* Broken: the other direction ends, too. */
	shutdown(from, SHUT_RDWR);
	shutdown(to, SHUT_RDWR);
}

static int connect_target(const struct service *service, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char preface[128];
	strcpy(address.sun_path, service->target);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int length = snprintf(preface, sizeof preface, "MW1 %s %u\n", name, service->port);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0 || send_all(fd, preface, (size_t)length) < 0) return -1;
	return fd;
}

__attribute__((noreturn)) static void serve(const struct service *service, const char *name, int inside)
{
	end_with_parent();
	for (int i = 0; i < service_count; i++) close(services[i].fd);
	int outside = connect_target(service, name);
	if (outside < 0) {
		/* A reset rather than an orderly end: nobody answered. */
		struct linger reset = {.l_onoff = 1, .l_linger = 0};
		setsockopt(inside, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
		_exit(0);
	}
	pid_t back = fork();
	if (back < 0) _exit(71);
	if (back == 0) {
		end_with_parent();
		carry(outside, inside);
		_exit(0);
	}
	carry(inside, outside);
	close(inside);
	close(outside);
	while (waitpid(back, NULL, 0) < 0 && errno == EINTR) continue;
	_exit(0);
}

static void accept_from(const struct service *service, const char *name)
{
	int inside = accept4(service->fd, NULL, NULL, SOCK_CLOEXEC);
	if (inside < 0) return;
	pid_t pid = fork();
	if (pid == 0) serve(service, name, inside);
	if (pid > 0) connection_count++;
	close(inside);
}

/* As the program ended, so that whoever started us is told the same. */
__attribute__((noreturn)) static void end_like(int status)
{
	if (WIFSIGNALED(status)) {
		sigset_t none;
		sigemptyset(&none);
		signal(WTERMSIG(status), SIG_DFL);
		sigprocmask(SIG_SETMASK, &none, NULL);
		raise(WTERMSIG(status));
	}
	exit(WEXITSTATUS(status));
}

static void reap(pid_t program)
{
	int status;
	for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
		if (pid == program) end_like(status);
		connection_count--;
	}
}

/* Returns in a process that is to become the program; without services at once. The other forwards until that has ended. */
void services_forward(const char *name, char **program)
{
	if (service_count == 0) return;
	sigset_t child, before;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	pid_t pid = fork();
	if (pid < 0) fail("starting", program[0]);
	if (pid == 0) {
		sigprocmask(SIG_SETMASK, &before, NULL);
		return;
	}
	/* Listener and lifeline are the program's alone. */
	close(3);
	close(4);
	struct pollfd polled[SERVICES_MOST + 1] = {{.fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK), .events = POLLIN}};
	if (polled[0].fd < 0) fail("waiting for", program[0]);
	for (;;) {
		int watched = connection_count < CONNECTIONS_MOST ? service_count : 0;
		for (int i = 0; i < watched; i++) polled[i + 1] = (struct pollfd){.fd = services[i].fd, .events = POLLIN};
		if (poll(polled, (nfds_t)watched + 1, -1) < 0) continue;
		struct signalfd_siginfo info;
		while (read(polled[0].fd, &info, sizeof info) > 0) continue;
		reap(pid);
		for (int i = 0; i < watched && connection_count < CONNECTIONS_MOST; i++)
			if (polled[i + 1].revents) accept_from(&services[i], name);
	}
}

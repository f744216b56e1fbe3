/* Helper processes of the spawner (network, workspace reader): started without copying memory, killed with the spawner, watched by pidfd. */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif

enum { HELPER_FDS = 12 };

struct start {
	const char *path;
	char *const *argv;
	const int (*fds)[2];
	int fd_count;
	int (*prepare)(void *context);
	void *context;
	volatile int error;
};

/* In the parent's memory; descriptors are its own. */
static int start_main(void *context)
{
	struct start *start = context;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (start->prepare && start->prepare(start->context) < 0) goto failed;
	int moved[HELPER_FDS];
	for (int i = 0; i < start->fd_count; i++) moved[i] = fcntl(start->fds[i][0], F_DUPFD, LOW_FDS);
	int highest = 2;
	for (int i = 0; i < start->fd_count; i++) {
		if (dup2(moved[i], start->fds[i][1]) < 0) goto failed;
		if (start->fds[i][1] > highest) highest = start->fds[i][1];
	}
	k_close_range((unsigned)highest + 1, ~0u, 0);
	char *const environment[] = {(char *)"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
	execve(start->path, start->argv, environment);
failed:
	start->error = errno;
	_exit(127);
}

/* To prepare a helper for which a machine stands still: on a busy host it would wait for its turn among all that runs. It is no fault when we may not. */
int helper_first(void *context)
{
	(void)context;
	setpriority(PRIO_PROCESS, 0, -20);
	return 0;
}

int helper_start(struct helper *helper, const char *path, char *const argv[], const int fds[][2], int fd_count)
{
	return helper_start_in(helper, path, argv, fds, fd_count, NULL, NULL);
}

int helper_start_in(struct helper *helper, const char *path, char *const argv[], const int fds[][2], int fd_count, int (*prepare)(void *context), void *context)
{
	static char *stack;
	enum { STACK = 32768 };
	if (!stack) {
		stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stack == MAP_FAILED) return stack = NULL, -1;
	}
	struct start start = {.path = path, .argv = argv, .fds = fds, .fd_count = fd_count, .prepare = prepare, .context = context};
	int pidfd = -1;
	pid_t pid = clone(start_main, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &start, &pidfd);
	if (pid < 0) return -1;
	if (start.error) {
		waitpid(pid, NULL, __WALL);
		close(pidfd);
		return errno = start.error, -1;
	}
	helper->pid = pid;
	helper->source.fd = keep_fd(pidfd);
	return watch(&helper->source, EPOLLIN);
}

int helper_ended(struct helper *helper)
{
	int status = -1;
	waitpid(helper->pid, &status, __WALL);
	helper->pid = 0;
	unwatch(&helper->source);
	close_fd(&helper->source.fd);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Also when it has ended by itself. */
void helper_stop(struct helper *helper)
{
	if (helper->pid <= 0) return;
	k_pidfd_kill(helper->source.fd, SIGKILL);
	waitpid(helper->pid, NULL, __WALL);
	helper->pid = 0;
	unwatch(&helper->source);
	close_fd(&helper->source.fd);
}

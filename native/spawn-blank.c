/*
 * Blanks: machines made beforehand, when nothing else is to do, which lack only what a request decides. Each has its run directory with the listening socket, its
 * scratch file system, control groups, namespaces and ids, and an init that waits for its root. A request takes the oldest, renames its directory, fits the rest
 * (spawn-make.c) and tells init to go on. Nothing is used twice.
 *
 * A blank is `RUN/.NAME` and the groups NAME; the machine that it becomes keeps its groups' name. Blanks of a spawner that died are swept by the next one.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif

enum { STACK_BYTES = 64 * 1024 };

/* Those that wait, oldest first. */
struct stock {
	struct machine *ready[BLANKS];
	int count;
	bool wanted; /* asked for once at least */
};

static struct stock ordinary = {.wanted = true}, apart;

static struct stock *stock_of(const struct machine *blank) { return blank->apart ? &apart : &ordinary; }

/* The one to fill next; NULL: all are full. */
static struct stock *stock_to_fill(void)
{
	if (ordinary.count < BLANKS && (ordinary.count <= apart.count || !apart.wanted || apart.count == BLANKS)) return &ordinary;
	return apart.wanted && apart.count < BLANKS ? &apart : NULL;
}

/*
 * `init.sock` listens before the machine exists: a client can connect to a blank. The socket is of the machine's network namespace, where what keeps its processes looks
 * for it; that makes no difference to who connects, because its address is a path.
 */
static int listen_in(int fd, const char *directory, struct failure *failure)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/init.sock", directory) >= sizeof address.sun_path)
		return fail_code(failure, "ENAMETOOLONG", "%s/init.sock is longer than a unix socket's path may be", directory);
	if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 64) == 0) return 0;
	return fail_errno(failure, errno, "listening on %s", address.sun_path);
}

/* A copy for the child, in the range that it keeps. */
static int low_copy(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

static int run_child(struct machine *blank, struct child_plan *plan, struct failure *failure)
{
	static bool no_clone3;
	static char *stack;
	if (!stack) {
		stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (stack == MAP_FAILED) {
			stack = NULL;
			return fail_errno(failure, errno, "making the child's stack");
		}
	}
	int pidfd = -1;
	const int flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD | SIGCHLD;
	pid_t pid = -1;
	if (plan->unified >= 0 && !no_clone3) {
		struct mw_clone_args arguments = {.flags = (uint64_t)(flags & ~0xff) | MW_CLONE_INTO_CGROUP, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD,
						  .stack = (uint64_t)(uintptr_t)stack, .stack_size = STACK_BYTES, .cgroup = (uint64_t)plan->unified};
		/* Born in the v2 group: one group less to enter. */
		plan->enter = plan->cgroups - 1;
		pid = clone_into(&arguments, child_main, plan);
		/* A filter around us may hide clone3; an old kernel does not know the flag. */
		no_clone3 = pid < 0 && (errno == ENOSYS || errno == E2BIG || errno == EINVAL || errno == EPERM);
	}
	if (pid < 0 && (plan->unified < 0 || no_clone3)) {
		plan->enter = plan->cgroups;
		pid = clone(child_main, stack + STACK_BYTES, flags, plan, &pidfd);
	}
	if (pid < 0) return fail_errno(failure, errno, "making the namespaces of a machine");
	blank->mntns = keep_fd(plan->mntns);
	blank->utsns = keep_fd(plan->utsns);
	if (plan->step != STEP_NONE) {
		waitpid(pid, NULL, __WALL);
		close(pidfd);
		return fail_errno(failure, plan->error, "%s for a machine", child_step_name(plan->step));
	}
	blank->pid = pid;
	blank->source.fd = keep_fd(pidfd);
	return blank->source.fd < 0 || blank->mntns < 0 || blank->utsns < 0 ? fail_errno(failure, errno, "keeping a machine") : 0;
}

static int plan_child(struct machine *blank, struct child_plan *plan, int *lifeline, struct failure *failure)
{
	char directory[PATH_BYTES];
	snprintf(directory, sizeof directory, "%s/%s", S.config.run, blank->id);
	if (blank->userns && userns_slot_take(&blank->slot, &blank->userns_fd, failure) < 0) return -1;
	if (mkdir(directory, 0700) < 0) return fail_errno(failure, errno, "making %s", directory);
	if ((blank->netns = netns_make(&plan->listener, failure)) < 0) return -1;
	if (listen_in(plan->listener, directory, failure) < 0) return -1;
	if ((blank->scratch = scratch_make(directory, failure)) < 0) return -1;
	if ((plan->scratch = clone_mount(blank->scratch, "", blank->userns_fd, failure)) < 0) return -1;
	if (cgroup_make(blank->group, plan->cgroup_procs, &plan->cgroups, &plan->unified, failure) < 0) return -1;
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) < 0) return fail_errno(failure, errno, "making the lifeline");
	plan->lifeline = ends[0];
	*lifeline = ends[1];
	if ((plan->netns = low_copy(blank->netns)) < 0) return fail_errno(failure, errno, "making a machine");
	if (blank->userns_fd >= 0 && (plan->userns = low_copy(blank->userns_fd)) < 0) return fail_errno(failure, errno, "making a machine");
	uint32_t base = machine_id_base(blank);
	plan->nursery = S.nursery;
	plan->hostname = DEFAULT_HOSTNAME;
	plan->apart = blank->apart;
	plan->set_groups = S.privileged || S.multiple_ids;
	snprintf(plan->devpts_options, sizeof plan->devpts_options, "newinstance,ptmxmode=0666,mode=0620,gid=%u", plan->set_groups ? base + 5 : 0);
	plan->capabilities = S.config.capabilities;
	plan->open_files = S.open_files;
	plan->filter.len = (unsigned short)S.config.filter_length;
	plan->filter.filter = S.config.filter;
	return 0;
}

static int bring_up(struct machine *blank, struct failure *failure)
{
	struct child_plan plan = {.listener = -1, .scratch = -1, .netns = -1, .userns = -1, .unified = -1, .lifeline = -1, .mntns = -1, .utsns = -1};
	int lifeline = -1;
	int result = plan_child(blank, &plan, &lifeline, failure);
	if (result == 0) result = run_child(blank, &plan, failure);
	for (int i = 0; i < plan.cgroups; i++) close(plan.cgroup_procs[i]);
	close_fd(&plan.unified);
	int *const fds[] = {&plan.listener, &plan.scratch, &plan.netns, &plan.userns, &plan.lifeline};
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close_fd(fds[i]);
	blank->lifeline = keep_fd(lifeline);
	if (result < 0) return -1;
	if (blank->lifeline < 0) return fail_errno(failure, errno, "keeping a machine");
	/* A spawner that dies before leaves a process in a control group, which is swept as well. */
	record_write(blank);
	blank->source.handle = machine_exited;
	return watch(&blank->source, EPOLLIN) < 0 ? fail_errno(failure, errno, "watching a machine") : 0;
}

static struct machine *make(bool userns, bool apart, struct failure *failure)
{
	static uint64_t count;
	struct machine *blank = machine_new();
	if (!blank) return fail_errno(failure, ENOMEM, "making a machine"), NULL;
	blank->state = MACHINE_BLANK;
	blank->userns = userns;
	blank->apart = apart;
	/* The epoch keeps it apart from what an earlier spawner could not remove. */
	snprintf(blank->group, sizeof blank->group, "sbx-%llu-%llu", (unsigned long long)S.epoch, (unsigned long long)++count);
	snprintf(blank->id, sizeof blank->id, ".%.62s", blank->group);
	if (bring_up(blank, failure) == 0) return blank;
	machine_dispose(blank);
	return NULL;
}

static struct machine *oldest(struct stock *stock)
{
	struct machine *blank = stock->ready[0];
	memmove(stock->ready, stock->ready + 1, (size_t)--stock->count * sizeof *stock->ready);
	return blank;
}

/* NULL when none waits. One that was killed is left to its event, which comes next. */
static struct machine *oldest_alive(struct stock *stock)
{
	while (stock->count > 0) {
		struct machine *blank = oldest(stock);
		struct pollfd init = {.fd = blank->source.fd, .events = POLLIN};
		if (poll(&init, 1, 0) == 0) return blank;
	}
	return NULL;
}

/* One whose processes are kept from the beginning has another init. */
static struct machine *take(const struct create_request *request, struct failure *failure)
{
	bool userns = request->profile == 0, is_apart = request->profile == 2;
	struct machine *blank = NULL;
	if (is_apart) apart.wanted = true;
	if (is_apart && !request->processes[0]) blank = oldest_alive(&apart);
	else if (!is_apart && userns == S.userns_works) blank = oldest_alive(&ordinary);
	return blank ? blank : make(userns, is_apart, failure);
}

/* The machine that is to serve the request, its run directory renamed; the caller's from now on. Made now where none waits that fits. */
struct machine *blank_take(const struct create_request *request, struct failure *failure)
{
	char from[PATH_BYTES], to[PATH_BYTES];
	if ((size_t)snprintf(to, sizeof to, "%s/%s", S.config.run, request->id) + sizeof "/init.sock" > sizeof ((struct sockaddr_un *)0)->sun_path)
		return fail_code(failure, "ENAMETOOLONG", "%s/init.sock is longer than a unix socket's path may be", to), NULL;
	struct machine *machine = take(request, failure);
	if (!machine) return NULL;
	snprintf(from, sizeof from, "%s/%s", S.config.run, machine->id);
	if (rename(from, to) < 0) {
		fail_errno(failure, errno, "making %s", to);
		machine_dispose(machine);
		return NULL;
	}
	snprintf(machine->id, sizeof machine->id, "%s", request->id);
	machine->state = MACHINE_RUNNING;
	S.machine_count++;
	machine_add(machine);
	return machine;
}

bool blank_refill(void)
{
	struct stock *stock = stock_to_fill();
	struct failure ignored;
	struct machine *blank = stock == &apart ? make(false, true, &ignored) : make(S.userns_works, false, &ignored);
	if (!blank) return false;
	stock->ready[stock->count++] = blank;
	send_blank(blank);
	return true;
}

bool blanks_full(void) { return stock_to_fill() == NULL; }

bool blanks_low(void) { return ordinary.count < BLANKS / 4 || (apart.wanted && apart.count < BLANKS / 4); }

/* Its init has ended, whoever killed it. */
void blank_gone(struct machine *blank)
{
	struct stock *stock = stock_of(blank);
	for (int i = 0; i < stock->count; i++) {
		if (stock->ready[i] != blank) continue;
		memmove(stock->ready + i, stock->ready + i + 1, (size_t)(--stock->count - i) * sizeof *stock->ready);
		break;
	}
	machine_dispose(blank);
}

void blanks_remove(void)
{
	struct stock *const stocks[] = {&ordinary, &apart};
	/* All die at once, and are then waited for. */
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < stocks[k]->count; i++) kill(stocks[k]->ready[i]->pid, SIGKILL);
	for (int k = 0; k < 2; k++)
		while (stocks[k]->count > 0) machine_dispose(oldest(stocks[k]));
}

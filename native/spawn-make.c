/*
 * A machine is made: the parent's half. Everything that needs memory, paths or names of the host is prepared here; the child (spawn-child.c) only carries out
 * the plan. The parent is suspended from clone until the child has become init or failed.
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
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif

enum { STACK_BYTES = 64 * 1024 };

/* Descriptors of one creation: closed at its end, whatever came of it. */
struct transient {
	struct child_plan plan;
	int handover[2];
	int lifeline[2];
};

static void transient_close(struct transient *transient)
{
	struct child_plan *plan = &transient->plan;
	for (int i = 0; i < plan->cgroups; i++) close(plan->cgroup_procs[i]);
	close_fd(&plan->unified);
	for (int i = 0; i < plan->layer_count; i++) close(plan->layers[i]);
	close_fd(&plan->scratch);
	close_fd(&plan->userns);
	close_fd(&plan->netns);
	close_fd(&plan->resolv);
	close_fd(&plan->listener);
	for (int i = 0; i < 2; i++) {
		close_fd(&transient->handover[i]);
		close_fd(&transient->lifeline[i]);
	}
}

/* Attaches `path` as the next layer and appends its attachment point to overlay options. */
static int add_layer(struct child_plan *plan, char *options, size_t size, int dir, const char *path, int userns, struct failure *failure)
{
	if (plan->layer_count >= PLAN_LAYERS) return fail_code(failure, "limit", "more than %d layers", PLAN_LAYERS);
	int fd = clone_mount(dir, path, userns, failure);
	if (fd < 0) return -1;
	if (fd >= LOW_FDS) {
		close(fd);
		return fail_code(failure, "EMFILE", "too many descriptors in use by one creation");
	}
	size_t length = strlen(options);
	int added = snprintf(options + length, size - length, "%s/l/%03d", length > 9 ? ":" : "", plan->layer_count);
	plan->layers[plan->layer_count++] = fd;
	return added < 0 || (size_t)added >= size - length ? fail_code(failure, "limit", "too many layers") : 0;
}

static int finish_options(char *options, size_t size, const char *upper, const char *work, struct failure *failure)
{
	size_t length = strlen(options);
	/* Spelled out, because their defaults are a choice of each kernel's builder. */
	int added = snprintf(options + length, size - length, "%s,upperdir=/s/upper%s,workdir=/s/%s,redirect_dir=nofollow,index=off,metacopy=off%s",
			     upper[0] ? "" : ":/s/skel", upper, work, S.privileged ? "" : ",userxattr");
	return added < 0 || (size_t)added >= size - length ? fail_code(failure, "limit", "too many layers") : 0;
}

static int plan_layers(struct machine *machine, struct child_plan *plan, const struct create_request *request, struct failure *failure)
{
	int userns = machine->userns_fd;
	snprintf(plan->overlay_options, sizeof plan->overlay_options, "lowerdir=");
	/* The workspace that it starts from, and those that one started from. */
	for (struct machine *base = machine->base; base; base = base->base)
		if (add_layer(plan, plan->overlay_options, sizeof plan->overlay_options, base->scratch, "upper", userns, failure) < 0) return -1;
	for (int i = 0; i < request->layer_count; i++)
		if (add_layer(plan, plan->overlay_options, sizeof plan->overlay_options, AT_FDCWD, request->layers[i], userns, failure) < 0) return -1;
	if (finish_options(plan->overlay_options, sizeof plan->overlay_options, "", "work", failure) < 0) return -1;
	for (int i = 0; i < request->part_count; i++) {
		struct child_part *part = &plan->parts[plan->part_count++];
		const char *target = request->parts[i].target;
		if ((size_t)snprintf(part->target, sizeof part->target, "/m%s", target) >= sizeof part->target)
			return fail_code(failure, "ENAMETOOLONG", "the part %s", target);
		snprintf(part->options, sizeof part->options, "lowerdir=");
		char work[16], below[PATH_BYTES];
		snprintf(work, sizeof work, "work-%d", i);
		snprintf(below, sizeof below, "upper%s", target);
		for (struct machine *base = machine->base; base; base = base->base) {
			/* Without it the workspace has nothing at the part's place. */
			int dir = open_below(base->scratch, below);
			int result = dir < 0 ? 0 : add_layer(plan, part->options, sizeof part->options, dir, "", userns, failure);
			if (dir >= 0) close(dir);
			if (result < 0) return -1;
		}
		for (int k = 0; k < request->parts[i].layer_count; k++)
			if (add_layer(plan, part->options, sizeof part->options, AT_FDCWD, request->parts[i].layers[k], userns, failure) < 0) return -1;
		if (finish_options(part->options, sizeof part->options, target, work, failure) < 0) return -1;
	}
	return 0;
}

static int plan_everything(struct machine *machine, struct transient *transient, const struct create_request *request, struct failure *failure)
{
	struct child_plan *plan = &transient->plan;
	plan->listener = spare_take(machine, failure);
	if (plan->listener < 0) return -1;
	if (scratch_fit(machine, request, failure) < 0) return -1;
	plan->scratch = clone_mount(machine->scratch, "", machine->userns_fd, failure);
	if (plan->scratch < 0) return -1;
	if (plan_layers(machine, plan, request, failure) < 0) return -1;
	if (cgroup_make(machine, request, plan->cgroup_procs, &plan->cgroups, &plan->unified, failure) < 0) return -1;
	int netns = netns_take(failure);
	if (netns < 0) return -1;
	plan->netns = fcntl(netns, F_DUPFD_CLOEXEC, 0);
	int error = errno;
	close(netns);
	if (plan->netns < 0) return fail_errno(failure, error, "making %s", machine->id);
	if (pipe2(transient->lifeline, O_CLOEXEC) < 0) return fail_errno(failure, errno, "making the lifeline");
	plan->lifeline = transient->lifeline[0];
	if (request->service_count > 0) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, transient->handover) < 0)
			return fail_errno(failure, errno, "making the services");
		plan->handover = transient->handover[1];
	}
	for (int i = 0; i < request->service_count; i++) plan->ports[plan->service_count++] = request->services[i].port;
	if (request->network == 1 && (plan->resolv = slirp_resolv(failure)) < 0) return -1;
	plan->nursery = S.nursery;
	/* The machine's own descriptor is out of the range that the child keeps. */
	if (machine->userns_fd >= 0 && (plan->userns = fcntl(machine->userns_fd, F_DUPFD_CLOEXEC, 0)) < 0)
		return fail_errno(failure, errno, "making %s", machine->id);
	plan->set_groups = S.privileged || S.multiple_ids;
	plan->hostname_length = (size_t)snprintf(plan->hostname, sizeof plan->hostname, "%s", request->hostname);
	uint32_t base = machine->slot >= 0 && S.privileged ? S.config.slot_base + (uint32_t)machine->slot * SLOT_IDS : 0;
	plan->root_id = base;
	snprintf(plan->devpts_options, sizeof plan->devpts_options, "newinstance,ptmxmode=0666,mode=0620,gid=%u", S.privileged || S.multiple_ids ? base + 5 : 0);
	plan->capabilities = S.config.capabilities;
	plan->open_files = S.open_files;
	plan->filter.len = (unsigned short)S.config.filter_length;
	plan->filter.filter = S.config.filter;
	return 0;
}

static int run_child(struct machine *machine, struct child_plan *plan, struct failure *failure)
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
	machine->pid = -1;
	if (plan->unified >= 0 && !no_clone3) {
		struct mw_clone_args arguments = {.flags = (uint64_t)(flags & ~0xff) | MW_CLONE_INTO_CGROUP, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD,
						  .stack = (uint64_t)(uintptr_t)stack, .stack_size = STACK_BYTES, .cgroup = (uint64_t)plan->unified};
		/* Born in the v2 group: one group less to enter. */
		plan->enter = plan->cgroups - 1;
		machine->pid = clone_into(&arguments, child_main, plan);
		/* A filter around us may hide clone3; an old kernel does not know the flag. */
		no_clone3 = machine->pid < 0 && (errno == ENOSYS || errno == E2BIG || errno == EINVAL || errno == EPERM);
	}
	if (machine->pid < 0 && (plan->unified < 0 || no_clone3)) {
		plan->enter = plan->cgroups;
		machine->pid = clone(child_main, stack + STACK_BYTES, flags, plan, &pidfd);
	}
	if (machine->pid < 0) return fail_errno(failure, errno, "making the namespaces of %s", machine->id);
	if (plan->step != STEP_NONE) {
		waitpid(machine->pid, NULL, __WALL);
		close(pidfd);
		machine->pid = 0;
		return fail_errno(failure, plan->error, "%s for %s", child_step_name(plan->step), machine->id);
	}
	machine->source.fd = keep_fd(pidfd);
	return machine->source.fd < 0 ? fail_errno(failure, errno, "keeping %s", machine->id) : 0;
}

static int receive_listener(int channel)
{
	char byte;
	struct iovec io = {.iov_base = &byte, .iov_len = 1};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
	if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return -1;
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS) return -1;
	int fd;
	memcpy(&fd, CMSG_DATA(header), sizeof fd);
	return fd;
}

static int start_services(struct machine *machine, const struct create_request *request, int channel, struct failure *failure)
{
	int listeners[PLAN_SERVICES];
	for (int i = 0; i < request->service_count; i++) {
		listeners[i] = receive_listener(channel);
		if (listeners[i] >= 0 && (listeners[i] = keep_fd(listeners[i])) >= 0) continue;
		int error = errno;
		while (i-- > 0) close(listeners[i]);
		return fail_errno(failure, error, "receiving the listeners of %s", machine->id);
	}
	if (request->service_count > 0 && forward_start(machine, request, listeners) < 0) return fail_errno(failure, errno, "forwarding services");
	return 0;
}

static int bring_up(struct machine *machine, struct transient *transient, const struct create_request *request, struct failure *failure)
{
	if (plan_everything(machine, transient, request, failure) < 0) return -1;
	if (run_child(machine, &transient->plan, failure) < 0) return -1;
	machine->lifeline = keep_fd(transient->lifeline[1]);
	transient->lifeline[1] = -1;
	if (machine->lifeline < 0) return fail_errno(failure, errno, "keeping the lifeline of %s", machine->id);
	if (start_services(machine, request, transient->handover[0], failure) < 0) return -1;
	if (request->network == 1 && slirp_start(machine, failure) < 0) return -1;
	machine->source.handle = machine_exited;
	if (watch(&machine->source, EPOLLIN) < 0) return fail_errno(failure, errno, "watching %s", machine->id);
	if (machine->memory_bytes) memory_watch_start(machine);
	return 0;
}

static struct machine *new_machine(const struct create_request *request)
{
	struct machine *machine = calloc(1, sizeof *machine);
	if (!machine) return NULL;
	snprintf(machine->id, sizeof machine->id, "%s", request->id);
	machine->source.fd = machine->pressure.fd = machine->userns_fd = machine->lifeline = machine->scratch = machine->slirp_exit = -1;
	machine->slirp_up.fd = machine->slirp.source.fd = machine->tree.source.fd = -1;
	machine->slot = -1;
	machine->userns = request->profile == 0;
	machine->memory_bytes = request->memory_bytes;
	machine->pids = request->pids;
	machine->public_network = request->network == 1;
	machine->ttl_ms = request->ttl_ms;
	machine->expires_ms = request->ttl_ms ? now_ms() + request->ttl_ms : 0;
	return machine;
}

/* Layers that the tree helper needs to tell what a workspace changed; kept for as long as the machine or its workspace. */
static int remember_lowers(struct machine *machine, const struct create_request *request)
{
	machine->lowers = calloc((size_t)request->layer_count + 1, sizeof *machine->lowers);
	if (!machine->lowers) return -1;
	for (int i = 0; i < request->layer_count; i++) {
		if (!(machine->lowers[i] = strdup(request->layers[i]))) return -1;
		machine->lower_count++;
	}
	return 0;
}

struct machine *make_machine(const struct create_request *request, struct failure *failure)
{
	if (machine_find(request->id)) return fail_code(failure, "EEXIST", "a machine named %s exists", request->id), NULL;
	if (S.machine_count >= MACHINES_MAX) return fail_code(failure, "EAGAIN", "%d machines exist, the most that one spawner makes", MACHINES_MAX), NULL;
	struct machine *base = NULL;
	if (request->workspace[0]) {
		base = machine_find(request->workspace);
		if (!base || base->state != MACHINE_SEALED) return fail_code(failure, "ENOENT", "no sealed workspace %s", request->workspace), NULL;
	}
	struct machine *machine = new_machine(request);
	if (!machine || remember_lowers(machine, request) < 0) {
		fail_errno(failure, ENOMEM, "making %s", request->id);
		if (machine) machine_dispose(machine);
		return NULL;
	}
	machine->base = base;
	if (base) base->users++;
	S.machine_count++;
	machine_add(machine);
	static struct transient transient;
	memset(&transient, 0, sizeof transient);
	transient.plan.scratch = transient.plan.resolv = transient.plan.listener = transient.plan.handover = transient.plan.userns = transient.plan.netns = transient.plan.unified = -1;
	for (int i = 0; i < 2; i++) transient.handover[i] = transient.lifeline[i] = -1;
	int result = machine->userns ? userns_slot_take(&machine->slot, &machine->userns_fd, failure) : 0;
	if (result == 0) result = bring_up(machine, &transient, request, failure);
	transient_close(&transient);
	if (result == 0) return machine;
	/* The caller answers. */
	machine->create_pending = false;
	machine_dispose(machine);
	return NULL;
}

/*
 * A machine ends: asked for, expired, died, or because the controller is gone. Killing is a request to the kernel; the rest happens when the pidfd of init
 * says that its pid namespace is empty. Answers and the `ended` event go out when nothing is left.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

static void kill_everything(struct machine *machine)
{
	/* The group first: it also reaches frozen processes. Init's death takes the pid namespace with it in any case. */
	bool group = cgroup_kill(machine);
	/* Nobody has waited for it, so the number is still its own. */
	if (machine->pid > 0) kill(machine->pid, SIGKILL);
	if (!group && machine->frozen) {
		struct failure ignored;
		cgroup_freeze(machine, false, &ignored);
	}
}

void machine_end(struct machine *machine, enum end_reason reason)
{
	if (machine->state != MACHINE_RUNNING) return;
	machine->state = MACHINE_ENDING;
	machine->reason = reason;
	kill_everything(machine);
}

void machine_wait(struct machine *machine, uint32_t ref)
{
	struct waiter *waiter = calloc(1, sizeof *waiter);
	if (!waiter) {
		send_error(ref, "ENOMEM", "waiting for the end of a machine");
		return;
	}
	waiter->ref = ref;
	waiter->next = machine->waiters;
	machine->waiters = waiter;
}

static void answer_waiters(struct machine *machine)
{
	while (machine->waiters) {
		struct waiter *waiter = machine->waiters;
		machine->waiters = waiter->next;
		send_ok(waiter->ref);
		free(waiter);
	}
}

/* What limits say at the very end, before the groups go. */
static void count_limits(struct machine *machine)
{
	struct usage usage;
	cgroup_usage(machine, &usage, false);
	machine->limits[LIMIT_OOM] += usage.oom_kills;
	machine->limits[LIMIT_PIDS] = usage.pids_hits;
	scratch_check_full(machine);
}

static void remove_groups(const struct machine *machine)
{
	if (machine->group[0] == 0) return;
	/* An exiting process leaves its group a moment after it stopped being waited for. */
	for (int i = 0; i < 200; i++) {
		if (cgroup_remove(machine->group)) return;
		struct timespec pause = {.tv_nsec = i < 20 ? 200000 : 5000000};
		nanosleep(&pause, NULL);
	}
	logf_("the control groups of %s could not be removed; the next start tries again", machine->id);
}

static void release_running(struct machine *machine)
{
	if (machine->state != MACHINE_BLANK) S.machine_count--;
	if (machine->source.fd >= 0) {
		unwatch(&machine->source);
		close_fd(&machine->source.fd);
	}
	memory_watch_stop(machine);
	forward_stop(machine);
	slirp_stop(machine);
	criu_stop(machine);
	int *const fds[] = {&machine->lifeline, &machine->netns, &machine->mntns, &machine->utsns};
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close_fd(fds[i]);
	remove_groups(machine);
	userns_slot_return(machine->slot, machine->userns_fd);
	machine->slot = machine->userns_fd = -1;
}

/* Everything of a machine, blank or workspace, in whatever state it is. */
void machine_dispose(struct machine *machine)
{
	copy_abort(machine);
	if (machine->pid > 0) {
		kill_everything(machine);
		waitpid(machine->pid, NULL, __WALL);
		machine->pid = 0;
	}
	if (machine->state != MACHINE_SEALED) release_running(machine);
	workspace_close_tree(machine);
	detached_leave(machine);
	scratch_remove(machine);
	remove_run_directory(machine->id);
	if (machine->state != MACHINE_BLANK) machine_remove(machine);
	workspace_rebase(machine, NULL);
	answer_waiters(machine);
	for (int i = 0; i < machine->lower_count; i++) free(machine->lowers[i]);
	free(machine->lowers);
	free(machine->note);
	free_later(machine);
}

/* Its files are kept: what was done in it may still be wanted, whoever used up the memory. */
static bool died_of_memory(const struct machine *machine)
{
	return machine->reason == END_DIED && machine->limits[LIMIT_OOM] > 0;
}

bool kept_after_death(const struct machine *machine)
{
	return machine->state == MACHINE_SEALED && died_of_memory(machine);
}

void machine_exited(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = (struct machine *)((char *)source - offsetof(struct machine, source));
	if (machine->state == MACHINE_RUNNING) machine->reason = END_DIED;
	waitpid(machine->pid, NULL, __WALL);
	machine->pid = 0;
	copy_abort(machine);
	if (machine->state == MACHINE_BLANK) {
		blank_gone(machine);
		return;
	}
	count_limits(machine);
	bool kept = machine->reason == END_SEALED || machine->reason == END_DETACHED;
	if (!kept && !died_of_memory(machine)) {
		struct machine copy = *machine;
		/* Answers wait until everything is gone; the event follows them. */
		machine_dispose(machine);
		send_ended(&copy);
		return;
	}
	release_running(machine);
	machine->state = MACHINE_SEALED;
	workspace_sealed(machine);
	if (machine->reason == END_DETACHED) detached(machine);
	if (kept) send_sealed(machine);
	answer_waiters(machine);
	/* A machine of a detached one's id is made again: that one is what ends. */
	if (machine->reason != END_DETACHED) send_ended(machine);
}

struct lease_scan {
	uint64_t now;
	uint64_t next;
};

static void check_one(struct machine *machine, void *context)
{
	struct lease_scan *scan = context;
	bool kept = kept_after_death(machine);
	if ((machine->state != MACHINE_RUNNING && !kept) || machine->expires_ms == 0) return;
	if (machine->expires_ms <= scan->now) {
		if (kept) machine_dispose(machine);
		else machine_end(machine, END_EXPIRED);
	}
	else if (machine->expires_ms < scan->next) scan->next = machine->expires_ms;
}

/* A scan touches every machine, so it runs when the earliest lease that the last one saw ends, and not more often than every 50 ms. */
void leases_check(uint64_t now)
{
	static uint64_t next;
	if (S.lease_added) next = now;
	S.lease_added = false;
	if (next == UINT64_MAX) return;
	if (now >= next) {
		struct lease_scan scan = {.now = now, .next = UINT64_MAX};
		machines_each(check_one, &scan);
		next = scan.next == UINT64_MAX || scan.next >= now + 50 ? scan.next : now + 50;
	}
	if (next != UINT64_MAX) wake_at(next);
}

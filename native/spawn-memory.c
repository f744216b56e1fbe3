/*
 * The memory limit of processes. Files on the scratch are memory too, and charged to the same group, but they are bounded by the disk limit and must not count
 * as processes' memory. So the group's hard limit is memory + disk, and what processes hold is measured here: only while the whole use is above the memory
 * limit (below it, processes cannot be over it), every 50 ms. Over the limit the largest process is killed, as the kernel would.
 */
#include "spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { HOT_MS = 50, POLL_MS = 100 };

static struct machine *hot; /* machines that are looked at by time */

static void heat(struct machine *machine, uint64_t at_ms)
{
	machine->memory_next_ms = at_ms;
	wake_at(at_ms);
	if (machine->memory_hot) return;
	machine->memory_hot = true;
	machine->next_hot = hot;
	hot = machine;
}

static void cool(struct machine *machine)
{
	if (!machine->memory_hot) return;
	machine->memory_hot = false;
	for (struct machine **at = &hot; *at; at = &(*at)->next_hot) {
		if (*at != machine) continue;
		*at = machine->next_hot;
		return;
	}
}

static void pressed(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = (struct machine *)((char *)source - offsetof(struct machine, pressure));
	uint64_t count;
	if (read(source->fd, &count, sizeof count) < 0) return;
	heat(machine, now_ms());
}

void memory_watch_start(struct machine *machine)
{
	if (!S.memory_enforced) return;
	machine->pressure.fd = cgroup_watch_memory(machine);
	machine->pressure.handle = pressed;
	if (machine->pressure.fd < 0 || watch(&machine->pressure, EPOLLIN) < 0) heat(machine, now_ms() + POLL_MS);
}

void memory_watch_stop(struct machine *machine)
{
	cool(machine);
	if (machine->pressure.fd < 0) return;
	unwatch(&machine->pressure);
	close_fd(&machine->pressure.fd);
}

struct largest {
	pid_t init, pid;
	uint64_t pages;
};

static int compare(pid_t pid, void *context)
{
	struct largest *largest = context;
	if (pid == largest->init) return 0;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file) return 0;
	unsigned long long size, resident;
	if (fscanf(file, "%llu %llu", &size, &resident) == 2 && resident >= largest->pages) {
		largest->pages = resident;
		largest->pid = pid;
	}
	fclose(file);
	return 0;
}

static void enforce(struct machine *machine)
{
	struct largest largest = {.init = machine->pid};
	cgroup_each_process(machine->id, compare, &largest);
	if (largest.pid > 0 && cgroup_kill_process(machine->id, largest.pid)) machine->limits[LIMIT_OOM]++;
}

static void check(struct machine *machine, uint64_t now)
{
	struct usage usage;
	cgroup_usage(machine, &usage, true);
	if (usage.memory_known && usage.process_bytes > machine->memory_bytes) enforce(machine);
	bool above = usage.total_bytes > machine->memory_bytes;
	if (above) heat(machine, now + HOT_MS);
	else if (machine->pressure.fd < 0) heat(machine, now + POLL_MS);
	else cool(machine);
}

void memory_check(uint64_t now)
{
	struct machine *next;
	for (struct machine *machine = hot; machine; machine = next) {
		next = machine->next_hot;
		if (machine->memory_next_ms <= now) check(machine, now);
		else wake_at(machine->memory_next_ms);
	}
}

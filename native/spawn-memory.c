/*
 * The memory limit of processes. Files on the scratch are memory too, and charged to the same group, but they are bounded by the disk limit and must not count
 * as processes' memory. So the group's hard limit is memory + disk, and what processes hold is measured here: only while the whole use is above the memory
 * limit (below it, processes cannot be over it), every 50 ms. Over the limit the largest process is killed, as the kernel would.
 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
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
	cgroup_memory_told(source->fd);
	heat(machine, now_ms());
}

void memory_watch_start(struct machine *machine)
{
	if (!S.memory_enforced) return;
	machine->pressure.fd = cgroup_watch_memory(machine);
	machine->pressure.handle = pressed;
	if (machine->pressure.fd < 0 || watch(&machine->pressure, S.cgroups == CGROUPS_V2 ? EPOLLPRI : EPOLLIN) < 0) heat(machine, now_ms() + POLL_MS);
}

void memory_watch_stop(struct machine *machine)
{
	cool(machine);
	if (machine->pressure.fd < 0) return;
	unwatch(&machine->pressure);
	close_fd(&machine->pressure.fd);
}

/* What runs in a machine: looked at while it uses more than its memory limit. */
struct survey {
	struct machine *machine;
	struct stat program; /* init's */
	bool known;
	pid_t highest;
	pid_t largest;
	uint64_t pages;
};

static void survey_start(struct survey *survey, struct machine *machine)
{
	*survey = (struct survey){.machine = machine, .highest = machine->protected_to};
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/exe", (int)machine->pid);
	survey->known = stat(path, &survey->program) == 0;
}

/* Init, and what shares its memory until it runs a program of its own: the supervisors of commands. */
static bool is_init(const struct survey *survey, pid_t pid)
{
	if (pid == survey->machine->pid) return true;
	char path[64];
	struct stat program;
	snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
	return !survey->known || stat(path, &program) < 0 || (program.st_ino == survey->program.st_ino && program.st_dev == survey->program.st_dev);
}

/*
 * The kernel kills the process with the most memory of its own, and memory can be held by programs that are smaller than init: as files, in sockets. So they are
 * made to go first. What they start inherits it, and cannot undo it.
 */
static int put_before_init(pid_t pid, void *context)
{
	struct survey *survey = context;
	if (pid <= survey->machine->protected_to || is_init(survey, pid)) return 0;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0 && write(fd, "900", 3) == 3 && pid > survey->highest) survey->highest = pid;
	if (fd >= 0) close(fd);
	return 0;
}

static int compare(pid_t pid, void *context)
{
	struct survey *survey = context;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file) return 0;
	unsigned long long size, resident;
	if (fscanf(file, "%llu %llu", &size, &resident) == 2 && resident >= survey->pages && !is_init(survey, pid)) {
		survey->pages = resident;
		survey->largest = pid;
	}
	fclose(file);
	return 0;
}

static void enforce(struct machine *machine)
{
	struct survey survey;
	survey_start(&survey, machine);
	cgroup_each_process(machine->group, compare, &survey);
	if (survey.largest > 0 && cgroup_kill_process(machine->group, survey.largest)) machine->limits[LIMIT_OOM]++;
}

static void protect_init(struct machine *machine)
{
	struct survey survey;
	survey_start(&survey, machine);
	cgroup_each_process(machine->group, put_before_init, &survey);
	machine->protected_to = survey.highest;
}

static void check(struct machine *machine, uint64_t now)
{
	struct usage usage;
	cgroup_usage(machine, &usage, true);
	bool above = usage.total_bytes > machine->memory_bytes;
	if (above) protect_init(machine);
	else machine->protected_to = 0; /* numbers may have gone round by the next time */
	if (usage.memory_known && usage.process_bytes > machine->memory_bytes) enforce(machine);
	/* Slowed down no longer than until init is protected. */
	cgroup_memory_alarm(machine, !above && machine->pressure.fd >= 0);
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

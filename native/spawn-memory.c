/*
 * The memory limit of processes. Files on the scratch are memory too, and charged to the same group, but they are bounded by the disk limit and must not count
 * as processes' memory. So the group's hard limit is memory + disk, and what processes hold is measured here: only while the whole use is above the memory
 * limit (below it, processes cannot be over it), every 50 ms. Over the limit the largest process is killed, as the kernel would.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOT_MS = 50, POLL_MS = 100, VICTIM_MS = 10000, UNEXPLAINED_LOOKS = 20 };

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
	close_fd(&machine->victim);
	if (machine->pressure.fd < 0) return;
	unwatch(&machine->pressure);
	close_fd(&machine->pressure.fd);
}

/* The number given last to a process: numbers are given in a circle. 0: unknown. */
static pid_t newest_process(void)
{
	int newest = 0;
	FILE *file = fopen("/proc/loadavg", "re");
	if (!file) return 0;
	if (fscanf(file, "%*s %*s %*s %*s %d", &newest) != 1) newest = 0;
	fclose(file);
	return newest;
}

/* What runs in a machine: looked at while it uses more than its memory limit. */
struct survey {
	struct machine *machine;
	struct stat program; /* init's */
	bool known;
	pid_t newest; /* of the host when the survey began */
	pid_t largest;
	uint64_t pages;
	uint64_t all_pages; /* of all together */
};

static void survey_start(struct survey *survey, struct machine *machine)
{
	*survey = (struct survey){.machine = machine};
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

/* Began after the last survey, which put all before init that there were. */
static bool is_new(const struct survey *survey, pid_t pid)
{
	pid_t last = survey->machine->protected_to;
	if (last <= 0 || survey->newest <= 0) return true;
	return survey->newest >= last ? pid > last : pid > last || pid <= survey->newest;
}

/*
 * The kernel kills the process with the most memory of its own, and memory can be held by programs that are smaller than init: as files, in sockets. So they are
 * made to go first. What they start inherits it, and cannot undo it.
 */
static int put_before_init(pid_t pid, void *context)
{
	struct survey *survey = context;
	if (!is_new(survey, pid) || is_init(survey, pid)) return 0;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return 0;
	if (write(fd, "900", 3) < 0) errno = 0; /* gone */
	close(fd);
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
	bool read = fscanf(file, "%llu %llu", &size, &resident) == 2;
	fclose(file);
	if (!read) return 0;
	survey->all_pages += resident;
	if (resident >= survey->pages && !is_init(survey, pid)) {
		survey->pages = resident;
		survey->largest = pid;
	}
	return 0;
}

/* A process that was killed holds its memory until it is gone. Nobody else dies for it meanwhile, unless it does not end, as one that waits for a disk: the hard limit holds meanwhile. */
static bool victim_dying(struct machine *machine, uint64_t now)
{
	struct pollfd gone = {.fd = machine->victim, .events = POLLIN};
	if (machine->victim < 0) return false;
	if (now < machine->victim_until_ms && poll(&gone, 1, 0) == 0) return true;
	close_fd(&machine->victim);
	return false;
}

static void enforce(struct machine *machine, uint64_t now)
{
	if (victim_dying(machine, now)) return;
	struct survey survey;
	survey_start(&survey, machine);
	cgroup_each_process(machine->group, compare, &survey);
	if (survey.largest <= 0) return;
	/* Whoever held it may be gone by now or about to be, by the kernel's hand: others do not die for that. Nor does what no process shows keep anybody alive for long. */
	if (survey.all_pages * (uint64_t)sysconf(_SC_PAGESIZE) < machine->memory_bytes / 2 && machine->unexplained++ < UNEXPLAINED_LOOKS) return;
	machine->unexplained = 0;
	int victim = k_pidfd_open(survey.largest);
	if (!cgroup_kill_process(machine->group, survey.largest)) {
		close_fd(&victim);
		return;
	}
	machine->limits[LIMIT_OOM]++;
	machine->victim = victim < 0 ? -1 : keep_fd(victim);
	machine->victim_until_ms = now + VICTIM_MS;
}

static void protect_init(struct machine *machine)
{
	struct survey survey;
	survey_start(&survey, machine);
	survey.newest = newest_process();
	cgroup_each_process(machine->group, put_before_init, &survey);
	machine->protected_to = survey.newest;
}

/* Also exactly at the limit: v1 rings there, and not again when the use grows on. */
static bool above(const struct machine *machine, struct usage *usage)
{
	cgroup_usage(machine, usage, true);
	return usage->total_bytes >= machine->memory_bytes;
}

/*
 * Sets the alarm again, and looks once more: what grew before it was set does not ring. v1 remembers for each alarm whether the use was above, and looks only
 * every 128 pages, while unused charges are given back without a look: an old alarm may hold the limit for crossed, and stay silent the next time.
 */
static void rearm(struct machine *machine, uint64_t now)
{
	struct usage usage;
	memory_watch_stop(machine);
	memory_watch_start(machine);
	if (above(machine, &usage)) heat(machine, now);
}

static void check(struct machine *machine, uint64_t now)
{
	struct usage usage;
	if (!above(machine, &usage)) {
		machine->protected_to = 0; /* numbers may go round before the next time */
		machine->unexplained = 0;
		if (machine->pressure.fd < 0) heat(machine, now + POLL_MS);
		else rearm(machine, now);
		return;
	}
	protect_init(machine);
	if (usage.memory_known && usage.process_bytes > machine->memory_bytes) enforce(machine, now);
	/* Slowed down no longer than until init is protected. */
	cgroup_memory_alarm(machine, false);
	heat(machine, now + HOT_MS);
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

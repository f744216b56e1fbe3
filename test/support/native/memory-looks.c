/*
 * The spawner's watch over memory (native/spawn-memory.c) with a clock and counters that the test sets: one machine of 64 MiB whose group counts what each word says, a look
 * every 50 ms. Its processes are real ones: a `sleep` as init, and one that holds so many MiB. `+40`: it holds 40 from then on; `100`: the group counts 100 MiB. Says at each look
 * who is killed; nobody is in truth.
 */
#include "spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LIMIT_MIB = 64, LOOK_MS = 50 };

struct spawner S = {.memory_enforced = true, .cgroups = CGROUPS_V2};
static uint64_t clock_ms, counted;
static pid_t init, holder;
static bool struck;

uint64_t now_ms(void) { return clock_ms; }
void wake_at(uint64_t at_ms) { (void)at_ms; }
int watch(struct source *source, uint32_t events) { return (void)source, (void)events, -1; }
void unwatch(struct source *source) { (void)source; }
int keep_fd(int fd) { return fd; }
void close_fd(int *fd)
{
	if (*fd >= 0) close(*fd);
	*fd = -1;
}
/* Without one it looks by time alone. */
int cgroup_watch_memory(struct machine *machine) { return (void)machine, -1; }
void cgroup_memory_told(int fd) { (void)fd; }
void cgroup_memory_alarm(struct machine *machine, bool set) { (void)machine, (void)set; }
void cgroup_usage(const struct machine *machine, struct usage *usage, bool memory_only)
{
	(void)machine, (void)memory_only;
	*usage = (struct usage){.memory_known = true, .process_bytes = counted, .total_bytes = counted};
}
int cgroup_each_process(const char *group, int (*visit)(pid_t pid, void *context), void *context)
{
	(void)group;
	return visit(init, context) || visit(holder, context);
}
bool cgroup_kill_process(const char *group, pid_t pid) { return (void)group, struck = pid == holder; }

/* Waits until the child has said a byte, or is another program. */
static void wait_for(const int ready[2], ssize_t bytes)
{
	char byte;
	close(ready[1]);
	if (read(ready[0], &byte, 1) != bytes) exit(2);
	close(ready[0]);
}

static pid_t begin(int ready[2])
{
	if (pipe2(ready, O_CLOEXEC) < 0) exit(2);
	pid_t pid = fork();
	if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static void hold(int mib)
{
	int ready[2];
	if (holder) kill(holder, SIGKILL);
	holder = begin(ready);
	if (holder == 0) {
		size_t bytes = (size_t)mib << 20;
		char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED) _exit(2);
		memset(memory, 1, bytes);
		if (write(ready[1], "", 1) == 1) pause();
		_exit(2);
	}
	wait_for(ready, 1);
}

int main(int argc, char **argv)
{
	int ready[2];
	init = begin(ready);
	if (init == 0) {
		execlp("sleep", "sleep", "1000", (char *)NULL);
		if (write(ready[1], "", 1) != 1) _exit(3);
		_exit(2);
	}
	wait_for(ready, 0);
	struct machine machine = {.group = "test", .pid = init, .memory_bytes = (uint64_t)LIMIT_MIB << 20, .pressure = {.fd = -1}, .victim = -1};
	hold(1);
	memory_watch_start(&machine);
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] == '+') {
			hold(atoi(argv[i] + 1));
			continue;
		}
		counted = (uint64_t)atoi(argv[i]) << 20;
		clock_ms += LOOK_MS;
		if (clock_ms < machine.memory_next_ms) clock_ms = machine.memory_next_ms;
		struck = false;
		memory_check(clock_ms);
		puts(struck ? "killed" : "nobody");
	}
	return 0;
}

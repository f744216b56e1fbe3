/*
 * Processes that wait in vfork: until the child is another program the kernel does not let them stop for a tracer, and the child stands still as they do. CRIU would wait for them until
 * its time is over, with the machine standing still. Such a wait takes microseconds in a machine that runs, so whoever asks lets it run and tries again.
 */
#include "spawn.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* `text`: the number of the system call and its arguments, of a thread that is in none "running" or -1. The arguments of clone3 are in memory of its own: it may be one. */
static bool is_vfork(const char *text)
{
	char *rest;
	long number = strtol(text, &rest, 10);
	if (rest == text) return false;
#ifdef SYS_vfork
	if (number == SYS_vfork) return true;
#endif
	if (number == SYS_clone) return (strtoull(rest, NULL, 16) & CLONE_VFORK) != 0;
	return number == SYS_clone3;
}

static bool thread_waits(int tasks, const char *thread)
{
	char path[64], text[256];
	snprintf(path, sizeof path, "%.20s/syscall", thread);
	int fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return false;
	ssize_t got = read(fd, text, sizeof text - 1);
	close(fd);
	text[got > 0 ? got : 0] = 0;
	return is_vfork(text);
}

static int process_waits(pid_t pid, void *found)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	DIR *tasks = opendir(path);
	if (!tasks) return 0;
	bool waits = false;
	for (struct dirent *entry; !waits && (entry = readdir(tasks));)
		if (entry->d_name[0] != '.') waits = thread_waits(dirfd(tasks), entry->d_name);
	closedir(tasks);
	if (waits) *(pid_t *)found = pid;
	return waits;
}

pid_t vfork_waits(const struct machine *machine)
{
	pid_t found = 0;
	cgroup_each_process(machine->group, process_waits, &found);
	return found;
}

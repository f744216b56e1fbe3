/*
 * What an earlier spawner of this data directory left: machines by their recorded process and start time (a process id alone may be somebody else's by now),
 * then control groups, then run directories.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Field 22 of /proc/PID/stat, clock ticks since boot; 0 when there is no such process, or only what its parent has not waited for yet. */
static uint64_t start_time(pid_t pid)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return 0;
	ssize_t got = read(fd, text, sizeof text - 1);
	close(fd);
	if (got <= 0) return 0;
	text[got] = 0;
	/* The second field is a name in parentheses that may hold anything. */
	char *at = strrchr(text, ')');
	if (at && (at[2] == 'Z' || at[2] == 'X')) return 0;
	for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

void record_write(const struct machine *machine)
{
	char path[PATH_BYTES], text[128];
	snprintf(path, sizeof path, "%s/%s/record", S.config.run, machine->id);
	int length = snprintf(text, sizeof text, "%d %llu %llu\n", (int)machine->pid, (unsigned long long)start_time(machine->pid), (unsigned long long)S.epoch);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || write(fd, text, (size_t)length) != length) logf_("writing %s: %s", path, strerror(errno));
	if (fd >= 0) close(fd);
}

static void end_recorded(const char *id)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/%s/record", S.config.run, id);
	FILE *file = fopen(path, "re");
	if (!file) return;
	int pid = 0;
	unsigned long long started = 0;
	int fields = fscanf(file, "%d %llu", &pid, &started);
	fclose(file);
	if (fields != 2 || pid <= 1 || started == 0) return;
	for (int i = 0; i < 200 && start_time(pid) == started; i++) {
		kill(pid, SIGKILL);
		struct timespec pause = {.tv_nsec = 10 * 1000000};
		nanosleep(&pause, NULL);
	}
}

void remove_run_directory(const char *id)
{
	static const char *const FILES[] = {"init.sock", "tree.sock", "record"};
	char path[PATH_BYTES];
	for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
		snprintf(path, sizeof path, "%s/%s/%s", S.config.run, id, FILES[i]);
		unlink(path);
	}
	snprintf(path, sizeof path, "%s/%s/s", S.config.run, id);
	rmdir(path);
	snprintf(path, sizeof path, "%s/%s", S.config.run, id);
	if (rmdir(path) < 0 && errno != ENOENT) logf_("removing %s: %s", path, strerror(errno));
}

static void each_run_directory(void (*visit)(const char *id))
{
	DIR *list = opendir(S.config.run);
	if (!list) return;
	struct dirent *entry;
	/* Names of machines, and of blanks behind a dot. */
	while ((entry = readdir(list)))
		if (id_valid(entry->d_name[0] == '.' ? entry->d_name + 1 : entry->d_name)) visit(entry->d_name);
	closedir(list);
}

void sweep(void)
{
	each_run_directory(end_recorded);
	cgroup_sweep();
	each_run_directory(remove_run_directory);
}

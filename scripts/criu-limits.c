/*
 * Linked into CRIU: reads the resource limits of a process where prlimit(2) is refused. Another user's need CAP_SYS_RESOURCE, which root of a container often lacks; the
 * kernel shows them in /proc to whoever may trace the process.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

static const char *const NAMES[RLIM_NLIMITS] = {
	[RLIMIT_CPU] = "Max cpu time", [RLIMIT_FSIZE] = "Max file size", [RLIMIT_DATA] = "Max data size", [RLIMIT_STACK] = "Max stack size", [RLIMIT_CORE] = "Max core file size",
	[RLIMIT_RSS] = "Max resident set", [RLIMIT_NPROC] = "Max processes", [RLIMIT_NOFILE] = "Max open files", [RLIMIT_MEMLOCK] = "Max locked memory",
	[RLIMIT_AS] = "Max address space", [RLIMIT_LOCKS] = "Max file locks", [RLIMIT_SIGPENDING] = "Max pending signals", [RLIMIT_MSGQUEUE] = "Max msgqueue size",
	[RLIMIT_NICE] = "Max nice priority", [RLIMIT_RTPRIO] = "Max realtime priority", [RLIMIT_RTTIME] = "Max realtime timeout"};

static int number(const char *text, rlim64_t *value)
{
	char *end;
	if (strcmp(text, "unlimited") == 0) return *value = RLIM64_INFINITY, 0;
	*value = strtoull(text, &end, 10);
	return end == text || *end ? -1 : 0;
}

static int read_limit(int pid, int resource, struct rlimit64 *limit)
{
	char path[64], line[256], soft[32], hard[32];
	int found = -1;
	if (resource < 0 || resource >= RLIM_NLIMITS || !NAMES[resource]) return -1;
	size_t length = strlen(NAMES[resource]);
	snprintf(path, sizeof path, "/proc/%d/limits", pid);
	FILE *file = fopen(path, "re");
	while (file && found < 0 && fgets(line, sizeof line, file)) {
		if (strncmp(line, NAMES[resource], length) != 0 || sscanf(line + length, "%31s %31s", soft, hard) != 2) continue;
		if (number(soft, &limit->rlim_cur) == 0 && number(hard, &limit->rlim_max) == 0) found = 0;
	}
	if (file) fclose(file);
	return found;
}

long __wrap_syscall(long call, ...)
{
	long a[6];
	va_list arguments;
	va_start(arguments, call);
	for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
	va_end(arguments);
	long result = __real_syscall(call, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (result == 0 || call != SYS_prlimit64 || errno != EPERM || a[2] != 0 || a[3] == 0) return result;
	if (read_limit((int)a[0], (int)a[1], (struct rlimit64 *)a[3]) == 0) return 0;
	errno = EPERM;
	return -1;
}

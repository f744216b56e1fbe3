/* What every part of the spawner uses: the clock, words for whoever reads our stderr, failures on their way to the controller, descriptors. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t now_ms(void) { return now_us() / 1000; }

void logf_(const char *format, ...)
{
	char line[1024];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(line, sizeof line - 1, format, arguments);
	va_end(arguments);
	if (length < 0) return;
	if ((size_t)length > sizeof line - 2) length = sizeof line - 2;
	line[length++] = '\n';
	/* Nobody may be reading any more; that is no reason to fail. */
	if (write(2, line, (size_t)length) < 0) return;
}

const char *errno_name(int error)
{
	static const struct {
		int number;
		const char *name;
	} NAMES[] = {{EPERM, "EPERM"}, {ENOENT, "ENOENT"}, {EIO, "EIO"}, {EAGAIN, "EAGAIN"}, {ENOMEM, "ENOMEM"}, {EACCES, "EACCES"}, {EBUSY, "EBUSY"},
		     {EEXIST, "EEXIST"}, {ENODEV, "ENODEV"}, {ENOTDIR, "ENOTDIR"}, {EINVAL, "EINVAL"}, {ENFILE, "ENFILE"}, {EMFILE, "EMFILE"}, {ENOSPC, "ENOSPC"},
		     {EROFS, "EROFS"}, {ENAMETOOLONG, "ENAMETOOLONG"}, {ENOSYS, "ENOSYS"}, {ELOOP, "ELOOP"}, {EOPNOTSUPP, "EOPNOTSUPP"}, {EADDRINUSE, "EADDRINUSE"},
		     {ESTALE, "ESTALE"}, {EUSERS, "EUSERS"}, {ENOEXEC, "ENOEXEC"}, {E2BIG, "E2BIG"}};
	for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
		if (NAMES[i].number == error) return NAMES[i].name;
	return "EOTHER";
}

int fail_errno(struct failure *failure, int error, const char *format, ...)
{
	snprintf(failure->code, sizeof failure->code, "%s", errno_name(error));
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(failure->message, sizeof failure->message, format, arguments);
	va_end(arguments);
	if (length > 0 && (size_t)length < sizeof failure->message)
		snprintf(failure->message + length, sizeof failure->message - (size_t)length, ": %s", strerror(error));
	return -1;
}

int fail_code(struct failure *failure, const char *code, const char *format, ...)
{
	snprintf(failure->code, sizeof failure->code, "%s", code);
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(failure->message, sizeof failure->message, format, arguments);
	va_end(arguments);
	return -1;
}

void die(int status, const char *format, ...)
{
	char text[800];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	logf_("spawn: %s", text);
	exit(status);
}

int keep_fd(int fd)
{
	if (fd < 0 || fd >= LOW_FDS) return fd;
	int high = fcntl(fd, F_DUPFD_CLOEXEC, LOW_FDS);
	int error = errno;
	close(fd);
	errno = error;
	return high;
}

void close_fd(int *fd)
{
	if (*fd >= 0) close(*fd);
	*fd = -1;
}

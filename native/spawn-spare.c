/*
 * What every machine needs whatever is asked for, made beforehand when nothing else is to do: the run directory with its listening socket, the scratch file
 * system with its directories, and the control groups. A machine takes one, renames the directory, and fits the rest to its request. Nothing is used twice.
 *
 * A spare is `RUN/.NAME` and the groups NAME; the machine that takes it keeps its groups' name. Spares of a spawner that died are swept by the next one.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

struct spare {
	char name[ID_BYTES];
	int listener;
	int scratch;
};
static struct spare ready[SPARES];
static int ready_count;

static void where(char *out, const struct spare *spare) { snprintf(out, PATH_BYTES, "%s/.%s", S.config.run, spare->name); }

static void destroy(struct spare *spare)
{
	char directory[PATH_BYTES];
	where(directory, spare);
	cgroup_remove(spare->name);
	scratch_detach(directory, &spare->scratch);
	close_fd(&spare->listener);
	remove_run_directory(strrchr(directory, '/') + 1);
}

/* `init.sock` listens before the machine exists: a client can connect as soon as creation is answered. */
static int listen_in(const char *directory, struct failure *failure)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/init.sock", directory) >= sizeof address.sun_path)
		return fail_code(failure, "ENAMETOOLONG", "%s/init.sock is longer than a unix socket's path may be", directory);
	int fd = keep_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
	if (fd < 0) return fail_errno(failure, errno, "making a socket");
	if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 64) == 0) return fd;
	int error = errno;
	close(fd);
	return fail_errno(failure, error, "listening on %s", address.sun_path);
}

static int fill(struct spare *spare, struct failure *failure)
{
	char directory[PATH_BYTES];
	where(directory, spare);
	if (mkdir(directory, 0700) < 0) return fail_errno(failure, errno, "making %s", directory);
	spare->listener = listen_in(directory, failure);
	if (spare->listener < 0) return -1;
	spare->scratch = scratch_make(directory, failure);
	if (spare->scratch < 0) return -1;
	return cgroup_prepare(spare->name, failure);
}

static int make(struct spare *spare, struct failure *failure)
{
	static uint64_t count;
	*spare = (struct spare){.listener = -1, .scratch = -1};
	/* The epoch keeps it apart from what an earlier spawner could not remove. */
	snprintf(spare->name, sizeof spare->name, "sbx-%llu-%llu", (unsigned long long)S.epoch, (unsigned long long)++count);
	if (fill(spare, failure) == 0) return 0;
	destroy(spare);
	return -1;
}

/* Gives the machine its run directory, scratch and groups; returns the listening socket, the caller's to close. */
int spare_take(struct machine *machine, struct failure *failure)
{
	char from[PATH_BYTES], to[PATH_BYTES];
	struct spare spare;
	if ((size_t)snprintf(to, sizeof to, "%s/%s", S.config.run, machine->id) + sizeof "/init.sock" > sizeof ((struct sockaddr_un *)0)->sun_path)
		return fail_code(failure, "ENAMETOOLONG", "%s/init.sock is longer than a unix socket's path may be", to);
	if (ready_count > 0) spare = ready[--ready_count];
	else if (make(&spare, failure) < 0) return -1;
	where(from, &spare);
	if (rename(from, to) < 0) {
		int error = errno;
		destroy(&spare);
		return fail_errno(failure, error, "making %s", to);
	}
	memcpy(machine->group, spare.name, sizeof machine->group);
	machine->scratch = spare.scratch;
	int listener = fcntl(spare.listener, F_DUPFD_CLOEXEC, 0), error = errno;
	close(spare.listener);
	return listener < 0 ? fail_errno(failure, error, "making %s", machine->id) : listener;
}

bool spare_refill(void)
{
	struct failure ignored;
	if (ready_count == SPARES || make(&ready[ready_count], &ignored) < 0) return false;
	ready_count++;
	return true;
}

bool spares_low(void) { return ready_count < SPARES / 4; }

void spares_remove(void)
{
	while (ready_count > 0) destroy(&ready[--ready_count]);
}

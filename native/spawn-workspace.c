/*
 * Sealed workspaces: the scratch file system of a machine that has ended. Readable through the `tree` helper, usable as a layer, gone when released (and no
 * machine starts from it any more).
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* What only the running machine needed goes; the upper directory stays. */
void workspace_sealed(struct machine *machine)
{
	char path[PATH_BYTES];
	static const char *const GONE[] = {"init.sock", "record"};
	for (size_t i = 0; i < sizeof GONE / sizeof *GONE; i++) {
		snprintf(path, sizeof path, "%s/%s/%s", S.config.run, machine->id, GONE[i]);
		unlink(path);
	}
}

/* One that no machine has been: it has no files yet. */
struct machine *workspace_new(const char *id)
{
	struct machine *workspace = machine_new();
	if (!workspace) return NULL;
	workspace->state = MACHINE_SEALED;
	workspace->reason = END_SEALED;
	snprintf(workspace->id, sizeof workspace->id, "%s", id);
	return workspace;
}

static void tree_exited(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *machine = (struct machine *)((char *)source - offsetof(struct machine, tree.source));
	workspace_close_tree(machine);
}

void workspace_close_tree(struct machine *machine)
{
	if (machine->tree.pid <= 0) return;
	helper_stop(&machine->tree);
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/%s/tree.sock", S.config.run, machine->id);
	unlink(path);
}

static int listen_at(const char *id)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof address.sun_path, "%s/%s/tree.sock", S.config.run, id);
	unlink(address.sun_path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0) return -1;
	if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0) return fd;
	int error = errno;
	close(fd);
	return errno = error, -1;
}

void free_arguments(char **argv, int owned)
{
	for (int i = 2; i < 2 + owned; i++) free(argv[i]);
	free(argv);
}

/* The helper's arguments: an option, and what is below the workspace, topmost first. The first `owned` paths are to be freed. */
char **tree_arguments(const struct machine *machine, const char *option, int lowers, int *owned)
{
	int bases = 0;
	for (struct machine *base = machine->base; base; base = base->base) bases++;
	*owned = 0;
	char **argv = calloc((size_t)lowers + (size_t)bases + 3, sizeof *argv);
	if (!argv) return NULL;
	int count = 0;
	argv[count++] = (char *)"tree";
	argv[count++] = (char *)option;
	for (struct machine *base = machine->base; base; base = base->base) {
		char path[PATH_BYTES];
		snprintf(path, sizeof path, "%s/%s/s/upper", S.config.run, base->id);
		if (!(argv[count] = strdup(path))) {
			free_arguments(argv, *owned);
			return NULL;
		}
		count++;
		++*owned;
	}
	for (int i = 0; i < lowers; i++) argv[count++] = machine->lowers[i];
	return argv;
}

int workspace_open(struct machine *machine, struct failure *failure)
{
	/* It ends with its client, and its end may not have been noticed yet. */
	struct pollfd gone = {.fd = machine->tree.source.fd, .events = POLLIN};
	if (machine->tree.pid > 0 && poll(&gone, 1, 0) == 1) workspace_close_tree(machine);
	if (machine->tree.pid > 0) return 0;
	if (!S.config.tree) return fail_code(failure, "unsupported", "started without --tree");
	int upper = openat(machine->scratch, "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	int listener = listen_at(machine->id);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int owned = 0;
	char option[32];
	for (struct machine *base = machine->base; base; base = base->base) owned++;
	snprintf(option, sizeof option, "--bases=%d", owned);
	char **argv = tree_arguments(machine, option, machine->lower_count, &owned);
	int result = -1, error = ENOMEM;
	if (upper >= 0 && listener >= 0 && null >= 0 && argv) {
		const int fds[][2] = {{null, 0}, {null, 1}, {2, 2}, {listener, 3}, {null, 4}, {upper, 5}};
		machine->tree.source.handle = tree_exited;
		result = helper_start(&machine->tree, S.config.tree, argv, fds, 6);
		error = errno;
	} else if (argv) {
		error = errno;
	}
	if (argv) free_arguments(argv, owned);
	if (upper >= 0) close(upper);
	if (listener >= 0) close(listener);
	if (null >= 0) close(null);
	return result == 0 ? 0 : fail_errno(failure, error, "starting the reader of the workspace %s", machine->id);
}

void workspace_release(struct machine *machine)
{
	if (machine->users == 0) {
		machine_dispose(machine);
		return;
	}
	machine->released = true;
}

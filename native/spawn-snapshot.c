/*
 * The files of a machine that goes on, as a workspace.
 *
 * Detaching: nothing but init runs in the machine. Init ends, what the machine wrote becomes a workspace of another id, and the controller makes a machine of the old id on it.
 * An overlay's upper directory never becomes a lower one while somebody uses it, and nothing is copied: it takes the same time whatever was written. The last one to leave a
 * mounted overlay has to forget every file of it, which takes the longer the more were written: the mount namespace is held until the machine runs again, and nobody is in it then.
 *
 * Copying: processes hold the layer. Everything stands still while the `tree` helper copies the upper directory into a new scratch file system.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- who is in a machine ---- */

struct crowd {
	pid_t init;
	struct stat program; /* init's */
	struct stat namespace; /* of its processes */
	bool known;
	int others;
};

static bool stat_of(pid_t pid, const char *what, struct stat *info)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
	return stat(path, info) == 0;
}

/* Supervisors share init's program; what cannot be told is somebody. One that is gone by now is nobody. */
static int count_others(pid_t pid, void *context)
{
	struct crowd *crowd = context;
	struct stat program;
	if (pid == crowd->init) return 0;
	if (stat_of(pid, "exe", &program) ? program.st_ino != crowd->program.st_ino || program.st_dev != crowd->program.st_dev : errno != ENOENT) crowd->others++;
	return 0;
}

/* Without control groups: every process of the host is looked at. */
static void count_in_namespace(struct crowd *crowd)
{
	DIR *list = opendir("/proc");
	struct dirent *entry;
	struct stat namespace;
	while (list && (entry = readdir(list))) {
		pid_t pid = (pid_t)atoi(entry->d_name);
		if (pid > 1 && stat_of(pid, "ns/pid", &namespace) && namespace.st_ino == crowd->namespace.st_ino) count_others(pid, crowd);
	}
	if (list) closedir(list);
	else crowd->others++;
}

bool machine_quiet(const struct machine *machine)
{
	struct crowd crowd = {.init = machine->pid};
	if (!stat_of(machine->pid, "exe", &crowd.program) || !stat_of(machine->pid, "ns/pid", &crowd.namespace)) return false;
	if (cgroup_each_process(machine->group, count_others, &crowd) == 0) count_in_namespace(&crowd);
	return crowd.others == 0;
}

bool directory_empty(int directory)
{
	int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	if (!list) return false;
	struct dirent *entry;
	bool empty = true;
	while (empty && (entry = readdir(list))) empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
	closedir(list);
	return empty;
}

/* Files in /dev/shm are memory: they go on with the machine, and not with its files. */
static bool shm_empty(const struct machine *machine)
{
	int fd = openat(machine->scratch, "shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool empty = fd >= 0 && directory_empty(fd);
	if (fd >= 0) close(fd);
	return empty;
}

/* ---- detaching ---- */

int machine_detach(struct machine *machine, const char *as, bool force, struct failure *failure)
{
	if (!id_valid(as) || machine_find(as)) return fail_code(failure, "EEXIST", "%s cannot be the id of a new workspace", as);
	if (machine->copy) return fail_code(failure, "EBUSY", "%s is being copied", machine->id);
	if (!force && !machine_quiet(machine)) return fail_code(failure, "EBUSY", "processes run in %s", machine->id);
	if (!force && !shm_empty(machine)) return fail_code(failure, "EBUSY", "there are files in /dev/shm of %s", machine->id);
	snprintf(machine->detached_id, sizeof machine->detached_id, "%s", as);
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)machine->pid);
	/* Without it, it takes longer. */
	machine->left = keep_fd(open(path, O_RDONLY | O_CLOEXEC));
	machine_end(machine, END_DETACHED);
	return 0;
}

static void taken_down(struct source *source, uint32_t events)
{
	(void)events;
	struct helper *helper = (struct helper *)((char *)source - offsetof(struct helper, source));
	helper_ended(helper);
	free_later(helper);
}

/* The end of a process that holds the namespace takes its mounts down: ours would keep every machine waiting. */
void detached_leave(struct machine *workspace)
{
	if (workspace->left < 0) return;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct helper *helper = S.stopping || null < 0 ? NULL : calloc(1, sizeof *helper);
	char *const argv[] = {"tree", "--leave", NULL};
	const int fds[][2] = {{null, 0}, {null, 1}, {2, 2}, {workspace->left, 3}};
	if (helper) helper->source.handle = taken_down;
	if (helper && helper_start(helper, S.config.tree, argv, fds, 4) < 0) free(helper);
	if (null >= 0) close(null);
	close_fd(&workspace->left);
}

/* Its init has ended; everything that only a running machine has is gone. */
void detached(struct machine *machine)
{
	char from[PATH_BYTES], to[PATH_BYTES];
	snprintf(from, sizeof from, "%s/%s", S.config.run, machine->id);
	snprintf(to, sizeof to, "%s/%s", S.config.run, machine->detached_id);
	if (rename(from, to) < 0) logf_("renaming %s: %s", from, strerror(errno));
	machine_remove(machine);
	snprintf(machine->id, sizeof machine->id, "%s", machine->detached_id);
	machine_add(machine);
}

void workspace_rebase(struct machine *workspace, struct machine *onto)
{
	struct machine *base = workspace->base;
	workspace->base = onto;
	if (onto) onto->users++;
	if (base && --base->users == 0 && base->released) machine_dispose(base);
}

void workspace_relayer(struct machine *workspace, char **lowers, int count)
{
	for (int i = 0; i < workspace->lower_count; i++) free(workspace->lowers[i]);
	free(workspace->lowers);
	workspace->lowers = lowers;
	workspace->lower_count = count;
}

/* ---- copying ---- */

struct copying {
	struct machine *source; /* stands still meanwhile; NULL: a workspace, which nobody changes */
	uint32_t ref;
	bool thaw;
	uint64_t since_us;
};

static uint64_t go_on(struct copying *copying)
{
	struct failure failure;
	struct machine *machine = copying->source;
	if (!machine) return 0;
	machine->copy = NULL;
	if (copying->thaw && machine->state == MACHINE_RUNNING && cgroup_freeze(machine, false, &failure) < 0) logf_("%s", failure.message);
	return now_us() - copying->since_us;
}

static void give_up(struct machine *copy)
{
	free(copy->copying);
	copy->copying = NULL;
	machine_dispose(copy);
}

static void copied(struct source *source, uint32_t events)
{
	(void)events;
	struct machine *copy = (struct machine *)((char *)source - offsetof(struct machine, tree.source));
	uint32_t ref = copy->copying->ref;
	int status = helper_ended(&copy->tree);
	uint64_t stopped = go_on(copy->copying);
	if (status == 0) {
		free(copy->copying);
		copy->copying = NULL;
		send_copied(copy, ref, stopped);
		return;
	}
	struct failure failure;
	fail_errno(&failure, status > 0 ? status : EINTR, "copying what a machine wrote");
	send_error(ref, failure.code, failure.message);
	give_up(copy);
}

void copy_abort(struct machine *machine)
{
	struct machine *copy = machine->copy;
	if (!copy) return;
	machine->copy = NULL;
	helper_stop(&copy->tree);
	send_error(copy->copying->ref, "gone", "the machine ended while it was copied");
	give_up(copy);
}

/* The copier merges the workspace's layers that it is given, topmost first, below what is in `from`. */
static int start_copier(struct machine *copy, const struct machine *from, char *const argv[], struct failure *failure)
{
	int upper = openat(from->scratch, "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int to = openat(copy->scratch, "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	const int fds[][2] = {{null, 0}, {null, 1}, {2, 2}, {null, 3}, {null, 4}, {upper, 5}, {to, 6}};
	copy->tree.source.handle = copied;
	int result = upper < 0 || to < 0 || null < 0 ? -1 : helper_start_in(&copy->tree, S.config.tree, argv, fds, 7, copy->copying->source ? helper_first : NULL, NULL), error = errno;
	int *const opened[] = {&upper, &to, &null};
	for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) close_fd(opened[i]);
	return result < 0 ? fail_errno(failure, error, "starting to copy what %s wrote", from->id) : 0;
}

static int fill_copy(struct machine *copy, const struct machine *from, uint64_t disk_bytes, int skipped, struct failure *failure)
{
	char directory[PATH_BYTES];
	snprintf(directory, sizeof directory, "%s/%s", S.config.run, copy->id);
	if (mkdir(directory, 0700) < 0) return fail_errno(failure, errno, "making %s", directory);
	if ((copy->scratch = scratch_make(directory, failure)) < 0) return -1;
	copy->disk_bytes = disk_bytes;
	if (scratch_resize(copy) < 0) return fail_errno(failure, errno, "making room for a copy of %s", from->id);
	int count = from->lower_count - skipped;
	copy->lowers = calloc((size_t)count + 1, sizeof *copy->lowers);
	for (int i = 0; copy->lowers && i < count; i++) {
		if (!(copy->lowers[i] = strdup(from->lowers[skipped + i]))) break;
		copy->lower_count++;
	}
	return copy->lower_count == count ? 0 : fail_errno(failure, ENOMEM, "copying %s", from->id);
}

static struct machine *copy_new(const char *as, uint32_t ref, struct failure *failure)
{
	if (!id_valid(as) || machine_find(as)) return fail_code(failure, "EEXIST", "%s cannot be the id of a new workspace", as), NULL;
	if (!S.config.tree) return fail_code(failure, "unsupported", "started without --tree"), NULL;
	struct machine *copy = workspace_new(as);
	if (copy) copy->copying = calloc(1, sizeof *copy->copying);
	if (!copy || !copy->copying) return free(copy), fail_errno(failure, ENOMEM, "making %s", as), NULL;
	copy->copying->ref = ref;
	machine_add(copy);
	return copy;
}

static int stand_still(struct machine *machine, struct copying *copying, struct failure *failure)
{
	copying->thaw = !machine->frozen;
	copying->since_us = now_us();
	if (machine->frozen || cgroup_freeze(machine, true, failure) == 0) return 0;
	struct failure ignored;
	cgroup_freeze(machine, false, &ignored);
	return -1;
}

int machine_copy(struct machine *machine, const char *as, uint32_t ref, struct failure *failure)
{
	char *const argv[] = {(char *)"tree", (char *)"--copy", NULL};
	if (machine->copy) return fail_code(failure, "EBUSY", "%s is being copied already", machine->id);
	if (!S.freezer) return fail_code(failure, "unsupported", "this host cannot freeze machines, so files of one whose processes run cannot be kept");
	struct machine *copy = copy_new(as, ref, failure);
	if (!copy) return -1;
	workspace_rebase(copy, machine->base);
	/* What can fail for want of anything does so before anything stands still. */
	if (fill_copy(copy, machine, machine->disk_bytes, 0, failure) < 0 || stand_still(machine, copy->copying, failure) < 0) return give_up(copy), -1;
	machine->copy = copy;
	copy->copying->source = machine;
	if (start_copier(copy, machine, argv, failure) == 0) return 0;
	go_on(copy->copying);
	give_up(copy);
	return -1;
}

static uint64_t room_for(const struct machine *workspace)
{
	uint64_t bytes = workspace->disk_bytes;
	for (const struct machine *base = workspace->base; base; base = base->base) bytes += base->disk_bytes;
	return bytes;
}

/* A new workspace that is what this one, all workspaces below it and the first `count` layers are together. */
int workspace_flatten(struct machine *workspace, const char *as, uint64_t count, uint32_t ref, struct failure *failure)
{
	if (count > (uint64_t)workspace->lower_count) return fail_code(failure, "EINVAL", "%s does not lie on that many layers", workspace->id);
	struct machine *copy = copy_new(as, ref, failure);
	if (!copy) return -1;
	int owned;
	char **argv = tree_arguments(workspace, "--copy", (int)count, &owned);
	/* Layers on disk hold more than any scratch here knows of. */
	uint64_t room = count > 0 ? 0 : room_for(workspace);
	int result = argv ? fill_copy(copy, workspace, room, (int)count, failure) : fail_errno(failure, ENOMEM, "making %s", as);
	if (result == 0) result = start_copier(copy, workspace, argv, failure);
	if (argv) free_arguments(argv, owned);
	if (result < 0) give_up(copy);
	return result;
}

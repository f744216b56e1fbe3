/*
 * The scratch file system of a machine: a tmpfs that takes everything it writes, attached in the spawner's private mount namespace at `RUN/ID/s` (the host sees an
 * empty directory) and, under the machine's ids, in the machine's own.
 *
 *   upper/   the overlay's upper directory: the machine's workspace once sealed
 *   work/    the overlay's work directory; work-N for parts
 *   shm/     /dev/shm
 *   skel/    lowest layer: the directories and files that a machine needs and an image may lack
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/xattr.h>

int clone_mount(int dir, const char *path, int userns, struct failure *failure)
{
	unsigned empty = path[0] == 0 ? AT_EMPTY_PATH : 0;
	int fd = k_open_tree(dir, path, MW_OPEN_TREE_CLONE | O_CLOEXEC | empty);
	if (fd < 0) return fail_errno(failure, errno, "opening the layer %s", path[0] ? path : "of the scratch file system");
	if (userns < 0 || !S.privileged) return fd;
	struct mw_mount_attr attr = {.attr_set = MW_MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns};
	if (k_mount_setattr(fd, "", AT_EMPTY_PATH, &attr) == 0) return fd;
	int error = errno;
	close(fd);
	if (error == EINVAL)
		return fail_code(failure, "no_idmap", "the file system of %s cannot be mounted with mapped ids (it needs ext4, xfs, btrfs, or tmpfs on Linux 6.3 or later)",
				 path[0] ? path : "the scratch (tmpfs)");
	return fail_errno(failure, error, "mapping the ids of %s", path[0] ? path : "the scratch file system");
}

/* A directory of a workspace: what its machine wrote is walked without following a link, which would lead to the host's files. */
int open_below(int dir, const char *path)
{
	struct mw_open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = MW_RESOLVE_BENEATH | MW_RESOLVE_NO_SYMLINKS | MW_RESOLVE_NO_MAGICLINKS};
	return k_openat2(dir, path, &how);
}

static uint64_t default_disk_bytes(void)
{
	struct sysinfo info;
	uint64_t gib = 1ull << 30;
	if (sysinfo(&info) < 0) return gib;
	uint64_t quarter = (uint64_t)info.totalram * info.mem_unit / 4;
	return quarter > 16 * gib ? 16 * gib : quarter;
}

int put_file(int dir, const char *path, const char *text)
{
	int fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0) return -1;
	ssize_t written = write(fd, text, strlen(text));
	close(fd);
	return written < 0 ? -1 : 0;
}

/* An ordinary user cannot give files to owners whose ids it has no part in; then the machine's root owns the directory. */
int copy_owner_and_mode(int dir, const char *path, const char *like)
{
	struct stat info;
	/* A layer that is not there is reported when it is to be attached. */
	if (stat(like, &info) < 0) return 0;
	if (fchownat(dir, path, info.st_uid, info.st_gid, 0) < 0 && S.privileged) return -1;
	return fchmodat(dir, path, info.st_mode & 07777, 0);
}

static int fill(int dir)
{
	static const struct {
		const char *path;
		mode_t mode;
	} DIRECTORIES[] = {{"upper", 0755}, {"work", 0755}, {"shm", 01777}, {"skel", 0755}, {"skel/proc", 0555}, {"skel/dev", 0755}, {"skel/sys", 0555},
			   {"skel/etc", 0755}, {"skel/tmp", 01777}};
	for (size_t i = 0; i < sizeof DIRECTORIES / sizeof *DIRECTORIES; i++)
		if (mkdirat(dir, DIRECTORIES[i].path, DIRECTORIES[i].mode) < 0) return -1;
	static const struct create_request usual = {.hostname = DEFAULT_HOSTNAME};
	return name_host(dir, &usual);
}

/* Makes `upper/TARGET` with the modes and owners of the part's directories, and the part's own work directory. */
static int fill_part(struct machine *machine, const char *target, const char *layer, int index)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "work-%d", index);
	if (mkdirat(machine->scratch, path, 0755) < 0) return -1;
	int length = snprintf(path, sizeof path, "upper%s", target);
	if (length < 0 || (size_t)length >= sizeof path) return errno = ENAMETOOLONG, -1;
	for (char *slash = strchr(path + 6, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (mkdirat(machine->scratch, path, 0755) < 0 && errno != EEXIST) return -1;
		*slash = '/';
	}
	if (mkdirat(machine->scratch, path, 0755) < 0 && errno != EEXIST) return -1;
	return copy_owner_and_mode(machine->scratch, path, layer);
}

static uint64_t inodes(uint64_t disk_bytes)
{
	uint64_t count = disk_bytes / 4096;
	return count < 16384 ? 16384 : count > 2097152 ? 2097152 : count;
}

/*
 * An ordinary user's overlay marks directories with `user.*` attributes, which a tmpfs keeps since Linux 6.6. Without the marks nothing inside could move a
 * directory, or make one again that was removed: such machines would mislead, so none are made.
 */
int scratch_probe(struct failure *failure)
{
	if (S.privileged) return 0;
	int fs = k_fsopen("tmpfs"), mount = -1, top = -1, error = 0;
	if (fs >= 0 && k_fsconfig(fs, MW_FSCONFIG_CMD_CREATE, NULL, NULL) == 0) mount = k_fsmount(fs, 0);
	if (mount >= 0) top = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top < 0 || fsetxattr(top, "user.overlay.probe", "y", 1, 0) < 0) error = errno;
	close_fd(&top), close_fd(&mount), close_fd(&fs);
	if (error == EOPNOTSUPP)
		return fail_code(failure, "environment", "as an ordinary user they need Linux 6.6 or later, whose tmpfs keeps the attributes (user.*) that let directories be moved and "
				 "replaced inside; run mw as root, or update the kernel");
	return error ? fail_errno(failure, error, "making a tmpfs") : 0;
}

static int mount_tmpfs(const char *where, uint64_t disk_bytes)
{
	char size[32], count[32];
	snprintf(size, sizeof size, "%llu", (unsigned long long)disk_bytes);
	snprintf(count, sizeof count, "%llu", (unsigned long long)inodes(disk_bytes));
	int fs = k_fsopen("tmpfs");
	if (fs < 0) return -1;
	int fd = -1;
	if (k_fsconfig(fs, MW_FSCONFIG_SET_STRING, "size", size) == 0 && k_fsconfig(fs, MW_FSCONFIG_SET_STRING, "nr_inodes", count) == 0 &&
	    k_fsconfig(fs, MW_FSCONFIG_SET_STRING, "mode", "0755") == 0 && k_fsconfig(fs, MW_FSCONFIG_CMD_CREATE, NULL, NULL) == 0)
		fd = k_fsmount(fs, MW_MOUNT_ATTR_NODEV | MW_MOUNT_ATTR_NOSUID);
	int error = errno;
	close(fs);
	if (fd >= 0 && k_move_mount(fd, "", AT_FDCWD, where, MW_MOVE_MOUNT_F_EMPTY_PATH) < 0) {
		error = errno;
		close(fd);
		fd = -1;
	}
	errno = error;
	return fd < 0 ? -1 : keep_fd(fd);
}

int scratch_make(const char *directory, struct failure *failure)
{
	char where[PATH_BYTES];
	if ((size_t)snprintf(where, sizeof where, "%s/s", directory) >= sizeof where) return fail_errno(failure, ENAMETOOLONG, "making %s/s", directory);
	if (mkdir(where, 0700) < 0) return fail_errno(failure, errno, "making %s", where);
	int fd = mount_tmpfs(where, default_disk_bytes());
	if (fd < 0) return fail_errno(failure, errno, "making a scratch file system");
	mode_t mask = umask(0);
	int result = fill(fd), error = errno;
	umask(mask);
	if (result == 0) return fd;
	scratch_detach(directory, &fd);
	return fail_errno(failure, error, "preparing the scratch file system");
}

void scratch_detach(const char *directory, int *scratch)
{
	char where[PATH_BYTES];
	if (*scratch < 0 || (size_t)snprintf(where, sizeof where, "%s/s", directory) >= sizeof where) return;
	umount2(where, MNT_DETACH);
	close_fd(scratch);
	rmdir(where);
}

int scratch_resize(struct machine *machine)
{
	if (machine->disk_bytes == 0) machine->disk_bytes = default_disk_bytes();
	char where[PATH_BYTES], options[96];
	snprintf(where, sizeof where, "%s/%s/s", S.config.run, machine->id);
	snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu", (unsigned long long)machine->disk_bytes, (unsigned long long)inodes(machine->disk_bytes));
	return mount(NULL, where, NULL, MS_REMOUNT | MS_NODEV | MS_NOSUID, options);
}

static int fit(struct machine *machine, const struct create_request *request)
{
	/* The overlay's root shows the upper directory's mode and owner: the image's. */
	if (copy_owner_and_mode(machine->scratch, "upper", request->layers[0]) < 0) return -1;
	if (strcmp(request->hostname, DEFAULT_HOSTNAME) != 0 && name_host(machine->scratch, request) < 0) return -1;
	if (request->machine_id[0] && fit_identity(machine, request) < 0) return -1;
	if (request->network == 1 && put_file(machine->scratch, "skel/etc/resolv.conf", "") < 0) return -1;
	for (int i = 0; i < request->part_count; i++)
		if (fill_part(machine, request->parts[i].target, request->parts[i].layers[0], i) < 0) return -1;
	return 0;
}

int scratch_fit(struct machine *machine, const struct create_request *request, struct failure *failure)
{
	machine->disk_bytes = request->disk_bytes ? request->disk_bytes : default_disk_bytes();
	if (request->disk_bytes && scratch_resize(machine) < 0)
		return fail_errno(failure, errno, "making a scratch file system of %llu bytes", (unsigned long long)machine->disk_bytes);
	mode_t mask = umask(0);
	int result = fit(machine, request), error = errno;
	umask(mask);
	return result == 0 ? 0 : fail_errno(failure, error, "preparing the scratch file system");
}

void scratch_remove(struct machine *machine)
{
	char directory[PATH_BYTES];
	snprintf(directory, sizeof directory, "%s/%s", S.config.run, machine->id);
	scratch_detach(directory, &machine->scratch);
}

uint64_t scratch_used(const struct machine *machine)
{
	struct statvfs info;
	if (machine->scratch < 0 || fstatvfs(machine->scratch, &info) < 0) return 0;
	return (uint64_t)(info.f_blocks - info.f_bfree) * info.f_frsize;
}

/* Best effort: a machine that frees space before anybody looks is not seen. Counted once per time that it becomes full. */
void scratch_check_full(struct machine *machine)
{
	struct statvfs info;
	if (machine->scratch < 0 || fstatvfs(machine->scratch, &info) < 0) return;
	bool full = info.f_bfree == 0 || info.f_ffree == 0;
	if (full && !machine->disk_full) machine->limits[LIMIT_DISK]++;
	machine->disk_full = full;
}

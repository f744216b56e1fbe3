/*
 * The nursery: a mount namespace with nothing of the host in it, which every machine copies.
 *
 *   /l/000 ..   where layers are attached          /m   the new root
 *   /s          the scratch file system            /t   templates: dev (read-only, shared by all machines), sys
 *   /dev, /proc, /sys   a machine's own, until it has a root
 *
 * A short-lived process makes it; the spawner keeps a descriptor of the namespace.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

static const char *at_step = "starting";

#define MUST(what, call)                    \
	do {                                \
		at_step = what;             \
		if ((call) < 0) return -1;  \
	} while (0)

static int copy_program(const char *from, const char *to, mode_t mode)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	if (in < 0) return -1;
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (out < 0) return -1;
	static char buffer[65536];
	ssize_t got;
	while ((got = read(in, buffer, sizeof buffer)) > 0)
		for (ssize_t done = 0; done < got;) {
			ssize_t put = write(out, buffer + done, (size_t)(got - done));
			if (put < 0) return -1;
			done += put;
		}
	close(in);
	close(out);
	return got < 0 ? -1 : 0;
}

/* A device node, or where making one is not allowed (a user namespace) the host's bound over an empty file. */
static int device(const char *name, unsigned major_number, unsigned minor_number, bool bind)
{
	char path[64], host[64];
	snprintf(path, sizeof path, "dev/%s", name);
	snprintf(host, sizeof host, "/dev/%s", name);
	if (!bind) {
		if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)) == 0) return chmod(path, 0666);
		if (errno != EPERM) return -1;
	}
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0) return -1;
	close(fd);
	return mount(host, path, NULL, MS_BIND, NULL);
}

static int make_dev(void)
{
	static const struct {
		const char *name;
		unsigned major_number, minor_number;
	} DEVICES[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
	static const char *const LINKS[][2] = {{"pts/ptmx", "dev/ptmx"}, {"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"},
					       {"/proc/self/fd/1", "dev/stdout"}, {"/proc/self/fd/2", "dev/stderr"}};
	MUST("mounting the template of /dev", mount("tmpfs", "dev", "tmpfs", MS_NOSUID, "mode=0755,size=64m,nr_inodes=128"));
	for (size_t i = 0; i < sizeof DEVICES / sizeof *DEVICES; i++)
		MUST(DEVICES[i].name, device(DEVICES[i].name, DEVICES[i].major_number, DEVICES[i].minor_number, !S.privileged));
	for (size_t i = 0; i < sizeof LINKS / sizeof *LINKS; i++) MUST("linking in /dev", symlink(LINKS[i][0], LINKS[i][1]));
	MUST("making /dev/pts", mkdir("dev/pts", 0755));
	MUST("making /dev/shm", mkdir("dev/shm", 0755));
	MUST("making /dev/.mw", mkdir("dev/.mw", 0711));
	MUST("making /dev/.mw/empty", mkdir("dev/.mw/empty", 0555));
	/*
	 * Not readable: the memory of a program that its user cannot read belongs to the user namespace of the file's owner. So init's files in /proc, and those
	 * of everything that shares its memory, are not root's inside: nobody there can make it the first to die when memory runs out.
	 */
	MUST("copying init", copy_program(S.config.init, "dev/.mw/init", 0711));
	if (S.config.files) MUST("copying files", copy_program(S.config.files, "dev/.mw/files", 0755));
	return mount(NULL, "dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID, NULL);
}

/* Programs that size their thread pools read these two; nothing else of the host's hardware is shown. */
static int make_sys(void)
{
	static const char *const SHOWN[] = {"/sys/devices/system/cpu", "/sys/devices/system/node"};
	static const char *const TARGETS[] = {"sys/devices/system/cpu", "sys/devices/system/node"};
	const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	MUST("mounting the template of /sys", mount("tmpfs", "sys", "tmpfs", flags, "mode=0555,size=64k,nr_inodes=32"));
	MUST("filling /sys", mkdir("sys/devices", 0555));
	MUST("filling /sys", mkdir("sys/devices/system", 0555));
	MUST("filling /sys", mkdir("sys/fs", 0555));
	for (size_t i = 0; i < 2; i++) {
		if (access(SHOWN[i], F_OK) < 0) continue;
		MUST("filling /sys", mkdir(TARGETS[i], 0555));
		MUST(TARGETS[i], mount(SHOWN[i], TARGETS[i], NULL, MS_BIND, NULL));
		MUST(TARGETS[i], mount(NULL, TARGETS[i], NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL));
	}
	return mount(NULL, "sys", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL);
}

static int build(void)
{
	umask(0);
	MUST("making the nursery's mount namespace", unshare(CLONE_NEWNS));
	MUST("making its mounts private", mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	char root[PATH_BYTES];
	snprintf(root, sizeof root, "%s/.nursery", S.config.run);
	mkdir(root, 0700);
	MUST("mounting the nursery's root", mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m,nr_inodes=512"));
	MUST("entering the nursery", chdir(root));
	static const char *const DIRECTORIES[] = {"l", "m", "s", "dev", "proc", "sys", "t", "t/dev", "t/sys"};
	for (size_t i = 0; i < sizeof DIRECTORIES / sizeof *DIRECTORIES; i++) MUST(DIRECTORIES[i], mkdir(DIRECTORIES[i], 0755));
	for (int i = 0; i < PLAN_LAYERS; i++) {
		char path[16];
		snprintf(path, sizeof path, "l/%03d", i);
		MUST("making attachment points", mkdir(path, 0755));
	}
	MUST("entering the templates", chdir("t"));
	MUST(at_step, make_dev());
	MUST(at_step, make_sys());
	/* A user namespace may mount a /proc only where one is visible already; the machine leaves this one behind with the nursery. */
	if (!S.privileged) {
		MUST("making an attachment point for /proc", mkdir("proc", 0555));
		MUST("showing /proc", mount("/proc", "proc", NULL, MS_BIND | MS_REC, NULL));
	}
	MUST("entering the nursery", chdir(root));
	MUST("making the nursery the root", k_pivot_root(".", "."));
	MUST("leaving the host's mounts", umount2(".", MNT_DETACH));
	/* Read-only, so that nothing that goes wrong in a child can leave anything for the next one. */
	MUST("closing the nursery", mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL));
	return 0;
}

int nursery_make(struct failure *failure)
{
	int report[2], release[2];
	if (pipe2(report, O_CLOEXEC) < 0) return fail_errno(failure, errno, "making the nursery");
	if (pipe2(release, O_CLOEXEC) < 0) return fail_errno(failure, errno, "making the nursery");
	pid_t pid = fork();
	if (pid < 0) return fail_errno(failure, errno, "making the nursery");
	if (pid == 0) {
		close(release[1]);
		char line[256] = "ok";
		if (build() < 0) snprintf(line, sizeof line, "%d %s", errno, at_step);
		if (write(report[1], line, strlen(line)) < 0) _exit(1);
		char byte;
		_exit(read(release[0], &byte, 1) < 0);
	}
	close(report[1]);
	close(release[0]);
	char line[256] = {0};
	ssize_t got = read(report[0], line, sizeof line - 1);
	if (got == 2 && strcmp(line, "ok") == 0) {
		char path[64];
		snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)pid);
		S.nursery = open(path, O_RDONLY | O_CLOEXEC);
	}
	int error = errno;
	close(report[0]);
	close(release[1]);
	waitpid(pid, NULL, 0);
	char root[PATH_BYTES];
	snprintf(root, sizeof root, "%s/.nursery", S.config.run);
	rmdir(root);
	if (S.nursery >= 0) return 0;
	if (got <= 0 || strcmp(line, "ok") == 0) return fail_errno(failure, error, "making the nursery");
	char *step = strchr(line, ' ');
	return fail_errno(failure, atoi(line), "making the mount tree that machines start from: %s", step ? step + 1 : "?");
}

/*
 * Kernel interfaces that the C library may not know: the mount API, pidfds, close_range. Numbers are the same on every 64-bit architecture.
 */
#ifndef MW_SPAWN_KERNEL_H
#define MW_SPAWN_KERNEL_H

#include <fcntl.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#define SYS_fsopen 430
#define SYS_fsconfig 431
#define SYS_fsmount 432
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

enum {
	MW_OPEN_TREE_CLONE = 1,
	MW_AT_RECURSIVE = 0x8000,
	MW_MOVE_MOUNT_F_EMPTY_PATH = 4,
	MW_MOUNT_ATTR_RDONLY = 1,
	MW_MOUNT_ATTR_NOSUID = 2,
	MW_MOUNT_ATTR_NODEV = 4,
	MW_MOUNT_ATTR_NOEXEC = 8,
	MW_MOUNT_ATTR_IDMAP = 0x100000,
	MW_FSCONFIG_SET_STRING = 1,
	MW_FSCONFIG_CMD_CREATE = 6,
	MW_CLOSE_RANGE_UNSHARE = 2,
	MW_KEYCTL_JOIN_SESSION_KEYRING = 1,
	MW_RESOLVE_NO_MAGICLINKS = 2,
	MW_RESOLVE_NO_SYMLINKS = 4,
	MW_RESOLVE_BENEATH = 8,
};

struct mw_open_how {
	uint64_t flags, mode, resolve;
};

struct mw_mount_attr {
	uint64_t attr_set;
	uint64_t attr_clr;
	uint64_t propagation;
	uint64_t userns_fd;
};

struct mw_clone_args {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
#define MW_CLONE_INTO_CGROUP 0x200000000ull

static inline int k_open_tree(int dir, const char *path, unsigned flags) { return (int)syscall(SYS_open_tree, dir, path, flags); }
static inline int k_move_mount(int from, const char *path, int to, const char *target, unsigned flags)
{
	return (int)syscall(SYS_move_mount, from, path, to, target, flags);
}
static inline int k_fsopen(const char *type) { return (int)syscall(SYS_fsopen, type, 1 /* FSOPEN_CLOEXEC */); }
static inline int k_fsconfig(int fs, unsigned command, const char *key, const void *value)
{
	return (int)syscall(SYS_fsconfig, fs, command, key, value, 0);
}
static inline int k_fsmount(int fs, unsigned attributes) { return (int)syscall(SYS_fsmount, fs, 1 /* FSMOUNT_CLOEXEC */, attributes); }
static inline int k_mount_setattr(int dir, const char *path, unsigned flags, const struct mw_mount_attr *attr)
{
	return (int)syscall(SYS_mount_setattr, dir, path, flags, attr, sizeof *attr);
}
static inline int k_close_range(unsigned first, unsigned last, unsigned flags) { return (int)syscall(SYS_close_range, first, last, flags); }
static inline int k_openat2(int dir, const char *path, const struct mw_open_how *how) { return (int)syscall(SYS_openat2, dir, path, how, sizeof *how); }
static inline int k_pidfd_open(int pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }
static inline int k_pidfd_kill(int pidfd, int signal) { return (int)syscall(SYS_pidfd_send_signal, pidfd, signal, (void *)0, 0); }
static inline int k_pivot_root(const char *root, const char *old) { return (int)syscall(SYS_pivot_root, root, old); }

#endif

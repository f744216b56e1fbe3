/*
 * A machine's first process, from clone to exec. It runs in the parent's memory while the parent is suspended: no allocation, no stdio, no locks.
 *
 * Order matters: everything that needs power over the host's user namespace (mounts, network, host name) comes before the user namespace is entered, so
 * that root inside the machine has power over none of it. The file systems that init needs lie in the nursery's own directories until there is a root to move
 * them to.
 */
#include "spawn-child.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char *const STEP_NAMES[] = {
	[STEP_NONE] = "nothing",
	[STEP_CGROUP] = "entering the control groups",
	[STEP_MOUNT_NAMESPACE] = "making the mount namespace",
	[STEP_PROC] = "mounting /proc",
	[STEP_DESCRIPTORS] = "arranging descriptors",
	[STEP_NETWORK] = "entering the network namespace",
	[STEP_HOSTNAME] = "setting the host name",
	[STEP_SCRATCH] = "attaching the scratch file system",
	[STEP_DEV] = "mounting /dev",
	[STEP_SYS] = "mounting /sys",
	[STEP_MASK] = "masking /proc",
	[STEP_RLIMIT] = "setting resource limits",
	[STEP_USER_NAMESPACE] = "entering the user namespace",
	[STEP_IDS] = "becoming root inside",
	[STEP_CAPABILITIES] = "dropping capabilities",
	[STEP_SECCOMP] = "loading the system call filter",
	[STEP_EXEC] = "starting init",
};

const char *child_step_name(int step)
{
	if (step < 0 || step >= (int)(sizeof STEP_NAMES / sizeof *STEP_NAMES)) return "an unknown step";
	return STEP_NAMES[step];
}

#define TRY(step, call)                                 \
	do {                                            \
		if ((call) < 0) fail(plan, step);       \
	} while (0)

static _Noreturn void fail(struct child_plan *plan, enum child_step step)
{
	plan->error = errno;
	plan->step = step;
	for (;;) syscall(SYS_exit, 127);
}

static void enter_cgroups(struct child_plan *plan)
{
	for (int i = 0; i < plan->enter; i++) TRY(STEP_CGROUP, write(plan->cgroup_procs[i], "0", 1));
	/* Now, not in clone: its root is to be the machine's own group, so that no name of ours is visible inside. */
	TRY(STEP_CGROUP, unshare(CLONE_NEWCGROUP));
}

/* The nursery is a mount namespace of a few mounts made at start: copying it is cheaper than copying the host's, and holds nothing of the host. */
static void enter_nursery(struct child_plan *plan)
{
	TRY(STEP_MOUNT_NAMESPACE, setns(plan->nursery, CLONE_NEWNS));
	TRY(STEP_MOUNT_NAMESPACE, unshare(CLONE_NEWNS));
}

/* What the parent needs to give the machine its root, and its name: opened in the parent's table, which is still shared. */
static void show_namespaces(struct child_plan *plan)
{
	TRY(STEP_PROC, mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	plan->mntns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	TRY(STEP_DESCRIPTORS, plan->mntns);
	plan->utsns = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
	TRY(STEP_DESCRIPTORS, plan->utsns);
}

static void mount_system(struct child_plan *plan)
{
	TRY(STEP_SCRATCH, k_move_mount(plan->scratch, "", AT_FDCWD, "/s", MW_MOVE_MOUNT_F_EMPTY_PATH));
	TRY(STEP_DEV, mount("/t/dev", "/dev", NULL, MS_BIND | MS_REC, NULL));
	TRY(STEP_DEV, mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, plan->devpts_options));
	TRY(STEP_DEV, mount("/s/shm", "/dev/shm", NULL, MS_BIND, NULL));
	TRY(STEP_SYS, mount("/t/sys", "/sys", NULL, MS_BIND | MS_REC, NULL));
}

/* Root without a user namespace is the host's root to the files of /proc: what it could read or write there is covered. */
static void mask_proc(struct child_plan *plan)
{
	static const char *const READ_ONLY[] = {"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"};
	static const char *const HIDDEN_FILES[] = {"/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug",
						   "/proc/kallsyms", "/proc/latency_stats", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup"};
	static const char *const HIDDEN_DIRECTORIES[] = {"/proc/acpi", "/proc/scsi", "/proc/asound"};
	for (size_t i = 0; i < sizeof READ_ONLY / sizeof *READ_ONLY; i++) {
		if (mount(READ_ONLY[i], READ_ONLY[i], NULL, MS_BIND, NULL) < 0) {
			if (errno == ENOENT) continue;
			fail(plan, STEP_MASK);
		}
		TRY(STEP_MASK, mount(NULL, READ_ONLY[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	}
	for (size_t i = 0; i < sizeof HIDDEN_FILES / sizeof *HIDDEN_FILES; i++)
		if (mount("/dev/null", HIDDEN_FILES[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT) fail(plan, STEP_MASK);
	for (size_t i = 0; i < sizeof HIDDEN_DIRECTORIES / sizeof *HIDDEN_DIRECTORIES; i++)
		if (mount("/dev/.mw/empty", HIDDEN_DIRECTORIES[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT) fail(plan, STEP_MASK);
}

/* Best effort: a kernel without System V IPC has none of these files. */
static void set_ipc(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return;
	if (write(fd, value, strlen(value)) < 0) errno = 0;
	close(fd);
}

/* Memory that nobody has any more would be held until the machine's end, and every process killed for it: segments go with their last user, queues are few. */
static void limit_ipc(void)
{
	set_ipc("/proc/sys/kernel/shm_rmid_forced", "1");
	set_ipc("/proc/sys/kernel/msgmni", "256");
}

/* A host that runs out of memory is to kill in machines before it kills the controller or anything of its own. Never the parent's: vfork keeps them apart. */
static void be_killed_first(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd < 0) return;
	if (write(fd, "500", 3) < 0) errno = 0;
	close(fd);
}

static void limit_resources(struct child_plan *plan)
{
	struct rlimit core = {0, 0};
	TRY(STEP_RLIMIT, setrlimit(RLIMIT_CORE, &core));
	struct rlimit files = {plan->open_files, plan->open_files};
	TRY(STEP_RLIMIT, setrlimit(RLIMIT_NOFILE, &files));
	umask(022);
	setsid();
}

static void become_inner_root(struct child_plan *plan)
{
	/*
	 * The parent's session keyring is not the machine's. Made before the user namespace is entered, the new one is not shown inside. A kernel without
	 * keyrings, or a filter around us that refuses them, has nothing to hide.
	 */
	syscall(SYS_keyctl, MW_KEYCTL_JOIN_SESSION_KEYRING, NULL);
	if (plan->userns >= 0) TRY(STEP_USER_NAMESPACE, setns(plan->userns, CLONE_NEWUSER));
	/* Raw calls: a C library may try to tell other threads, whose list lies in the shared memory. */
	if (plan->set_groups) TRY(STEP_IDS, syscall(SYS_setgroups, 0, NULL));
	TRY(STEP_IDS, syscall(SYS_setresgid, 0, 0, 0));
	TRY(STEP_IDS, syscall(SYS_setresuid, 0, 0, 0));
}

static void drop_capabilities(struct child_plan *plan)
{
	for (int capability = 0; capability < 64; capability++) {
		if (plan->capabilities >> capability & 1) continue;
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
			if (errno == EINVAL) break; /* beyond the last one that this kernel knows */
			fail(plan, STEP_CAPABILITIES);
		}
	}
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct current[2];
	memset(current, 0, sizeof current);
	TRY(STEP_CAPABILITIES, syscall(SYS_capget, &header, current));
	for (int i = 0; i < 2; i++) {
		/* Never more than there is: a host may have taken some from us. */
		current[i].permitted &= (uint32_t)(plan->capabilities >> (32 * i));
		current[i].effective = current[i].permitted;
		current[i].inheritable = 0;
	}
	TRY(STEP_CAPABILITIES, prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
	TRY(STEP_CAPABILITIES, syscall(SYS_capset, &header, current));
}

/*
 * 0, 1, 2: /dev/null; 3: the listener; 4: the lifeline; 5: /proc; 6: /dev/pts; nothing else. Init needs no path any more: its root may come, and those directories
 * go, at any moment. The table is this process's own.
 */
static void arrange_descriptors(struct child_plan *plan)
{
	int null = open("/dev/null", O_RDWR);
	const int kept[] = {plan->listener, plan->lifeline, open("/proc", O_RDONLY | O_DIRECTORY), open("/dev/pts", O_RDONLY | O_DIRECTORY)};
	enum { KEPT = sizeof kept / sizeof *kept };
	int high[KEPT];
	TRY(STEP_DESCRIPTORS, null);
	for (int i = 0; i < KEPT; i++) TRY(STEP_DESCRIPTORS, high[i] = fcntl(kept[i], F_DUPFD, LOW_FDS));
	for (int fd = 0; fd < 3; fd++)
		if (null != fd) TRY(STEP_DESCRIPTORS, dup2(null, fd));
	for (int i = 0; i < KEPT; i++) TRY(STEP_DESCRIPTORS, dup2(high[i], 3 + i));
	TRY(STEP_DESCRIPTORS, k_close_range(3 + KEPT, ~0u, 0));
}

static void reset_signals(void)
{
	struct sigaction standard;
	memset(&standard, 0, sizeof standard);
	standard.sa_handler = SIG_DFL;
	sigaction(SIGPIPE, &standard, NULL);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

int child_main(void *argument)
{
	struct child_plan *plan = argument;
	enter_cgroups(plan);
	enter_nursery(plan);
	show_namespaces(plan);
	/* This copies only the low part of the parent's table, where everything that the child needs lies. */
	TRY(STEP_DESCRIPTORS, k_close_range(LOW_FDS, ~0u, MW_CLOSE_RANGE_UNSHARE));
	TRY(STEP_NETWORK, setns(plan->netns, CLONE_NEWNET));
	TRY(STEP_HOSTNAME, sethostname(plan->hostname, strlen(plan->hostname)));
	mount_system(plan);
	limit_ipc();
	if (plan->userns < 0) mask_proc(plan);
	limit_resources(plan);
	be_killed_first();
	become_inner_root(plan);
	arrange_descriptors(plan);
	drop_capabilities(plan);
	reset_signals();
	TRY(STEP_SECCOMP, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (plan->filter.len > 0) TRY(STEP_SECCOMP, prctl(PR_SET_SECCOMP, 2 /* SECCOMP_MODE_FILTER */, &plan->filter, 0, 0));
	char *const argv[] = {(char *)"init", (char *)"--wait", plan->apart ? (char *)"--apart" : NULL, NULL};
	char *const environment[] = {NULL};
	execve("/dev/.mw/init", argv, environment);
	fail(plan, STEP_EXEC);
}

/*
 * The spawner: makes machines for one controller, which it talks to over fd 3, and takes them away again. See docs/internals/native.md.
 *
 *   spawn --data DIR --run DIR --init FILE [--files FILE] [--tree FILE] [--slirp FILE] [--criu FILE] [--seccomp FILE] [--caps HEX] [--grace-ms N] [--slot-base N]
 *         [--version TEXT]
 *
 * Invariant: nothing of a machine is left after its end, and nothing of any after ours; what a `kill -9` leaves, the next start takes away.
 */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

struct spawner S = {.lock = -1, .epoll = -1, .nursery = -1};

static uint64_t wake_ms = UINT64_MAX;
static void **garbage;
static size_t garbage_count, garbage_capacity;

/* ---- what the other files ask of the loop ---- */

int watch(struct source *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};
	return epoll_ctl(S.epoll, EPOLL_CTL_ADD, source->fd, &event);
}

int rewatch(struct source *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};
	return epoll_ctl(S.epoll, EPOLL_CTL_MOD, source->fd, &event);
}

/* Events of it that were fetched already are not handled any more: what they were for may be gone. */
void unwatch(struct source *source)
{
	source->handle = NULL;
	if (source->fd >= 0) epoll_ctl(S.epoll, EPOLL_CTL_DEL, source->fd, NULL);
}

void free_later(void *memory)
{
	if (garbage_count == garbage_capacity) {
		size_t capacity = garbage_capacity ? garbage_capacity * 2 : 64;
		void **bigger = realloc(garbage, capacity * sizeof *garbage);
		/* Leaking is better than a pointer that dangles. */
		if (!bigger) return;
		garbage = bigger;
		garbage_capacity = capacity;
	}
	garbage[garbage_count++] = memory;
}

void wake_at(uint64_t at_ms)
{
	if (at_ms < wake_ms) wake_ms = at_ms;
}

/* ---- start ---- */

static void make_directories(const char *path, mode_t mode)
{
	char copy[PATH_BYTES];
	snprintf(copy, sizeof copy, "%s", path);
	for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		mkdir(copy, 0755);
		*slash = '/';
	}
	if (mkdir(copy, mode) < 0 && errno != EEXIST) die(3, "making %s: %s", path, strerror(errno));
}

/* The lock file's text is the holder's pid and, while it waits for another controller, when its machines end; the lock itself is the kernel's and dies with the holder. */
static bool note_holder(void)
{
	char text[64];
	int length = S.stopping ? snprintf(text, sizeof text, "%d %llu\n", (int)getpid(), (unsigned long long)S.stop_at_ms) : snprintf(text, sizeof text, "%d\n", (int)getpid());
	return pwrite(S.lock, text, (size_t)length, 0) == length && ftruncate(S.lock, length) == 0;
}

static bool take_lock(void)
{
	char path[4096], text[64] = {0}, *rest;
	snprintf(path, sizeof path, "%s/lock", S.config.data);
	S.lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (S.lock < 0) die(3, "opening %s: %s", path, strerror(errno));
	if (flock(S.lock, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK) die(3, "locking %s: %s", path, strerror(errno));
		if (pread(S.lock, text, sizeof text - 1, 0) < 0) text[0] = 0;
		pid_t holder = (pid_t)strtol(text, &rest, 10);
		send_busy(holder, strtoull(rest, NULL, 10));
		return false;
	}
	if (!note_holder()) die(3, "writing %s: %s", path, strerror(errno));
	return true;
}

/* Replaced as a whole and synced, so that a crash never takes an epoch back. */
int next_epoch(struct failure *failure)
{
	char path[4096], fresh[4096], text[32] = {0};
	snprintf(path, sizeof path, "%s/epoch", S.config.data);
	snprintf(fresh, sizeof fresh, "%s/epoch.new", S.config.data);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		ssize_t got = read(fd, text, sizeof text - 1);
		close(fd);
		if (got < 0) return fail_errno(failure, errno, "reading %s", path);
	}
	uint64_t epoch = strtoull(text, NULL, 10) + 1;
	int length = snprintf(text, sizeof text, "%llu\n", (unsigned long long)epoch);
	fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	bool written = fd >= 0 && write(fd, text, (size_t)length) == length && fsync(fd) == 0;
	int error = errno;
	if (fd >= 0) close(fd);
	if (!written) return fail_errno(failure, error, "writing %s", path);
	if (rename(fresh, path) < 0) return fail_errno(failure, errno, "writing %s", path);
	S.epoch = epoch;
	return 0;
}

static void raise_file_limit(void)
{
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) < 0) return;
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_max < 1024) die(3, "the limit of open files is %llu, less than 1024: raise it (ulimit -n)", (unsigned long long)files.rlim_max);
	S.open_files = files.rlim_max < 65536 ? files.rlim_max : 65536;
	S.shared_connections = files.rlim_max < 8 * SHARED_CONNECTIONS_MAX ? files.rlim_max / 8 : SHARED_CONNECTIONS_MAX;
}

/* Scratch file systems are attached here and nowhere else; mounts of the host still arrive. */
static void leave_host_mounts(void)
{
	if (unshare(CLONE_NEWNS) < 0) die(3, "making a mount namespace: %s", strerror(errno));
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) die(3, "detaching from the host's mounts: %s", strerror(errno));
}

/* ---- the loop ---- */

void spawner_stop(uint64_t grace_ms)
{
	uint64_t at = now_ms() + grace_ms;
	if (S.stopping && S.stop_at_ms <= at) return;
	S.stopping = true;
	S.stop_at_ms = at;
	if (grace_ms > 0 && !note_holder()) logf_("writing the lock: %s", strerror(errno));
	wake_at(at);
}

bool spawner_goes_on(void)
{
	if (S.stopping && now_ms() >= S.stop_at_ms) return false;
	S.stopping = false;
	if (!note_holder()) logf_("writing the lock: %s", strerror(errno));
	return true;
}

static void signalled(struct source *source, uint32_t events)
{
	(void)events;
	struct signalfd_siginfo info;
	if (read(source->fd, &info, sizeof info) == sizeof info) spawner_stop(0);
}

static void collect_garbage(void)
{
	for (size_t i = 0; i < garbage_count; i++) free(garbage[i]);
	garbage_count = 0;
}

static void end_one(struct machine *machine, void *context)
{
	(void)context;
	if (machine->state == MACHINE_RUNNING) machine_end(machine, END_LOST);
}

static void dispose_one(struct machine *machine, void *context)
{
	(void)context;
	machine_dispose(machine);
}

/* True when everything is gone. */
static bool stop_step(uint64_t now)
{
	if (!S.stopping) return false;
	if (now < S.stop_at_ms) {
		wake_at(S.stop_at_ms);
		return false;
	}
	machines_each(end_one, NULL);
	return S.machine_count == 0;
}

static uint64_t busy_ms; /* when something last happened */
static uint64_t made_ms; /* when a machine was last made beforehand */
enum { QUIET_MS = 20, PACE_MS = 5 };

/*
 * Makes a machine beforehand; false when it is not to be done now. Right after an event somebody waits for a processor, a new machine's first command most likely,
 * and goes on to do so while all the next machines are made: unless few are left, this waits for a moment of quiet, and takes its time.
 */
static bool prepare(uint64_t now, int *timeout)
{
	if (blanks_full()) return false;
	uint64_t at = busy_ms + QUIET_MS > made_ms + PACE_MS ? busy_ms + QUIET_MS : made_ms + PACE_MS;
	if (!blanks_low() && now < at) {
		int left = (int)(at - now);
		if (*timeout < 0 || *timeout > left) *timeout = left;
		return false;
	}
	bool made = blank_refill();
	made_ms = now_ms();
	return made;
}

static int loop(void)
{
	for (;;) {
		uint64_t now = now_ms();
		wake_ms = UINT64_MAX;
		leases_check(now);
		memory_check(now);
		if (stop_step(now)) return 0;
		protocol_flush();
		collect_garbage();
		struct epoll_event events[64];
		now = now_ms();
		int timeout = wake_ms == UINT64_MAX ? -1 : wake_ms <= now ? 0 : wake_ms - now > 3600000 ? 3600000 : (int)(wake_ms - now);
		/* Nothing to do at this moment: the time to prepare what the next creations need. */
		int count = epoll_wait(S.epoll, events, 64, 0);
		if (count == 0 && !S.stopping && prepare(now, &timeout)) continue;
		if (count == 0) count = epoll_wait(S.epoll, events, 64, timeout);
		if (count < 0 && errno != EINTR) die(1, "waiting for events: %s", strerror(errno));
		if (count > 0) busy_ms = now_ms();
		for (int i = 0; i < count; i++) {
			struct source *source = events[i].data.ptr;
			if (source->handle) source->handle(source, events[i].events);
		}
	}
}

static void start(void)
{
	struct failure failure;
	raise_file_limit();
	signal(SIGPIPE, SIG_IGN);
	/* The init of restored processes is CRIU's child, and ours when CRIU has done its work. */
	if (S.config.criu) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	umask(022);
	if (userns_enter(&failure) < 0) die(3, "%s", failure.message);
	make_directories(S.config.data, 0700);
	if (!take_lock()) exit(0);
	if (next_epoch(&failure) < 0) die(3, "%s", failure.message);
	make_directories(S.config.run, 0700);
	if (chmod(S.config.run, 0700) < 0) die(3, "protecting %s: %s", S.config.run, strerror(errno));
	leave_host_mounts();
	cgroups_start();
	sweep();
	if (scratch_probe(&failure) < 0 || root_start(&failure) < 0 || nursery_make(&failure) < 0) die(3, "%s", failure.message);
	userns_probe();
}

int main(int argc, char **argv)
{
	config_read(argc, argv);
	start();
	S.epoll = epoll_create1(EPOLL_CLOEXEC);
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	static struct source signal_source = {.handle = signalled};
	signal_source.fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (S.epoll < 0 || signal_source.fd < 0 || watch(&signal_source, EPOLLIN) < 0) die(3, "making the event loop: %s", strerror(errno));
	struct failure failure;
	if (takeover_listen(&failure) < 0) die(3, "%s", failure.message);
	protocol_start(3);
	send_hello();
	loop();
	takeover_end();
	machines_each(dispose_one, NULL);
	blanks_remove();
	protocol_flush();
	cgroup_stop();
	char path[PATH_BYTES];
	snprintf(path, sizeof path, "%s/resolv.conf", S.config.run);
	unlink(path);
	rmdir(S.config.run);
	return 0;
}

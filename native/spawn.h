/*
 * The spawner's shared state: configuration, machines, and the event loop's parts. Single-threaded; one concept a file:
 *
 *   spawn.c            start, event loop, stop           spawn-config.c     the flags that it starts with
 *   spawn-base.c       clock, words, descriptors         spawn-protocol.c   the connection to the controller
 *   spawn-requests.c   what the controller asks for      spawn-answers.c    answers and events
 *   spawn-make.c       a machine is made (parent's half) spawn-child.c      its first process, between clone and exec
 *   spawn-end.c        a machine ends, is sealed, expires spawn-workspace.c sealed files
 *   spawn-nursery.c    the mount tree that machines copy spawn-userns.c     user namespaces and ranges of ids
 *   spawn-scratch.c    the file system that takes writes spawn-cgroup.c     limits, freezing, killing
 *   spawn-memory.c     memory limits beside disk use     spawn-forward.c    service ports
 *   spawn-netns.c      network namespaces                spawn-sweep.c      what earlier spawners left
 *   spawn-slirp.c      public networks                   spawn-helper.c     processes beside a machine
 *   spawn-clone.c      a process born in its group       spawn-root.c       the mounts that make a machine's root
 *   spawn-blank.c      machines made beforehand, which lack only their root
 *   spawn-table.c      machines by id                    spawn-snapshot.c   files of a machine that goes on
 *   spawn-create.c     the request for a machine         spawn-takeover.c   a controller dies, another comes
 *   spawn-identity.c   what tells a machine from others  spawn-criu.c       processes of a machine, kept and restored
 *   spawn-criu-process.c  CRIU, which does that          spawn-vfork.c      who cannot be kept just now
 *   spawn-hierarchies.c   control groups of this host    spawn-usage.c      what a machine uses
 */
#ifndef MW_SPAWN_H
#define MW_SPAWN_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "spawn-child.h"
#include "spawn-machine.h"
#include "wire.h"

#define DEFAULT_HOSTNAME "sandbox"

struct config {
	const char *data;
	const char *run;
	const char *init;
	const char *files;
	const char *tree;
	const char *slirp;
	const char *criu;
	const char *version; /* of controller and programs; NULL: none is ever compared */
	uint64_t grace_ms;
	struct sock_filter *filter;
	size_t filter_length;
	uint64_t capabilities;
	uint32_t slot_base;
};

enum cgroup_mode { CGROUPS_NONE, CGROUPS_V1, CGROUPS_V2 };

struct spawner {
	struct config config;
	uint64_t epoch;
	int lock;
	int epoll;
	int nursery; /* mount namespace that machines copy */
	bool privileged; /* root of the host's (or this container's) first user namespace */
	bool multiple_ids; /* more than one id is mapped: users other than root exist inside */
	bool userns_works;
	bool memory_enforced, pids_enforced, cpu_enforced, freezer, groups_kill;
	enum cgroup_mode cgroups;
	char userns_reason[256], users_reason[256]; /* why not, where it is so */
	bool stopping;
	uint64_t stop_at_ms;
	bool lease_added;
	int machine_count; /* running or ending */
	char hash[16]; /* of the data directory, for names outside it */
	uint64_t open_files;
	/* Service connections of all machines, beyond which each has those assured and no more: at most a quarter of the open files here, an eighth of the controller's. */
	uint64_t shared_connections;
};

extern struct spawner S;

struct create_request;

/* spawn.c */
int watch(struct source *source, uint32_t events);
int rewatch(struct source *source, uint32_t events);
void unwatch(struct source *source);
/* Frees memory once no event of the current batch can point into it. */
void free_later(void *memory);
/* Asks for a wake-up of the loop at the latest then. */
void wake_at(uint64_t at_ms);
/* Ends every machine after that time, and then the spawner. */
void spawner_stop(uint64_t grace_ms);
/* False once that time has come. */
bool spawner_goes_on(void);

/* A failure on its way to the controller. */
struct failure {
	char code[32];
	char message[512];
};
/* -1 with the failure when it could not be written; then the epoch is the old one. */
int next_epoch(struct failure *failure);

/* spawn-base.c */
uint64_t now_ms(void);
uint64_t now_us(void);
void logf_(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says why, and exits. */
_Noreturn void die(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_errno(struct failure *failure, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
int fail_code(struct failure *failure, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *errno_name(int error);
/* Moves a descriptor out of the range that creations copy. Takes over `fd`; -1 with errno on failure. */
int keep_fd(int fd);
void close_fd(int *fd);

/* spawn-config.c */
void config_read(int argc, char **argv);

/* spawn-table.c */
struct machine *machine_find(const char *id);
void machine_add(struct machine *machine);
void machine_remove(struct machine *machine);
void machines_each(void (*visit)(struct machine *machine, void *context), void *context);
bool id_valid(const char *id);

/* spawn-protocol.c */
/* Over this descriptor from now on, which it takes. */
void protocol_start(int fd);
/* False while a controller is there. One whose end has come is served to its last request first. */
bool controller_free(void);
void protocol_flush(void);
wire_writer answer_begin(size_t room);
void answer_finish(wire_writer *writer);
void answer_add(size_t length);

/* spawn-requests.c */
void request_dispatch(const wire_frame *frame);

/* spawn-takeover.c */
/* Opens `RUN/takeover.sock` where machines outlive a controller. */
int takeover_listen(struct failure *failure);
void takeover_end(void);
void on_note(const wire_frame *frame);
void on_recall(const wire_frame *frame);
void on_grace(const wire_frame *frame);

/* spawn-create.c */
void on_create(const wire_frame *frame);

/* spawn-answers.c */
void send_ok(uint32_t ref);
void send_error(uint32_t ref, const char *code, const char *message);
void send_created(const struct machine *machine, uint32_t ref);
void send_blank(const struct machine *blank);
void send_sealed(const struct machine *machine);
void send_ended(const struct machine *machine);
void send_busy(pid_t holder, uint64_t ends_at_ms);
void send_hello(void);
void send_dumped(uint32_t ref, uint64_t lifeline, uint64_t listener);
void send_copied(const struct machine *copy, uint32_t ref, uint64_t stopped_us);

/* spawn-snapshot.c */
/* `force`: whatever runs in it ends. */
int machine_detach(struct machine *machine, const char *as, bool force, struct failure *failure);
bool directory_empty(int directory);
bool machine_quiet(const struct machine *machine);
void detached(struct machine *machine);
void detached_leave(struct machine *workspace);
int machine_copy(struct machine *machine, const char *as, uint32_t ref, struct failure *failure);
/* The machine ends: what was being copied of it is not. */
void copy_abort(struct machine *machine);
int workspace_flatten(struct machine *workspace, const char *as, uint64_t count, uint32_t ref, struct failure *failure);
/* From now on it lies over `base`, or over layers alone. Machines that started from it keep what they use. */
void workspace_rebase(struct machine *workspace, struct machine *base);
/* The same of the layers below that; takes the list over. */
void workspace_relayer(struct machine *workspace, char **lowers, int count);

/* spawn-identity.c */
int name_host(int scratch, const struct create_request *request);
int fit_identity(struct machine *machine, const struct create_request *request);

/* spawn-make.c */
struct create_request {
	char id[ID_BYTES];
	uint64_t profile;
	char *layers[PLAN_LAYERS];
	int layer_count;
	struct {
		char *target;
		char *layers[PLAN_LAYERS];
		int layer_count;
	} parts[PLAN_PARTS];
	int part_count;
	char workspace[ID_BYTES];
	uint64_t cpu_milli, memory_bytes, disk_bytes, pids, network, ttl_ms;
	struct {
		uint16_t port;
		char target[SERVICE_TARGET_BYTES];
	} services[PLAN_SERVICES];
	int service_count;
	char hostname[65];
	char machine_id[33];
	char processes[PATH_BYTES]; /* directory of kept processes; empty: none */
	uint64_t lifeline, listener; /* what these were when the processes were kept: numbers of inodes */
	uint64_t own_identity; /* machine id and host name also in place of those that the layers have */
};
/* The host's number of the machine's root; 0 where ids are not mapped. */
uint32_t machine_id_base(const struct machine *machine);
/* It runs from now on. */
int machine_up(struct machine *machine, struct failure *failure);
struct machine *make_machine(const struct create_request *request, struct failure *failure);

/* spawn-clone.c */
struct mw_clone_args;
pid_t clone_into(struct mw_clone_args *arguments, int (*function)(void *), void *context);

/* spawn-blank.c */
struct machine *blank_take(const struct create_request *request, struct failure *failure);
bool blank_refill(void);
bool blanks_full(void);
bool blanks_low(void);
void blanks_remove(void);
void blank_gone(struct machine *blank);

/* spawn-root.c */
struct root_part {
	char target[256];
	char options[2048];
};
struct root_plan {
	int layers[PLAN_LAYERS]; /* detached mounts, attached in this order */
	int layer_count;
	char overlay_options[4096];
	struct root_part parts[PLAN_PARTS];
	int part_count;
	uint32_t root_id; /* the host's number of the machine's root, where layers are mounted with mapped ids; else 0 */
	bool userns;
	int resolv; /* detached mount of the resolv.conf for a machine with a public network; -1: none */
};
int root_start(struct failure *failure);
int root_make(int mntns, const struct root_plan *plan, struct failure *failure);
int root_clone(int mntns, int *tree, int *root, struct failure *failure);
int root_services(int netns, int utsns, const struct create_request *request, int *listeners, struct failure *failure);

/* spawn-end.c */
void machine_end(struct machine *machine, enum end_reason reason);
void machine_wait(struct machine *machine, uint32_t ref);
void machine_exited(struct source *source, uint32_t events);
/* A machine that died of its memory, whose files wait to be sealed until its lease ends. */
bool kept_after_death(const struct machine *machine);
void leases_check(uint64_t now);
void machine_dispose(struct machine *machine);
/* Without descriptors, in no table; NULL when there is no memory. */
struct machine *machine_new(void);

/* spawn-nursery.c */
int nursery_make(struct failure *failure);

/* spawn-userns.c */
int userns_enter(struct failure *failure);
void userns_probe(void);
int userns_slot_take(int *slot, int *fd, struct failure *failure);
void userns_slot_return(int slot, int fd);

/* spawn-netns.c */
int netns_make(int *unix_socket, struct failure *failure);

/* spawn-scratch.c */
/* Attached at `DIRECTORY/s`, with what every machine has in it. */
int scratch_probe(struct failure *failure);
int scratch_make(const char *directory, struct failure *failure);
void scratch_detach(const char *directory, int *scratch);
int scratch_fit(struct machine *machine, const struct create_request *request, struct failure *failure);
int scratch_resize(struct machine *machine);
void scratch_remove(struct machine *machine);
int clone_mount(int dir, const char *path, int userns, struct failure *failure);
int open_below(int dir, const char *path);
int put_file(int dir, const char *path, const char *text);
int copy_owner_and_mode(int dir, const char *path, const char *like);
uint64_t scratch_used(const struct machine *machine);
void scratch_check_full(struct machine *machine);

/* spawn-hierarchies.c */
void cgroups_start(void);
/* Why a controller that is not enforced is not, and the remedy. */
const char *cgroups_missing(void);
void cgroup_stop(void);

/* spawn-cgroup.c */
int cgroup_make(const char *name, int procs[PLAN_CGROUPS], int *count, int *unified, struct failure *failure);
int cgroup_limit(const struct machine *machine, const struct create_request *request, struct failure *failure);
bool cgroup_kill(const struct machine *machine);
int cgroup_freeze(struct machine *machine, bool frozen, struct failure *failure);
/* False while something is left. */
bool cgroup_remove(const char *name);
void cgroup_sweep(void);
int cgroup_each_process(const char *name, int (*visit)(pid_t pid, void *context), void *context);
/* Opens what a process of the groups writes "0" to, and the directory of the v2 group (-1: none). All are the caller's. */
int cgroup_open(const char *name, int procs[PLAN_CGROUPS], int *count, int *unified);
bool cgroup_kill_process(const char *name, pid_t pid);

/* spawn-usage.c */
struct usage {
	bool memory_known, pids_known, cpu_known, peak_known;
	uint64_t memory_bytes, peak_bytes, pids, cpu_us;
	uint64_t process_bytes; /* what processes hold, files on the scratch not counted */
	uint64_t total_bytes;
	uint64_t oom_kills, pids_hits;
};
void cgroup_usage(const struct machine *machine, struct usage *usage, bool memory_only);
int cgroup_watch_memory(struct machine *machine);
void cgroup_memory_told(int fd);
void cgroup_memory_alarm(struct machine *machine, bool set);

/* spawn-memory.c */
void memory_watch_start(struct machine *machine);
void memory_watch_stop(struct machine *machine);
void memory_check(uint64_t now);

/* spawn-forward.c */
int forward_start(struct machine *machine, const struct create_request *request, const int *listeners);
void forward_stop(struct machine *machine);

/* spawn-helper.c; `fds` are pairs of ours and the helper's number */
int helper_start(struct helper *helper, const char *path, char *const argv[], const int fds[][2], int fd_count);
/* The same; `prepare` runs in the helper, in our memory, before anything else, and fails with -1 and errno: system calls only. */
int helper_start_in(struct helper *helper, const char *path, char *const argv[], const int fds[][2], int fd_count, int (*prepare)(void *context), void *context);
int helper_first(void *context);
void helper_stop(struct helper *helper);
/* Of one that has ended: its exit code, or -1 when it was killed. */
int helper_ended(struct helper *helper);

/* spawn-vfork.c: a process of a machine that stands still which waits in vfork; 0: none */
pid_t vfork_waits(const struct machine *machine);

/* spawn-criu.c */
/* Why processes cannot be kept here, with the remedy; NULL when they can. */
const char *criu_missing(void);
/* Of a machine that stands still, and goes on to. Answered when it is done. */
int processes_dump(struct machine *machine, const char *directory, uint32_t ref, struct failure *failure);
/* In place of the init that waits in the machine, whose creation is answered when they run. */
int processes_restore(struct machine *machine, const struct create_request *request, struct failure *failure);
void criu_stop(struct machine *machine);

/* spawn-slirp.c */
const char *slirp_missing(void);
int slirp_resolv(struct failure *failure);
int slirp_start(struct machine *machine, struct failure *failure);
void slirp_stop(struct machine *machine);

/* spawn-workspace.c */
int workspace_open(struct machine *machine, struct failure *failure);
void workspace_release(struct machine *machine);
void workspace_sealed(struct machine *machine);
struct machine *workspace_new(const char *id);
char **tree_arguments(const struct machine *machine, const char *option, int lowers, int *owned);
void free_arguments(char **argv, int owned);
void workspace_close_tree(struct machine *machine);

/* spawn-sweep.c */
void sweep(void);
void record_write(const struct machine *machine);
void remove_run_directory(const char *id);

#endif

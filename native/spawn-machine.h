/* What the spawner knows of a machine, or of the workspace that is left of one; and the bounds of it all. */
#ifndef MW_SPAWN_MACHINE_H
#define MW_SPAWN_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	ID_BYTES = 64,
	PATH_BYTES = 512,
	MACHINES_MAX = 8192,
	SLOT_IDS = 65536,
	SLOTS = MACHINES_MAX,
	SERVICE_TARGET_BYTES = 108,
	CONNECTIONS_PER_MACHINE = 256,
	/* What a machine has whatever the others hold. */
	CONNECTIONS_ASSURED = 16,
	/* Half of what the gateway takes (`gatewayConnections`). */
	SHARED_CONNECTIONS_MAX = 32768,
	/* How many machines wait ready-made: a burst of that many is served from them. */
	BLANKS = 16,
	/* Answers and events that the controller has not read; beyond it the spawner stops reading requests. */
	OUTPUT_MAX = 4 * 1024 * 1024,
};

/* Something that epoll watches. `handle` is called with the events; a source that is gone has none. */
struct source {
	void (*handle)(struct source *source, uint32_t events);
	int fd;
};

/* A process that serves a machine from outside. */
struct helper {
	struct source source; /* its pidfd */
	pid_t pid; /* 0: none */
};

/* A blank is made beforehand: it is in no table, and its id is no machine's. */
enum machine_state { MACHINE_BLANK, MACHINE_RUNNING, MACHINE_ENDING, MACHINE_SEALED };
/* Detached: its files become a workspace of another id, and a machine of its own id is made again. */
enum end_reason { END_KILLED, END_EXPIRED, END_DIED, END_LOST, END_SEALED, END_DETACHED };
enum { LIMIT_OOM, LIMIT_PIDS, LIMIT_DISK, LIMIT_COUNT };

struct service {
	struct source source;
	struct machine *machine;
	uint16_t port;
	bool paused;
	char target[SERVICE_TARGET_BYTES];
};

/* Requests that wait for a machine's end. */
struct waiter {
	uint32_t ref;
	struct waiter *next;
};

struct machine {
	struct source source; /* the pidfd of its init */
	char id[ID_BYTES];
	char group[ID_BYTES]; /* name of its control groups; empty: none yet */
	struct machine *next_in_bucket;
	enum machine_state state;
	enum end_reason reason;
	bool userns;
	bool apart; /* made so that its processes can be kept */
	bool frozen;
	bool public_network;
	pid_t pid;
	int slot; /* range of ids; -1: none */
	int userns_fd;
	int lifeline; /* a byte tells init that it has its root; the end ends it */
	int netns, mntns, utsns; /* of a blank */
	int scratch; /* descriptor of the scratch file system's root */
	uint64_t disk_bytes;
	uint64_t memory_bytes;
	uint64_t pids;
	uint64_t expires_ms;
	uint64_t ttl_ms;
	uint64_t limits[LIMIT_COUNT];
	bool disk_full;
	struct waiter *waiters;
	/* memory watch */
	struct source pressure;
	bool memory_hot;
	bool memory_alarm; /* v2: `memory.high` is set */
	uint64_t memory_next_ms;
	pid_t protected_to; /* processes that began up to this number go before init when memory runs out, whatever they set; 0: none yet */
	struct machine *next_hot;
	int victim; /* pidfd of the process that was killed last for memory, until it is gone */
	uint64_t victim_until_ms;
	int unexplained; /* looks in a row at which the processes held less than is used */
	/* services */
	struct service *services;
	int service_count;
	int connections;
	struct helper slirp;
	int slirp_exit; /* closing it ends slirp4netns */
	struct source slirp_up; /* readable when the network is up */
	bool create_pending; /* creation is answered then */
	uint32_t create_ref;
	struct helper criu;
	struct source criu_limit; /* readable when it has taken too long */
	uint32_t criu_ref; /* of the request that it works on */
	int processes; /* directory that it keeps them in; of one that it restores, the machine's own */
	uint32_t seal_ref;
	char detached_id[ID_BYTES]; /* of the workspace that its files become */
	uint8_t *note; /* what the controller would have to know to take it over; NULL: it cannot be */
	size_t note_length;
	int left; /* the mount namespace of a detached one, until a machine stands on its files */
	struct machine *copy; /* a workspace in the making, while this one stands still for it */
	struct copying *copying; /* of that workspace */
	/* a sealed workspace */
	struct helper tree;
	bool released; /* goes when its last user does */
	int users; /* machines that have this workspace as a layer */
	struct machine *base;
	char **lowers;
	int lower_count;
};

#endif

/* Numbers of the spawner protocol; the same stand in src/sandbox/backends/native/spawner.ts, and every field is described in docs/internals/native.md. */
#ifndef MW_SPAWN_PROTOCOL_H
#define MW_SPAWN_PROTOCOL_H

enum request_type {
	REQUEST_CREATE = 1,
	REQUEST_KILL = 2,
	REQUEST_SEAL = 3,
	REQUEST_RENEW = 4,
	REQUEST_FREEZE = 5,
	REQUEST_THAW = 6,
	REQUEST_METRICS = 7,
	REQUEST_WORKSPACE_OPEN = 8,
	REQUEST_WORKSPACE_RELEASE = 9,
	REQUEST_LIST = 10,
};

enum event_type { EVENT_HELLO = 64, EVENT_BUSY = 65, EVENT_ENDED = 66, EVENT_BLANK = 67 };

enum { ANSWER_OK = 128 };

enum create_tag {
	CREATE_ID = 1,
	CREATE_PROFILE = 2,
	CREATE_LAYER = 3,
	CREATE_PART = 4,
	CREATE_PART_LAYER = 5,
	CREATE_WORKSPACE = 6,
	CREATE_CPU_MILLI = 7,
	CREATE_MEMORY_BYTES = 8,
	CREATE_DISK_BYTES = 9,
	CREATE_PIDS = 10,
	CREATE_NETWORK = 11,
	CREATE_SERVICE = 12,
	CREATE_HOSTNAME = 13,
	CREATE_TTL_MS = 14,
};

enum created_tag { CREATED_PID = 1, CREATED_UID_BASE = 2, CREATED_BLANK = 3 };
enum id_tag { TAG_ID = 1, TAG_TTL_MS = 2 };
enum sealed_tag { SEALED_BYTES = 1 };
enum list_tag { LIST_RUNNING = 1, LIST_SEALED = 2 };

enum metrics_tag {
	METRICS_CPU_US = 1,
	METRICS_MEMORY_BYTES = 2,
	METRICS_PEAK_BYTES = 3,
	METRICS_DISK_BYTES = 4,
	METRICS_PIDS = 5,
	METRICS_OOM_KILLED = 6,
	METRICS_PIDS_HIT = 7,
	METRICS_DISK_FULL = 8,
};

enum hello_tag {
	HELLO_EPOCH = 1,
	HELLO_PID = 2,
	HELLO_PRIVILEGED = 3,
	HELLO_USERS = 4,
	HELLO_USERNS = 5,
	HELLO_MEMORY = 6,
	HELLO_PIDS = 7,
	HELLO_CPU = 8,
	HELLO_FREEZE = 9,
	HELLO_PUBLIC = 10,
	HELLO_MISSING = 11,
};

enum busy_tag { BUSY_PID = 1 };
enum blank_tag { BLANK_NAME = 1 };
enum ended_tag { ENDED_ID = 1, ENDED_REASON = 2, ENDED_OOM_KILLED = 3, ENDED_PIDS_HIT = 4, ENDED_DISK_FULL = 5, ENDED_KEPT = 6 };

#endif

/* Requests of the controller about machines and workspaces that are there. */
#include "spawn-protocol.h"
#include "spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The one id of requests that have nothing else. */
static bool only_id(const wire_frame *frame, char *id)
{
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	if (!wire_next(&cursor, &field) || field.tag != TAG_ID || !wire_str(&field, id, ID_BYTES) || wire_next(&cursor, &field)) {
		send_error(frame->ref, "EINVAL", "the request takes exactly one id");
		return false;
	}
	return true;
}

static struct machine *named(const wire_frame *frame, bool sealed)
{
	char id[ID_BYTES];
	if (!only_id(frame, id)) return NULL;
	struct machine *machine = machine_find(id);
	if (machine && !machine->released && !machine->copying && (machine->state == MACHINE_SEALED) == sealed && (sealed || machine->state == MACHINE_RUNNING)) return machine;
	send_error(frame->ref, "gone", sealed ? "no such workspace" : "no such machine");
	return NULL;
}

/* A workspace, or a machine in which nothing can change: what it wrote can be read. */
static struct machine *standing(const wire_frame *frame)
{
	char id[ID_BYTES];
	if (!only_id(frame, id)) return NULL;
	struct machine *machine = machine_find(id);
	bool sealed = machine && machine->state == MACHINE_SEALED && !machine->released && !machine->copying;
	if (sealed || (machine && machine->state == MACHINE_RUNNING && (machine->frozen || machine_quiet(machine)))) return machine;
	send_error(frame->ref, "gone", "no such workspace, and no machine that stands still");
	return NULL;
}

static void on_kill(const wire_frame *frame)
{
	char id[ID_BYTES];
	if (!only_id(frame, id)) return;
	struct machine *machine = machine_find(id);
	if (machine && kept_after_death(machine)) {
		machine_dispose(machine);
		machine = NULL;
	}
	/* Killing what is gone already is what was asked for. */
	if (!machine || machine->state == MACHINE_SEALED) {
		send_ok(frame->ref);
		return;
	}
	machine_end(machine, END_KILLED);
	machine_wait(machine, frame->ref);
}

static void on_seal(const wire_frame *frame)
{
	char id[ID_BYTES];
	if (!only_id(frame, id)) return;
	struct machine *machine = machine_find(id);
	if (machine && kept_after_death(machine)) {
		machine->seal_ref = frame->ref;
		machine->reason = END_SEALED;
		send_sealed(machine);
		return;
	}
	machine = named(frame, false);
	if (!machine) return;
	machine->seal_ref = frame->ref;
	machine_end(machine, END_SEALED);
}

static void on_renew(const wire_frame *frame)
{
	uint64_t ttl = 0;
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	char id[ID_BYTES];
	while (wire_next(&cursor, &field))
		if (field.tag == TAG_TTL_MS ? !wire_u64(&field, &ttl) : (field.tag != TAG_ID || !wire_str(&field, id, sizeof id))) {
			send_error(frame->ref, "EINVAL", "a malformed renewal");
			return;
		}
	wire_writer writer = answer_begin((size_t)frame->fields_len + 64);
	wire_begin(&writer, ANSWER_OK, frame->ref);
	uint64_t now = now_ms();
	cursor = wire_fields(frame);
	while (wire_next(&cursor, &field)) {
		if (field.tag != TAG_ID || !wire_str(&field, id, sizeof id)) continue;
		struct machine *machine = machine_find(id);
		if (!machine || machine->state != MACHINE_RUNNING) {
			wire_bytes(&writer, TAG_ID, field.data, field.len);
			continue;
		}
		machine->expires_ms = ttl ? now + ttl : 0;
		S.lease_added = true;
	}
	answer_finish(&writer);
}

static void on_freeze(const wire_frame *frame, bool frozen)
{
	struct machine *machine = named(frame, false);
	struct failure failure;
	if (!machine) return;
	if (cgroup_freeze(machine, frozen, &failure) < 0) send_error(frame->ref, failure.code, failure.message);
	else send_ok(frame->ref);
}

static void on_metrics(const wire_frame *frame)
{
	struct machine *machine = named(frame, false);
	if (!machine) return;
	struct usage usage;
	cgroup_usage(machine, &usage, false);
	scratch_check_full(machine);
	wire_writer writer = answer_begin(512);
	wire_begin(&writer, ANSWER_OK, frame->ref);
	if (usage.cpu_known) wire_put_u64(&writer, METRICS_CPU_US, usage.cpu_us);
	if (usage.memory_known) wire_put_u64(&writer, METRICS_MEMORY_BYTES, usage.memory_bytes);
	if (usage.peak_known) wire_put_u64(&writer, METRICS_PEAK_BYTES, usage.peak_bytes);
	wire_put_u64(&writer, METRICS_DISK_BYTES, scratch_used(machine));
	if (usage.pids_known) wire_put_u64(&writer, METRICS_PIDS, usage.pids);
	wire_put_u64(&writer, METRICS_OOM_KILLED, machine->limits[LIMIT_OOM] + usage.oom_kills);
	wire_put_u64(&writer, METRICS_PIDS_HIT, usage.pids_hits);
	wire_put_u64(&writer, METRICS_DISK_FULL, machine->limits[LIMIT_DISK]);
	answer_finish(&writer);
}

static void list_one(struct machine *machine, void *context)
{
	if (machine->released) return;
	wire_text(context, machine->copying ? LIST_UNFINISHED : machine->state == MACHINE_SEALED ? LIST_SEALED : LIST_RUNNING, machine->id);
}

static void on_list(const wire_frame *frame)
{
	wire_writer writer = answer_begin(WIRE_FRAME_MAX);
	wire_begin(&writer, ANSWER_OK, frame->ref);
	machines_each(list_one, &writer);
	answer_finish(&writer);
}

static void on_workspace(const wire_frame *frame, bool open)
{
	struct machine *machine = open ? standing(frame) : named(frame, true);
	struct failure failure;
	if (!machine) return;
	if (!open) workspace_release(machine);
	else if (workspace_open(machine, &failure) < 0) {
		send_error(frame->ref, failure.code, failure.message);
		return;
	}
	send_ok(frame->ref);
}

/* What requests about kept files say. */
struct keeping {
	char id[ID_BYTES], as[ID_BYTES];
	uint64_t force, count;
};

/* The layers that a rebased workspace lies on, copied; NULL when there are none or they are malformed. */
static char **layers_read(const wire_frame *frame, int *count)
{
	char **layers = calloc(PLAN_LAYERS, sizeof *layers);
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	*count = 0;
	while (layers && wire_next(&cursor, &field)) {
		if (field.tag != TAG_LAYER || *count == PLAN_LAYERS || field.len == 0 || field.len >= 4096 || field.data[0] != '/' || memchr(field.data, 0, field.len)) continue;
		if (!(layers[*count] = strndup((const char *)field.data, field.len))) break;
		++*count;
	}
	return layers;
}

static struct machine *keeping_read(const wire_frame *frame, struct keeping *keeping)
{
	memset(keeping, 0, sizeof *keeping);
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	bool sound = true;
	while (sound && wire_next(&cursor, &field)) {
		if (field.tag == TAG_ID) sound = wire_str(&field, keeping->id, ID_BYTES);
		else if (field.tag == TAG_AS) sound = wire_str(&field, keeping->as, ID_BYTES);
		else if (field.tag == TAG_FORCE) sound = wire_u64(&field, &keeping->force);
		else if (field.tag == TAG_COUNT) sound = wire_u64(&field, &keeping->count);
		else sound = field.tag == TAG_LAYER;
	}
	struct machine *machine = sound && keeping->id[0] ? machine_find(keeping->id) : NULL;
	if (!sound || !keeping->id[0]) send_error(frame->ref, "EINVAL", "the request is malformed");
	else if (!machine || machine->copying || machine->state == MACHINE_ENDING || machine->create_pending) send_error(frame->ref, "gone", "no such machine or workspace"), machine = NULL;
	return machine;
}

static void on_keep(const wire_frame *frame)
{
	struct keeping keeping;
	struct failure failure;
	struct machine *machine = keeping_read(frame, &keeping), *base = NULL;
	if (!machine) return;
	bool sealed = machine->state == MACHINE_SEALED;
	int result = -1;
	bool pending = true;
	if (frame->type == REQUEST_REBASE) {
		base = keeping.as[0] ? machine_find(keeping.as) : NULL;
		if (!sealed || (keeping.as[0] && (!base || base->state != MACHINE_SEALED || base->copying))) fail_code(&failure, "gone", "no such workspace");
		else {
			int count;
			char **layers = layers_read(frame, &count);
			workspace_rebase(machine, base);
			if (count > 0) workspace_relayer(machine, layers, count);
			else free(layers);
			result = 0;
			pending = false;
		}
	} else if (frame->type == REQUEST_FLATTEN) {
		/* Of a machine: what it lies on. */
		if (!sealed) machine = machine->base;
		result = machine ? workspace_flatten(machine, keeping.as, keeping.count, frame->ref, &failure) : fail_code(&failure, "gone", "the machine lies on no workspace");
	} else if (sealed) {
		fail_code(&failure, "gone", "no such machine");
	} else {
		machine->seal_ref = frame->ref;
		result = frame->type == REQUEST_COPY ? machine_copy(machine, keeping.as, frame->ref, &failure) : machine_detach(machine, keeping.as, keeping.force, &failure);
	}
	if (result < 0) send_error(frame->ref, failure.code, failure.message);
	else if (!pending) send_ok(frame->ref);
}

static void on_dump(const wire_frame *frame)
{
	char id[ID_BYTES] = "", directory[PATH_BYTES] = "";
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	bool sound = true;
	while (sound && wire_next(&cursor, &field))
		sound = (field.tag == TAG_ID && wire_str(&field, id, sizeof id)) || (field.tag == TAG_DIRECTORY && wire_str(&field, directory, sizeof directory));
	struct machine *machine = sound && id[0] ? machine_find(id) : NULL;
	struct failure failure;
	if (!sound || directory[0] != '/') send_error(frame->ref, "EINVAL", "the request is malformed");
	else if (!machine || machine->state != MACHINE_RUNNING || machine->create_pending) send_error(frame->ref, "gone", "no such machine");
	else if (processes_dump(machine, directory, frame->ref, &failure) < 0) send_error(frame->ref, failure.code, failure.message);
}

void request_dispatch(const wire_frame *frame)
{
	switch (frame->type) {
	case REQUEST_CREATE: on_create(frame); break;
	case REQUEST_KILL: on_kill(frame); break;
	case REQUEST_SEAL: on_seal(frame); break;
	case REQUEST_RENEW: on_renew(frame); break;
	case REQUEST_FREEZE: on_freeze(frame, true); break;
	case REQUEST_THAW: on_freeze(frame, false); break;
	case REQUEST_METRICS: on_metrics(frame); break;
	case REQUEST_WORKSPACE_OPEN: on_workspace(frame, true); break;
	case REQUEST_WORKSPACE_RELEASE: on_workspace(frame, false); break;
	case REQUEST_LIST: on_list(frame); break;
	case REQUEST_DETACH: case REQUEST_COPY: case REQUEST_REBASE: case REQUEST_FLATTEN: on_keep(frame); break;
	case REQUEST_DUMP: on_dump(frame); break;
	case REQUEST_NOTE: on_note(frame); break;
	case REQUEST_RECALL: on_recall(frame); break;
	case REQUEST_KEEP: on_grace(frame); break;
	case REQUEST_STOP: spawner_stop(0); break;
	default: send_error(frame->ref, "EOPNOTSUPP", "an unknown request"); break;
	}
}

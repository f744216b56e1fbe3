/* Requests of the controller, answers and events to it, over fd 3. A broken frame ends the connection, which is as if the controller had died. */
#include "spawn-protocol.h"
#include "spawn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static struct source channel = {.fd = 3};
static uint8_t input[WIRE_FRAME_MAX + 4];
static size_t input_length;
static uint8_t *output;
static size_t output_start, output_length, output_capacity;
static bool input_paused;

void controller_gone(void);

/* ---- sending ---- */

void protocol_flush(void)
{
	while (output_length > 0) {
		ssize_t put = send(channel.fd, output + output_start, output_length, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (put < 0 && errno == EINTR) continue;
		if (put < 0) break;
		output_start += (size_t)put;
		output_length -= (size_t)put;
	}
	if (output_length == 0) output_start = 0;
	bool full = output_length > OUTPUT_MAX;
	input_paused = full;
	if (channel.handle) rewatch(&channel, (full ? 0 : EPOLLIN) | (output_length ? EPOLLOUT : 0));
}

static bool reserve(size_t size)
{
	if (output_start > 0) memmove(output, output + output_start, output_length);
	output_start = 0;
	if (output_length + size <= output_capacity) return true;
	size_t capacity = (output_length + size) * 2;
	/* Events are bounded by the number of machines and answers by `input_paused`, so this is never reached by a controller that reads. */
	if (capacity > 4 * OUTPUT_MAX) return false;
	uint8_t *bigger = realloc(output, capacity);
	if (!bigger) return false;
	output = bigger;
	output_capacity = capacity;
	return true;
}

static wire_writer begin(size_t room)
{
	if (!reserve(room)) {
		logf_("the controller does not read: giving it up");
		controller_gone();
		return wire_writer_on(output, 0);
	}
	return wire_writer_on(output + output_length, room);
}

static void finish(wire_writer *writer)
{
	if (wire_end(writer)) output_length += writer->len;
}

void send_ok(uint32_t ref)
{
	wire_writer writer = begin(64);
	wire_begin(&writer, ANSWER_OK, ref);
	finish(&writer);
}

void send_error(uint32_t ref, const char *code, const char *message)
{
	wire_writer writer = begin(1024);
	if (wire_error(&writer, ref, code, message)) output_length += writer.len;
}

void send_created(const struct machine *machine, uint32_t ref)
{
	wire_writer writer = begin(128);
	wire_begin(&writer, ANSWER_OK, ref);
	wire_put_u64(&writer, CREATED_PID, (uint64_t)machine->pid);
	wire_put_u64(&writer, CREATED_UID_BASE, machine_id_base(machine));
	wire_text(&writer, CREATED_BLANK, machine->group);
	finish(&writer);
}

void send_blank(const struct machine *blank)
{
	wire_writer writer = begin(128);
	wire_begin(&writer, EVENT_BLANK, 0);
	wire_text(&writer, BLANK_NAME, blank->group);
	finish(&writer);
}

void send_ended(const struct machine *machine)
{
	static const char *const REASONS[] = {
		[END_KILLED] = "killed", [END_EXPIRED] = "expired", [END_DIED] = "died", [END_LOST] = "lost", [END_SEALED] = "sealed"};
	wire_writer writer = begin(512);
	wire_begin(&writer, EVENT_ENDED, 0);
	wire_text(&writer, ENDED_ID, machine->id);
	wire_text(&writer, ENDED_REASON, REASONS[machine->reason]);
	wire_put_u64(&writer, ENDED_OOM_KILLED, machine->limits[LIMIT_OOM]);
	wire_put_u64(&writer, ENDED_PIDS_HIT, machine->limits[LIMIT_PIDS]);
	wire_put_u64(&writer, ENDED_DISK_FULL, machine->limits[LIMIT_DISK]);
	wire_put_u64(&writer, ENDED_KEPT, kept_after_death(machine));
	finish(&writer);
}

void send_busy(pid_t holder)
{
	wire_writer writer = begin(64);
	wire_begin(&writer, EVENT_BUSY, 0);
	wire_put_u64(&writer, BUSY_PID, (uint64_t)holder);
	finish(&writer);
	protocol_flush();
}

static void put_missing(wire_writer *writer, bool present, const char *name, const char *reason)
{
	if (present) return;
	char text[600];
	snprintf(text, sizeof text, "%s: %s", name, reason);
	wire_text(writer, HELLO_MISSING, text);
}

void send_hello(void)
{
	const char *no_groups = cgroups_missing();
	wire_writer writer = begin(8192);
	wire_begin(&writer, EVENT_HELLO, 0);
	wire_put_u64(&writer, HELLO_EPOCH, S.epoch);
	wire_put_u64(&writer, HELLO_PID, (uint64_t)getpid());
	wire_put_u64(&writer, HELLO_PRIVILEGED, S.privileged);
	wire_put_u64(&writer, HELLO_USERS, S.privileged || S.multiple_ids);
	wire_put_u64(&writer, HELLO_USERNS, S.userns_works);
	wire_put_u64(&writer, HELLO_MEMORY, S.memory_enforced);
	wire_put_u64(&writer, HELLO_PIDS, S.pids_enforced);
	wire_put_u64(&writer, HELLO_CPU, S.cpu_enforced);
	wire_put_u64(&writer, HELLO_FREEZE, S.freezer);
	wire_put_u64(&writer, HELLO_PUBLIC, slirp_missing() == NULL);
	put_missing(&writer, S.userns_works, "userns", S.userns_reason);
	put_missing(&writer, S.privileged || S.multiple_ids, "users", S.users_reason);
	put_missing(&writer, S.memory_enforced, "memory", no_groups);
	put_missing(&writer, S.pids_enforced, "pids", no_groups);
	put_missing(&writer, S.cpu_enforced, "cpu", no_groups);
	put_missing(&writer, S.freezer, "freeze", "no cgroup v2 hierarchy is mounted and writable (Linux 5.2 or later has cgroup.freeze)");
	put_missing(&writer, slirp_missing() == NULL, "public", slirp_missing());
	finish(&writer);
}

/* ---- requests ---- */

static int set_text(char *out, size_t size, const wire_field *field) { return wire_str(field, out, size) ? 0 : -1; }

static int add_path(char **list, int *count, int most, const wire_field *field)
{
	if (*count >= most || field->len == 0 || field->len >= 4096 || field->data[0] != '/' || memchr(field->data, 0, field->len)) return -1;
	char *copy = strndup((const char *)field->data, field->len);
	if (!copy) return -1;
	list[(*count)++] = copy;
	return 0;
}

/* Below `/`, without `.` or `..`, and without the characters that separate overlay options: it becomes part of one. */
static bool part_target_valid(const char *target)
{
	if (target[0] != '/' || target[1] == 0 || strlen(target) >= 200) return false;
	for (const char *at = target; *at; at++) {
		if (*at == ',' || *at == ':' || *at == '\\') return false;
		if (*at == '/' && (at[1] == '/' || at[1] == 0 || (at[1] == '.' && (at[2] == '/' || at[2] == 0 || (at[2] == '.' && (at[3] == '/' || at[3] == 0))))))
			return false;
	}
	return true;
}

static int add_service(struct create_request *request, const wire_field *field)
{
	if (request->service_count >= PLAN_SERVICES || field->len < 4 || field->len - 2 >= SERVICE_TARGET_BYTES) return -1;
	if (field->data[2] != '/' || memchr(field->data + 2, 0, field->len - 2)) return -1;
	uint16_t port = wire_get_u16(field->data);
	if (port == 0) return -1;
	for (int i = 0; i < request->service_count; i++)
		if (request->services[i].port == port) return -1;
	request->services[request->service_count].port = port;
	memcpy(request->services[request->service_count].target, field->data + 2, field->len - 2);
	request->services[request->service_count].target[field->len - 2] = 0;
	request->service_count++;
	return 0;
}

static int add_field(struct create_request *request, const wire_field *field)
{
	switch (field->tag) {
	case CREATE_ID: return set_text(request->id, sizeof request->id, field);
	case CREATE_PROFILE: return wire_u64(field, &request->profile) && request->profile <= 1 ? 0 : -1;
	case CREATE_LAYER: return add_path(request->layers, &request->layer_count, PLAN_LAYERS, field);
	case CREATE_PART: {
		int index = request->part_count, count = 0;
		if (index >= PLAN_PARTS || add_path(&request->parts[index].target, &count, 1, field) < 0) return -1;
		request->part_count++;
		return part_target_valid(request->parts[index].target) ? 0 : -1;
	}
	case CREATE_PART_LAYER:
		if (request->part_count == 0) return -1;
		return add_path(request->parts[request->part_count - 1].layers, &request->parts[request->part_count - 1].layer_count, PLAN_LAYERS, field);
	case CREATE_WORKSPACE: return set_text(request->workspace, sizeof request->workspace, field);
	case CREATE_CPU_MILLI: return wire_u64(field, &request->cpu_milli) && request->cpu_milli <= 1000000 ? 0 : -1;
	case CREATE_MEMORY_BYTES: return wire_u64(field, &request->memory_bytes) && request->memory_bytes < 1ull << 50 ? 0 : -1;
	case CREATE_DISK_BYTES: return wire_u64(field, &request->disk_bytes) && request->disk_bytes < 1ull << 50 ? 0 : -1;
	case CREATE_PIDS: return wire_u64(field, &request->pids) ? 0 : -1;
	case CREATE_NETWORK: return wire_u64(field, &request->network) && request->network <= 1 ? 0 : -1;
	case CREATE_SERVICE: return add_service(request, field);
	case CREATE_HOSTNAME: return set_text(request->hostname, sizeof request->hostname, field);
	case CREATE_TTL_MS: return wire_u64(field, &request->ttl_ms) ? 0 : -1;
	default: return -1;
	}
}

static bool hostname_valid(const char *name)
{
	if (!name[0]) return false;
	for (const char *at = name; *at; at++)
		if (!((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') || *at == '-' || *at == '.' || *at == '_')) return false;
	return true;
}

/* What is wrong with a complete request, or NULL. */
static const char *refuse(const struct create_request *request, struct failure *failure)
{
	if (!id_valid(request->id)) return "the id must be one DNS label in lower case";
	if (request->layer_count == 0) return "a machine needs at least one layer";
	for (int i = 0; i < request->part_count; i++)
		if (request->parts[i].layer_count == 0) return "a part needs at least one layer";
	if (!hostname_valid(request->hostname)) return "the host name has characters that host names do not have";
	snprintf(failure->code, sizeof failure->code, "unsupported");
	if (request->profile == 0 && !S.userns_works) return "user namespaces do not work here; ask for the namespaces profile";
	if (request->network == 1 && slirp_missing()) return slirp_missing();
	if (request->memory_bytes && !S.memory_enforced) return "memory cannot be limited here";
	if (request->pids && !S.pids_enforced) return "the number of processes cannot be limited here";
	if (request->cpu_milli && !S.cpu_enforced) return "CPU time cannot be limited here";
	return NULL;
}

static void free_request(struct create_request *request)
{
	for (int i = 0; i < request->layer_count; i++) free(request->layers[i]);
	for (int i = 0; i < request->part_count; i++) {
		free(request->parts[i].target);
		for (int k = 0; k < request->parts[i].layer_count; k++) free(request->parts[i].layers[k]);
	}
}

static void on_create(const wire_frame *frame)
{
	static struct create_request request;
	memset(&request, 0, sizeof request);
	strcpy(request.hostname, DEFAULT_HOSTNAME);
	struct failure failure = {.code = "EINVAL"};
	const char *wrong = NULL;
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	while (!wrong && wire_next(&cursor, &field)) {
		if (add_field(&request, &field) == 0) continue;
		snprintf(failure.message, sizeof failure.message, "field %u of a creation is unknown, malformed or one too many", field.tag);
		wrong = failure.message;
	}
	if (!wrong) wrong = refuse(&request, &failure);
	if (!wrong) fail_code(&failure, "EIO", "making %s", request.id);
	struct machine *machine = wrong ? NULL : make_machine(&request, &failure);
	if (machine) {
		machine->create_ref = frame->ref;
		if (!machine->create_pending) send_created(machine, frame->ref);
		protocol_flush();
		S.lease_added = true;
	} else {
		send_error(frame->ref, failure.code, wrong ? wrong : failure.message);
	}
	free_request(&request);
}

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
	if (machine && !machine->released && (machine->state == MACHINE_SEALED) == sealed && (sealed || machine->state == MACHINE_RUNNING)) return machine;
	send_error(frame->ref, "gone", sealed ? "no such workspace" : "no such machine");
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

void send_sealed(const struct machine *machine)
{
	wire_writer writer = begin(64);
	wire_begin(&writer, ANSWER_OK, machine->seal_ref);
	wire_put_u64(&writer, SEALED_BYTES, scratch_used(machine));
	finish(&writer);
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
	wire_writer writer = begin((size_t)frame->fields_len + 64);
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
	finish(&writer);
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
	wire_writer writer = begin(512);
	wire_begin(&writer, ANSWER_OK, frame->ref);
	if (usage.cpu_known) wire_put_u64(&writer, METRICS_CPU_US, usage.cpu_us);
	if (usage.memory_known) wire_put_u64(&writer, METRICS_MEMORY_BYTES, usage.memory_bytes);
	if (usage.peak_known) wire_put_u64(&writer, METRICS_PEAK_BYTES, usage.peak_bytes);
	wire_put_u64(&writer, METRICS_DISK_BYTES, scratch_used(machine));
	if (usage.pids_known) wire_put_u64(&writer, METRICS_PIDS, usage.pids);
	wire_put_u64(&writer, METRICS_OOM_KILLED, machine->limits[LIMIT_OOM] + usage.oom_kills);
	wire_put_u64(&writer, METRICS_PIDS_HIT, usage.pids_hits);
	wire_put_u64(&writer, METRICS_DISK_FULL, machine->limits[LIMIT_DISK]);
	finish(&writer);
}

static void list_one(struct machine *machine, void *context)
{
	if (machine->released) return;
	wire_text(context, machine->state == MACHINE_SEALED ? LIST_SEALED : LIST_RUNNING, machine->id);
}

static void on_list(const wire_frame *frame)
{
	wire_writer writer = begin(WIRE_FRAME_MAX);
	wire_begin(&writer, ANSWER_OK, frame->ref);
	machines_each(list_one, &writer);
	finish(&writer);
}

static void on_workspace(const wire_frame *frame, bool open)
{
	struct machine *machine = named(frame, true);
	struct failure failure;
	if (!machine) return;
	if (!open) workspace_release(machine);
	else if (workspace_open(machine, &failure) < 0) {
		send_error(frame->ref, failure.code, failure.message);
		return;
	}
	send_ok(frame->ref);
}

static void dispatch(const wire_frame *frame)
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
	default: send_error(frame->ref, "EOPNOTSUPP", "an unknown request"); break;
	}
}

/* ---- receiving ---- */

static void take_frames(void)
{
	size_t done = 0;
	while (!input_paused) {
		wire_frame frame;
		int result = wire_parse(input + done, input_length - done, &frame, NULL);
		if (result < 0) {
			logf_("a broken frame from the controller");
			controller_gone();
			return;
		}
		if (result == 0) break;
		if (!S.stopping) dispatch(&frame);
		done += frame.total;
		if (output_length > 65536) protocol_flush();
	}
	memmove(input, input + done, input_length - done);
	input_length -= done;
}

static void channel_ready(struct source *source, uint32_t events)
{
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		ssize_t got = recv(source->fd, input + input_length, sizeof input - input_length, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
			controller_gone();
			return;
		}
		if (got > 0) input_length += (size_t)got;
	}
	protocol_flush();
	take_frames();
}

void controller_gone(void)
{
	if (!channel.handle) return;
	unwatch(&channel);
	channel.handle = NULL;
	input_length = output_length = 0;
	spawner_stop(S.config.grace_ms);
}

void protocol_start(void)
{
	channel.handle = channel_ready;
	if (watch(&channel, EPOLLIN) < 0) controller_gone();
}

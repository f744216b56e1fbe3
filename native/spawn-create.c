/* The request for a machine: read, judged, and carried out. */
#include "spawn-protocol.h"
#include "spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
	case CREATE_PROFILE: return wire_u64(field, &request->profile) && request->profile <= 2 ? 0 : -1;
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
	case CREATE_MACHINE_ID: return set_text(request->machine_id, sizeof request->machine_id, field);
	case CREATE_OWN_IDENTITY: return wire_u64(field, &request->own_identity) && request->own_identity <= 1 ? 0 : -1;
	case CREATE_PROCESSES: return field->len > 0 && field->len < sizeof request->processes && field->data[0] == '/' ? set_text(request->processes, sizeof request->processes, field) : -1;
	case CREATE_LIFELINE: return wire_u64(field, &request->lifeline) ? 0 : -1;
	case CREATE_LISTENER: return wire_u64(field, &request->listener) ? 0 : -1;
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

/* As in machine-id(5). */
static bool machine_id_valid(const char *text)
{
	return text[0] == 0 || (strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32);
}

/* What is wrong with a complete request, or NULL. */
static const char *refuse(const struct create_request *request, struct failure *failure)
{
	if (!id_valid(request->id)) return "the id must be one DNS label in lower case";
	if (request->layer_count == 0) return "a machine needs at least one layer";
	for (int i = 0; i < request->part_count; i++)
		if (request->parts[i].layer_count == 0) return "a part needs at least one layer";
	if (!hostname_valid(request->hostname)) return "the host name has characters that host names do not have";
	if (!machine_id_valid(request->machine_id)) return "a machine id has 32 hexadecimal digits";
	snprintf(failure->code, sizeof failure->code, "unsupported");
	if (request->profile == 0 && !S.userns_works) return "user namespaces do not work here; ask for the namespaces profile";
	if (request->profile == 2 && criu_missing()) return criu_missing();
	if (request->processes[0] && (request->profile != 2 || !request->lifeline || !request->listener)) return snprintf(failure->code, sizeof failure->code, "EINVAL"), "processes need their profile, lifeline and listener";
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

void on_create(const wire_frame *frame)
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
		if (machine->base) detached_leave(machine->base);
		S.lease_added = true;
	} else {
		send_error(frame->ref, failure.code, wrong ? wrong : failure.message);
	}
	free_request(&request);
}

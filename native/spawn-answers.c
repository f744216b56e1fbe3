/* Answers and events to the controller, field by field. */
#include "spawn-protocol.h"
#include "spawn.h"

#include <stdio.h>
#include <unistd.h>

void send_ok(uint32_t ref)
{
	wire_writer writer = answer_begin(64);
	wire_begin(&writer, ANSWER_OK, ref);
	answer_finish(&writer);
}

void send_error(uint32_t ref, const char *code, const char *message)
{
	wire_writer writer = answer_begin(1024);
	if (wire_error(&writer, ref, code, message)) answer_add(writer.len);
}

void send_created(const struct machine *machine, uint32_t ref)
{
	wire_writer writer = answer_begin(128);
	wire_begin(&writer, ANSWER_OK, ref);
	wire_put_u64(&writer, CREATED_PID, (uint64_t)machine->pid);
	wire_put_u64(&writer, CREATED_UID_BASE, machine_id_base(machine));
	wire_text(&writer, CREATED_BLANK, machine->group);
	answer_finish(&writer);
}

void send_blank(const struct machine *blank)
{
	wire_writer writer = answer_begin(128);
	wire_begin(&writer, EVENT_BLANK, 0);
	wire_text(&writer, BLANK_NAME, blank->group);
	answer_finish(&writer);
}

void send_ended(const struct machine *machine)
{
	static const char *const REASONS[] = {
		[END_KILLED] = "killed", [END_EXPIRED] = "expired", [END_DIED] = "died", [END_LOST] = "lost", [END_SEALED] = "sealed", [END_DETACHED] = "killed"};
	wire_writer writer = answer_begin(512);
	wire_begin(&writer, EVENT_ENDED, 0);
	wire_text(&writer, ENDED_ID, machine->id);
	wire_text(&writer, ENDED_REASON, REASONS[machine->reason]);
	wire_put_u64(&writer, ENDED_OOM_KILLED, machine->limits[LIMIT_OOM]);
	wire_put_u64(&writer, ENDED_PIDS_HIT, machine->limits[LIMIT_PIDS]);
	wire_put_u64(&writer, ENDED_DISK_FULL, machine->limits[LIMIT_DISK]);
	wire_put_u64(&writer, ENDED_KEPT, kept_after_death(machine));
	answer_finish(&writer);
}

void send_busy(pid_t holder, uint64_t ends_at_ms)
{
	wire_writer writer = answer_begin(64);
	wire_begin(&writer, EVENT_BUSY, 0);
	wire_put_u64(&writer, BUSY_PID, (uint64_t)holder);
	uint64_t now = now_ms();
	if (ends_at_ms) wire_put_u64(&writer, BUSY_LEFT_MS, ends_at_ms > now ? ends_at_ms - now : 0);
	answer_finish(&writer);
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
	wire_writer writer = answer_begin(8192);
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
	wire_put_u64(&writer, HELLO_PROCESSES, criu_missing() == NULL);
	if (S.config.version) wire_text(&writer, HELLO_VERSION, S.config.version);
	put_missing(&writer, criu_missing() == NULL, "processes", criu_missing());
	put_missing(&writer, S.userns_works, "userns", S.userns_reason);
	put_missing(&writer, S.privileged || S.multiple_ids, "users", S.users_reason);
	put_missing(&writer, S.memory_enforced, "memory", no_groups);
	put_missing(&writer, S.pids_enforced, "pids", no_groups);
	put_missing(&writer, S.cpu_enforced, "cpu", no_groups);
	put_missing(&writer, S.freezer, "freeze", "no cgroup v2 hierarchy is mounted and writable (Linux 5.2 or later has cgroup.freeze)");
	put_missing(&writer, slirp_missing() == NULL, "public", slirp_missing());
	answer_finish(&writer);
}

void send_copied(const struct machine *copy, uint32_t ref, uint64_t stopped_us)
{
	wire_writer writer = answer_begin(64);
	wire_begin(&writer, ANSWER_OK, ref);
	wire_put_u64(&writer, SEALED_BYTES, scratch_used(copy));
	wire_put_u64(&writer, SEALED_STOPPED_US, stopped_us);
	answer_finish(&writer);
}

void send_dumped(uint32_t ref, uint64_t lifeline, uint64_t listener)
{
	wire_writer writer = answer_begin(64);
	wire_begin(&writer, ANSWER_OK, ref);
	wire_put_u64(&writer, DUMPED_LIFELINE, lifeline);
	wire_put_u64(&writer, DUMPED_LISTENER, listener);
	answer_finish(&writer);
}

void send_sealed(const struct machine *machine)
{
	wire_writer writer = answer_begin(64);
	wire_begin(&writer, ANSWER_OK, machine->seal_ref);
	wire_put_u64(&writer, SEALED_BYTES, scratch_used(machine));
	answer_finish(&writer);
}

/*
 * A controller dies and another one takes its machines over. Where machines have a grace, `RUN/takeover.sock` listens from the start: whoever connects is attached, with a new epoch, when
 * no controller is there, and told of the one that is when it lives. Only the spawner's own user is listened to: the directory is private, and the peer's id is looked at.
 *
 * What a controller knows of a machine, and its successor needs, is the machine's note: bytes that mean nothing here, and that live exactly as long as the machine.
 */
#include "spawn-protocol.h"
#include "spawn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct source listener = {.fd = -1};

static void socket_path(char path[PATH_BYTES]) { snprintf(path, PATH_BYTES, "%s/takeover.sock", S.config.run); }

static void refuse(int fd)
{
	uint8_t text[64];
	wire_writer writer = wire_writer_on(text, sizeof text);
	wire_begin(&writer, EVENT_BUSY, 0);
	wire_put_u64(&writer, BUSY_PID, (uint64_t)getpid());
	if (wire_end(&writer) && send(fd, text, writer.len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) logf_("refusing a controller: %s", strerror(errno));
	close(fd);
}

static bool ours(int fd)
{
	struct ucred peer;
	socklen_t length = sizeof peer;
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

static void controller_came(struct source *source, uint32_t events)
{
	(void)events;
	struct failure failure;
	int fd = keep_fd(accept4(source->fd, NULL, NULL, SOCK_CLOEXEC));
	if (fd < 0) return;
	if (!ours(fd)) {
		logf_("somebody else's process asked for the machines");
		close(fd);
	} else if (!controller_free()) {
		refuse(fd);
	} else if (!spawner_goes_on()) {
		/* Its time is over: the machines end, and then it does. */
		close(fd);
	} else if (next_epoch(&failure) < 0) {
		logf_("%s", failure.message);
		close(fd);
		spawner_stop(S.config.grace_ms);
	} else {
		protocol_start(fd);
		send_hello();
	}
}

int takeover_listen(struct failure *failure)
{
	if (S.config.grace_ms == 0) return 0;
	char path[PATH_BYTES];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socket_path(path);
	if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s", path) >= sizeof address.sun_path) return fail_code(failure, "ENAMETOOLONG", "%s is longer than a unix socket's path may be", path);
	/* Of a spawner that was killed: the lock is ours. */
	unlink(path);
	listener.fd = keep_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	listener.handle = controller_came;
	mode_t mask = umask(0177);
	bool listens = listener.fd >= 0 && bind(listener.fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener.fd, 8) == 0 && watch(&listener, EPOLLIN) == 0;
	int error = errno;
	umask(mask);
	return listens ? 0 : fail_errno(failure, error, "listening on %s", path);
}

void takeover_end(void)
{
	if (listener.fd < 0) return;
	char path[PATH_BYTES];
	socket_path(path);
	unlink(path);
	unwatch(&listener);
	close_fd(&listener.fd);
}

/* ---- what a successor is told ---- */

/* An empty one takes away what is there. */
void on_note(const wire_frame *frame)
{
	char id[ID_BYTES] = "";
	wire_field field, note = {0};
	wire_cursor cursor = wire_fields(frame);
	bool sound = true;
	while (sound && wire_next(&cursor, &field)) {
		if (field.tag == TAG_NOTE) note = field;
		else sound = field.tag == TAG_ID && wire_str(&field, id, sizeof id);
	}
	struct machine *machine = sound && id[0] ? machine_find(id) : NULL;
	if (!sound || !id[0]) {
		send_error(frame->ref, "EINVAL", "a note takes an id and the note");
		return;
	}
	if (!machine || machine->state == MACHINE_ENDING) {
		send_error(frame->ref, "gone", "no such machine or workspace");
		return;
	}
	uint8_t *copy = note.len > 0 ? malloc(note.len) : NULL;
	if (note.len > 0 && !copy) {
		send_error(frame->ref, "ENOMEM", "keeping a note");
		return;
	}
	if (copy) memcpy(copy, note.data, note.len);
	free(machine->note);
	machine->note = copy;
	machine->note_length = note.len;
	send_ok(frame->ref);
}

void on_recall(const wire_frame *frame)
{
	char id[ID_BYTES] = "";
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	bool sound = wire_next(&cursor, &field) && field.tag == TAG_ID && wire_str(&field, id, sizeof id) && !wire_next(&cursor, &field);
	struct machine *machine = sound ? machine_find(id) : NULL;
	if (!sound) send_error(frame->ref, "EINVAL", "the request takes exactly one id");
	else if (!machine || machine->released) send_error(frame->ref, "gone", "no such machine or workspace");
	/* What its last controller began goes on to its end. */
	else if (machine->state == MACHINE_ENDING || machine->copying || machine->copy || machine->create_pending || machine->criu.pid > 0) send_error(frame->ref, "EBUSY", "something is being done with it");
	else {
		wire_writer writer = answer_begin(machine->note_length + 128);
		uint64_t now = now_ms();
		wire_begin(&writer, ANSWER_OK, frame->ref);
		if (machine->note) wire_bytes(&writer, RECALLED_NOTE, machine->note, machine->note_length);
		if (machine->expires_ms) wire_put_u64(&writer, RECALLED_LEFT_MS, machine->expires_ms > now ? machine->expires_ms - now : 1);
		wire_put_u64(&writer, RECALLED_FROZEN, machine->frozen);
		answer_finish(&writer);
	}
}

/* How long the machines outlive the controller that asks; one that has none at all began without the socket. */
void on_grace(const wire_frame *frame)
{
	wire_cursor cursor = wire_fields(frame);
	wire_field field;
	uint64_t grace = 0;
	if (!wire_next(&cursor, &field) || field.tag != TAG_TTL_MS || !wire_u64(&field, &grace) || wire_next(&cursor, &field)) {
		send_error(frame->ref, "EINVAL", "the request takes exactly one time");
		return;
	}
	S.config.grace_ms = grace;
	send_ok(frame->ref);
}

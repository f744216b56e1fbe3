/* The connection to the controller, over fd 3, or over what spawn-takeover.c accepted. A broken frame ends it, which is as if the controller had died. */
#include "spawn.h"
#include "spawn-kernel.h"

#include <errno.h>
#include <poll.h>
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
/* Before the event loop begins as well: what is said then is said over fd 3. */
static bool attached = true;

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

wire_writer answer_begin(size_t room)
{
	if (!reserve(room)) {
		logf_("the controller does not read: giving it up");
		controller_gone();
		return wire_writer_on(output, 0);
	}
	return wire_writer_on(output + output_length, room);
}

/* What nobody is there to hear is not kept for somebody else. */
void answer_add(size_t length)
{
	if (attached) output_length += length;
}

void answer_finish(wire_writer *writer)
{
	if (wire_end(writer)) answer_add(writer->len);
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
		if (!S.stopping) request_dispatch(&frame);
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

/* One that lives, and only did not read, learns that it is alone. The number 3 stays taken. */
static void leave(void)
{
	if (channel.fd != 3) {
		close_fd(&channel.fd);
		return;
	}
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) dup3(null, 3, O_CLOEXEC);
	close_fd(&null);
	channel.fd = -1;
}

void controller_gone(void)
{
	if (!channel.handle) return;
	unwatch(&channel);
	input_length = output_length = output_start = 0;
	input_paused = false;
	attached = false;
	leave();
	spawner_stop(S.config.grace_ms);
}

bool controller_free(void)
{
	struct pollfd other = {.fd = channel.fd, .events = 0};
	while (channel.handle && poll(&other, 1, 0) == 1 && other.revents & (POLLHUP | POLLERR)) channel_ready(&channel, EPOLLIN);
	return !channel.handle;
}

void protocol_start(int fd)
{
	channel.fd = fd;
	attached = true;
	channel.handle = channel_ready;
	if (watch(&channel, EPOLLIN) < 0) controller_gone();
}

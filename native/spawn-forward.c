/*
 * Service ports: connections that a machine makes to 127.0.0.1:PORT inside are carried to a unix socket of the controller. The first line that the target
 * reads names the machine and the port; it comes from here, so the machine cannot forge it.
 *
 * Each direction holds at most one buffer of bytes that the other side has not taken; while it is full its source is not read.
 */
#include "spawn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PIPE_BYTES = 64 * 1024 };

struct end {
	struct source source;
	struct connection *connection;
	uint32_t events; /* that epoll watches for */
	bool registered;
	bool read_closed; /* end of file was read from it */
	bool write_closed;
	/* bytes on their way to this end */
	uint8_t *buffer;
	size_t start, length;
};

struct connection {
	struct end inside, outside;
	struct service *service;
	struct machine *machine;
	bool connecting;
	bool dead;
	struct connection *next, *previous;
};

static struct connection *connections; /* all, so that a machine's end finds its own */
static uint64_t connection_count;

static void connection_close(struct connection *connection)
{
	if (connection->dead) return;
	connection->dead = true;
	struct end *ends[] = {&connection->inside, &connection->outside};
	for (int i = 0; i < 2; i++) {
		if (ends[i]->source.fd >= 0) {
			unwatch(&ends[i]->source);
			close_fd(&ends[i]->source.fd);
		}
		free(ends[i]->buffer);
		ends[i]->buffer = NULL;
	}
	if (connection->previous) connection->previous->next = connection->next;
	else connections = connection->next;
	if (connection->next) connection->next->previous = connection->previous;
	struct service *service = connection->service;
	connection->machine->connections--;
	connection_count--;
	if (service->paused && service->source.fd >= 0) {
		service->paused = false;
		rewatch(&service->source, EPOLLIN);
	}
	free_later(connection);
}

static int flush(struct end *end)
{
	while (end->length > 0) {
		ssize_t put = send(end->source.fd, end->buffer + end->start, end->length, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (put < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
		end->start += (size_t)put;
		end->length -= (size_t)put;
	}
	end->start = 0;
	return 0;
}

/* Moves what can be moved from one end to the other. */
static int pump(struct end *from, struct end *to)
{
	if (flush(to) < 0) return -1;
	for (int round = 0; round < 4 && !from->read_closed && to->length == 0; round++) {
		ssize_t got = recv(from->source.fd, to->buffer, PIPE_BYTES, MSG_DONTWAIT);
		if (got < 0) {
			if (errno == EAGAIN || errno == EINTR) break;
			return -1;
		}
		if (got == 0) from->read_closed = true;
		to->start = 0;
		to->length = (size_t)got;
		if (flush(to) < 0) return -1;
	}
	if (from->read_closed && to->length == 0 && !to->write_closed) {
		shutdown(to->source.fd, SHUT_WR);
		to->write_closed = true;
	}
	return 0;
}

static void end_ready(struct source *source, uint32_t events);

static int rewatch_end(struct end *end, struct end *other)
{
	uint32_t events = 0;
	if (!end->read_closed && other->length == 0 && !end->connection->connecting) events |= EPOLLIN;
	if (end->length > 0 || (end->connection->connecting && end == &end->connection->outside)) events |= EPOLLOUT;
	if (events == 0) {
		/* With nothing to wait for, hang-ups would be reported for ever. */
		if (end->registered) unwatch(&end->source);
		end->registered = false;
		end->events = 0;
		return 0;
	}
	if (!end->registered) {
		end->source.handle = end_ready;
		if (watch(&end->source, events) < 0) return -1;
		end->registered = true;
	} else if (events != end->events && rewatch(&end->source, events) < 0) {
		return -1;
	}
	end->events = events;
	return 0;
}

static void step(struct connection *connection)
{
	struct end *inside = &connection->inside, *outside = &connection->outside;
	if (!connection->connecting && (pump(inside, outside) < 0 || pump(outside, inside) < 0)) {
		connection_close(connection);
		return;
	}
	if (inside->write_closed && outside->write_closed) {
		connection_close(connection);
		return;
	}
	if (rewatch_end(inside, outside) < 0 || rewatch_end(outside, inside) < 0) connection_close(connection);
}

static void end_ready(struct source *source, uint32_t events)
{
	struct end *end = (struct end *)source;
	struct connection *connection = end->connection;
	if (connection->dead) return;
	if (connection->connecting && end == &connection->outside) {
		int error = 0;
		socklen_t size = sizeof error;
		if (getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error) {
			connection_close(connection);
			return;
		}
		connection->connecting = false;
	} else if ((events & EPOLLERR) && !(events & EPOLLIN)) {
		connection_close(connection);
		return;
	}
	step(connection);
}

static int connect_target(const char *target, bool *connecting)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, target, strlen(target));
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0) return -1;
	fd = keep_fd(fd);
	if (fd < 0) return -1;
	*connecting = false;
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
	/* EAGAIN: the listener's backlog is full. Closing tells the client at once. */
	if (errno == EINPROGRESS) return *connecting = true, fd;
	close(fd);
	return -1;
}

static void connection_start(struct service *service, int inside)
{
	struct connection *connection = calloc(1, sizeof *connection);
	bool connecting = false;
	int outside = connection ? connect_target(service->target, &connecting) : -1;
	uint8_t *first = outside >= 0 ? malloc(PIPE_BYTES) : NULL, *second = first ? malloc(PIPE_BYTES) : NULL;
	if (!second) {
		/* A reset rather than an orderly end: nobody answered. */
		struct linger reset = {.l_onoff = 1, .l_linger = 0};
		setsockopt(inside, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
		close(inside);
		if (outside >= 0) close(outside);
		free(first);
		free(connection);
		return;
	}
	*connection = (struct connection){.service = service, .machine = service->machine, .connecting = connecting, .next = connections};
	connection->inside = (struct end){.source = {.handle = end_ready, .fd = inside}, .connection = connection, .buffer = first};
	connection->outside = (struct end){.source = {.handle = end_ready, .fd = outside}, .connection = connection, .buffer = second};
	connection->outside.length = (size_t)snprintf((char *)second, PIPE_BYTES, "MW1 %s %u\n", service->machine->id, service->port);
	if (connections) connections->previous = connection;
	connections = connection;
	service->machine->connections++;
	connection_count++;
	step(connection);
}

/* One that has its share keeps it, and waits for one of its own to close: many machines at once must not leave a neighbour without any. */
static bool has_its_share(const struct machine *machine)
{
	return machine->connections >= CONNECTIONS_PER_MACHINE || (connection_count >= S.shared_connections && machine->connections >= CONNECTIONS_ASSURED);
}

static void service_ready(struct source *source, uint32_t events)
{
	(void)events;
	struct service *service = (struct service *)source;
	for (int i = 0; i < 16; i++) {
		if (has_its_share(service->machine)) {
			/* The others wait in the backlog until one closes. */
			service->paused = true;
			rewatch(source, 0);
			return;
		}
		int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE) {
				service->paused = service->machine->connections > 0;
				if (service->paused) rewatch(source, 0);
			}
			return;
		}
		fd = keep_fd(fd);
		if (fd < 0) return;
		connection_start(service, fd);
	}
}

int forward_start(struct machine *machine, const struct create_request *request, const int *listeners)
{
	machine->services = calloc((size_t)request->service_count, sizeof *machine->services);
	if (!machine->services) {
		for (int i = 0; i < request->service_count; i++) close(listeners[i]);
		return errno = ENOMEM, -1;
	}
	machine->service_count = request->service_count;
	int result = 0, error = 0;
	for (int i = 0; i < request->service_count; i++) {
		struct service *service = &machine->services[i];
		*service = (struct service){.source = {.handle = service_ready, .fd = listeners[i]}, .machine = machine, .port = request->services[i].port};
		memcpy(service->target, request->services[i].target, sizeof service->target);
		if (watch(&service->source, EPOLLIN) < 0) result = -1, error = errno;
	}
	errno = error;
	return result;
}

void forward_stop(struct machine *machine)
{
	if (!machine->services) return;
	for (int i = 0; i < machine->service_count; i++) {
		unwatch(&machine->services[i].source);
		close_fd(&machine->services[i].source.fd);
	}
	struct connection *next;
	for (struct connection *connection = connections; connection; connection = next) {
		next = connection->next;
		if (connection->machine == machine) connection_close(connection);
	}
	free_later(machine->services);
	machine->services = NULL;
	machine->service_count = 0;
}

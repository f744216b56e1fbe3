"""Holds one of everything that a process can hold, and says on request whether it still works."""
import json, mmap, os, select, signal, socket, sys, threading, time

server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
here = socket.create_connection(server.getsockname())
there, _ = server.accept()
reading, writing = os.pipe()
os.write(writing, b"piped")
one, two = socket.socketpair()
one.send(b"paired")
memory = os.memfd_create("memory")
os.write(memory, b"memfd")
gone = open("/tmp/gone", "w+")
gone.write("no name")
gone.flush()
os.unlink("/tmp/gone")
shared = open("/dev/shm/shared", "w+b")
shared.truncate(4096)
mapped = mmap.mmap(shared.fileno(), 4096)
mapped[:6] = b"shared"
beats = 0
alarms = 0


def beat():
    global beats
    while True:
        beats += 1
        time.sleep(0.01)


def alarm(*_):
    global alarms
    alarms += 1


threading.Thread(target=beat, daemon=True).start()
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
poll = select.epoll()
poll.register(there.fileno(), select.EPOLLIN)


def moves(read):
    before = read()
    end = time.monotonic() + 30
    while time.monotonic() < end and read() == before:
        time.sleep(0.01)
    return read() != before


print("ready", flush=True)
for line in sys.stdin:
    here.send(b"over")
    waiting = bool(poll.poll(30))
    again = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    accepted.send(b"accepted")
    gone.seek(0)
    said = {
        "tcp": there.recv(100).decode(),
        "listener": again.recv(100).decode(),
        "pipe": os.read(reading, 100).decode(),
        "pair": two.recv(100).decode(),
        "memfd": os.pread(memory, 100, 0).decode(),
        "gone": gone.read(),
        "shm": open("/dev/shm/shared", "rb").read(6).decode() if mapped[:6] == b"shared" else "unmapped",
        "thread": moves(lambda: beats),
        "timer": moves(lambda: alarms),
        "epoll": waiting,
    }
    print(json.dumps(said), flush=True)

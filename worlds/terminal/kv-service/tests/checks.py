import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time

from grade import DROP, check, expect, kill_all, rng, same

KV = 2100


def ask(method, path, body=None, connection=None):
    link = connection or http.client.HTTPConnection("127.0.0.1", 8080, timeout=5)
    try:
        link.request(method, path, body)
        answer = link.getresponse()
        return answer.status, answer.read(4 << 20), answer.headers.get("Content-Type")
    except (OSError, http.client.HTTPException) as error:
        expect(False, f"{method} {path[:80]}: {type(error).__name__}: {error}")
    finally:
        if connection is None:
            link.close()


def key():
    return "k" + "".join(rng.choice("ABCxyz019._-") for _ in range(12))


def restart():
    """Kills the service in whatever it does, and starts it as the machine would."""
    expect(DROP, "this machine has no other users")
    kill_all(KV)
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", 8080), 1).close()
            time.sleep(0.05)
        except OSError:
            break
    identity = {"user": KV, "group": KV, "extra_groups": []}
    try:
        subprocess.Popen(["/app/start.sh"], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                         env={"PATH": "/usr/bin:/bin", "HOME": "/var/lib/kv"}, **identity)
    except OSError as error:
        expect(False, f"/app/start.sh does not start: {error}")
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", 8080), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    expect(False, "the service does not listen within 10 s of its start")


@check("it runs as kv, with an empty store")
def running():
    same(ask("GET", "/healthz")[:2], (200, b"ok"), "health")
    same(json.loads(ask("GET", "/kv")[1]), [], "keys of the store as it was left")
    wanted, owners = "0100007F:1F90", set()
    with open("/proc/net/tcp", encoding="ascii") as table:
        for fields in map(str.split, table):
            if fields[1].endswith(":1F90") and fields[3] == "0A":
                same(fields[1], wanted, "listening address")
                owners.add(int(fields[7]))
    same(owners, {KV}, "uid of the listener")


@check("values come back as they went in")
def values():
    for value in [b"", b"x", bytes(range(256)) * 3, os.urandom(1 << 20)]:
        name = key()
        same([ask("GET", f"/kv/{name}")[0], ask("PUT", f"/kv/{name}", b"old")[0], ask("PUT", f"/kv/{name}", value)[0]], [404, 201, 204], "statuses of GET, PUT, PUT")
        status, body, kind = ask("GET", f"/kv/{name}")
        same((status, body == value, kind), (200, True, "application/octet-stream"), f"GET of {len(value)} bytes")
        same([ask("DELETE", f"/kv/{name}")[0], ask("DELETE", f"/kv/{name}")[0], ask("GET", f"/kv/{name}")[0]], [204, 404, 404], "statuses of DELETE, DELETE, GET")
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=5)
    name = key()
    same([ask("PUT", f"/kv/{name}", b"abc", connection)[0], ask("GET", f"/kv/{name}", None, connection)[1], ask("DELETE", f"/kv/{name}", None, connection)[0], ask("GET", "/healthz", None, connection)[1]],
         [201, b"abc", 204, b"ok"], "several requests on one connection")


@check("keys, paths and methods")
def edges():
    for name in [".", "..", "a" * 100, "-", "..."]:
        same([ask("PUT", f"/kv/{name}", b"v")[0], ask("GET", f"/kv/{name}")[1]], [201, b"v"], f"key {name[:10]!r}")
    same(json.loads(ask("GET", "/kv")[1]), sorted([".", "..", "a" * 100, "-", "..."]), "keys")
    for name in [".", "..", "a" * 100, "-", "..."]:
        ask("DELETE", f"/kv/{name}")
    for name in ["a" * 101, "a/b", "../../etc/passwd", "%41", "a%20b", "%C3%A4", ""]:
        same(ask("PUT", f"/kv/{name}", b"v")[0], 400, f"status of PUT with the key {name[:20]!r}")
        same(ask("GET", f"/kv/{name}")[0], 400, f"status of GET with the key {name[:20]!r}")
    name = key()
    link = http.client.HTTPConnection("127.0.0.1", 8080, timeout=5)
    try:
        link.request("PUT", f"/kv/{name}", bytes((1 << 20) + 1))
        same(link.getresponse().status, 413, "status for a value that is too long")
    except OSError:
        pass  # A server that closes the connection early may take its own answer away; what counts then is that nothing was stored.
    finally:
        link.close()
    same(ask("GET", f"/kv/{name}")[0], 404, "status of a value that was too long")
    same([ask("GET", "/")[0], ask("GET", "/kvx")[0], ask("POST", "/kv")[0], ask("POST", "/healthz")[0], ask("GET", f"/incr/{key()}")[0], ask("POST", f"/kv/{key()}")[0]], [404, 404, 405, 405, 405, 405], "statuses of wrong paths and methods")
    same(json.loads(ask("GET", "/kv")[1]), [], "keys after all")


@check("increments are all counted")
def increments():
    name, text = key(), key()
    def client():
        for _ in range(15):
            ask("POST", f"/incr/{name}")
    threads = [threading.Thread(target=client) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(ask("GET", f"/kv/{name}")[1], b"300", "counter after 300 increments by 20 clients")
    ask("PUT", f"/kv/{text}", b"12x")
    same([ask("POST", f"/incr/{text}")[0], ask("GET", f"/kv/{text}")[1]], [409, b"12x"], "increment of something that is not a number")
    ask("PUT", f"/kv/{text}", b"41")
    same(ask("POST", f"/incr/{text}")[:2], (200, b"42"), "increment of 41")


@check("a silent client holds nobody up")
def silent():
    idle = [socket.create_connection(("127.0.0.1", 8080), 5) for _ in range(15)]
    idle[0].sendall(b"PUT /kv/half HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
    started = time.monotonic()
    same(ask("GET", "/healthz")[1], b"ok", "health")
    expect(time.monotonic() - started < 3, "the answer took more than 3 s")
    for link in idle:
        link.close()
    same(ask("GET", "/kv/half")[0], 404, "status of a value that never arrived whole")


@check("what was acknowledged survives SIGKILL")
def durable():
    values = {key(): os.urandom(rng.choice([1, 1000, 300000])) for _ in range(10)}
    for name, value in values.items():
        same(ask("PUT", f"/kv/{name}", value)[0], 201, "status of PUT")
    gone = next(iter(values))
    ask("DELETE", f"/kv/{gone}")
    restart()
    for name, value in values.items():
        status, body, _ = ask("GET", f"/kv/{name}")
        same((status, body == value), (404, False) if name == gone else (200, True), "value after the restart")
    torn = key()
    stop, last, failures = threading.Event(), [0], []
    ask("PUT", f"/kv/{torn}", b"0" * 200000)
    def writer():
        number = 0
        while not stop.is_set():
            number += 1
            link = http.client.HTTPConnection("127.0.0.1", 8080, timeout=5)
            try:
                link.request("PUT", f"/kv/{torn}", (b"%d" % (number % 10)) * 200000)
                if link.getresponse().status == 204:
                    last[0] = number
            except (OSError, http.client.HTTPException):
                return
            finally:
                link.close()
    for _ in range(3):
        stop.clear()
        thread = threading.Thread(target=writer)
        thread.start()
        time.sleep(rng.uniform(0.2, 0.5))
        restart()
        stop.set()
        thread.join()
        body = ask("GET", f"/kv/{torn}")[1]
        expect(len(body) == 200000 and len(set(body)) == 1, "a value was half written")
    kill_all(KV)

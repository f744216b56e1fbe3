/** Commands that init runs: their results, their arguments, their input, their ends; and init itself. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { startInitMachine } from "../../../../test/support/init-machine.ts";
import { collect, environment, initTests, machine, processes, text, until } from "../../../../test/support/init-tests.ts";

initTests();

describe("results", () => {
  test("carry exit codes, signals and both streams", async () => {
    const result = await machine.run("echo out; echo err >&2; exit 7");
    expect(result).toMatchObject({ code: 7, signal: null, ended: "exited", stdoutBytes: 4, stderrBytes: 4, truncated: false });
    expect([text(result.stdout), text(result.stderr)]).toEqual(["out\n", "err\n"]);
    expect(await machine.run("kill -SEGV $$")).toMatchObject({ code: 139, signal: "SIGSEGV", ended: "exited" });
    expect((await machine.run("sleep 0.2")).durationMs).toBeGreaterThan(190);
  });

  test("of large output on both streams at once come whole", async () => {
    const result = await machine.run("head -c 5000000 /dev/zero | tr '\\0' a; head -c 5000000 /dev/zero | tr '\\0' b >&2; exit 7", { timeoutMs: 60_000 });
    expect(result).toMatchObject({ code: 7, stdoutBytes: 5_000_000, stderrBytes: 5_000_000, truncated: false });
    expect(Buffer.from(result.stdout).equals(Buffer.alloc(5_000_000, "a"))).toBe(true);
    expect(Buffer.from(result.stderr).equals(Buffer.alloc(5_000_000, "b"))).toBe(true);
  });

  test("keep every byte as it was written", async () => {
    expect(Buffer.from((await machine.run("printf 'ok\\360\\377\\000end\\n\\355\\240\\200'")).stdout).toString("hex")).toBe(
      Buffer.from([0x6f, 0x6b, 0xf0, 0xff, 0, 0x65, 0x6e, 0x64, 0x0a, 0xed, 0xa0, 0x80]).toString("hex"),
    );
    expect(Buffer.from((await machine.run(["head", "-c", "4096", "/bin/ls"])).stdout).equals(readFileSync("/bin/ls").subarray(0, 4096))).toBe(true);
  });

  test("beyond the cap are counted, dropped and flagged; the writer never blocks", async () => {
    const result = await machine.run("head -c 3000000 /dev/zero; echo end >&2", { maxOutputBytes: 1000 });
    expect(result).toMatchObject({ code: 0, stdoutBytes: 3_000_000, stderrBytes: 4, truncated: true });
    expect(result.stdout).toHaveLength(1000);
    expect(text(result.stderr)).toBe("end\n");
    expect(await machine.run("printf abc", { maxOutputBytes: 3 })).toMatchObject({ truncated: false, stdoutBytes: 3 });
    expect(await machine.run("echo x", { maxOutputBytes: 0 })).toMatchObject({ truncated: true, stdoutBytes: 2 });
  });

  test.each([
    ["echo hi; (sleep 300 &) ; sleep 300 & exit 3", "hi\n", 3],
    ["echo tail-marker; nohup sleep 300 & exit 0", "tail-marker\n", 0],
    ["head -c 200000 /dev/zero | tr '\\0' x; (while :; do echo noise; sleep 0.01; done) & exit 0", "x".repeat(200_000), 0],
  ])("do not wait for a background child that holds the pipe: %s", async (command, output, code) => {
    const start = performance.now();
    const result = await machine.run(command);
    // The child holds it for five minutes, or for ever.
    expect(performance.now() - start).toBeLessThan(120_000);
    expect(result.code).toBe(code);
    expect(text(result.stdout).replaceAll("noise\n", "").replaceAll("nohup: ignoring input\n", "")).toBe(output);
    expect((await processes(command.includes("noise") ? "noise" : "sleep 300")).length).toBeGreaterThan(0);
    await machine.connection.killAll();
  });

  test("leave a background writer alive: its pipe is drained, not closed", async () => {
    await machine.run("(while :; do head -c 100000 /dev/zero; echo x >> /tmp/mw-alive; sleep 0.02; done) 2>/tmp/mw-alive-err & exit 0");
    await until(async () => Number(text((await machine.run("wc -l < /tmp/mw-alive")).stdout)) > 5);
    expect(text((await machine.run("cat /tmp/mw-alive-err; rm -f /tmp/mw-alive /tmp/mw-alive-err")).stdout)).toBe("");
    await machine.connection.killAll();
  });
});

describe("commands", () => {
  test("that cannot run are results as of a shell", async () => {
    const missing = await machine.run(["no-such-program"]);
    expect(missing).toMatchObject({ code: 127, ended: "exited" });
    expect(text(missing.stderr)).toMatch(/cannot run no-such-program: no such file/);
    expect(await machine.run(["/etc/passwd"])).toMatchObject({ code: 126 });
    expect(await machine.run(["/tmp"])).toMatchObject({ code: 126 });
    expect(await machine.run([""])).toMatchObject({ code: 127 });
    expect(await machine.run(["true"], { env: { PATH: "/nowhere::/also/nowhere" } })).toMatchObject({ code: 127 });
    expect(await machine.run(["/bin/true", "x".repeat(200_000)])).toMatchObject({ code: 126 });
  });

  test("without a first line run in the shell, like anywhere else", async () => {
    const result = await machine.run("printf 'echo ran $1' > /tmp/mw-script; chmod +x /tmp/mw-script");
    expect(result.code).toBe(0);
    expect(text((await machine.run(["/tmp/mw-script", "well"])).stdout)).toBe("ran well\n");
    rmSync("/tmp/mw-script");
  });

  test("get their arguments byte for byte, never through a shell", async () => {
    const hostile = ["--help", "- [ ] fix it", "'; touch /tmp/mw-pwn; '", "$(touch /tmp/mw-pwn)", "\n lead and trail \n\n", "EOF", "🙂", ""];
    const result = await machine.run(["/usr/bin/printf", "%s\\0", ...hostile]);
    expect(text(result.stdout).split("\0").slice(0, -1)).toEqual(hostile);
    await expect(machine.run(["echo", "a\0b"])).rejects.toMatchObject({ code: "usage" });
    expect((await machine.run(["test", "-e", "/tmp/mw-pwn"])).code).toBe(1);
  });

  test("see the environment that was asked for, with the user's defaults where it says nothing", async () => {
    expect(await environment({ env: { A: "1=2", B: "" } })).toEqual(["A=1=2", "B=", "HOME=/root", "LOGNAME=root", "USER=root"]);
    expect(await environment({ env: { HOME: "/x", USER: "u", LOGNAME: "l" } })).toEqual(["HOME=/x", "LOGNAME=l", "USER=u"]);
    expect(await environment({ env: {}, user: "4321" })).toEqual(["HOME=/"]);
  });

  test("run as the user and in the directory that was asked for", async () => {
    const id = async (user: string): Promise<string> => text((await machine.run("id -u; id -g; id -G", { user })).stdout).replaceAll("\n", " ").trim();
    expect(await id("")).toBe("0 0 0");
    expect(await id("nobody")).toBe("65534 65534 65534");
    expect(await id("65534")).toBe("65534 65534 65534");
    expect(await id("1234")).toBe("1234 0 0");
    expect(await id("1234:5678")).toBe("1234 5678 5678");
    expect(await id("daemon:games")).toBe("1 60 60");
    expect(text((await machine.run("pwd", { cwd: "/usr/share" })).stdout)).toBe("/usr/share\n");
    await expect(machine.run("true", { user: "no-such-user" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(machine.run("true", { user: "root:no-such-group" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(machine.run("true", { user: "4294967295" })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(machine.run("true", { cwd: "/no/such/directory" })).rejects.toMatchObject({ code: "invalid_input" });
  });

  test("start clean: no signals blocked or ignored, no descriptors of init, a session of their own", async () => {
    const status = text((await machine.run(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])).stdout);
    expect(status.match(/[0-9a-f]{16}/g)).toEqual(["0000000000000000", "0000000000000000"]);
    expect(text((await machine.run(["ls", "/proc/self/fd"])).stdout)).toBe("0\n1\n2\n3\n");
    expect(text((await machine.run("cut -d' ' -f1,5,6 /proc/$$/stat")).stdout)).toMatch(/^(\d+) \1 \1$/m);
  });
});

describe("stdin", () => {
  test("is at its end at once when none was given", async () => {
    expect(await machine.run("cat > /tmp/mw-f; rc=$?; stat -c %s /tmp/mw-f; rm /tmp/mw-f; exit $rc")).toMatchObject({ code: 0, stdout: Buffer.from("0\n") });
    expect(text((await machine.run(["python3", "-c", "import sys;print(len(sys.stdin.read()))"])).stdout)).toBe("0\n");
    expect((await machine.run(["test", "-c", "/dev/stdin"])).code).toBe(0);
  });

  test("holds exactly the bytes given, then ends", async () => {
    expect(text((await machine.run(["cat"], { stdin: "abc" })).stdout)).toBe("abc");
    expect(text((await machine.run(["wc", "-c"], { stdin: "" })).stdout)).toBe("0\n");
    const large = Buffer.alloc(5_000_000, "0123456789");
    expect(Buffer.from((await machine.run(["cat"], { stdin: large })).stdout).equals(large)).toBe(true);
  });

  test("left open takes more until it is closed, and pushes back", async () => {
    const exec = await machine.start("read a; echo got $a; while [ ! -e /tmp/mw-go ]; do sleep 0.05; done; rm /tmp/mw-go; cat | wc -c", { openStdin: true, stdin: "one\n" });
    const collected = collect(exec);
    let written = false;
    const writing = exec.writeStdin(Buffer.alloc(2_000_000)).then(() => (written = true));
    await sleep(200);
    expect(written).toBe(false);
    await machine.run(": > /tmp/mw-go");
    await writing;
    await exec.closeStdin();
    expect(await collected).toMatchObject({ stdout: "got one\n2000000\n", exit: { code: 0 } });
  });

  test("that the command does not read neither blocks nor fails it; later writes are refused", async () => {
    expect(await machine.run("exec 0<&-; sleep 0.2; echo fine", { stdin: Buffer.alloc(1_000_000) })).toMatchObject({ code: 0, stdout: Buffer.from("fine\n") });
    const exec = await machine.start(["true"], { openStdin: true });
    await exec.exit.catch(() => undefined);
    await collect(exec);
    await expect(exec.writeStdin("x")).rejects.toMatchObject({ code: "conflict" });
  });
});

describe("deadlines and kills", () => {
  const TREE = "echo partial; sh -c 'trap \"\" TERM; sleep 61' & setsid sleep 61 & (setsid sh -c '(sleep 61 &)' &) ; env -i setsid -f sleep 61; wait";

  test("a timeout returns in time, with the output so far, and leaves no descendant", async () => {
    const result = await machine.run(TREE, { timeoutMs: 3000 });
    // What it left would have slept for a minute.
    expect(result.durationMs).toBeLessThan(60_000);
    expect(result).toMatchObject({ ended: "timed_out", signal: "SIGKILL", code: 137 });
    expect(text(result.stdout)).toBe("partial\n");
    expect(await processes("sleep 61")).toEqual([]);
    expect((await machine.run(["true"])).code).toBe(0);
  });

  test("SIGKILL reaches the whole tree and only it; other signals reach the group", async () => {
    const other = await machine.start(["sleep", "62"]);
    const exec = await machine.start(TREE);
    await until(async () => (await processes("sleep 61")).length >= 4);
    await exec.kill();
    expect((await collect(exec)).exit).toMatchObject({ ended: "killed", signal: "SIGKILL" });
    expect(await processes("sleep 61")).toEqual([]);
    expect(await processes("sleep 62")).toHaveLength(1);
    await other.kill("SIGTERM");
    expect((await collect(other)).exit).toMatchObject({ ended: "exited", signal: "SIGTERM", code: 143 });
  });

  test("aborting kills", async () => {
    const aborter = new AbortController();
    const running = machine.run(["sleep", "63"], { signal: aborter.signal });
    setTimeout(() => aborter.abort(), 100);
    expect(await running).toMatchObject({ ended: "killed" });
  });

  test("a process that forks as fast as it can dies, too", async () => {
    const bomb = "import os,time\nend=time.time()+20\nn=0\nwhile time.time()<end:\n  if os.fork(): os._exit(0)\n  os.setsid()\n";
    expect(await machine.run(["timeout", "30", "python3", "-c", bomb, "mw-bomb"], { timeoutMs: 60_000 })).toMatchObject({ code: 0 });
    const exec = await machine.start(`python3 -c "${bomb}" mw-bomb & python3 -c "${bomb}" mw-bomb & wait; sleep 30`, { timeoutMs: 700 });
    expect((await collect(exec)).exit).toMatchObject({ ended: "timed_out" });
    await machine.connection.killAll();
    expect(await processes("mw-bomb")).toEqual([]);
  });

  test("a killed or stopped supervisor costs neither the exit nor the deadline", async () => {
    const killed = await machine.run("kill -9 $PPID; sleep 0.1; echo still here; exit 5");
    expect(killed).toMatchObject({ code: 5, ended: "exited" });
    expect(text(killed.stdout)).toBe("still here\n");
    expect(await machine.run("kill -STOP $PPID; exit 6", { timeoutMs: 60_000 })).toMatchObject({ code: 6, ended: "exited" });
    const orphaned = await machine.run("kill -9 $PPID; (setsid sleep 64 &); env -i setsid -f sleep 64; sleep 64", { timeoutMs: 600 });
    expect(orphaned).toMatchObject({ ended: "timed_out" });
    expect(await processes("sleep 64")).toEqual([]);
  });

  test("killing or stopping the supervisors that wait costs the next execs nothing", async () => {
    const supervisors = `ps -eo pid=,ppid=,comm= | awk -v own=$PPID '$2 == 1 && $3 == "init" && $1 != own { print $1 }'`;
    const beside = (own: string, other: string): string => `: > /tmp/mw-${own}; until [ -e /tmp/mw-${other} ]; do sleep 0.02; done`;
    // Two at once leave two that wait; then one runs, and the other is hit.
    for (const signal of ["KILL", "STOP", "CHLD", "KILL"]) {
      await Promise.all([machine.run(beside("one", "two")), machine.run(beside("two", "one"))]);
      await machine.run("rm /tmp/mw-one /tmp/mw-two");
      const hit = await machine.run(`hit=$(${supervisors}); kill -${signal} $hit; echo $hit`);
      expect(text(hit.stdout)).toMatch(/^\d+\n$/);
      const results = await Promise.all([1, 2, 3].map((code) => machine.run(`sleep 0.1; exit ${code}`)));
      expect(results.map(({ code }) => code)).toEqual([1, 2, 3]);
    }
  });

  test("an exec whose supervisors are hunted runs once, or ends as killed", async () => {
    const hunter = await machine.start("while :; do for p in $(pgrep -P 1 -x init); do [ $p = $PPID ] || kill -9 $p; done; done 2>/dev/null");
    const codes = [];
    for (let i = 0; i < 40; i++) codes.push((await machine.run(`echo ${i} >> /tmp/hunted; exit 3`, { timeoutMs: 30_000 })).code);
    await hunter.kill();
    expect(codes.filter((code) => code !== 3 && code !== 137)).toEqual([]);
    const lines = text((await machine.run("cat /tmp/hunted; rm /tmp/hunted")).stdout).trim().split("\n").filter((line) => line !== "");
    expect(new Set(lines).size).toBe(lines.length);
    expect(await machine.run("exit 4")).toMatchObject({ code: 4, ended: "exited" });
  });

  test("killing everything leaves init and its answers", async () => {
    const exec = await machine.start("(trap '' TERM; setsid sleep 65) & sleep 65");
    await machine.run("setsid sleep 65 > /dev/null 2>&1 & exit 0");
    await machine.connection.killAll();
    expect((await collect(exec)).exit).toMatchObject({ ended: "killed", signal: "SIGKILL" });
    expect(await processes("sleep 65")).toEqual([]);
  });
});

describe("init", () => {
  test("withstands what root inside can do to it", async () => {
    const attack = await machine.run("for s in $(seq 1 64); do kill -$s 1; done; cat /proc/1/environ; cat /proc/1/fd/4; readlink /proc/1/fd/3; cat /proc/1/mem; ls -l /proc/1/root/; dd if=/dev/zero of=/proc/1/mem count=1; true");
    expect(attack.code).toBe(0);
    expect(attack.stdoutBytes).toBe(0);
    const limits = "import resource\nfor what in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS):\n  try: resource.prlimit(1, what, (1, 1)); print('set')\n  except PermissionError: print('refused')\n";
    expect(text((await machine.run(["python3", "-c", limits])).stdout)).toBe("refused\nrefused\nrefused\n");
    expect(await machine.run("echo fine")).toMatchObject({ stdout: Buffer.from("fine\n") });
    await machine.connection.ping();
  });

  test("survives kill -9 -1 and reports what it did", async () => {
    const exec = await machine.start(["sleep", "66"]);
    expect(await machine.run("kill -9 -1; exit 4")).toMatchObject({ code: 4 });
    expect((await collect(exec)).exit).toMatchObject({ signal: "SIGKILL", ended: "exited" });
  });

  test("reaps orphans", async () => {
    await machine.run("for i in $(seq 20); do (sh -c 'sleep 0.05 &' &); done");
    await machine.run("kill -9 $PPID; for i in $(seq 20); do (sleep 0.05 &); done");
    await until(async () => (await processes("sleep 0.05")).length === 0);
    // Those that ended last may have ended just now.
    await until(async () => (await processes("defunct")).length === 0);
  });

  test("reads a hostile /etc without blocking, following links or believing nonsense", async () => {
    const etc = mkdtempSync(join(tmpdir(), "mw-etc-"));
    const own = await startInitMachine([], { etc });
    const id = async (user: string): Promise<string> => text((await own.run(["/usr/bin/id", "-u"], { user })).stdout).trim();
    try {
      expect(await id("")).toBe("0");
      execFileSync("mkfifo", [join(etc, "passwd")]);
      await expect(id("root")).rejects.toMatchObject({ code: "invalid_input" });
      rmSync(join(etc, "passwd"));
      writeFileSync(join(etc, "real"), "u:x:55:55::/:\n");
      symlinkSync("real", join(etc, "passwd"));
      await expect(id("u")).rejects.toMatchObject({ code: "invalid_input" });
      rmSync(join(etc, "passwd"));
      const long = "x".repeat(100_000);
      writeFileSync(join(etc, "passwd"), `${long}\nu:x:-1:0::/:\nu:x:4294967296:0::/:\nu:x:\n:::::\n${long}:x:9:9::/:\nu:x:77:78:c:/h:/bin/sh`);
      expect(await id("u")).toBe("77");
      expect(text((await own.run(["/usr/bin/env"], { user: "77", env: {} })).stdout).split("\n")).toContain("HOME=/h");
      writeFileSync(join(etc, "group"), `${long}\ng:x:88:a,u\nbad:x:what:u\nlast:x:99:u`);
      expect(text((await own.run(["/usr/bin/id", "-G"], { user: "u" })).stdout)).toBe("78 88 99\n");
      expect(text((await own.run(["/usr/bin/id", "-G"], { user: "u:g" })).stdout)).toBe("88\n");
      writeFileSync(join(etc, "passwd"), Buffer.alloc(8_000_000, "\n"));
      await expect(id("u")).rejects.toMatchObject({ code: "invalid_input" });
    } finally {
      await own.stop();
      rmSync(etc, { recursive: true });
    }
  });

  test("stays small", async () => {
    await machine.run("head -c 3000000 /dev/zero");
    const pid = readFileSync(`/proc/${machine.process.pid}/task/${machine.process.pid}/children`, "utf8").trim();
    // It is told that the output is not wanted any more a moment after the result is here.
    await until(() => Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, "utf8"))?.[1]) < 400);
  });

  test("ends its machine when the lifeline ends, after the grace period", async () => {
    const own = await startInitMachine(["--grace-ms", "300"]);
    const exec = await own.start(["sleep", "67"]);
    const start = performance.now();
    own.process.stdin?.end();
    await own.ended;
    expect(performance.now() - start).toBeGreaterThan(250);
    expect(await exec.exit).toMatchObject({ ended: "lost" });
    await expect(own.run(["true"])).rejects.toMatchObject({ code: "sandbox_gone" });
    await own.stop();
  });
});

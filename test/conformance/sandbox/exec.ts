/** Running one command: what goes in, what comes out, how it ended. */
import { expect, test } from "vitest";
import { fixture, pidsOf, sh, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

export function execSuite(options: ConformanceOptions): void {
  const { machine, shared, backend } = fixture(options);

  test("argv is passed as it is, never through a shell", async () => {
    const sandbox = await shared();
    const words = ["--help", "- [ ] fix it", "'; touch /tmp/pwn; '", "$(touch /tmp/pwn)", "`touch /tmp/pwn`", "\n lead and trail \n", "EOF\nEOF", "", "😀 北", "*", "a\\b"];
    const { out, code } = await sh(sandbox, ["/bin/sh", "-c", 'for a in "$@"; do printf "[%s]" "$a"; done', "sh", ...words]);
    expect(out).toBe(words.map((word) => `[${word}]`).join(""));
    expect(code).toBe(0);
    expect(await sandbox.files.stat("/tmp/pwn")).toBeNull();
  });

  test("a string is a shell command", async () => {
    const result = await sh(await shared(), 'echo "a  b" | tr a-z A-Z; echo err >&2; exit 3');
    expect(result).toMatchObject({ out: "A  B\n", err: "err\n", code: 3, signal: null, ended: "exited", cause: null, truncated: false, stdoutBytes: 5, stderrBytes: 4 });
    expect(result.durationMs).toBeGreaterThanOrEqual(0);
  });

  test("a shell command that looks like an option is a command", async () => {
    expect(await sh(await shared(), "--help; echo after")).toMatchObject({ out: "after\n", code: 0 });
    expect(await sh(await shared(), "-x")).toMatchObject({ code: 127 });
  });

  test("a NUL in an argument, and no command at all, are refused", async () => {
    const sandbox = await shared();
    await expect(sandbox.run({ command: ["/bin/echo", "a\0b"] })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(sandbox.run({ command: [] })).rejects.toMatchObject({ code: "invalid_input" });
    await expect(sandbox.run({ command: "true", env: { "A=B": "c" } })).rejects.toMatchObject({ code: "invalid_input" });
  });

  test("a program that is not there is 127, one that cannot run is 126, and says so", async () => {
    const sandbox = await shared();
    const missing = await sh(sandbox, ["/bin/no-such-program"]);
    expect(missing).toMatchObject({ code: 127, signal: null, ended: "exited" });
    expect(missing.err).toContain("/bin/no-such-program");
    const plain = await sh(sandbox, ["/etc/marker"]);
    expect(plain).toMatchObject({ code: 126, ended: "exited" });
    expect(plain.err).toContain("/etc/marker");
  });

  test("argv[0] without a slash is found along the PATH that the command gets", async () => {
    const sandbox = await machine();
    expect((await sh(sandbox, ["echo", "found"])).out).toBe("found\n");
    await sandbox.files.write("/opt/mine/echo", "#!/bin/sh\n/bin/echo mine\n", { mode: 0o755 });
    expect((await sh(sandbox, ["echo", "found"], { env: { PATH: "/opt/mine:/bin" } })).out).toBe("mine\n");
  });

  test("cwd, and a cwd that is not there", async () => {
    const sandbox = await machine();
    expect((await sh(sandbox, "pwd", { cwd: "/etc/dir" })).out).toBe("/etc/dir\n");
    for (const cwd of ["/nowhere", "/etc/marker"]) await expect(sandbox.run({ command: "pwd", cwd }), cwd).rejects.toMatchObject({ code: "invalid_input" });
    expect((await sh(sandbox, "pwd")).out).toBe("/\n");
  });

  test("env: image, then sandbox, then exec; values of any kind; nothing of the host's", async () => {
    const sandbox = await machine({ env: { FROM_SPEC: "spec", IMAGE_SAYS: "changed" } });
    const value = "a=b\n'\"$HOME` 北";
    const { out } = await sh(sandbox, ["/bin/env"], { env: { ODD: value, FROM_SPEC: "exec" } });
    expect(out).toContain(`ODD=${value}\n`);
    expect(out).toContain("FROM_SPEC=exec\n");
    expect(out).toContain("IMAGE_SAYS=changed\n");
    const names = new Set(out.replace(`ODD=${value}\n`, "").trim().split("\n").map((line) => line.slice(0, line.indexOf("="))));
    const allowed = new Set(["PATH", "IMAGE_SAYS", "FROM_SPEC", "HOME", "USER", "LOGNAME", "HOSTNAME", "TERM", "PWD", "SHLVL", "SHELL"]);
    expect([...names].filter((name) => !allowed.has(name))).toEqual([]);
    expect((await sh(sandbox, "echo $HOME")).out).toBe("/root\n");
  });

  test("users by name, by number, with a group; supplementary groups from the image", async (context) => {
    const sandbox = await machine();
    if (!backend().capabilities.users) {
      await expect(sandbox.run({ command: "id", user: "agent" })).rejects.toMatchObject({ code: "unsupported" });
      void context.annotate("no users besides root here: asserted as refused");
      return;
    }
    expect((await sh(sandbox, "id -u; id -g; id -G; echo $HOME", { user: "agent" })).out).toBe("1000\n1000\n1000 2000\n/home/agent\n");
    expect((await sh(sandbox, "id -u; id -g", { user: "1234" })).out).toBe("1234\n0\n");
    expect((await sh(sandbox, "id -u; id -g; id -G", { user: "1234:77" })).out).toBe("1234\n77\n77\n");
    expect((await sh(sandbox, "id -u; id -g", { user: "agent:shared" })).out).toBe("1000\n2000\n");
    await expect(sandbox.run({ command: "id", user: "nosuchuser" })).rejects.toMatchObject({ code: "invalid_input" });
  });

  test("stdin: an immediate end without one, exactly the bytes with one", async () => {
    const sandbox = await machine();
    expect((await sh(sandbox, "cat > /tmp/f; echo rc=$?; wc -c < /tmp/f")).out).toBe("rc=0\n0\n");
    expect((await sh(sandbox, "wc -c", { stdin: "abc" })).out.trim()).toBe("3");
    const big = Buffer.alloc(3_000_000, "x");
    expect((await sh(sandbox, "wc -c", { stdin: big })).out.trim()).toBe("3000000");
    expect((await sh(sandbox, "exit 5", { stdin: big })).code).toBe(5);
  });

  test("stdin can stay open", async () => {
    const exec = await (await shared()).exec({ command: "while read l; do echo got $l; done; echo end", openStdin: true, stdin: "one\n" });
    const seen: string[] = [];
    let sent = false;
    for await (const chunk of exec.output) {
      seen.push(text(chunk.data));
      if (!sent && seen.join("").includes("got one")) {
        sent = true;
        await exec.writeStdin("two\n");
        await exec.closeStdin();
      }
    }
    expect(seen.join("")).toBe("got one\ngot two\nend\n");
    expect((await exec.exit).code).toBe(0);
    await exec.acknowledge();
  });

  test("more than a pipe holds on both streams at once", async () => {
    const result = await sh(await shared(), "head -c 5000000 /dev/zero | tr '\\0' a; head -c 5000000 /dev/zero | tr '\\0' b >&2; exit 7");
    expect(result).toMatchObject({ code: 7, stdoutBytes: 5_000_000, stderrBytes: 5_000_000, truncated: false });
    expect(result.stdout.length).toBe(5_000_000);
    expect(Buffer.from(result.stdout).every((byte) => byte === 97)).toBe(true);
    expect(Buffer.from(result.stderr).every((byte) => byte === 98)).toBe(true);
  });

  test("output that is not text arrives unchanged", async () => {
    const sandbox = await shared();
    const { stdout } = await sandbox.run({ command: ["/bin/busybox", "printf", "ok\\xf0\\xff\\x00end\\n\\xed\\xa0\\x80"] });
    expect(Buffer.from(stdout).toString("hex")).toBe(Buffer.from("6f6bf0ff00656e640aeda080", "hex").toString("hex"));
    const binary = await sandbox.run({ command: "head -c 4096 /bin/busybox; head -c 4096 /bin/busybox | sha256sum >&2" });
    expect(binary.stdout.length).toBe(4096);
    const { createHash } = await import("node:crypto");
    expect(text(binary.stderr)).toContain(createHash("sha256").update(binary.stdout).digest("hex"));
  });

  test("an output cap delivers that many bytes, counts the rest, and does not change the command", async () => {
    const result = await sh(await shared(), "head -c 1000000 /dev/zero; head -c 10 /dev/zero >&2; exit 4", { maxOutputBytes: 1000 });
    expect(result).toMatchObject({ code: 4, stdoutBytes: 1_000_000, stderrBytes: 10, truncated: true });
    expect(result.stdout.length).toBe(1000);
    expect(result.stderr.length).toBe(10);
    expect((await sh(await shared(), "echo 12345", { maxOutputBytes: 6 })).truncated).toBe(false);
  });

  test("5 GB of output neither blocks the command nor fills the controller", async () => {
    const before = process.memoryUsage().rss;
    const result = await sh(await shared(), "dd if=/dev/zero bs=65536 count=76294 2>/dev/null; echo done >&2", { maxOutputBytes: 1 << 20, timeoutMs: 280_000 });
    expect(result).toMatchObject({ code: 0, stdoutBytes: 76_294 * 65_536, truncated: true, err: "done\n" });
    expect(process.memoryUsage().rss - before).toBeLessThan(128 << 20);
  }, 300_000);

  test("a background child that keeps the pipe does not hold the exec", async () => {
    const sandbox = await machine();
    const started = performance.now();
    const first = await sh(sandbox, "echo hi; (sleep 301 &) ; sleep 301 & exit 3");
    expect(first).toMatchObject({ code: 3, out: "hi\n", ended: "exited" });
    const second = await sh(sandbox, "echo tail-marker; setsid sleep 302 & exit 0");
    expect(second).toMatchObject({ code: 0, ended: "exited" });
    expect(second.out).toContain("tail-marker\n");
    // What holds the pipe does so for five minutes.
    expect(performance.now() - started).toBeLessThan(120_000);
    expect((await pidsOf(sandbox, "sleep 301")).length).toBe(2);
    expect((await pidsOf(sandbox, "sleep 302")).length).toBe(1);
  });

  test("the last bytes before the exit are never lost", async () => {
    const sandbox = await shared();
    for (let i = 0; i < 40; i++) {
      const result = await sh(sandbox, `head -c 70000 /dev/zero; printf last-${i}; (sleep 0.2 &) ; exit 0`);
      expect(result.stdoutBytes).toBe(70_000 + `last-${i}`.length);
      expect(result.out.endsWith(`last-${i}`)).toBe(true);
    }
  });

  test("a deadline ends the whole tree, keeps the output, and leaves the machine usable", async () => {
    const sandbox = await machine();
    const started = performance.now();
    const result = await sh(sandbox, "echo partial; sh -c 'trap \"\" TERM; sleep 610' & setsid sleep 620 & (setsid sh -c 'sleep 630 & sleep 630' &) ; wait", { timeoutMs: 3000 });
    const took = performance.now() - started;
    expect(result).toMatchObject({ ended: "timed_out", out: "partial\n" });
    expect(result.code).toBe(137);
    expect(took).toBeGreaterThan(2950);
    expect(took).toBeLessThan(120_000);
    for (const needle of ["sleep 610", "sleep 620", "sleep 630"]) await until(`${needle} is gone`, async () => (await pidsOf(sandbox, needle)).length === 0);
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  test("a deadline of one command does not touch another's processes", async () => {
    const sandbox = await machine();
    await sh(sandbox, "setsid sleep 71 >/dev/null 2>&1 &");
    expect((await sh(sandbox, "sleep 72", { timeoutMs: 300 })).ended).toBe("timed_out");
    expect((await pidsOf(sandbox, "sleep 71")).length).toBe(1);
    expect((await pidsOf(sandbox, "sleep 72")).length).toBe(0);
  });

  test("signals: from inside, from us, by abort", async () => {
    const sandbox = await machine();
    expect(await sh(sandbox, "kill -TERM $$")).toMatchObject({ code: 143, signal: "SIGTERM", ended: "exited" });
    expect(await sh(sandbox, "kill -SEGV $$")).toMatchObject({ code: 139, signal: "SIGSEGV", ended: "exited" });
    const asked = await sandbox.exec({ command: "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done" });
    let output = "";
    for await (const chunk of asked.output) {
      output += text(chunk.data);
      if (output === "ready\n") await asked.kill("SIGINT");
    }
    expect(output).toContain("caught");
    expect((await asked.exit).code).toBe(9);
    const controller = new AbortController();
    const aborted = await sandbox.exec({ command: "echo before; sleep 73", signal: controller.signal });
    let before = "";
    for await (const { data } of aborted.output) {
      before += text(data);
      controller.abort();
    }
    expect(before).toBe("before\n");
    expect(await aborted.exit).toMatchObject({ ended: "killed" });
    await until("sleep 73 is gone", async () => (await pidsOf(sandbox, "sleep 73")).length === 0);
  });

  test("an exit status comes from the process, not from its text", async () => {
    const result = await sh(await shared(), "echo EXIT_CODE:0; echo '<completed-sentinel-value-0>'; echo '1 passed in 0.01s'; printf '\\033[32mEXIT_CODE:0\\033[0m\\n'; exit 1");
    expect(result.code).toBe(1);
  });

  test("a terminal: size, one stream, control characters", async () => {
    const sandbox = await shared();
    const result = await sh(sandbox, "test -t 0 && test -t 1 && test -t 2 && stty size; echo err >&2", { pty: { columns: 123, rows: 45 } });
    expect(result.out.replaceAll("\r", "")).toBe("45 123\nerr\n");
    expect(result.stderr.length).toBe(0);
    const exec = await sandbox.exec({ command: "trap 'stty size; exit 6' WINCH; echo ready; while :; do sleep 0.05; done", pty: { columns: 80, rows: 24 }, openStdin: true });
    let output = "";
    for await (const chunk of exec.output) {
      output += text(chunk.data);
      if (output.replaceAll("\r", "") === "ready\n") await exec.resize(100, 30);
    }
    expect(output).toContain("30 100");
    expect((await exec.exit).code).toBe(6);
    const typed = await sandbox.exec({ command: "echo ready; sleep 74", pty: { columns: 80, rows: 24 }, openStdin: true });
    output = "";
    for await (const chunk of typed.output) {
      output += text(chunk.data);
      if (output.replaceAll("\r", "") === "ready\n") await typed.writeStdin("\x03");
    }
    expect((await typed.exit).code).toBe(130);
  });

  test("many at once", async () => {
    const sandbox = await shared();
    const results = await Promise.all(Array.from({ length: 64 }, (_, i) => sh(sandbox, `sleep 0.1; echo ${i}; exit ${i}`)));
    results.forEach((result, i) => expect(result).toMatchObject({ code: i, out: `${i}\n` }));
  });
}

/** An exec outlives its reader: started at most once, attached again at an offset, kept until acknowledged; a stalled reader slows the writer only. */
import { expect, test } from "vitest";
import { newId } from "../../../src/core/ids.ts";
import { systemRuntime } from "../../../src/core/runtime.ts";
import type { Exec } from "../../../src/sandbox/sandbox.ts";
import { fixture, pidsOf, sh, sleep, text, until } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

const execId = () => newId("ex", systemRuntime);

async function read(exec: Exec): Promise<string> {
  const parts: Uint8Array[] = [];
  for await (const { data } of exec.output) parts.push(data);
  return text(Buffer.concat(parts));
}

export function execSessionSuite(options: ConformanceOptions): void {
  const { machine } = fixture(options);

  test("one id starts one process, however often it is asked for; the last to ask has the output", async () => {
    const sandbox = await machine();
    const id = execId();
    const command = "echo started >> /tmp/starts; sleep 0.3; echo out; exit 5";
    const asked = Array.from({ length: 8 }, async () => {
      const exec = await sandbox.exec({ command, id });
      return [await read(exec), (await exec.exit).code];
    });
    const endings = await Promise.allSettled(asked);
    // An earlier one either was told of the same exit, or that somebody else reads now: never of another process.
    for (const ending of endings) {
      if (ending.status === "fulfilled") expect(ending.value[1]).toBe(5);
      else expect(ending.reason).toMatchObject({ code: "conflict" });
    }
    expect(endings.filter((ending) => ending.status === "fulfilled").map((ending) => ending.value[0])).toContain("out\n");
    const late = await sandbox.exec({ command, id });
    expect(late.id).toBe(id);
    expect((await late.exit).code).toBe(5);
    expect((await sh(sandbox, "wc -l < /tmp/starts")).out.trim()).toBe("1");
  });

  test("attaches at an offset: what was delivered before is not sent again, and nothing is missing", async () => {
    const sandbox = await machine();
    const id = execId();
    const first = await sandbox.exec({ id, command: "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.05; done; exit 2" });
    let got = "";
    for await (const { data } of first.output) {
      got += text(data);
      if (got.length >= 14) break;
    }
    const again = await sandbox.attach(id, { stdout: got.length });
    const rest = await read(again);
    expect(got + rest).toBe(Array.from({ length: 9 }, (_, i) => `line ${i + 1}\n`).join(""));
    expect((await again.exit).code).toBe(2);
    // Finished, not acknowledged: the exec is still there.
    const last = await sandbox.attach(id, { stdout: (got + rest).length });
    expect(await read(last)).toBe("");
    expect((await last.exit).code).toBe(2);
    await last.acknowledge();
    await expect(sandbox.attach(id)).rejects.toMatchObject({ code: "not_found" });
  });

  test("an unknown id cannot be attached", async () => {
    await expect((await machine()).attach(execId())).rejects.toMatchObject({ code: "not_found" });
  });

  test("run acknowledges by itself", async () => {
    const sandbox = await machine();
    const id = execId();
    await sandbox.run({ id, command: "true" });
    await expect(sandbox.attach(id)).rejects.toMatchObject({ code: "not_found" });
  });

  test("a reader that stalls slows the writer; the controller's memory stays flat and nothing is lost", async () => {
    const sandbox = await machine();
    const total = 300_000_000;
    const exec = await sandbox.exec({ command: `dd if=/dev/zero bs=100000 count=${total / 100_000} 2>/dev/null; echo end >&2`, maxOutputBytes: 2 * total });
    globalThis.gc?.();
    const before = process.memoryUsage();
    await sleep(1500);
    const after = process.memoryUsage();
    expect(after.rss - before.rss).toBeLessThan(48 << 20);
    // The writer is still at it: it is the pipe that holds it.
    expect((await pidsOf(sandbox, "dd if=/dev/zero")).length).toBeGreaterThan(0);
    // Other execs go on meanwhile.
    expect((await sh(sandbox, "echo other")).out).toBe("other\n");
    let bytes = 0;
    let peak = 0;
    let chunks = 0;
    for await (const { stream, data } of exec.output) {
      if (stream === "stdout") bytes += data.length;
      if (chunks++ % 256 === 0) peak = Math.max(peak, process.memoryUsage().rss);
    }
    expect(bytes).toBe(total);
    expect(await exec.exit).toMatchObject({ code: 0, stdoutBytes: total, stderrBytes: 4, truncated: false });
    expect(peak - before.rss).toBeLessThan(200 << 20);
  });

  test("neither stream waits for the other's reader", async () => {
    const sandbox = await machine();
    const exec = await sandbox.exec({ command: "head -c 3000000 /dev/zero >&2; echo out; head -c 3000000 /dev/zero" });
    const counts = { stdout: 0, stderr: 0 };
    for await (const { stream, data } of exec.output) counts[stream] += data.length;
    expect(counts).toEqual({ stdout: 3_000_004, stderr: 3_000_000 });
  });

  test("killing takes the whole tree, setsid or not", async () => {
    const sandbox = await machine();
    const exec = await sandbox.exec({ command: "setsid sleep 81 & (setsid sh -c 'trap \"\" TERM HUP; sleep 82; sleep 82' &); echo ready; sleep 83" });
    for await (const { data } of exec.output) if (text(data).includes("ready")) await exec.kill("SIGKILL");
    expect(await exec.exit).toMatchObject({ code: 137, signal: "SIGKILL", ended: "killed" });
    await until("the tree is gone", async () => (await pidsOf(sandbox, "sleep 8")).length === 0);
  });

  test("killProcesses leaves an empty machine that still works", async () => {
    const sandbox = await machine();
    const processes = async (): Promise<number> => Number((await sh(sandbox, ["/bin/sh", "-c", "ls -d /proc/[0-9]* | wc -l"])).out);
    const idle = await processes();
    await sh(sandbox, "for i in 1 2 3 4 5 6 7 8; do setsid sleep 91 >/dev/null 2>&1 & done; (setsid sh -c 'while :; do setsid sleep 92 & sleep 0.01; done' >/dev/null 2>&1 &)");
    const running = await sandbox.exec({ command: "sleep 93" });
    await sandbox.killProcesses();
    expect((await running.exit).code).toBe(137);
    // The machinery keeps at most two processes ready for commands to come.
    expect(await processes()).toBeLessThanOrEqual(idle + 2);
    expect(await pidsOf(sandbox, "sleep 9")).toEqual([]);
  });

  test("execs of a machine that dies under them are lost, not successful", async () => {
    const sandbox = await machine();
    const exec = await sandbox.exec({ command: "echo hi; sleep 100" });
    const output = read(exec).catch(() => "cut");
    await sleep(100);
    await sandbox.kill();
    expect((await exec.exit).ended).toBe("lost");
    await output;
    await expect(sandbox.run({ command: "true" })).rejects.toMatchObject({ code: "sandbox_gone" });
    await expect(sandbox.files.read("/etc/marker")).rejects.toMatchObject({ code: "sandbox_gone" });
  });

  test("more execs at once than the limit are refused, not queued for ever", async () => {
    const sandbox = await machine();
    const { LIMITS } = await import("../../../src/core/limits.ts");
    const outcomes = await Promise.allSettled(Array.from({ length: LIMITS.execsPerSandbox + 5 }, () => sandbox.exec({ command: ["/bin/sleep", "1000"] })));
    const refused = outcomes.filter((outcome) => outcome.status === "rejected");
    expect(refused.length).toBeGreaterThanOrEqual(5);
    for (const { reason } of refused) expect(reason).toMatchObject({ code: "limit_exceeded" });
    await sandbox.killProcesses();
    expect((await sh(sandbox, "echo fine")).out).toBe("fine\n");
  });
}

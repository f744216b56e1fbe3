/** Connections to init: commands that are attached to again, terminals, and clients that say or read nothing sensible. */
import { createConnection } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { execId, startInitMachine } from "../../../../test/support/init-machine.ts";
import { collect, initTests, machine, text, until } from "../../../../test/support/init-tests.ts";
import { LIMITS } from "../../../core/limits.ts";
import { attachExec, startExec } from "./exec.ts";
import { InitConnection } from "./init-connection.ts";
import { encodeFrame } from "./wire.ts";

initTests();

describe("attaching", () => {
  test("an id starts one process, whoever asks how often", async () => {
    const request = machine.request("echo run >> /tmp/mw-once; until rm /tmp/mw-go; do sleep 0.02; done 2>/dev/null; echo done", {});
    const first = await startExec(machine.connection, request);
    const second = await startExec(machine.connection, request);
    await expect(first.exit).rejects.toMatchObject({ code: "conflict" });
    await machine.run(": > /tmp/mw-go");
    expect(await collect(second)).toMatchObject({ stdout: "done\n", exit: { code: 0 } });
    const third = await startExec(machine.connection, request);
    expect((await collect(third)).exit).toMatchObject({ code: 0 });
    await third.acknowledge();
    await expect(attachExec(machine.connection, request.id)).rejects.toMatchObject({ code: "not_found" });
    expect(text((await machine.run("cat /tmp/mw-once; rm /tmp/mw-once")).stdout)).toBe("run\n");
  });

  test("resumes at an offset after the connection is gone, the command none the wiser", async () => {
    const id = execId();
    const before = await InitConnection.connect(machine.socket);
    const exec = await startExec(before, machine.request("seq 1 200000; exit 9", { id }));
    let seen = "";
    for await (const { data } of exec.output) {
      seen += text(data);
      if (seen.length > 300_000) break;
    }
    before.close();
    const again = await InitConnection.connect(machine.socket);
    const { stdout, exit } = await collect(await attachExec(again, id, { stdout: seen.length }));
    expect(exit).toMatchObject({ code: 9, stdoutBytes: 1_288_895 });
    expect(seen + stdout).toBe(`${Array.from({ length: 200_000 }, (_, i) => i + 1).join("\n")}\n`);
    again.close();
  });

  test("a reader that is away stops the writer at the window, and nothing is lost", async () => {
    const id = execId();
    const before = await InitConnection.connect(machine.socket);
    await startExec(before, machine.request("head -c 4000000 /dev/zero; echo end >&2", { id }));
    await sleep(300);
    before.close();
    await sleep(200);
    const entry = (await machine.connection.list()).find((each) => each.id === id);
    expect(entry).toMatchObject({ state: "running" });
    const again = await attachExec(machine.connection, id);
    let bytes = 0;
    for await (const { stream, data } of again.output) if (stream === "stdout") bytes += data.length;
    expect(bytes).toBe(4_000_000);
    await again.acknowledge();
    expect((await machine.connection.list()).some((each) => each.id === id)).toBe(false);
  });

  test("keeps finished execs until acknowledged, the oldest dropped beyond the limit", async () => {
    const own = await startInitMachine();
    const ids = Array.from({ length: LIMITS.execsRetained + 10 }, () => execId());
    for (const id of ids) {
      const connection = await InitConnection.connect(own.socket);
      await (await startExec(connection, own.request(["/bin/true"], { id }))).exit;
      connection.close();
      await connection.closed;
    }
    await until(async () => (await own.connection.list()).length <= LIMITS.execsRetained + 1);
    await expect(attachExec(own.connection, ids[0] ?? execId())).rejects.toMatchObject({ code: "not_found" });
    expect((await (await attachExec(own.connection, ids.at(-1) ?? execId())).exit).code).toBe(0);
    await own.stop();
  });

  test("an exec that still runs cannot be acknowledged away", async () => {
    const exec = await machine.start(["sleep", "68"]);
    await expect(exec.acknowledge()).rejects.toMatchObject({ code: "busy" });
    await exec.kill();
    await collect(exec);
  });
});

describe("terminals", () => {
  test("have a size, a session and one stream", async () => {
    const result = await machine.run("stty size; test -t 0 && test -t 2 && echo tty; echo err >&2; cut -d' ' -f7 /proc/self/stat", { pty: { columns: 132, rows: 43 } });
    const lines = text(result.stdout).split("\r\n");
    expect(lines.slice(0, 3)).toEqual(["43 132", "tty", "err"]);
    expect(Number(lines[3])).toBeGreaterThan(0);
    expect(result.stderrBytes).toBe(0);
  });

  test("resize", async () => {
    const exec = await machine.start("trap 'stty size; exit 0' WINCH; echo ready; : > /tmp/mw-ready; while :; do sleep 0.05; done", { pty: { columns: 80, rows: 24 } });
    const collected = collect(exec);
    await until(async () => (await machine.run("rm /tmp/mw-ready")).code === 0);
    await exec.resize(100, 50);
    expect(await collected).toMatchObject({ stdout: "ready\r\n50 100\r\n", exit: { code: 0 } });
  });

  test("take input and end when it is closed", async () => {
    const exec = await machine.start(["sh", "-c", "stty -echo; echo ready; : > /tmp/mw-ready; cat"], { pty: { columns: 80, rows: 24 }, openStdin: true });
    const collected = collect(exec);
    await until(async () => (await machine.run("rm /tmp/mw-ready")).code === 0);
    await exec.writeStdin("hello\n");
    await exec.closeStdin();
    expect(await collected).toMatchObject({ stdout: "ready\r\nhello\r\n", exit: { code: 0 } });
  });

  test("do not wait for a background child, and lose no tail", async () => {
    const start = performance.now();
    const result = await machine.run("(trap '' HUP; sleep 690) & seq 1 2000; echo tail-marker", { pty: { columns: 80, rows: 24 } });
    expect(performance.now() - start).toBeLessThan(120_000);
    expect(text(result.stdout).endsWith("2000\r\ntail-marker\r\n")).toBe(true);
    await machine.connection.killAll();
  });
});

/** Sends bytes on a fresh connection and resolves to what came back until it was closed, or after `ms`. */
function raw(bytes: Uint8Array, ms = 60_000): Promise<{ closed: boolean; received: number }> {
  return new Promise((resolve) => {
    const socket = createConnection(machine.socket);
    let received = 0;
    const done = (closed: boolean): void => {
      socket.destroy();
      resolve({ closed, received });
    };
    socket.on("data", (data) => (received += data.length));
    socket.on("close", () => done(true));
    socket.on("error", () => undefined);
    socket.write(bytes);
    setTimeout(() => done(false), ms).unref();
  });
}

describe("connections", () => {
  test("that send garbage are closed, and cost nobody else anything", async () => {
    const exec = await machine.start("sleep 0.5; echo unharmed");
    expect((await raw(Buffer.from("GET / HTTP/1.1\r\n\r\n"))).closed).toBe(true);
    expect((await raw(Buffer.alloc(64, 0xff))).closed).toBe(true);
    expect((await raw(Buffer.from([8, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]))).closed).toBe(true);
    for (let seed = 1; seed < 40; seed++) {
      const noise = Buffer.from(Array.from({ length: 200 }, (_, i) => (i * seed * 2654435761 + seed) >>> 8 & 0xff));
      noise.writeUInt32LE(100, 0);
      await raw(noise, 5);
    }
    expect(await collect(exec)).toMatchObject({ stdout: "unharmed\n" });
  });

  test("that ask nonsense get an error and live on", async () => {
    const { connection } = machine;
    await expect(connection.request(99)).rejects.toMatchObject({ code: "internal" });
    await expect(connection.request(1, [[1, "x"]])).rejects.toMatchObject({ code: "internal" });
    await expect(connection.request(1, [[1, "x".repeat(65)], [2, "true"]])).rejects.toMatchObject({ code: "internal" });
    await expect(connection.request(1, [[1, "x"], [2, "true"], [77, "?"]])).rejects.toMatchObject({ code: "internal" });
    await expect(connection.request(1, [[1, "x"], [1, "y"], [2, "true"]])).rejects.toMatchObject({ code: "internal" });
    await expect(connection.request(2, [[1, "never-started"]])).rejects.toMatchObject({ code: "not_found" });
    await expect(connection.request(12)).rejects.toMatchObject({ code: "internal" });
    await connection.ping();
  });

  test("that do not read stop only themselves", async () => {
    const flood = Buffer.concat(Array.from({ length: 20_000 }, (_, i) => encodeFrame(9, i + 1)));
    const socket = createConnection(machine.socket);
    socket.on("error", () => undefined);
    socket.pause();
    socket.write(flood);
    await sleep(200);
    await machine.connection.ping();
    expect(await machine.run("echo fine")).toMatchObject({ code: 0 });
    // Now it reads: every request is answered.
    let answers = 0;
    socket.on("data", (data) => (answers += data.length));
    socket.resume();
    await until(() => answers >= 20_000 * 9);
    socket.destroy();
  });

  test("beyond the limit are refused, and room returns", async () => {
    const many = await Promise.all(Array.from({ length: 80 }, () => InitConnection.connect(machine.socket).catch(() => null)));
    await machine.connection.ping();
    for (const each of many) each?.close();
    await until(async () => {
      const one = await InitConnection.connect(machine.socket);
      const ok = await one.ping().then(() => true, () => false);
      one.close();
      return ok;
    });
  });

  test("many execs at once all come back", async () => {
    const results = await Promise.all(Array.from({ length: 60 }, (_, i) => machine.run(`echo ${i}; exit ${i}`)));
    expect(results.map(({ code, stdout }) => [code, text(stdout)])).toEqual(Array.from({ length: 60 }, (_, i) => [i, `${i}\n`]));
  });
});

/** Machines whose controller dies, and another one takes over. */
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type MwError, toMwError } from "../../src/core/errors.ts";
import type { ExecId } from "../../src/core/ids.ts";
import { openNativeBackend, runDirectory, type NativeBackend, type Sandbox } from "../../src/sandbox/index.ts";
import type { SandboxSpec } from "../../src/sandbox/sandbox.ts";
import { Spawner } from "../../src/sandbox/backends/native/spawner.ts";
import { sh, until } from "../conformance/sandbox/fixture.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import type { Done, Errand } from "../support/mortal-controller.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";

const place = mkdtempSync(join(tmpdir(), "mw-takeover-"));
let image: TestRoot;
let homes = 0;
const backends: NativeBackend[] = [];
const children: ChildProcess[] = [];

beforeAll(() => {
  chmodSync(place, 0o755);
  image = makeTestRoot(place);
});
afterEach(async () => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  await Promise.all(backends.splice(0).map((backend) => backend.close()));
});
afterAll(() => rmSync(place, { recursive: true, force: true }));

const GRACE = 120;

function freshHome(): string {
  const home = join(place, `home-${homes++}`);
  mkdirSync(home);
  return home;
}

async function heard(child: ChildProcess): Promise<Done> {
  const ended = once(child, "exit").then(([code, signal]) => ({ error: `it ended: ${code ?? signal}` }));
  return Promise.race([once(child, "message").then(([done]) => done as Done), ended]);
}

/** A controller in a process of its own. */
class Mortal {
  readonly #child: ChildProcess;
  constructor(child: ChildProcess) {
    this.#child = child;
  }
  static async start(home: string, keepSeconds = GRACE): Promise<Mortal> {
    const child = fork(join(import.meta.dirname, "../support/mortal-controller.ts"), [home, String(keepSeconds)], { execArgv: ["--import", import.meta.resolve("tsx")], stdio: ["ignore", "inherit", "inherit", "ipc"] });
    children.push(child);
    const first = await heard(child);
    if (first.error !== undefined) throw new Error(first.error);
    return new Mortal(child);
  }
  async do(errand: Errand): Promise<Required<Pick<Done, "sandbox">> & Done> {
    const answer = heard(this.#child);
    this.#child.send(errand);
    const done = await answer;
    if (done.error !== undefined) throw new Error(done.error);
    return { ...done, sandbox: done.sandbox ?? ("" as never) };
  }
  async kill(): Promise<void> {
    const gone = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await gone;
  }
}

async function open(home: string, keepSeconds = GRACE): Promise<NativeBackend> {
  const backend = await openNativeBackend({ home, keepSeconds, log: () => undefined });
  backends.push(backend);
  return backend;
}

const spawnerPid = (home: string): number => Number.parseInt(readFileSync(join(home, "lock"), "utf8"), 10);
const lives = (pid: number): boolean => existsSync(`/proc/${pid}/stat`) && !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, "latin1"));

function taken(backend: NativeBackend, id: Sandbox["id"]): Sandbox {
  const sandbox = backend.get(id);
  if (sandbox === null) throw new Error(`${id} was not taken over`);
  return sandbox;
}

async function ends(home: string, backend: NativeBackend): Promise<void> {
  await backend.close();
  expect(await leftoversAfter(home)).toEqual([]);
}

describe("taken over", () => {
  test("machines go on as what they were: commands, their output, files, limits, labels, keys", async () => {
    const home = freshHome();
    const first = await Mortal.start(home);
    const spec: SandboxSpec = { root: image.root, labels: { of: "somebody" }, env: { KEPT: "yes" }, key: "mine", diskBytes: 32 << 20, workdir: "/w" };
    const counting: Errand["begin"] = { id: "counting" as ExecId, command: "i=0; while read line; do i=$((i+1)); echo $i $line; done; echo over; exit 7" };
    const { sandbox: id, pid } = await first.do({ spec, begin: counting });
    const spawner = spawnerPid(home);
    const epoch = Number(readFileSync(join(home, "epoch"), "utf8"));
    await first.kill();

    const second = await open(home);
    expect(spawnerPid(home)).toBe(spawner);
    expect(await second.epoch).toBe(epoch + 1);
    expect(await second.list()).toMatchObject([{ id, labels: { of: "somebody" }, state: "running" }]);
    const sandbox = taken(second, id);
    expect(sandbox.spec).toMatchObject({ env: { KEPT: "yes" }, diskBytes: 32 << 20 });
    const exec = await sandbox.attach("counting" as ExecId);
    expect(exec.pid).toBe(pid);
    await exec.writeStdin("a\nb\n");
    await exec.closeStdin();
    let out = "";
    for await (const chunk of exec.output) out += Buffer.from(chunk.data).toString();
    expect(out).toBe("1 a\n2 b\nover\n");
    expect(await exec.exit).toMatchObject({ code: 7 });
    expect((await sh(sandbox, "echo $KEPT; pwd")).out).toBe("yes\n/w\n");
    expect((await second.create(spec)).id).toBe(id);
    await sandbox.kill();
    await ends(home, second);
  });

  test("one after the other, and what was written and said before each death is there", async () => {
    const home = freshHome();
    let mortal = await Mortal.start(home);
    const { sandbox: id, pid } = await mortal.do({ spec: { root: image.root }, begin: { id: "talk" as ExecId, command: "echo first; while [ ! -e /go ]; do sleep 0.05; done; echo last; sleep 1000" } });
    for (let n = 0; n < 3; n++) {
      await mortal.kill();
      mortal = await Mortal.start(home);
      await mortal.do({ sandbox: id, begin: { id: `mark-${n}` as ExecId, command: `echo ${n} >> /marks; sleep 1000` } });
    }
    await mortal.kill();
    const backend = await open(home);
    const sandbox = taken(backend, id);
    await until("all have written", async () => (await sh(sandbox, "cat /marks")).out === "0\n1\n2\n");
    await sandbox.files.write("/go", "");
    const talk = await sandbox.attach("talk" as ExecId);
    expect(talk.pid).toBe(pid);
    let out = "";
    for await (const chunk of talk.output) {
      out += Buffer.from(chunk.data).toString();
      if (out.includes("last")) break;
    }
    expect(out).toBe("first\nlast\n");
    await ends(home, backend);
  });

  test("services of a machine lead to who listens there now", async () => {
    const home = freshHome();
    const target = join(place, "service.sock");
    const serve = async (answer: string): Promise<Server> => {
      const server = createServer((socket) => void socket.end(answer)).listen(target);
      await once(server, "listening");
      return server;
    };
    const mortal = await Mortal.start(home);
    const { sandbox: id } = await mortal.do({ spec: { root: image.root, services: [{ port: 80, target }] } });
    await mortal.kill();
    const server = await serve("second\n");
    const backend = await open(home);
    expect((await sh(taken(backend, id), "nc 127.0.0.1 80 </dev/null | tail -n 1")).out).toContain("second");
    server.close();
    await ends(home, backend);
  });

  test("what a list of hosts was changed to still holds", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    const { sandbox: id } = await mortal.do({ spec: { root: image.root, network: "allowlist", allow: ["a.example"] }, start: "allow" });
    await mortal.kill();
    const backend = await open(home);
    expect(taken(backend, id).egress?.report().allow).toEqual(["b.example"]);
    await ends(home, backend);
  });
});

describe("killed in the middle", () => {
  test("of what is done with the files of sealed machines: those are ended machines with their files, until they are taken or killed", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    const make = async (): Promise<Sandbox["id"]> => (await mortal.do({ spec: { root: image.root } })).sandbox;
    const [mine, other] = [await make(), await make()];
    await mortal.do({ sandbox: mine, run: "echo mine > /mine" });
    for (const sandbox of [mine, other]) await mortal.do({ sandbox, start: "seal" });
    await mortal.kill();
    await (await Mortal.start(home)).kill();
    const backend = await open(home);
    expect(await backend.list()).toEqual([]);
    expect(backend.get(mine)).toBeNull();
    expect([...backend.sealed.keys()].toSorted()).toEqual([mine, other].toSorted());
    const sealed = backend.sealed.get(mine);
    if (sealed === undefined) throw new Error("It is not there");
    expect(await sealed.ended).toMatchObject({ reason: "sealed", kept: true });
    const workspace = await sealed.seal();
    expect(workspace.bytes).toBeGreaterThan(0);
    expect((await workspace.changes()).map(({ path }) => Buffer.from(path).toString())).toContain("/mine");
    expect((await sh(await backend.create({ root: image.root, workspace }), "cat /mine")).out).toBe("mine\n");
    await expect(sealed.seal()).rejects.toMatchObject({ code: "sandbox_gone" });
    await backend.sealed.get(other)?.kill();
    expect(backend.sealed.size).toBe(0);
    await workspace.release();
    await ends(home, backend);
  });

  test("of creations: what is there is whole, and keys find it", async () => {
    const home = freshHome();
    const spec: SandboxSpec = { root: image.root };
    for (let round = 0; round < 3; round++) {
      const mortal = await Mortal.start(home);
      await mortal.do({ spec, start: "create" });
      await new Promise((resolve) => setTimeout(resolve, 20 * round));
      await mortal.kill();
    }
    const backend = await open(home);
    const listed = (await backend.list()).map(({ id }) => id);
    const found = await Promise.all(Array.from({ length: 50 }, (_, n) => backend.create({ ...spec, key: `key-${n}` })));
    for (const id of listed) expect(found.map((one) => one.id)).toContain(id);
    for (const one of found) expect((await sh(one, "echo works")).out).toBe("works\n");
    await ends(home, backend);
  });

  test("of an upload: nothing of it is left, neither file nor helper", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    const { sandbox: id } = await mortal.do({ spec: { root: image.root }, start: "upload" });
    await mortal.do({ sandbox: id, run: "until ls -A / | grep -q '^.mw-'; do sleep 0.05; done" });
    await mortal.kill();
    const backend = await open(home);
    const sandbox = taken(backend, id);
    await until("the helper has given up", async () => !(await sh(sandbox, "cat /proc/[0-9]*/comm; ls -A /")).out.match(/^files$|^\.mw-|upload/m));
    await ends(home, backend);
  });

  test.each(["snapshot", "fork"] as const)("of a %s: the machine is there with all that it had", async (what) => {
    const home = freshHome();
    for (let round = 0; round < 4; round++) {
      const mortal = await Mortal.start(home);
      const { sandbox: id } = await mortal.do({ spec: { root: image.root, key: `round-${round}` } });
      await mortal.do({ sandbox: id, run: "echo mine > /mine" });
      await mortal.do({ sandbox: id, start: what });
      await new Promise((resolve) => setTimeout(resolve, 40 + 35 * round));
      await mortal.kill();
      const backend = await open(home);
      const sandbox = taken(backend, id);
      expect((await sh(sandbox, "cat /mine")).out).toBe("mine\n");
      // It can be kept again, and what is kept is whole.
      const { snapshot } = await sandbox.snapshot();
      const copy = await backend.create({ root: image.root, snapshot: snapshot.id });
      expect((await sh(copy, "cat /mine")).out).toBe("mine\n");
      await backend.snapshots.remove(snapshot.id);
      await ends(home, backend);
    }
  });

  test("a machine that its owner made stand still still does", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    const { sandbox: id } = await mortal.do({ spec: { root: image.root }, begin: { id: "ticks" as ExecId, command: "while :; do echo x >> /ticks; sleep 0.02; done" } });
    const frozen = await mortal.do({ sandbox: id, start: "freeze" }).then(() => true, (error: unknown) => {
      expect(String(error)).toContain("cannot freeze a sandbox");
      return false;
    });
    await mortal.kill();
    const backend = await open(home);
    expect(frozen).toBe(backend.capabilities.freeze);
    const sandbox = taken(backend, id);
    if (frozen) {
      const { cpuMs } = await sandbox.metrics();
      await new Promise((resolve) => setTimeout(resolve, 200));
      expect((await sandbox.metrics()).cpuMs).toBe(cpuMs);
      await sandbox.thaw();
    }
    expect((await sh(sandbox, "echo on")).out).toBe("on\n");
    await ends(home, backend);
  });
});

describe("who may", () => {
  test("of controllers that race, one wins, and the others are told", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    const { sandbox: id } = await mortal.do({ spec: { root: image.root } });
    await mortal.kill();
    const tries = await Promise.allSettled(Array.from({ length: 8 }, () => open(home)));
    const won = tries.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
    expect(won).toHaveLength(1);
    for (const one of tries) if (one.status === "rejected") expect(one.reason).toMatchObject({ code: "busy", facts: { pid: spawnerPid(home) } });
    const [backend] = won;
    if (backend === undefined) throw new Error("Nobody won");
    expect((await sh(taken(backend, id), "echo here")).out).toBe("here\n");
    await ends(home, backend);
  });

  test("a controller that does not take over is told that machines wait, how long, and what takes them over", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    const { sandbox: id } = await mortal.do({ spec: { root: image.root } });
    const refused = (): Promise<MwError | null> => openNativeBackend({ home }).then(() => null, toMwError);
    expect(await refused()).toMatchObject({ code: "busy", facts: { pid: expect.any(Number) } });
    expect((await refused())?.facts["leftMs"]).toBeUndefined();
    await mortal.kill();
    // The spawner notices in its own time.
    const told = await until("it is told", async () => {
      const error = await refused();
      return error?.facts["leftMs"] === undefined ? null : error;
    });
    expect(told).toMatchObject({ code: "busy", message: expect.stringMatching(/has died, and its machines wait \d+ s more/), fix: expect.stringMatching(/mw serve --take-over SECONDS takes them over; else wait \d+ s/) });
    const left = told?.facts["leftMs"];
    expect(left).toBeGreaterThan(0);
    expect(left).toBeLessThanOrEqual(GRACE * 1000);
    const backend = await open(home);
    expect((await sh(taken(backend, id), "echo here")).out).toBe("here\n");
    expect((await refused())?.facts["leftMs"]).toBeUndefined();
    await ends(home, backend);
  });

  test("a controller that lives keeps its machines", async () => {
    const home = freshHome();
    const backend = await open(home);
    const sandbox = await backend.create({ root: image.root });
    await expect(openNativeBackend({ home, keepSeconds: GRACE })).rejects.toMatchObject({ code: "busy" });
    await expect(openNativeBackend({ home })).rejects.toMatchObject({ code: "busy" });
    expect((await sh(sandbox, "echo mine")).out).toBe("mine\n");
    await ends(home, backend);
  });

  test("the socket is its user's alone", async () => {
    const home = freshHome();
    const backend = await open(home);
    expect(statSync(runDirectory(home)).mode & 0o077).toBe(0);
    expect(statSync(join(runDirectory(home), "takeover.sock")).mode & 0o177).toBe(0);
    await ends(home, backend);
  });
});

describe("nobody comes", () => {
  test("by default machines end with their controller", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home, 0);
    await mortal.do({ spec: { root: image.root } });
    expect(existsSync(join(runDirectory(home), "takeover.sock"))).toBe(false);
    await mortal.kill();
    expect(await leftoversAfter(home)).toEqual([]);
  });

  test("after the grace everything is gone, spawner and socket too", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home, 1);
    await mortal.do({ spec: { root: image.root }, begin: { id: "long" as ExecId, command: "sleep 1000" } });
    const spawner = spawnerPid(home);
    await mortal.kill();
    await until("the spawner is gone", () => !lives(spawner));
    expect(await leftoversAfter(home)).toEqual([]);
    expect(existsSync(runDirectory(home))).toBe(false);
    const backend = await open(home);
    expect(await backend.list()).toEqual([]);
    await ends(home, backend);
  });

  test("the spawner is killed as well: the next controller sweeps, and its stale socket is no obstacle", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    await mortal.do({ spec: { root: image.root } });
    const spawner = spawnerPid(home);
    await mortal.kill();
    process.kill(spawner, "SIGKILL");
    await until("the spawner is gone", () => !lives(spawner));
    expect(existsSync(join(runDirectory(home), "takeover.sock"))).toBe(true);
    const backend = await open(home);
    expect(await backend.list()).toEqual([]);
    expect((await sh(await backend.create({ root: image.root }), "echo new")).out).toBe("new\n");
    await ends(home, backend);
  });

  test("machines of another version are ended, and new ones made", async () => {
    const home = freshHome();
    const mortal = await Mortal.start(home);
    await mortal.do({ spec: { root: image.root } });
    await mortal.kill();
    const spawner = spawnerPid(home);
    const found = await Spawner.takeOver({ dataDirectory: home, runDirectory: runDirectory(home), version: "another", graceMs: 1000, log: () => undefined });
    expect(found).toEqual({ spawner: null, ended: spawner });
    expect(await leftoversAfter(home)).toEqual([]);
    const backend = await open(home);
    expect(await backend.list()).toEqual([]);
    await ends(home, backend);
  });
});

import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { BUDGETS, harnessContext, type Recorded } from "../../test/support/harness-context.ts";
import { openMachines, type Machines } from "../../test/support/harness-machine.ts";
import { MwError } from "../core/errors.ts";
import type { Harness, HarnessContext, HarnessEnd } from "./harness.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import { HARNESS_NAMES, makeHarness } from "./index.ts";

let machines: Machines;
let sandbox: Sandbox;
let directory: string;
beforeAll(async () => {
  machines = await openMachines();
  sandbox = await machines.make("bash");
});
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "mw-harness-"));
  return async () => await rm(directory, { recursive: true });
});
afterAll(async () => await machines.close());

const aborted = (code: "cancelled" | "timeout"): AbortSignal => AbortSignal.abort(new MwError(code, "Over."));

async function run(changes: Partial<HarnessContext> = {}): Promise<HarnessEnd & { readonly recorded: Recorded }> {
  const { context, recorded } = harnessContext(sandbox, { solution: { directory, env: { WHO: "world" } }, ...changes });
  return { ...(await makeHarness("oracle").run(context)), recorded };
}

async function script(text: string | Buffer): Promise<Harness> {
  await writeFile(join(directory, "play"), text);
  return makeHarness("script", { script: join(directory, "play") });
}

describe("the registry", () => {
  it("makes each harness by its name", () => {
    const clis = ["claude-code", "codex", "gemini-cli", "qwen-code", "opencode", "pi", "continue", "mini-swe-agent"];
    const agents = ["bash", "claude-like", "codex-like", "gemini-like", "opencode-like", "fenced", "drawn"];
    expect(HARNESS_NAMES).toEqual(["nop", "oracle", "script", ...agents, "generic", ...clis]);
    for (const name of clis) expect(makeHarness(name)).toMatchObject({ name, needsModel: true, settings: { user: null } });
    expect(makeHarness("generic", { command: "true", cli: { user: "agent" } })).toMatchObject({ name: "generic", settings: { user: "agent" } });
    for (const name of ["nop", "oracle"]) expect(makeHarness(name)).toMatchObject({ name, version: "1", needsModel: false });
    for (const name of agents) expect(makeHarness(name, { agent: { history: "trim" } })).toMatchObject({ name, version: "1", needsModel: true, settings: { history: "trim", retries: 5 } });
  });

  it.each([
    ["bsh", "Did you mean bash?"],
    ["Oracel", "Did you mean oracle?"],
    ["noop", "Did you mean nop?"],
    ["claude", "The harnesses are nop, oracle, script, bash, claude-like"],
    ["cladue-code", "Did you mean claude-code?"],
    ["", "The harnesses are"],
  ])("refuses %j and helps", (name, fix) => {
    expect(() => makeHarness(name)).toThrow(expect.objectContaining({ code: "usage", fix: expect.stringContaining(fix) as unknown }));
  });

  it("guesses no name that is nothing like it", () => {
    for (const name of ["something-else", "", "x", "o".repeat(100_000)]) {
      expect(() => makeHarness(name)).toThrow(expect.objectContaining({ code: "usage", fix: expect.not.stringContaining("Did you mean") as unknown }));
    }
  });

  it("refuses options of another harness", () => {
    expect(() => makeHarness("script")).toThrow(expect.objectContaining({ code: "usage" }));
    expect(() => makeHarness("nop", { script: "x" })).toThrow(expect.objectContaining({ code: "usage" }));
  });
});

describe("nop", () => {
  it("does nothing", async () => {
    const { context, recorded } = harnessContext(sandbox);
    expect(await makeHarness("nop").run(context)).toMatchObject({ stopReason: "finished", turns: 0 });
    expect(recorded.order).toEqual([]);
    expect(await makeHarness("nop").run({ ...context, signal: aborted("cancelled") })).toMatchObject({ stopReason: "cancelled" });
  });
});

describe("oracle", () => {
  it("runs solve.sh with the solution's environment in the working directory, and takes the solution away", async () => {
    await writeFile(join(directory, "solve.sh"), 'cat /solution/data/answer; echo "hello $WHO from $(pwd)"; [[ a == a ]] && echo bash\n');
    await mkdir(join(directory, "data"));
    await writeFile(join(directory, "data", "answer"), "42\n");
    const { stopReason, recorded } = await run();
    expect(stopReason).toBe("finished");
    expect(Buffer.from(recorded.commands[0]?.stdout ?? "").toString()).toBe("42\nhello world from /work\nbash\n");
    expect((await sandbox.run({ command: "ls /solution" })).code).not.toBe(0);
  });

  it("tolerates CRLF and a missing execute bit, and keeps other bytes", async () => {
    await writeFile(join(directory, "solve.sh"), Buffer.from("#!/bin/bash\r\nset -e\r\nif true; then\r\n  printf '\xff\xc3' | wc -c\r\nfi\r\n", "latin1"));
    await chmod(join(directory, "solve.sh"), 0o600);
    const { stopReason, recorded } = await run();
    expect(stopReason).toBe("finished");
    expect(Buffer.from(recorded.commands[0]?.stdout ?? "").toString().trim()).toBe("2");
    expect(recorded.notes).toEqual(["solve.sh has CRLF line ends; it ran with LF."]);
  });

  it("runs as the agent's user, who may read the solution and not write it", async () => {
    await mkdir(join(directory, "private"), { mode: 0o700 });
    await writeFile(join(directory, "private", "data"), "secret\n", { mode: 0o600 });
    await writeFile(join(directory, "solve.sh"), "id -un; cat /solution/private/data; touch /solution/x || ls -ld /solution | cut -c1-10\n", { mode: 0o600 });
    const { stopReason, recorded } = await run({ user: "agent" });
    expect(stopReason).toBe("finished");
    expect(Buffer.from(recorded.commands[0]?.stdout ?? "").toString()).toMatch(/^agent\nsecret\nd[rwx-]+\n$/);
  });

  it("replaces what the image or a link has at /solution", async () => {
    await writeFile(join(directory, "solve.sh"), "ls /solution\n");
    await sandbox.run({ command: "mkdir /victim && touch /victim/keep && ln -s /victim /solution" });
    const { recorded } = await run();
    expect(Buffer.from(recorded.commands[0]?.stdout ?? "").toString()).toBe("solve.sh\n");
    expect(Buffer.from((await sandbox.run({ command: "ls /victim; ls -d /solution" })).stdout).toString()).toBe("keep\n");
  });

  it("says how solve.sh failed, and still takes the solution away", async () => {
    await writeFile(join(directory, "solve.sh"), "echo no >&2; exit 9\n");
    const { stopReason, detail, recorded } = await run();
    expect({ stopReason, detail }).toEqual({ stopReason: "crashed", detail: "solve.sh ended with exit code 9." });
    expect(Buffer.from(recorded.commands[0]?.stderr ?? "").toString()).toBe("no\n");
    expect((await sandbox.run({ command: "ls /solution" })).code).not.toBe(0);
  });

  it("ends with its time, by the budget or by the signal", async () => {
    await writeFile(join(directory, "solve.sh"), "sleep 60\n");
    expect(await run({ budgets: { ...BUDGETS, timeMs: 300 } })).toMatchObject({ stopReason: "agent_time" });
    const stop = new AbortController();
    setTimeout(() => stop.abort(new MwError("timeout", "Over.")), 300);
    expect(await run({ signal: stop.signal })).toMatchObject({ stopReason: "agent_time" });
    expect(await run({ signal: aborted("cancelled") })).toMatchObject({ stopReason: "cancelled" });
    expect((await sandbox.run({ command: "ls /solution" })).code).not.toBe(0);
  });

  it("refuses a task without a solution before anything starts", async () => {
    const harness = makeHarness("oracle");
    for (const solution of [null, join(directory, "missing"), directory]) {
      expect(() => harness.check?.({ solution: { directory: solution, env: {} } })).toThrow(expect.objectContaining({ code: "invalid_task", message: expect.stringMatching(/solution|solve\.sh/) as unknown }));
    }
    const { context, recorded } = harnessContext(sandbox);
    await expect(harness.run(context)).rejects.toMatchObject({ code: "invalid_task" });
    expect(recorded.order).toEqual([]);
    await mkdir(join(directory, "solve.sh"));
    expect(() => harness.check?.({ solution: { directory, env: {} } })).toThrow(expect.objectContaining({ code: "invalid_task", message: expect.stringContaining("not a regular file") as unknown }));
  });
});

describe("script", () => {
  it("plays each line as a shell of its own, whatever its exit code", async () => {
    const harness = await script("# a comment\n\n  # another\ncd /tmp; A=1\r\npwd; echo \"[$A]\"\nexit 5\ntrue 'a # b' \\\necho last");
    const { context, recorded } = harnessContext(sandbox);
    expect(await harness.run(context)).toMatchObject({ stopReason: "finished", turns: 5 });
    expect(recorded.commands.map((command) => [command.command, command.code, Buffer.from(command.stdout).toString()])).toEqual([
      ["cd /tmp; A=1", 0, ""],
      ['pwd; echo "[$A]"', 0, "/work\n[]\n"],
      ["exit 5", 5, ""],
      ["true 'a # b' \\", 0, ""],
      ["echo last", 0, "last\n"],
    ]);
  });

  it("takes lines that look like options as commands", async () => {
    const harness = await script("--help\n-c 'echo no'\necho yes");
    const { context, recorded } = harnessContext(sandbox);
    await harness.run(context);
    expect(recorded.commands.map((command) => command.code)).toEqual([127, 127, 0]);
  });

  it("goes on after a line that takes too long, and stops at its budgets and signals", async () => {
    const harness = await script("sleep 60\necho next\necho more");
    const { context, recorded } = harnessContext(sandbox);
    expect(await harness.run({ ...context, budgets: { ...BUDGETS, commandMs: 5000, turns: 2 } })).toMatchObject({ stopReason: "turns", turns: 2 });
    expect(recorded.commands.map((command) => command.ended)).toEqual(["timed_out", "exited"]);
    expect(await harness.run({ ...context, budgets: { ...BUDGETS, timeMs: 300 } })).toMatchObject({ stopReason: "agent_time", turns: 1 });
    const stop = new AbortController();
    setTimeout(() => stop.abort(new MwError("cancelled", "Over.")), 200);
    expect(await harness.run({ ...context, signal: stop.signal })).toMatchObject({ stopReason: "cancelled" });
  });

  it("goes on when a line takes away where the next one runs", async () => {
    const harness = await script("rm -r /work\necho next\nmkdir /work\npwd");
    const { context, recorded } = harnessContext(sandbox);
    expect(await harness.run(context)).toMatchObject({ stopReason: "finished", turns: 4 });
    expect(recorded.commands.map((command) => command.code)).toEqual([0, 126, 126, 126]);
    await sandbox.files.mkdir("/work");
  });

  it("refuses files that are no script", async () => {
    await expect(script("echo \0")).rejects.toMatchObject({ code: "invalid_input" });
    expect(() => makeHarness("script", { script: join(directory, "missing") })).toThrow(expect.objectContaining({ code: "invalid_input" }));
    expect(() => makeHarness("script", { script: directory })).toThrow(expect.objectContaining({ code: "invalid_input" }));
  });
});

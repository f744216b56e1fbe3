import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import * as fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { BUDGETS, harnessContext } from "../../../test/support/harness-context.ts";
import { openMachines, type Machines } from "../../../test/support/harness-machine.ts";
import { MwError } from "../../core/errors.ts";
import { systemRuntime } from "../../core/runtime.ts";
import { rehearse } from "../rehearsal/rehearse.ts";
import { cliHarness, instructionInput } from "./cli-harness.ts";
import type { CliDescriptor } from "./descriptor.ts";
import type { ModelEndpoint } from "./endpoint.ts";
import { genericCli } from "./generic.ts";

let machines: Machines;
beforeAll(async () => {
  machines = await openMachines();
});
afterAll(async () => await machines.close());

const ENDPOINT: ModelEndpoint = { baseUrl: "http://127.0.0.1:9", token: "tok", model: "m", contextTokens: null, totals: () => null };
const taking = (instruction: CliDescriptor["instruction"]): CliDescriptor => ({ ...genericCli("true"), instruction });

describe("the way of the task to the CLI", () => {
  it("is its input, or its last argument, unchanged", () => {
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (text) => {
        expect(instructionInput(taking("stdin"), text)).toEqual({ stdin: text, words: [] });
        fc.pre(!text.includes("\0"));
        expect(instructionInput(taking("argument"), text)).toEqual({ stdin: "", words: text === "" ? [] : [text] });
      }),
    );
  });

  it("keeps what looks like options or files off the command line", () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom("-", "@", " ", "\n", "a", "--help", "😀"), { maxLength: 12 }), (parts) => {
        const text = parts.join("");
        const { stdin, words } = instructionInput(taking("split"), text);
        expect(stdin + words.join("")).toBe(text);
        expect(stdin.trim()).toBe(stdin);
        for (const word of words) expect(word).not.toMatch(/^[-@]/);
      }),
    );
  });

  it("refuses what no argument can hold", () => {
    for (const text of ["a\0b", "x".repeat(200_000)]) {
      expect(() => instructionInput(taking("argument"), text)).toThrow(expect.objectContaining({ code: "invalid_task" }));
      expect(() => instructionInput(taking("stdin"), text)).not.toThrow();
    }
  });
});

describe("any command as an agent", () => {
  async function run(command: string, changes: Parameters<typeof harnessContext>[1] = {}, user?: string) {
    const sandbox = await machines.make("sh");
    const { context, recorded } = harnessContext(sandbox, { endpoint: ENDPOINT, ...changes });
    try {
      return { end: await cliHarness(genericCli(command), user === undefined ? {} : { user }).run(context), recorded, text: Buffer.from(recorded.commands[0]?.stdout ?? []).toString() };
    } finally {
      await sandbox.kill();
    }
  }

  it("is told where the model is and what to do, twice over and to the byte", async () => {
    const instruction = "\n\n--help $(touch /tmp/pwned) '\"\\ {token}\n😀\u0085\u2028 \n\n";
    const { end, text } = await run('cat; cat "$MW_INSTRUCTION_FILE"; echo "$OPENAI_BASE_URL $ANTHROPIC_BASE_URL $MW_MODEL_TOKEN $GEMINI_API_KEY $OPENAI_MODEL"; ls /tmp', { instruction });
    expect(end).toMatchObject({ stopReason: "finished" });
    expect(text).toBe(`${instruction}${instruction}http://127.0.0.1:9/v1 http://127.0.0.1:9 tok tok m\n`);
  });

  it("runs as the task's user or as the one that was asked for, in that user's home", async () => {
    expect((await run('id -u; echo "$HOME"; stat -c %u:%a /.mw/home', { user: "agent" })).text).toBe("1000\n/home/agent\n1000:700\n");
    expect((await run('id -u; echo "$HOME"', { user: null })).text).toBe("0\n/root\n");
    expect((await run("id -u", { user: "agent" }, "other")).text).toBe("1001\n");
  });

  it("gives a user without a home one that can be written", async () => {
    expect((await run('echo "$HOME"; touch "$HOME/x" && echo written', { user: "4321" })).text).toBe("/.mw/home\nwritten\n");
  });

  it("reaches its model past an image's proxy, and leaves the rest of the image's environment to the commands", async () => {
    const sandbox = await machines.make("sh", { env: { HTTP_PROXY: "http://10.0.0.1:3128", no_proxy: "example.org", LD_LIBRARY_PATH: "/opt/lib", NODE_OPTIONS: "--max-old-space-size=100" } });
    const { context, recorded } = harnessContext(sandbox, { endpoint: ENDPOINT });
    try {
      await cliHarness(genericCli('echo "$HTTP_PROXY $no_proxy $NO_PROXY $LD_LIBRARY_PATH $NODE_OPTIONS"')).run(context);
      expect(Buffer.from(recorded.commands[0]?.stdout ?? []).toString()).toBe("http://10.0.0.1:3128 example.org,127.0.0.1,localhost 127.0.0.1,localhost /opt/lib --max-old-space-size=100\n");
      expect(recorded.notes).toEqual([]);
    } finally {
      await sandbox.kill();
    }
  });

  it("ends in its time, on request, or by its own exit", async () => {
    expect((await run("sleep 100", { budgets: { ...BUDGETS, timeMs: 500 } })).end.stopReason).toBe("agent_time");
    expect((await run("exit 3")).end).toMatchObject({ stopReason: "crashed", detail: expect.stringContaining("exit code 3") as unknown });
    const stop = new AbortController();
    const running = run("sleep 100", { signal: stop.signal });
    setTimeout(() => stop.abort(new MwError("cancelled", "Enough.")), 500);
    expect((await running).end.stopReason).toBe("cancelled");
  });

  it("needs a model", async () => {
    await expect(run("true", { endpoint: null })).rejects.toMatchObject({ code: "usage" });
  });
});

/** What an agent may leave where its CLI's session log is looked for, by what is kept of it. */
const LOGS: readonly (readonly [what: string, command: string, kept: "nothing" | RegExp])[] = [
  ["a link into the machine that leads nowhere", "ln -s /etc/shadow /.mw/home/log", "nothing"],
  // Links are followed in the machine: the host's file of that name is another.
  ["a link out of the machine", "echo of-the-machine > /etc/machine-id; ln -s /../../../../../etc/machine-id /.mw/home/log", /^of-the-machine\n$/],
  ["the root of another process", "ln -s /proc/1/root/etc/passwd /.mw/home/log", "nothing"],
  ["a pipe that nobody writes", "mkfifo /.mw/home/log", "nothing"],
  ["a device without end", "ln -s /dev/zero /.mw/home/log", "nothing"],
  ["more bytes than there are", "truncate -s 100G /.mw/home/log", "nothing"],
  ["the same in a directory", "mkdir /.mw/home/log; truncate -s 100G /.mw/home/log/x", "nothing"],
  ["more files than anybody reads", "mkdir /.mw/home/log; cd /.mw/home/log; i=0; while [ $i -lt 10001 ]; do : > $i; i=$((i+1)); done", "nothing"],
  ["its directory moved away", "mv /.mw/home /moved; ln -s /moved /.mw/home; echo moved > /moved/log", /^moved\n$/],
  ["its directory gone", "rm -rf /.mw/home; : > /.mw/home", "nothing"],
];

describe("session logs", () => {
  it.each(LOGS)("that are %s", async (_what, command, kept) => {
    const sandbox = await machines.make("sh");
    const { context, recorded } = harnessContext(sandbox, { endpoint: ENDPOINT });
    try {
      expect(await cliHarness({ ...genericCli(command), logs: ["log"] }).run(context)).toMatchObject({ stopReason: "finished" });
      const names = readdirSync(recorded.directory);
      if (kept === "nothing") expect(names).toEqual([]);
      else expect(readFileSync(join(recorded.directory, "log"), "utf8")).toMatch(kept);
      // Nothing is left in the way of a later step.
      expect((await cliHarness(genericCli("test -f \"$MW_INSTRUCTION_FILE\"")).run(context)).stopReason).toBe("finished");
    } finally {
      await sandbox.kill();
    }
  });

  it("that take for ever to clear away hold nobody up", async () => {
    const sandbox = await machines.make("sh");
    let asked = 0;
    const files = new Proxy(sandbox.files, { get: (target, name) => (name === "remove" && asked++ > 0 ? () => new Promise(() => undefined) : bound(Reflect.get(target, name), target)) });
    const { context } = harnessContext(new Proxy(sandbox, { get: (target, name) => (name === "files" ? files : bound(Reflect.get(target, name), target)) }), { endpoint: ENDPOINT, runtime: { ...systemRuntime, sleep: (ms, signal) => systemRuntime.sleep(Math.min(ms, 100), signal) } });
    try {
      expect(await cliHarness(genericCli("true")).run(context)).toMatchObject({ stopReason: "finished" });
      expect(asked).toBe(2);
    } finally {
      await sandbox.kill();
    }
  });
});

function bound(value: unknown, target: object): unknown {
  return typeof value === "function" ? (value as (...args: readonly unknown[]) => unknown).bind(target) : value;
}

/** An agent in a few lines of shell, for what `mw harness test` looks at. */
const AGENT = `
ask() { printf 'POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer %s\\r\\nConnection: close\\r\\nContent-Length: %s\\r\\n\\r\\n%s' "$OPENAI_API_KEY" "\${#1}" "$1" | nc 127.0.0.1 20411 >/dev/null; }
ask '{"model":"m","tools":[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}],"messages":[{"role":"user","content":"hello"}]}'
`;

describe("a rehearsal", () => {
  it("says what is not as it should be", async () => {
    const sandbox = await machines.make("sh");
    const { root } = sandbox.spec;
    await sandbox.kill();
    const result = await rehearse({ backend: machines.backend, root, layers: [], descriptor: genericCli(AGENT), runtime: systemRuntime, signal: new AbortController().signal, instruction: "hello" });
    expect(result.calls).toEqual([expect.objectContaining({ status: "complete", dialect: "openai-chat" })]);
    expect(result.end?.stopReason).toBe("finished");
    const failed = result.checks.filter(({ ok }) => !ok).map(({ name }) => name);
    expect(failed).toEqual(["the model saw what its commands printed", "commands inherit nothing of how the CLI is loaded", "the work is in the machine, nothing of the task was executed, nothing of the CLI is left"]);
  });
});

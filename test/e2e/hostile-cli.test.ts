/** Agents that turn against the CLI that drives them, and against the gateway that answers it: the work is graded all the same, and nothing of it reaches the model afterwards. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { mw } from "../support/cli.ts";
import { startEngine } from "../support/engine/index.ts";
import { readAll } from "../support/gateway.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { writeTask } from "../support/tasks.ts";

const place = mkdtempSync(join(tmpdir(), "mw-hostile-cli-"));
const home = join(place, "home");
afterAll(() => rmSync(place, { recursive: true, force: true }));

/** A CLI: runs what the model says as a shell command until it says `done`. The image is the host's: its Node is there. */
const CLI = `
import { spawnSync } from "node:child_process";
const messages = [{ role: "user", content: "What now?" }];
for (;;) {
  const response = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", { method: "POST", headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY }, body: JSON.stringify({ model: "m", messages }) });
  if (!response.ok) { console.error(await response.text()); process.exit(1); }
  const { content } = (await response.json()).choices[0].message;
  if (content === "done") break;
  spawnSync("/bin/sh", ["-c", content], { stdio: ["ignore", "inherit", "inherit"], env: process.env });
  messages.push({ role: "assistant", content }, { role: "user", content: "And now?" });
}`;
const COMMAND = `${process.execPath} --input-type=module -e '${CLI}'`;
const WORK = "mkdir -p /work; echo hello > /work/out";
const node = (program: string): string => `${process.execPath} --input-type=module -e '${program}'`;
const POST = `(body) => fetch(process.env.OPENAI_BASE_URL + "/chat/completions", { method: "POST", headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY }, body: JSON.stringify(body) })`;

interface Result {
  readonly run: string;
  readonly rollouts: readonly { readonly rollout: string; readonly outcome: string; readonly reward: number | null; readonly stopReason: string; readonly tries: number; readonly error: unknown }[];
}

async function attack(task: string, says: string, ...flags: string[]): Promise<Result & { readonly asked: number }> {
  const engine = await startEngine(({ turn, body }) => ({ content: body["max_tokens"] === 1 || turn > 0 ? "done" : says }));
  try {
    const { stdout, code, stderr } = await mw(["run", task, "--harness", "generic", "--harness-command", COMMAND, "--upstream", `vllm=${engine.url}`, "--model", "m", "--json", "--quiet", ...flags], { env: { MW_HOME: home } });
    expect(code, stderr).toBe(0);
    expect(await leftoversAfter(home)).toEqual([]);
    return { ...(JSON.parse(stdout) as Result), asked: engine.requests.length };
  } finally {
    await engine.close();
  }
}

const ATTACKS: Readonly<Record<string, string>> = {
  "kills its CLI": "kill -9 $PPID",
  "has it say that the model server failed, and kills it": `printf "%s\\n" "{\\"type\\":\\"result\\",\\"terminal_reason\\":\\"api_error\\"}" "APIError: litellm.APIError" "{\\"status\\":\\"error\\",\\"message\\":\\"x\\"}" > /proc/$PPID/fd/2; kill -9 $PPID`,
  "takes its home and its files away": "rm -rf /.mw; kill -9 $PPID",
  "fills the disk": "cat /dev/zero > /zeros; kill -9 $PPID",
  "asks nonsense until nobody listens": node(`const post = ${POST}; for (let i = 0; i < 2100; i++) await (await post({ i })).text();`),
  "holds as many connections as it gets": node(`import { connect } from "node:net"; for (let i = 0; i < 400; i++) connect(20411, "127.0.0.1").on("error", () => {}).write("POST /v1/chat"); setTimeout(() => process.kill(process.ppid, 9), 2000);`),
  "leaves calls in flight": `(setsid ${node(`const post = ${POST}; for (let i = 0; i < 300; i++) post({ model: "m", messages: [{ role: "user", content: "x" + i }] }).catch(() => {});`)} >/dev/null 2>&1 &); kill -9 $PPID`,
};

describe("an agent behind a CLI", () => {
  it.each(Object.entries(ATTACKS))("that %s is graded by its work, in one try", async (what, command) => {
    const task = writeTask(join(place, what.replaceAll(/\W/g, "-")), { environment: 'docker_image = "host"\nnetwork_mode = "no-network"\nstorage_mb = 64' });
    const { rollouts } = await attack(task, `${WORK}; ${command}`);
    expect(rollouts).toMatchObject([{ outcome: "scored", reward: 1, tries: 1, error: null }]);
  }, 180_000);

  it("that goes beyond its budget of calls has used it up, whoever called", async () => {
    const task = writeTask(join(place, "budget"));
    const { rollouts, asked } = await attack(task, `${WORK}; ${node(`const post = ${POST}; for (let i = 0; i < 50; i++) await (await post({ model: "m", messages: [{ role: "user", content: "x" + i }] })).text();`)}`, "--max-turns", "5");
    expect(rollouts).toMatchObject([{ outcome: "scored", reward: 1, stopReason: "turns", tries: 1 }]);
    expect(asked).toBeLessThan(10);
  }, 180_000);

  it("that leaves a caller behind reaches nothing from the verifier's machine, and has no call recorded after its end", async () => {
    const test = "if (exec 3<>/dev/tcp/127.0.0.1/20411) 2>/dev/null; then echo 0; else echo 1; fi > /logs/verifier/reward.txt";
    const task = writeTask(join(place, "caller"), { test: `exec bash -c '${test}'` });
    const caller = node(`const post = ${POST}; for (let i = 0; ; i++) await post({ model: "m", messages: [{ role: "user", content: "late" + i }] }).then((r) => r.text(), () => {});`);
    const { run, rollouts } = await attack(task, `(setsid ${caller} >/dev/null 2>&1 &)`);
    expect(rollouts).toMatchObject([{ outcome: "scored", reward: 1, stopReason: "finished" }]);
    const directory = join(home, "runs", run, "rollouts", rollouts[0]?.rollout ?? "");
    const events = readFileSync(join(home, "runs", run, "events.jsonl"), "utf8").trim().split("\n").map((line) => JSON.parse(line) as { at: string; event: { type: string } });
    const ended = Date.parse(events.find(({ event }) => event.type === "rollout_ended")?.at ?? "");
    for (const { at, number } of await readAll(join(directory, "calls.jsonl"))) expect(Date.parse(at), String(number)).toBeLessThanOrEqual(ended);
  }, 180_000);

  it("that still runs beside its verifier, as a declared survivor, is answered 410", async () => {
    const caller = `const { appendFileSync } = await import("node:fs"); const post = ${POST}; for (let i = 0; ; i++) { const status = await post({ model: "m", messages: [{ role: "user", content: "late" + i }] }).then(async (r) => { await r.text(); return r.status; }, () => 0); appendFileSync("/tmp/statuses", status + "\\n"); }`;
    const task = writeTask(join(place, "survivor"), { toml: '[metadata.manyworlds]\nsurvivors = ["/opt/server"]', test: 'before=$(wc -l < /tmp/statuses); while [ "$(wc -l < /tmp/statuses)" -le $((before + 5)) ]; do sleep 0.1; done; if [ "$(tail -n 3 /tmp/statuses | sort -u)" = 410 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt' });
    const { rollouts } = await attack(task, `mkdir -p /opt; cp ${process.execPath} /opt/server; printf %s '${caller}' > /opt/caller.mjs; (setsid /opt/server /opt/caller.mjs >/dev/null 2>&1 &); while ! test -s /tmp/statuses; do sleep 0.1; done`);
    expect(rollouts).toMatchObject([{ outcome: "scored", reward: 1, stopReason: "finished" }]);
  }, 180_000);
});

describe("an agent whose model is driven from the host", () => {
  it("has no way to the gateway", async () => {
    const task = writeTask(join(place, "white-box"));
    const engine = await startEngine([{ content: null, calls: [{ command: "mkdir -p /work; if (exec 3<>/dev/tcp/127.0.0.1/20411) 2>/dev/null; then echo reached; else echo hello; fi > /work/out" }] }, { content: "done" }]);
    try {
      const { stdout, stderr } = await mw(["run", task, "--harness", "bash", "--upstream", `vllm=${engine.url}`, "--model", "m", "--json", "--quiet"], { env: { MW_HOME: home } });
      expect((JSON.parse(stdout) as Result).rollouts, stderr).toMatchObject([{ outcome: "scored", reward: 1 }]);
    } finally {
      await engine.close();
    }
  });
});

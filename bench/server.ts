/**
 * The server bench: what the E2B protocol costs over the native interface, both against one `mw serve`, taken in turns; and commands while a thousand sandboxes are open.
 * A cycle is: make a sandbox of the host's image, run one command by a login shell, end it.
 */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Sandbox } from "e2b";
import { Agent, request } from "undici";
import { percentile, round } from "./statistics.ts";

const QUICK = process.argv.includes("--quick");
const ROUNDS = QUICK ? 2 : 5;
const CYCLES = QUICK ? 20 : 100;
const OPEN = QUICK ? 100 : 1000;
const COMMANDS = QUICK ? 200 : 3000;
const AT_ONCE = 8;
const TARGET_RATIO = 0.4;
const TARGET_P99_MS = 1000;
const KEY = `e2b_${"0f".repeat(20)}`;

interface Side {
  readonly name: string;
  cycle(): Promise<void>;
}

export async function serverBench(json: boolean): Promise<boolean> {
  const home = mkdtempSync(join(tmpdir(), "mw-bench-server-"));
  const { url, stop } = await serve(home);
  try {
    const native = nativeSide(url);
    const sdk = sdkSide(url);
    // Images, connections and code are warm.
    for (const side of [native, sdk]) await atOnce(AT_ONCE, AT_ONCE * 2, () => side.cycle());
    const rates: Record<string, number[]> = { native: [], sdk: [] };
    for (let at = 0; at < ROUNDS; at++) {
      for (const side of [native, sdk]) {
        const start = performance.now();
        await atOnce(AT_ONCE, CYCLES, () => side.cycle());
        rates[side.name]?.push((CYCLES / (performance.now() - start)) * 1000);
      }
    }
    const [nativeRate, sdkRate] = [median(rates["native"] ?? []), median(rates["sdk"] ?? [])];
    const ratio = sdkRate / nativeRate;
    const commands = await withManyOpen(url);
    const p99 = percentile(commands, 99);
    const holds = ratio >= TARGET_RATIO && p99 <= TARGET_P99_MS;
    const result = { nativePerSecond: round(nativeRate), sdkPerSecond: round(sdkRate), ratio: round(ratio), open: OPEN, commands: COMMANDS, p50Ms: round(percentile(commands, 50)), p99Ms: round(p99), holds };
    if (json) console.log(JSON.stringify(result));
    else {
      console.log(`${ratio >= TARGET_RATIO ? "holds " : "MISSED"}  cycles through the E2B SDK / the native interface: ${result.sdkPerSecond}/s / ${result.nativePerSecond}/s = ${result.ratio} (target >= ${TARGET_RATIO})`);
      console.log(`${p99 <= TARGET_P99_MS ? "holds " : "MISSED"}  command with ${OPEN} sandboxes open, ${AT_ONCE} at a time: p50 ${result.p50Ms} ms, p99 ${result.p99Ms} ms (target p99 <= ${TARGET_P99_MS} ms)`);
    }
    return holds;
  } finally {
    await stop();
    rmSync(home, { recursive: true, force: true });
  }
}

function nativeSide(url: string): Side {
  const dispatcher = new Agent({ connections: AT_ONCE * 2 });
  const ask = async (method: "POST" | "DELETE", path: string, body?: unknown): Promise<unknown> => {
    const answer = await request(`${url}${path}`, { dispatcher, method, headers: { "x-api-key": KEY, ...(body === undefined ? {} : { "content-type": "application/json" }) }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
    const text = await answer.body.text();
    if (answer.statusCode >= 300) throw new Error(`${method} ${path}: ${answer.statusCode} ${text}`);
    return text === "" ? null : JSON.parse(text);
  };
  return {
    name: "native",
    cycle: async () => {
      const { id } = (await ask("POST", "/v1/sandboxes", { image: "host" })) as { id: string };
      const { code } = (await ask("POST", `/v1/sandboxes/${id}/run`, { command: ["/bin/bash", "-l", "-c", "true"] })) as { code: number };
      if (code !== 0) throw new Error(`the command ended with ${code}`);
      await ask("DELETE", `/v1/sandboxes/${id}`);
    },
  };
}

function sdkSide(url: string): Side {
  const options = { apiKey: KEY, apiUrl: url, sandboxUrl: url };
  return {
    name: "sdk",
    cycle: async () => {
      const sandbox = await Sandbox.create("host", options);
      await sandbox.commands.run("true");
      await sandbox.kill();
    },
  };
}

/** Times of commands, milliseconds. */
async function withManyOpen(url: string): Promise<readonly number[]> {
  const options = { apiKey: KEY, apiUrl: url, sandboxUrl: url, timeoutMs: 3_600_000 };
  const open: Sandbox[] = [];
  await atOnce(AT_ONCE, OPEN, async () => void open.push(await Sandbox.create("host", options)));
  const times: number[] = [];
  let next = 0;
  await atOnce(AT_ONCE, COMMANDS, async () => {
    const sandbox = open[(next++ * 7919) % open.length];
    const start = performance.now();
    await sandbox?.commands.run("true");
    times.push(performance.now() - start);
  });
  await atOnce(AT_ONCE, OPEN, async () => void (await open.pop()?.kill()));
  return times;
}

async function atOnce(width: number, count: number, work: () => Promise<void>): Promise<void> {
  let left = count;
  const worker = async (): Promise<void> => {
    while (left-- > 0) await work();
  };
  await Promise.all(Array.from({ length: width }, worker));
}

function median(values: readonly number[]): number {
  return percentile(values, 50);
}

async function serve(home: string): Promise<{ readonly url: string; readonly stop: () => Promise<void> }> {
  const child = spawn(process.execPath, [resolve("dist/cli/main.js"), "serve", "--data", home, "--port", "0", "--json"], { env: { ...process.env, MW_API_KEY: KEY }, stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise<void>((done) => child.once("close", () => done()));
  const url = await new Promise<string>((found, failed) => {
    let text = "";
    child.stdout.on("data", (data: Buffer) => {
      text += data.toString();
      if (text.endsWith("}\n")) found((JSON.parse(text) as { url: string }).url);
    });
    void ended.then(() => failed(new Error("mw serve ended")));
  });
  return {
    url,
    stop: async () => {
      child.kill("SIGTERM");
      await ended;
    },
  };
}

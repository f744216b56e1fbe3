/** The delivery bench: samples of 2,048 tokens a second from the service's process over HTTP to one Python process, which decodes and acknowledges them. */
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { round, type Ratio } from "../statistics.ts";

const QUICK = process.argv.includes("--quick");
const GROUPS = QUICK ? 100 : 1_500;
const GROUP = 8;
const AT_A_TIME = 16;

export async function deliveryBench(json: boolean): Promise<boolean> {
  const directory = mkdtempSync(join(tmpdir(), "mw-bench-delivery-"));
  const server = spawn(process.execPath, ["--import", "tsx", resolve("bench/delivery/server-process.ts"), directory], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const [line] = (await once(createInterface({ input: server.stdout }), "line")) as [string];
    const { url } = JSON.parse(line) as { url: string };
    await fill(url);
    const before = memoryOf(server.pid);
    const { stdout } = await promisify(execFile)("python3", [resolve("bench/delivery/consume.py"), url, String(AT_A_TIME)], { env: { ...process.env, PYTHONPATH: resolve("python/src") } });
    const read = JSON.parse(stdout) as { samples: number; tokens: number; trained: number; seconds: number; maxRssBytes: number };
    const perSecond = read.samples / read.seconds;
    const whole = read.samples === GROUPS * GROUP && read.trained === (read.samples * 2048) / 2;
    const ratios: Record<string, Ratio> = { "samples of 2,048 tokens a second to one Python consumer": { value: round(perSecond), target: ">= 2000, all of them whole", holds: perSecond >= 2000 && whole } };
    if (json) console.log(JSON.stringify({ ...read, perSecond: round(perSecond), serverRssBytes: { before, after: memoryOf(server.pid) }, ratios }));
    else {
      console.log(`${read.samples} samples in ${round(read.seconds)} s, ${round((read.tokens * 13) / read.seconds / 1e6)} MB/s; peak of the consumer ${Math.round(read.maxRssBytes / 2 ** 20)} MiB, server ${Math.round(before / 2 ** 20)} -> ${Math.round(memoryOf(server.pid) / 2 ** 20)} MiB`);
      for (const [name, { value, target, holds }] of Object.entries(ratios)) console.log(`${holds ? "holds " : "MISSED"}  ${name}: ${value} (target ${target})`);
    }
    return Object.values(ratios).every(({ holds }) => holds);
  } finally {
    server.kill();
    await once(server, "close");
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Makes the run and waits until all of its groups are ready. */
async function fill(url: string): Promise<void> {
  await ask(url, "PUT", "/v1/runs/bench", { group_size: GROUP, batch_groups: GROUPS, concurrency: 64, credits: { groups: GROUPS } });
  await ask(url, "PUT", "/v1/runs/bench/policy", { version: 0, model: "bench", endpoints: [{ url: "http://127.0.0.1:1" }] });
  await ask(url, "POST", "/v1/runs/bench/groups", { groups: Array.from({ length: GROUPS }, (_, at) => ({ group_id: `g${at}`, task: `/tasks/${at}` })) });
  for (;;) {
    const status = (await ask(url, "GET", "/v1/runs/bench/status")) as { groups: { ready: number } };
    if (status.groups.ready === GROUPS) return;
    await new Promise((wake) => setTimeout(wake, 100));
  }
}

async function ask(url: string, method: string, path: string, body?: unknown): Promise<unknown> {
  const response = await fetch(`${url}${path}`, { method, ...(body === undefined ? {} : { headers: { "content-type": "application/json" }, body: JSON.stringify(body) }) });
  if (!response.ok) throw new Error(`${method} ${path}: ${await response.text()}`);
  return response.json();
}

function memoryOf(pid: number | undefined): number {
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid ?? 0}/status`, "utf8"))?.[1] ?? 0) * 1024;
}

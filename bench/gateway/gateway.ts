/**
 * The gateway bench: what it adds to a call, how many it carries, and how many sessions it holds open, against the test engine on the same machine. Engine, gateway and
 * load have a process each. Every call is in the session's log, with its tokens, before its end goes out.
 */
import { fork, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { percentile, printTable, round, row, type Ratio, type Row } from "../statistics.ts";
import type { Order, Report, Target } from "./gateway-process.ts";
import { startLitellm } from "./litellm.ts";
import { chatRequest, Client, pump, type Timed } from "./load.ts";
import { timeSamples } from "./samples.ts";

const QUICK = process.argv.includes("--quick");
const CALLS = QUICK ? 300 : 2_000;
const STREAMS = 64;
const SESSIONS = 1_000;
/** Of each stream of the crowded run. */
const STREAM_TOKENS = QUICK ? 400 : 2_000;

export async function gatewayBench(json: boolean): Promise<boolean> {
  const engine = await startEngine(["--tokens", "40"]);
  const slow = await startEngine(["--tokens", String(STREAM_TOKENS), "--trickle", "5"]);
  const gateway = await startGateway();
  try {
    const rows: Row[] = [];
    const ratios: Record<string, Ratio> = {};
    await lowLoad(engine.url, gateway, rows, ratios);
    await highLoad(engine.url, gateway, rows, ratios);
    await crowd(slow.url, gateway, rows, ratios);
    const samples = (await timeSamples(QUICK ? 5 : 20)).slice(1);
    rows.push(row("samples of a rollout of 200 calls", samples, "from the call log on disk, 100,000 tokens"));
    const samplesMs = round(percentile(samples, 50));
    ratios["samples of 200 calls and 100,000 tokens, p50 ms"] = { value: samplesMs, target: "<= 200", holds: samplesMs <= 200 };
    if (json) console.log(JSON.stringify({ rows, ratios }));
    else printTable(rows, ratios);
    return Object.values(ratios).every(({ holds }) => holds);
  } finally {
    gateway.close();
    engine.close();
    slow.close();
  }
}

/** One call at a time, directly and through the gateway in turns. */
async function lowLoad(engine: string, gateway: GatewayProcess, rows: Row[], ratios: Record<string, Ratio>): Promise<void> {
  const direct = new Client([plain(engine)], 1);
  const through = new Client(await gateway.open(engine, 1), 1);
  for (const stream of [false, true]) {
    const times: Record<"direct" | "through", number[]> = { direct: [], through: [] };
    const measure = ({ firstMs, totalMs }: Timed): number => (stream ? firstMs : totalMs);
    for (let at = -CALLS / 10; at < CALLS; at++) {
      const [bare, gated] = [measure(await direct.call(chatRequest({ stream, capture: true }), stream)), measure(await through.call(chatRequest({ stream, capture: false }), stream))];
      // The first ones warm up.
      if (at < 0) continue;
      times.direct.push(bare);
      times.through.push(gated);
    }
    const what = stream ? "first word, streamed" : "whole answer";
    rows.push(row(`${what}: direct`, times.direct, "one call at a time"), row(`${what}: gateway`, times.through, "one call at a time"));
    const added = round(percentile(times.through, 50) - percentile(times.direct, 50));
    ratios[`added to the ${what}, p50 ms`] = { value: added, target: "<= 1.5", holds: added <= 1.5 };
  }
  await Promise.all([direct.close(), through.close()]);
}

async function highLoad(engine: string, gateway: GatewayProcess, rows: Row[], ratios: Record<string, Ratio>): Promise<void> {
  const total = CALLS * 4;
  const direct = new Client([plain(engine)], STREAMS);
  const through = new Client(await gateway.open(engine, STREAMS), STREAMS);
  const gated = (worker: number): Promise<Timed> => through.call(chatRequest({ stream: false, capture: false }), false, worker);
  await pump(2_000, STREAMS, gated);
  rows.push(row(`whole answer, ${STREAMS} at a time: direct`, await totals(pump(total, STREAMS, () => direct.call(chatRequest({ stream: false, capture: true }), false))), "without the gateway"));
  const before = await gateway.usage();
  const begun = performance.now();
  const times = await totals(pump(total, STREAMS, gated));
  const seconds = (performance.now() - begun) / 1000;
  const { cpuMs } = await gateway.usage();
  rows.push(row(`whole answer, ${STREAMS} at a time: gateway`, times, `${round(total / seconds)} calls/s on the clock`));
  const perCore = round(total / ((cpuMs - before.cpuMs) / 1000));
  ratios["calls a second of one core"] = { value: perCore, target: ">= 1000", holds: perCore >= 1000 };
  const peer = await startLitellm(engine);
  if (peer !== null) {
    const client = new Client([plain(peer.url)], STREAMS);
    const ask = (): Promise<Timed> => client.call(chatRequest({ stream: false, capture: false }), false);
    await pump(STREAMS, STREAMS, ask);
    const peerBegun = performance.now();
    const peerTotal = Math.round(total / 10);
    rows.push(row(`whole answer, ${STREAMS} at a time: LiteLLM proxy`, await totals(pump(peerTotal, STREAMS, ask)), "records nothing"));
    const value = round(total / seconds / (peerTotal / ((performance.now() - peerBegun) / 1000)));
    ratios["calls a second, of LiteLLM's"] = { value, target: ">= 5", holds: value >= 5 };
    await client.close();
    peer.close();
  }
  await Promise.all([direct.close(), through.close()]);
}

/** A thousand sessions, of which some stream. */
async function crowd(slow: string, gateway: GatewayProcess, rows: Row[], ratios: Record<string, Ratio>): Promise<void> {
  const before = await gateway.usage();
  const sessions = await gateway.open(slow, SESSIONS);
  const after = await gateway.usage();
  const perSession = round((after.heapBytes - before.heapBytes) / SESSIONS / 1024);
  ratios["memory of an open session, KiB"] = { value: perSession, target: "<= 100", holds: perSession <= 100 };
  const direct = new Client([plain(slow)], STREAMS);
  const through = new Client(sessions, STREAMS);
  const bare = await pump(STREAMS, STREAMS, () => direct.call(chatRequest({ stream: true, capture: true }), true));
  const gated = await pump(STREAMS, STREAMS, (worker) => through.call(chatRequest({ stream: true, capture: false }), true, worker));
  const does = (times: readonly Timed[]): string => `longest silence in a stream; ${round(times.reduce((sum, { events, totalMs }) => sum + (events / totalMs) * 1000, 0) / times.length)} events/s each`;
  rows.push(row(`${STREAMS} streams: direct`, bare.map(({ gapMs }) => gapMs), does(bare)), row(`${STREAMS} streams, ${SESSIONS} sessions: gateway`, gated.map(({ gapMs }) => gapMs), does(gated)));
  const slower = round(percentile(gated.map(({ totalMs }) => totalMs), 50) / percentile(bare.map(({ totalMs }) => totalMs), 50));
  ratios["duration of a stream, of the direct one's"] = { value: slower, target: "<= 1.1", holds: slower <= 1.1 };
  await Promise.all([direct.close(), through.close()]);
}

function plain(url: string): Target {
  return { url, token: "none" };
}

async function totals(times: Promise<readonly Timed[]>): Promise<readonly number[]> {
  return (await times).map(({ totalMs }) => totalMs);
}

async function startEngine(flags: readonly string[]): Promise<{ readonly url: string; close(): void }> {
  const child = spawn(process.execPath, ["--import", "tsx", join("test/support/engine/main.ts"), "--port", "0", "--attached", ...flags], { stdio: ["pipe", "pipe", "inherit"] });
  for await (const line of createInterface(child.stdout)) return { url: line, close: () => void child.kill() };
  throw new Error("the engine did not start");
}

interface GatewayProcess {
  open(engine: string, count: number): Promise<readonly Target[]>;
  usage(): Promise<Extract<Report, { kind: "usage" }>>;
  close(): void;
}

async function startGateway(): Promise<GatewayProcess> {
  const child: ChildProcess = fork(join(import.meta.dirname, "gateway-process.ts"), { execArgv: ["--expose-gc", "--import", "tsx"] });
  const ask = async <Kind extends Report["kind"]>(order: Order | null, kind: Kind): Promise<Extract<Report, { kind: Kind }>> => {
    const answer = once(child, "message") as Promise<[Report]>;
    if (order !== null) child.send(order);
    const [report] = await answer;
    if (report.kind !== kind) throw new Error(`the gateway said ${report.kind}`);
    return report as Extract<Report, { kind: Kind }>;
  };
  await ask(null, "ready");
  return {
    open: async (engine, count) => (await ask({ kind: "open", engine, count }, "opened")).sessions,
    usage: () => ask({ kind: "usage" }, "usage"),
    close: () => {
      if (child.connected) child.send({ kind: "close" } satisfies Order);
    },
  };
}

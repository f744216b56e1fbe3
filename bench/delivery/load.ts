/**
 * The load bench: the published shape of agentic work in compressed time against the real delivery and admission code. One trainer, once synchronous, once a step ahead and once fully
 * asynchronous, with as many places for rollouts as its steps need; then a hundred thousand rollouts in flight.
 */
import { round, type Ratio } from "../statistics.ts";
import { simulateCrowd, type CrowdResult } from "./crowd.ts";
import { workOfMemberMs } from "./shape.ts";
import { simulateTraining, type TrainingResult } from "./training.ts";

const QUICK = process.argv.includes("--quick");
const TRAINER = { steps: QUICK ? 12 : 48, stepMs: 3_600_000, batchGroups: QUICK ? 16 : 32, groupSize: 8 } as const;
/** Places beyond what is exactly needed: without any, what waits for a trainer never catches up after a slow stretch. */
const HEADROOM = 1.1;
const ASYNC_STALENESS = 8;
const CROWD = QUICK ? 10_000 : 100_000;

export async function loadBench(json: boolean): Promise<boolean> {
  const concurrency = Math.ceil((HEADROOM * TRAINER.batchGroups * TRAINER.groupSize * workOfMemberMs()) / TRAINER.stepMs);
  const modes = { synchronous: 0, "one step off": 1, asynchronous: ASYNC_STALENESS };
  const results: Record<string, TrainingResult> = {};
  for (const [name, maxStaleness] of Object.entries(modes)) results[name] = await simulateTraining({ ...TRAINER, maxStaleness, concurrency });
  const crowd = await simulateCrowd(CROWD);
  const ratios = judged(results, crowd);
  if (json) console.log(JSON.stringify({ trainer: { ...TRAINER, concurrency }, modes: results, crowd, ratios }));
  else print(concurrency, results, crowd, ratios);
  return Object.values(ratios).every(({ holds }) => holds);
}

function judged(results: Readonly<Record<string, TrainingResult>>, crowd: CrowdResult): Record<string, Ratio> {
  const free = results["asynchronous"];
  if (free === undefined) return {};
  const oldest = free.staleness.length - 1;
  return {
    "idle share, asynchronous": { value: round(free.idleShare), target: "< 0.05", holds: free.idleShare < 0.05 },
    "rollouts dropped, asynchronous": { value: round(free.dropShare), target: "<= 0.01", holds: free.dropShare <= 0.01 },
    "oldest sample, versions": { value: oldest, target: `<= ${ASYNC_STALENESS}`, holds: oldest <= ASYNC_STALENESS },
    "rollouts in flight": { value: crowd.inFlight, target: `>= ${CROWD}`, holds: crowd.inFlight >= CROWD },
    "rollouts admitted a second, log durable": { value: round(crowd.admissionsPerSecond), target: ">= 5000", holds: crowd.admissionsPerSecond >= 5000 },
    "groups of 8 admitted a second, log durable, the service alone": { value: round(crowd.groupsPerSecondAlone), target: ">= 5000", holds: crowd.groupsPerSecondAlone >= 5000 },
    "bytes of memory for a waiting rollout": { value: round(crowd.bytesPerRollout), target: "< 4096", holds: crowd.bytesPerRollout < 4096 },
  };
}

function print(concurrency: number, results: Readonly<Record<string, TrainingResult>>, crowd: CrowdResult, ratios: Readonly<Record<string, Ratio>>): void {
  console.log(`${TRAINER.steps} steps of ${TRAINER.stepMs / 60_000} minutes, ${TRAINER.batchGroups} groups of ${TRAINER.groupSize} each, ${concurrency} rollouts at a time\n`);
  console.log("mode           idle    hours  places busy  dropped  samples by versions behind");
  for (const [name, { idleShare, hours, busyShare, dropShare, staleness }] of Object.entries(results)) {
    console.log(`${name.padEnd(13)} ${percent(idleShare)}  ${hours.toFixed(1).padStart(6)}  ${percent(busyShare).padStart(11)}  ${percent(dropShare).padStart(7)}  ${staleness.join(" ")}`);
  }
  console.log("\nasynchronous, by tenth of rollout length: up to minutes, rollouts, dropped");
  for (const { upToMinutes, rollouts, dropped } of results["asynchronous"]?.drops ?? []) console.log(`  ${upToMinutes.toFixed(1).padStart(6)}  ${String(rollouts).padStart(6)}  ${dropped} (${percent(dropped / rollouts).trim()})`);
  console.log(`\n${crowd.inFlight} rollouts in flight: ${Math.round(crowd.bytesPerRollout)} bytes each, admitted as ${Math.round(crowd.groupsPerSecond)} groups a second beside their simulation, log ${(crowd.logBytes / 1e6).toFixed(1)} MB, opened again in ${Math.round(crowd.reopenMs)} ms, ${crowd.delivered} groups delivered in ${crowd.drainSeconds.toFixed(1)} s\n`);
  for (const [name, { value, target, holds }] of Object.entries(ratios)) console.log(`${holds ? "holds " : "MISSED"}  ${name}: ${value} (target ${target})`);
}

const percent = (share: number): string => `${(100 * share).toFixed(1)} %`.padStart(6);

/** The white-box harnesses: a loop over the model and the machine, made of the parts that a setup names. */
import { MwError } from "../../core/errors.ts";
import type { Harness, HarnessContext, HarnessEnd } from "../harness.ts";
import { AgentLoop } from "./loop.ts";
import { drawSetup, fencedSetup, presetSetup, type AgentSetup, type HistoryRule } from "./setup.ts";
import { PRESETS, type PresetName } from "./presets.ts";

/** Changes to a setup, for all rollouts of a run. */
export interface AgentOptions {
  /** Null sends none, for models whose template has no system role. */
  readonly systemPrompt?: string | null;
  /** Send the model's reasoning back with its answers; default true. */
  readonly keepReasoning?: boolean;
  readonly history?: HistoryRule;
  /** See `AgentSetup.historyTokens`. */
  readonly historyTokens?: number;
  /** Tries of one model call after the first; default 5. */
  readonly retries?: number;
}

/** `drawn`: every rollout gets a setup of its own, drawn from its seed. `fenced`: no tool calls, commands stand in the text. */
export const AGENT_NAMES = [...(Object.keys(PRESETS) as PresetName[]), "fenced", "drawn"] as const;
export type AgentName = (typeof AGENT_NAMES)[number];

export function agent(name: AgentName, options: AgentOptions = {}): Harness {
  const { retries = 5, ...changes } = options;
  const fixed = name === "drawn" ? null : { ...setupOf(name), ...changes };
  return {
    name,
    version: "1",
    needsModel: true,
    continues: true,
    settings: { retries, ...(fixed ?? { drawn: true, ...changes }) },
    run: async (context) => {
      const setup = fixed ?? { ...drawSetup(context.seed), ...changes };
      if (fixed === null && (context.continuity?.from ?? null) === null) await context.recorder.drawn(setup);
      return await withDeadline(context, async (bounded) => await new AgentLoop(bounded, setup, retries).run());
    },
  };
}

function setupOf(name: Exclude<AgentName, "drawn">): AgentSetup {
  return name === "fenced" ? fencedSetup() : presetSetup(name);
}

/** The agent's own time, on top of whatever the caller's signal brings. */
async function withDeadline(context: HarnessContext, work: (context: HarnessContext) => Promise<HarnessEnd>): Promise<HarnessEnd> {
  const { timeMs } = context.budgets;
  if (timeMs === null) return await work(context);
  const stop = new AbortController();
  const over = new AbortController();
  const timer = context.runtime.sleep(timeMs, over.signal).then(
    () => stop.abort(new MwError("timeout", `The agent's time of ${timeMs} ms was used up.`)),
    () => undefined,
  );
  try {
    return await work({ ...context, signal: AbortSignal.any([context.signal, stop.signal]) });
  } finally {
    over.abort();
    await timer;
  }
}

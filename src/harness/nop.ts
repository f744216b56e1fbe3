/** The idle agent: does nothing. What it scores is the floor of a task, which must be 0. */
import type { Harness } from "./harness.ts";
import { stopOfSignal } from "./stop.ts";

export const nop: Harness = {
  name: "nop",
  version: "1",
  needsModel: false,
  settings: {},
  run: (context) => {
    const stop = context.signal.aborted ? stopOfSignal(context.signal) : ({ stopReason: "finished", detail: "The idle agent did nothing." } as const);
    return Promise.resolve({ ...stop, turns: 0, promptTokens: 0, completionTokens: 0, modelMs: 0, toolMs: 0 });
  },
};

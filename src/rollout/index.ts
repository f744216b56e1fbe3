/** Runs: start and resume them, read what they left. */
export { planOf, resumeRun, startRun, type Machines, type NewRun, type RunDependencies, type RunEnd } from "./run.ts";
export { type RunController, type RunObserver } from "./controller.ts";
export { readRunConfig, type RunConfig } from "./run-config.ts";
export { loadRunState, RunState, type GroupState } from "./run-state.ts";
export { rolloutDocument, runDocument, type RolloutDocument, type RolloutLine, type RunDocument } from "./report.ts";
export { exportLines, type ExportFormat } from "./export.ts";
export { summarise, type Summary } from "./statistics.ts";

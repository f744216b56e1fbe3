/** Tasks: read Harbor directories and dataset files, refuse what cannot be honoured, verify what an agent did. */
export { taskDigest, treeDigest } from "./digest.ts";
export { readDataset, type DatasetEntry } from "./dataset.ts";
export { loadTask } from "./load-task.ts";
export { expandPlaceholders, requiredVariables } from "./placeholders.ts";
export { NO_EXTRA_SUPPORT, unsupportedReasons, type TaskOverrides, type TaskSupport } from "./unsupported.ts";
export type * from "./task.ts";

/**
 * What every sandbox backend has to do, as tests against the interface alone. A backend's own test file calls `sandboxConformance` with a way to open the
 * backend and an image; what the backend declares absent is asserted to be refused.
 */
import { describe } from "vitest";
import type { RootFilesystem, SandboxBackend } from "../../../src/sandbox/sandbox.ts";
import { attackerSuite } from "./attackers.ts";
import { execSuite } from "./exec.ts";
import { execSessionSuite } from "./exec-sessions.ts";
import { fileSuite } from "./files.ts";
import { imageSuite } from "./image-defaults.ts";
import { layerSuite } from "./layers.ts";
import { lifeSuite } from "./life.ts";
import { limitSuite } from "./limits.ts";
import { neighbourSuite } from "./neighbours.ts";
import { networkSuite } from "./network.ts";
import { snapshotSuite } from "./snapshots.ts";
import { workspaceSuite } from "./workspace.ts";

export interface ConformanceOptions {
  readonly open: () => Promise<SandboxBackend>;
  /** The image of `test/support/rootfs.ts`, in a form that the backend takes. */
  readonly root: () => RootFilesystem;
  /** A directory for files and sockets of the tests on the host side. */
  readonly scratch: () => string;
  /** Groups of tests that are run. Default: all. */
  readonly only?: readonly Group[];
}

const GROUPS = {
  exec: execSuite,
  "exec sessions": execSessionSuite,
  "image defaults": imageSuite,
  layers: layerSuite,
  files: fileSuite,
  limits: limitSuite,
  network: networkSuite,
  life: lifeSuite,
  workspace: workspaceSuite,
  snapshots: snapshotSuite,
  neighbours: neighbourSuite,
  attackers: attackerSuite,
} as const;
export type Group = keyof typeof GROUPS;

export function sandboxConformance(name: string, options: ConformanceOptions): void {
  describe(name, () => {
    for (const [group, suite] of Object.entries(GROUPS)) {
      if (options.only?.includes(group as Group) !== false) describe(group, () => suite(options));
    }
  });
}
